//! Decides whether a question may go through the coordinator if a node cannot be reached from here.
//!
//! If the coordinator does not reach such a node either, a question waits in vain until the
//! coordinator's time limit. Until then, other questions cannot use its thread and its session. So
//! after the first failure, only one question at a time goes through the coordinator, and all
//! others fail at once.

use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::StatementError;

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after which an attempt whose end was not noted counts as ended.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// Whether questions may go through the coordinator. Each step of a search runs on one thread.
#[derive(Default)]
pub(super) struct Detour(Mutex<DetourState>);

#[derive(Default)]
struct DetourState {
    /// The threads whose questions go through the coordinator now.
    passing: Vec<ThreadId>,
    /// The last failure; `None` after a success.
    failure: Option<DetourFailure>,
}

/// A failure of a question that went through the coordinator.
struct DetourFailure {
    fault: StatementError,
    /// When the next question may try.
    next: Instant,
}

impl Detour {
    /// Allows a question to go through the coordinator, or fails with the last fault.
    pub(super) fn admit(&self) -> Result<(), StatementError> {
        let mut state = self.0.lock();
        let (now, me) = (Instant::now(), thread::current().id());
        if state.passing.contains(&me) {
            return Ok(());
        }
        if let Some(failure) = &mut state.failure {
            if now < failure.next {
                return Err(failure.fault.clone());
            }
            failure.next = now + ATTEMPT_MAX;
        }
        state.passing.push(me);
        Ok(())
    }

    /// Notes the result of a step of a search on this thread.
    pub(super) fn ended(&self, fault: Option<&StatementError>) {
        // The step is repeated with a session.
        if matches!(fault, Some(StatementError::NoSession)) {
            return;
        }
        let mut state = self.0.lock();
        let me = thread::current().id();
        let Some(at) = state.passing.iter().position(|passing| *passing == me) else { return };
        state.passing.swap_remove(at);
        let next = Instant::now() + PAUSE;
        state.failure = fault.cloned().map(|fault| DetourFailure { fault, next });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failure_one_question_at_a_time_tries() {
        let detour = Detour::default();
        let elsewhere = |ends: bool| {
            let pass = || {
                let admitted = detour.admit();
                if ends {
                    detour.ended(None);
                }
                admitted.is_ok()
            };
            thread::scope(|scope| scope.spawn(pass).join().unwrap())
        };
        let fault = StatementError::Worker(Box::new(StatementError::Away("gone".into())));
        // The fault of a question that did not go through the coordinator does not count.
        detour.ended(Some(&fault));
        assert!(elsewhere(true) && detour.admit().is_ok());
        detour.ended(Some(&fault));
        assert_eq!(detour.admit().unwrap_err().to_string(), "the database is away: gone");
        detour.0.lock().failure.as_mut().unwrap().next = Instant::now();
        assert!(detour.admit().is_ok());
        // The step runs again, with a session.
        detour.ended(Some(&StatementError::NoSession));
        assert!(detour.admit().is_ok() && !elsewhere(true));
        detour.ended(None);
        assert!(elsewhere(false) && detour.admit().is_ok());
    }
}
