//! The model store: a sorted map that is searched by a loop. This store is slow, but easy to
//! understand. Tests compare every other store with this model.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use hark_codec::id_sum::IdTally;
use hark_codec::record::{Id, Key, Record};
use parking_lot::Mutex;

use super::ranges::IdRanges;
use super::{
    CommitError, CommitResult, Outcome, RetentionNote, Search, SearchError, SearchProgress, Store,
    StoreStats, Write, label_values,
};
use crate::effects::{Effects, Rules};
use crate::query::explain::{Explanation, SourcePlan};
use crate::query::plan::Set;
use crate::query::{Order, Position, Query, SearchRank, WordCondition};

/// A store that keeps everything in memory. It has an index only for ids and for authors.
pub struct MemoryStore {
    rules: Box<dyn Rules>,
    state: Mutex<MemoryState>,
    /// Maximum number of records that one [`Store::commit_some`] deletes.
    erase_step: usize,
}

type RecordMap = BTreeMap<(u64, Id), Arc<[u8]>>;

#[derive(Default)]
struct MemoryState {
    /// All records, by time, then id.
    records: RecordMap,
    times: HashMap<Id, u64>,
    /// The only index for queries: the records of each author. Every put needs it, because the
    /// rules query the author's records.
    authors: HashMap<Key, RecordMap>,
    notes: BTreeMap<RetentionNote, u64>,
    seq: u64,
}

impl MemoryStore {
    /// Makes an empty store.
    pub fn new(rules: impl Rules + 'static) -> Self {
        Self { rules: Box::new(rules), state: Mutex::default(), erase_step: usize::MAX }
    }

    /// Sets the maximum number of records that one step deletes. Other stores have such a maximum
    /// to let other writes run between two steps.
    #[must_use]
    pub fn with_erase_step(self, erase_step: usize) -> Self {
        Self { erase_step, ..self }
    }

    /// Returns the positions of all matching records in the query's order, ignoring cursor and
    /// limit.
    pub fn matching(&self, query: &Query) -> Vec<Position> {
        let query = Query { after: None, ..normal(query) };
        let state = self.state.lock();
        let mut found = state.find(&query);
        if let Some(words) = query.ranking() {
            found.sort_by_cached_key(|bytes| words.rank(&view(bytes)));
        }
        found.into_iter().map(|bytes| position(bytes)).collect()
    }
}

fn view(bytes: &[u8]) -> Record<'_> {
    Record::new(bytes).expect("records were checked when they were put")
}

fn position(bytes: &[u8]) -> Position {
    Position::of(&view(bytes))
}

impl MemoryState {
    /// Returns the matching records in the query's order, and applies the cursor but not the limit.
    fn find(&self, query: &Query) -> Vec<&Arc<[u8]>> {
        let behind =
            |at: &Position| query.after.is_none_or(|after| query.order.compare(&after, at).is_lt());
        let matching = |bytes: &&Arc<[u8]>| behind(&position(bytes)) && query.matches(&view(bytes));
        if query.from > query.to {
            return Vec::new();
        }
        let window = (query.from, [0; 32])..=(query.to, [0xff; 32]);
        let mut found: Vec<_> = match &query.authors {
            Some(authors) => authors
                .iter()
                .filter_map(|author| self.authors.get(author))
                .flat_map(|records| records.range(window.clone()))
                .map(|(_, bytes)| bytes)
                .filter(matching)
                .collect(),
            None => self.records.range(window).map(|(_, bytes)| bytes).filter(matching).collect(),
        };
        found.sort_by(|a, b| query.order.compare(&position(a), &position(b)));
        found
    }

    fn remove(&mut self, id: &Id) -> bool {
        let Some(time) = self.times.remove(id) else { return false };
        let removed = self.records.remove(&(time, *id));
        if let Some(author) = removed.as_ref().and_then(|bytes| view(bytes).author()) {
            self.authors.entry(*author).or_default().remove(&(time, *id));
        }
        removed.is_some()
    }

    /// Deletes the records that match, up to the number that the step allows.
    fn erase(&mut self, query: &Query, step: &mut MemoryEraseStep) -> u64 {
        let found = self.find(query);
        let ids: Vec<Id> = found.iter().take(query.limit).map(|b| *view(b).id()).collect();
        let count = ids.len().min(step.left);
        step.unfinished |= count < ids.len();
        step.left -= count;
        for id in &ids[..count] {
            self.remove(id);
            step.erased.push(*id);
        }
        count as u64
    }

