//! Rate limits: at most N per minute, and at most M at once after a pause (a token bucket).
//!
//! A bucket is one number: the time at which it will be full again. Taking a token moves that time
//! forward. So the capacity of buckets can change while they are in use, and a full bucket equals a
//! bucket that was never used.
//!
//! The number of buckets is fixed. Every subject has two buckets, found by a keyed hash, and the
//! fuller bucket decides. So a subject that shares only one bucket loses nothing. Below tens of
//! thousands of busy subjects, a subject rarely shares both buckets with busy subjects.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hark_codec::record::Key;
use ipnet::IpNet;
use parking_lot::Mutex;

use crate::address::ClientAddress;
use crate::limits::{Rate, RateLimits};
use crate::metrics::{ByLabel, MetricLabel, labels};
use crate::ranges;
use crate::settings::SharedSettings;

labels! {
    /// The rate that refused a message, by the name of its setting.
    RateName {
        /// EVENT and AUTH messages of an address.
        EventsPerAddress = "events_per_address",
        /// Events of a key.
        EventsPerKey = "events_per_key",
        /// Other messages of an address.
        QuestionsPerAddress = "questions_per_address",
        /// REQs and COUNTs of a key.
        QuestionsPerKey = "questions_per_key",
        /// Rows of a connection.
        RowsPerConnection = "rows_per_connection",
        /// Rows of an address.
        RowsPerAddress = "rows_per_address",
    }
}

/// Clients exempt from the rate limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparedClients {
    /// Clients at these addresses.
    pub addresses: Vec<IpNet>,
    /// Connections that have proved one of these keys (NIP-42).
    pub keys: HashSet<Key>,
}

impl SparedClients {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.keys.is_empty()
    }

    /// Whether a client at `ip` is spared.
    pub(crate) fn have_address(&self, ip: IpAddr) -> bool {
        ranges::contain(&self.addresses, ip)
    }

    fn have(&self, ip: Option<IpAddr>, keys: &[Key]) -> bool {
        ip.is_some_and(|ip| self.have_address(ip)) || keys.iter().any(|key| self.keys.contains(key))
    }
}

/// Number of buckets; together they take 1 MiB.
const BUCKETS: usize = 1 << 17;

/// A subject of a rate limit. Each subject has its own buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RateSubject {
    /// EVENT and AUTH messages of a source.
    Events(RateSource),
    /// Events of a key.
    EventsOf(Key),
    /// REQs, COUNTs and other messages of a source that need an answer.
    Questions(RateSource),
    /// REQs and COUNTs of a key that was proved.
    QuestionsOf(Key),
    /// Rows that the questions of a source visit.
    Rows(RateSource),
}

/// Where messages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RateSource {
    /// All connections of an address.
    Address(ClientAddress),
    /// One connection, by its number.
    Connection(u64),
}

/// All buckets.
pub(crate) struct RateBuckets {
    start: Instant,
    hasher: RandomState,
    full_at_ns: Box<[AtomicU64]>,
}

