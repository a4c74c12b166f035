//! What the mail server has done since it started.

use hark_archive::meter::{Counter, Histogram};
use hark_networks::whisper::admit::EnvelopeRefusal;

use super::history::MailError;
use crate::metrics::{ByLabel, MetricLabel, labels};

labels! {
    /// Where an envelope or a request came from.
    MailSource {
        /// A client of the REST interface.
        Rest = "rest",
        /// A peer, by devp2p.
        Peer = "peer",
    }

    /// What was done with an envelope.
    EnvelopeFate {
        /// Stored.
        Stored = "stored",
        /// Not stored again, as it was stored before.
        Duplicate = "duplicate",
        /// Not stored, as it is no envelope.
        Malformed = "malformed",
        /// Refused: sent too far ahead.
        Ahead = "ahead",
        /// Refused: expired.
        Expired = "expired",
        /// Refused: too large.
        Size = "size",
        /// Refused: too little proof of work.
        Pow = "pow",
        /// Refused: its sender sends envelopes, or new topics, faster than allowed.
        TooMany = "rate_limit",
        /// The archive failed to store it.
        Failed = "failed",
    }

    /// What became of a request.
    RequestFate {
        /// Answered.
        Answered = "answered",
        /// It could not be read, or asked for too much.
        Refused = "refused",
        /// Faster than allowed.
        TooMany = "rate_limit",
        /// It could not be answered.
        Failed = "failed",
    }

    /// How the key exchange and the hellos of a peer ended.
    HandshakeFate {
        /// The peer is connected.
        Connected = "connected",
        /// It took too long, or had to make room for others.
        Timeout = "timeout",
        /// The peer does not keep to the protocol, or is gone.
        Failed = "failed",
        /// The peer speaks neither `shh/6` nor `waku/1`.
        Useless = "no_protocol",
    }

    /// Why the session of a peer ended.
    PeerLeave {
        /// The peer has left, or the connection broke.
        Left = "left",
        /// The peer did not answer, or did not read what it asked for.
        Timeout = "timeout",
        /// The peer did not keep to the protocol.
        Breach = "breach",
        /// There was no memory for what the peer sent.
        Memory = "memory",
        /// The server is shutting down.
        Down = "down",
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
            MailError::Busy | MailError::Down | MailError::Archive(_) => Self::Failed,
        }
    }
}

/// All metrics of the mail server.
#[derive(Debug, Default)]
pub struct MailMetrics {
    /// Envelopes received.
    pub envelopes: ByLabel<MailSource, ByLabel<EnvelopeFate>>,
    /// Bytes of the envelopes that were stored.
    pub stored_bytes: Counter,
    /// Time from the arrival of an envelope until it was durable.
    pub insert: Histogram,
    /// Requests for history.
    pub requests: ByLabel<MailSource, ByLabel<RequestFate>>,
    /// Time to find a page of an answer.
    pub page: Histogram,
    /// Envelopes sent in answers.
    pub sent: ByLabel<MailSource>,
    /// Bytes of these envelopes.
    pub sent_bytes: ByLabel<MailSource>,
    /// Pages that lack a damaged envelope.
    pub damaged: ByLabel<MailSource>,
    /// Peers that are connected.
    pub peers: Counter,
    /// Connections of peers.
    pub handshakes: ByLabel<HandshakeFate>,
    /// Sessions of peers that have ended.
    pub left: ByLabel<PeerLeave>,
}