    fn put(&mut self, bytes: &[u8], effects: &Effects, step: &mut MemoryEraseStep) -> Outcome {
        let record = view(bytes);
        if self.times.contains_key(record.id()) {
            return Outcome::Duplicate;
        }
        for forbidding in effects.forbidding() {
            if !self.find(&forbidding.query()).is_empty() {
                return Outcome::Refused(forbidding.refusal);
            }
        }
        let here = position(bytes);
        if let Some(slot) = &effects.slot {
            let newer =
                |other: &&Arc<[u8]>| Order::NewestFirst.compare(&position(other), &here).is_lt();
            if self.find(slot).iter().any(newer) {
                return Outcome::Superseded;
            }
        }
        let mut erased = 0;
        for query in effects.erases.iter().chain(&effects.slot) {
            erased += self.erase(query, step);
        }
        if step.unfinished {
            return Outcome::Erased(erased);
        }
        self.seq += 1;
        let at = (here.time, here.id);
        let kept: Arc<[u8]> = bytes.into();
        self.times.insert(here.id, here.time);
        if let Some(author) = record.author() {
            self.authors.entry(*author).or_default().insert(at, Arc::clone(&kept));
        }
        self.records.insert(at, kept);
        Outcome::Stored { seq: self.seq }
    }
}

/// Returns whether the gate and the expiry of a query let a reader see a record.
fn shows(query: &Query, bytes: &[u8]) -> bool {
    let record = view(bytes);
    !query.not_kinds.contains(&record.kind())
        && query.gate.as_ref().is_none_or(|gate| gate.is_visible(&record))
}

/// The number of records that a commit may still delete, and the records that it has deleted.
struct MemoryEraseStep {
    left: usize,
    unfinished: bool,
    /// The ids that the current write has deleted.
    erased: Vec<Id>,
}

fn normal(query: &Query) -> Query {
    let mut query = query.clone();
    query.normalise();
    query
}

impl Store for MemoryStore {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        super::commit_whole(writes, |writes| self.commit_some(writes))
    }

    fn commit_some(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        let mut state = self.state.lock();
        let mut effects = Effects::default();
        for (index, write) in writes.iter().enumerate() {
            if let Write::Put(bytes) = write {
                Record::new(bytes)
                    .and_then(|record| record.check())
                    .map_err(|source| CommitError::Record { index, source })?;
            }
        }
        let mut done = CommitResult::default();
        let mut step =
            MemoryEraseStep { left: self.erase_step, unfinished: false, erased: Vec::new() };
        for (at, write) in writes.iter().enumerate() {
            done.outcomes.push(match write {
                Write::Put(bytes) => {
                    effects.clear();
                    self.rules.effects(&view(bytes), &mut effects);
                    effects.normalise();
                    state.put(bytes, &effects, &mut step)
                }
                Write::Erase(query) => Outcome::Erased(state.erase(&normal(query), &mut step)),
            });
            done.erased.extend(step.erased.drain(..).map(|id| (at, id)));
            if step.unfinished {
                done.unfinished = true;
                break;
            }
        }
        Ok(done)
    }

    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        Ok(self.state.lock().times.contains_key(id))
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        let query = normal(query);
        let state = self.state.lock();
        // A query with limit 0 need not report whether more records match.
        let enough = if query.limit == 0 { 0 } else { query.limit.saturating_add(1) };
        let mut found = state.find(&query);
        if let Some(words) = query.ranking() {
            found.sort_by_cached_key(|bytes| words.rank(&view(bytes)));
        }
        let found = found.into_iter().take(enough).cloned().collect();
        Ok(Box::new(MemorySearch {
            limit: query.limit,
            records: found,
            ranking: query.ranking().cloned(),
            delivered: 0,
            seq: state.seq,
            visited: state.records.values().filter(|bytes| shows(&query, bytes)).count() as u64,
        }))
    }

    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError> {
        let query = Query { after: None, ..normal(query) };
        let count = self.state.lock().find(&query).len() as u64;
        *visited += count;
        Ok(Some(count))
    }

    fn ranges(&self, query: &Query) -> Result<Option<Box<dyn IdRanges>>, SearchError> {
        if query.window_without().is_none() {
            return Ok(None);
        }
        let mut items = self.matching(query);
        items.sort_unstable_by_key(|at| (at.time, at.id));
        Ok(Some(Box::new(MemoryRanges { records: items, visited: Cell::new(0) })))
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
        let state = self.state.lock();
        let records = state.records.values().map(|bytes| view(bytes));
        for (value, count) in label_values::count(records, name) {
            each(value, count);
        }
        Ok(())
    }

    fn note(&self, note: RetentionNote) -> Result<Option<u64>, SearchError> {
        Ok(self.state.lock().notes.get(&note).copied())
    }

    fn set_note(&self, note: RetentionNote, number: Option<u64>) -> Result<(), CommitError> {
        let notes = &mut self.state.lock().notes;
        match number {
            Some(number) => notes.insert(note, number),
            None => notes.remove(&note),
        };
        Ok(())
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
        let state = self.state.lock();
        let expired = |bytes: &&Arc<[u8]>| view(bytes).expires().is_some_and(|at| at <= now);
        Ok(state.records.values().filter(expired).take(limit).map(|b| *view(b).id()).collect())
    }

    fn explain(&self, _: &Query) -> Result<Explanation, SearchError> {
        let rows = self.state.lock().records.len() as u64;
        let step = SourcePlan {
            source: "memory".into(),
            rows,
            driver: "every record".into(),
            intersect: Vec::new(),
            residual: vec!["every condition".into()],
            estimate: rows,
        };
        Ok(Explanation {
            plan: "every record".into(),
            steps: vec![step],
            estimate: rows,
            details: Vec::new(),
        })
    }

    fn stats(&self) -> StoreStats {
        let state = self.state.lock();
        StoreStats {
            records: state.records.len() as u64,
            head_records: state.records.len() as u64,
            bytes: state.records.values().map(|bytes| bytes.len() as u64).sum(),
            oldest: state.records.keys().next().map(|(time, _)| *time),
            newest: state.records.keys().next_back().map(|(time, _)| *time),
            ..StoreStats::default()
        }
    }
}

