//! The jobs that make segments: sealing a full head, and merging segments.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::MaintenanceError;
use super::install::{JobStart, all_was_read, install, note_done};
use crate::disk::Disk;
use crate::engine::shelf::OpenShelf;
use crate::head::Head;
use crate::manifest::SegmentEntry;
use crate::segment::build::DROPPED;
use crate::segment::opened::Segment;
use crate::segment::seal::SealedSegment;
use crate::segment::{RecordAddress, merge, seal};
use crate::space::job_room::{BESIDE_MERGES, BESIDE_OTHERS, room_for};
use crate::space::rule::JobSpace;

/// Seals the oldest frozen head; returns false if no frozen head exists.
pub(super) fn seal_next(shelf: &OpenShelf) -> Result<bool, MaintenanceError> {
    let Some(head) = shelf.view.load().frozen.first().cloned() else { return Ok(false) };
    let (started, before) = (JobStart::now(), shelf.view.faults());
    let values = seal::values(&head, shelf.files.terms());
    let needs =
        seal::bytes_max(&head, &values, shelf.files.terms()) + shelf.view.load().dead_files_max();
    // Only a sealed log can be rewritten. If most records of the head are dead, sealing and the
    // rewrite free more space than they take. If retention keeps space free, it makes room again.
    let frees = head.log.dead_bytes.load(Ordering::Relaxed) > needs;
    let is_urgent = frees || shelf.files.bounds().free_bytes_min > 0;
    let job = JobSpace { name: "sealing a full head", beside: BESIDE_OTHERS, needs, is_urgent };
    let room = room_for((&shelf.files, &shelf.jobs), &job)?;
    let number = shelf.writer.manifest().next_segment;
    if !shelf.files.terms().labels().is_empty() {
        // The new segment lists values that were read from the log. After a failed read, some
        // values might be missing.
        all_was_read(shelf, &before)?;
    }
    let written = match seal_from_file(shelf, &room, number, &head)? {
        Some(written) => written,
        None => {
            seal::seal(&room, shelf.files.dir(), number, &head, (shelf.files.terms(), &values))?
        }
    };
    shelf.files.note_written(written.bytes);
    let log = head.log.number;
    let entry = SegmentEntry { number, first_log: log, last_log: log, addresses: 0, dead: 0 };
    let died = |_: usize| -> Vec<u32> {
        let rows = written.rows.iter().enumerate();
        rows.filter(|&(old, &new)| new != DROPPED && head.is_dead(old as u32))
            .map(|(_, &new)| new)
            .collect()
    };
    install(shelf, &room, &[entry], &died, &|manifest, entries| {
        manifest.segments.extend(entries);
        if let Some(entry) = manifest.logs.iter_mut().find(|entry| entry.number == log) {
            entry.note_dead(&head.log);
        }
    })?;
    let records = u64::from(written.count);
    note_done(&shelf.jobs, &started, records, written.bytes, |done| &mut done.sealing);
    tracing::debug!(
        segment = number,
        records = head.published(),
        bytes = written.bytes,
        ms = started.wall.elapsed().as_millis(),
        "a full head was sealed"
    );
    Ok(true)
}

/// Seals a head in whose log a read has failed. The head's map of the log lacks a part, so the log is
/// mapped again. Returns `None` if no read has failed, or if the log still cannot be read.
fn seal_from_file(
    shelf: &OpenShelf,
    disk: &dyn Disk,
    number: u32,
    head: &Head,
) -> io::Result<Option<SealedSegment>> {
    let old = &head.log;
    if !old.is_unreadable() {
        return Ok(None);
    }
    let log = shelf.files.open_growing(old.number, old.generation, old.written())?;
    let record = |row| {
        let offset = head.row(row)?.offset;
        Some((row, RecordAddress { log: log.number, offset }, log.record(offset, true)?))
    };
    let live = (0..head.inserted()).filter(|&row| !head.is_dead(row));
    let Some(records) = live.map(record).collect::<Option<Vec<_>>>() else { return Ok(None) };
    let (dir, terms) = (shelf.files.dir(), shelf.files.terms());
    seal::write(disk, dir, number, &records, head.inserted(), terms).map(Some)
}

/// Merges neighbouring segments into a new segment. If one of them is damaged, merges nothing and
/// returns the damaged segment.
pub(super) fn merge_segments(
    shelf: &OpenShelf,
    olds: &[Arc<Segment>],
) -> Result<Option<Arc<Segment>>, MaintenanceError> {
    let (Some(first), Some(last)) = (olds.first(), olds.last()) else { return Ok(None) };
    let (started, before) = (JobStart::now(), shelf.view.faults());
    let needs = merge::bytes_max(olds) + shelf.view.load().dead_files_max();
    // A single segment is written again without its dead rows, and then takes less space.
    let is_urgent = olds.len() == 1;
    let job = JobSpace { name: "merging segments", beside: BESIDE_MERGES, needs, is_urgent };
    let room = room_for((&shelf.files, &shelf.jobs), &job)?;
    // Damaged data must not go into a new file, which would have a valid checksum.
    let is_bad =
        |old: &&Arc<Segment>| !old.file.damaged_sections().is_empty() || !old.has_sound_addresses();
    if let Some(bad) = olds.iter().find(is_bad) {
        return Ok(Some(Arc::clone(bad)));
    }
    let number = shelf.writer.manifest().next_segment;
    let written = merge::merge(&room, shelf.files.dir(), number, olds, shelf.files.terms())?;
    all_was_read(shelf, &before)?;
    shelf.files.note_written(written.bytes);
    let entry = SegmentEntry {
        number,
        first_log: first.entry.first_log,
        last_log: last.entry.last_log,
        addresses: 0,
        dead: 0,
    };
    let died = |_: usize| -> Vec<u32> {
        let moved = olds.iter().zip(&written.rows).flat_map(|(old, rows)| {
            old.dead.dead.ones().filter_map(|row| rows.get(row as usize).copied())
        });
        moved.filter(|&new| new != DROPPED).collect()
    };
    let old_numbers: Vec<u32> = olds.iter().map(|old| old.entry.number).collect();
    install(shelf, &room, &[entry], &died, &|manifest, entries| {
        let at = manifest.segments.iter().position(|s| s.number == old_numbers[0]);
        let at = at.unwrap_or(0);
        manifest.segments.retain(|s| !old_numbers.contains(&s.number));
        manifest.segments.splice(at..at, entries);
        manifest.note_dead(olds.iter().flat_map(|old| &old.logs).flatten());
    })?;
    let records = u64::from(written.count);
    note_done(&shelf.jobs, &started, records, written.bytes, |done| &mut done.merging);
    tracing::debug!(
        segment = number,
        segments = olds.len(),
        records,
        bytes = written.bytes,
        ms = started.wall.elapsed().as_millis(),
        "segments were merged"
    );
    Ok(None)
}
