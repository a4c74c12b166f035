//! Counters of the relay since its start. A refusal is counted where it is sent, by its verb and
//! its verdict: [`RelayMetrics::refused`].

use hark_networks::nostr::NostrVerdict;
use hark_networks::nostr::rules::{KindClass, class};

use crate::metrics::{
    ByLabel, ConnectionRefusal, Counter, Histogram, MetricLabel, SearchDriver, labels,
};
use crate::websocket::HandshakeFault;

labels! {
    /// The purpose of a client's message.
    Verb {
        /// Publish an event.
        Event = "EVENT",
        /// Subscribe.
        Req = "REQ",
        /// Count.
        Count = "COUNT",
        /// End a subscription.
        Close = "CLOSE",
        /// Prove a key.
        Auth = "AUTH",
        /// Begin, continue or end a comparison (NIP-77).
        Neg = "NEG",
        /// The message type is not known.
        Unknown = "unknown",
    }

    /// Why a connection ended.
    ConnectionEnd {
        /// The client left, or the connection broke.
        Gone = "gone",
        /// The server shut down.
        Shutdown = "shutdown",
        /// Nothing was received for too long.
        Idle = "idle",
        /// The client read too slowly.
        Slow = "slow",
        /// The incomplete messages of all clients took too much memory.
        Crowded = "crowded",
        /// The client broke the protocol: malformed frames, or messages that are too long.
        Protocol = "protocol",
        /// The operator closed the connection (`hark kick`).
        Kicked = "kicked",
    }
}

/// The result of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageResult {
    /// Done as requested.
    Done,
    /// Refused.
    Refused(NostrVerdict),
    /// Refused without a verdict. Every refusal has a verdict, so this result is never counted.
    Other,
}

const fn refused(verdict: NostrVerdict) -> (MessageResult, &'static str) {
    (MessageResult::Refused(verdict), verdict.prefix())
}

impl MetricLabel for MessageResult {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::Done, "ok"),
        refused(NostrVerdict::Duplicate),
        refused(NostrVerdict::Replaced),
        refused(NostrVerdict::Pow),
        refused(NostrVerdict::Blocked),
        refused(NostrVerdict::RateLimited),
        refused(NostrVerdict::Invalid),
        refused(NostrVerdict::Restricted),
        refused(NostrVerdict::Error),
        refused(NostrVerdict::AuthRequired),
        refused(NostrVerdict::Unsupported),
        refused(NostrVerdict::Closed),
        (Self::Other, "other"),
    ];

    fn number(self) -> usize {
        match self {
            Self::Done => 0,
            Self::Refused(verdict) => 1 + verdict as usize,
            Self::Other => Self::ALL.len() - 1,
        }
    }
}

/// Kinds that have their own counter, ascending. Other kinds are counted by class, so that no
/// client can make the metrics page longer.
pub const KINDS: [u16; 32] = [
    0, 1, 3, 4, 5, 6, 7, 9, 16, 20, 22, 62, 1059, 1063, 1111, 1311, 1984, 9734, 9735, 10_000,
    10_002, 10_050, 21_059, 23_194, 23_195, 24_133, 27_235, 30_000, 30_003, 30_023, 30_078, 30_311,
];

/// Names of the classes by which other kinds are counted.
const CLASSES: [&str; 4] =
    ["other regular", "other replaceable", "other ephemeral", "other addressable"];

/// Events by kind.
#[derive(Debug, Default)]
pub struct EventsByKind {
    kinds: [Counter; KINDS.len()],
    classes: [Counter; CLASSES.len()],
}

impl EventsByKind {
    /// Counts an event of `kind`.
    pub fn add(&self, kind: u16) {
        if let Ok(at) = KINDS.binary_search(&kind) {
            return self.kinds[at].add(1);
        }
        let class = match class(u32::from(kind)) {
            KindClass::Regular => 0,
            KindClass::Replaceable => 1,
            KindClass::Ephemeral => 2,
            KindClass::Addressable => 3,
        };
        self.classes[class].add(1);
    }

