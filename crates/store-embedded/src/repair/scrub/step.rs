//! A step of the slow check.

use super::place::{ScrubPlace, ScrubTarget, SegmentScrub};
use super::read::{end_log, scrub_addresses, scrub_frames, scrub_section};
use crate::engine::shelf::OpenShelf;

/// Reads the next bytes. Returns the number of bytes read, and whether the pass has ended.
pub(super) fn scrub_step(shelf: &OpenShelf) -> (u64, bool) {
    let view = shelf.view.load_full();
    let mut run = shelf.jobs.scrub().run();
    let run = &mut *run;
    let mut place = run.place.take().unwrap_or_else(|| ScrubPlace::before(0));
    let Some(target) = ScrubTarget::next(&view, place.from) else {
        shelf.jobs.scrub().end_pass(run);
        return (0, true);
    };
    let (mut segment_place, mut log_place) =
        (target.segment_of(&mut place), target.log_of(&mut place));
    if let (Some(segment), Some(place)) = (&target.segment, &mut segment_place) {
        let number = segment.entry.number;
        if place.is_suspect && !shelf.jobs.is_suspect(number) {
            // Maintenance has replaced the segment's addresses, so the segment is checked again.
            *place = SegmentScrub::new(number);
        }
    }
    let read = match (&target.segment, &mut segment_place) {
        (Some(segment), Some(place)) if !place.has_sections() => {
            scrub_section(shelf, segment, place, run)
        }
        (Some(segment), Some(place)) if !place.is_read() => {
            scrub_addresses(shelf, segment, place, run)
        }
        (_, place) => scrub_frames(shelf, &target, place.as_mut(), &mut log_place, run),
    };
    let log = &target.log;
    let is_log_read = log_place.given_up.is_some() || log_place.offset as u64 >= log.written();
    place.from = log.number;
    if is_log_read && segment_place.as_ref().is_none_or(SegmentScrub::is_read) {
        end_log(shelf, &target, segment_place.as_mut(), &log_place, run);
        place.from = log.number.saturating_add(1);
    } else {
        place.log = Some(log_place);
    }
    place.segment = segment_place;
    run.place = Some(place);
    shelf.jobs.scrub().note_read(read);
    (read, false)
}
