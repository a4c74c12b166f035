//! Erasing: deleted records are removed from all files within a bounded time, even in large
//! archives. Without erasing, a log is rewritten only when a large share of its bytes is dead.
//!
//! The writer notes the logs that have deleted records, and the logs that have the deletions. Twice
//! within the bound, a round of maintenance rewrites all these logs. The file ERASED contains the
//! start time of the last such round, so that restarts do not delay the next round.
//!
//! If an author requests to vanish (NIP-62), earlier versions of the author's records are erased,
//! too. These versions were replaced and not deleted, so the writer has not noted their logs. The
//! round reads the logs with dead records, which takes a fraction of the time of a rewrite, and
//! rewrites only logs with records of the author.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hark_archive::Record;
use hark_archive::query::prepared::TermMap as _;

use super::erase_schedule::ErasedAuthors;
use super::jobs::ShelfJobs;
use crate::engine::files::ShelfFiles;
use crate::engine::shelf::OpenShelf;
use crate::engine::shelf_view::ShelfView;
use crate::log::{self, Log, LogFrame};
use crate::segment::RecordAddress;
use crate::segment::opened::Segment;

const NAME: &str = "ERASED";

/// The longest and the shortest wait before the system clock is read again, since the clock may be
/// set during a wait.
const LOOK_MAX: Duration = Duration::from_hours(1);
const LOOK_MIN: Duration = Duration::from_millis(100);

/// A round of erasing.
pub(super) struct EraseRound {
    /// The logs that must still be rewritten.
    pub(super) logs: BTreeSet<u32>,
    /// The time at which the round began; `None` if the round only retries logs of the last round.
    began: Option<SystemTime>,
}

/// Schedules all logs with dead records. After a start it is unknown which of these records were
/// deleted and which were only replaced.
pub(crate) fn note_all_erasable(jobs: &ShelfJobs, view: &ShelfView) {
    let logs = logs_with_dead(view);
    jobs.erase_schedule().logs.extend(logs);
}

fn logs_with_dead(view: &ShelfView) -> BTreeSet<u32> {
    let logs = view.logs().filter(|log| log.has_dead()).map(|log| log.number);
    // A dead row outlives its record if the log was rewritten and the segment was not. Such a
    // segment is due by the number of its first log.
    let has_dead_rows = |segment: &&Arc<Segment>| segment.dead.rows.count() > 0;
    let segments = view.segments.iter().filter(has_dead_rows);
    logs.chain(segments.map(|segment| segment.entry.first_log)).collect()
}

/// Time until the next round of erasing; `None` if `erase_within` is not set.
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
    // If the next round would be later than the clock can represent, no round is due.
    if last.checked_add(every).is_none_or(|next| (last..next).contains(&now)) {
        let logs = std::mem::take(&mut shelf.jobs.erase_schedule().again);
        return (!logs.is_empty()).then_some(EraseRound { logs, began: None });
    }
    let (mut logs, authors) = {
        // The lock of the writer makes sure that every scheduled deletion has also been applied in
        // memory.
        let _writing = shelf.writer.lock();
        let mut erase = shelf.jobs.erase_schedule();
        let mut logs = std::mem::take(&mut erase.logs);
        logs.append(&mut erase.again);
        if std::mem::take(&mut erase.all) {
            logs.append(&mut logs_with_dead(&shelf.view.load()));
        }
        (logs, std::mem::take(&mut erase.authors))
    };
    if !authors.is_empty() {
        add_logs_of(shelf, &authors, &mut logs);
    }
    Some(EraseRound { logs, began: Some(now) })
}

/// Adds the logs with dead records of these authors. If maintenance is stopped, all logs that were
/// not read yet are added as well.
fn add_logs_of(shelf: &OpenShelf, authors: &ErasedAuthors, logs: &mut BTreeSet<u32>) {
    let view = shelf.view.load_full();
    // The logs of heads are added without being read, because they are few and still grow.
    let heads = view.heads().filter(|head| head.log.has_dead());
    logs.extend(heads.map(|head| head.log.number));
    for segment in &view.segments {
        add_dead_rows_of(shelf, segment, authors, logs);
        for log in segment.logs.iter().flatten().filter(|log| log.has_dead()) {
            let is_due = || shelf.jobs.is_stopped() || has_records_of(&shelf.files, log, authors);
            if !logs.contains(&log.number) && is_due() {
                logs.insert(log.number);
            }
        }
    }
}

/// Adds the logs that have the records of a segment's dead rows with these authors. If a row's
/// record is no longer in any log, adds the segment's first log.
fn add_dead_rows_of(
    shelf: &OpenShelf,
    segment: &Segment,
    authors: &ErasedAuthors,
    logs: &mut BTreeSet<u32>,
) {
    let terms = shelf.files.terms();
    for entry in authors.keys().flat_map(|author| segment.file.term(terms.author(author))) {
        let rows = segment.file.postings(segment.file.list(entry));
        for row in rows.filter(|&row| row < segment.file.rows && segment.dead.dead.get(row)) {
            let address = segment.address(row);
            let is_gone = address == RecordAddress::GONE;
            logs.insert(if is_gone { segment.entry.first_log } else { address.log });
        }
    }
}

/// Whether a log has records of these authors. A log that cannot be read counts as well, because
/// its rewrite will report the damage.
fn has_records_of(files: &ShelfFiles, log: &Log, authors: &ErasedAuthors) -> bool {
    let mut has_any = false;
    let id = (log.number, log.generation);
    let read = log::replay_whole(files.disk(), log.path(), id, &mut |_, frame| {
        let LogFrame::Put(bytes) = frame else { return };
        let Ok(record) = Record::new(bytes) else { return };
        let to = record.author().and_then(|author| authors.get(author));
        has_any |= to.is_some_and(|to| record.time() <= *to);
    });
    has_any || read.is_err()
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

/// Reads the time at which the last round began. If the file is damaged, returns the Unix epoch, so
/// that a round is due at once.
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
        // This failure only makes the first round after the next start come earlier than necessary.
        tracing::debug!(%error, "ERASED could not be written");
    }
}
