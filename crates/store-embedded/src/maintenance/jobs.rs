//! The state of a shelf's maintenance, which the writer, searches and maintenance share.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hark_archive::store::MaintenanceStats;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::erase_schedule::EraseSchedule;
use super::signal::{JobFailure, MaintenancePause, MaintenanceSignal};
use crate::repair::scrub::state::ScrubState;
use crate::space::state::DiskSpace;

/// The state of maintenance.
#[derive(Default)]
pub(crate) struct ShelfJobs {
    /// Held during maintenance, so only one job runs at a time.
    running: Mutex<()>,
    signal: Mutex<MaintenanceSignal>,
    signalled: Condvar,
    /// The state that maintenance keeps between rounds.
    known: Mutex<MaintenanceState>,
    /// The logs with records to erase from the files.
    erase: Mutex<EraseSchedule>,
    /// The state of the disk's space.
    space: DiskSpace,
    /// The state of the slow check.
    scrub: ScrubState,
    /// The work that maintenance has done.
    done: Mutex<MaintenanceStats>,
}

/// The state that a shelf's maintenance keeps between rounds.
#[derive(Debug, Default)]
struct MaintenanceState {
    /// Damaged files that could not be rebuilt, with the reasons. Until the next start, maintenance
    /// does not touch these files.
    damaged: BTreeMap<PathBuf, String>,
    /// Numbers of damaged segments that maintenance has not replaced yet.
    suspects: BTreeSet<u32>,
    /// For each file in which reads have failed, the number of failed reads.
    unreadable: BTreeMap<PathBuf, u32>,
    /// Whether files may exist that MANIFEST does not name.
    untidy: bool,
    /// The reason why files that MANIFEST does not name could not be removed.
    untidied: Option<String>,
}

/// The requests to maintenance.
impl ShelfJobs {
    /// Waits until no maintenance runs, and keeps maintenance from starting until the guard is
    /// dropped.
    pub(crate) fn run_alone(&self) -> MutexGuard<'_, ()> {
        self.running.lock()
    }

    pub(crate) fn signal(&self) -> MutexGuard<'_, MaintenanceSignal> {
        self.signal.lock()
    }

    /// Wakes the threads that wait for a change of the signal.
    pub(crate) fn notify(&self) {
        self.signalled.notify_all();
    }

    /// Wakes the maintenance thread, because there may be work.
    pub(crate) fn call(&self) {
        self.signal.lock().work = true;
        self.notify();
    }

    /// Waits for a change of the signal.
    pub(crate) fn wait(&self, signal: &mut MutexGuard<'_, MaintenanceSignal>) {
        self.signalled.wait(signal);
    }

    /// Waits up to `time` for a change of the signal.
    pub(crate) fn wait_for(&self, signal: &mut MutexGuard<'_, MaintenanceSignal>, time: Duration) {
        self.signalled.wait_for(signal, time);
    }

    /// Waits for a change of the signal until `until` at the latest. Returns whether this time has
    /// come.
    pub(crate) fn wait_until(
        &self,
        signal: &mut MutexGuard<'_, MaintenanceSignal>,
        until: Instant,
    ) -> bool {
        self.signalled.wait_until(signal, until).timed_out()
    }

    /// Ends the threads of the shelf.
    pub(crate) fn stop(&self) {
        self.signal.lock().stop = true;
        self.notify();
    }

    /// Whether the threads of the shelf must end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.signal.lock().stop
    }

    /// Whether maintenance pauses, because another process writes to the shelf or may soon begin to
    /// write.
    pub(super) fn is_paused(&self) -> bool {
        self.signal.lock().pause != MaintenancePause::Off
    }

    /// Whether maintenance must stop, because the shelf is being closed or maintenance pauses.
    pub(super) fn is_stopped(&self) -> bool {
        let signal = self.signal.lock();
        signal.stop || signal.pause != MaintenancePause::Off
    }

    /// Pauses or resumes maintenance. A pause waits until the current job has ended.
    pub(crate) fn pause(&self, pause: bool) {
        let mut signal = self.signal.lock();
        signal.pause = if pause { MaintenancePause::Requested } else { MaintenancePause::Off };
        signal.work |= !pause;
        drop(signal);
        self.notify();
        if pause {
            // Until the present job has ended, the writer waits for sealing as usual.
            let _running = self.running.lock();
            let mut signal = self.signal.lock();
            if signal.pause == MaintenancePause::Requested {
                signal.pause = MaintenancePause::On;
            }
            drop(signal);
            self.notify();
        }
    }

    /// Notes the number of the first log that another process still has to read; `None` if no other
    /// process follows the logs.
    pub(crate) fn set_followed_from(&self, log: Option<u32>) {
        self.signal.lock().followed_from = log;
    }

    /// The number of the first log that must not be rewritten, because another process reads this
    /// log and later ones.
    pub(super) fn followed_from(&self) -> u32 {
        self.signal.lock().followed_from.unwrap_or(u32::MAX)
    }

    /// Notes that a series of deletes begins, in an archive of `bytes` bytes.
    pub(crate) fn begin_deletes(&self, bytes: u64) {
        self.signal.lock().deletes_from_bytes.get_or_insert(bytes);
    }

    /// Notes that a series of deletes has ended.
    pub(crate) fn end_deletes(&self) {
        self.signal.lock().deletes_from_bytes = None;
    }

    /// Size of the archive in bytes at the start of a series of deletes; `None` outside a series.
    pub(crate) fn deletes_from_bytes(&self) -> Option<u64> {
        self.signal.lock().deletes_from_bytes
    }

    /// Sets the reason why the oldest full head could not be sealed; `None` if sealing has
    /// succeeded.
    pub(super) fn note_unsealed(&self, failure: Option<JobFailure>) {
        self.signal.lock().unsealed = failure;
        self.notify();
    }

    /// Number of free bytes without which the oldest full head could not be sealed; 0 if there was
    /// no such failure.
    pub(crate) fn wanted_by_sealing(&self) -> u64 {
        self.signal.lock().unsealed.as_ref().map_or(0, |failure| failure.wanted_bytes)
    }

    /// Why the last round failed.
    pub(crate) fn failure(&self) -> Option<String> {
        self.signal.lock().failed.as_ref().map(|now| now.why.clone())
    }
}

