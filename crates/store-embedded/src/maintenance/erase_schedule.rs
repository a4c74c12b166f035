//! The logs that have records to erase from the files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use hark_archive::{Key, Query};

/// Maximum number of authors with requests to vanish that a round searches for in the logs.
const AUTHORS_MAX: usize = 10_000;

/// Authors, each with the time up to which all records of the author are to be erased.
pub(super) type ErasedAuthors = BTreeMap<Key, u64>;

/// The logs to erase, and the time of the last round.
#[derive(Debug, Default)]
pub(crate) struct EraseSchedule {
    /// Numbers of the logs that have records or deletions to erase.
    pub(super) logs: BTreeSet<u32>,
    /// Authors who have requested to vanish (NIP-62). Their replaced records are still in the
    /// files, and a round must find the logs with these records.
    pub(super) authors: ErasedAuthors,
    /// Whether all logs with dead records are due, because too many authors have requested to
    /// vanish.
    pub(super) all: bool,
    /// Logs that the last round could not erase. Every run of maintenance retries these logs.
    pub(super) again: BTreeSet<u32>,
    /// The time at which the last round began; `None` before ERASED has been read.
    pub(super) last: Option<SystemTime>,
}

impl EraseSchedule {
    /// Schedules a log for erasing: the log has a deleted record, or the frame of a deletion.
    pub(crate) fn add(&mut self, log: u32) {
        self.logs.insert(log);
    }

    /// Schedules the erasing of all records of a query's authors up to the query's time, including
    /// replaced records.
    pub(crate) fn add_authors(&mut self, query: &Query) {
        let authors = query.authors.as_deref().unwrap_or_default();
        if authors.is_empty() || self.authors.len() + authors.len() > AUTHORS_MAX {
            self.all = true;
            return;
        }
        for author in authors {
            let to = self.authors.entry(*author).or_default();
            *to = query.to.max(*to);
        }
    }
}