impl Default for RateBuckets {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            hasher: RandomState::new(),
            full_at_ns: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl RateBuckets {
    fn of(&self, meter: RateSubject) -> [&AtomicU64; 2] {
        let hash = self.hasher.hash_one(meter) as usize;
        [&self.full_at_ns[hash % BUCKETS], &self.full_at_ns[(hash >> 32) % BUCKETS]]
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Nanoseconds until the bucket is full again.
    fn spent_ns(&self, meter: RateSubject, now_ns: u64) -> u64 {
        let [one, two] = self.of(meter).map(|full_at_ns| full_at_ns.load(Ordering::Relaxed));
        one.min(two).saturating_sub(now_ns)
    }

    /// The time until the bucket has one token.
    fn wait(&self, meter: RateSubject, rate: Rate) -> Duration {
        let (interval_ns, holds_ns) = (interval_ns(rate), holds_ns(rate));
        let spent_ns = self.spent_ns(meter, self.now_ns());
        Duration::from_nanos(spent_ns.saturating_add(interval_ns).saturating_sub(holds_ns))
    }

    /// Takes `count` tokens, even if the bucket has fewer: for work whose size is known only
    /// afterwards. The debt is at most the capacity of the bucket.
    fn spend(&self, meter: RateSubject, rate: Rate, count: u64) {
        let now_ns = self.now_ns();
        let spent_ns = self.spent_ns(meter, now_ns);
        let spent_ns = spent_ns.saturating_add(interval_ns(rate).saturating_mul(count));
        let full_at_ns = now_ns.saturating_add(spent_ns.min(holds_ns(rate).saturating_mul(2)));
        for bucket in self.of(meter) {
            bucket.fetch_max(full_at_ns, Ordering::Relaxed);
        }
    }

    /// Begins a pause of the subject, or returns the remaining time of a pause that has begun. A
    /// subject has a pause or a rate, not both.
    #[cfg(feature = "devp2p")]
    pub(crate) fn pause(&self, subject: RateSubject, pause: Duration) -> Result<(), Duration> {
        let now_ns = self.now_ns();
        match self.spent_ns(subject, now_ns) {
            0 => {
                let until_ns = now_ns.saturating_add(pause.as_nanos() as u64);
                for bucket in self.of(subject) {
                    bucket.fetch_max(until_ns, Ordering::Relaxed);
                }
                Ok(())
            }
            left_ns => Err(Duration::from_nanos(left_ns)),
        }
    }

    /// Takes one token, or returns the time until a token is available.
    pub(crate) fn take(&self, meter: RateSubject, rate: Rate) -> Result<(), Duration> {
        self.take_many(meter, rate, 1)
    }

    /// Takes `count` tokens if at least one token is available, or returns the time until then.
    fn take_many(&self, meter: RateSubject, rate: Rate, count: u64) -> Result<(), Duration> {
        let wait = self.wait(meter, rate);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        self.spend(meter, rate, count);
        Ok(())
    }
}

/// Bytes of a message per additional token.
const BYTES_PER_TOKEN: usize = 64 << 10;

/// Returns the number of tokens that a message of `bytes` bytes costs.
fn tokens(bytes: usize) -> u64 {
    1 + (bytes / BYTES_PER_TOKEN) as u64
}

/// Time in which one token is refilled.
fn interval_ns(rate: Rate) -> u64 {
    60_000_000_000 / rate.per_minute.max(1)
}

/// Time in which an empty bucket becomes full.
fn holds_ns(rate: Rate) -> u64 {
    interval_ns(rate).saturating_mul(rate.at_once.max(1))
}

/// A refusal, and how long to wait.
pub(crate) struct RateExceeded {
    /// The text that is sent to the client, with its prefix.
    pub(crate) reason: String,
    pub(crate) wait: Duration,
}

impl RateSubject {
    /// The setting that bounds the subject.
    fn name(self) -> RateName {
        match self {
            Self::Events(_) => RateName::EventsPerAddress,
            Self::EventsOf(_) => RateName::EventsPerKey,
            Self::Questions(_) => RateName::QuestionsPerAddress,
            Self::QuestionsOf(_) => RateName::QuestionsPerKey,
            Self::Rows(RateSource::Address(_)) => RateName::RowsPerAddress,
            Self::Rows(RateSource::Connection(_)) => RateName::RowsPerConnection,
        }
    }
}

impl RateName {
    fn of(self, rates: &RateLimits) -> Option<Rate> {
        match self {
            Self::EventsPerAddress => rates.events_per_address,
            Self::EventsPerKey => rates.events_per_key,
            Self::QuestionsPerAddress => rates.questions_per_address,
            Self::QuestionsPerKey => rates.questions_per_key,
            Self::RowsPerConnection => rates.rows_per_connection,
            Self::RowsPerAddress => rates.rows_per_address,
        }
    }

    /// The names of the measured items and of the subject, for the text sent to the client.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::EventsPerAddress => ("events", "your address"),
            Self::EventsPerKey => ("events", "this key"),
            Self::QuestionsPerAddress => ("messages", "your address"),
            Self::QuestionsPerKey => ("questions", "your key"),
            Self::RowsPerConnection => ("rows visited", "this connection"),
            Self::RowsPerAddress => ("rows visited", "your address"),
        }
    }
}

