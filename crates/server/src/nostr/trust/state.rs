//! The trusted keys in one process, shared by the thread that keeps them and by the threads that
//! check events.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use hark_archive::Record;
use hark_archive::meter::Counter;
use hark_codec::record::Key;
use hark_networks::nostr::rules::{DELETION, VANISH_KIND};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

use super::graph::{TrustGraph, TrustStats};
use super::lists::FOLLOW_LIST;
use super::rules::TrustOptions;
use crate::nostr::rule_mode::RuleMode;
use crate::rate::TrustedKeys;

/// Number of follows that one step of a change moves, in about a millisecond.
const STEP: usize = 5_000;

/// The trusted keys, and the rule in force.
#[derive(Default)]
pub struct Trust {
    options: ArcSwap<TrustOptions>,
    graph: RwLock<TrustGraph>,
    /// Number of times that the set of trusted keys has changed.
    generation: AtomicU64,
    desk: Mutex<TrustDesk>,
    woken: Condvar,
    /// Whether all lists that count were read, so that a key outside the graph is not trusted.
    is_complete: AtomicBool,
    /// Events of keys that are not trusted.
    pub(super) counts: TrustCounts,
}

/// Events of keys that are not trusted.
#[derive(Debug, Default)]
pub(crate) struct TrustCounts {
    /// Events that were refused.
    pub(crate) refused: Counter,
    /// Events that were refused for now, because follow lists were still being read.
    pub(crate) deferred: Counter,
    /// Events that were accepted in the mode `watch`.
    pub(crate) watched: Counter,
    /// The author of the last of these events.
    pub(super) last_watched: Mutex<Option<Key>>,
}

/// The work that waits for the thread.
#[derive(Default)]
pub(super) struct TrustWork {
    /// Authors whose lists may have changed. Their lists count, so their number is bounded.
    pub(super) changed: HashSet<Key>,
    /// Whether the rules have changed.
    pub(super) rules: bool,
    /// Whether bans or denied keys may have changed.
    pub(super) bars: bool,
}

/// The work for the thread, and whether the thread may begin.
#[derive(Default)]
struct TrustDesk {
    work: TrustWork,
    phase: TrustPhase,
}

/// The life of the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TrustPhase {
    /// The archive may still lack records of the process that this process takes over from.
    #[default]
    Waiting,
    Reading,
    Closed,
}

impl TrustDesk {
    fn has_work(&self) -> bool {
        !self.work.changed.is_empty() || self.work.rules || self.work.bars
    }
}

/// The verdict of the rule about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrustVerdict {
    Trusted,
    Stranger,
    /// Follow lists are still being read.
    Unknown,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust").field("options", &self.options.load()).finish_non_exhaustive()
    }
}

impl Trust {
    /// Makes a rule without trusted keys. [`Trust::start`] reads the follow lists.
    pub fn new(options: TrustOptions) -> Arc<Self> {
        let trust = Self::default();
        trust.set(options);
        Arc::new(trust)
    }

    /// Puts other options in force. Until the thread has read the lists that count from now on, keys
    /// without known followers are neither trusted nor refused for good.
    pub fn set(&self, options: TrustOptions) {
        let before = self.options.load_full();
        let was_on = before.mode != RuleMode::Off;
        let is_on = options.mode != RuleMode::Off;
        let mut desk = self.desk.lock();
        if was_on != is_on || before.rules != options.rules {
            self.is_complete.store(false, Ordering::Release);
            desk.work.rules = true;
        }
        // The denied keys may have changed as well.
        desk.work.bars = true;
        self.options.store(Arc::new(options));
        drop(desk);
        self.woken.notify_all();
    }

    /// Lets the thread begin to read.
    pub fn begin(&self) {
        let mut desk = self.desk.lock();
        if desk.phase == TrustPhase::Waiting {
            desk.phase = TrustPhase::Reading;
        }
        drop(desk);
        self.woken.notify_all();
    }

    /// Ends the thread.
    pub fn close(&self) {
        self.desk.lock().phase = TrustPhase::Closed;
        self.woken.notify_all();
    }

    /// The effect of the rule.
    pub fn mode(&self) -> RuleMode {
        self.options.load().mode
    }

    /// Returns the warnings for the operator; see [`TrustOptions::advice`].
    pub(crate) fn advice(&self, has_members: bool) -> impl Iterator<Item = String> + use<> {
        self.options.load().advice(has_members)
    }

    /// The sizes of the graph.
    pub fn stats(&self) -> TrustStats {
        self.graph.read().stats()
    }

