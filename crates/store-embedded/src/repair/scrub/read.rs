//! The reads of the slow check: sections and addresses of a segment, and frames of its logs.

use std::path::PathBuf;
use std::sync::Arc;

use hark_archive::Record;
use hark_archive::query::prepared::TermMap as _;

use super::place::{LogScrub, ScrubTarget, SegmentScrub};
use super::state::ScrubRun;
use crate::engine::shelf::OpenShelf;
use crate::log::{Log, LogFrame};
use crate::maintenance::jobs::ShelfJobs;
use crate::map::Map;
use crate::repair::salvage::scan::{ScannedPart, scan_part};
use crate::segment::opened::Segment;
use crate::segment::sidecar::SidecarKind;
use crate::segment::{self, RecordAddress, SECTIONS};
use crate::term::{TermBuffers, TermHasher};

/// Approximate number of bytes that are read in one step. A single frame may be longer.
pub(super) const STEP_BYTES: usize = 256 << 10;
/// Number of unreadable pages at which the check gives up a log, because the read of a page on a
/// failing disk may take seconds.
const UNREADABLE_MAX: u32 = 16;

/// Reads a part of a section of a segment.
pub(super) fn scrub_section(
    shelf: &OpenShelf,
    segment: &Segment,
    place: &mut SegmentScrub,
    run: &mut ScrubRun,
) -> u64 {
    let (at, from, sum) = place.section;
    let Some(&section) = SECTIONS.get(at) else { return 0 };
    let (sum, read) = segment.file.sum_of_part(section, from..from + STEP_BYTES, sum);
    place.section = (at, from + read, sum);
    if read < STEP_BYTES {
        place.section = (at + 1, 0, 0);
        if !segment.file.is_sum_of(section, sum) {
            let path = segment::path(shelf.files.dir(), segment.entry.number);
            let what = format!("its section {section:?} is damaged");
            suspect(&shelf.jobs, segment, (path, &what), place, run);
        }
    }
    read as u64
}

/// Reads the addresses of a segment, and counts the rows of each log.
pub(super) fn scrub_addresses(
    shelf: &OpenShelf,
    segment: &Segment,
    place: &mut SegmentScrub,
    run: &mut ScrubRun,
) -> u64 {
    place.has_addresses = true;
    if segment.addresses.is_sound() {
        let logs = segment.logs.iter().flatten();
        place.rows = logs.map(|log| (log.number, (log.generation, 0))).collect();
        for address in segment.addresses.iter().map(RecordAddress::unpack) {
            if let Some((_, rows)) = place.rows.get_mut(&address.log) {
                *rows += 1;
            }
        }
    } else {
        let entry = &segment.entry;
        let path = SidecarKind::Addresses.path(shelf.files.dir(), entry.number, entry.addresses);
        suspect(&shelf.jobs, segment, (path, "it is damaged"), place, run);
    }
    segment.addresses.bytes()
}

/// Reads the next frames of a log.
pub(super) fn scrub_frames(
    shelf: &OpenShelf,
    target: &ScrubTarget,
    segment_place: Option<&mut SegmentScrub>,
    place: &mut LogScrub,
    run: &mut ScrubRun,
) -> u64 {
    let log = &target.log;
    let written = log.written() as usize;
    let Some(map) = map_for_scrub(shelf, log, place, run) else { return 0 };
    let end = map.len().min(written);
    let bytes = map.get(..end).unwrap_or_default();
    let from = place.offset;
    map.read_ahead(from..(from + STEP_BYTES).min(end).max(from));
    let (mut terms, mut disagrees) = (TermBuffers::default(), false);
    while place.offset < end && place.offset < from + STEP_BYTES {
        let (part, next) = scan_part(bytes, place.offset, log.salt());
        place.offset = next;
        match (part, &target.segment) {
            (ScannedPart::Frame(at, LogFrame::Put(record)), Some(segment)) => {
                let address = u32::try_from(at).ok();
                let address = address.map(|offset| RecordAddress { log: log.number, offset });
                if let (Ok(record), Some(at)) = (Record::new(record), address)
                    && let Some(is_right) =
                        agrees(shelf.files.terms(), segment, &record, at, &mut terms)
                {
                    place.found += 1;
                    disagrees |= !is_right;
                }
            }
            (ScannedPart::Lost(range), _) => {
                place.lose(range);
                if shelf.jobs.is_stopping() {
                    break;
                }
            }
            _ => {}
        }
        if place.faults + map.faults() >= UNREADABLE_MAX {
            place.given_up = Some(place.offset as u64);
            break;
        }
    }
    let read = place.offset - from;
    if place.offset >= end && end < written {
        // Another program has shortened the file, so the rest is lost.
        place.lose(place.offset as u64..written as u64);
        place.offset = written;
    }
    place.faults += map.faults();
    if let (true, Some(segment), Some(place)) = (disagrees, &target.segment, segment_place) {
        let path = segment::path(shelf.files.dir(), segment.entry.number);
        suspect(&shelf.jobs, segment, (path, "it disagrees with its log"), place, run);
    }
    read as u64
}