/// The records that matched when `ranges` was called, oldest first.
struct MemoryRanges {
    records: Vec<Position>,
    visited: Cell<u64>,
}

impl MemoryRanges {
    fn range(&self, from: &Position, to: &Position) -> &[Position] {
        let records = &self.records;
        let index = |at: &Position| records.partition_point(|o| (o.time, o.id) < (at.time, at.id));
        let range = records.get(index(from)..index(to)).unwrap_or_default();
        self.visited.set(self.visited.get() + 1 + range.len() as u64);
        range
    }
}

impl IdRanges for MemoryRanges {
    fn before(&self, at: &Position) -> IdTally {
        let mut tally = IdTally::default();
        let start = Position { time: 0, id: [0; 32] };
        self.range(&start, at).iter().for_each(|at| tally.add(&at.id));
        tally
    }

    fn items(&self, from: &Position, to: &Position, max: usize) -> Vec<Position> {
        self.range(from, to).iter().take(max).copied().collect()
    }

    fn visited(&self) -> u64 {
        self.visited.get()
    }

    fn check(&self) -> Result<(), SearchError> {
        Ok(())
    }
}

/// A search that found all its results at its start.
struct MemorySearch {
    records: Vec<Arc<[u8]>>,
    ranking: Option<Arc<WordCondition>>,
    limit: usize,
    delivered: usize,
    seq: u64,
    visited: u64,
}

impl Search for MemorySearch {
    fn slice(
        &mut self,
        work: u64,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, SearchError> {
        for _ in 0..work.max(1) {
            if self.delivered == self.limit || self.delivered == self.records.len() {
                return Ok(SearchProgress::Done { more: self.delivered < self.records.len() });
            }
            let bytes = &self.records[self.delivered];
            self.delivered += 1;
            if sink(&view(bytes)).is_break() {
                return Ok(SearchProgress::Paused);
            }
        }
        Ok(SearchProgress::Paused)
    }

    fn seq(&self) -> u64 {
        self.seq
    }

    fn visited(&self) -> u64 {
        self.visited
    }

    fn driver(&self) -> Option<Set> {
        Some(Set::Time)
    }

    fn last_rank(&self) -> Option<SearchRank> {
        let last = self.records.get(self.delivered.checked_sub(1)?)?;
        self.ranking.as_ref()?.rank(&view(last))
    }
}
