//! The due times of requests: one after the other, at a rate or as soon as a thread is free.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How soon a waiting thread notices the end of the schedule.
const STEP: Duration = Duration::from_millis(50);

/// A schedule of requests, shared by several threads.
pub(crate) struct Schedule {
    start: Instant,
    per_s: Option<f64>,
    until: Option<Instant>,
    most: u64,
    given: AtomicU64,
    stopped: AtomicBool,
}

impl Schedule {
    /// A schedule without an end. Without a rate, each request is due when a thread calls `next`.
    pub(crate) fn new(start: Instant, per_s: Option<f64>) -> Self {
        Self {
            start,
            per_s,
            until: None,
            most: u64::MAX,
            given: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Ends the schedule at this time.
    pub(crate) fn until(self, until: Instant) -> Self {
        Self { until: Some(until), ..self }
    }

    /// Ends the schedule after this many requests.
    pub(crate) fn most(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Ends the schedule now.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Waits for the next request that no thread has taken, and returns its number and due time.
    /// `None` once the schedule has ended.
    pub(crate) fn next(&self) -> Option<(u64, Instant)> {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let due = match self.per_s {
            Some(per_s) => self.start + Duration::from_secs_f64(number as f64 / per_s),
            None => Instant::now(),
        };
        if number >= self.most {
            return None;
        }
        loop {
            let now = Instant::now();
            if self.stopped.load(Ordering::Relaxed)
                || self.until.is_some_and(|until| now.max(due) >= until)
            {
                return None;
            }
            if now >= due {
                return Some((number, due));
            }
            std::thread::sleep((due - now).min(STEP));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_is_due_when_it_was_and_an_end_is_an_end() {
        let start = Instant::now().checked_sub(Duration::from_secs(2)).unwrap();
        let late = Schedule::new(start, Some(10.0)).most(2);
        assert_eq!(late.next(), Some((0, start)));
        assert_eq!(late.next(), Some((1, start + Duration::from_millis(100))));
        assert_eq!(late.next(), None);

        let soon = Schedule::new(start, None);
        assert!(soon.next().unwrap().1 > start);
        soon.stop();
        assert_eq!(soon.next(), None);
        assert_eq!(Schedule::new(start, Some(10.0)).until(start).next(), None);
        assert_eq!(Schedule::new(start, None).until(start).next(), None);
    }
}
