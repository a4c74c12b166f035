//! Opens a segment with its sidecar files and logs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::file::SegmentFile;
use super::marks::RowMarks;
use super::opened::Segment;
use super::sidecar::SidecarKind;
use crate::damage::DamagedRecords;
use crate::disk::Disk;
use crate::engine::open_error::ShelfOpenError;
use crate::log::{self, Log};
use crate::manifest::{LogEntry, Manifest, SegmentEntry};
use crate::map::unreadable;
use crate::term::TermHasher;

/// Opens a segment, its addresses, its dead rows and its logs. `dead` contains the dead rows if
/// they are already loaded. Records that cannot be read are added to `damage`.
pub(crate) fn open_segment(
    (disk, dir): (&dyn Disk, &Path),
    entry: &SegmentEntry,
    manifest: &Manifest,
    terms: TermHasher,
    dead: Option<Arc<RowMarks>>,
    damage: &Arc<DamagedRecords>,
) -> Result<Segment, ShelfOpenError> {
    let path = super::path(dir, entry.number);
    let file = SegmentFile::open(disk, dir, entry.number).map_err(ShelfOpenError::io(&path))?;
    let path = SidecarKind::Addresses.path(dir, entry.number, entry.addresses);
    let addresses = SidecarKind::Addresses
        .open(disk, dir, (entry.number, entry.addresses), file.rows as usize)
        .map_err(ShelfOpenError::io(&path))?;
    let dead = match dead {
        Some(dead) => dead,
        None if entry.dead == 0 => Arc::new(RowMarks::new(file.rows, None)),
        None => {
            let path = SidecarKind::Dead.path(dir, entry.number, entry.dead);
            let len = RowMarks::words_on_disk(file.rows);
            let words = SidecarKind::Dead.open(disk, dir, (entry.number, entry.dead), len);
            Arc::new(RowMarks::new(file.rows, Some(&words.map_err(ShelfOpenError::io(&path))?)))
        }
    };
    let mut logs = Vec::new();
    for number in entry.first_log..=entry.last_log {
        let known = manifest.logs.iter().find(|log| log.number == number);
        let log = known.map(|log| open_sealed(disk, dir, log)).transpose()?;
        logs.push(log.map(|log| Arc::new(log.noting_in(damage))));
    }
    let segment = Segment::new(entry.clone(), Arc::new(file), addresses, logs, dead, terms);
    segment.count_dead();
    if segment.is_unreadable() {
        return Err(ShelfOpenError::io(&super::path(dir, entry.number))(unreadable()));
    }
    Ok(segment)
}

fn open_sealed(disk: &dyn Disk, dir: &Path, entry: &LogEntry) -> Result<Log, ShelfOpenError> {
    let path = log::path(dir, entry.number, entry.generation);
    let id = (entry.number, entry.generation);
    let log = Log::open(disk, dir, id, u64::MAX, false).map_err(ShelfOpenError::io(&path))?;
    log.dead_bytes.store(entry.dead_bytes, Ordering::Relaxed);
    log.dead_records.store(entry.dead_records, Ordering::Relaxed);
    Ok(log)
}
