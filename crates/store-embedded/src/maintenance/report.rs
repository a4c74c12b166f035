//! Logs the work of maintenance, with a line from time to time instead of a line after every job.

use std::time::{Duration, Instant};

use hark_archive::store::MaintenanceStats;

/// Shortest time between two lines.
const EVERY: Duration = Duration::from_mins(1);

/// The total work when the last line was logged, and the time of that line.
#[derive(Debug, Default)]
pub(super) struct WorkReport {
    told: MaintenanceStats,
    at: Option<Instant>,
    /// Whether maintenance has done further work since the last line.
    has_more: bool,
}

impl WorkReport {
    /// Logs the work since the last line, if the last line is old enough.
    pub(super) fn note(&mut self, done: &MaintenanceStats) {
        self.has_more = *done != self.told;
        if !self.has_more || self.next().is_some_and(|left| !left.is_zero()) {
            return;
        }
        tracing::info!(
            records_sealed = done.sealing.records - self.told.sealing.records,
            records_merged = done.merging.records - self.told.merging.records,
            records_rewritten = done.rewriting.records - self.told.rewriting.records,
            bytes = bytes(done) - bytes(&self.told),
            "maintenance was done"
        );
        (self.told, self.at, self.has_more) = (*done, Some(Instant::now()), false);
    }

    /// Time until the next line; `None` if there is nothing to report.
    pub(super) fn next(&self) -> Option<Duration> {
        let since = self.at.map_or(EVERY, |at| at.elapsed());
        self.has_more.then(|| EVERY.saturating_sub(since))
    }
}

fn bytes(done: &MaintenanceStats) -> u64 {
    done.sealing.bytes + done.merging.bytes + done.rewriting.bytes
}
