//! Erasing: deleted records are removed from all files within a bounded time, however large the
//! archive is. Without this bound, a log is rewritten only once a large share of the log is dead.
//!
//! The writer records the logs with deleted records and the logs with the deletions. Twice within
//! the bound, a round of maintenance rewrites all these logs. The file ERASED has the start of the
//! last such round, so that restarts do not delay the next round.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::jobs::ShelfJobs;
use crate::engine::files::ShelfFiles;
use crate::engine::shelf::OpenShelf;
use crate::engine::shelf_view::ShelfView;

const NAME: &str = "ERASED";

/// Longest and shortest time between two checks of the clock, which may be set meanwhile.
const LOOK_MAX: Duration = Duration::from_hours(1);
const LOOK_MIN: Duration = Duration::from_millis(100);

/// A round of erasing.
pub(super) struct EraseRound {
    /// The logs that must still be rewritten.
    pub(super) logs: BTreeSet<u32>,
    /// Start of the round; `None` if the round only retries logs of the last round.
    began: Option<SystemTime>,
}

/// Schedules all logs with dead records for erasing, since a start cannot distinguish deleted
/// from replaced records.
pub(crate) fn note_all_erasable(jobs: &ShelfJobs, view: &ShelfView) {
    let logs = logs_with_dead(view);
    jobs.erase_schedule().logs.extend(logs);
}

fn logs_with_dead(view: &ShelfView) -> BTreeSet<u32> {
    view.logs().filter(|log| log.has_dead()).map(|log| log.number).collect()
}

/// Time until the next round of erasing; `None` without a bound for erasing.
pub(super) fn erase_wait(files: &ShelfFiles, jobs: &ShelfJobs) -> Option<Duration> {
    let every = files.bounds().erase_within? / 2;
    let last = jobs.erase_schedule().last?;
    let left = last.checked_add(every)?.duration_since(SystemTime::now()).unwrap_or_default();
    Some(left.clamp(LOOK_MIN, LOOK_MAX))
}

/// Begins a round of erasing, if a round is due.
pub(super) fn begin_erasing(shelf: &OpenShelf) -> Option<EraseRound> {
    let every = shelf.files.bounds().erase_within? / 2;
    let now = SystemTime::now();
    let known = shelf.jobs.erase_schedule().last;
    let last = known.unwrap_or_else(|| {
        let read = read_erased(&shelf.files);
        if read.is_none() {
            write_erased(&shelf.files, now);
        }
        read.unwrap_or(now)
    });
    shelf.jobs.erase_schedule().last = Some(last);
    // A bound beyond the range of the clock counts as no bound.
    if last.checked_add(every).is_none_or(|next| (last..next).contains(&now)) {
        let logs = std::mem::take(&mut shelf.jobs.erase_schedule().again);
        return (!logs.is_empty()).then_some(EraseRound { logs, began: None });
    }
    // The writer's lock is held, so that every scheduled deletion has also been applied in
    // memory.
    let _writing = shelf.writer.lock();
    let mut erase = shelf.jobs.erase_schedule();
    let mut logs = std::mem::take(&mut erase.logs);
    logs.append(&mut erase.again);
    if std::mem::take(&mut erase.all) {
        logs.append(&mut logs_with_dead(&shelf.view.load()));
    }
    Some(EraseRound { logs, began: Some(now) })
}

/// Ends a round of erasing. Later runs retry the remaining logs; if the round was cut short, a
/// whole round is due at once.
pub(super) fn end_erasing(
    (files, jobs): (&ShelfFiles, &ShelfJobs),
    round: EraseRound,
    is_cut_short: bool,
) {
    let mut erase = jobs.erase_schedule();
    if is_cut_short {
        erase.logs.extend(round.logs);
        return;
    }
    erase.again.extend(round.logs);
    if let Some(began) = round.began {
        erase.last = Some(began);
        drop(erase);
        write_erased(files, began);
    }
}

/// Reads the start of the last round. A damaged file counts as a round long ago.
fn read_erased(files: &ShelfFiles) -> Option<SystemTime> {
    let mut text = String::new();
    match files.disk().read(&files.dir().join(NAME)) {
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

fn write_erased(files: &ShelfFiles, at: SystemTime) {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let write = || {
        let mut file = files.disk().create(&files.dir().join(NAME))?;
        file.write_all(format!("{seconds}\n").as_bytes())?;
        file.sync()
    };
    if let Err(error) = write() {
        // The next start erases earlier than necessary.
        tracing::debug!(%error, "ERASED could not be written");
    }
}
