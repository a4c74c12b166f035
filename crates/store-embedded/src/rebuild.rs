//! Rebuilding segments from the logs alone.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use hark_archive::effects::KeepAll;
use hark_archive::{CommitError, Id, Record};

use crate::disk::Disk;
use crate::divide::{divide, too_long};
use crate::log::{self, Log, LogFrame};
use crate::manifest::{LogEntry, Manifest, ManifestError, SegmentEntry};
use crate::open::{ShelfOpenError, remove_orphans};
use crate::options::{EmbeddedOptions, JobProgress, OnProgress};
use crate::segment::RecordAddress;
use crate::segment::seal::write;
use crate::store::EmbeddedStore;
use crate::term::{SECRET, TermHasher};

/// The last deletion of each record: a map from the id and the log of the record's put to the
/// address of the deletion.
pub(crate) struct DeletionMap(HashMap<(Id, u32), RecordAddress>);

impl DeletionMap {
    /// No deletions.
    pub fn none() -> Self {
        Self(HashMap::new())
    }

    /// Adds a deletion with the address `at`.
    pub fn add(&mut self, id: Id, log: u32, at: RecordAddress) {
        self.0.insert((id, log), at);
    }

    /// Number of deletions in the log numbered `first` and in later logs.
    pub fn since(&self, first: u32) -> u64 {
        self.0.values().filter(|at| at.log >= first).count() as u64
    }

    /// Reads the deletions in the log numbered `first` and in all later logs.
    pub fn read(
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

    /// Whether the record put at `at` was deleted later.
    pub fn hit(&self, id: &Id, at: RecordAddress) -> bool {
        self.0
            .get(&(*id, at.log))
            .is_some_and(|deleted| (deleted.log, deleted.offset) > (at.log, at.offset))
    }
}

/// Writes a new segment for each log between `first` and `last` that a segment covers, so that the
/// memory of a rebuild does not grow with the archive. Records the dead bytes and dead records of
/// each log in the manifest. On return the manifest has the new segments in place of the old
/// segments; maintenance merges the new segments later. Returns the number of records. `done`
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

/// The logs between `first` and `last` that segments cover.
fn sealed_logs(manifest: &Manifest, (first, last): (u32, u32)) -> impl Iterator<Item = u32> {
    let numbers = manifest.logs.iter().map(|log| log.number);
    numbers.filter(move |log| (first..=last).contains(log) && manifest.is_sealed(*log))
}

/// Writes the segment that `entry` describes, without deleted records. Records the dead bytes and
/// dead records of each of its logs in the manifest. Returns the number of records in the segment.
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
    write(disk, dir, entry.number, &records, rows, terms).map_err(ShelfOpenError::io(dir))?;
    disk.sync_dir(&dir.join("seg")).map_err(ShelfOpenError::io(dir))?;
    Ok(count)
}

/// The result of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildResult {
    /// Number of new segments.
    pub segments: u64,
    /// Number of records in the new segments.
    pub records: u64,
    /// Number of deleted copies of records that were stored more than once; one copy of each record
    /// stays.
    pub doubles: u64,
    /// Whether the manifest was missing, so that a new manifest was made from the logs.
    pub manifest: bool,
}

/// Rebuilds all segments of a shelf, and the manifest if it is missing. Logs that are longer than
/// the largest offset of indices are divided first. The caller must hold the data directory's lock,
/// and no process may have the shelf open.
pub fn rebuild(
    dir: &Path,
    options: &EmbeddedOptions,
    progress: OnProgress<'_>,
) -> Result<RebuildResult, ShelfOpenError> {
    let disk = &*options.disk;
    let path = dir.join("MANIFEST");
    let mut rebuilt = RebuildResult::default();
    let found = Manifest::read(disk, dir)
        .map_err(|cause| ShelfOpenError::Manifest { path: path.clone(), cause })?;
    rebuilt.manifest = found.is_none();
    let mut manifest = found.map_or_else(|| manifest_from_logs(disk, dir), Ok)?;
    let before = manifest.clone();
    let result = rebuild_all(dir, options, &mut manifest, &mut rebuilt, progress);
    if result.is_err()
        && let Ok(Some(now)) = Manifest::read(disk, dir)
        && now == before
    {
        // The new files are useless now. The next start removes files that cannot be removed now.
        let _ = remove_orphans(disk, dir, &before);
    }
    result?;
    if !rebuilt.manifest {
        remove_orphans(disk, dir, &manifest)?;
    }
    rebuilt.doubles = drop_doubles(dir, options)?;
    Ok(rebuilt)
}

