//! Rate limits: at most N a minute, and at most M at once after a pause (a token bucket).
//!
//! A bucket is one number: the time at which it will be full again. Taking a token moves that time
//! forward. So the capacity of buckets can change while they are in use, and a full bucket equals a
//! bucket that was never used.
//!
//! The number of buckets is fixed. Every subject has two buckets, found by a keyed hash, and the
//! fuller one decides. So a subject that shares one bucket loses nothing, and a subject rarely
//! shares both with busy ones until there are tens of thousands of busy subjects.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hark_archive::limits::Rate;
use hark_codec::record::Key;

use crate::address::ClientAddress;
use crate::settings::SharedSettings;

/// Number of buckets; together they take 1 MiB.
const BUCKETS: usize = 1 << 17;

/// What is measured. Each subject has a rate of its own.
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

    /// Begins a pause of the subject, or returns how long one that has begun still takes. A subject
    /// has a pause or a rate, not both.
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

    /// Takes one token, or returns the time until there is one.
    pub(crate) fn take(&self, meter: RateSubject, rate: Rate) -> Result<(), Duration> {
        let wait = self.wait(meter, rate);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        self.spend(meter, rate, 1);
        Ok(())
    }
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

/// Buckets, and how fast they fill.
#[derive(Clone)]
pub(crate) struct RateLimiter {
    buckets: Arc<RateBuckets>,
    settings: SharedSettings,
}

impl RateLimiter {
    pub(crate) fn new(settings: SharedSettings) -> Self {
        Self { buckets: Arc::default(), settings }
    }

    fn rate(&self, meter: RateSubject) -> Option<Rate> {
        let rates = &self.settings.load().limits.rates;
        match meter {
            RateSubject::Events(_) => rates.events_per_address,
            RateSubject::EventsOf(_) => rates.events_per_key,
            RateSubject::Questions(_) => rates.questions_per_address,
            RateSubject::QuestionsOf(_) => rates.questions_per_key,
            RateSubject::Rows(RateSource::Address(_)) => rates.rows_per_address,
            RateSubject::Rows(RateSource::Connection(_)) => rates.rows_per_connection,
        }
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&self, meter: RateSubject) -> Result<(), RateExceeded> {
        let Some(rate) = self.rate(meter) else { return Ok(()) };
        self.buckets.take(meter, rate).map_err(|wait| too_fast(meter, rate, wait))
    }

    /// Checks that there is a token, and takes none.
    pub(crate) fn look(&self, meter: RateSubject) -> Result<(), RateExceeded> {
        let Some(rate) = self.rate(meter) else { return Ok(()) };
        match self.buckets.wait(meter, rate) {
            Duration::ZERO => Ok(()),
            wait => Err(too_fast(meter, rate, wait)),
        }
    }
}

fn too_fast(meter: RateSubject, rate: Rate, wait: Duration) -> RateExceeded {
    let (what, whose) = match meter {
        RateSubject::Events(_) => ("events", "your address"),
        RateSubject::EventsOf(_) => ("events", "this key"),
        RateSubject::Questions(_) => ("messages", "your address"),
        RateSubject::QuestionsOf(_) => ("questions", "your key"),
        RateSubject::Rows(RateSource::Address(_)) => ("rows visited", "your address"),
        RateSubject::Rows(RateSource::Connection(_)) => ("rows visited", "this connection"),
    };
    let (per_minute, wait_s) = (rate.per_minute, wait.as_secs() + 1);
    let reason =
        format!("rate-limited: more than {per_minute} {what} a minute of {whose}; wait {wait_s} s");
    RateExceeded { reason, wait }
}

/// The rate limits of one connection.
#[derive(Clone)]
pub(crate) struct RatedConnection {
    rates: RateLimiter,
    /// The client's address, or the connection if a proxy names no address.
    source: RateSource,
    connection: RateSource,
}

impl RatedConnection {
    /// The rate limits of the connection with this number, from `address`.
    pub(crate) fn new(rates: &RateLimiter, number: u64, address: Option<ClientAddress>) -> Self {
        let connection = RateSource::Connection(number);
        let source = address.map_or(connection, RateSource::Address);
        Self { rates: rates.clone(), source, connection }
    }

    /// The client's address, if it is known.
    pub(crate) fn address(&self) -> Option<ClientAddress> {
        match self.source {
            RateSource::Address(address) => Some(address),
            RateSource::Connection(_) => None,
        }
    }

    /// Counts an EVENT or AUTH message, or refuses it.
    pub(crate) fn publishes(&self) -> Result<(), RateExceeded> {
        self.rates.take(RateSubject::Events(self.source))
    }

    /// Counts another message, or refuses it.
    pub(crate) fn speaks(&self) -> Result<(), RateExceeded> {
        self.rates.take(RateSubject::Questions(self.source))
    }

    /// Counts a question of a client that has proved these keys, or refuses it.
    pub(crate) fn asks(&self, keys: &[Key]) -> Result<(), RateExceeded> {
        self.rates.look(RateSubject::Rows(self.connection))?;
        if self.source != self.connection {
            self.rates.look(RateSubject::Rows(self.source))?;
        }
        keys.iter().try_for_each(|key| self.rates.take(RateSubject::QuestionsOf(*key)))
    }

    /// Counts rows that questions of the connection have visited.
    pub(crate) fn visited(&self, rows: u64) {
        let meters = [self.connection, self.source].map(RateSubject::Rows);
        let several = if self.source == self.connection { 1 } else { 2 };
        for meter in meters.into_iter().take(several) {
            if let Some(rate) = self.rates.rate(meter) {
                self.rates.buckets.spend(meter, rate, rows);
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
        // A rate that has been raised applies at once.
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
}
