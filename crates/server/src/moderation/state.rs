//! The state of the bans and allows in one process, and its writes. `changes` has the changes of
//! entries, `pages` the lists, and `checks` the questions that the doors ask.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use hark_archive::clock::Clock;
use hark_archive::retention::RetentionPolicy;
use hark_archive::store::memory::MemoryStore;
use hark_archive::writer::{WriteTarget, WriterOptions};
use hark_archive::{CommitError, Outcome, Query, Record, SearchError, Store, Write};
use hark_networks::Network as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::book::{NewBans, RulingBook};
use super::entry::{AuditAct, AuditNote};
use super::filter::KeyFilter;
use super::follower::ChangeFollower;
use super::lists::RulingLists;
use super::name_book::NameBook;
use super::records::{
    ModerationNetwork, NameState, NamedValue, RulingState, entries, names, note_record, values,
};
use super::values::ValueBook;
use crate::blocking;
use crate::roster::Roster;
use crate::shelf::{JobNotRun, Shelf, ShelfOptions, Subscribers};

/// Maximum number of entries. All entries are in memory, about 200 bytes each.
pub const ENTRIES_MAX: usize = 1_000_000;
/// Maximum number of open invites of the operator, and of the members.
pub(super) const INVITES_MAX: usize = 2_000;
/// Number of attempts to make a change while other processes change the same entry.
pub(super) const ATTEMPTS: usize = 5;
/// How long a change waits for work that began before the change, such as a slice of a search.
const READERS_MAX: Duration = Duration::from_secs(2);
/// Maximum number of bytes of a reason, and of the name of an actor.
pub(super) const TEXT_BYTES_MAX: usize = 1_000;

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
    /// The keys and the ids that were banned since the start.
    pub(super) banned_keys: KeyFilter,
    pub(super) banned_ids: KeyFilter,
    /// The named values that managers have set.
    pub(super) values: ValueBook,
    /// The verified names of keys.
    pub(super) names: NameBook,
    /// Whether entries or values were applied that nobody was notified of.
    has_news: AtomicBool,
    /// Number of changes that hid further records from readers. See [`Moderation::hidings`].
    pub(super) hidings: AtomicU64,
    archive: OnceLock<ModerationArchive>,
    /// Whether the server has started without this shelf, because the archive could not provide a
    /// shelf.
    pub(super) is_lacking: AtomicBool,
    /// The open connections, which a ban closes.
    pub(super) roster: OnceLock<Arc<Roster>>,
    /// Called after each change of the sets in force.
    pub(super) follower: ChangeFollower,
    /// Notified after each change of the sets and of the values in force.
    changed: Notify,
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
    #[error(
        "this server has started without a shelf for bans, so only the lists in [policy] apply; its log \
         says why. Restart it once the cause is gone"
    )]
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
    /// There are too many invites.
    #[error("there are {INVITES_MAX} open invites, the maximum; revoke some of them")]
    ManyInvites,
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
            if state.has_news.swap(false, Ordering::AcqRel) {
                state.changed.notify_waiters();
            }
        }
    }
}

impl ModerationState {
    /// Applies a record of the shelf. [`ModerationState::put_in_force`] puts it in force.
    fn apply(&self, record: &Record<'_>) {
        if let Some(name) = NameState::of(record) {
            return self.names.apply(name);
        }
        if let Some(ruled) = RulingState::of(record) {
            self.book.lock().apply(ruled);
        } else if let Some(value) = NamedValue::of(record) {
            self.values.apply(value);
        }
        self.has_news.store(true, Ordering::Release);
    }

    pub(super) fn now_s(&self) -> u64 {
        self.archive.get().map_or_else(|| Clock::System.now_s(), |it| it.clock.now_s())
    }