fn drop_doubles(dir: &Path, options: &EmbeddedOptions) -> Result<u64, ShelfOpenError> {
    let alone = EmbeddedOptions { background: false, ..options.clone() };
    let store = EmbeddedStore::open(dir, Box::new(KeepAll), alone)?;
    let failed = |error: CommitError| ShelfOpenError::io(dir)(io::Error::other(error.to_string()));
    store.drop_doubles().map_err(failed)
}

fn rebuild_all(
    dir: &Path,
    options: &EmbeddedOptions,
    manifest: &mut Manifest,
    rebuilt: &mut RebuildResult,
    progress: OnProgress<'_>,
) -> Result<(), ShelfOpenError> {
    let disk = &*options.disk;
    if let Some(long) = too_long(disk, dir, manifest)? {
        progress(JobProgress { what: "dividing logs", done: 0, total: 1 });
        *manifest = divide(dir, options, manifest, long)?;
        progress(JobProgress { what: "dividing logs", done: 1, total: 1 });
    }
    let terms = TermHasher::new(&manifest.secret, options);
    let deletes = DeletionMap::read(disk, dir, manifest, 0)?;
    let all = (0, u32::MAX);
    let total = sealed_logs(manifest, all).count() as u64;
    let step = |done| progress(JobProgress { what: "segments", done, total });
    rebuilt.records = rebuild_logs((disk, dir), all, manifest, &deletes, &terms, step)?;
    rebuilt.segments = manifest.segments.len() as u64;
    manifest.write(disk, dir).map_err(ShelfOpenError::io(dir))?;
    progress(JobProgress { what: "segments", done: total, total });
    Ok(())
}

/// Makes a manifest for the stored logs: the latest generation of each log that can be read to its
/// end, and a segment for each log but the last.
fn manifest_from_logs(disk: &dyn Disk, dir: &Path) -> Result<Manifest, ShelfOpenError> {
    let log_dir = dir.join("log");
    let io = ShelfOpenError::io(&log_dir);
    let mut found: Vec<(u32, u32, u64)> = Vec::new();
    for (name, len) in disk.list(&log_dir).map_err(&io)? {
        let named = log::parse_name(&name);
        found.extend(named.map(|(number, generation)| (number, generation, len)));
    }
    found.sort_unstable();
    // A crash may have cut short the header of a log that was about to be begun.
    while let Some(&(number, generation, len)) = found.last()
        && len <= log::HEADER
        && found.len() > 1
        && log::replay(
            disk,
            &log::path(dir, number, generation),
            (number, generation),
            &mut |_, _| {},
        )
        .is_err()
    {
        found.pop();
    }
    let mut logs: Vec<LogEntry> = Vec::new();
    for same in found.chunk_by(|a, b| a.0 == b.0) {
        let whole = |&&(number, generation, _): &&(u32, u32, u64)| {
            let path = log::path(dir, number, generation);
            log::replay_whole(disk, &path, (number, generation), &mut |_, _| {}).is_ok()
        };
        // A log that cannot be read is accepted nevertheless: a later read reports the fault.
        let best = same.iter().rev().find(whole).or(same.last());
        logs.extend(
            best.map(|&(number, generation, _)| LogEntry { generation, ..LogEntry::new(number) }),
        );
    }
    let Some((_, sealed)) = logs.split_last() else {
        let cause = ManifestError::Damaged("there are no logs either");
        return Err(ShelfOpenError::Manifest { path: dir.into(), cause });
    };
    let segments: Vec<SegmentEntry> = sealed
        .iter()
        .enumerate()
        .map(|(at, log)| SegmentEntry {
            number: at as u32 + 1,
            first_log: log.number,
            last_log: log.number,
            addresses: 0,
            dead: 0,
        })
        .collect();
    let mut secret = [0; SECRET];
    getrandom::fill(&mut secret).map_err(|error| io(io::Error::other(error.to_string())))?;
    Ok(Manifest { secret, logs, next_segment: segments.len() as u32 + 1, segments })
}
