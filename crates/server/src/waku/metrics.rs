//! Counters and timings of the Waku node since its start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hark_archive::meter::{Counter, Histogram};
use hark_codec::waku::filter::FilterAction;
use hark_codec::waku::store::Status;
use hark_networks::waku::admit::MessageRefusal;

pub use super::value_histogram::ValueHistogram;
use crate::metrics::{ByLabel, MetricLabel, labels};

labels! {
    /// Where a message came from.
    MessageOrigin {
        /// A client of the REST API.
        Rest = "rest",
        /// Peers that relay messages.
        Relay = "relay",
        /// Another store.
        Store = "store",
        /// A peer that publishes by light push.
        LightPush = "lightpush",
    }

    /// The action of a request to subscribe, under nwaku's names.
    FilterRequestKind {
        /// Keep the subscriptions.
        Ping = "SUBSCRIBER_PING",
        /// Add topics.
        Subscribe = "SUBSCRIBE",
        /// Remove topics.
        Unsubscribe = "UNSUBSCRIBE",
        /// Remove all topics.
        UnsubscribeAll = "UNSUBSCRIBE_ALL",
        /// The request cannot be read.
        Malformed = "malformed",
    }

    /// The status of the answer to a request to subscribe.
    FilterStatus {
        /// 200.
        Success = "200",
        /// 400.
        BadRequest = "400",
        /// 404.
        NotFound = "404",
        /// 429.
        TooManyRequests = "429",
        /// 503.
        Unavailable = "503",
    }

    /// The result of sending a message to a subscriber.
    PushOutcome {
        /// The message was sent.
        Sent = "sent",
        /// The message was not sent, because too many messages waited for the subscriber.
        Dropped = "dropped",
        /// The subscriber did not read the message in time. Its connection was closed.
        Unread = "unread",
        /// The subscriber accepts no messages. Its subscriptions have ended.
        Unsupported = "unsupported",
        /// The stream or the connection broke.
        Broken = "broken",
    }

    /// The version of light push.
    LightPushVersion {
        /// `/vac/waku/lightpush/3.0.0`.
        Three = "3",
        /// `/vac/waku/lightpush/2.0.0-beta1`.
        Two = "2",
    }

    /// The status of the answer to a light push. Version 2 of the protocol has no status numbers,
    /// so its answers are counted under those of version 3.
    LightPushStatus {
        /// 200.
        Success = "200",
        /// 400.
        BadRequest = "400",
        /// 413.
        TooLarge = "413",
        /// 420.
        Invalid = "420",
        /// 421.
        UnsupportedTopic = "421",
        /// 429.
        TooManyRequests = "429",
        /// 500.
        Internal = "500",
        /// 503.
        Unavailable = "503",
    }

    /// The result of receiving a message.
    MessageFate {
        /// Stored.
        Stored = "stored",
        /// Not stored again, because the message was stored before.
        Duplicate = "duplicate",
        /// Relayed and not stored, because the message is ephemeral.
        Ephemeral = "ephemeral",
        /// Refused as invalid: see [`MessageRefusal`].
        Invalid = "invalid_message",
        /// Refused, because the message is too old or has no time.
        TooOld = "invalid_message_too_old",
        /// Refused, because the message's time is too far in the future.
        TooFar = "invalid_message_future_timestamp",
        /// Not stored, because the archive failed.
        Insert = "insert_failure",
    }

    /// The source of a request for history.
    QuestionSource {
        /// A peer, by `/vac/waku/store-query/3.0.0`.
        Peer = "peer",
        /// A client of the REST API.
        Client = "rest",
    }

    /// The status of the answer to a request for history.
    AnswerStatus {
        /// 200.
        Success = "200",
        /// 300.
        BadResponse = "300",
        /// 400.
        BadRequest = "400",
        /// 429.
        TooManyRequests = "429",
        /// 503.
        Unavailable = "503",
    }

    /// The kind of a gossip loss: a lost message, or a closed connection.
    GossipLoss {
        /// A message that was not sent to a peer: the peer's queue was full, or the message waited
        /// too long.
        Message = "message",
        /// A message that was stored but not relayed, because too many bytes were relayed recently.
        Unforwarded = "unforwarded",
        /// A connection that was closed because its streams broke, or because its peer did not
        /// read.
        Broken = "broken",
    }

    /// The source from which this node knows another node.
    NodeSource {
        /// A list of nodes in the DNS.
        Dns = "dns",
        /// The answer of a peer, by `/vac/waku/peer-exchange/2.0.0-alpha1`.
        PeerExchange = "peer_exchange",
        /// The table of discv5.
        Discv5 = "discv5",
        /// The file with the nodes that this node reached before it was restarted.
        File = "file",
    }

    /// Why the record of another node is refused.
    RecordRefusal {
        /// The record is invalid, or its signature is.
        Invalid = "invalid",
        /// The record has no address that may be dialled.
        Address = "address",
        /// The node is in another cluster, or serves none of this node's shards.
        Shard = "shard",
        /// Too many known nodes are in the same network of addresses as the node.
        Network = "network",
        /// The peers in one network of addresses have reported too many nodes.
        Teller = "teller",
        /// The table of known nodes is full.
        Full = "full",
    }

    /// The outcome of dialling a discovered node.
    DialOutcome {
        /// The node was reached.
        Reached = "reached",
        /// No address of the node answered.
        Failed = "failed",
        /// The node was reached, but serves none of this node's shards.
        Useless = "useless",
    }

    /// The status of an answer of the peer exchange, as in nwaku.
    ExchangeStatus {
        /// 200.
        Success = "200",
        /// 400: the request is invalid.
        BadRequest = "400",
        /// 401: the peer's answer is invalid.
        BadResponse = "401",
        /// 429.
        TooManyRequests = "429",
        /// 503: the peer does not answer.
        Unavailable = "503",
        /// 599: no stream to the peer could be opened.
        DialFailure = "599",
    }

    /// How this node gets the messages of other stores.
    CatchUpMethod {
        /// This node fetches the messages that were published while it was offline.
        Resume = "resume",
        /// This node begins a comparison.
        Sync = "sync",
    }

    /// The result of a fetch or a comparison.
    SyncOutcome {
        /// The fetch or comparison was completed.
        Done = "done",
        /// The fetch or comparison failed.
        Failed = "failed",
    }

    /// Protocols of Waku Store Sync.
    SyncProtocol {
        /// Two stores compare their messages.
        Reconciliation = "reconciliation",
        /// A store sends the messages that the other store lacks.
        Transfer = "transfer",
    }

    /// The direction of bytes or messages.
    Direction {
        /// To a peer.
        Sent = "sent",
        /// From a peer.
        Received = "receive",
    }
}

