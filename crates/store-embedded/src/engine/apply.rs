//! Adds a write to the batch: a record with its effects on other records, or deletions.

use std::mem;

use hark_archive::effects::{Effects, Rules};
use hark_archive::limits::SEARCH_BATCH;
use hark_archive::query::prepared::TermMap as _;
use hark_archive::{CommitError, CommitResult, Order, Outcome, Position, Query, Record, Write};

use super::rule_search::{WriteKey, WrittenRecords, may_match, unlimited};
use super::shelf_view::ShelfView;
use super::tail::SYNC_BYTES_MAX;
use super::writer::LogWriterState;
use crate::log::LogFrame;
use crate::maintenance::jobs::ShelfJobs;
use crate::term::TermHasher;

/// Adds the writes of one step to the batch, one after another.
pub(super) struct WriteStep<'a> {
    pub(super) rules: &'a dyn Rules,
    pub(super) terms: &'a TermHasher,
    pub(super) jobs: &'a ShelfJobs,
    pub(super) view: &'a ShelfView,
    pub(super) writing: &'a mut LogWriterState,
}

impl WriteStep<'_> {
    /// Adds writes to the batch until the step or the list of writes ends. `is_end` means that
    /// these are the last writes of the batch.
    pub(super) fn carry_out_all(
        &mut self,
        writes: &[Write],
        is_end: bool,
        done: &mut CommitResult,
    ) -> Result<(), CommitError> {
        for (index, write) in writes.iter().enumerate() {
            let is_last = is_end && index + 1 == writes.len();
            let at = done.outcomes.len();
            let (outcome, searched) = self.carry_out(write, is_last).inspect_err(|error| {
                self.writing.stopped = Some(error.to_string());
            })?;
            let LogWriterState { step, frames, .. } = &mut *self.writing;
            done.outcomes.push(outcome);
            done.erased.extend(step.erased.drain(..).map(|id| (at, id)));
            done.unfinished = step.unfinished;
            done.searched += searched;
            let is_full = frames.len() >= SYNC_BYTES_MAX;
            if done.unfinished || done.searched >= SEARCH_BATCH || is_full {
                break;
            }
        }
        Ok(())
    }

    /// Adds a write, or the part of a write that fits into this step. Returns the outcome and the
    /// number of searched rows.
    fn carry_out(&mut self, write: &Write, is_last: bool) -> Result<(Outcome, u64), CommitError> {
        let mut key = is_last.then(|| WriteKey::of(write)).flatten();
        self.writing.searches.begin(key.as_ref());
        let outcome = match write {
            Write::Put(bytes) => self.put(bytes)?,
            Write::Erase(query) => {
                let mut query = Query::clone(query);
                query.normalise();
                Outcome::Erased(self.erase(&query)?)
            }
        };
        Ok((outcome, self.writing.searches.end(key.take_if(|_| self.writing.step.unfinished))))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<Outcome, CommitError> {
        let record =
            Record::new(bytes).map_err(|source| CommitError::Record { index: 0, source })?;
        if self.view.locate(record.id(), self.terms.id(record.id()), true).is_some() {
            return Ok(Outcome::Duplicate);
        }
        let mut effects = mem::take(&mut self.writing.effects);
        effects.clear();
        self.rules.effects(&record, &mut effects);
        effects.normalise();
        let outcome = self.put_with(&record, &effects);
        self.writing.effects = effects;
        outcome
    }

    fn put_with(&mut self, record: &Record<'_>, effects: &Effects) -> Result<Outcome, CommitError> {
        for forbidding in effects.forbidding() {
            let (name, value) = forbidding.label;
            let (kinds, term) = (&[forbidding.kind], self.terms.label(name, value));
            if may_match(self.view, Some(kinds), Some(term)) {
                match self.find(&forbidding.query(), 1)? {
                    None => return Ok(self.writing.pause()),
                    Some(found) if found.is_empty() => {}
                    Some(_) => return Ok(Outcome::Refused(forbidding.refusal)),
                }
            }
        }
        // All records to delete are found before the first is deleted: their number decides whether
        // this step can delete all these records. The put must be in the same batch as the last of
        // its deletions.
        let mut erased = Vec::new();
        if let Some(slot) = &effects.slot {
            let here = Position::of(record);
            let Some(holders) = self.holders(slot)? else {
                return Ok(self.writing.pause());
            };
            if holders.iter().any(|at| Order::NewestFirst.compare(at, &here).is_lt()) {
                if let [holder] = holders[..] {
                    self.writing.searches.note_holder(slot, holder);
                }
                return Ok(Outcome::Superseded);
            }
            erased = holders;
        }
        let holders = erased.len();
        for query in &effects.erases {
            if query.ids.is_none() && query.kinds.is_none() && query.labels.is_empty() {
                self.jobs.erase_schedule().add_authors(query);
            }
            // One record more than the step may delete is enough to know that another step is
            // needed.
            let more = (self.writing.step.left + 1).saturating_sub(erased.len() - holders);
            match self.find(query, query.limit.min(more))? {
                Some(found) => erased.extend(found),
                None => return Ok(self.writing.pause()),
            }
        }
        let others = erased.len() - holders;
        if others > self.writing.step.left {
            // The holders of the slot (the records that the put replaces) are deleted together with
            // the put, in the last step.
            let step = &erased[holders..holders + self.writing.step.left];
            self.delete(step, true);
            self.writing.step.unfinished = true;
            return Ok(Outcome::Erased(step.len() as u64));
        }
        self.writing.step.left -= others;
        let (holders, others) = erased.split_at(holders);
        self.delete(holders, false);
        self.delete(others, true);
        let head = &self.view.active;
        let Some(tail) = &self.writing.tail else { return Ok(Outcome::Duplicate) };
        let (salt, start) = (tail.salt, tail.len as usize);
        let offset = start + self.writing.gather(LogFrame::Put(record.bytes()), salt);
        let row = head.insert(record, offset as u32, &mut self.writing.terms);
        self.writing.searches.note_put(record);
        if let Some(slot) = effects.slot.as_ref().filter(|slot| slot.matches(record)) {
            self.writing.searches.note_holder(slot, Position::of(record));
        }
        Ok(Outcome::Stored { seq: head.base + u64::from(row) + 1 })
    }

    fn erase(&mut self, query: &Query) -> Result<u64, CommitError> {
        let left = self.writing.step.left;
        let wanted = query.limit.min(left + 1);
        let Some(mut found) = self.find(&unlimited(query), wanted)? else {
            self.writing.pause();
            return Ok(0);
        };
        self.writing.step.unfinished = found.len() > left;
        found.truncate(left);
        self.writing.step.left -= found.len();
        self.delete(&found, true);
        Ok(found.len() as u64)
    }

    /// Adds the deletions of the found records to the batch. With `is_erased`, the records must be
    /// gone from all files within `erase_within`. Records that were only replaced have no such
    /// deadline.
    fn delete(&mut self, found: &[Position], is_erased: bool) {
        let Some(salt) = self.writing.tail.as_ref().map(|tail| tail.salt) else { return };
        let mut erase = (is_erased && !found.is_empty()).then(|| self.jobs.erase_schedule());
        if let Some(erase) = &mut erase {
            erase.add(self.view.active.log.number);
        }
        for Position { id, .. } in found {
            if let Some(target) = self.view.locate(id, self.terms.id(id), true) {
                target.mark_deleted();
                if let Some(erase) = &mut erase {
                    erase.add(target.log());
                }
                self.writing.gather(LogFrame::Delete { id: *id, log: target.log() }, salt);
                self.writing.targets.push(target);
                self.writing.step.erased.push(*id);
            }
        }
    }

    /// Finds the matching records, at most `wanted`. Returns `None` if the search must continue in
    /// the write's next step.
    fn find(&mut self, query: &Query, wanted: usize) -> Result<Option<Vec<Position>>, CommitError> {
        let LogWriterState { searches, frames, .. } = &mut *self.writing;
        let among = WrittenRecords { view: self.view, frames, terms: self.terms };
        searches.find(&among, query, wanted)
    }

    /// Finds the holders of a slot, that is, the records that match `slot`.
    fn holders(&mut self, slot: &Query) -> Result<Option<Vec<Position>>, CommitError> {
        let LogWriterState { searches, frames, .. } = &mut *self.writing;
        let among = WrittenRecords { view: self.view, frames, terms: self.terms };
        searches.holders(&among, slot)
    }
}
