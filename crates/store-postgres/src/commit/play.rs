//! Applies the writes of a batch, in order, to the stored records and to the batch's own puts.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use hark_archive::effects::Prohibition;
use hark_archive::limits::ERASE_STEP;
use hark_archive::{Id, Order, Outcome, Position, Query, Record, SearchProgress};
use hark_codec::record::Key as Author;

use super::batch::{PreparedPut, time};
use super::fetch::{FetchedState, SizedKey, SlotQuery};
use crate::error::StatementError;
use crate::line::TimelinePosition;
use crate::search::{Finders, SqlQuery};
use crate::session::DatabaseSession;
use crate::state::PostgresState;
use crate::time::IndexKey;

pub(super) struct BatchReplay<'a, 'p> {
    inner: &'a PostgresState,
    session: &'a mut DatabaseSession,
    fetched: FetchedState,
    position: TimelinePosition,
    /// The number of the newest put.
    seq: i64,
    /// The puts of this batch with their numbers, in order; `None` for a put that a later write of
    /// the batch has deleted.
    puts: Vec<Option<(i64, &'p PreparedPut<'p>)>>,
    /// For each id, the index of its put in `puts`.
    ids: HashMap<[u8; 32], usize>,
    by_author: HashMap<Author, Vec<usize>>,
    by_slot: HashMap<SlotQuery, Vec<usize>>,
    by_forbidding: HashMap<i64, Vec<usize>>,
    /// Keys of the records to delete. These records were stored before this batch.
    deleted: Vec<IndexKey>,
    deleted_ids: HashSet<[u8; 32]>,
    step: EraseLimits,
}

/// The deletions that a commit may still make, and the deletions of the current write. The bytes of
/// the deleted records are bounded as well, because a long record may have many tags, and the row
/// of a tag takes as long to delete as the row of a record.
struct EraseLimits {
    left: usize,
    bytes_left: usize,
    /// Whether more records are to be deleted than this commit may delete.
    unfinished: bool,
    /// Ids that the current write has deleted.
    erased: Vec<Id>,
}

/// Approximate maximum number of bytes of the records that one commit deletes.
const STEP_BYTES: usize = 1 << 20;

impl<'a, 'p> BatchReplay<'a, 'p> {
    pub(super) fn new(
        inner: &'a PostgresState,
        session: &'a mut DatabaseSession,
        fetched: FetchedState,
        position: TimelinePosition,
    ) -> Self {
        Self {
            inner,
            position,
            session,
            seq: fetched.seq,
            fetched,
            puts: Vec::new(),
            ids: HashMap::new(),
            by_author: HashMap::new(),
            by_slot: HashMap::new(),
            by_forbidding: HashMap::new(),
            deleted: Vec::new(),
            deleted_ids: HashSet::new(),
            step: EraseLimits {
                left: ERASE_STEP,
                bytes_left: STEP_BYTES,
                unfinished: false,
                erased: Vec::new(),
            },
        }
    }

    /// Whether the last write is only partly done.
    pub(super) fn is_unfinished(&self) -> bool {
        self.step.unfinished
    }

