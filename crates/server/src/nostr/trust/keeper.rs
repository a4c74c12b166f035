//! The thread that keeps the trusted keys up to date.
//!
//! The thread reads follow lists from the archive: all lists that count at the start, and the list
//! of an author again after each record that may have changed the list. So a list that is replaced,
//! deleted, or deleted by a request to vanish has one way into the graph, and so has a list that
//! another server of the archive has stored. Deletions that no record announces, such as those of
//! retention, are found when all lists are read again, every hour.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::clock::Clock;
use hark_archive::query::HiddenRecords;
use hark_archive::{SearchError, Store, vital};
use hark_codec::nostr::npub;
use hark_codec::record::Key;

use super::graph::TrustGraph;
use super::lists::read_lists;
use super::state::{Trust, TrustWork};
use crate::nostr::rule_mode::RuleMode;

/// Maximum number of lists that one search reads.
const LISTS_AT_ONCE: usize = 1_000;
/// How long the thread waits after a failed search.
const RETRY: Duration = Duration::from_secs(1);
/// Interval between two checks of bans that have ended, and between two summaries in the log.
const TICK: Duration = Duration::from_mins(1);
/// Interval after which all lists are read again.
const REREAD: Duration = Duration::from_hours(1);

/// Opens the store with the follow lists. A process that reads the files of a running server gets a
/// new snapshot.
pub type OpenStore = Box<dyn Fn() -> Result<Arc<dyn Store>, SearchError> + Send>;

/// The archive from which the thread reads follow lists.
pub struct TrustSource {
    /// Opens the store with the lists.
    pub open: OpenStore,
    /// The clock of the shelf: an expired list is no list.
    pub clock: Clock,
    /// The records that bans hide.
    pub hidden: Option<HiddenRecords>,
    /// Whether a key is banned or denied, so that its follow list does not count.
    pub is_barred: Box<dyn Fn(&Key) -> bool + Send>,
}

impl Trust {
    /// Starts the thread that reads the follow lists. The thread waits for [`Trust::begin`].
    pub fn start(self: &Arc<Self>, source: TrustSource) -> io::Result<JoinHandle<()>> {
        let keeper = TrustKeeper::new(Arc::clone(self), source);
        vital::spawn("hark-trust", move || keeper.run())
    }
}

/// The state of the thread.
struct TrustKeeper {
    trust: Arc<Trust>,
    source: TrustSource,
    /// The store, while lists are read that have changed before it was opened.
    store: Option<Arc<dyn Store>>,
    /// Authors whose lists have changed.
    changed: HashSet<Key>,
    /// Authors whose lists are read again as a precaution.
    doubted: HashSet<Key>,
    /// Authors whose lists do not count, because they are banned or denied.
    barred: HashSet<Key>,
    /// The time at which the reading of all lists began; `None` if all lists are read.
    began: Option<Instant>,
    /// Whether the last search has failed.
    is_failing: bool,
    next_tick: Instant,
    next_reread: Instant,
    logged: LoggedTrust,
}

/// The counts that the log already has.
#[derive(Default)]
struct LoggedTrust {
    left_out: u64,
    watched: u64,
}

impl TrustKeeper {
    fn new(trust: Arc<Trust>, source: TrustSource) -> Self {
        let now = Instant::now();
        Self {
            trust,
            source,
            store: None,
            changed: HashSet::new(),
            doubted: HashSet::new(),
            barred: HashSet::new(),
            began: None,
            is_failing: false,
            next_tick: now + TICK,
            next_reread: now + REREAD,
            logged: LoggedTrust::default(),
        }
    }

    /// Works until the rule is closed.
    fn run(mut self) {
        let mut wait = Duration::ZERO;
        while let Some(work) = self.trust.next_work(wait) {
            self.begin(work);
            wait = match self.read_some() {
                Ok(true) => Duration::ZERO,
                Ok(false) => self.next_tick.saturating_duration_since(Instant::now()),
                Err(error) => {
                    self.log_failure(&error);
                    RETRY
                }
            };
        }
    }

