//! The token buckets of the rate limits.
//!
//! A bucket is one number: the time at which it will be full again. Taking a token makes that time
//! later. So the capacity of buckets can change while they are in use, and a full bucket equals a
//! bucket that was never used.
//!
//! The number of buckets is fixed. Every subject has two buckets, found by a keyed hash, and the
//! fuller bucket decides. So a subject loses tokens to others only if it shares both of its buckets
//! with busy subjects, which is rare below tens of thousands of busy subjects.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hark_codec::record::Key;

use super::limits::Rate;
use crate::address::ClientAddress;

/// Number of buckets; together they take 1 MiB.
const BUCKETS: usize = 1 << 17;

/// A subject of a rate limit. Each subject maps to two buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RateSubject {
    /// EVENT and AUTH messages of a source.
    Events(RateSource),
    /// Events of a key.
    EventsOf(Key),
    /// REQs, COUNTs and other messages of a source that need an answer.
    Questions(RateSource),
    /// REQs, COUNTs, NEG-OPENs and NEG-MSGs of a key that was proved.
    QuestionsOf(Key),
    /// Rows that the questions of a source visit.
    Rows(RateSource),
}

/// A subject of the rates of a group, or of the rates for everyone.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct RateMeter {
    /// The number of the group; 0 for everyone.
    group: u64,
    subject: RateSubject,
}

impl RateMeter {
    /// A subject of the group of this number, or of everyone.
    pub(crate) fn new(group: Option<u64>, subject: RateSubject) -> Self {
        Self { group: group.unwrap_or(0), subject }
    }
}

impl From<RateSubject> for RateMeter {
    fn from(subject: RateSubject) -> Self {
        Self::new(None, subject)
    }
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
    fn of(&self, meter: RateMeter) -> [&AtomicU64; 2] {
        let hash = self.hasher.hash_one(meter) as usize;
        [&self.full_at_ns[hash % BUCKETS], &self.full_at_ns[(hash >> 32) % BUCKETS]]
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Number of nanoseconds until the fuller of the subject's two buckets is full again.
    fn spent_ns(&self, meter: RateMeter, now_ns: u64) -> u64 {
        let [one, two] = self.of(meter).map(|full_at_ns| full_at_ns.load(Ordering::Relaxed));
        one.min(two).saturating_sub(now_ns)
    }

    /// The time until the bucket has one token.
    pub(super) fn wait(&self, meter: RateMeter, rate: Rate) -> Duration {
        let (interval_ns, holds_ns) = (interval_ns(rate), holds_ns(rate));
        let spent_ns = self.spent_ns(meter, self.now_ns());
        Duration::from_nanos(spent_ns.saturating_add(interval_ns).saturating_sub(holds_ns))
    }

    /// Takes `count` tokens, even if the bucket has fewer. Used if the size of the work is known
    /// only after the work is done. The debt is at most the capacity of the bucket.
    pub(super) fn spend(&self, meter: RateMeter, rate: Rate, count: u64) {
        let now_ns = self.now_ns();
        let spent_ns = self.spent_ns(meter, now_ns);
        let spent_ns = spent_ns.saturating_add(interval_ns(rate).saturating_mul(count));
        let full_at_ns = now_ns.saturating_add(spent_ns.min(holds_ns(rate).saturating_mul(2)));
        for bucket in self.of(meter) {
            bucket.fetch_max(full_at_ns, Ordering::Relaxed);
        }
    }

    /// Gives back `count` tokens that were taken for work that was not done.
    pub(super) fn refund(&self, meter: RateMeter, rate: Rate, count: u64) {
        let back_ns = interval_ns(rate).saturating_mul(count);
        for bucket in self.of(meter) {
            // Cannot fail, because the closure always returns a value.
            let _ = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at_ns| {
                Some(full_at_ns.saturating_sub(back_ns))
            });
        }
    }

    /// Begins a pause of the subject, or returns the remaining time of a pause that has begun. A
    /// subject has a pause or a rate, not both.
    #[cfg(feature = "devp2p")]
    pub(crate) fn pause(&self, subject: RateSubject, pause: Duration) -> Result<(), Duration> {
        let (subject, now_ns) = (RateMeter::from(subject), self.now_ns());
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
    pub(crate) fn charge(&self, meter: impl Into<RateMeter>, rate: Rate) -> Result<(), Duration> {
        self.charge_many(meter.into(), rate, 1)
    }

    /// Takes `count` tokens if at least one token is available. Otherwise returns the time until
    /// one token is available.
    pub(super) fn charge_many(
        &self,
        meter: RateMeter,
        rate: Rate,
        count: u64,
    ) -> Result<(), Duration> {
        let wait = self.wait(meter, rate);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        self.spend(meter, rate, count);
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

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Rate = Rate { per_minute: 1, at_once: 5 };

    #[test]
    fn a_bucket_gives_what_it_holds_and_then_says_how_long() {
        let buckets = RateBuckets::default();
        let meter = |n| RateSubject::Events(RateSource::Connection(n));
        for _ in 0..5 {
            assert!(buckets.charge(meter(1), SLOW).is_ok());
        }
        let wait = buckets.charge(meter(1), SLOW).unwrap_err();
        assert!(wait > Duration::from_secs(30) && wait <= Duration::from_mins(1), "{wait:?}");
        assert!(buckets.charge(meter(2), SLOW).is_ok(), "another has its own");
        let questions = RateSubject::Questions(RateSource::Connection(1));
        assert!(buckets.charge(questions, SLOW).is_ok(), "and so has another meter");
        // A raised rate applies at once.
        assert!(buckets.charge(meter(1), Rate { at_once: 6, ..SLOW }).is_ok());
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
        buckets.spend(meter.into(), SLOW, u64::MAX);
        let wait = buckets.charge(meter, SLOW).unwrap_err();
        assert!(wait <= Duration::from_mins(6), "{wait:?}");
    }
}
