//! A batch's writes, one after another, over what is kept and what the batch itself has put so far.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use hark_archive::admission::Forbidding;
use hark_archive::{Order, Outcome, Position, Query, Record};
use hark_codec::record::Key as Author;

use super::fetch::{Fetched, Slot};
use super::{Put, time};
use crate::Inner;
use crate::search::{Asked, Finders};
use crate::session::{Fault, Session};
use crate::time::{Key, to_db};

pub(super) struct Play<'a, 'p> {
    inner: &'a Inner,
    session: &'a mut Session,
    fetched: Fetched,
    /// Number of the newest put.
    seq: i64,
    /// Puts of this batch, in order, with their numbers; none where they were deleted again.
    puts: Vec<Option<(i64, &'p Put<'p>)>>,
    /// Where in `puts` an id is.
    ids: HashMap<[u8; 32], usize>,
    by_author: HashMap<Author, Vec<usize>>,
    by_forbidding: HashMap<i64, Vec<usize>>,
    /// What is to be deleted of what was kept before.
    deleted: Vec<Key>,
    deleted_ids: HashSet<[u8; 32]>,
}

impl<'a, 'p> Play<'a, 'p> {
    pub(super) fn new(inner: &'a Inner, session: &'a mut Session, fetched: Fetched) -> Self {
        Self {
            inner,
            session,
            seq: fetched.seq,
            fetched,
            puts: Vec::new(),
            ids: HashMap::new(),
            by_author: HashMap::new(),
            by_forbidding: HashMap::new(),
            deleted: Vec::new(),
            deleted_ids: HashSet::new(),
        }
    }

    /// What is to be kept, what is to be deleted, and the number of the last put.
    pub(super) fn end(self) -> (Vec<(i64, &'p Put<'p>)>, Vec<Key>, i64) {
        (self.puts.into_iter().flatten().collect(), self.deleted, self.seq)
    }

    pub(super) fn put(&mut self, put: &'p Put<'p>) -> Result<Outcome, Fault> {
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
        if let Some(slot) = &put.effects.slot {
            let holders = self.find(slot)?;
            let here = put.key.position();
            let newer = |key: &Key| Order::NewestFirst.compare(&key.position(), &here).is_lt();
            if holders.iter().any(newer) {
                return Ok(Outcome::Superseded);
            }
            self.delete(&holders);
        }
        for query in &put.effects.erases {
            let found = self.find(query)?;
            self.delete(&found);
        }
        self.seq += 1;
        let at = self.puts.len();
        self.puts.push(Some((self.seq, put)));
        self.ids.insert(*id, at);
        if let Some(author) = put.record.author() {
            self.by_author.entry(*author).or_default().push(at);
        }
        if self.inner.rules.forbids(put.record.kind()) {
            for key in self.inner.terms.forbids(&put.record) {
                self.by_forbidding.entry(key).or_default().push(at);
            }
        }
        Ok(Outcome::Stored { seq: self.seq.cast_unsigned() })
    }

    pub(super) fn erase(&mut self, query: &Query) -> Result<u64, Fault> {
        let mut query = query.clone();
        query.normalise();
        let mut found = self.find(&query)?;
        found.truncate(query.limit);
        self.delete(&found);
        Ok(found.len() as u64)
    }

    /// Whether a record that forbids is kept.
    fn is_there(&mut self, there_is: &Forbidding<'_>) -> Result<bool, Fault> {
        let key = self.inner.terms.forbidding(there_is);
        let query = there_is.query();
        let own = self.by_forbidding.get(&key).into_iter().flatten();
        let mut own = own.filter_map(|&at| self.puts[at]);
        if own.any(|(_, put)| query.matches(&put.record)) {
            return Ok(true);
        }
        let Some(body) = self.fetched.forbids.get(&key) else { return Ok(false) };
        let Ok(newest) = Record::new(body) else { return Ok(false) };
        if !self.deleted_ids.contains(newest.id()) && query.matches(&newest) {
            return Ok(true);
        }
        // The newest does not forbid it. One before it can only if that was deleted, or was another's.
        let is_theirs = newest.author() == Some(there_is.author) && newest.time() < there_is.from;
        if is_theirs { Ok(false) } else { Ok(!self.find(&query)?.is_empty()) }
    }

    /// What matches, in the query's order, of what is kept and of this batch. At least as much as the
    /// limit, where there is as much.
    fn find(&mut self, query: &Query) -> Result<Vec<Key>, Fault> {
        let mut found = match Slot::of(query, &self.inner.terms) {
            Some(slot) if self.fetched.slots.contains_key(&slot) => {
                let held = self.fetched.slots.get(&slot).into_iter().flatten();
                let within = |key: &&Key| (query.from..=query.to).contains(&time(key));
                held.filter(within).copied().collect()
            }
            _ => self.search(query)?,
        };
        found.retain(|key| !self.deleted_ids.contains(&key.id));
        let behind =
            |at: &Position| query.after.is_none_or(|after| query.order.compare(&after, at).is_lt());
        let matching = |put: &&Put<'_>| {
            query.from <= query.to && behind(&put.key.position()) && query.matches(&put.record)
        };
        if let Some([author]) = query.authors.as_deref() {
            let theirs = self.by_author.get(author).into_iter().flatten();
            let theirs = theirs.filter_map(|&at| self.puts[at]).map(|(_, put)| put);
            found.extend(theirs.filter(matching).map(|put| put.key));
        } else {
            let all = self.puts.iter().flatten().map(|(_, put)| *put);
            found.extend(all.filter(matching).map(|put| put.key));
        }
        found.sort_by(|a, b| query.order.compare(&a.position(), &b.position()));
        Ok(found)
    }

    /// What matches of what is kept.
    fn search(&mut self, query: &Query) -> Result<Vec<Key>, Fault> {
        // Those that this batch deletes are found too.
        let limit = query.limit.saturating_add(self.deleted.len());
        let query = Query { limit, budget: u64::MAX, ..query.clone() };
        let asked = Asked::opened(&query, &self.inner.terms, self.inner.nature, i64::MAX);
        let mut finder = Finders::new(asked);
        let mut found = Vec::new();
        finder.slice(self.inner, u64::MAX, self.session, &mut |record| {
            found.push(Key { time: to_db(record.time()), id: *record.id() });
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    fn delete(&mut self, keys: &[Key]) {
        for key in keys {
            if let Some(at) = self.ids.remove(&key.id) {
                self.puts[at] = None;
            } else if self.deleted_ids.insert(key.id) {
                self.deleted.push(*key);
            }
        }
    }
}
