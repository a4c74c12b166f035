//! Salvages a damaged shelf: copies every undamaged live record of its logs into another store.
//!
//! The damaged shelf is not changed. Frames are found by their checksums, even after damaged bytes
//! (`scan`). The checksum depends on the log's salt, which is in the header. If the header is
//! damaged, the salt is calculated from the frames (`salt`). Records that were deleted stay
//! deleted:
//!
//! - deletions in the logs apply as at a start (docs/format.md);
//! - a row in the `.dead` file of a segment is dead, even if the log with its deletion is gone or
//!   damaged;
//! - the new store receives the records in the order of the logs and applies the network's rules.
//!   So a record that replaces or deletes other records does so again, even if the deletions
//!   themselves are lost.
//!
//! Only one generation of each log is read (`logs`). An earlier generation has deleted records
//! whose deletions a rewrite has dropped.

mod logs;
mod report;
mod salt;
pub(crate) mod scan;
#[cfg(test)]
mod tests;
mod witnesses;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use hark_archive::store::RetentionNote;
use hark_archive::{CommitError, Id, Record, Store, Write};

use self::logs::{SalvagedLog, logs};
pub use self::report::{LostPart, SalvageReport};
use self::salt::salt_of;
use self::scan::{DeletionsOfBatch, ScannedPart, scan};
use self::witnesses::{SegmentWitnesses, likely_id};
use crate::disk::Disk;
use crate::engine::retention_notes;
use crate::log::LogFrame;
use crate::manifest::{Manifest, ManifestError};
use crate::map::Map;
use crate::options::{JobProgress, OnProgress};
use crate::segment::RecordAddress;

/// Maximum number of records in a batch, and maximum number of their bytes.
const BATCH_RECORDS: usize = 1024;
const BATCH_BYTES: usize = 4 << 20;
/// Maximum number of lost parts that are listed; further parts are only counted.
const LISTED_MAX: usize = 10_000;

