//! Which segments are merged: neighbours of about the same size, once there are enough of them.

use std::sync::Arc;

use crate::segment::view::{Segment, WEIGHT_MAX};

/// Returns the oldest neighbouring segments of one tier that are enough for a merge, with the
/// smaller segments between them.
pub(super) fn due_merge(
    segments: &[Arc<Segment>],
    options: &crate::options::EmbeddedOptions,
) -> Option<std::ops::Range<usize>> {
    let rows: Vec<u32> = segments.iter().map(|segment| segment.weight()).collect();
    due(&rows, options)
}

pub(super) fn due(
    rows: &[u32],
    options: &crate::options::EmbeddedOptions,
) -> Option<std::ops::Range<usize>> {
    let fan_in = options.merge_fan_in.max(2);
    let tier = |rows: &u32| {
        let ratio = f64::from(*rows.max(&1)) / f64::from(options.seal_records.max(1));
        // Heads are sealed a little above or below `seal_records`, so tiers begin at half of it.
        (ratio * 2.0).max(1.0).log(fan_in as f64).floor() as u32
    };
    (0..rows.len()).find_map(|start| {
        let here = tier(&rows[start]);
        let run = rows[start..].iter().map(tier).take_while(|tier| *tier <= here);
        // Smaller segments at the end wait until they are enough: otherwise a large segment would
        // be rewritten for every few of them.
        let (last, _) = run.enumerate().filter(|(_, tier)| *tier == here).nth(fan_in - 1)?;
        let range = start..start + last + 1;
        fits(&rows[range.clone()], options).then_some(range)
    })
}

/// Whether segments of these numbers of rows may be merged into one.
pub(super) fn fits(rows: &[u32], options: &crate::options::EmbeddedOptions) -> bool {
    let rows = rows.iter().map(|rows| u64::from(*rows)).sum::<u64>();
    rows <= options.segment_records_max.min(WEIGHT_MAX)
}

/// Returns the oldest neighbouring segments that fit into one; `None` if no two do.
pub(super) fn next_to_fit(
    segments: &[Arc<Segment>],
    options: &crate::options::EmbeddedOptions,
) -> Option<std::ops::Range<usize>> {
    let rows: Vec<u32> = segments.iter().map(|segment| segment.weight()).collect();
    let mut start = 0;
    while start < rows.len() {
        let many = (start + 1..=rows.len()).take_while(|&end| fits(&rows[start..end], options));
        let end = many.last().unwrap_or(start + 1);
        if end > start + 1 {
            return Some(start..end);
        }
        start = end;
    }
    None
}

/// Number of records in the segments that are due to be merged next.
pub(crate) fn merge_due_records(
    segments: &[Arc<Segment>],
    options: &crate::options::EmbeddedOptions,
) -> u64 {
    let due = due_merge(segments, options).and_then(|range| segments.get(range));
    due.into_iter().flatten().map(|segment| u64::from(segment.file.rows)).sum()
}