/// The buckets, with the settings that hold their rates.
#[derive(Clone)]
pub(crate) struct RateLimiter {
    buckets: Arc<RateBuckets>,
    settings: SharedSettings,
    refusals: Arc<ByLabel<RateName>>,
}

impl RateLimiter {
    pub(crate) fn new(settings: SharedSettings) -> Self {
        Self { buckets: Arc::default(), settings, refusals: Arc::default() }
    }

    /// The numbers of refused messages, by rate.
    pub(crate) fn refusals(&self) -> &ByLabel<RateName> {
        &self.refusals
    }

    fn rate(&self, meter: RateSubject) -> Option<Rate> {
        meter.name().of(&self.settings.load().limits.rates)
    }

    /// Takes `count` tokens if at least one token is available.
    fn take(&self, meter: RateSubject, count: u64) -> Result<(), RateExceeded> {
        let Some(rate) = self.rate(meter) else { return Ok(()) };
        let taken = self.buckets.take_many(meter, rate, count);
        taken.map_err(|wait| self.too_fast(meter, rate, wait))
    }

    /// Charges rows that a question of `source` has visited.
    pub(crate) fn visited(&self, source: RateSource, rows: u64) {
        let meter = RateSubject::Rows(source);
        if let Some(rate) = self.rate(meter) {
            self.buckets.spend(meter, rate, rows);
        }
    }

    /// Checks that a token is available, and takes none.
    pub(crate) fn look(&self, meter: RateSubject) -> Result<(), RateExceeded> {
        let Some(rate) = self.rate(meter) else { return Ok(()) };
        match self.buckets.wait(meter, rate) {
            Duration::ZERO => Ok(()),
            wait => Err(self.too_fast(meter, rate, wait)),
        }
    }

    /// Counts a refusal, and formats the reason.
    fn too_fast(&self, meter: RateSubject, rate: Rate, wait: Duration) -> RateExceeded {
        let name = meter.name();
        self.refusals.of(name).add(1);
        let (what, whose) = name.words();
        let (per_minute, wait_s) = (rate.per_minute, wait.as_secs() + 1);
        let reason = format!(
            "rate-limited: more than {per_minute} {what} a minute of {whose}; wait {wait_s} s"
        );
        RateExceeded { reason, wait }
    }
}

/// The rate limits of one connection.
#[derive(Clone)]
pub(crate) struct RatedConnection(Arc<RatedClient>);

struct RatedClient {
    rates: RateLimiter,
    /// The client's address, or the connection if a proxy names no address.
    source: RateSource,
    connection: RateSource,
    ip: Option<IpAddr>,
    spared: Mutex<SparedState>,
}

/// The last decision whether a client is spared, with the lists that it was based on.
#[derive(Default)]
struct SparedState {
    /// The keys that the connection has proved.
    keys: Vec<Key>,
    judged: Option<(Arc<SparedClients>, bool)>,
}

impl RatedConnection {
    /// The rate limits of the connection with this number, from `ip`.
    pub(crate) fn new(rates: &RateLimiter, number: u64, ip: Option<IpAddr>) -> Self {
        let connection = RateSource::Connection(number);
        let source = ip.map_or(connection, |ip| RateSource::Address(ip.into()));
        let (rates, spared) = (rates.clone(), Mutex::default());
        Self(Arc::new(RatedClient { rates, source, connection, ip, spared }))
    }

    /// The client's address, if it is known.
    pub(crate) fn address(&self) -> Option<ClientAddress> {
        match self.0.source {
            RateSource::Address(address) => Some(address),
            RateSource::Connection(_) => None,
        }
    }

    /// Notes that the connection has proved a key.
    pub(crate) fn proved(&self, key: &Key) {
        let mut spared = self.0.spared.lock();
        if !spared.keys.contains(key) {
            spared.keys.push(*key);
            spared.judged = None;
        }
    }

    /// Whether the operator spares this client all rates. A change of the lists applies at once.
    fn is_spared(&self) -> bool {
        let RatedClient { rates, ip, spared, .. } = &*self.0;
        let settings = rates.settings.load();
        let lists = &settings.spared;
        if lists.is_empty() {
            return false;
        }
        let mut state = spared.lock();
        if let Some((_, is_spared)) = state.judged.as_ref().filter(|(by, _)| Arc::ptr_eq(by, lists))
        {
            return *is_spared;
        }
        let is_spared = lists.have(*ip, &state.keys);
        state.judged = Some((Arc::clone(lists), is_spared));
        is_spared
    }

