//! Decides whether a new session may be opened. While a database cannot be reached or does not
//! answer, one thread at a time tries to open a session, and all other threads fail at once.

use std::time::{Duration, Instant};

use crate::error::StatementError;

/// Shortest and longest wait between two attempts to reach a database.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(1);

/// The state of a database, as the last attempts to use it have shown.
#[derive(Debug, Default)]
pub(crate) struct SessionGate {
    /// `None` while the database answers.
    trouble: Option<Trouble>,
}

#[derive(Debug)]
struct Trouble {
    /// The fault that is reported to all threads that may not try.
    fault: StatementError,
    /// Whether an attempt to open a session has failed. A single late answer does not prove a
    /// fault, because the statement may be slow.
    is_proven: bool,
    /// The pause after the last attempt, and its end.
    pause: Duration,
    next: Instant,
    /// The latest time at which the attempt in progress ends.
    attempt_ends: Option<Instant>,
}

/// Whether a thread may open a session.
#[derive(Debug)]
pub(crate) enum Admission {
    /// The thread may open a session, and must report the result to [`SessionGate::ended`].
    Attempt(Attempt),
    /// The thread waits until a session is free or an attempt has ended.
    Wait,
    /// The database is not used now.
    Refused(StatementError),
}

/// An attempt to open a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// Nothing is known to be wrong. Several threads may open sessions at the same time.
    Usual,
    /// The only attempt to reach a database that cannot be reached.
    Only,
    /// The only attempt to reach a database that accepts connections but does not answer, or whose
    /// packets are lost.
    Probe,
}

impl SessionGate {
    /// Decides whether a thread may open a session. `has_room` is false if the maximum number of
    /// sessions is open; one more session is opened as a probe. An attempt takes at most
    /// `attempt_max`.
    pub(crate) fn admit(&mut self, has_room: bool, attempt_max: Duration) -> Admission {
        let Some(trouble) = &mut self.trouble else {
            return if has_room { Admission::Attempt(Attempt::Usual) } else { Admission::Wait };
        };
        let now = Instant::now();
        let is_late = trouble.fault.is_late();
        let has_room = has_room || is_late;
        let is_tried = trouble.attempt_ends.is_some_and(|ends| now < ends);
        if !has_room || (is_tried && !trouble.is_proven) {
            return Admission::Wait;
        }
        if is_tried || now < trouble.next {
            return Admission::Refused(trouble.fault.clone());
        }
        trouble.attempt_ends = Some(now + attempt_max);
        Admission::Attempt(if is_late { Attempt::Probe } else { Attempt::Only })
    }

    /// Notes the result of an attempt. `is_whole` is false if the attempt had less time than usual.
    pub(crate) fn ended(
        &mut self,
        attempt: Attempt,
        fault: Option<&StatementError>,
        is_whole: bool,
    ) {
        let Some(fault) = fault else {
            self.trouble = None;
            return;
        };
        match &mut self.trouble {
            // Attempts at the same time count as one attempt.
            Some(_) if attempt == Attempt::Usual => {}
            // A late answer to an attempt with too little time proves nothing.
            Some(trouble) if !is_whole && fault.is_late() => trouble.attempt_ends = None,
            Some(trouble) => {
                // A probe has little time, so its own time limit is not worth a message.
                if !(fault.is_late() && trouble.fault.is_late()) {
                    trouble.fault = fault.clone();
                }
                (trouble.is_proven, trouble.attempt_ends) = (true, None);
                trouble.pause = (trouble.pause * 2).clamp(RETRY_FIRST, RETRY_LAST);
                trouble.next = Instant::now() + trouble.pause;
            }
            None if is_whole || !fault.is_late() => {
                self.trouble = Some(Trouble::new(fault, true, RETRY_FIRST));
            }
            None => self.trouble = Some(Trouble::new(fault, false, Duration::ZERO)),
        }
    }

    /// Notes that a statement had no answer in time. Returns whether this is the first sign that
    /// the database does not answer: the next session is then opened as a probe.
    pub(crate) fn suspect(&mut self, fault: &StatementError) -> bool {
        let is_first = self.trouble.is_none();
        if is_first {
            self.trouble = Some(Trouble::new(fault, false, Duration::ZERO));
        }
        is_first
    }