/// Why a salvage ended early.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// The directory has no log.
    #[error("there is no log in {0}; name the directory of an archive")]
    NoLogs(PathBuf),
    /// The directory of the logs could not be opened.
    #[error("{path} could not be opened: {cause}")]
    Read {
        /// The directory.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The new store failed.
    #[error(transparent)]
    Write(#[from] CommitError),
}

/// Copies every undamaged live record of the shelf in `from` to `into`, an empty store with the
/// network's rules. No process may write to the shelf during the salvage.
///
/// ```
/// use hark_archive::effects::KeepAll;
/// use hark_archive::store::memory::MemoryStore;
/// use hark_archive::{RecordHeader, Store, Write};
/// use hark_store_embedded::disk::RealDisk;
/// use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, salvage};
///
/// let dir = std::env::temp_dir().join(format!("hark-doc-salvage-{}", std::process::id()));
/// let store = EmbeddedStore::open(&dir, Box::new(KeepAll), EmbeddedOptions::default())?;
/// let head = RecordHeader { id: [1; 32], time: 7, author: None, kind: 0, expires: None };
/// let mut bytes = Vec::new();
/// hark_codec::record::write(&mut bytes, &head, b"the message", std::iter::empty());
/// store.commit(&[Write::Put(bytes.into())])?;
/// drop(store);
///
/// // The new store can be of any kind.
/// let into = MemoryStore::new(KeepAll);
/// let report = salvage(&RealDisk, &dir, &into, &mut |_| {})?;
/// assert!(into.knows(&[1; 32])? && report.records == 1 && report.lost.is_empty());
/// std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn salvage(
    disk: &dyn Disk,
    from: &Path,
    into: &dyn Store,
    progress: OnProgress<'_>,
) -> Result<SalvageReport, SalvageError> {
    let read = |path: &Path| {
        let path = path.to_path_buf();
        move |cause| SalvageError::Read { path, cause }
    };
    let manifest = Manifest::read(disk, from);
    let why = match &manifest {
        Ok(Some(_)) => None,
        Ok(None) => Some("there is none".to_owned()),
        Err(ManifestError::Io(cause)) => Some(cause.to_string()),
        Err(error) => Some(error.to_string()),
    };
    let manifest = manifest.ok().flatten();
    let log_dir = from.join("log");
    let (logs, missing) = logs(disk, from, manifest.as_ref()).map_err(read(&log_dir))?;
    if logs.is_empty() {
        return Err(SalvageError::NoLogs(log_dir));
    }
    let mut salvage = Salvage {
        witnesses: SegmentWitnesses::open(disk, from, manifest.as_ref()),
        deletions: HashMap::new(),
        report: SalvageReport { manifest: why, ..SalvageReport::default() },
        total: 2 * logs.iter().map(|log| log.bytes).sum::<u64>(),
        done: 0,
    };
    for path in missing {
        salvage.missing(path);
    }
    let mut opened = Vec::with_capacity(logs.len());
    for (at, log) in logs.iter().enumerate() {
        let map = salvage.open(disk, log);
        if let Some(map) = &map {
            salvage.scan_log(log, map, at + 1 == logs.len(), progress);
        }
        opened.push(map.is_some());
    }
    let as_named = |log: &&SalvagedLog| {
        manifest.as_ref().is_some_and(|manifest| {
            let mut named = manifest.logs.iter();
            named.any(|entry| (entry.number, entry.generation) == (log.number, log.generation))
        })
    };
    let named: HashSet<u32> = logs.iter().filter(as_named).map(|log| log.number).collect();
    let dead = salvage.witnesses.dead(&named);
    let opened = logs.iter().zip(opened).filter(|(_, was_opened)| *was_opened);
    for (log, _) in opened {
        if let Some(map) = salvage.open(disk, log) {
            salvage.copy_records(log, &map, &dead, into, progress)?;
        }
    }
    // If the time cannot be read, retention decides about the salvaged history.
    if let Ok(Some(until)) = retention_notes::read(disk, from, RetentionNote::HeldUntil) {
        into.set_note(RetentionNote::HeldUntil, Some(until))?;
    }
    let mut report = salvage.report;
    let brought = std::mem::replace(&mut report.records, into.stats().records);
    report.replaced = brought.saturating_sub(report.records);
    Ok(report)
}

struct Salvage {
    witnesses: SegmentWitnesses,
    /// The last deletion of each deleted record: the record's id and log lead to the deletion's log
    /// and offset.
    deletions: HashMap<(Id, u32), (u32, u64)>,
    report: SalvageReport,
    /// Number of bytes to read in total. Each byte of the logs is read twice.
    total: u64,
    done: u64,
}

