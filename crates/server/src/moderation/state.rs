//! The interface of the bans and allows: changes, pages of entries, and the audit log. `checks` has
//! the questions that the doors ask.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use hark_archive::clock::Clock;
use hark_archive::retention::RetentionPolicy;
use hark_archive::store::commit_whole;
use hark_archive::store::memory::MemoryStore;
use hark_archive::writer::{BetweenBatchesJob, WriteTarget, WriterOptions};
use hark_archive::{
    CommitError, Outcome, Query, Record, SearchError, SearchProgress, Store, Write,
};
use hark_networks::Network as _;
use parking_lot::Mutex;
use serde_json::Value;

use super::book::{EntryKey, NewBans, RulingBook};
use super::entry::{AuditAct, AuditNote, ChangedRuling, RulingChange, RulingEntry};
use super::filter::KeyFilter;
use super::lists::RulingLists;
use super::records::{
    ModerationNetwork, NS_PER_S, NamedValue, RulingState, entries, note_record, slot, values,
};
use super::values::ValueBook;
use crate::blocking;
use crate::roster::Roster;
use crate::shelf::{Shelf, ShelfOptions, Subscribers};

/// Maximum number of entries. All entries are in memory, about 200 bytes each.
pub const ENTRIES_MAX: usize = 1_000_000;
/// Number of changes that are made durable together, each with its note.
const CHANGES_AT_ONCE: usize = 1_024;
/// Number of attempts to make a change while other processes change the same entry.
pub(super) const ATTEMPTS: usize = 5;
/// Interval between two attempts to queue a job while the writer's queue is full.
const RETRY: Duration = Duration::from_millis(5);
/// How long a change waits for the writer's queue.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a change waits for work that began before the change, such as a slice of a search.
const READERS_MAX: Duration = Duration::from_secs(2);
/// Maximum number of bytes of a reason, and of a name of who has acted.
const TEXT_BYTES_MAX: usize = 1_000;

/// The bans and allows of an archive, and its audit log. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Moderation {
    pub(super) state: Arc<ModerationState>,
}

#[derive(Debug, Default)]
pub(super) struct ModerationState {
    /// The sets in force.
    pub(super) lists: ArcSwap<RulingLists>,
    pub(super) book: Mutex<RulingBook>,
    /// The keys and ids that were banned since the start.
    pub(super) filter: KeyFilter,
    /// The named values that managers have set.
    pub(super) values: ValueBook,
    /// How often more records were hidden from readers. See [`Moderation::hidings`].
    pub(super) hidings: AtomicU64,
    archive: OnceLock<ModerationArchive>,
    /// The open connections, which a ban closes.
    pub(super) roster: OnceLock<Arc<Roster>>,
    /// The time of this process's last record, in nanoseconds since 1970.
    last_ns: AtomicU64,
    /// Held during a change, so that changes of this process follow one another.
    pub(super) changing: Mutex<()>,
}

/// The shelf with the entries, and its clock.
struct ModerationArchive {
    shelf: Arc<Shelf>,
    clock: Clock,
}

impl std::fmt::Debug for ModerationArchive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModerationArchive").finish_non_exhaustive()
    }
}

/// Why a change was not made, or a page was not read.
#[derive(Debug, thiserror::Error)]
pub enum ModerationError {
    /// The server was started without the shelf of the bans.
    #[error("this server keeps no bans in its archive; only the lists in [policy] apply")]
    Absent,
    /// The writer did not accept the change in time, or has stopped.
    #[error("the archive takes no more writes")]
    Busy,
    /// The archive refused the change.
    #[error("the change was not stored: {0}")]
    Write(#[from] CommitError),
    /// The archive could not be read.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// Other processes change the same entry all the time.
    #[error("other servers of this archive change the same entry; try again")]
    Contended,
    /// There are too many entries.
    #[error(
        "there are {ENTRIES_MAX} entries, the maximum; lift some of them, or use networks of addresses"
    )]
    Full,
    /// A text is too long.
    #[error("a reason has at most {TEXT_BYTES_MAX} bytes")]
    Text,
    /// A text is no cursor of a page.
    #[error("the cursor of the page cannot be read")]
    Cursor,
    /// The task that made the change has ended.
    #[error("the change was interrupted: {0}")]
    Interrupted(String),
}

/// Passes new records of the shelf to the state.
struct RulingSubscriber(Weak<ModerationState>);

impl Subscribers for RulingSubscriber {
    fn publish(&self, _: Option<u64>, record: &Record<'_>) {
        if let Some(state) = self.0.upgrade() {
            state.apply(record);
        }
    }

    fn published(&self) {
        if let Some(state) = self.0.upgrade() {
            state.put_in_force();
            state.values.put_in_force();
        }
    }
}

