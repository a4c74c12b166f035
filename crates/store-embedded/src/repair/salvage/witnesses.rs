//! The evidence that segments give about a damaged shelf: which records were deleted, and which
//! live records the damaged logs had.

use std::collections::HashSet;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use hark_archive::Id;
use hark_archive::query::prepared::TermMap as _;

use super::report::LostPart;
use crate::disk::Disk;
use crate::log::{FRAME, LogFrame};
use crate::manifest::{Manifest, SegmentEntry};
use crate::options::EmbeddedOptions;
use crate::segment::RecordAddress;
use crate::segment::file::SegmentFile;
use crate::segment::marks::RowMarks;
use crate::segment::sidecar::{SidecarKind, SidecarWords};
use crate::term::TermHasher;

/// The undamaged parts of the segments that MANIFEST names.
pub(super) struct SegmentWitnesses {
    terms: Option<TermHasher>,
    segments: Vec<SegmentWitness>,
}

struct SegmentWitness {
    /// The segment's index, which has times and ids; `None` if the file is damaged.
    file: Option<SegmentFile>,
    addresses: SidecarWords,
    rows: u32,
    dead: RowMarks,
    /// The logs that the segment covers.
    logs: RangeInclusive<u32>,
}

impl SegmentWitnesses {
    /// Opens the segments of a shelf.
    pub(super) fn open(disk: &dyn Disk, dir: &Path, manifest: Option<&Manifest>) -> Self {
        let Some(manifest) = manifest else { return Self { terms: None, segments: Vec::new() } };
        let terms = TermHasher::new(&manifest.secret, &EmbeddedOptions::default());
        let open = |entry: &SegmentEntry| SegmentWitness::open(disk, dir, entry);
        Self { terms: Some(terms), segments: manifest.segments.iter().filter_map(open).collect() }
    }

    /// Returns the addresses of deleted records in `logs`. The salvage must read these logs in the
    /// generation that MANIFEST names.
    pub(super) fn dead(&self, logs: &HashSet<u32>) -> HashSet<u64> {
        let of = |witness: &SegmentWitness| -> Vec<u64> {
            let addresses = witness.dead.dead.ones().map(|row| witness.address(row));
            let dead = addresses.filter(|at| *at != RecordAddress::GONE && logs.contains(&at.log));
            dead.map(RecordAddress::pack).collect()
        };
        self.segments.iter().flat_map(of).collect()
    }

    /// Returns the minimum length of the log numbered `number`: one byte more than the offset of
    /// its last live record. Returns 0 if no segment has a live record of the log.
    pub(super) fn reach(&self, number: u32) -> u64 {
        let covers = |witness: &&SegmentWitness| witness.logs.contains(&number);
        let rows = self.segments.iter().filter(covers).flat_map(|witness| {
            let live = (0..witness.rows).filter(|&row| !witness.dead.dead.get(row));
            live.map(|row| witness.address(row)).filter(|at| at.log == number)
        });
        rows.map(|at| u64::from(at.offset) + 1).max().unwrap_or(0)
    }

    /// Adds lost live records to the `lost` parts of the log numbered `number`. The parts must be
    /// in order. `bytes` is the content of the log.
    pub(super) fn add_lost(&self, number: u32, bytes: &[u8], lost: &mut [LostPart]) {
        let covers = |witness: &&SegmentWitness| witness.logs.contains(&number);
        for witness in self.segments.iter().filter(covers) {
            for part in lost.iter_mut() {
                part.records = part.records.or(Some(0));
            }
            for row in (0..witness.rows).filter(|&row| !witness.dead.dead.get(row)) {
                let at = witness.address(row);
                let offset = u64::from(at.offset);
                let part = lost.partition_point(|part| part.bytes.end <= offset);
                let part = lost.get_mut(part).filter(|part| part.bytes.contains(&offset));
                if let Some(part) = part.filter(|_| at.log == number) {
                    self.add(witness, row, id_in_frame(bytes, at.offset as usize), part);
                }
            }
        }
    }

    /// Adds the record of a row to a lost part. If the hash of `id` is the row's hash, the id
    /// counts as confirmed.
    fn add(&self, witness: &SegmentWitness, row: u32, id: Option<Id>, part: &mut LostPart) {
        *part.records.get_or_insert(0) += 1;
        let Some(file) = &witness.file else { return };
        let time = file.time(row);
        let (oldest, newest) = part.times.unwrap_or((time, time));
        part.times = Some((oldest.min(time), newest.max(time)));
        let is_it = |id: &Id| {
            let hash = self.terms.as_ref().map(|terms| terms.id(id));
            hash.is_some_and(|hash| file.rows_of_id(hash).any(|known| known == row))
        };
        part.ids.extend(id.filter(is_it));
    }
}

impl SegmentWitness {
    fn open(disk: &dyn Disk, dir: &Path, entry: &SegmentEntry) -> Option<Self> {
        let file = SegmentFile::open(disk, dir, entry.number).ok();
        let file = file.filter(|file| file.damaged_sections().is_empty());
        let path = SidecarKind::Addresses.path(dir, entry.number, entry.addresses);
        let rows = match &file {
            Some(file) => file.rows as usize,
            None => SidecarKind::words_in(std::fs::metadata(path).ok()?.len()),
        };
        let id = (entry.number, entry.addresses);
        let addresses = SidecarKind::Addresses.open(disk, dir, id, rows).ok()?;
        let rows = u32::try_from(rows).ok()?;
        let dead = if entry.dead == 0 {
            None
        } else {
            let words = RowMarks::words_on_disk(rows);
            // Without the `.dead` file, the segment still shows which records its logs had.
            SidecarKind::Dead.open(disk, dir, (entry.number, entry.dead), words).ok()
        };
        let (dead, logs) = (RowMarks::new(rows, dead.as_ref()), entry.first_log..=entry.last_log);
        Some(Self { file, addresses, rows, dead, logs })
    }

    fn address(&self, row: u32) -> RecordAddress {
        RecordAddress::unpack(self.addresses.get(row as usize).unwrap_or(0))
    }
}

/// Returns the bytes that are the record's id if a frame begins at `at`.
fn id_in_frame(bytes: &[u8], at: usize) -> Option<Id> {
    bytes.get(at.checked_add(FRAME)?..)?.first_chunk().copied()
}

/// Returns the id of a lost record, if the lost bytes look like its frame: a put with a length that
/// ends exactly where the lost bytes end.
pub(super) fn likely_id(bytes: &[u8], lost: &Range<u64>) -> Option<Id> {
    let at = usize::try_from(lost.start).ok()?;
    let head = bytes.get(at..)?.first_chunk::<FRAME>()?;
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let ends = lost.start + FRAME as u64 + u64::from(len) == lost.end;
    if head[8] == LogFrame::PUT && ends { id_in_frame(bytes, at) } else { None }
}
