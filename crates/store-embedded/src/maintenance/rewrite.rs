//! Rewrites a log without its deleted records.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::damaged_addresses::{trust_addresses, trust_ids};
use super::error::MaintenanceError;
use super::install::{
    JobStart, all_was_read, note_done, readdress, remove_unnamed, reopen, replace_segment,
};
use super::jobs::ShelfJobs;
use crate::disk::Disk;
use crate::engine::shelf::OpenShelf;
use crate::engine::shelf_dir::random_u32;
use crate::engine::shelf_view::ShelfView;
use crate::log::{self, Log, LogFrame, LogRewrite};
use crate::manifest::{LogEntry, Manifest};
use crate::segment::RecordAddress;
use crate::segment::opened::Segment;
use crate::segment::sidecar::SidecarKind;
use crate::space::job_room::{BESIDE_OTHERS, room_for};
use crate::space::rule::JobSpace;

/// Number of bytes of frames in a batch of a rewritten log.
const BATCH_BYTES: usize = 1 << 20;

/// The order in which logs are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RewriteOrder {
    /// The oldest log comes first. A deletion names a record in its own log or in an older log. In
    /// this order, the older logs are free of deleted records before a log is rewritten, so its
    /// deletions can be dropped.
    Oldest,
    /// The log with the largest share of dead bytes comes first.
    Worst,
}

/// The result of copying the frames of a log that are still needed.
pub(super) struct CopiedLog {
    /// For each record, its old offset and its new offset.
    moved: HashMap<u32, u32>,
    rewrite: LogRewrite,
    /// Size of the new file in bytes.
    end: u64,
}

/// Returns those dead rows of a segment whose records are in the log numbered `log`.
pub(super) fn moved_and_dead(segment: &Segment, log: u32) -> Vec<u32> {
    segment.dead.dead.ones().filter(|&row| segment.address(row).log == log).collect()
}

/// Returns the next log to rewrite, and its segment. Of the sealed logs that `is_due` accepts, this
/// is the first in the given order. `passed_segments` and `passed_logs` are skipped.
pub(super) fn due_log(
    jobs: &ShelfJobs,
    view: &ShelfView,
    order: RewriteOrder,
    is_due: &dyn Fn(&Log) -> bool,
    (passed_segments, passed_logs): (&HashSet<u32>, &HashSet<u32>),
) -> Option<(Arc<Segment>, u32)> {
    let followed_from = jobs.followed_from();
    let suspects = jobs.suspects();
    let sound = |segment: &&Arc<Segment>| {
        let number = segment.entry.number;
        let is_passed = passed_segments.contains(&number) || suspects.contains(&number);
        !segment.is_unreadable() && !is_passed
    };
    let mut first: Option<(&Arc<Segment>, &Arc<Log>)> = None;
    for segment in view.segments.iter().filter(sound) {
        for log in segment.logs.iter().flatten() {
            let free = log.number < followed_from && !passed_logs.contains(&log.number);
            let is_before = |(_, other): (_, &Arc<Log>)| match order {
                RewriteOrder::Oldest => log.number < other.number,
                RewriteOrder::Worst => log.dead_share() > other.dead_share(),
            };
            if free && log.has_dead() && is_due(log) && first.is_none_or(is_before) {
                first = Some((segment, log));
            }
        }
    }
    first.map(|(segment, log)| (Arc::clone(segment), log.number))
}

