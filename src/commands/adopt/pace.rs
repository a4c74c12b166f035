//! The rate limit of an adoption (`--rate`), and the time since its start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum sleep, so that an interrupt is noticed in time.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// The number of rows copied since the start, and the maximum per second.
pub(super) struct AdoptPace<'a> {
    started: Instant,
    /// Maximum number of rows per second; `None` for no limit.
    rate: Option<u64>,
    rows: u64,
    stop: &'a AtomicBool,
}

impl<'a> AdoptPace<'a> {
    /// Starts the count of rows at 0. There is no limit if `rate` is `None` or 0. An interrupt sets
    /// `stop`.
    pub(super) fn start(rate: Option<u64>, stop: &'a AtomicBool) -> Self {
        Self { started: Instant::now(), rate: rate.filter(|rate| *rate > 0), rows: 0, stop }
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

    /// Counts rows, and sleeps as long as the rate requires.
    pub(super) fn wait(&mut self, rows: u64) {
        self.rows += rows;
        let Some(rate) = self.rate else { return };
        self.sleep_until(self.started + Duration::from_secs_f64(self.rows as f64 / rate as f64));
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
