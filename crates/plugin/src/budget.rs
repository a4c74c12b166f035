//! Bounds the number of lines about a plugin in the log.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Allows a limited number of lines to be logged in each period.
#[derive(Debug)]
pub(crate) struct LineBudget {
    lines_max: u32,
    period: Duration,
    state: Mutex<LineCount>,
}

#[derive(Debug)]
struct LineCount {
    since: Instant,
    lines: u32,
    /// Number of lines that were not logged since the last line that was logged.
    dropped: u64,
}

impl LineBudget {
    pub(crate) fn new(lines_max: u32, period: Duration) -> Self {
        let state = Mutex::new(LineCount { since: Instant::now(), lines: 0, dropped: 0 });
        Self { lines_max, period, state }
    }

    /// Returns the number of lines that were dropped before, if a line may be logged now.
    pub(crate) fn admit(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.since.elapsed() >= self.period {
            (state.since, state.lines) = (Instant::now(), 0);
        }
        if state.lines >= self.lines_max {
            state.dropped += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_above_the_budget_are_counted() {
        let budget = LineBudget::new(2, Duration::from_hours(1));
        assert_eq!([budget.admit(), budget.admit(), budget.admit()], [Some(0), Some(0), None]);
        let soon = LineBudget::new(1, Duration::ZERO);
        assert_eq!([soon.admit(), soon.admit()], [Some(0), Some(0)]);
    }
}
