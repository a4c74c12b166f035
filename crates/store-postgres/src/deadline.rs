//! The time limits of questions and batches. A question or a batch executes many statements, which
//! share one limit. Hark measures the time itself, because a database that hangs, or a network that
//! loses packets, reports nothing.

use std::time::{Duration, Instant};

use crate::error::StatementError;

/// The time at which Hark stops waiting for a question or a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    /// The time limit of the question or the batch, for messages.
    whole: Duration,
}

impl Deadline {
    /// Returns the deadline of work that begins now.
    pub(crate) fn after(whole: Duration) -> Self {
        Self { at: Instant::now() + whole, whole }
    }

    /// The time until the deadline.
    pub(crate) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// A deadline after half of the time that is left.
    pub(crate) fn half(self) -> Self {
        Self::after(self.left() / 2)
    }

    /// The fault of work that is not done at the deadline.
    pub(crate) fn missed(self) -> StatementError {
        StatementError::Late(self.whole)
    }
}

/// The time that a question may still wait for the database. The time that a question waits for its
/// turn, or for a client that reads slowly, does not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuestionTime {
    /// `None` if only each single statement has a time limit.
    left: Option<Duration>,
    whole: Duration,
}

impl QuestionTime {
    /// Creates the time limit of a question whose statements may take `whole` together.
    pub(crate) fn new(whole: Duration) -> Self {
        Self { left: Some(whole), whole }
    }

    /// Creates the time limit of a search that may visit any number of rows, such as an export:
    /// each statement may take `whole`.
    pub(crate) fn of_statements(whole: Duration) -> Self {
        Self { left: None, whole }
    }

    /// Runs `ask`, and deducts its time. Fails if no time is left.
    pub(crate) fn spend<T>(
        &mut self,
        ask: impl FnOnce(Option<Deadline>) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let Some(left) = self.left else { return ask(None) };
        let started = Instant::now();
        let deadline = Deadline { at: started + left, whole: self.whole };
        if left.is_zero() {
            return Err(deadline.missed());
        }
        let answer = ask(Some(deadline));
        self.left = Some(left.saturating_sub(started.elapsed()));
        answer
    }

    /// Gives the question its whole time again, because the question has made progress.
    pub(crate) fn renew(&mut self) {
        self.left = self.left.map(|_| self.whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_of_a_question_share_its_time_until_it_makes_progress() {
        let whole = Duration::from_millis(20);
        let mut time = QuestionTime::new(whole);
        let sleep = |deadline: Option<Deadline>| {
            assert!(deadline.is_some_and(|deadline| deadline.left() <= whole));
            std::thread::sleep(whole);
            Ok(())
        };
        time.spend(sleep).unwrap();
        let late = time.spend(|_| Ok(())).unwrap_err();
        assert_eq!(late.to_string(), "the database did not answer within 0.02 s");
        time.renew();
        time.spend(sleep).unwrap();
        let mut unbounded = QuestionTime::of_statements(whole);
        for _ in 0..2 {
            unbounded
                .spend(|deadline| {
                    assert!(deadline.is_none());
                    Ok(())
                })
                .unwrap();
        }
    }
}