/// Rewrites a log without its dead records, and writes new addresses for its segment.
pub(super) fn rewrite(
    shelf: &OpenShelf,
    segment: &Arc<Segment>,
    number: u32,
) -> Result<(), MaintenanceError> {
    let (files, jobs) = (&shelf.files, &shelf.jobs);
    let (started, before) = (JobStart::now(), shelf.view.faults());
    // The rewrite copies the records that the addresses name. With damaged addresses, records would
    // be lost together with the old log.
    trust_addresses((files, jobs), segment, true)?;
    trust_ids((files, jobs), segment)?;
    let log = segment.logs.iter().flatten().find(|log| log.number == number);
    let needs =
        log.map_or(0, |log| log.written().saturating_sub(log.dead_bytes.load(Ordering::Relaxed)));
    let needs = needs + segment.addresses.bytes() + shelf.view.load().dead_files_max();
    let job = JobSpace { name: "rewriting a log", beside: BESIDE_OTHERS, needs, is_urgent: true };
    let room = room_for((files, jobs), &job)?;
    let disk: &dyn Disk = &room;
    let manifest = shelf.writer.manifest().clone();
    let Some(old) = manifest.logs.iter().find(|log| log.number == number) else {
        return Ok(());
    };
    let Some(active) = manifest.logs.last() else { return Ok(()) };
    let generation = old.generation + 1;
    let fresh = LogEntry { generation, purged: active.number, ..LogEntry::new(number) };
    let CopiedLog { moved, rewrite, end } =
        copy_live(shelf, disk, segment, &manifest, old, &fresh)?;
    all_was_read(shelf, &before)?;
    let entry = &segment.entry;
    let covers = |log: &LogEntry| (entry.first_log..=entry.last_log).contains(&log.number);
    let is_empty = end == log::HEADER;
    if is_empty {
        disk.remove(&log::path(shelf.files.dir(), number, fresh.generation))?;
        if !manifest.logs.iter().any(|log| covers(log) && log.number != number) {
            return remove_segment(shelf, segment, number);
        }
    }
    disk.sync_dir(&shelf.files.dir().join("log"))?;
    let addresses = (0..segment.file.rows).map(|row| {
        let address = segment.address(row);
        if address.log != number {
            return address.pack();
        }
        let offset = moved.get(&address.offset);
        offset.map_or(RecordAddress::GONE, |&offset| RecordAddress { log: number, offset }).pack()
    });
    let id = (segment.entry.number, segment.entry.addresses + 1);
    let bytes = SidecarKind::Addresses.write(disk, shelf.files.dir(), id, addresses)?;
    all_was_read(shelf, &before)?;
    trust_addresses((files, jobs), segment, true)?;
    shelf.files.note_written(bytes);
    disk.sync_dir(&shelf.files.dir().join("seg"))?;

    let _writing = shelf.writer.lock();
    let manifest = shelf.writer.manifest();
    let mut next = manifest.clone();
    if is_empty {
        next.logs.retain(|log| log.number != number);
    } else if let Some(log) = next.logs.iter_mut().find(|log| log.number == number) {
        *log = fresh;
    }
    let Some(line) = next.segments.iter_mut().find(|s| s.number == segment.entry.number) else {
        return Ok(());
    };
    let line = readdress(&shelf.files, disk, segment, line)?;
    let renewed = reopen(&shelf.files, disk, segment, &line, &next)?;
    renewed.copy_dead_from(segment, Some(number));
    // The new file still has the records that died during the copy.
    for row in moved_and_dead(&renewed, number) {
        renewed.note_dead(row);
    }
    if let Some(log) = renewed.logs.iter().flatten().find(|log| log.number == number) {
        log.note_rewrite(rewrite);
    }
    next.note_dead(renewed.logs.iter().flatten());
    let renewed = replace_segment(shelf, disk, manifest, next, renewed)?;
    shelf.files.damage().forget(number);
    let written = |segment: &Segment| {
        let log = segment.logs.iter().flatten().find(|log| log.number == number);
        log.map(|log| log.written())
    };
    let records = moved.len() as u64;
    note_done(&shelf.jobs, &started, records, written(&renewed).unwrap_or(0), |done| {
        &mut done.rewriting
    });
    tracing::debug!(
        log = number,
        bytes_before = written(segment),
        bytes = written(&renewed).unwrap_or(0),
        ms = started.wall.elapsed().as_millis(),
        "a log was written anew without its deleted records"
    );
    Ok(())
}

/// Removes a segment together with its last remaining log, after every frame of the log has become
/// unnecessary.
pub(super) fn remove_segment(
    shelf: &OpenShelf,
    segment: &Segment,
    log: u32,
) -> Result<(), MaintenanceError> {
    let _writing = shelf.writer.lock();
    let mut manifest = shelf.writer.manifest();
    let mut next = manifest.clone();
    next.logs.retain(|entry| entry.number != log);
    next.segments.retain(|entry| entry.number != segment.entry.number);
    next.write(shelf.files.disk(), shelf.files.dir())?;
    let old = std::mem::replace(&mut *manifest, next);
    let new = manifest.clone();
    drop(manifest);
    shelf.view.update(|view| {
        let mut segments = view.segments.clone();
        segments.retain(|known| known.entry.number != segment.entry.number);
        ShelfView::new(segments, view.frozen.clone(), Arc::clone(&view.active))
    });
    remove_unnamed((&shelf.files, &shelf.jobs), &old, &new);
    shelf.files.damage().forget(log);
    tracing::debug!(
        segment = segment.entry.number,
        "a segment had no more records and was removed"
    );
    Ok(())
}

