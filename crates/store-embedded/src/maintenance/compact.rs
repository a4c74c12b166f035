//! Compaction: frees the space of all deleted records, and merges segments into as few as possible.

use hark_archive::Store as _;

use super::due::next_to_fit;
use super::error::MaintenanceError;
use super::rewrite::RewriteOrder;
use super::round::MaintenanceRound;
use crate::engine::embedded_store::EmbeddedStore;
use crate::engine::shelf::OpenShelf;
use crate::options::{JobProgress, OnProgress};
use crate::space::writes::recheck_space;

/// The result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionResult {
    /// Number of segments before the compaction.
    pub segments_before: u64,
    /// Number of segments after the compaction.
    pub segments_after: u64,
    /// Number of bytes on disk before the compaction.
    pub bytes_before: u64,
    /// Number of bytes on disk after the compaction.
    pub bytes_after: u64,
}

impl EmbeddedStore {
    /// Frees the space of all deleted records, and merges all segments into as few as possible.
    /// Readers and the writer continue during the compaction. If the active head has deleted
    /// records, it is sealed first.
    pub fn compact(&self, progress: OnProgress<'_>) -> Result<CompactionResult, MaintenanceError> {
        let shelf = &self.shelf;
        let before = self.stats();
        let _one_at_a_time = shelf.jobs.run_alone();
        if shelf.jobs.is_paused() {
            return Err(MaintenanceError::Resting);
        }
        if let Some(reserve) = &shelf.files.options().reserve {
            reserve.release_below(reserve.bytes())?;
        }
        shelf.jobs.space().set_compacting(true);
        let compacted = compact(shelf, progress);
        shelf.jobs.space().set_compacting(false);
        recheck_space(&shelf.files, &shelf.jobs);
        compacted?;
        if let Some(path) = shelf.jobs.damaged_files().into_iter().next() {
            return Err(MaintenanceError::Damaged(path));
        }
        let after = self.stats();
        Ok(CompactionResult {
            segments_before: before.segments,
            segments_after: after.segments,
            bytes_before: before.bytes,
            bytes_after: after.bytes,
        })
    }
}

/// Runs a compaction. The caller holds the shelf's `maintenance` lock.
fn compact(shelf: &OpenShelf, progress: OnProgress<'_>) -> Result<(), MaintenanceError> {
    let never = || false;
    let mut round = MaintenanceRound::new(shelf, &never);
    round.seal();
    round.seal_head();
    // Rewrites come before merges, because rewrites free space. Each rewrite also writes all
    // addresses of the log's segment again, and segments are still small before merges.
    round.rewrite(RewriteOrder::Oldest, &|_| true, progress);
    progress(JobProgress { what: "merging segments", done: 0, total: 1 });
    round.merge(next_to_fit);
    round.drop_dead_rows(&|_| true);
    progress(JobProgress { what: "merging segments", done: 1, total: 1 });
    round.end()
}
