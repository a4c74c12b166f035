//! Salvaging a damaged shelf: every whole record of its logs goes into another store.
//!
//! Nothing of the source is changed. Frames are found by their checksums, also behind damage
//! (`scan`), with the salt of the header or, if that is damaged too, of the frames (`salt`). What
//! the source had deleted stays deleted:
//!
//! - deletions in the logs apply as they do at a start (docs/format.md);
//! - rows that a segment's `.dead` file has are dead, although the log with the deletion may be
//!   gone or damaged;
//! - the records are put into the new store in the order of the logs, by its rules. So a record
//!   that replaces or deletes others does so again, although the deletions it caused are lost.
//!
//! Only one generation of each log is read (`sources`): an earlier one has records whose deletions
//! were dropped when it was rewritten.

mod salt;
pub(crate) mod scan;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use hark_archive::{CommitError, Id, Record, Store, Write};

use self::salt::salt_of;
use self::scan::{DeletionsOfBatch, ScannedPart, scan};
use self::sources::{SalvagedLog, SegmentWitnesses, likely_id, logs};
use crate::disk::Disk;
use crate::log::LogFrame;
use crate::manifest::{Manifest, ManifestError};
use crate::map::Map;
use crate::options::{JobProgress, OnProgress};
use crate::segment::RecordAddress;

/// Records, and bytes of them, that are made durable together.
const BATCH_RECORDS: usize = 1024;
const BATCH_BYTES: usize = 4 << 20;
/// Lost parts that are listed; further ones are counted.
const LISTED_MAX: usize = 10_000;

/// A part of a log in which no frame is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPart {
    /// The log file.
    pub file: PathBuf,
    /// The bytes, from the file's beginning. It ends at `u64::MAX` if the file is gone.
    pub bytes: Range<u64>,
    /// Live records that began there, if a segment tells.
    pub records: Option<u64>,
    /// The oldest and the newest of their times, as far as a segment tells.
    pub times: Option<(u64, u64)>,
    /// Ids of such records, which a segment confirms.
    pub ids: Vec<Id>,
    /// The id that the damaged bytes give, which nothing confirms.
    pub likely_id: Option<Id>,
    /// Why the file could not be opened, if that is what it is.
    pub unopened: Option<String>,
    /// Whether it is the end of the last log. If nothing else damaged it, a crash cut it short, and
    /// its records were never acknowledged.
    pub may_be_torn: bool,
}

impl LostPart {
    fn new(log: &SalvagedLog, bytes: Range<u64>) -> Self {
        Self {
            file: log.path.clone(),
            bytes,
            records: None,
            times: None,
            ids: Vec::new(),
            likely_id: None,
            unopened: None,
            may_be_torn: false,
        }
    }
}

impl fmt::Display for LostPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        match self.bytes.end {
            u64::MAX => write!(f, "the file is gone")?,
            end => write!(f, "bytes {} to {end}", self.bytes.start)?,
        }
        if let Some(records) = self.records {
            write!(f, ", with {records} live records")?;
        }
        if let Some(why) = &self.unopened {
            write!(f, ", as the file could not be opened: {why}")?;
        }
        if self.may_be_torn {
            write!(f, ", perhaps a batch that a crash cut short")?;
        }
        Ok(())
    }
}

/// What a salvage has found and done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Log files read.
    pub logs: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Records that the new store has.
    pub records: u64,
    /// Records that the source had deleted.
    pub deleted: u64,
    /// Records that others replace or delete, or that were there twice.
    pub replaced: u64,
    /// The parts that are lost, at most 10,000, by log and byte.
    pub lost: Vec<LostPart>,
    /// Further lost parts.
    pub more_lost: u64,
    /// Bytes of all lost parts, without files that are gone.
    pub lost_bytes: u64,
    /// Why MANIFEST was of no use, if it was not. Then segments could not tell what was deleted.
    pub manifest: Option<String>,
}

/// Why a salvage ended early.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// There is no log.
    #[error("there is no log in {0}; name the directory of an archive")]
    NoLogs(PathBuf),
    /// The directory of the logs could not be opened.
    #[error("{path} could not be opened: {cause}")]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The new store failed.
    #[error(transparent)]
    Write(#[from] CommitError),
}

/// Brings every whole live record of the shelf in `from` into `into`, an empty store with the rules
/// of the shelf's network. No process may write the shelf meanwhile.
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
            salvage.look(log, map, at + 1 == logs.len(), progress);
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
            salvage.bring(log, &map, &dead, into, progress)?;
        }
    }
    let mut report = salvage.report;
    let brought = std::mem::replace(&mut report.records, into.stats().records);
    report.replaced = brought.saturating_sub(report.records);
    Ok(report)
}

struct Salvage {
    witnesses: SegmentWitnesses,
    /// The last deletion of each record of a log: (log, offset) of the deletion.
    deletions: HashMap<(Id, u32), (u32, u64)>,
    report: SalvageReport,
    /// Bytes to read, twice each, and bytes read.
    total: u64,
    done: u64,
}

impl Salvage {
    fn missing(&mut self, path: PathBuf) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let number = name.and_then(|name| crate::log::parse_name(&name)).map_or(0, |(n, _)| n);
        let log = SalvagedLog { number, generation: 0, path, bytes: 0 };
        let mut lost = [LostPart::new(&log, 0..u64::MAX)];
        self.witnesses.tell(number, &[], &mut lost);
        self.list(lost.into());
    }

    /// Maps a log, to be read once. If it cannot be opened, lists it as lost: the others are
    /// salvaged all the same.
    fn open(&mut self, disk: &dyn Disk, log: &SalvagedLog) -> Option<Map> {
        match disk.map_sequential(&log.path) {
            Ok(map) => {
                map.spare_readable_pages();
                Some(map)
            }
            Err(error) => {
                let mut lost = [LostPart::new(log, 0..log.bytes)];
                lost[0].unopened = Some(error.to_string());
                self.witnesses.tell(log.number, &[], &mut lost);
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

    /// Reads the deletions of a log, and what is lost of it.
    fn look(&mut self, log: &SalvagedLog, map: &Map, is_last: bool, progress: OnProgress<'_>) {
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
                    lost.push(LostPart::new(log, range));
                }
            });
        } else {
            lost.push(LostPart::new(log, 0..map.len() as u64));
        }
        // The end of a file that was cut short between two frames is missed by its segment alone.
        let (len, reach) = (map.len() as u64, self.witnesses.reach(log.number));
        if reach > len {
            lost.push(LostPart::new(log, len..reach));
        }
        batch.end(is_last, &mut add);
        self.witnesses.tell(log.number, map, &mut lost);
        for part in &mut lost {
            part.may_be_torn = is_last && part.bytes.end == map.len() as u64;
            if part.ids.is_empty() {
                part.likely_id = likely_id(map, &part.bytes);
            }
        }
        self.list(lost);
        self.report.logs += 1;
        self.report.bytes += log.bytes;
        self.advance("looking for what is whole", log, progress);
    }

    /// Puts the live records of a log into the new store.
    fn bring(
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
        self.advance("bringing it over", log, progress);
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

fn put(into: &dyn Store, batch: &[Write], report: &mut SalvageReport) -> Result<(), CommitError> {
    into.commit(batch)?;
    // Those that others replace are counted at the end.
    report.records += batch.len() as u64;
    Ok(())
}
