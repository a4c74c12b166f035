//! Why work with a relay could not be done.

/// Why work with a relay could not be done. The texts are for people.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerError {
    /// The relay was not reached.
    #[error("{0}")]
    Unreachable(String),
    /// The connection ended.
    #[error("the connection ended: {0}")]
    Ended(String),
    /// The relay left a request without an answer.
    #[error("the relay did not answer {what} within {within_s} s")]
    Silent {
        /// The request.
        what: &'static str,
        /// How long was waited, in seconds.
        within_s: u64,
    },
    /// The relay refused a request.
    #[error("the relay refused {what}: {reason}")]
    Refused {
        /// The request.
        what: &'static str,
        /// The relay's words.
        reason: String,
    },
    /// The relay sent what no relay may send.
    #[error("the relay broke the protocol: {0}")]
    Misbehaved(String),
    /// The archive here could not be read or written.
    #[error("{0}")]
    Archive(String),
}

impl PeerError {
    /// Whether the relay answered that whoever asks must authenticate first.
    pub(crate) fn wants_auth(reason: &str) -> bool {
        reason.starts_with("auth-required") || reason.starts_with("restricted")
    }

    /// Whether the relay answered that the same request may succeed later.
    pub(crate) fn is_rate(reason: &str) -> bool {
        reason.starts_with("rate-limited")
    }
}
