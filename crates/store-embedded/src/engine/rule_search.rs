//! The searches of the writer: they find the records that a write replaces or deletes, and the
//! records that forbid the write.
//!
//! A write that searches more than [`SEARCH_STEP`] rows takes several steps. Other writes are
//! committed between the steps. The searches of the last write of a batch are kept for that write's
//! next step. Each search keeps its first snapshot, and each record that another write puts between
//! two steps is compared with the query. So the write has the same effect as if all its searches
//! had run in the last step.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::limits::SEARCH_STEP;
use hark_archive::query::merge::{AnySource, SnapshotSearch};
use hark_archive::query::prepared::{PreparedQuery, TermMap as _};
use hark_archive::{
    CommitError, Id, Position, Query, Record, Search, SearchError, SearchProgress, Write,
};

use super::shelf_view::{LiveRow, ShelfView};
use crate::head::HeadView;
use crate::term::TermHasher;

/// Maximum number of remembered slots. A slot is an author, a kind and at most one label, and has
/// at most one current record, the holder.
const SLOTS_MAX: usize = 4_096;
/// Maximum length of the label value of a remembered slot.
const SLOT_BYTES_MAX: usize = 256;

/// Identifies a write, so that its next step finds its searches.
#[derive(Debug, PartialEq)]
pub(super) enum WriteKey {
    Put(Id),
    /// The query of an erase, without its limit, because each step lowers the limit.
    Erase(Box<Query>),
}

impl WriteKey {
    /// Returns the key of a write; `None` if its record is invalid.
    pub(super) fn of(write: &Write) -> Option<Self> {
        match write {
            Write::Put(bytes) => Record::new(bytes).ok().map(|record| Self::Put(*record.id())),
            Write::Erase(query) => Some(Self::Erase(Box::new(unlimited(query)))),
        }
    }
}

/// Returns a query without its limit.
pub(super) fn unlimited(query: &Query) -> Query {
    Query { limit: usize::MAX, ..query.clone() }
}

/// One search of a write, and the records that it has found.
struct RuleSearch {
    query: Query,
    /// The rest of the search; `None` once the search is complete.
    rest: Option<SnapshotSearch>,
    found: Vec<Position>,
}