/// The parts of the state.
impl ShelfJobs {
    pub(crate) fn erase_schedule(&self) -> MutexGuard<'_, EraseSchedule> {
        self.erase.lock()
    }

    pub(crate) fn space(&self) -> &DiskSpace {
        &self.space
    }

    pub(crate) fn scrub(&self) -> &ScrubState {
        &self.scrub
    }

    /// The work that maintenance has done.
    pub(crate) fn done(&self) -> MaintenanceStats {
        *self.done.lock()
    }

    /// Changes the figures of the work that maintenance has done.
    pub(super) fn note_done(&self, change: impl FnOnce(&mut MaintenanceStats)) {
        change(&mut self.done.lock());
    }
}

/// The known damage.
impl ShelfJobs {
    /// Numbers of segments that were found damaged and must be replaced.
    pub(super) fn suspects(&self) -> BTreeSet<u32> {
        self.known.lock().suspects.clone()
    }

    /// Notes that a segment is damaged. Returns whether the damage was unknown before.
    pub(crate) fn suspect(&self, segment: u32) -> bool {
        self.known.lock().suspects.insert(segment)
    }

    /// Whether a segment was found damaged and is not replaced yet.
    pub(crate) fn is_suspect(&self, segment: u32) -> bool {
        self.known.lock().suspects.contains(&segment)
    }

    /// Notes that a damaged segment was replaced.
    pub(super) fn clear_suspect(&self, segment: u32) {
        self.known.lock().suspects.remove(&segment);
    }

    /// Notes that a file is damaged and cannot be rebuilt, and logs the damage once.
    pub(crate) fn note_damaged_file(&self, path: PathBuf, reason: String) {
        if let Entry::Vacant(entry) = self.known.lock().damaged.entry(path) {
            tracing::error!(
                file = %entry.key().display(), reason,
                "a file of the archive is damaged; maintenance does not change it, and `hark check` describes the damage"
            );
            entry.insert(reason);
        }
    }

    /// The damaged files that cannot be rebuilt, sorted by name.
    pub(crate) fn damaged_files(&self) -> Vec<PathBuf> {
        self.known.lock().damaged.keys().cloned().collect()
    }

    /// Notes files in which reads have failed, each with the number of failed reads, and logs each
    /// file once. If a failed read was not known yet, calls `note_new` and returns true. Both
    /// callbacks run under the lock, so a failed read that another thread has noted counts as
    /// known.
    pub(crate) fn note_unreadable(
        &self,
        files: impl FnOnce() -> Vec<(PathBuf, u32)>,
        note_new: impl FnOnce(),
    ) -> bool {
        let mut known = self.known.lock();
        let mut is_new = false;
        for (path, faults) in files() {
            match known.unreadable.insert(path.clone(), faults) {
                Some(before) if before == faults => continue,
                Some(_) => {}
                None => tracing::error!(
                    file = %path.display(),
                    "a part of a file of the archive could not be read: it was shortened, or the disk \
                     fails; `hark check` says more"
                ),
            }
            is_new = true;
        }
        if is_new {
            note_new();
        }
        is_new
    }

    /// Forgets the failed reads of a file that was replaced.
    pub(super) fn forget_unreadable(&self, path: &Path) {
        self.known.lock().unreadable.remove(path);
    }

    /// Notes that files may exist that MANIFEST does not name.
    pub(crate) fn note_untidy(&self) {
        self.known.lock().untidy = true;
    }

    /// Whether files may exist that MANIFEST does not name.
    pub(super) fn is_untidy(&self) -> bool {
        self.known.lock().untidy
    }

    /// Notes that the files that MANIFEST does not name were removed, or why they could not be
    /// removed. Logs a new failure.
    pub(super) fn note_tidied(&self, failed: Option<String>) {
        let mut known = self.known.lock();
        known.untidy = failed.is_some();
        if let Some(error) = failed.as_ref().filter(|_| failed != known.untidied) {
            tracing::warn!(error, "files of a failed job could not be removed");
        }
        known.untidied = failed;
    }
}
