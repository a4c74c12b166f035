//! Erasing: what was deleted is gone from all files within a bounded time, however large the
//! archive is. Otherwise a log is rewritten only once a good part of it is dead.
//!
//! The logs with deleted records, and those with the deletions, are noted as the deletions are
//! written. Twice within the bound a round of maintenance rewrites all of them. When the last such
//! round began is kept in the file ERASED, so that restarts do not put off the next one.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::shelf::EmbeddedShelf;

const NAME: &str = "ERASED";

/// Longest time between two looks at the clock, which may be set meanwhile, and shortest.
const LOOK_MAX: Duration = Duration::from_hours(1);
const LOOK_MIN: Duration = Duration::from_millis(100);

/// What is to be erased, and since when.
#[derive(Debug, Default)]
pub(crate) struct EraseSchedule {
    /// Numbers of the logs that have records or deletions to be erased.
    pub logs: BTreeSet<u32>,
    /// Whether any log may have such records: an author has vanished, whose replaced records are in
    /// logs that nothing names.
    pub all: bool,
    /// Logs that the last round could not erase. They are tried again whenever maintenance runs.
    again: BTreeSet<u32>,
    /// When the last round of erasing began; `None` until ERASED was read.
    last: Option<SystemTime>,
}

/// A round of erasing.
pub(super) struct EraseRound {
    /// The logs that are still to be rewritten.
    pub(super) logs: BTreeSet<u32>,
    /// `None` if only what the last round left is tried again.
    began: Option<SystemTime>,
}

impl EmbeddedShelf {
    /// Notes that all logs with dead records are to be erased, as a start does not know which of
    /// these records were deleted and which replaced.
    pub(crate) fn note_all_erasable(&self) {
        let logs = self.logs_with_dead();
        self.erase.lock().logs.extend(logs);
    }

    fn logs_with_dead(&self) -> BTreeSet<u32> {
        let view = self.view.load();
        let sealed = view.segments.iter().flat_map(|segment| &segment.logs).flatten();
        let logs = sealed.chain(view.heads().map(|head| &head.log));
        logs.filter(|log| log.has_dead()).map(|log| log.number).collect()
    }

    /// Time until the next round of erasing; `None` if nothing is erased.
    pub(super) fn erase_wait(&self) -> Option<Duration> {
        let every = self.bounds.load().erase_within? / 2;
        let last = self.erase.lock().last?;
        let left = last.checked_add(every)?.duration_since(SystemTime::now()).unwrap_or_default();
        Some(left.clamp(LOOK_MIN, LOOK_MAX))
    }

    /// Begins a round of erasing, if one is due.
    pub(super) fn begin_erasing(&self) -> Option<EraseRound> {
        let every = self.bounds.load().erase_within? / 2;
        let now = SystemTime::now();
        let known = self.erase.lock().last;
        let last = known.unwrap_or_else(|| {
            let read = self.read_erased();
            if read.is_none() {
                self.write_erased(now);
            }
            read.unwrap_or(now)
        });
        self.erase.lock().last = Some(last);
        // A bound beyond the clock's end is none.
        if last.checked_add(every).is_none_or(|next| (last..next).contains(&now)) {
            let logs = std::mem::take(&mut self.erase.lock().again);
            return (!logs.is_empty()).then_some(EraseRound { logs, began: None });
        }
        // The writer is held: a deletion that is noted is also carried out in memory.
        let _writing = self.writing.lock();
        let mut erase = self.erase.lock();
        let mut logs = std::mem::take(&mut erase.logs);
        logs.append(&mut erase.again);
        if std::mem::take(&mut erase.all) {
            logs.append(&mut self.logs_with_dead());
        }
        Some(EraseRound { logs, began: Some(now) })
    }

    /// Ends a round of erasing. What is left is tried again; if the round was cut short, a whole one
    /// is due at once.
    pub(super) fn end_erasing(&self, round: EraseRound, is_cut_short: bool) {
        let mut erase = self.erase.lock();
        if is_cut_short {
            erase.logs.extend(round.logs);
            return;
        }
        erase.again.extend(round.logs);
        if let Some(began) = round.began {
            erase.last = Some(began);
            drop(erase);
            self.write_erased(began);
        }
    }

    /// Reads when the last round began. A file that is not whole says that it was long ago.
    fn read_erased(&self) -> Option<SystemTime> {
        let mut text = String::new();
        match self.options.disk.read(&self.dir.join(NAME)) {
            Ok(mut file) => match file.read_to_string(&mut text) {
                Ok(_) => {}
                Err(_) => return Some(UNIX_EPOCH),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(_) => return Some(UNIX_EPOCH),
        }
        let seconds = text.trim().parse().unwrap_or(0);
        Some(UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH))
    }

    fn write_erased(&self, at: SystemTime) {
        let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let write = || {
            let mut file = self.options.disk.create(&self.dir.join(NAME))?;
            file.write_all(format!("{seconds}\n").as_bytes())?;
            file.sync()
        };
        if let Err(error) = write() {
            // The next start erases sooner than it would have to.
            tracing::debug!(%error, "ERASED could not be written");
        }
    }
}