impl RuleSearch {
    /// Searches until `wanted` records are found or `left` rows are visited. Returns false if the
    /// search must continue in the next step.
    fn advance(&mut self, wanted: usize, left: &mut u64) -> Result<bool, SearchError> {
        let found = &mut self.found;
        while found.len() < wanted
            && let Some(search) = &mut self.rest
        {
            if *left == 0 {
                return Ok(false);
            }
            let before = search.visited();
            let progress = search.slice(*left, &mut |record| {
                found.push(Position::of(record));
                if found.len() < wanted {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            let is_spent = progress == SearchProgress::Paused && found.len() < wanted;
            *left = if is_spent { 0 } else { left.saturating_sub(search.visited() - before) };
            if progress != SearchProgress::Paused {
                self.rest = None;
            }
        }
        Ok(true)
    }
}

/// The searches that a commit makes for its writes.
#[derive(Default)]
pub(super) struct RuleSearches {
    /// The searches of the current write.
    current: Vec<RuleSearch>,
    /// Number of rows that the current write may still visit in this step.
    left: u64,
    /// The write that continues in a later step, with its searches.
    paused: Option<(WriteKey, Vec<RuleSearch>)>,
    /// For each remembered slot, the only record that may hold the slot. Only a put can change the
    /// holder.
    slots: HashMap<Box<[u8]>, Position>,
}

impl RuleSearches {
    /// Begins a step of a write. `key` is given only for the last write of a batch. If the paused
    /// searches belong to this write, they continue; otherwise they are dropped.
    pub(super) fn begin(&mut self, key: Option<&WriteKey>) {
        self.left = SEARCH_STEP;
        self.current.clear();
        if let Some(key) = key
            && let Some((paused, searches)) = self.paused.take()
            && paused == *key
        {
            self.current = searches;
        }
    }

    /// Ends a step of a write. With a `key`, the searches are kept for the next step. Returns the
    /// number of visited rows.
    pub(super) fn end(&mut self, key: Option<WriteKey>) -> u64 {
        let current = std::mem::take(&mut self.current);
        if let Some(key) = key {
            self.paused = Some((key, current));
        }
        SEARCH_STEP - self.left
    }

    /// Forgets all searches and slots, because the current batch could not be written or another
    /// process has written to the shelf.
    pub(super) fn forget(&mut self) {
        *self = Self { left: self.left, ..Self::default() };
    }

    /// Compares a new record with the paused searches, and adds the record to each search that
    /// matches.
    pub(super) fn note_put(&mut self, record: &Record<'_>) {
        for search in self.paused.iter_mut().flat_map(|(_, searches)| searches) {
            if search.query.matches(record) {
                search.found.push(Position::of(record));
            }
        }
    }

    /// Remembers that no record except `holder` can be in the slot.
    pub(super) fn note_holder(&mut self, slot: &Query, holder: Position) {
        let Some(name) = name_of(slot) else { return };
        if self.slots.len() >= SLOTS_MAX && !self.slots.contains_key(&name) {
            self.slots.clear();
        }
        self.slots.insert(name, holder);
    }

    /// Returns the only record that can be in a slot, if the slot is remembered.
    fn holder(&self, slot: &Query) -> Option<&Position> {
        self.slots.get(&name_of(slot)?)
    }
}

/// Returns a key for the slot of an author, a kind and at most one label.
fn name_of(slot: &Query) -> Option<Box<[u8]>> {
    let ([author], [kind]) = (slot.authors.as_deref()?, slot.kinds.as_deref()?) else {
        return None;
    };
    let plain = Query {
        authors: slot.authors.clone(),
        kinds: slot.kinds.clone(),
        labels: slot.labels.clone(),
        ..Query::default()
    };
    let mut name = [&author[..], &kind.to_le_bytes()].concat();
    match slot.labels.as_slice() {
        [] => {}
        [label] => match label.values.as_slice() {
            [value] if value.len() <= SLOT_BYTES_MAX => {
                name.push(label.name);
                name.extend_from_slice(value);
            }
            _ => return None,
        },
        _ => return None,
    }
    (*slot == plain).then(|| name.into())
}

/// The records that a write can find: the records of a view, and the records of the batch being
/// gathered.
pub(super) struct WrittenRecords<'a> {
    pub(super) view: &'a ShelfView,
    pub(super) frames: &'a Arc<Vec<u8>>,
    pub(super) terms: &'a TermHasher,
}

impl WrittenRecords<'_> {
    /// Finds a live record by its id.
    fn locate(&self, id: &Id) -> Option<LiveRow> {
        self.view.locate(id, self.terms.id(id), true)
    }

    /// Begins a search; `None` if no record can match.
    fn search(&self, query: &Query) -> Option<SnapshotSearch> {
        // Most queries of rules match no record. This cheap test finds such queries.
        let kinds = query.kinds.as_deref().filter(|kinds| kinds.is_sorted());
        let term = cheapest_term(query, self.terms);
        if query.ids.is_none() && !may_match(self.view, kinds, term) {
            return None;
        }
        let questions = PreparedQuery::opened(query.clone(), self.terms);
        let head = HeadView::with_batch(&self.view.active, self.frames);
        let head: Arc<dyn AnySource> = Arc::new(head);
        Some(SnapshotSearch::new(&self.view.writing, &head, questions, 0))
    }
}

impl RuleSearches {
    /// Finds the matching records in the writer's view, which includes the current batch. Stops
    /// once `wanted` records are found. Returns `None` if the write must continue in its next step.
    pub(super) fn find(
        &mut self,
        among: &WrittenRecords<'_>,
        query: &Query,
        wanted: usize,
    ) -> Result<Option<Vec<Position>>, CommitError> {
        let known = self.current.iter().position(|search| search.query == *query);
        if known.is_none() {
            let Some(search) = among.search(query) else { return Ok(Some(Vec::new())) };
            let (query, rest) = (query.clone(), Some(search));
            self.current.push(RuleSearch { query, rest, found: Vec::new() });
        }
        let at = known.unwrap_or(self.current.len() - 1);
        let failed = |error: SearchError| CommitError::Stopped(error.to_string());
        let search = &mut self.current[at];
        loop {
            if !search.advance(wanted, &mut self.left).map_err(failed)? {
                return Ok(None);
            }
            if known.is_some() {
                // Since the first step, other writes may have deleted some of these records. The
                // search reads the snapshot of the first step, in which such records are live.
                self.left = self.left.saturating_sub(search.found.len() as u64);
                search.found.retain(|at| among.locate(&at.id).is_some());
            }
            if search.found.len() >= wanted || search.rest.is_none() {
                return Ok(Some(search.found.iter().take(wanted).copied().collect()));
            }
        }
    }