impl ModerationState {
    /// Applies a record of the shelf. [`ModerationState::put_in_force`] puts it in force.
    fn apply(&self, record: &Record<'_>) {
        if let Some(ruled) = RulingState::of(record) {
            self.book.lock().apply(ruled);
        } else if let Some(value) = NamedValue::of(record) {
            self.values.apply(value);
        }
    }

    pub(super) fn now_s(&self) -> u64 {
        self.archive.get().map_or_else(|| Clock::System.now_s(), |it| it.clock.now_s())
    }

    fn note_hiding(&self, new: &NewBans) {
        if !new.hidden.is_empty() {
            self.hidings.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Makes the sets of the present entries, and replaces the sets in force. On return, no check
    /// that used the earlier sets is under way any more, and the connections of banned clients are
    /// being closed.
    fn put_in_force(&self) {
        let (before, new) = {
            // The lock is held until the new sets are in force, so that older sets never replace
            // newer sets.
            let mut book = self.book.lock();
            let Some((lists, new)) = book.make_lists(&self.lists.load()) else { return };
            new.hidden.iter().for_each(|key| self.filter.add(key));
            self.note_hiding(&new);
            let before = self.lists.swap(Arc::new(lists));
            // Noted again for a search that was opened before the swap, and after the first note.
            self.note_hiding(&new);
            (before, new)
        };
        if let Some(roster) = self.roster.get().filter(|_| new.concern_clients) {
            self.close_banned(roster);
        }
        wait_for_readers(&before);
    }
}

/// Waits until no other thread uses the sets.
fn wait_for_readers(lists: &Arc<RulingLists>) {
    let began = Instant::now();
    while Arc::strong_count(lists) > 1 && began.elapsed() < READERS_MAX {
        std::thread::yield_now();
        if began.elapsed() > Duration::from_millis(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Moderation {
    /// Makes bans and allows that are kept in memory only, for tests.
    pub fn in_memory(clock: Clock) -> Self {
        let store = Arc::new(MemoryStore::new(ModerationNetwork.rules()));
        // A new store in memory has no entries, so reading it does not fail.
        Self::with_clock(store, clock).unwrap_or_default()
    }

    /// Opens the bans and allows in a store, for a command that has opened the archive itself.
    pub fn over(store: Arc<dyn Store>) -> Result<Self, SearchError> {
        Self::with_clock(store, Clock::System)
    }

    fn with_clock(store: Arc<dyn Store>, clock: Clock) -> Result<Self, SearchError> {
        let moderation = Self::default();
        let options = ShelfOptions {
            network: &ModerationNetwork,
            store,
            writer: WriterOptions::default(),
            clock,
            retention: RetentionPolicy::default(),
            compact: None,
            handover: None,
        };
        moderation.open(options)?;
        Ok(moderation)
    }

    /// Opens the shelf of the entries, and puts all entries in force.
    pub(super) fn open(&self, options: ShelfOptions) -> Result<Arc<Shelf>, SearchError> {
        let clock = options.clock.clone();
        let subscriber = Arc::new(RulingSubscriber(Arc::downgrade(&self.state)));
        // From here on, new records are applied, so no record is missed.
        let shelf = Shelf::open(options, subscriber);
        for query in [entries(), values()] {
            let query = Query { now: clock.now_ns(), ..query };
            let mut search = shelf.store().search(&query)?;
            while search.slice(u64::MAX, &mut |record| {
                self.state.apply(record);
                ControlFlow::Continue(())
            })? == SearchProgress::Paused
            {}
        }
        self.state.book.lock().complete();
        self.state.put_in_force();
        self.state.values.put_in_force();
        // Called once, when the server starts.
        let _ = self.state.archive.set(ModerationArchive { shelf: Arc::clone(&shelf), clock });
        Ok(shelf)
    }

    /// Sets the open connections, which a ban closes.
    pub(crate) fn set_roster(&self, roster: &Arc<Roster>) {
        let _ = self.state.roster.set(Arc::clone(roster));
    }

    /// The present time in seconds since 1970.
    pub(super) fn now_s(&self) -> u64 {
        self.state.now_s()
    }

    /// The shelf of the entries.
    pub(super) fn shelf(&self) -> Result<&Arc<Shelf>, ModerationError> {
        Ok(&self.archive()?.shelf)
    }

    fn archive(&self) -> Result<&ModerationArchive, ModerationError> {
        self.state.archive.get().ok_or(ModerationError::Absent)
    }

    /// Changes entries, and writes a note of each change into the audit log. On return, the changes
    /// are durable and in force in this process, and every other server of the archive learns
    /// of the changes. Returns the effect of each change, in order. A change without effect writes no note.
    /// After an error, the first changes may have been made; making all again is safe.
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
        let _changing = self.state.changing.lock();
        let mut effects = Vec::with_capacity(changes.len());
        for some in changes.chunks(CHANGES_AT_ONCE) {
            self.change_some(some, by, &mut effects)?;
        }
        Ok(effects)
    }

    /// Writes a note of an act that changes no entry. On return, the note is durable.
    pub async fn note(&self, act: AuditAct, by: &str) -> Result<(), ModerationError> {
        let (this, by) = (self.clone(), by.to_owned());
        run_blocking(move || this.note_now(act, &by)).await
    }

    /// Does the same as [`Moderation::note`], for a thread that may block.
    pub fn note_now(&self, act: AuditAct, by: &str) -> Result<(), ModerationError> {
        let AuditAct { act, subject, before, after } = act;
        let at_ns = self.next_ns(0)?;
        let note = AuditNote { at_ns, by: by.into(), act, subject, before, after };
        self.commit(vec![Write::Put(note_record(&note))]).map(drop)
    }

    /// How often more records were hidden from readers. An answer whose parts depend on one another
    /// cannot be continued if this number has changed since the answer began.
    pub(crate) fn hidings(&self) -> u64 {
        self.state.hidings.load(Ordering::Acquire)
    }

    fn change_some(
        &self,
        changes: &[RulingChange],
        by: &str,
        effects: &mut Vec<ChangedRuling>,
    ) -> Result<(), ModerationError> {
        self.state.book.lock().remove_ended(self.now_s());
        let mut done: Vec<Option<ChangedRuling>> = vec![None; changes.len()];
        let mut left: Vec<usize> = (0..changes.len()).collect();
        for attempt in 0..ATTEMPTS {
            let (mut writes, mut planned) = (Vec::new(), Vec::new());
            for index in left.drain(..) {
                let plan = self.plan(&changes[index], by, attempt > 0)?;
                if plan.effect.is_change() {
                    writes.push(Write::Put(note_record(&plan.note)));
                    writes.push(Write::Put(plan.state.record()));
                    planned.push(index);
                }
                done[index] = Some(plan.effect);
            }
            let outcomes = if writes.is_empty() { Vec::new() } else { self.commit(writes)? };
            let outcomes = planned.into_iter().zip(outcomes.chunks(2));
            let refused = outcomes.filter(|(_, of)| of.contains(&Outcome::Superseded));
            left.extend(refused.map(|(index, _)| index));
            if left.is_empty() {
                effects.extend(done.into_iter().flatten());
                return Ok(());
            }
        }
        Err(ModerationError::Contended)
    }

    /// Plans a change. `was_refused` tells that the archive has a newer record of the entry.
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

    /// Returns a time for a record: the present, or a later time if an earlier record of this
    /// process, or a record of the time `known_ns`, would otherwise not be older.
    pub(super) fn next_ns(&self, known_ns: u64) -> Result<u64, ModerationError> {
        let least_ns = self.archive()?.clock.now_ns().max(known_ns.saturating_add(1));
        let next = |last_ns: u64| Some(least_ns.max(last_ns.saturating_add(1)));
        let last = self.state.last_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        Ok(last.ok().and_then(next).unwrap_or(least_ns))
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

    /// Commits writes as one batch, and puts them in force.
    pub(super) fn commit(&self, writes: Vec<Write>) -> Result<Vec<Outcome>, ModerationError> {
        let shelf = self.shelf()?;
        let (done, outcome) = sync_channel(1);
        let mut job: BetweenBatchesJob = Box::new(move |target: &mut WriteTarget| {
            // The sending fails only if nobody waits for the outcome any more.
            let _ = done.send(commit_and_publish(&writes, target));
        });
        let until = Instant::now() + WAIT_MAX;
        while let Err(refused) = shelf.writer().between(job) {
            if Instant::now() > until {
                return Err(ModerationError::Busy);
            }
            job = refused;
            std::thread::sleep(RETRY);
        }
        outcome.recv().map_err(|_| ModerationError::Busy)?.map_err(ModerationError::from)
    }
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

/// Commits writes, and notifies the listener as the writer does.
fn commit_and_publish(
    writes: &[Write],
    target: &mut WriteTarget,
) -> Result<Vec<Outcome>, CommitError> {
    let committed = commit_whole(writes, &target.commit)?;
    let before = committed.before.iter().map(|(seq, bytes)| (*seq, bytes));
    let put = writes.iter().zip(&committed.outcomes).filter_map(|pair| match pair {
        (Write::Put(bytes), Outcome::Stored { seq }) => Some((*seq, bytes)),
        _ => None,
    });
    let mut stored =
        before.chain(put).filter_map(|(seq, bytes)| Some((seq, Record::new(bytes).ok()?)));
    target.listener.batch(&mut stored, &mut || {});
    Ok(committed.outcomes)
}

/// Runs work that waits for the archive.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ModerationError> + Send + 'static,
) -> Result<T, ModerationError> {
    let done = blocking::run(work).await;
    done.map_err(|error| ModerationError::Interrupted(error.to_string()))?
}
