//! Erasing: deleted records are removed from all files within a bounded time, however large the
//! archive is. Without this bound, a log is rewritten only once a large share of the log is dead.
//!
//! The writer records the logs with deleted records and the logs with the deletions. Twice within
//! the bound, a round of maintenance rewrites all these logs. The file ERASED has the start of the
//! last such round, so that restarts do not delay the next round.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::shelf::EmbeddedShelf;

const NAME: &str = "ERASED";

/// Longest and shortest time between two checks of the clock, which may be set meanwhile.
const LOOK_MAX: Duration = Duration::from_hours(1);
const LOOK_MIN: Duration = Duration::from_millis(100);

/// The logs to erase, and the time of the last round.
#[derive(Debug, Default)]
pub(crate) struct EraseSchedule {
    /// Numbers of the logs that have records or deletions to be erased.
    pub logs: BTreeSet<u32>,
    /// Whether any log may have such records: an author has vanished, and no list names the logs of
    /// the author's replaced records.
    pub all: bool,
    /// Logs that the last round could not erase. Every run of maintenance retries these logs.
    again: BTreeSet<u32>,
    /// Start of the last round of erasing; `None` before ERASED has been read.
    last: Option<SystemTime>,
}

/// A round of erasing.
pub(super) struct EraseRound {
    /// The logs that must still be rewritten.
    pub(super) logs: BTreeSet<u32>,
    /// Start of the round; `None` if the round only retries logs of the last round.
    began: Option<SystemTime>,
}

impl EmbeddedShelf {
    /// Schedules all logs with dead records for erasing, since a start cannot distinguish deleted
    /// from replaced records.
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

    /// Time until the next round of erasing; `None` without a bound for erasing.
    pub(super) fn erase_wait(&self) -> Option<Duration> {
        let every = self.bounds.load().erase_within? / 2;
        let last = self.erase.lock().last?;
        let left = last.checked_add(every)?.duration_since(SystemTime::now()).unwrap_or_default();
        Some(left.clamp(LOOK_MIN, LOOK_MAX))
    }

    /// Begins a round of erasing, if a round is due.
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
        // A bound beyond the range of the clock counts as no bound.
        if last.checked_add(every).is_none_or(|next| (last..next).contains(&now)) {
            let logs = std::mem::take(&mut self.erase.lock().again);
            return (!logs.is_empty()).then_some(EraseRound { logs, began: None });
        }
        // The writer's lock is held, so that every scheduled deletion has also been applied in
        // memory.
        let _writing = self.writing.lock();
        let mut erase = self.erase.lock();
        let mut logs = std::mem::take(&mut erase.logs);
        logs.append(&mut erase.again);
        if std::mem::take(&mut erase.all) {
            logs.append(&mut self.logs_with_dead());
        }
        Some(EraseRound { logs, began: Some(now) })
    }

    /// Ends a round of erasing. Later runs retry the remaining logs; if the round was cut short, a
    /// whole round is due at once.
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

    /// Reads the start of the last round. A damaged file counts as a round long ago.
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
            // The next start erases earlier than necessary.
            tracing::debug!(%error, "ERASED could not be written");
        }
    }
}
