//! Changes of entries, and their rows of the audit log.

use std::ops::ControlFlow;

use hark_archive::{CommitError, Id, Outcome, Query, Record, SearchProgress, Write};
use serde_json::Value;

use super::book::EntryKey;
use super::entry::{AuditNote, ChangedRuling, RulingChange, RulingEntry};
use super::records::{NS_PER_S, RulingState, note_record, slot};
use super::state::{
    ATTEMPTS, ENTRIES_MAX, Moderation, ModerationError, TEXT_BYTES_MAX, run_blocking,
};

/// Number of changes that are made durable together, each with its note in the audit log.
const CHANGES_AT_ONCE: usize = 1_024;

/// The changes that are not made yet, by their indices.
struct ChangesLeft {
    left: Vec<usize>,
    /// The ids of the notes of changes that the archive has refused. Other processes have changed
    /// the same entries meanwhile, so these notes are deleted.
    refused_notes: Vec<Id>,
}

impl Moderation {
    /// Changes entries, and writes a note of each change into the audit log. On return, the changes
    /// are durable and in force in this process, and every other server of the archive learns of
    /// the changes. Returns the effect of each change, in order. A change without effect writes no
    /// note. The invites of keys that are banned, or whose allow is lifted, are removed. After an
    /// error, some of the changes may have been made; making all again is safe.
    pub async fn change(
        &self,
        changes: Vec<RulingChange>,
        by: &str,
    ) -> Result<Vec<ChangedRuling>, ModerationError> {
        let (this, by) = (self.clone(), by.to_owned());
        run_blocking(move || this.change_now(&changes, &by)).await
    }

    /// Does the same as [`Moderation::change`], for a thread that may block.
    pub fn change_now(
        &self,
        changes: &[RulingChange],
        by: &str,
    ) -> Result<Vec<ChangedRuling>, ModerationError> {
        if by.len() > TEXT_BYTES_MAX || changes.iter().any(has_long_reason) {
            return Err(ModerationError::Text);
        }
        let mut effects = Vec::with_capacity(changes.len());
        {
            let _changing = self.state.changing.lock();
            for some in changes.chunks(CHANGES_AT_ONCE) {
                self.change_some(some, by, &mut effects)?;
            }
        }
        self.remove_invites_after(changes, by)?;
        Ok(effects)
    }

    fn change_some(
        &self,
        changes: &[RulingChange],
        by: &str,
        effects: &mut Vec<ChangedRuling>,
    ) -> Result<(), ModerationError> {
        self.learn_news()?;
        self.state.book.lock().remove_ended(self.now_s());
        let mut done: Vec<Option<ChangedRuling>> = vec![None; changes.len()];
        let mut work =
            ChangesLeft { left: (0..changes.len()).collect(), refused_notes: Vec::new() };
        for attempt in 0..ATTEMPTS {
            let refused = self.attempt(changes, by, attempt > 0, &mut work, &mut done);
            if let Err(error) = refused {
                self.delete_notes(work.refused_notes)?;
                return Err(error);
            }
            if work.left.is_empty() {
                effects.extend(done.into_iter().flatten());
                return Ok(());
            }
            self.learn_news()?;
        }
        self.delete_notes(work.refused_notes)?;
        Err(ModerationError::Contended)
    }

    /// Tries to make all remaining changes. Changes that the archive refuses remain in `work`.
    fn attempt(
        &self,
        changes: &[RulingChange],
        by: &str,
        was_refused: bool,
        work: &mut ChangesLeft,
        done: &mut [Option<ChangedRuling>],
    ) -> Result<(), ModerationError> {
        let (mut puts, mut planned) = (Vec::new(), Vec::new());
        for index in &work.left {
            let plan = self.plan(&changes[*index], by, was_refused)?;
            if plan.effect.is_change() {
                let note = note_record(&plan.note);
                planned.push((*index, Record::new(&note).map(|note| *note.id()).ok()));
                puts.extend([Write::Put(note), Write::Put(plan.state.record())]);
            } else if let Some(trouble) = self.shelf()?.store().trouble() {
                // The change has no effect on the entry that this process knows, but another
                // process may have changed the entry.
                return Err(CommitError::Unavailable(trouble).into());
            }
            done[*index] = Some(plan.effect);
        }
        let mut writes: Vec<Write> = delete(std::mem::take(&mut work.refused_notes)).collect();
        let deletes = writes.len();
        writes.append(&mut puts);
        let outcomes = if writes.is_empty() { Vec::new() } else { self.commit(writes)? };
        let outcomes = outcomes.get(deletes..).unwrap_or_default();
        work.left.clear();
        for ((index, note), outcome) in planned.into_iter().zip(outcomes.chunks(2)) {
            if outcome.contains(&Outcome::Superseded) {
                work.left.push(index);
                work.refused_notes.extend(note);
            }
        }
        Ok(())
    }

