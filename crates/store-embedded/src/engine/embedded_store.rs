//! The embedded store: a shelf as a store of the archive.

use std::sync::Arc;
use std::thread::JoinHandle;

use hark_archive::limits::SEARCH_BATCH;
use hark_archive::query::explain::Explanation;
use hark_archive::query::merge::{SnapshotSearch, count_all, explain_all};
use hark_archive::query::prepared::{PreparedQuery, TermMap as _};
use hark_archive::query::ranked::{RankBound, RankedSearch};
use hark_archive::query::source::Source;
use hark_archive::store::ranges::IdRanges;
use hark_archive::store::{RetentionNote, SpaceBounds, StoreStats, commit_whole};
use hark_archive::{
    CommitError, CommitResult, Id, Query, Record, Search, SearchError, Store, Write,
};

use super::commit::commit_piece;
use super::faults::{check_reads, damaged_files};
use super::id_ranges::id_ranges;
use super::label_values::label_values;
use super::retention_notes;
use super::search::WatchedSearch;
use super::shelf::OpenShelf;
use super::stats::stats;
use super::tail::SYNC_BYTES_MAX;
use crate::head::{self, HeadView, ROWS_MAX};
use crate::log::BODY_MAX;
use crate::segment::segment_view::SegmentView;
use crate::space::pressure::{deletes_follow, set_bounds};
use crate::space::writes::would_lack;

/// The embedded archive of one network. Dropping the store ends its threads. A store needs no other
/// closing, since acknowledged writes are durable.
///
/// ```
/// use hark_archive::effects::KeepAll;
/// use hark_archive::{RecordHeader, Store, Write};
/// use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
///
/// let dir = std::env::temp_dir().join(format!("hark-doc-store-{}", std::process::id()));
/// let store = EmbeddedStore::open(&dir, Box::new(KeepAll), EmbeddedOptions::default())?;
/// let head = RecordHeader { id: [1; 32], time: 7, author: None, kind: 0, expires: None };
/// let mut bytes = Vec::new();
/// hark_codec::record::write(&mut bytes, &head, b"the message", std::iter::empty());
/// store.commit(&[Write::Put(bytes.into())])?;
///
/// // The record is durable, so another process finds the record at once.
/// let reader = EmbeddedStore::open_read_only(&dir, EmbeddedOptions::default())?;
/// assert!(reader.knows(&[1; 32])?);
/// drop((store, reader));
/// std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EmbeddedStore {
    pub(crate) shelf: Arc<OpenShelf>,
    /// Notes on faults that were found and repaired when the shelf was opened.
    pub(crate) notes: Vec<String>,
    /// The reason for refusing all writes, if the shelf could be opened only for reading.
    pub(crate) refusal: Option<String>,
    pub(crate) thread: Option<JoinHandle<()>>,
    /// The thread of the slow check.
    pub(crate) scrubs: Option<JoinHandle<()>>,
}

impl EmbeddedStore {
    /// The reason why the store was opened only for reading and refuses all writes; `None` if it
    /// accepts writes.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// One sentence for the operator for each fault that was found and repaired when the shelf was
    /// opened.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.shelf.jobs.stop();
        for thread in [self.thread.take(), self.scrubs.take()].into_iter().flatten() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}