    /// Finds the records that hold a slot.
    pub(super) fn holders(
        &mut self,
        among: &WrittenRecords<'_>,
        slot: &Query,
    ) -> Result<Option<Vec<Position>>, CommitError> {
        if let Some(&holder) = self.holder(slot) {
            let row = among.locate(&holder.id);
            let is_there = row.is_some_and(|row| row.matches(slot, among.frames));
            return Ok(Some(is_there.then_some(holder).into_iter().collect()));
        }
        self.find(among, slot, slot.limit)
    }
}

/// Whether a record of these kinds may have the term, in the writer's view. `false` is certain;
/// `true` is not.
pub(super) fn may_match(view: &ShelfView, kinds: Option<&[u32]>, term: Option<u64>) -> bool {
    HeadView::writing(&view.active).may_match(kinds, term) || view.writing.may_match(kinds, term)
}

/// Returns a term that every matching record must have, if the query implies such a term.
fn cheapest_term(query: &Query, terms: &TermHasher) -> Option<u64> {
    let label = query.labels.iter().find_map(|label| match label.values.as_slice() {
        [one] => Some(terms.label(label.name, one)),
        _ => None,
    });
    label.or_else(|| match query.authors.as_deref() {
        Some([one]) => Some(terms.author(one)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use hark_archive::{Outcome, RecordHeader, Store as _};
    use hark_codec::hex::encode_32 as hex;
    use hark_networks::nostr::rules::NostrRules;
    use hark_testkit::disk::scratch;
    use hark_testkit::random::encode;

    use super::*;
    use crate::engine::embedded_store::EmbeddedStore;
    use crate::options::EmbeddedOptions;

    fn event(number: u16, author: u8, kind: u32, names: &[[u8; 32]]) -> Write {
        let mut id = [7; 32];
        id[..2].copy_from_slice(&number.to_be_bytes());
        let time = 1_000 + u64::from(number);
        let labels: Vec<_> = names.iter().map(|id| (b'e', hex(id).to_vec())).collect();
        let head = RecordHeader { id, time, author: Some([author; 32]), kind, expires: None };
        Write::Put(encode(&head, &labels))
    }

    fn id_of(write: &Write) -> [u8; 32] {
        let Write::Put(bytes) = write else { panic!("a put") };
        *Record::new(bytes).unwrap().id()
    }

    /// Number of records of segments that were read since the store was opened.
    fn read(store: &EmbeddedStore) -> u64 {
        let view = store.shelf.view.load();
        let marks = view.segments.iter().map(|segment| &segment.dead.verified);
        marks.map(|read| read.ones().count() as u64).sum()
    }

    #[test]
    fn a_deletion_of_what_is_of_others_reads_none_of_their_records() {
        let dir = scratch("rules-foreign");
        let options = EmbeddedOptions {
            seal_records: 500,
            merge_fan_in: 1_000,
            background: false,
            ..EmbeddedOptions::default()
        };
        let open = || EmbeddedStore::open(&dir, Box::new(NostrRules), options.clone()).unwrap();
        let store = open();
        // In every segment, one record in 50 has author 2.
        let of = |n: u16| if n.is_multiple_of(50) { 2 } else { 1 };
        let all: Vec<Write> = (0..3_000).map(|n| event(n, of(n), 1, &[])).collect();
        all.chunks(100).for_each(|part| assert!(store.commit(part).is_ok()));
        store.run_due_maintenance().unwrap();
        drop(store);
        let store = open();
        assert!(store.stats().segments >= 5);
        let before = read(&store);
        let foreign: Vec<_> =
            (0..3_000).filter(|n| of(*n) == 1).map(|n| id_of(&all[usize::from(n)])).collect();
        let done = store.commit(&[event(5_000, 2, 5, &foreign[..2_500])]).unwrap();
        assert!(matches!(done.outcomes[..], [Outcome::Stored { .. }]));
        assert_eq!((done.erased.len(), read(&store) - before), (0, 0), "read");
        // A deletion reads only the records that it names and that have the same author.
        let mut named = foreign[..2_000].to_vec();
        named.extend([id_of(&all[50]), id_of(&all[2_500])]);
        let done = store.commit(&[event(5_001, 2, 5, &named)]).unwrap();
        assert_eq!((done.erased.len(), read(&store) - before), (2, 2), "read");
        assert_eq!(store.count(&Query::default()).unwrap(), Some(3_000));
        drop(store);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