    /// Whether the database accepts connections but does not answer.
    pub(crate) fn is_late(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.is_proven && trouble.fault.is_late())
    }
}

impl Trouble {
    fn new(fault: &StatementError, is_proven: bool, pause: Duration) -> Self {
        let (fault, next) = (fault.clone(), Instant::now() + pause);
        Self { fault, is_proven, pause, next, attempt_ends: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_hours(1);

    fn late() -> StatementError {
        StatementError::Late(Duration::from_secs(10))
    }

    fn attempt(gate: &mut SessionGate, has_room: bool) -> Option<Attempt> {
        match gate.admit(has_room, LONG) {
            Admission::Attempt(attempt) => Some(attempt),
            Admission::Wait | Admission::Refused(_) => None,
        }
    }

    /// Ends the pause between two attempts.
    fn end_pause(gate: &mut SessionGate) {
        gate.trouble.as_mut().unwrap().next = Instant::now();
    }

    #[test]
    fn one_thread_probes_a_late_database_and_all_others_are_refused_at_once() {
        let mut gate = SessionGate::default();
        assert_eq!(attempt(&mut gate, true), Some(Attempt::Usual));
        assert!(matches!(gate.admit(false, LONG), Admission::Wait));
        assert!(gate.suspect(&late()) && !gate.suspect(&late()) && !gate.is_late());
        // Even if all sessions are in use, because they may all wait for answers.
        assert_eq!(attempt(&mut gate, false), Some(Attempt::Probe));
        assert!(matches!(gate.admit(true, LONG), Admission::Wait), "the statement may be slow");
        // A probe without enough time proves nothing, and another thread may probe.
        gate.ended(Attempt::Probe, Some(&late()), false);
        assert_eq!(attempt(&mut gate, true), Some(Attempt::Probe));
        let soon = StatementError::Late(Duration::from_secs(1));
        gate.ended(Attempt::Probe, Some(&soon), true);
        assert!(gate.is_late());
        for _ in 0..2 {
            let Admission::Refused(fault) = gate.admit(false, LONG) else { panic!("{gate:?}") };
            assert_eq!(fault.to_string(), "the database did not answer within 10 s");
            end_pause(&mut gate);
            assert_eq!(attempt(&mut gate, true), Some(Attempt::Probe));
            assert_eq!(attempt(&mut gate, true), None);
            // The failure of an earlier attempt does not end a probe.
            gate.ended(Attempt::Usual, Some(&late()), true);
            assert_eq!(attempt(&mut gate, true), None);
            gate.ended(Attempt::Probe, Some(&soon), true);
        }
        end_pause(&mut gate);
        assert_eq!(attempt(&mut gate, true), Some(Attempt::Probe));
        gate.ended(Attempt::Probe, None, true);
        assert_eq!(attempt(&mut gate, true), Some(Attempt::Usual));
    }

    #[test]
    fn a_database_that_is_away_is_tried_by_one_thread_and_free_sessions_are_waited_for() {
        let mut gate = SessionGate::default();
        let away = StatementError::Away("refused".into());
        gate.ended(Attempt::Usual, Some(&away), true);
        gate.ended(Attempt::Usual, Some(&away), true);
        assert!(matches!(gate.admit(true, LONG), Admission::Refused(_)) && !gate.is_late());
        assert!(matches!(gate.admit(false, LONG), Admission::Wait));
        end_pause(&mut gate);
        assert_eq!(attempt(&mut gate, true), Some(Attempt::Only));
        assert!(matches!(gate.admit(true, LONG), Admission::Refused(_)));
        // A thread that never reports its result does not block other threads without end.
        gate.trouble.as_mut().unwrap().attempt_ends = Some(Instant::now());
        assert_eq!(attempt(&mut gate, true), Some(Attempt::Only));
        gate.ended(Attempt::Usual, None, true);
        assert_eq!(attempt(&mut gate, true), Some(Attempt::Usual));
    }
}
