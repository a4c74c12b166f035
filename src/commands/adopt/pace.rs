//! The rate limit of an adoption (`--rate`), and the time since its start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum sleep, so that an interrupt is noticed in time.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// The time for which the rate saves up the rows that were not read.
const SAVED_MAX: Duration = Duration::from_secs(1);

/// The rows of a run, and the maximum per second.
pub(super) struct AdoptPace<'a> {
    started: Instant,
    /// Maximum number of rows per second; `None` for no limit.
    rate: Option<u64>,
    /// When the next rows may be read.
    due: Instant,
    stop: &'a AtomicBool,
}

impl<'a> AdoptPace<'a> {
    /// Starts the count of rows at 0. There is no limit if `rate` is `None` or 0. An interrupt sets
    /// `stop`.
    pub(super) fn start(rate: Option<u64>, stop: &'a AtomicBool) -> Self {
        let started = Instant::now();
        Self { started, rate: rate.filter(|rate| *rate > 0), due: started, stop }
    }

    /// Returns the number of rows in a batch: `most`, or fewer if the rate allows fewer rows in one
    /// second, so that a low rate does not cause bursts.
    pub(super) fn batch(&self, most: u32) -> u32 {
        self.rate.map_or(most, |rate| most.min(u32::try_from(rate).unwrap_or(most)))
    }

    /// Returns the flag that an interrupt sets.
    pub(super) fn stop(&self) -> &'a AtomicBool {
        self.stop
    }

    /// Whether the run was interrupted.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The time since the start, in s.
    pub(super) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Counts rows that were copied, and sleeps as long as the rate requires, or until an interrupt.
    pub(super) fn wait(&mut self, rows: u64) {
        if let Some(due) = self.count(rows) {
            self.sleep_until(due);
        }
    }

    /// Counts rows that were compared, and sleeps as long as the rate requires. A comparison after
    /// an interrupt keeps to the rate as well, because it runs to its end.
    pub(super) fn compared(&mut self, rows: u64) {
        let Some(due) = self.count(rows) else { return };
        if self.is_stopped() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        } else {
            self.sleep_until(due);
        }
    }

    /// Counts rows, and returns when the next rows may be read. A pause saves up few rows, so that
    /// no burst follows the pause.
    fn count(&mut self, rows: u64) -> Option<Instant> {
        let rate = self.rate?;
        let saved = Instant::now().checked_sub(SAVED_MAX).unwrap_or(self.started);
        self.due = self.due.max(saved) + Duration::from_secs_f64(rows as f64 / rate as f64);
        Some(self.due)
    }

    /// Sleeps for this time, or until an interrupt.
    pub(super) fn pause(&self, time: Duration) {
        self.sleep_until(Instant::now() + time);
    }

    fn sleep_until(&self, due: Instant) {
        while !self.is_stopped() && Instant::now() < due {
            let left = due.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(SLEEP_MAX));
        }
    }
}