/// Maps a log for a single step. The map for queries is not used, so that unreadable pages are
/// replaced only in the map of the step. No map stays open between two steps, so the disk space of
/// a removed log is freed at once. Returns `None` if the log cannot be opened. The check then gives
/// up the log, unless it was replaced or removed in the meantime.
fn map_for_scrub(
    shelf: &OpenShelf,
    log: &Arc<Log>,
    place: &mut LogScrub,
    run: &mut ScrubRun,
) -> Option<Map> {
    let error = match shelf.files.disk().map_sequential(log.path()) {
        Ok(map) => {
            map.spare_readable_pages();
            return Some(map);
        }
        Err(error) => error,
    };
    let now = ScrubTarget::next(&shelf.view.load(), log.number);
    if now.is_some_and(|now| Arc::ptr_eq(&now.log, log)) {
        run.faults += 1;
        place.given_up = Some(place.offset as u64);
        shelf.jobs.note_damaged_file(log.path().into(), format!("it cannot be opened: {error}"));
    }
    None
}

/// Whether a segment's index agrees with a record; `None` if the segment has no row of the record,
/// because the record was already dead when the segment was made.
fn agrees(
    hasher: &TermHasher,
    segment: &Segment,
    record: &Record<'_>,
    at: RecordAddress,
    terms: &mut TermBuffers,
) -> Option<bool> {
    let file = &segment.file;
    let mut rows = file.rows_of_id(hasher.id(record.id()));
    let row = rows.find(|&row| segment.address(row) == at)?;
    if segment.has_words() {
        hasher.of(record, terms);
    } else {
        hasher.of_labels(record, terms);
    }
    let kind = record.kind();
    let has = |term: &u64| file.has_row(*term, kind, row);
    let has_word = |(_, class, word)| file.has_word(word, (kind, class), row);
    let agrees = file.time(row) == record.time() && terms.terms.iter().all(has);
    Some(agrees && terms.words().all(has_word))
}

/// Ends the check of a log: compares the number of rows that were found with the segment's number
/// of rows for the log, and notes lost parts.
pub(super) fn end_log(
    shelf: &OpenShelf,
    target: &ScrubTarget,
    segment_place: Option<&mut SegmentScrub>,
    place: &LogScrub,
    run: &mut ScrubRun,
) {
    let log = &target.log;
    if !place.lost.is_empty() || place.given_up.is_some() {
        // From now on, every read of a record in this log verifies the checksum.
        log.note_damage();
    }
    if let (Some(segment), Some(segment_place)) = (&target.segment, segment_place) {
        let lost = if place.lost.is_empty() { 0 } else { note_lost(segment, log, place) };
        let counted = segment_place.rows.get(&log.number);
        let counted = counted.filter(|(generation, _)| *generation == log.generation);
        let rows = || {
            let all = segment.addresses.iter().map(RecordAddress::unpack);
            all.filter(|address| address.log == log.number).count() as u64
        };
        let rows = counted.map_or_else(rows, |(_, rows)| *rows);
        let unfound = rows.saturating_sub(place.found + lost);
        if unfound > 0 && place.given_up.is_none() {
            let path = segment::path(shelf.files.dir(), segment.entry.number);
            let what = format!("{unfound} of its records are not found by their ids");
            suspect(&shelf.jobs, segment, (path, &what), segment_place, run);
        }
    }
    if let Some(first) = place.lost.first() {
        run.faults += place.lost.len() as u64;
        let parts = place.lost.len();
        let more = if place.given_up.is_some() { ", and the rest was not read" } else { "" };
        let what = format!("damaged from byte {} on, in {parts} parts{more}", first.start);
        shelf.jobs.note_damaged_file(log.path().into(), what);
    }
}

/// Counts a damaged file of a segment as a fault, and asks maintenance to replace the segment.
fn suspect(
    jobs: &ShelfJobs,
    segment: &Segment,
    (file, what): (PathBuf, &str),
    place: &mut SegmentScrub,
    run: &mut ScrubRun,
) {
    if std::mem::replace(&mut place.is_suspect, true) {
        return;
    }
    run.faults += 1;
    if jobs.suspect(segment.entry.number) {
        tracing::error!(file = %file.display(), what, "the slow check found a damaged segment");
        jobs.call();
    }
}

/// Notes the rows of a segment that have records in the lost parts of a log. Returns their number.
fn note_lost(segment: &Segment, log: &Log, place: &LogScrub) -> u64 {
    let mut lost = 0;
    for row in 0..segment.file.rows {
        let at = segment.address(row);
        if at.log != log.number || !place.is_lost(u64::from(at.offset)) {
            continue;
        }
        lost += 1;
        segment.dead.verified.clear(row);
        if !segment.dead.dead.get(row) {
            log.note_damaged(at.offset);
        }
    }
    lost
}