    fn take(&self, meter: RateSubject, count: u64) -> Result<(), RateExceeded> {
        if self.is_spared() { Ok(()) } else { self.0.rates.take(meter, count) }
    }

    /// Charges an EVENT or AUTH message of `bytes` bytes. Fails if the rate is exceeded.
    pub(crate) fn publishes(&self, bytes: usize) -> Result<(), RateExceeded> {
        self.take(RateSubject::Events(self.0.source), tokens(bytes))
    }

    /// Charges an event with a valid signature to its author. Fails if the rate is exceeded.
    pub(crate) fn publishes_of(&self, author: &Key) -> Result<(), RateExceeded> {
        self.take(RateSubject::EventsOf(*author), 1)
    }

    /// Checks that an event of this author would be within its rate, and charges nothing.
    pub(crate) fn may_publish_of(&self, author: &Key) -> Result<(), RateExceeded> {
        if self.is_spared() {
            return Ok(());
        }
        self.0.rates.look(RateSubject::EventsOf(*author))
    }

    /// Charges a message of another type, of `bytes` bytes. Fails if the rate is exceeded.
    pub(crate) fn speaks(&self, bytes: usize) -> Result<(), RateExceeded> {
        self.take(RateSubject::Questions(self.0.source), tokens(bytes))
    }

    /// Charges a question to the keys that its client has proved. Fails if the rate of a key or of
    /// visited rows is exceeded.
    pub(crate) fn asks(&self, keys: &[Key]) -> Result<(), RateExceeded> {
        if self.is_spared() {
            return Ok(());
        }
        let RatedClient { rates, source, connection, .. } = &*self.0;
        rates.look(RateSubject::Rows(*connection))?;
        if source != connection {
            rates.look(RateSubject::Rows(*source))?;
        }
        keys.iter().try_for_each(|key| rates.take(RateSubject::QuestionsOf(*key), 1))
    }

    /// Charges a message that was refused or deferred before, or returns the time that it has to
    /// wait.
    pub(crate) fn goes_on(&self) -> Result<(), Duration> {
        if self.is_spared() {
            return Ok(());
        }
        let RatedClient { rates, source, connection, .. } = &*self.0;
        let message = RateSubject::Questions(*source);
        let meters = [message, RateSubject::Rows(*source), RateSubject::Rows(*connection)];
        let wait = |meter| rates.rate(meter).map(|rate| rates.buckets.wait(meter, rate));
        let wait = meters.into_iter().filter_map(wait).max().unwrap_or_default();
        if wait > Duration::ZERO {
            return Err(wait);
        }
        if let Some(rate) = rates.rate(message) {
            rates.buckets.spend(message, rate, 1);
        }
        Ok(())
    }