    pub(crate) fn counts(&self) -> &TrustCounts {
        &self.counts
    }

    /// Notes a record that was stored. Its author's follow list is read again if the record may have
    /// changed the list.
    pub fn note(&self, record: &Record<'_>) {
        let (FOLLOW_LIST | DELETION | VANISH_KIND) = record.kind() else { return };
        if self.mode() == RuleMode::Off {
            return;
        }
        // A list that begins to count later is read later, and then contains this record.
        let Some(author) = record.author().filter(|author| self.graph.read().needs_list(author))
        else {
            return;
        };
        self.desk.lock().work.changed.insert(*author);
        self.woken.notify_all();
    }

    /// Notes that bans may have changed.
    pub fn note_bans(&self) {
        self.desk.lock().work.bars = true;
        self.woken.notify_all();
    }

    /// Waits until all lists are read that count under the present rules. Returns false if that
    /// takes longer than `patience`.
    pub fn wait_until_read(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut desk = self.desk.lock();
        while !self.is_complete.load(Ordering::Acquire) && desk.phase != TrustPhase::Closed {
            if self.woken.wait_until(&mut desk, until).timed_out() {
                break;
            }
        }
        self.is_complete.load(Ordering::Acquire)
    }

    /// Waits until the thread may begin, and then for work, for at most `wait`. `None` once the rule is
    /// closed.
    pub(super) fn next_work(&self, wait: Duration) -> Option<TrustWork> {
        let until = Instant::now() + wait;
        let mut desk = self.desk.lock();
        while desk.phase == TrustPhase::Waiting {
            self.woken.wait(&mut desk);
        }
        while desk.phase == TrustPhase::Reading && !desk.has_work() {
            if self.woken.wait_until(&mut desk, until).timed_out() {
                break;
            }
        }
        (desk.phase == TrustPhase::Reading).then(|| std::mem::take(&mut desk.work))
    }

    /// Changes the graph.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut TrustGraph) -> T) -> T {
        let mut graph = self.graph.write();
        let before = graph.changes;
        let changed = change(&mut graph);
        if graph.changes != before {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        changed
    }

    /// Replaces the follow list of a key.
    pub(super) fn put_list(&self, author: &Key, follows: &[Key]) {
        self.change(|graph| graph.put_list(author, follows));
        self.carry_out();
    }

    /// Carries out the changes of rings. The threads that check events read the graph between two
    /// steps, because a list of a root may change the rings of all other keys.
    fn carry_out(&self) {
        while self.change(|graph| graph.carry_out(STEP)) {}
    }

    /// Reads the graph.
    pub(super) fn graph(&self) -> RwLockReadGuard<'_, TrustGraph> {
        self.graph.read()
    }

    /// Puts the rules in force in the graph. Without the rule, the graph takes no memory.
    pub(super) fn apply_rules(&self) {
        let options = self.options.load();
        if options.mode == RuleMode::Off {
            self.change(|graph| *graph = TrustGraph::default());
        } else {
            self.change(|graph| graph.begin_rules(options.rules.clone()));
            self.carry_out();
            self.change(TrustGraph::drop_unused);
        }
        // A new graph counts its changes from 0.
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that all lists are read, unless the rules have changed in the meantime. Returns whether
    /// all are read.
    pub(super) fn complete(&self) -> bool {
        let desk = self.desk.lock();
        let is_complete = !desk.work.rules;
        if is_complete {
            self.is_complete.store(true, Ordering::Release);
        }
        drop(desk);
        self.woken.notify_all();
        is_complete
    }

    /// Whether a key is trusted. While lists are being read, the followers that are known already
    /// suffice.
    pub(super) fn verdict(&self, key: &Key) -> TrustVerdict {
        // The order of these checks matters: the last lists may be read after the first check.
        let is_complete = self.is_complete.load(Ordering::Acquire);
        let is_root = || self.options.load().rules.roots.binary_search(key).is_ok();
        if self.graph.read().is_trusted(key) || is_root() {
            TrustVerdict::Trusted
        } else if is_complete {
            TrustVerdict::Stranger
        } else {
            TrustVerdict::Unknown
        }
    }

    /// Number of events that the mode `watch` has accepted, and the author of the last.
    pub(super) fn watched(&self) -> (u64, Option<Key>) {
        (self.counts.watched.get(), *self.counts.last_watched.lock())
    }
}

impl TrustedKeys for Trust {
    fn have(&self, key: &Key) -> bool {
        self.mode() != RuleMode::Off && self.verdict(key) == TrustVerdict::Trusted
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}