impl Salvage {
    fn missing(&mut self, path: PathBuf) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let number = name.and_then(|name| crate::log::parse_name(&name)).map_or(0, |(n, _)| n);
        let log = SalvagedLog { number, generation: 0, path, bytes: 0 };
        let mut lost = [LostPart::new(&log.path, 0..u64::MAX)];
        self.witnesses.add_lost(number, &[], &mut lost);
        self.list(lost.into());
    }

    /// Maps a log that is read once. A log that cannot be opened is listed as lost, and the other
    /// logs are still salvaged.
    fn open(&mut self, disk: &dyn Disk, log: &SalvagedLog) -> Option<Map> {
        match disk.map_sequential(&log.path) {
            Ok(map) => {
                map.spare_readable_pages();
                Some(map)
            }
            Err(error) => {
                let mut lost = [LostPart::new(&log.path, 0..log.bytes)];
                lost[0].unopened = Some(error.to_string());
                self.witnesses.add_lost(log.number, &[], &mut lost);
                self.list(lost.into());
                None
            }
        }
    }

    fn list(&mut self, lost: Vec<LostPart>) {
        for part in lost {
            if part.bytes.end != u64::MAX {
                self.report.lost_bytes += part.bytes.end - part.bytes.start;
            }
            if self.report.lost.len() < LISTED_MAX {
                self.report.lost.push(part);
            } else {
                self.report.more_lost += 1;
            }
        }
    }

    fn advance(&mut self, what: &'static str, log: &SalvagedLog, progress: OnProgress<'_>) {
        self.done += log.bytes;
        progress(JobProgress { what, done: self.done, total: self.total });
    }

    /// Reads the deletions of a log, and finds its lost parts.
    fn scan_log(&mut self, log: &SalvagedLog, map: &Map, is_last: bool, progress: OnProgress<'_>) {
        let Self { deletions, .. } = self;
        let mut lost = Vec::new();
        let mut batch = DeletionsOfBatch::default();
        let mut add = |(id, of, at): (Id, u32, u64)| {
            deletions.insert((id, of), (log.number, at));
        };
        if let Some(salt) = salt_of(map, log.number, log.generation) {
            scan(map, salt, &mut |part| {
                let deletion = match &part {
                    ScannedPart::Frame(at, LogFrame::Delete { id, log }) => Some((*id, *log, *at)),
                    _ => None,
                };
                batch.next(&part, deletion, &mut add);
                if let ScannedPart::Lost(range) = part {
                    lost.push(LostPart::new(&log.path, range));
                }
            });
        } else {
            lost.push(LostPart::new(&log.path, 0..map.len() as u64));
        }
        // If a file was truncated between two frames, only the segment shows that the end of the
        // file is missing.
        let (len, reach) = (map.len() as u64, self.witnesses.reach(log.number));
        if reach > len {
            lost.push(LostPart::new(&log.path, len..reach));
        }
        batch.end(is_last, &mut add);
        self.witnesses.add_lost(log.number, map, &mut lost);
        for part in &mut lost {
            part.may_be_torn = is_last && part.bytes.end == map.len() as u64;
            if part.ids.is_empty() {
                part.likely_id = likely_id(map, &part.bytes);
            }
        }
        self.list(lost);
        self.report.logs += 1;
        self.report.bytes += log.bytes;
        self.advance("looking for undamaged records", log, progress);
    }

    /// Puts the live records of a log into the new store.
    fn copy_records(
        &mut self,
        log: &SalvagedLog,
        map: &Map,
        dead: &HashSet<u64>,
        into: &dyn Store,
        progress: OnProgress<'_>,
    ) -> Result<(), SalvageError> {
        let Some(salt) = salt_of(map, log.number, log.generation) else { return Ok(()) };
        let (mut batch, mut batch_bytes, mut failed) = (Vec::new(), 0, None);
        let (report, deletions) = (&mut self.report, &self.deletions);
        scan(map, salt, &mut |part| {
            let ScannedPart::Frame(at, LogFrame::Put(bytes)) = part else { return };
            let Ok(record) = Record::new(bytes) else { return };
            if failed.is_some() || record.check().is_err() {
                return;
            }
            let deleted = deletions.get(&(*record.id(), log.number));
            let address = u32::try_from(at).ok();
            let address = address.map(|offset| RecordAddress { log: log.number, offset }.pack());
            if deleted.is_some_and(|gone| *gone > (log.number, at))
                || address.is_some_and(|address| dead.contains(&address))
            {
                report.deleted += 1;
                return;
            }
            batch_bytes += bytes.len();
            batch.push(Write::Put(bytes.into()));
            if batch.len() >= BATCH_RECORDS || batch_bytes >= BATCH_BYTES {
                failed = put(into, &std::mem::take(&mut batch), report).err();
                batch_bytes = 0;
            }
        });
        if failed.is_none() {
            failed = put(into, &batch, report).err();
        }
        self.advance("copying records", log, progress);
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

fn put(into: &dyn Store, batch: &[Write], report: &mut SalvageReport) -> Result<(), CommitError> {
    into.commit(batch)?;
    // Records that were replaced in the new store are subtracted later.
    report.records += batch.len() as u64;
    Ok(())
}