    fn delete_notes(&self, ids: Vec<Id>) -> Result<(), ModerationError> {
        let writes: Vec<Write> = delete(ids).collect();
        if writes.is_empty() { Ok(()) } else { self.commit(writes).map(drop) }
    }

    /// Plans a change. `was_refused` means that the archive has refused the change before, because
    /// it has a newer record of the entry.
    fn plan(
        &self,
        change: &RulingChange,
        by: &str,
        was_refused: bool,
    ) -> Result<PlannedChange, ModerationError> {
        let key: EntryKey = (change.ruling(), change.subject().clone());
        let known = {
            let book = self.state.book.lock();
            let known = book.find(&key).cloned();
            if known.is_none() && book.len() >= ENTRIES_MAX {
                return Err(ModerationError::Full);
            }
            known
        };
        let (known_ns, before) = known.unzip();
        // A newer record may be from a server whose clock is ahead, and may have lifted the entry.
        let newest_ns = if was_refused { self.newest(&key)? } else { None };
        let known_ns = known_ns.max(newest_ns);
        let at_ns = self.next_ns(known_ns.unwrap_or(0))?;
        let (ruling, subject) = key;
        let after = match change {
            RulingChange::Lift(..) => None,
            RulingChange::Set { reason, until_s, .. } => match &before {
                Some(entry) if entry.has_effect_of(reason, *until_s) => Some(entry.clone()),
                _ => Some(RulingEntry {
                    subject: subject.clone(),
                    ruling,
                    reason: reason.as_str().into(),
                    since_s: at_ns / NS_PER_S,
                    until_s: *until_s,
                    by: by.into(),
                }),
            },
        };
        let shown =
            |entry: &Option<RulingEntry>| entry.as_ref().map_or(Value::Null, RulingEntry::state);
        let note = AuditNote {
            at_ns,
            by: by.into(),
            act: change.act().into(),
            subject: subject.to_string(),
            before: shown(&before),
            after: shown(&after),
        };
        let state = RulingState { at_ns, ruling, subject: subject.clone(), entry: after.clone() };
        let effect = ChangedRuling { subject, ruling, before, after };
        Ok(PlannedChange { note, state, effect })
    }

    /// Returns the time of the newest record of an entry.
    fn newest(&self, (ruling, subject): &EntryKey) -> Result<Option<u64>, ModerationError> {
        let query = Query { limit: 1, ..slot(*ruling, subject) };
        let mut search = self.shelf()?.store().search(&query)?;
        let mut newest = None;
        while search.slice(u64::MAX, &mut |record| {
            newest = Some(record.time());
            ControlFlow::Break(())
        })? == SearchProgress::Paused
            && newest.is_none()
        {}
        Ok(newest)
    }
}

/// Returns the write that deletes the records with these ids, if there are any.
pub(super) fn delete(ids: Vec<Id>) -> impl Iterator<Item = Write> {
    let mut query = Query { ids: Some(ids), ..Query::default() };
    query.normalise();
    (!query.is_void()).then(|| Write::Erase(Box::new(query))).into_iter()
}

/// A change with its records.
struct PlannedChange {
    note: AuditNote,
    state: RulingState,
    effect: ChangedRuling,
}

fn has_long_reason(change: &RulingChange) -> bool {
    matches!(change, RulingChange::Set { reason, .. } if reason.len() > TEXT_BYTES_MAX)
}