    fn note_hiding(&self, new: &NewBans) {
        if !new.keys.is_empty() || !new.ids.is_empty() {
            self.hidings.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Makes the sets of the present entries, and replaces the sets in force. On return, the checks
    /// that used the earlier sets have ended (unless they took too long), and the connections of
    /// banned clients are being closed.
    fn put_in_force(&self) {
        let (before, new) = {
            // The lock is held until the new sets are in force, so that older sets never replace
            // newer sets.
            let mut book = self.book.lock();
            let Some((lists, new)) = book.make_lists(&self.lists.load()) else { return };
            new.keys.iter().for_each(|key| self.banned_keys.add(key));
            new.ids.iter().for_each(|id| self.banned_ids.add(id));
            self.note_hiding(&new);
            let before = self.lists.swap(Arc::new(lists));
            // Noted again, for a search that was opened between the first note and the swap.
            self.note_hiding(&new);
            (before, new)
        };
        if let Some(roster) = self.roster.get().filter(|_| new.concern_clients) {
            self.close_banned(roster);
        }
        wait_for_readers(&before);
        self.follower.call();
    }
}

/// Waits until no other thread uses these earlier sets, for at most `READERS_MAX`.
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

    pub(super) fn with_clock(store: Arc<dyn Store>, clock: Clock) -> Result<Self, SearchError> {
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
        for query in [entries(), values(), names()] {
            let query = Query { now: clock.now_ns(), ..query };
            let mut search = shelf.store().search(&query)?;
            search.read_all(&mut |record| self.state.apply(record))?;
        }
        self.state.book.lock().complete();
        self.state.put_in_force();
        self.state.values.put_in_force();
        // Called once, when the server starts.
        let _ = self.state.archive.set(ModerationArchive { shelf: Arc::clone(&shelf), clock });
        self.state.changed.notify_waiters();
        Ok(shelf)
    }

    /// Notes that the archive could not give the server a shelf for bans.
    pub fn note_lack(&self) {
        self.state.is_lacking.store(true, Ordering::Relaxed);
    }

    /// Opens the shelf, and puts all entries in force, although the server has already started.
    pub fn open_late(&self, options: ShelfOptions) -> Result<(), SearchError> {
        self.open(options)?;
        self.state.is_lacking.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the server lacks the shelf of the bans.
    pub(crate) fn is_lacking(&self) -> bool {
        self.state.is_lacking.load(Ordering::Relaxed)
    }

    /// Sets the list of open connections, in which a new ban finds the connections that it closes.
    pub(crate) fn set_roster(&self, roster: &Arc<Roster>) {
        let _ = self.state.roster.set(Arc::clone(roster));
    }

    /// Calls `follower` after each change of the entries in force. Only the relay calls this
    /// function, and only once.
    pub(crate) fn on_change(&self, follower: Box<dyn Fn() + Send + Sync>) {
        self.state.follower.set(follower);
    }

    /// Waits for the next change of entries or values after this call, or for the opening of the
    /// shelf.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.state.changed.notified()
    }

    /// Whether the shelf is open.
    pub(crate) fn is_open(&self) -> bool {
        self.state.archive.get().is_some()
    }

    /// The present time in seconds since 1970.
    pub(crate) fn now_s(&self) -> u64 {
        self.state.now_s()
    }

    /// The shelf of the entries.
    pub(super) fn shelf(&self) -> Result<&Arc<Shelf>, ModerationError> {
        Ok(&self.archive()?.shelf)
    }

    fn archive(&self) -> Result<&ModerationArchive, ModerationError> {
        self.state.archive.get().ok_or(ModerationError::Absent)
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

    /// Number of changes that hid further records from readers. An answer whose parts depend on one
    /// another cannot be continued if this number has changed since the answer began.
    pub(crate) fn hidings(&self) -> u64 {
        self.state.hidings.load(Ordering::Acquire)
    }

    /// Returns a time for a new record: the present, or a later time if needed, so that the time is
    /// after those of this process's earlier records and after `known_ns`.
    pub(super) fn next_ns(&self, known_ns: u64) -> Result<u64, ModerationError> {
        let least_ns = self.archive()?.clock.now_ns().max(known_ns.saturating_add(1));
        let next = |last_ns: u64| Some(least_ns.max(last_ns.saturating_add(1)));
        let last = self.state.last_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        Ok(last.ok().and_then(next).unwrap_or(least_ns))
    }

    /// Commits writes as one batch, and puts them in force.
    pub(super) fn commit(&self, writes: Vec<Write>) -> Result<Vec<Outcome>, ModerationError> {
        Ok(self.between(move |target| target.commit_whole(&writes))??)
    }

    /// Puts the changes in force that other processes made before this call.
    pub(crate) fn learn_news(&self) -> Result<(), ModerationError> {
        self.shelf()?.learn_news().map_err(|JobNotRun| ModerationError::Busy)
    }

    /// Runs work on the writer's thread, between two batches.
    fn between<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut WriteTarget) -> T + Send + 'static,
    ) -> Result<T, ModerationError> {
        self.shelf()?.between(work).map_err(|JobNotRun| ModerationError::Busy)
    }
}

/// Runs work that waits for the archive.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ModerationError> + Send + 'static,
) -> Result<T, ModerationError> {
    let done = blocking::run(work).await;
    done.map_err(|error| ModerationError::Interrupted(error.to_string()))?
}
