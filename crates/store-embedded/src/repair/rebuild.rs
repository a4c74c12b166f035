//! Rebuilds a shelf from its logs alone: all segments, and the manifest if it is missing.

use std::io;
use std::path::Path;

use hark_archive::CommitError;
use hark_archive::effects::KeepAll;

use super::divide::{divide, too_long};
use super::from_logs::{DeletionMap, rebuild_logs, sealed_logs};
use crate::disk::Disk;
use crate::engine::embedded_store::EmbeddedStore;
use crate::engine::open_error::ShelfOpenError;
use crate::engine::shelf_dir::remove_orphans;
use crate::log;
use crate::manifest::{LogEntry, Manifest, ManifestError, SegmentEntry};
use crate::options::{EmbeddedOptions, JobProgress, OnProgress};
use crate::term::{SECRET, TermHasher};

/// The result of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildResult {
    /// Number of new segments.
    pub segments: u64,
    /// Number of records in the new segments.
    pub records: u64,
    /// Number of extra copies of records that the rebuild has deleted. One copy of each record
    /// stays.
    pub doubles: u64,
    /// Whether the manifest was missing and was made from the logs.
    pub manifest: bool,
}

/// Rebuilds all segments of a shelf, and the manifest if it is missing. Logs with records at
/// offsets that no index can hold are divided first. The caller must hold the lock of the data
/// directory, and no process may have the shelf open.
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
        // After the error, the new files are useless. Files that cannot be removed now are removed
        // at the next start.
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

/// Makes a manifest for the logs that exist. For each log, the manifest names the latest generation
/// that can be read to the end. It also names a segment for each log except the last.
fn manifest_from_logs(disk: &dyn Disk, dir: &Path) -> Result<Manifest, ShelfOpenError> {
    let log_dir = dir.join("log");
    let io = ShelfOpenError::io(&log_dir);
    let mut found: Vec<(u32, u32, u64)> = Vec::new();
    for (name, len) in disk.list(&log_dir).map_err(&io)? {
        let named = log::parse_name(&name);
        found.extend(named.map(|(number, generation)| (number, generation, len)));
    }
    found.sort_unstable();
    // A crash while a new log was begun may have left a log with an incomplete header.
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
        // If no generation of a log can be read, the manifest names the latest, and a later read
        // reports the fault.
        let best = same.iter().rev().find(whole).or(same.last());
        logs.extend(
            best.map(|&(number, generation, _)| LogEntry { generation, ..LogEntry::new(number) }),
        );
    }
    let Some((_, sealed)) = logs.split_last() else {
        let cause = ManifestError::Damaged("there are no logs from which it could be made");
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