    /// Charges rows that questions of the connection have visited.
    pub(crate) fn visited(&self, rows: u64) {
        if rows == 0 || self.is_spared() {
            return;
        }
        let RatedClient { rates, source, connection, .. } = &*self.0;
        let several = if source == connection { 1 } else { 2 };
        for meter in [*connection, *source].map(RateSubject::Rows).into_iter().take(several) {
            if let Some(rate) = rates.rate(meter) {
                rates.buckets.spend(meter, rate, rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Rate = Rate { per_minute: 1, at_once: 5 };

    #[test]
    fn a_bucket_gives_what_it_holds_and_then_says_how_long() {
        let buckets = RateBuckets::default();
        let meter = |n| RateSubject::Events(RateSource::Connection(n));
        for _ in 0..5 {
            assert!(buckets.take(meter(1), SLOW).is_ok());
        }
        let wait = buckets.take(meter(1), SLOW).unwrap_err();
        assert!(wait > Duration::from_secs(30) && wait <= Duration::from_mins(1), "{wait:?}");
        assert!(buckets.take(meter(2), SLOW).is_ok(), "another has its own");
        let questions = RateSubject::Questions(RateSource::Connection(1));
        assert!(buckets.take(questions, SLOW).is_ok(), "and so has another meter");
        // A raised rate applies at once.
        assert!(buckets.take(meter(1), Rate { at_once: 6, ..SLOW }).is_ok());
    }

    #[cfg(feature = "devp2p")]
    #[test]
    fn a_pause_is_one_of_its_subject_and_ends() {
        let buckets = RateBuckets::default();
        let subject = |n| RateSubject::QuestionsOf([n; 32]);
        assert_eq!(buckets.pause(subject(1), Duration::from_mins(1)), Ok(()));
        let left = buckets.pause(subject(1), Duration::from_mins(1)).unwrap_err();
        assert!(left > Duration::from_secs(30) && left <= Duration::from_mins(1), "{left:?}");
        assert_eq!(buckets.pause(subject(2), Duration::ZERO), Ok(()));
        assert_eq!(buckets.pause(subject(2), Duration::from_mins(1)), Ok(()), "it is over");
    }

    #[test]
    fn what_is_owed_is_bounded() {
        let buckets = RateBuckets::default();
        let meter = RateSubject::Rows(RateSource::Connection(7));
        buckets.spend(meter, SLOW, u64::MAX);
        let wait = buckets.take(meter, SLOW).unwrap_err();
        assert!(wait <= Duration::from_mins(6), "{wait:?}");
    }

    #[test]
    fn a_client_is_spared_by_its_address_or_a_key_that_it_proves_and_no_longer_than_listed() {
        let settings = SharedSettings::default();
        let put = |spared: SparedClients| {
            let rates = RateLimits { events_per_address: Some(SLOW), ..RateLimits::none() };
            let limits = crate::limits::Limits { rates, ..Default::default() };
            let spared = Arc::new(spared);
            settings.store(Arc::new(crate::Settings { limits, spared, ..Default::default() }));
        };
        put(SparedClients::default());
        let rates = RateLimiter::new(Arc::clone(&settings));
        let ip = |text: &str| Some(text.parse().unwrap());
        let (peer, other) = (ip("2001:db8::5"), ip("2001:db8::6"));
        let [peer, other] = [peer, other].map(|ip| RatedConnection::new(&rates, 1, ip));
        let nameless = RatedConnection::new(&rates, 2, None);
        for client in [&peer, &nameless] {
            (0..5).for_each(|_| assert!(client.publishes(0).is_ok()));
            assert!(client.publishes(0).is_err());
        }
        let spared = |addresses: &[&str], keys: &[Key]| SparedClients {
            addresses: addresses.iter().map(|range| ranges::read(range).unwrap()).collect(),
            keys: keys.iter().copied().collect(),
        };
        put(spared(&["2001:db8::5"], &[[7; 32]]));
        assert!((0..50).all(|_| peer.publishes(0).is_ok()));
        assert!(other.publishes(0).is_err(), "another client of the same network is not spared");
        assert!(nameless.publishes(0).is_err(), "a client without an address is on no list");
        nameless.proved(&[8; 32]);
        assert!(nameless.publishes(0).is_err());
        nameless.proved(&[7; 32]);
        assert!((0..50).all(|_| nameless.publishes(0).is_ok()));
        put(spared(&[], &[[9; 32]]));
        assert!(peer.publishes(0).is_err() && nameless.publishes(0).is_err());
        assert_eq!(rates.refusals().of(RateName::EventsPerAddress).get(), 7);
    }

    #[test]
    fn a_long_message_counts_once_more_for_every_64_kib() {
        let settings = SharedSettings::default();
        let rates = RateLimits { events_per_address: Some(SLOW), ..RateLimits::none() };
        let limits = crate::limits::Limits { rates, ..Default::default() };
        settings.store(Arc::new(crate::Settings { limits, ..Default::default() }));
        let rates = RateLimiter::new(settings);
        for (number, bytes, taken) in [(1, 65_535, 5), (2, 65_536, 3), (3, 1 << 20, 1)] {
            let client = RatedConnection::new(&rates, number, None);
            let passed = (0..9).filter(|_| client.publishes(bytes).is_ok()).count();
            assert_eq!(passed, taken, "{bytes} bytes");
        }
    }
}
