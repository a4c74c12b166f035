//! Deletes the extra copies of records that are stored twice. While the ids of a segment were
//! damaged, its records were not found by id. So if a client sent such a record again, the record
//! was stored again.

use std::collections::BTreeMap;
use std::sync::Arc;

use hark_archive::query::source::Source as _;
use hark_archive::{CommitError, Id};

use crate::engine::commit::flush;
use crate::engine::embedded_store::EmbeddedStore;
use crate::engine::shelf_view::{LiveRow, ShelfView};
use crate::engine::tail::SYNC_BYTES_MAX;
use crate::head::{Head, HeadView};
use crate::merged::merged;
use crate::segment::opened::Segment;

/// An entry of the id index of a head or a segment: the hash, the number of the head or segment,
/// and the row.
type IdEntry = (u64, usize, u32);

impl EmbeddedStore {
    /// If several live records have the same id, deletes all but the first. Returns the number of
    /// deleted records.
    pub(crate) fn drop_doubles(&self) -> Result<u64, CommitError> {
        let view = self.shelf.view.load_full();
        let heads: Vec<Arc<Head>> = view.heads().cloned().collect();
        let mut parts: Vec<Box<dyn Iterator<Item = IdEntry> + '_>> = Vec::new();
        for (number, segment) in view.segments.iter().enumerate() {
            parts.push(Box::new(ids_of_segment(segment, number)));
        }
        for (at, head) in heads.iter().enumerate() {
            let mut ids = ids_of_head(head, view.segments.len() + at);
            ids.sort_unstable();
            parts.push(Box::new(ids.into_iter()));
        }
        let row = |(_, part, row): IdEntry| match view.segments.get(part) {
            Some(segment) => LiveRow::Segment(Arc::clone(segment), row),
            None => LiveRow::Head(Arc::clone(&heads[part - view.segments.len()]), row),
        };
        let mut same: Vec<IdEntry> = Vec::new();
        let mut dropped = 0;
        for entry in merged(parts) {
            if same.first().is_some_and(|first| first.0 != entry.0) {
                dropped += self.drop_of_hash(&view, same.drain(..).map(row))?;
            }
            same.push(entry);
        }
        dropped += self.drop_of_hash(&view, same.drain(..).map(row))?;
        self.flush_deletions(&view)?;
        Ok(dropped)
    }

    /// Finds the ids of `rows`, which have the same hash, and for each id adds deletions of all
    /// rows except the first row to the batch. A deletion names a log and not a row, so it would
    /// also delete a first row in the same log. This does not happen: a record is stored again only
    /// after its log was sealed, and so in a later log.
    fn drop_of_hash(
        &self,
        view: &ShelfView,
        rows: impl ExactSizeIterator<Item = LiveRow>,
    ) -> Result<u64, CommitError> {
        if rows.len() < 2 {
            return Ok(0);
        }
        let mut by_id: BTreeMap<Id, Vec<LiveRow>> = BTreeMap::new();
        for row in rows {
            let id = match &row {
                LiveRow::Segment(segment, row) => segment.record(*row).map(|record| *record.id()),
                LiveRow::Head(head, row) => head.record(*row).map(|record| *record.id()),
            };
            if let Some(id) = id {
                by_id.entry(id).or_default().push(row);
            }
        }
        let mut dropped = 0;
        for (id, mut rows) in by_id.into_iter().filter(|(_, rows)| rows.len() > 1) {
            let first = rows.swap_remove(0).log();
            rows.retain(|row| row.log() != first);
            dropped += rows.len() as u64;
            let (mut writing, mut batch_bytes) = (self.shelf.writer.lock(), 0);
            for row in rows {
                batch_bytes = writing.gather_deletion(id, row).ok_or(CommitError::ReadOnly)?;
            }
            drop(writing);
            if batch_bytes >= SYNC_BYTES_MAX {
                self.flush_deletions(view)?;
            }
        }
        Ok(dropped)
    }

    fn flush_deletions(&self, view: &ShelfView) -> Result<(), CommitError> {
        flush(&self.shelf, &mut self.shelf.writer.lock(), view)
    }
}

fn ids_of_segment(segment: &Segment, number: usize) -> impl Iterator<Item = IdEntry> + '_ {
    let entries = (0..).map_while(|at| segment.file.id_entry(at));
    let live = entries.filter(|(_, row)| !segment.dead.dead.get(*row));
    live.map(move |(hash, row)| (hash, number, row))
}

fn ids_of_head(head: &Arc<Head>, number: usize) -> Vec<IdEntry> {
    let view = HeadView::published(head);
    let live = (0..head.published()).filter(|&row| !view.is_dead(row));
    live.filter_map(|row| Some((head.row(row)?.hash, number, row))).collect()
}
