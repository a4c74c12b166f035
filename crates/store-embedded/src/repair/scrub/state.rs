//! The state of the slow check, and its figures.

use std::time::Instant;

use hark_archive::store::ScrubStats;
use parking_lot::{Mutex, MutexGuard};

use super::place::ScrubPlace;

/// The state of the slow check. The figures have a separate lock, so that a reader of the figures
/// never waits for the disk.
#[derive(Default)]
pub(crate) struct ScrubState {
    /// Locked during a step.
    run: Mutex<ScrubRun>,
    told: Mutex<ScrubTold>,
}

/// The position of the slow check, and the number of faults in the current pass.
#[derive(Default)]
pub(super) struct ScrubRun {
    pub(super) place: Option<ScrubPlace>,
    /// Whether the pass began with the first log.
    is_whole: bool,
    /// Number of faults found in this pass.
    pub(super) faults: u64,
}

/// The published figures of the slow check.
#[derive(Default)]
struct ScrubTold {
    stats: ScrubStats,
    ended: Option<Instant>,
}

impl ScrubState {
    /// Locks the position of the slow check, for a step.
    pub(super) fn run(&self) -> MutexGuard<'_, ScrubRun> {
        self.run.lock()
    }

    /// Returns the figures of the slow check. `total_bytes` is the number of bytes that a whole
    /// pass reads.
    pub(crate) fn stats(&self, total_bytes: u64) -> ScrubStats {
        let told = self.told.lock();
        let last_pass_age = told.ended.map(|ended| ended.elapsed());
        ScrubStats { total_bytes, last_pass_age, ..told.stats }
    }

    /// Counts a damaged segment that was replaced.
    pub(crate) fn note_repaired(&self) {
        self.told.lock().stats.repaired += 1;
    }

    /// Begins a pass with the log `logs[chosen]`. `logs` has the numbers of all logs.
    pub(super) fn begin_at(&self, logs: &[u32], chosen: usize) {
        let mut run = self.run.lock();
        run.is_whole = chosen == 0;
        run.place = logs.get(chosen).map(|&from| ScrubPlace::before(from));
    }

    /// Begins a pass with the first log.
    pub(super) fn begin_pass(&self, run: &mut ScrubRun) {
        *run = ScrubRun { place: None, is_whole: true, faults: 0 };
        self.told.lock().stats.pass_bytes = 0;
    }

    /// Ends a pass and begins the next pass.
    pub(super) fn end_pass(&self, run: &mut ScrubRun) {
        if run.is_whole {
            let mut told = self.told.lock();
            told.stats.passes += 1;
            told.stats.last_faults = run.faults;
            told.ended = Some(Instant::now());
        }
        self.begin_pass(run);
    }

    /// Counts bytes that were read.
    pub(super) fn note_read(&self, bytes: u64) {
        let mut told = self.told.lock();
        told.stats.read_bytes += bytes;
        told.stats.pass_bytes += bytes;
    }
}
