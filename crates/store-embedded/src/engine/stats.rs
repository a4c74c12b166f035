//! The figures of a shelf.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hark_archive::query::source::Source;
use hark_archive::store::StoreStats;

use super::faults::damaged_files;
use super::shelf::OpenShelf;
use crate::head::{Head, HeadView};
use crate::maintenance::dead::DeadBytes;
use crate::maintenance::due::merge_due_records;
use crate::segment::marks::RowMarks;
use crate::segment::opened::Segment;
use crate::segment::sidecar::SidecarKind;
use crate::space::pressure::reclaimable;
use crate::space::writes::note_space;

/// Counts the records and bytes of a shelf, and reports the state of maintenance.
pub(super) fn stats(shelf: &Arc<OpenShelf>) -> StoreStats {
    let OpenShelf { files, writer, jobs, .. } = &**shelf;
    let view = shelf.view.load_full();
    let dead = DeadBytes::of(&view, files.options());
    // This function never holds two locks of `jobs` at once, because maintenance and the slow check
    // also take these locks.
    let mut stats = StoreStats {
        segments: view.segments.len() as u64,
        dead_bytes: dead.all,
        reclaimable_bytes: reclaimable(files, jobs, &dead),
        // `None` if the disk does not report its free space.
        free_bytes: files.free_bytes().ok(),
        written_bytes: files.written_bytes(),
        heads_waiting: view.frozen.len() as u64,
        merge_due_records: merge_due_records(&view.segments, files.options()),
        syncs: writer.syncs().read(),
        damaged: files.damage().count(),
        damaged_files: damaged_files((files, jobs), &view),
        maintenance_failed: jobs.failure(),
        maintenance: jobs.done(),
        scrub: Some(jobs.scrub().stats(view.bytes_on_disk())),
        ..StoreStats::default()
    };
    view.heads().for_each(|head| add_head(&mut stats, head));
    view.segments.iter().for_each(|segment| add_segment(&mut stats, segment));
    stats.bytes = stats.log_bytes + stats.index_bytes;
    stats.disk = Some(note_space(shelf, &view, &stats));
    stats
}

fn add_head(stats: &mut StoreStats, head: &Arc<Head>) {
    let rows = u64::from(head.published());
    let dead = u64::from(head.dead_count()).min(rows);
    stats.records += rows - dead;
    stats.head_records += rows - dead;
    stats.dead += head.log.dead_records.load(Ordering::Relaxed);
    stats.log_bytes += head.log.written();
    add_span(stats, Source::span(&HeadView::published(head)));
}

fn add_segment(stats: &mut StoreStats, segment: &Segment) {
    let rows = u64::from(segment.file.rows);
    let dead = u64::from(segment.dead.rows.count()).min(rows);
    stats.records += rows - dead;
    stats.index_bytes += segment.file.bytes() + segment.addresses.bytes();
    if segment.entry.dead > 0 {
        let words = RowMarks::words_on_disk(segment.file.rows);
        stats.index_bytes += SidecarKind::Dead.bytes(words);
    }
    for log in segment.logs.iter().flatten() {
        stats.log_bytes += log.written();
        stats.dead += log.dead_records.load(Ordering::Relaxed);
    }
    add_span(stats, (rows > 0).then_some((segment.file.oldest, segment.file.newest)));
}

/// Extends the time range in `stats` by `span`.
fn add_span(stats: &mut StoreStats, span: Option<(u64, u64)>) {
    if let Some((oldest, newest)) = span {
        stats.oldest = Some(stats.oldest.map_or(oldest, |known| known.min(oldest)));
        stats.newest = Some(stats.newest.map_or(newest, |known| known.max(newest)));
    }
}
