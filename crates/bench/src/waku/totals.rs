//! The results of requests, and the messages that a node has accepted.

use std::time::{Duration, Instant};

use super::messages::MessageDraft;
use super::rest::RestFailure;
use crate::args::TOPICS;
use crate::latency::Latencies;
use crate::random::Random;
use crate::target::Refusals;

/// The pause after a refusal, so that a node that refuses quickly does not get more requests.
pub(super) const REST: Duration = Duration::from_millis(50);

/// A message that a node has accepted.
pub(super) struct AcceptedMessage {
    /// The seed of the message's draft.
    pub(super) seed: u64,
    pub(super) time_ns: i64,
}

impl AcceptedMessage {
    /// Generates the message again from its seed.
    pub(super) fn draft(&self, bytes: usize) -> MessageDraft {
        draft(self.seed, bytes)
    }
}

pub(super) fn draft(seed: u64, bytes: usize) -> MessageDraft {
    MessageDraft::draw(&mut Random::new(seed), TOPICS, bytes)
}

/// The results of one kind of request.
#[derive(Default)]
pub(super) struct RequestTotals {
    pub(super) count: u64,
    pub(super) messages: u64,
    pub(super) times: Latencies,
    pub(super) refusals: Refusals,
    /// When the last request was answered.
    pub(super) ended: Option<Instant>,
}

impl RequestTotals {
    /// Counts a request that ends now, and returns the current time.
    pub(super) fn ended(&mut self) -> Instant {
        let now = Instant::now();
        self.count += 1;
        self.ended = Some(now);
        now
    }

    pub(super) fn answered(&mut self, due: Instant) {
        let now = self.ended();
        self.times.add(now - due);
    }

    pub(super) fn refused(&mut self, refused: &RestFailure) {
        self.refusals.add(&refused.what, &refused.reason);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.messages += other.messages;
        self.times.merge(&other.times);
        self.refusals.merge(other.refusals);
        self.ended = self.ended.max(other.ended);
    }
}
