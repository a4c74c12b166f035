//! The logs with records to erase from the files.

use std::collections::BTreeSet;
use std::time::SystemTime;

/// The logs to erase, and the time of the last round.
#[derive(Debug, Default)]
pub(crate) struct EraseSchedule {
    /// Numbers of the logs that have records or deletions to be erased.
    pub(super) logs: BTreeSet<u32>,
    /// Whether any log may have such records: an author has vanished, and no list names the logs of
    /// the author's replaced records.
    pub(super) all: bool,
    /// Logs that the last round could not erase. Every run of maintenance retries these logs.
    pub(super) again: BTreeSet<u32>,
    /// Start of the last round of erasing; `None` before ERASED has been read.
    pub(super) last: Option<SystemTime>,
}

impl EraseSchedule {
    /// Schedules a log for erasing: the log has a deleted record, or the frame of a deletion.
    pub(crate) fn add(&mut self, log: u32) {
        self.logs.insert(log);
    }

    /// Schedules all logs with dead records.
    pub(crate) fn add_all(&mut self) {
        self.all = true;
    }
}
