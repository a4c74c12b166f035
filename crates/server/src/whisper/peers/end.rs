//! Why the session of a peer ends.

use hark_codec::whisper::RlpError;

use super::status::StatusError;
use crate::whisper::metrics::PeerLeave;
use crate::whisper::rlpx::RlpxError;
use crate::whisper::rlpx::hello::DisconnectReason;

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerSessionEnd {
    /// The connection failed, or the peer closed the connection.
    #[error(transparent)]
    Connection(#[from] RlpxError),
    /// The peer exceeded a time limit; see [`PeerTimes`].
    #[error("the peer does not answer, or does not read the answer to its request")]
    Timeout,
    /// See [`StatusError`].
    #[error(transparent)]
    Status(#[from] StatusError),
    /// The peer sent another packet instead of its status.
    #[error("packet {0} came before the status")]
    NoStatus(u64),
    /// A packet is not RLP of the right items.
    #[error("packet {0} cannot be read: {1}")]
    Packet(u64, RlpError),
    /// A code belongs to no sub-protocol of this connection.
    #[error("message {0} belongs to no protocol that was agreed on")]
    Code(u64),
    /// The bytes sent as an envelope are not an envelope, or too many envelopes of a packet are
    /// refused.
    #[error("{0}")]
    Envelope(String),
    /// The request has no id that an answer could name, so it gets no answer.
    #[error("{0}")]
    Request(String),
    /// The server is shutting down.
    #[error("the server is going down")]
    Down,
    /// The operator closes the connection.
    #[error("the operator closes the connection")]
    Kicked,
}

impl PeerSessionEnd {
    /// Returns the reason for metrics.
    pub(super) fn leave(&self) -> PeerLeave {
        match self {
            Self::Connection(RlpxError::Io(_) | RlpxError::Disconnected(_)) => PeerLeave::Left,
            Self::Connection(RlpxError::Memory) => PeerLeave::Memory,
            Self::Timeout => PeerLeave::Timeout,
            Self::Down => PeerLeave::Down,
            Self::Kicked => PeerLeave::Kicked,
            _ => PeerLeave::Breach,
        }
    }

    /// Returns the reason to send to the peer. `None` if sending a reason is pointless.
    pub(super) fn reason(&self) -> Option<DisconnectReason> {
        match self {
            Self::Connection(RlpxError::Io(_) | RlpxError::Disconnected(_)) => None,
            Self::Connection(RlpxError::Memory) => Some(DisconnectReason::TooMany),
            Self::Connection(_) | Self::Code(_) => Some(DisconnectReason::Protocol),
            Self::Timeout => Some(DisconnectReason::Timeout),
            Self::Down => Some(DisconnectReason::Quitting),
            Self::Kicked => Some(DisconnectReason::Requested),
            Self::Status(_)
            | Self::NoStatus(_)
            | Self::Packet(..)
            | Self::Envelope(_)
            | Self::Request(_) => Some(DisconnectReason::SubProtocol),
        }
    }
}