impl Store for EmbeddedStore {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        commit_whole(writes, |writes| self.commit_some(writes))
    }

    fn commit_some(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        if let Some(refusal) = &self.refusal {
            return Err(CommitError::Unavailable(refusal.clone()));
        }
        for (index, write) in writes.iter().enumerate() {
            if let Write::Put(bytes) = write {
                if bytes.len() > BODY_MAX {
                    return Err(CommitError::TooLarge { bytes: bytes.len(), bytes_max: BODY_MAX });
                }
                Record::new(bytes)
                    .and_then(|record| record.check())
                    .map_err(|source| CommitError::Record { index, source })?;
            }
        }
        let mut done = CommitResult::default();
        if writes.is_empty() {
            // An empty batch still runs all steps before the sync, such as the check for disk
            // space.
            commit_piece(&self.shelf, writes, true, &mut done)?;
        }
        let mut rest = writes;
        while !rest.is_empty() && !done.unfinished {
            let (mut bytes, mut head_bytes) = (0, 0);
            let head_bytes_max = self.shelf.files.options().head_bytes_max / 4;
            let fits = rest.iter().take(ROWS_MAX / 2).take_while(|write| {
                let fits = bytes < SYNC_BYTES_MAX && head_bytes <= head_bytes_max;
                if let Write::Put(record) = write {
                    bytes += record.len();
                    head_bytes += head::bytes_of_record(record, self.shelf.files.terms());
                }
                fits
            });
            let piece = &rest[..fits.count()];
            let durable = done.outcomes.len();
            let is_end = piece.len() == rest.len();
            if let Err(error) = commit_piece(&self.shelf, piece, is_end, &mut done) {
                // Writes that are already stored must not be reported as failed. If the error
                // persists, the next call returns the error.
                done.cut(durable);
                return if durable > 0 { Ok(done) } else { Err(error) };
            }
            if done.searched >= SEARCH_BATCH {
                break;
            }
            rest = &writes[done.outcomes.len()..];
        }
        Ok(done)
    }

    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        let (view, before) = (self.shelf.view.load(), self.shelf.view.faults());
        let known = view.locate(id, self.shelf.files.terms().id(id), false).is_some();
        check_reads(&self.shelf, &view, &before, || view.trouble())?;
        Ok(known)
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        let view = self.shelf.view.load_full();
        let (head, seq) = view.now();
        let open = |query: Query, bound: Option<&Arc<RankBound>>| {
            let mut questions = PreparedQuery::opened(query, self.shelf.files.terms());
            if let Some(bound) = bound {
                questions = questions.into_iter().map(|one| one.with_rank(bound)).collect();
            }
            let search = SnapshotSearch::new(&view.parts, &head, questions, seq);
            let (view, shelf) = (Arc::clone(&view), Arc::clone(&self.shelf));
            Box::new(WatchedSearch { search, view, shelf })
        };
        let Some(words) = query.ranking() else { return Ok(open(query.clone(), None)) };
        let bound = RankBound::new(words);
        let search = open(RankedSearch::unranked(query), Some(&bound));
        let (shelf, view, head) = (Arc::clone(&self.shelf), Arc::clone(&view), Arc::clone(&head));
        let read = move |ids, from, to| {
            let query = Query { ids: Some(ids), from, to, ..Query::default() };
            let questions = PreparedQuery::opened(query, shelf.files.terms());
            let search = SnapshotSearch::new(&view.parts, &head, questions, seq);
            let (view, shelf) = (Arc::clone(&view), Arc::clone(&shelf));
            Ok(Box::new(WatchedSearch { search, view, shelf }) as Box<dyn Search>)
        };
        Ok(Box::new(RankedSearch::new(query, bound, search, Box::new(read))))
    }

    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError> {
        let query = Query { after: None, limit: usize::MAX, ..query.clone() };
        let questions = PreparedQuery::opened(query.clone(), self.shelf.files.terms());
        let (view, before) = (self.shelf.view.load(), self.shelf.view.faults());
        let count = count_all(&view.parts, &view.now().0, questions, visited);
        check_reads(&self.shelf, &view, &before, || view.parts.trouble(&query))?;
        Ok(count)
    }

    fn ranges(&self, query: &Query) -> Result<Option<Box<dyn IdRanges>>, SearchError> {
        let mut query = query.clone();
        query.normalise();
        Ok(id_ranges(&self.shelf, &query))
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
        let terms = self.shelf.files.terms();
        if !terms.labels().contains(&name) {
            return Err(SearchError::not_listed(name));
        }
        let (view, before) = (self.shelf.view.load_full(), self.shelf.view.faults());
        label_values(&view, terms, name, each);
        check_reads(&self.shelf, &view, &before, || view.trouble())
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
        if self.refusal.is_some() {
            // A store that refuses writes cannot delete expired records, so the list is empty.
            return Ok(Vec::new());
        }
        let (view, before) = (self.shelf.view.load_full(), self.shelf.view.faults());
        let mut ids = Vec::new();
        for head in view.heads() {
            gather_expired(&HeadView::published(head), now, limit, &mut ids);
        }
        for segment in view.segments.iter().rev() {
            let segment = Arc::clone(segment);
            gather_expired(&SegmentView { segment, writing: false }, now, limit, &mut ids);
        }
        check_reads(&self.shelf, &view, &before, || view.trouble())?;
        Ok(ids)
    }

    fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
        let questions = PreparedQuery::opened(query.clone(), self.shelf.files.terms());
        let view = self.shelf.view.load();
        Ok(explain_all(&view.parts, &view.now().0, questions))
    }

    fn note(&self, note: RetentionNote) -> Result<Option<u64>, SearchError> {
        let read = retention_notes::read(self.shelf.files.disk(), self.shelf.files.dir(), note);
        read.map_err(|error| SearchError::Failed(error.to_string()))
    }

    fn set_note(&self, note: RetentionNote, number: Option<u64>) -> Result<(), CommitError> {
        if let Some(refusal) = &self.refusal {
            return Err(CommitError::Unavailable(refusal.clone()));
        }
        let written =
            retention_notes::write(self.shelf.files.disk(), self.shelf.files.dir(), note, number);
        written.map_err(|error| CommitError::Unavailable(error.to_string()))
    }

    fn deletes_follow(&self, follow: bool) {
        let OpenShelf { jobs, view, .. } = &*self.shelf;
        deletes_follow(jobs, &view.load(), follow);
    }

    fn set_space(&self, bounds: &SpaceBounds) {
        set_bounds(&self.shelf.files, &self.shelf.jobs, bounds);
    }

    fn medium(&self) -> &'static str {
        "the disk"
    }

    fn trouble(&self) -> Option<String> {
        let known = self.refusal.clone().or_else(|| self.shelf.jobs.space().lacking());
        known.or_else(|| would_lack(&self.shelf.files, &self.shelf.jobs))
    }

    fn damage(&self) -> (u64, u64) {
        let OpenShelf { files, jobs, view, .. } = &*self.shelf;
        let damaged = damaged_files((files, jobs), &view.load()).len();
        (files.damage().count(), damaged as u64)
    }

    fn stats(&self) -> StoreStats {
        stats(&self.shelf)
    }
}

fn gather_expired(source: &impl Source, now: u64, limit: usize, ids: &mut Vec<Id>) {
    let mut rows = Vec::new();
    source.expired(now, &mut rows);
    let alive = rows.into_iter().filter(|&row| !source.is_dead(row));
    let room = limit.saturating_sub(ids.len());
    ids.extend(alive.filter_map(|row| source.record(row).map(|r| *r.id())).take(room));
}
