//! Chooses the segments to merge: neighbours of similar size, once there are enough neighbours.

use std::sync::Arc;

use crate::segment::opened::{Segment, WEIGHT_MAX};

/// Returns the oldest neighbours of one size class that are numerous enough for a merge. Smaller
/// segments between them are merged, too.
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
        // A head is sealed at slightly more or fewer rows than `seal_records`, so each size class
        // begins at half of `seal_records` times a power of `fan_in`.
        (ratio * 2.0).max(1.0).log(fan_in as f64).floor() as u32
    };
    (0..rows.len()).find_map(|start| {
        let here = tier(&rows[start]);
        let run = rows[start..].iter().map(tier).take_while(|tier| *tier <= here);
        // Smaller segments after the last segment of this size class are left for a later merge.
        // Otherwise every few small segments would cause a rewrite of a large segment.
        let (last, _) = run.enumerate().filter(|(_, tier)| *tier == here).nth(fan_in - 1)?;
        let range = start..start + last + 1;
        fits(&rows[range.clone()], options).then_some(range)
    })
}

/// Whether segments with these numbers of rows may be merged into one segment.
pub(super) fn fits(rows: &[u32], options: &crate::options::EmbeddedOptions) -> bool {
    let rows = rows.iter().map(|rows| u64::from(*rows)).sum::<u64>();
    rows <= options.segment_records_max.min(WEIGHT_MAX)
}

/// Returns the oldest neighbouring segments that together fit into one segment; `None` if no two
/// neighbours fit.
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

/// Number of records in the segments of the next due merge.
pub(crate) fn merge_due_records(
    segments: &[Arc<Segment>],
    options: &crate::options::EmbeddedOptions,
) -> u64 {
    let due = due_merge(segments, options).and_then(|range| segments.get(range));
    due.into_iter().flatten().map(|segment| u64::from(segment.file.rows)).sum()
}