    /// Returns the ids of the records that the last write deleted, and empties their list.
    pub(super) fn erased(&mut self) -> std::vec::Drain<'_, Id> {
        self.step.erased.drain(..)
    }

    /// Returns the puts to store, the keys to delete, and the number of the last put.
    pub(super) fn end(self) -> (Vec<(i64, &'p PreparedPut<'p>)>, Vec<IndexKey>, i64) {
        (self.puts.into_iter().flatten().collect(), self.deleted, self.seq)
    }

    pub(super) fn put(&mut self, put: &'p PreparedPut<'p>) -> Result<Outcome, StatementError> {
        let id = put.record.id();
        let kept = self.fetched.known.contains(id) && !self.deleted_ids.contains(id);
        if kept || self.ids.contains_key(id) {
            return Ok(Outcome::Duplicate);
        }
        for there_is in put.effects.forbidding() {
            if self.is_there(&there_is)? {
                return Ok(Outcome::Refused(there_is.refusal));
            }
        }
        let mut holders = Vec::new();
        if let Some(slot) = &put.effects.slot {
            holders = self.find(slot)?;
            let here = put.key.position();
            let newer = |key: &IndexKey| Order::NewestFirst.compare(&key.position(), &here).is_lt();
            if holders.iter().any(newer) {
                return Ok(Outcome::Superseded);
            }
        }
        let mut erased = 0;
        for query in &put.effects.erases {
            erased += self.erase_step(query)?;
            if self.step.unfinished {
                return Ok(Outcome::Erased(erased));
            }
        }
        self.delete(&holders);
        self.seq += 1;
        let at = self.puts.len();
        self.puts.push(Some((self.seq, put)));
        self.ids.insert(*id, at);
        if let Some(author) = put.record.author() {
            self.by_author.entry(*author).or_default().push(at);
        }
        for slot in SlotQuery::of(put, &self.inner.shelf.terms) {
            self.by_slot.entry(slot).or_default().push(at);
        }
        if self.inner.shelf.rules.forbids(put.record.kind()) {
            for key in self.inner.shelf.terms.forbids(&put.record) {
                self.by_forbidding.entry(key).or_default().push(at);
            }
        }
        Ok(Outcome::Stored { seq: self.position.own(self.seq) })
    }

    pub(super) fn erase(&mut self, query: &Query) -> Result<u64, StatementError> {
        let mut query = query.clone();
        query.normalise();
        self.erase_step(&query)
    }

    /// Deletes matching records, up to the commit's limit.
    fn erase_step(&mut self, query: &Query) -> Result<u64, StatementError> {
        // One record beyond the limit shows whether more records match.
        let limit = query.limit.min(self.step.left + 1);
        let (mut found, cut) =
            self.find_some(&Query { limit, ..query.clone() }, self.step.bytes_left)?;
        found.truncate(limit);
        self.step.unfinished = cut || found.len() > self.step.left;
        found.truncate(self.step.left);
        self.step.left -= found.len();
        self.delete(&found);
        Ok(found.len() as u64)
    }

    /// Whether a forbidding record that `there_is` describes is stored, or was put by this batch.
    fn is_there(&mut self, there_is: &Prohibition<'_>) -> Result<bool, StatementError> {
        let key = self.inner.shelf.terms.forbidding(there_is);
        let query = there_is.query();
        let own = self.by_forbidding.get(&key).into_iter().flatten();
        let mut own = own.filter_map(|&at| self.puts[at]);
        if own.any(|(_, put)| query.matches(&put.record)) {
            return Ok(true);
        }
        let Some(body) = self.fetched.forbids.get(&key) else { return Ok(false) };
        let Ok(newest) = Record::new(body) else { return Ok(!self.find(&query)?.is_empty()) };
        if !self.deleted_ids.contains(newest.id()) && query.matches(&newest) {
            return Ok(true);
        }
        // The newest record with this key does not forbid the put. An earlier record can forbid the
        // put only if this batch deletes the newest record, or if the newest record has another
        // author.
        let is_theirs = newest.author() == Some(there_is.author) && newest.time() < there_is.from;
        if is_theirs { Ok(false) } else { Ok(!self.find(&query)?.is_empty()) }
    }

    /// Returns the keys of matching records, stored or put by this batch, in the query's order. If
    /// at least `limit` records match, at least `limit` keys are returned.
    fn find(&mut self, query: &Query) -> Result<Vec<IndexKey>, StatementError> {
        self.find_some(query, usize::MAX).map(|(found, _)| found)
    }

    /// Does the same as `find`, but stops after about `bytes_max` bytes of stored records. Also
    /// returns whether `bytes_max` ended the search.
    fn find_some(
        &mut self,
        query: &Query,
        bytes_max: usize,
    ) -> Result<(Vec<IndexKey>, bool), StatementError> {
        let (mut found, cut, own) = self.look_up(query, bytes_max)?;
        found.retain(|key| !self.deleted_ids.contains(&key.id));
        let behind =
            |at: &Position| query.after.is_none_or(|after| query.order.compare(&after, at).is_lt());
        let matching = |put: &&PreparedPut<'_>| {
            query.from <= query.to && behind(&put.key.position()) && query.matches(&put.record)
        };
        let own = own.into_iter().filter_map(|at| self.puts[at]).map(|(_, put)| put);
        found.extend(own.filter(matching).map(|put| put.key));
        found.sort_by(|a, b| query.order.compare(&a.position(), &b.position()));
        // A record in two of the slots was found twice.
        found.dedup();
        Ok((found, cut))
    }

    /// Returns the keys of stored records that match, whether `bytes_max` ended the search, and the
    /// indices of those puts of this batch that may match. Except in rare cases, this needs no
    /// query, because the records that the rules need were fetched before.
    fn look_up(
        &mut self,
        query: &Query,
        bytes_max: usize,
    ) -> Result<(Vec<IndexKey>, bool, Vec<usize>), StatementError> {
        let lookups = self.inner.layout.rule_lookups();
        let fetched = &self.fetched;
        if let Some(ids) = lookups.ids(query)
            && ids.iter().all(|id| fetched.named.contains_key(id))
        {
            let named = ids.iter().filter_map(|id| fetched.named.get(id)?.as_ref());
            let matching = named.filter(|record| record.matches(query, &self.inner.shelf.terms));
            let (found, cut) = self.left(matching.map(|record| record.found), bytes_max);
            let own = ids.iter().filter_map(|id| self.ids.get(id).copied());
            return Ok((found, cut, own.collect()));
        }
        if let Some(slots) = lookups.slots(query, &self.inner.shelf.terms)
            && slots.iter().all(|slot| fetched.slots.contains_key(slot))
        {
            let held = slots.iter().filter_map(|slot| fetched.slots.get(slot)).flatten();
            let within = |found: &&SizedKey| (query.from..=query.to).contains(&time(&found.key));
            let (found, cut) = self.left(held.filter(within).copied(), bytes_max);
            let own = slots.iter().filter_map(|slot| self.by_slot.get(slot)).flatten();
            return Ok((found, cut, own.copied().collect()));
        }
        let (found, cut) = self.search(query, bytes_max)?;
        let own = match query.authors.as_deref() {
            Some([author]) => self.by_author.get(author).cloned().unwrap_or_default(),
            _ => (0..self.puts.len()).collect(),
        };
        Ok((found, cut, own))
    }

    /// Returns the keys in `found` that this batch has not deleted, for up to about `bytes_max`
    /// bytes of records, and whether there are more such keys.
    fn left(
        &self,
        found: impl Iterator<Item = SizedKey>,
        bytes_max: usize,
    ) -> (Vec<IndexKey>, bool) {
        let (mut left, mut bytes) = (Vec::new(), 0_usize);
        for found in found.filter(|found| !self.deleted_ids.contains(&found.key.id)) {
            if bytes >= bytes_max {
                return (left, true);
            }
            bytes = bytes.saturating_add(found.bytes);
            left.push(found.key);
        }
        (left, false)
    }

    /// Returns the keys of stored records that match, and whether `bytes_max` ended the search.
    fn search(
        &mut self,
        query: &Query,
        bytes_max: usize,
    ) -> Result<(Vec<IndexKey>, bool), StatementError> {
        // The search also finds records that this batch deletes, so the limit is raised by their
        // number.
        let limit = query.limit.saturating_add(self.deleted.len());
        let query = Query { limit, budget: u64::MAX, ..query.clone() };
        // The search has no era, so it uses no cached records: a commit must depend on the database
        // alone.
        let asked = SqlQuery::opened(&query, &self.inner.shelf, i64::MAX);
        let mut finder = Finders::new(asked, self.inner.layout);
        let (mut found, mut bytes) = (Vec::new(), 0);
        let progress = finder.slice(&self.inner.search, u64::MAX, self.session, &mut |record| {
            found.push(IndexKey::of(record));
            bytes += record.bytes().len();
            if bytes < bytes_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok((found, progress == SearchProgress::Paused))
    }

    fn delete(&mut self, keys: &[IndexKey]) {
        for key in keys {
            if let Some(at) = self.ids.remove(&key.id) {
                self.puts[at] = None;
            } else if self.deleted_ids.insert(key.id) {
                self.deleted.push(*key);
            } else {
                continue;
            }
            self.step.erased.push(key.id);
        }
    }
}
