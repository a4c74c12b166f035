//! Counters and timings of the mail server since its start.

use hark_archive::meter::{Counter, Histogram};
use hark_networks::whisper::admit::EnvelopeRefusal;
use hark_networks::whisper::history::MailError;

use crate::metrics::{ByLabel, MetricLabel, labels};

labels! {
    /// The source of an envelope or a request.
    MailSource {
        /// A client of the REST API.
        Rest = "rest",
        /// A peer, by devp2p.
        Peer = "peer",
    }

    /// The result of receiving an envelope.
    EnvelopeFate {
        /// Stored.
        Stored = "stored",
        /// Not stored again, because the envelope was stored before.
        Duplicate = "duplicate",
        /// Not stored, because the bytes are not an envelope.
        Malformed = "malformed",
        /// Refused: the sending time is too far in the future.
        Ahead = "ahead",
        /// Refused: expired.
        Expired = "expired",
        /// Refused: too large.
        Size = "size",
        /// Refused: too little proof of work.
        Pow = "pow",
        /// Refused: the sender exceeds the rate limit for envelopes, or for new topics.
        TooMany = "rate_limit",
        /// Not stored, because the archive failed.
        Failed = "failed",
    }

    /// The result of a request.
    RequestFate {
        /// Answered.
        Answered = "answered",
        /// The request could not be parsed, or would read too much.
        Refused = "refused",
        /// Refused: the client exceeds its rate limit.
        TooMany = "rate_limit",
        /// The request could not be answered.
        Failed = "failed",
    }

    /// The result of a peer's key exchange and hellos.
    HandshakeFate {
        /// The peer is connected.
        Connected = "connected",
        /// The handshake took too long, or was ended to admit other peers.
        Timeout = "timeout",
        /// The peer does not follow the protocol, or has disconnected.
        Failed = "failed",
        /// The peer speaks neither `shh/6` nor `waku/1`.
        Useless = "no_protocol",
    }

    /// Why the session of a peer ended.
    PeerLeave {
        /// The peer has left, or the connection broke.
        Left = "left",
        /// The peer did not answer, or did not read the requested data.
        Timeout = "timeout",
        /// The peer did not follow the protocol.
        Breach = "breach",
        /// The data that the peer sent would have exceeded the bound on memory.
        Memory = "memory",
        /// The server is shutting down.
        Down = "down",
        /// The operator closed the connection (`hark kick`).
        Kicked = "kicked",
    }
}

impl From<EnvelopeRefusal> for EnvelopeFate {
    fn from(refusal: EnvelopeRefusal) -> Self {
        match refusal {
            EnvelopeRefusal::Ttl(..) => Self::Malformed,
            EnvelopeRefusal::Ahead(_) => Self::Ahead,
            EnvelopeRefusal::Expired(_) | EnvelopeRefusal::Old(_) => Self::Expired,
            EnvelopeRefusal::Size(..) => Self::Size,
            EnvelopeRefusal::Pow(..) => Self::Pow,
        }
    }
}

impl From<&MailError> for RequestFate {
    fn from(error: &MailError) -> Self {
        match error {
            MailError::TooMany => Self::TooMany,
            MailError::TooDear => Self::Refused,
            MailError::Busy | MailError::Gone | MailError::Down | MailError::Archive(_) => {
                Self::Failed
            }
        }
    }
}

/// All metrics of the mail server.
#[derive(Debug, Default)]
pub struct MailMetrics {
    /// Number of envelopes received.
    pub envelopes: ByLabel<MailSource, ByLabel<EnvelopeFate>>,
    /// Total size of the stored envelopes, in bytes.
    pub stored_bytes: Counter,
    /// Time from the arrival of an envelope until it was durable.
    pub insert: Histogram,
    /// Number of requests for history.
    pub requests: ByLabel<MailSource, ByLabel<RequestFate>>,
    /// Time to find a page of an answer.
    pub page: Histogram,
    /// Number of envelopes sent in answers.
    pub sent: ByLabel<MailSource>,
    /// Total size of the envelopes sent in answers, in bytes.
    pub sent_bytes: ByLabel<MailSource>,
    /// Number of pages that omit a damaged envelope.
    pub damaged: ByLabel<MailSource>,
    /// Number of connected peers.
    pub peers: Counter,
    /// Number of handshakes of peers, by result.
    pub handshakes: ByLabel<HandshakeFate>,
    /// Number of sessions of peers that have ended, by reason.
    pub left: ByLabel<PeerLeave>,
}