    /// All counts above 0, with the names of their kinds or classes.
    pub fn all(&self) -> impl Iterator<Item = (String, u64)> {
        let kinds = KINDS.iter().map(u16::to_string).zip(&self.kinds);
        let classes = CLASSES.iter().map(|name| (*name).to_owned()).zip(&self.classes);
        kinds.chain(classes).map(|(name, count)| (name, count.get())).filter(|(_, n)| *n > 0)
    }
}

/// All metrics of the relay.
#[derive(Debug, Default)]
pub struct RelayMetrics {
    /// Number of connections that were made.
    pub connections: Counter,
    /// Number of connections that are open, of any type.
    pub connections_open: Counter,
    /// Number of WebSockets that are open.
    pub websockets_open: Counter,
    /// Number of connections that were refused before their first message.
    pub turned_away: ByLabel<ConnectionRefusal>,
    /// Number of requests for a WebSocket that were refused.
    pub handshakes_refused: ByLabel<HandshakeFault>,
    /// Number of WebSockets that ended.
    pub ended: ByLabel<ConnectionEnd>,
    /// Number of messages received.
    pub messages_in: Counter,
    /// Total size of the received messages, in bytes.
    pub bytes_in: Counter,
    /// Number of messages sent.
    pub messages_out: Counter,
    /// Total size of the sent messages, in bytes.
    pub bytes_out: Counter,
    /// Number of bytes that wait for clients to read them, without the shared bytes of live
    /// records.
    pub outbox_bytes: Counter,
    /// Number of messages by verb and result.
    answers: ByLabel<Verb, ByLabel<MessageResult>>,
    /// Events that were kept, or passed on if ephemeral.
    pub events: EventsByKind,
    /// Time to verify the signatures of one batch of events.
    pub verify: Histogram,
    /// Number of events in the batches of `verify`.
    pub verified: Counter,
    /// Time that a question waited until its first time slice began.
    pub search_wait: Histogram,
    /// Time spent on each search or count, by the condition that drives the search.
    pub search: ByLabel<SearchDriver, Histogram>,
    /// Number of rows visited by searches, counts and comparisons.
    pub rows_visited: Counter,
    /// Number of comparisons that are open (NIP-77).
    pub comparisons_open: Counter,
    /// Time to answer one message of a comparison, without the search for its set.
    pub comparison_step: Histogram,
    /// Number of stored records sent.
    pub records_sent: Counter,
    /// Number of live records sent, counted once for each subscriber.
    pub live_sent: Counter,
}

impl RelayMetrics {
    /// Counts a message that was done as requested.
    pub fn done(&self, verb: Verb) {
        self.answers.of(verb).of(MessageResult::Done).add(1);
    }

    /// Counts a message that was refused.
    pub fn refused(&self, verb: Verb, verdict: NostrVerdict) {
        self.answers.of(verb).of(MessageResult::Refused(verdict)).add(1);
    }

    /// Number of messages by verb and result.
    pub fn answers(&self) -> &ByLabel<Verb, ByLabel<MessageResult>> {
        &self.answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_counted_by_its_verdict() {
        let metrics = RelayMetrics::default();
        metrics.done(Verb::Event);
        metrics.refused(Verb::Event, NostrVerdict::Blocked);
        metrics.refused(Verb::Event, NostrVerdict::Closed);
        metrics.refused(Verb::Event, NostrVerdict::Closed);
        let counted = metrics.answers().of(Verb::Event).named();
        assert_eq!(counted, serde_json::json!({ "ok": 1, "blocked": 1, "closed": 2 }));
        assert_eq!(metrics.answers().of(Verb::Req).named(), serde_json::json!({}));
        for (number, (result, _)) in MessageResult::ALL.iter().enumerate() {
            assert_eq!(result.number(), number, "{result:?}");
        }
    }

    #[test]
    fn kinds_are_counted_one_by_one_or_by_class() {
        assert!(KINDS.is_sorted());
        let kinds = EventsByKind::default();
        for kind in [1, 1, 2, 45_678, 20_777, 10_001, 30_001, 65_535] {
            kinds.add(kind);
        }
        let expected = [
            ("1", 2),
            ("other regular", 3),
            ("other replaceable", 1),
            ("other ephemeral", 1),
            ("other addressable", 1),
        ];
        let counted: Vec<_> = kinds.all().collect();
        assert_eq!(counted, expected.map(|(name, count)| (name.to_owned(), count)));
    }
}
