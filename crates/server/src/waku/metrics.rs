//! What the Waku node has done since it started.

use hark_archive::meter::{Count, Histogram};
use hark_codec::waku::store::Status;

use super::admit::Refusal;
use crate::metrics::{By, Label, labels};

labels! {
    /// Where a message came from.
    Origin {
        /// A client of the REST door.
        Rest = "rest",
        /// Peers that pass messages on.
        Relay = "relay",
        /// Another store.
        Store = "store",
    }

    /// What became of it.
    Fate {
        /// Kept.
        Stored = "stored",
        /// Kept already.
        Duplicate = "duplicate",
        /// Passed on, as it is ephemeral.
        Ephemeral = "ephemeral",
        /// Not one of the network's: see [`Refusal`].
        Invalid = "invalid_message",
        /// Too old, or without a time.
        TooOld = "invalid_message_too_old",
        /// Of a time too far ahead.
        TooFar = "invalid_message_future_timestamp",
        /// The archive did not take it.
        Insert = "insert_failure",
    }

    /// Who asks for history.
    Asker {
        /// A peer, by `/vac/waku/store-query/3.0.0`.
        Peer = "peer",
        /// A client of the REST door.
        Client = "rest",
    }

    /// What became of a question, by the status of its answer.
    Answered {
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
}

impl Fate {
    /// Those of messages that are not kept though they should be.
    pub const FAILED: [Self; 4] = [Self::Invalid, Self::TooOld, Self::TooFar, Self::Insert];
}

impl From<Refusal> for Fate {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooOld(_) | Refusal::NoTime => Self::TooOld,
            Refusal::TooFar(_) => Self::TooFar,
            _ => Self::Invalid,
        }
    }
}

impl From<Status> for Answered {
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

/// All of it.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Messages that came in.
    pub messages: By<Origin, By<Fate>>,
    /// Time from a message's coming until it was durable.
    pub insert: Histogram,
    /// Questions.
    pub queries: By<Asker, By<Answered>>,
    /// Time to answer one.
    pub query: Histogram,
    /// Messages told in answers.
    pub told: Count,
    /// Peers that are connected.
    pub peers: Count,
}