impl MessageFate {
    /// The fates of messages that were refused or could not be stored.
    pub const FAILED: [Self; 4] = [Self::Invalid, Self::TooOld, Self::TooFar, Self::Insert];
}

impl From<MessageRefusal> for MessageFate {
    fn from(refusal: MessageRefusal) -> Self {
        match refusal {
            MessageRefusal::TooOld(_) | MessageRefusal::NoTime | MessageRefusal::Negative => {
                Self::TooOld
            }
            MessageRefusal::TooFar(_) => Self::TooFar,
            _ => Self::Invalid,
        }
    }
}

impl From<Status> for AnswerStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Success => Self::Success,
            Status::BadResponse => Self::BadResponse,
            Status::BadRequest => Self::BadRequest,
            Status::TooManyRequests => Self::TooManyRequests,
            Status::Unavailable => Self::Unavailable,
        }
    }
}

impl From<Option<FilterAction>> for FilterRequestKind {
    fn from(action: Option<FilterAction>) -> Self {
        match action {
            Some(FilterAction::Ping) => Self::Ping,
            Some(FilterAction::Subscribe) => Self::Subscribe,
            Some(FilterAction::Unsubscribe) => Self::Unsubscribe,
            Some(FilterAction::UnsubscribeAll) => Self::UnsubscribeAll,
            None => Self::Malformed,
        }
    }
}

impl FilterStatus {
    /// The number of the status.
    pub fn code(self) -> u32 {
        match self {
            Self::Success => 200,
            Self::BadRequest => 400,
            Self::NotFound => 404,
            Self::TooManyRequests => 429,
            Self::Unavailable => 503,
        }
    }
}

