//! A request for envelopes, whether it came as RLP from a peer or as JSON from a client.

use hark_codec::whisper::{Bloom, HistoryCursor, HistoryRequest, Topic};

/// A request for the envelopes that were sent in a range of time. Times are seconds since 1970,
/// inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvelopeRequest {
    /// The topics of the wanted envelopes.
    pub topics: TopicChoice,
    /// Earliest time.
    pub from: u64,
    /// Latest time. `None` stands for a minute from now.
    pub to: Option<u64>,
    /// Maximum number of envelopes. `None` stands for the server's own limit.
    pub limit: Option<usize>,
    /// The end of the previous page.
    pub after: Option<HistoryCursor>,
    /// Whether the newest envelopes come first.
    pub newest_first: bool,
}

/// The topics of the wanted envelopes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicChoice {
    /// All topics.
    All,
    /// These topics, in any order.
    Listed(Vec<Topic>),
    /// The topics that a bloom filter covers.
    Covered(Bloom),
}

/// Converts the request of a peer. The oldest envelopes come first, as in mail servers with
/// LevelDB.
impl From<&HistoryRequest<'_>> for EnvelopeRequest {
    fn from(wire: &HistoryRequest<'_>) -> Self {
        let topics = match wire.bloom {
            Some(bloom) if wire.topics.is_empty() => TopicChoice::Covered(bloom),
            _ => TopicChoice::Listed(wire.topics.iter().collect()),
        };
        Self {
            topics,
            from: wire.lower.into(),
            to: Some(wire.upper.into()).filter(|upper| *upper > 0),
            limit: Some(wire.limit as usize).filter(|limit| *limit > 0),
            after: wire.cursor,
            newest_first: false,
        }
    }
}
