//! Replaces a damaged segment while readers and the writer continue.
//!
//! Only the segment's index is damaged. Its addresses are in another file with its own checksum. If
//! they are damaged, they are replaced first (`damaged_addresses`). The dead rows are in memory,
//! and the records are in the logs, each with its own checksum. So the segment is rebuilt in the
//! same way as a head is sealed: each log gets one new segment, and the memory does not grow with
//! the size of the damaged segment. The words of a log are packed as soon as they are found
//! (`segment::gathered`), because a log that was written before search was enabled may have far
//! more words than fit into a head. Maintenance merges the new segments later. If any record cannot
//! be read, nothing is changed, because the damage is then not limited to the index.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::damaged_addresses::remake_addresses;
use super::error::MaintenanceError;
use super::install::{JobStart, install, note_done};
use crate::engine::shelf::OpenShelf;
use crate::manifest::SegmentEntry;
use crate::segment;
use crate::segment::build::DROPPED;
use crate::segment::opened::Segment;
use crate::segment::seal::{self, SealedSegment};
use crate::space::job_room::{BESIDE_OTHERS, room_for};
use crate::space::rule::JobSpace;

/// Replaces the damaged part of a segment: only the addresses, or the whole segment. Returns the
/// number of new segments.
pub(super) fn remake(shelf: &OpenShelf, bad: &Arc<Segment>) -> Result<usize, MaintenanceError> {
    if bad.has_sound_addresses() {
        return remake_segment(shelf, bad);
    }
    let bad = remake_addresses(shelf, bad)?;
    let file = &bad.file;
    if file.damaged_sections().is_empty() && bad.lists_what_it_should() {
        return Ok(1);
    }
    remake_segment(shelf, &bad)
}

/// Replaces a damaged segment by one new segment for each of its logs. Returns the number of new
/// segments.
fn remake_segment(shelf: &OpenShelf, bad: &Arc<Segment>) -> Result<usize, MaintenanceError> {
    let started = JobStart::now();
    let damaged = || MaintenanceError::Damaged(segment::path(shelf.files.dir(), bad.entry.number));
    let mut live: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for row in (0..bad.file.rows).filter(|&row| !bad.dead.dead.get(row)) {
        live.entry(bad.address(row).log).or_default().push(row);
    }
    if !bad.has_sound_addresses() {
        return Err(damaged());
    }
    // All new segments together, with a trailer each, need at most twice the space of the damaged
    // segment. If the damaged segment has no ids, the new ids need space, too.
    let ids = if bad.file.has_ids { 0 } else { u64::from(bad.file.rows) * 33 };
    let mut needs =
        bad.file.bytes() * 2 + ids + bad.addresses.bytes() + shelf.view.load().dead_files_max();
    if shelf.files.terms().has_words() && !bad.has_words() {
        // Words that are not indexed yet need less than half of the bytes of their texts.
        needs += bad.logs.iter().flatten().map(|log| log.written()).sum::<u64>() / 2;
    }
    let name = "replacing a damaged segment";
    let job = JobSpace { name, beside: BESIDE_OTHERS, needs, is_urgent: true };
    let room = room_for((&shelf.files, &shelf.jobs), &job)?;
    let next = shelf.writer.manifest().next_segment;
    let mut entries = Vec::new();
    // For each new segment: its rows in the damaged segment, and the result of writing the new
    // segment.
    let mut made: Vec<(Vec<u32>, SealedSegment)> = Vec::new();
    for log in bad.logs.iter().flatten() {
        let rows = live.remove(&log.number).unwrap_or_default();
        let mut records = Vec::with_capacity(rows.len());
        for (at, &row) in (0..).zip(&rows) {
            let address = bad.address(row);
            let record = log.record(address.offset, true).ok_or_else(damaged)?;
            records.push((at, address, record));
        }
        let (number, count) = (next + entries.len() as u32, rows.len() as u32);
        let written =
            seal::write(&room, shelf.files.dir(), number, &records, count, shelf.files.terms())?;
        shelf.files.note_written(written.bytes);
        let (first_log, last_log) = (log.number, log.number);
        entries.push(SegmentEntry { number, first_log, last_log, addresses: 0, dead: 0 });
        made.push((rows, written));
    }
    if !live.is_empty() || entries.is_empty() {
        return Err(damaged());
    }
    let died = |at: usize| -> Vec<u32> {
        let (olds, written) = &made[at];
        let both = olds.iter().zip(&written.rows);
        let died = both.filter(|&(&old, &new)| new != DROPPED && bad.dead.dead.get(old));
        died.map(|(_, &new)| new).collect()
    };
    install(shelf, &room, &entries, &died, &|manifest, entries| {
        let at = manifest.segments.iter().position(|s| s.number == bad.entry.number);
        let at = at.unwrap_or(manifest.segments.len());
        manifest.segments.splice(at..(at + 1).min(manifest.segments.len()), entries);
        manifest.note_dead(bad.logs.iter().flatten());
    })?;
    // All records of the segment have been read.
    bad.logs.iter().flatten().for_each(|log| shelf.files.damage().forget(log.number));
    let records = made.iter().map(|(_, written)| u64::from(written.count)).sum();
    let bytes = made.iter().map(|(_, written)| written.bytes).sum();
    note_done(&shelf.jobs, &started, records, bytes, |done| &mut done.sealing);
    Ok(entries.len())
}