impl LightPushStatus {
    /// The number of the status.
    pub fn code(self) -> u32 {
        match self {
            Self::Success => 200,
            Self::BadRequest => 400,
            Self::TooLarge => 413,
            Self::Invalid => 420,
            Self::UnsupportedTopic => 421,
            Self::TooManyRequests => 429,
            Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }
}

/// Bucket bounds for the size of a message's payload, in bytes. All bucket bounds are those of
/// nwaku.
const PAYLOAD_BYTES: [u64; 13] = [
    0, 1_000, 3_000, 5_000, 15_000, 50_000, 75_000, 100_000, 125_000, 150_000, 500_000, 700_000,
    1_000_000,
];
/// Bucket bounds for the number of a comparison's round trips.
const ROUND_TRIPS: [u64; 6] = [1, 2, 3, 5, 8, 13];
/// Bucket bounds for the number of messages that only one of two stores has.
const DIFFERENCES: [u64; 7] = [0, 10, 50, 100, 500, 1_000, 5_000];

/// Metrics of the comparisons that this node or other stores began, and of the transfers that
/// followed.
#[derive(Debug)]
pub struct SyncMetrics {
    /// Round trips of each comparison: the protocol's payloads that this node received.
    pub round_trips: ValueHistogram,
    /// Messages that only one side has, found in each comparison.
    pub differences: ValueHistogram,
    /// Number of bytes exchanged.
    pub bytes: ByLabel<SyncProtocol, ByLabel<Direction>>,
    /// Number of messages transferred.
    pub messages: ByLabel<Direction>,
}

/// Metrics of the filter protocol.
#[derive(Debug, Default)]
pub struct FilterMetrics {
    /// Number of requests to subscribe.
    pub requests: ByLabel<FilterRequestKind>,
    /// Number of answers.
    pub answers: ByLabel<FilterStatus>,
    /// Number of messages for subscribers.
    pub pushes: ByLabel<PushOutcome>,
    /// Time from the moment at which a message was durable until the message was sent.
    pub push: Histogram,
}

/// All metrics of the node.
#[derive(Debug)]
pub struct NodeMetrics {
    /// Number of messages received.
    pub messages: ByLabel<MessageOrigin, ByLabel<MessageFate>>,
    /// Time from the arrival of a message until it was durable.
    pub insert: Histogram,
    /// Sizes of the payloads that came by gossip or from clients, in bytes.
    pub payload_bytes: ValueHistogram,
    /// Messages stored, by served shard, ascending.
    stored: Box<[(u16, Counter)]>,
    /// Number of requests for history.
    pub queries: ByLabel<QuestionSource, ByLabel<AnswerStatus>>,
    /// Number of requests for history that were dropped, because the peer had disconnected.
    pub gone: Counter,
    /// Time to answer a request for history.
    pub query: Histogram,
    /// Time to answer the last request for history, in nanoseconds.
    last_query_ns: AtomicU64,
    /// Number of messages sent in answers.
    pub sent: Counter,
    /// Number of answers that omit a damaged message.
    pub damaged: Counter,
    /// See [`FilterMetrics`].
    pub filter: Arc<FilterMetrics>,
    /// Number of messages of imports and of other nodes of the database that subscribers did not
    /// get, because the messages were too old.
    pub not_announced: Arc<Counter>,
    /// Number of messages that peers have published by light push.
    pub light_pushes: ByLabel<LightPushVersion, ByLabel<LightPushStatus>>,
    /// Number of peers that are connected.
    pub peers: Counter,
    /// See [`GossipLoss`].
    pub gossip_losses: ByLabel<GossipLoss>,
    /// The outcomes of dialling discovered nodes.
    pub dials: ByLabel<NodeSource, ByLabel<DialOutcome>>,
    /// The records of other nodes that were refused.
    pub record_refusals: ByLabel<NodeSource, ByLabel<RecordRefusal>>,
    /// The answers of the peer exchange: those sent, and those received.
    pub exchanges: ByLabel<Direction, ByLabel<ExchangeStatus>>,
    /// See [`CatchUpMethod`].
    pub caught_up: ByLabel<CatchUpMethod, ByLabel<SyncOutcome>>,
    /// See [`SyncMetrics`].
    pub sync: SyncMetrics,
}

impl NodeMetrics {
    /// Creates the metrics of a node that serves these shards.
    pub fn new(shards: &[u16]) -> Self {
        let mut shards = shards.to_vec();
        shards.sort_unstable();
        shards.dedup();
        Self {
            messages: ByLabel::default(),
            insert: Histogram::default(),
            payload_bytes: ValueHistogram::new(&PAYLOAD_BYTES),
            stored: shards.into_iter().map(|shard| (shard, Counter::default())).collect(),
            queries: ByLabel::default(),
            gone: Counter::default(),
            query: Histogram::default(),
            last_query_ns: AtomicU64::default(),
            sent: Counter::default(),
            damaged: Counter::default(),
            filter: Arc::default(),
            not_announced: Arc::default(),
            light_pushes: ByLabel::default(),
            peers: Counter::default(),
            gossip_losses: ByLabel::default(),
            dials: ByLabel::default(),
            record_refusals: ByLabel::default(),
            exchanges: ByLabel::default(),
            caught_up: ByLabel::default(),
            sync: SyncMetrics {
                round_trips: ValueHistogram::new(&ROUND_TRIPS),
                differences: ValueHistogram::new(&DIFFERENCES),
                bytes: ByLabel::default(),
                messages: ByLabel::default(),
            },
        }
    }

    /// Counts a stored message of a shard.
    pub fn stored(&self, shard: u16) {
        if let Ok(at) = self.stored.binary_search_by_key(&shard, |(shard, _)| *shard) {
            self.stored[at].1.add(1);
        }
    }

    /// Returns the number of stored messages by shard.
    pub fn stored_by_shard(&self) -> impl Iterator<Item = (u16, u64)> {
        self.stored.iter().map(|(shard, count)| (*shard, count.get()))
    }

    /// Records the time to answer a request for history.
    pub fn record_history_time(&self, time: Duration) {
        self.query.note(time);
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.last_query_ns.store(time_ns, Ordering::Relaxed);
    }

    /// Returns the time to answer the last request for history.
    pub fn last_query(&self) -> Duration {
        Duration::from_nanos(self.last_query_ns.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_counted_once_each_and_no_others_are() {
        let metrics = NodeMetrics::new(&[7, 2, 7]);
        for shard in [2, 7, 7, 3, 0] {
            metrics.stored(shard);
        }
        assert_eq!(metrics.stored_by_shard().collect::<Vec<_>>(), [(2, 1), (7, 2)]);
    }
}
