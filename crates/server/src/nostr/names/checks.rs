//! The keys whose names are to be checked, the reasons of failed checks, and the counters of checks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hark_archive::Record;
use hark_codec::record::Key;
use hark_networks::nostr::names::PROFILE_KIND;
use hark_networks::nostr::rules::{DELETION, VANISH_KIND};
use hark_networks::nostr::{NostrRefusal, NostrVerdict};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::{ByLabel, Counter, MetricLabel, labels};
use crate::moderation::Moderation;
use crate::nostr::policy::{NAME_NEEDED, SharedPolicy};

/// Time after a failed check within which an event without a name begins no further check of its
/// author.
const FAILED_PAUSE: Duration = Duration::from_mins(1);
/// How long the reason of a failed check is remembered. Meanwhile, a verified name that could not be
/// checked again waits.
const REASON_AGE_MAX: Duration = Duration::from_hours(1);
/// Maximum number of failed checks whose reasons are remembered.
const REASONS_MAX: usize = 10_000;

labels! {
    /// The result of a check of a name.
    NameResult {
        /// The domain lists the key.
        Verified = "verified",
        /// The domain lists another key, or does not list the name.
        Unlisted = "unlisted",
        /// The domain could not be asked, or its answer cannot be used.
        Failed = "failed",
        /// The domain failed a short time ago, and was not asked.
        Postponed = "postponed",
        /// Names of the domain do not count.
        Domain = "domain",
        /// Too many names wait for a check, or are verified.
        Full = "full",
        /// The author has replaced the profile meanwhile.
        Replaced = "replaced",
        /// The result could not be stored, or the profile could not be read.
        Store = "store",
    }
}

/// The part of the checks that the threads of the relay share.
pub(crate) struct NameChecks {
    pub(super) policy: SharedPolicy,
    pub(super) moderation: Moderation,
    wanted: Mutex<WantedKeys>,
    arrived: Notify,
    reasons: Mutex<HashMap<Key, FailedCheck>>,
    pub(crate) metrics: NameMetrics,
}

/// The counters of checks.
#[derive(Default)]
pub(crate) struct NameMetrics {
    pub(crate) results: ByLabel<NameResult>,
    /// Number of names that wait for their domain.
    pub(super) waiting: AtomicU64,
    /// Events of keys without a verified name that `mode = "require"` refuses.
    pub(crate) unnamed: Counter,
}

#[derive(Default)]
struct WantedKeys {
    queue: VecDeque<Key>,
    queued: HashSet<Key>,
}

struct FailedCheck {
    at: Instant,
    reason: Arc<str>,
}

impl NameChecks {
    pub(crate) fn new(policy: SharedPolicy, moderation: Moderation) -> Self {
        Self {
            policy,
            moderation,
            wanted: Mutex::default(),
            arrived: Notify::new(),
            reasons: Mutex::default(),
            metrics: NameMetrics::default(),
        }
    }

    /// Notes a stored record: a profile, or a request that may delete the profile of a verified key.
    /// Never waits, since the writer's thread calls this function.
    pub(crate) fn note_stored(&self, record: &Record<'_>) {
        let is_request = [DELETION, VANISH_KIND].contains(&record.kind());
        if record.kind() != u32::from(PROFILE_KIND) && !is_request {
            return;
        }
        let Some(author) = record.author() else { return };
        let policy = self.policy.load();
        let is_verified = || self.moderation.name_of(author).is_some();
        if policy.names.is_on() && (!is_request || is_verified()) {
            // The end of a verification is never lost: the keys with a verification are bounded.
            let max = if is_verified() { usize::MAX } else { policy.names.waiting_max };
            self.want(author, max);
        }
    }

    /// Queues the check of a key, unless `max` keys wait already.
    pub(super) fn want(&self, key: &Key, max: usize) -> bool {
        let mut wanted = self.wanted.lock();
        if wanted.queued.contains(key) {
            return true;
        }
        let has_place = wanted.queue.len() < max;
        if has_place {
            wanted.queued.insert(*key);
            wanted.queue.push_back(*key);
            drop(wanted);
            self.arrived.notify_one();
        } else {
            self.metrics.results.of(NameResult::Full).add(1);
        }
        has_place
    }

    /// Waits for the next key to check.
    pub(super) async fn next_wanted(&self) -> Key {
        loop {
            if let Some(key) = self.pop_wanted() {
                return key;
            }
            self.arrived.notified().await;
        }
    }

    fn pop_wanted(&self) -> Option<Key> {
        let mut wanted = self.wanted.lock();
        let key = wanted.queue.pop_front()?;
        wanted.queued.remove(&key);
        Some(key)
    }

    /// Number of keys that wait until their profiles are read.
    pub(super) fn wanted_len(&self) -> usize {
        self.wanted.lock().queue.len()
    }

    /// Number of keys whose names wait for a check.
    pub(crate) fn waiting_len(&self) -> u64 {
        self.wanted_len() as u64 + self.metrics.waiting.load(Ordering::Relaxed)
    }

    /// Counts a failed check, and remembers its reason for the author.
    pub(super) fn note_failure(&self, key: &Key, result: NameResult, reason: String) {
        self.metrics.results.of(result).add(1);
        let (at, mut reasons) = (Instant::now(), self.reasons.lock());
        if reasons.len() >= REASONS_MAX {
            reasons.retain(|_, failed| failed.at + REASON_AGE_MAX > at);
        }
        if reasons.len() < REASONS_MAX || reasons.contains_key(key) {
            reasons.insert(*key, FailedCheck { at, reason: reason.into() });
        }
    }

    /// Counts a check without a failure.
    pub(super) fn note_success(&self, key: &Key, result: NameResult) {
        self.metrics.results.of(result).add(1);
        self.reasons.lock().remove(key);
    }

    /// Whether the last check of a key has failed.
    pub(super) fn has_failed(&self, key: &Key) -> bool {
        let reasons = self.reasons.lock();
        reasons.get(key).is_some_and(|failed| failed.at.elapsed() < REASON_AGE_MAX)
    }

    /// Begins a check of the author of an event that needs a verified name. The name may be in a
    /// profile that was stored before names were checked.
    pub(crate) fn note_unnamed(&self, author: &Key) {
        self.metrics.unnamed.add(1);
        let failed = self.reasons.lock().get(author).map(|failed| failed.at);
        if failed.is_some_and(|at| at.elapsed() < FAILED_PAUSE) {
            return;
        }
        // The signature is not verified yet, so keys of refused events may fill only a half of the
        // places.
        let max = self.policy.load().names.waiting_max.div_ceil(2);
        self.want(author, max);
    }

    /// Adds the reason of the author's last failed check to the refusal of an event for lack of a
    /// name, and begins a check. Returns other refusals as they are.
    pub(crate) fn explain(&self, refusal: NostrRefusal, author: &Key) -> NostrRefusal {
        if refusal.words != NAME_NEEDED {
            return refusal;
        }
        self.note_unnamed(author);
        let reasons = self.reasons.lock();
        let Some(failed) = reasons.get(author).filter(|it| it.at.elapsed() < REASON_AGE_MAX) else {
            return refusal;
        };
        NostrVerdict::Restricted.because(format!(
            "only keys with a verified name (NIP-05) may publish here, and {}; once that is mended, publish your \
             profile (kind 0) again",
            failed.reason
        ))
    }
}
