//! Replaces damaged addresses of a segment. Maintenance does not use the damaged addresses: it
//! finds all addresses again in the segment's logs.
//!
//! The index of the segment has the time and the hash of the id of each row. So the id of each
//! record in the logs leads to the record's row, and the row gets the record's address.

use std::sync::Arc;

use hark_archive::Record;
use hark_archive::query::prepared::TermMap as _;

use super::error::MaintenanceError;
use super::install::{all_was_read, readdress, reopen, replace_segment};
use super::jobs::ShelfJobs;
use crate::bits::AtomicBits;
use crate::disk::Disk;
use crate::engine::files::ShelfFiles;
use crate::engine::shelf::OpenShelf;
use crate::log::{self, LogFrame};
use crate::segment::opened::Segment;
use crate::segment::sidecar::SidecarKind;
use crate::segment::{self, RecordAddress, SegmentSection};
use crate::space::job_room::{BESIDE_OTHERS, room_for};
use crate::space::rule::JobSpace;
use crate::term::TermHasher;

/// The sections that are needed to find a row by its id.
const NEEDED: [SegmentSection; 4] = [
    SegmentSection::Times,
    SegmentSection::IdHashes,
    SegmentSection::IdRows,
    SegmentSection::IdFilter,
];

/// Returns an error if the addresses of a segment have a wrong checksum, or if `agree` is false,
/// which means that the addresses do not lead to records. After an error, the next round of
/// maintenance replaces the addresses or the segment.
pub(super) fn trust_addresses(
    (files, jobs): (&ShelfFiles, &ShelfJobs),
    segment: &Segment,
    agree: bool,
) -> Result<(), MaintenanceError> {
    if agree && segment.has_sound_addresses() {
        return Ok(());
    }
    let entry = &segment.entry;
    jobs.suspect(entry.number);
    let path = SidecarKind::Addresses.path(files.dir(), entry.number, entry.addresses);
    Err(MaintenanceError::Damaged(path))
}

/// Returns an error if a section that finds rows by id is damaged. While these sections were
/// damaged, a deletion may not have found its row. Such a deletion is still needed, but a rewrite
/// would drop the deletion. The next round of maintenance replaces the segment.
pub(super) fn trust_ids(
    (files, jobs): (&ShelfFiles, &ShelfJobs),
    segment: &Segment,
) -> Result<(), MaintenanceError> {
    if !NEEDED.into_iter().any(|section| segment.file.is_damaged(section)) {
        return Ok(());
    }
    let number = segment.entry.number;
    jobs.suspect(number);
    Err(MaintenanceError::Damaged(segment::path(files.dir(), number)))
}

/// Writes a new address file for a segment, and returns the segment with the new addresses.
pub(super) fn remake_addresses(
    shelf: &OpenShelf,
    bad: &Arc<Segment>,
) -> Result<Arc<Segment>, MaintenanceError> {
    let before = shelf.view.faults();
    let number = bad.entry.number;
    let path = SidecarKind::Addresses.path(shelf.files.dir(), number, bad.entry.addresses);
    let damaged = || MaintenanceError::Damaged(path.clone());
    if NEEDED.into_iter().any(|section| bad.file.is_damaged(section)) {
        return Err(damaged());
    }
    let needs = bad.addresses.bytes() + shelf.view.load().dead_files_max();
    let name = "replacing the addresses of a segment";
    let job = JobSpace { name, beside: BESIDE_OTHERS, needs, is_urgent: true };
    let room = room_for((&shelf.files, &shelf.jobs), &job)?;
    let disk: &dyn Disk = &room;
    let addresses = find_addresses(shelf.files.terms(), disk, bad)?.ok_or_else(damaged)?;
    all_was_read(shelf, &before)?;
    let id = (number, bad.entry.addresses + 1);
    let addresses = addresses.into_iter().map(RecordAddress::pack);
    let bytes = SidecarKind::Addresses.write(disk, shelf.files.dir(), id, addresses)?;
    shelf.files.note_written(bytes);

    let _writing = shelf.writer.lock();
    let manifest = shelf.writer.manifest();
    let mut next = manifest.clone();
    let line = next.segments.iter_mut().find(|line| line.number == number);
    let line = line.ok_or_else(damaged)?;
    let line = readdress(&shelf.files, disk, bad, line)?;
    let renewed = reopen(&shelf.files, disk, bad, &line, &next)?;
    renewed.copy_dead_from(bad, None);
    let renewed = replace_segment(shelf, disk, manifest, next, renewed)?;
    shelf.jobs.forget_unreadable(&segment::path(shelf.files.dir(), number));
    // Every frame of these logs has been read, and none was damaged.
    bad.logs.iter().flatten().for_each(|log| shelf.files.damage().forget(log.number));
    Ok(renewed)
}

/// Finds the address of each row of a segment in the segment's logs; `None` if the logs lack the
/// record of a live row.
fn find_addresses(
    terms: &TermHasher,
    disk: &dyn Disk,
    segment: &Segment,
) -> Result<Option<Vec<RecordAddress>>, MaintenanceError> {
    let (file, count) = (&segment.file, segment.file.rows as usize);
    // The bits are copied, because the writer may mark more rows as dead in the meantime.
    let dead = AtomicBits::from_words(count, segment.dead.dead.words());
    let mut addresses = vec![RecordAddress::GONE; count];
    let mut rows: Vec<u32> = Vec::new();
    for log in segment.logs.iter().flatten() {
        let id = (log.number, log.generation);
        log::replay_whole(disk, log.path(), id, &mut |offset, frame| {
            let LogFrame::Put(bytes) = frame else { return };
            let Ok(record) = Record::new(bytes) else { return };
            rows.clear();
            rows.extend(file.rows_of_id(terms.id(record.id())));
            rows.retain(|&row| row < file.rows && file.time(row) == record.time());
            rows.sort_unstable_by_key(|&row| (!dead.get(row), row));
            let at = RecordAddress { log: log.number, offset };
            set_last(&rows, at, &mut addresses);
        })?;
    }
    let mut live = (0..file.rows).zip(&addresses).filter(|(row, _)| !dead.get(*row));
    let is_whole = live.all(|(_, address)| *address != RecordAddress::GONE);
    Ok(is_whole.then_some(addresses))
}

/// Gives the last row of an id the address `at`, and moves the earlier addresses one row down. An
/// id has several rows if its record was deleted and put again. Only the last row can be alive. If
/// one log has several records of an id, they share a row, and the row's address is the address of
/// the last record.
fn set_last(rows: &[u32], at: RecordAddress, addresses: &mut [RecordAddress]) {
    let Some(&last) = rows.last() else { return };
    let before = addresses[last as usize];
    if before != RecordAddress::GONE && before.log != at.log {
        for pair in rows.windows(2) {
            addresses[pair[0] as usize] = addresses[pair[1] as usize];
        }
    }
    addresses[last as usize] = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_put_of_an_id_has_its_last_row() {
        let put = |log, offset| RecordAddress { log, offset };
        let mut addresses = vec![RecordAddress::GONE; 5];
        // The id has the rows 3 and 1. Row 1 is the last of these two, and so the live row.
        for at in [put(1, 24), put(1, 90), put(2, 24), put(4, 700)] {
            set_last(&[3, 1], at, &mut addresses);
        }
        set_last(&[], put(5, 24), &mut addresses);
        let gone = RecordAddress::GONE;
        assert_eq!(addresses, [gone, put(4, 700), gone, put(2, 24), gone]);
    }
}