/// Copies the frames of a log that are still needed into the log's next generation.
pub(super) fn copy_live(
    shelf: &OpenShelf,
    disk: &dyn Disk,
    segment: &Segment,
    manifest: &Manifest,
    old: &LogEntry,
    fresh: &LogEntry,
) -> Result<CopiedLog, MaintenanceError> {
    // All deletions up to this position have been applied in memory.
    let purged_to = {
        let writing = shelf.writer.lock();
        (shelf.view.load().active.log.number, writing.log_bytes())
    };
    let mut rows = 0;
    let live: HashSet<u32> = (0..segment.file.rows)
        .filter(|&row| !segment.dead.dead.get(row))
        .map(|row| segment.address(row))
        .filter(|address| address.log == old.number)
        .map(|address| address.offset)
        .inspect(|_| rows += 1)
        .collect();
    // A deletion is needed as long as the log that it names may still have the deleted record.
    let view = shelf.view.load_full();
    let logs = view.segments.iter().flat_map(|segment| segment.logs.iter().flatten());
    let purged: HashMap<u32, (u32, u64)> =
        logs.filter_map(|log| Some((log.number, log.rewritten()?.purged_to))).collect();
    let needed = |target: u32, at: u64| {
        let is_purged = |log: &LogEntry| {
            // The position is an offset in generation 0 of the log, so it can be compared only with
            // offsets of this generation.
            let before = |to: &(u32, u64)| old.generation == 0 && (old.number, at) < *to;
            old.number < log.purged || purged.get(&target).is_some_and(before)
        };
        target != old.number
            && manifest.logs.iter().any(|log| log.number == target && !is_purged(log))
    };
    let salt = random_u32()?;
    // The file gets its final name only when it is complete. If MANIFEST is missing, `hark rebuild`
    // chooses a generation by the file names, and must not choose an incomplete file.
    let whole = log::path(shelf.files.dir(), fresh.number, fresh.generation);
    let aside = whole.with_extension("new");
    let mut file = disk.create(&aside)?;
    file.write_all(&log::header(fresh.number, fresh.generation, salt))?;
    let mut moved = HashMap::new();
    let mut rewrite = LogRewrite { purged_to, ..LogRewrite::default() };
    let mut end = log::HEADER;
    let (mut frames, mut out) = (Vec::new(), Vec::new());
    let mut failed = None;
    let mut flush = |frames: &mut Vec<u8>, end: &mut u64| {
        out.clear();
        LogFrame::Batch(frames.len() as u32).write(salt, &mut out);
        out.extend_from_slice(frames);
        frames.clear();
        *end += out.len() as u64;
        file.write_all(&out)
    };
    let path = log::path(shelf.files.dir(), old.number, old.generation);
    let id = (old.number, old.generation);
    log::replay_whole(disk, &path, id, &mut |offset, frame| {
        match frame {
            LogFrame::Put(_) if live.contains(&offset) => {
                let at = end as usize + LogFrame::BATCH_BYTES + frames.len();
                moved.insert(offset, at as u32);
                frame.write(salt, &mut frames);
            }
            LogFrame::Delete { log, .. } if needed(log, u64::from(offset)) => {
                rewrite.kept += 1;
                rewrite.kept_of.insert(log);
                frame.write(salt, &mut frames);
            }
            _ => {}
        }
        if frames.len() >= BATCH_BYTES && failed.is_none() {
            failed = flush(&mut frames, &mut end).err();
        }
    })?;
    if !frames.is_empty() && failed.is_none() {
        failed = flush(&mut frames, &mut end).err();
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    // The address of each live row must lead to a record. Otherwise the addresses are damaged.
    trust_addresses((&shelf.files, &shelf.jobs), segment, moved.len() == rows)?;
    file.sync()?;
    disk.rename(&aside, &whole)?;
    shelf.files.note_written(end);
    Ok(CopiedLog { moved, rewrite, end })
}