    /// Logs the first of several failures in succession.
    fn log_failure(&mut self, error: &SearchError) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(%error, "follow lists could not be read; trying again every second");
        }
    }

    fn begin(&mut self, work: TrustWork) {
        if work.rules {
            self.began.get_or_insert_with(Instant::now);
            self.trust.apply_rules();
        }
        if work.rules || !work.changed.is_empty() {
            self.store = None;
        }
        self.changed.extend(work.changed);
        let is_due = Instant::now() >= self.next_tick;
        if work.bars || is_due {
            self.find_barred();
        }
        if is_due {
            self.next_tick = Instant::now() + TICK;
            self.log_counts();
        }
        if Instant::now() >= self.next_reread {
            self.next_reread = Instant::now() + REREAD;
            let graph = self.trust.graph();
            self.doubted.extend(graph.listed());
            self.barred.retain(|key| graph.needs_list(key));
        }
    }

    /// Finds the listed keys that were banned or denied, or whose ban has ended, since their lists
    /// were read.
    fn find_barred(&mut self) {
        let (barred, is_barred) = (&self.barred, &self.source.is_barred);
        let graph = self.trust.graph();
        let differs = |key: &&Key| is_barred(key) != barred.contains(*key);
        self.changed.extend(graph.listed().filter(differs));
    }

    /// Reads some of the lists that have to be read. Returns whether there may be more.
    fn read_some(&mut self) -> Result<bool, SearchError> {
        let authors = self.next_authors();
        if authors.is_empty() {
            self.store = None;
            self.end_reading();
            return Ok(false);
        }
        let (barred, open): (Vec<Key>, Vec<Key>) =
            authors.iter().copied().partition(|key| (self.source.is_barred)(key));
        for key in &open {
            self.barred.remove(key);
        }
        for key in barred {
            self.trust.put_list(&key, &[]);
            self.barred.insert(key);
        }
        let read = self.read_lists(open);
        if let Err(error) = read {
            self.changed.extend(authors);
            return Err(error);
        }
        self.is_failing = false;
        Ok(true)
    }

    fn read_lists(&mut self, authors: Vec<Key>) -> Result<(), SearchError> {
        let TrustSource { open, clock, hidden, .. } = &self.source;
        let store = match &self.store {
            Some(store) => store,
            None => self.store.insert(open()?),
        };
        let trust = &self.trust;
        let mut put = |author: &Key, follows: &[Key]| trust.put_list(author, follows);
        read_lists(&**store, authors, clock.now_s(), hidden.clone(), &mut put)
    }

    /// Returns the next authors whose lists are read, those with changed lists first.
    fn next_authors(&mut self) -> Vec<Key> {
        let Self { trust, changed, doubted, .. } = self;
        let mut authors = HashSet::new();
        trust.change(|graph| {
            pop_some(changed, graph, &mut authors);
            authors.extend(graph.pop_unread(LISTS_AT_ONCE - authors.len()));
            pop_some(doubted, graph, &mut authors);
        });
        authors.into_iter().collect()
    }

    /// Notes that all lists are read.
    fn end_reading(&mut self) {
        let Some(began) = self.began.filter(|_| self.trust.complete()) else { return };
        self.began = None;
        let stats = self.trust.graph().stats();
        if self.trust.mode() != RuleMode::Off {
            let trusted = stats.rings.iter().sum::<usize>();
            let ms = began.elapsed().as_millis() as u64;
            tracing::info!(trusted, lists = stats.lists, ms, "the follow lists are read");
        }
        self.log_counts();
    }

    /// Logs follows that are left out, and events that would be refused, since the last call.
    fn log_counts(&mut self) {
        let left_out = self.trust.graph().stats().left_out;
        if left_out > self.logged.left_out {
            let follows = left_out - self.logged.left_out;
            tracing::warn!(
                follows,
                "some follows do not count: raise [trust] follows_max or bytes_max, or lower depth"
            );
        }
        let (watched, last) = self.trust.watched();
        if watched > self.logged.watched {
            let events = watched - self.logged.watched;
            let last = last.map(|key| npub::encode(&key)).unwrap_or_default();
            tracing::info!(events, last, "events that [trust] mode = \"require\" would refuse");
        }
        self.logged = LoggedTrust { left_out, watched };
    }
}

/// Moves authors from `waiting` to `authors`, up to the number of one search.
fn pop_some(waiting: &mut HashSet<Key>, graph: &TrustGraph, authors: &mut HashSet<Key>) {
    let left = LISTS_AT_ONCE - authors.len();
    for key in waiting.extract_if(|_| true).take(left) {
        // A key that has left the inner rings needs no list.
        if graph.needs_list(&key) {
            authors.insert(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use hark_archive::Write;
    use hark_archive::store::memory::MemoryStore;
    use hark_codec::hex;
    use hark_codec::record::{LabelPosition, RecordHeader, write};
    use hark_networks::nostr::rules::NostrRules;

    use super::*;
    use crate::nostr::trust::lists::FOLLOW_LIST;
    use crate::nostr::trust::rules::{TrustOptions, TrustRules};
    use crate::nostr::trust::state::TrustVerdict;

    /// Longer than any machine needs.
    const PATIENCE: Duration = Duration::from_mins(1);

    #[test]
    fn lists_that_could_not_be_read_are_read_later_and_nobody_is_a_stranger_until_then() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(NostrRules));
        let head = RecordHeader {
            id: [9; 32],
            time: 1,
            author: Some([1; 32]),
            kind: FOLLOW_LIST,
            expires: None,
        };
        let (followed, mut record) = (hex::encode_32(&[2; 32]), Vec::new());
        let label = (b'p', LabelPosition::Bytes(&followed));
        write(&mut record, &head, b"{}", [label].into_iter());
        store.commit(&[Write::Put(record.into())]).expect("stored");
        let rules = TrustRules { roots: vec![[1; 32]], ..TrustRules::default() };
        let trust = Trust::new(TrustOptions { mode: RuleMode::Require, rules });
        let (of_test, has_failed) = (Arc::clone(&trust), AtomicBool::new(false));
        let source = TrustSource {
            open: Box::new(move || {
                if has_failed.swap(true, Ordering::Relaxed) {
                    return Ok(Arc::clone(&store));
                }
                assert_eq!(of_test.verdict(&[1; 32]), TrustVerdict::Trusted);
                assert_eq!(of_test.verdict(&[3; 32]), TrustVerdict::Unknown);
                Err(SearchError::Failed("no disk".into()))
            }),
            clock: Clock::System,
            hidden: None,
            is_barred: Box::new(|_| false),
        };
        let running = trust.start(source).expect("a thread");
        trust.begin();
        assert!(trust.wait_until_read(PATIENCE));
        assert_eq!(trust.verdict(&[2; 32]), TrustVerdict::Trusted);
        assert_eq!(trust.verdict(&[3; 32]), TrustVerdict::Stranger);
        trust.close();
        running.join().expect("no panic");
    }
}
