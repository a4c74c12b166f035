//! Builds new segments from the logs alone.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use hark_archive::{Id, Record};

use crate::disk::Disk;
use crate::engine::open_error::ShelfOpenError;
use crate::log::{self, Log, LogFrame};
use crate::manifest::{LogEntry, Manifest, SegmentEntry};
use crate::segment::{RecordAddress, seal};
use crate::term::TermHasher;

/// For each deleted record, its last deletion: a map from the record's id and log to the address of
/// the deletion.
pub(crate) struct DeletionMap(HashMap<(Id, u32), RecordAddress>);

impl DeletionMap {
    /// Makes an empty map.
    pub(crate) fn none() -> Self {
        Self(HashMap::new())
    }

    /// Adds a deletion that is at the address `at`.
    pub(crate) fn add(&mut self, id: Id, log: u32, at: RecordAddress) {
        self.0.insert((id, log), at);
    }

    /// Number of deletions in the log numbered `first` and in later logs.
    pub(crate) fn since(&self, first: u32) -> u64 {
        self.0.values().filter(|at| at.log >= first).count() as u64
    }

    /// Reads the deletions in the log numbered `first` and in all later logs.
    pub(crate) fn read(
        disk: &dyn Disk,
        dir: &Path,
        manifest: &Manifest,
        first: u32,
    ) -> Result<Self, ShelfOpenError> {
        let mut deletes = Self::none();
        for entry in manifest.logs.iter().filter(|entry| entry.number >= first) {
            let path = log::path(dir, entry.number, entry.generation);
            let id = (entry.number, entry.generation);
            let last = manifest.logs.last().is_some_and(|last| last.number == entry.number);
            let replay = if last { log::replay } else { log::replay_whole };
            replay(disk, &path, id, &mut |offset, frame| {
                if let LogFrame::Delete { id, log } = frame {
                    deletes.add(id, log, RecordAddress { log: entry.number, offset });
                }
            })?;
        }
        Ok(deletes)
    }

    /// Whether the record that was written at `at` was deleted later.
    pub(crate) fn hit(&self, id: &Id, at: RecordAddress) -> bool {
        self.0
            .get(&(*id, at.log))
            .is_some_and(|deleted| (deleted.log, deleted.offset) > (at.log, at.offset))
    }
}

/// Writes a new segment for each log from `first` to `last` that a segment covers. The memory of a
/// rebuild does not grow with the archive, because each new segment covers one log. On return the
/// manifest has the new segments instead of the old ones, and the dead bytes and dead records of
/// each log. Maintenance merges the new segments later. Returns the number of records. `done`
/// receives the number of finished logs.
pub(crate) fn rebuild_logs(
    (disk, dir): (&dyn Disk, &Path),
    (first, last): (u32, u32),
    manifest: &mut Manifest,
    deletes: &DeletionMap,
    terms: &TermHasher,
    mut done: impl FnMut(u64),
) -> Result<u64, ShelfOpenError> {
    let logs: Vec<u32> = sealed_logs(manifest, (first, last)).collect();
    let (mut segments, mut records) = (Vec::new(), 0);
    for (at, log) in (0..).zip(logs) {
        done(at);
        let number = manifest.next_segment;
        manifest.next_segment += 1;
        let entry = SegmentEntry { number, first_log: log, last_log: log, addresses: 0, dead: 0 };
        records += u64::from(rebuild_segment(disk, dir, &entry, manifest, deletes, terms)?);
        segments.push(entry);
    }
    let at = manifest.segments.iter().position(|segment| segment.first_log >= first);
    manifest.segments.retain(|segment| !(first..=last).contains(&segment.first_log));
    let at = at.unwrap_or(manifest.segments.len());
    manifest.segments.splice(at..at, segments);
    Ok(records)
}

/// The logs from `first` to `last` that segments cover.
pub(super) fn sealed_logs(
    manifest: &Manifest,
    (first, last): (u32, u32),
) -> impl Iterator<Item = u32> {
    let numbers = manifest.logs.iter().map(|log| log.number);
    numbers.filter(move |log| (first..=last).contains(log) && manifest.is_sealed(*log))
}

/// Writes the segment that `entry` describes, without deleted records. In the manifest, notes the
/// dead bytes and dead records of each of the segment's logs. Returns the number of records in the
/// segment.
pub(crate) fn rebuild_segment(
    disk: &dyn Disk,
    dir: &Path,
    entry: &SegmentEntry,
    manifest: &mut Manifest,
    deletes: &DeletionMap,
    terms: &TermHasher,
) -> Result<u32, ShelfOpenError> {
    let mut logs = Vec::new();
    let mut addresses = Vec::new();
    let covered = |log: &&mut LogEntry| (entry.first_log..=entry.last_log).contains(&log.number);
    for covered in manifest.logs.iter_mut().filter(covered) {
        let id = (covered.number, covered.generation);
        let path = log::path(dir, id.0, id.1);
        let (mut dead_bytes, mut dead_records) = (0, 0);
        log::replay_whole(disk, &path, id, &mut |offset, frame| {
            let at = RecordAddress { log: covered.number, offset };
            match frame {
                LogFrame::Put(bytes) => match Record::new(bytes) {
                    Ok(record) if deletes.hit(record.id(), at) => {
                        dead_bytes += (log::FRAME + bytes.len()) as u64;
                        dead_records += 1;
                    }
                    Ok(_) => addresses.push((logs.len(), at)),
                    Err(_) => {}
                },
                LogFrame::Delete { .. } => dead_bytes += LogFrame::DELETE_BYTES,
                LogFrame::Batch(_) => {}
            }
        })?;
        (covered.dead_bytes, covered.dead_records) = (dead_bytes, dead_records);
        let log = Log::open(disk, dir, id, u64::MAX, false).map_err(ShelfOpenError::io(&path))?;
        logs.push(Arc::new(log));
    }
    let records: Vec<_> = addresses
        .iter()
        .enumerate()
        .filter_map(|(row, &(log, address))| {
            let record = logs[log].record(address.offset, false)?;
            Some((row as u32, address, record))
        })
        .collect();
    let count = records.len() as u32;
    let rows = addresses.len() as u32;
    seal::write(disk, dir, entry.number, &records, rows, terms).map_err(ShelfOpenError::io(dir))?;
    disk.sync_dir(&dir.join("seg")).map_err(ShelfOpenError::io(dir))?;
    Ok(count)
}
