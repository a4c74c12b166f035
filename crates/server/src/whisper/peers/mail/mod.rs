//! Requests for history (packet 126). Other mail servers decrypt and check requests in the same
//! way.
//!
//! A request is an envelope with a message for a mail server. The message is encrypted with a key
//! that is made from the mail server's password, or with the mail server's public key. The request
//! must be signed, but any key may sign. status-go and go-ethereum do not compare the signer's key
//! with the peer's key. status-go's clients may also send an unencrypted request.

use hark_codec::record::Id;
use hark_codec::whisper::message::{self, OpeningKey, SymmetricKey};
use hark_codec::whisper::request::LIMIT_MAX;
use hark_codec::whisper::rlp::RlpItems;
use hark_codec::whisper::{Envelope, HistoryRequest, RequestError, SealedMessageError, SecretKey};
use hark_networks::whisper::history::EnvelopeRequest;

/// How far into the future a request without an upper bound reaches, in s.
const AHEAD_S: u64 = 60;

/// The rules for requests, and the keys that open requests.
#[derive(Clone, Default)]
pub struct RequestRules {
    /// The key of the password that clients know. `None` without a password.
    pub password_key: Option<SymmetricKey>,
    /// The mail server's own key. Clients may encrypt requests for this key instead of the
    /// password's key. `None` without a key.
    pub secret_key: Option<SecretKey>,
    /// The longest time span of a request in the old format without RLP, in s. `None` is unlimited.
    /// status-go's mail servers allow a day.
    pub bare_range_max_s: Option<u64>,
}

/// The keys are left out.
impl std::fmt::Debug for RequestRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestRules")
            .field("bare_range_max_s", &self.bare_range_max_s)
            .finish_non_exhaustive()
    }
}

/// A request that was opened and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MailRequest {
    /// The hash of the request's envelope, or the id in an unencrypted request.
    pub(super) id: Id,
    /// The wanted envelopes.
    pub(super) wanted: EnvelopeRequest,
    /// Whether a packet may have more than one envelope.
    pub(super) batch: bool,
    is_bare: bool,
}

/// A peer's request that waits for an answer.
#[derive(Debug)]
pub(super) enum PeerQuestion {
    /// A request for history.
    Mail(MailRequest),
    /// The request of another mail server that copies this archive.
    Sync(Box<[u8]>),
}

/// Why a request is refused. The texts are for clients.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum RequestRefusal {
    /// The packet is neither an envelope nor an unencrypted request.
    #[error("this is no request: {0}")]
    Packet(RequestError),
    /// The proof of work is too low.
    #[error("the request's proof of work is {0}, less than the minimum of {1}")]
    Pow(f64, f64),
    /// No key of the server opens the request, or the signature is invalid.
    #[error("failed to decrypt p2p request: {0}")]
    Sealed(SealedMessageError),
    /// The request is not signed.
    #[error("check message signature failed: the request is not signed")]
    Unsigned,
    /// See [`RequestError`].
    #[error("request is invalid: {0}")]
    Request(#[from] RequestError),
    /// See [`RequestRules::bare_range_max_s`].
    #[error("query range too big: {0} s, at most {1} s")]
    Range(u64, u64),
}

/// A refused request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RefusedRequest {
    /// The request's id. `None` if the packet has no id, so that an answer could not name the
    /// request.
    pub(super) id: Option<Id>,
    /// The reason.
    pub(super) why: RequestRefusal,
}

impl RequestRules {
    /// Opens the request in a packet, and checks the request. Its envelope needs the same proof of
    /// work as other envelopes.
    pub(super) fn open(
        &self,
        packet: &[u8],
        pow_min: f64,
        now_s: u64,
    ) -> Result<MailRequest, RefusedRequest> {
        if let Ok(envelope) = Envelope::parse(packet) {
            let id = envelope.hash();
            let pow = envelope.pow();
            let opened = if pow < pow_min {
                Err(RequestRefusal::Pow(pow, pow_min))
            } else {
                self.open_envelope(&envelope, id, now_s)
            };
            return opened.map_err(|why| RefusedRequest { id: Some(id), why });
        }
        match HistoryRequest::parse_open(packet) {
            Ok((id, request)) => Ok(MailRequest::new(id, &request, false)),
            Err(error) => {
                let id = RlpItems::of_list(packet).and_then(|mut items| items.array().copied());
                let why = match id {
                    Ok(_) => RequestRefusal::Request(error),
                    Err(_) => RequestRefusal::Packet(error),
                };
                Err(RefusedRequest { id: id.ok(), why })
            }
        }
    }

    fn open_envelope(
        &self,
        envelope: &Envelope<'_>,
        id: Id,
        now_s: u64,
    ) -> Result<MailRequest, RequestRefusal> {
        let secret = self.secret_key.iter().map(OpeningKey::Secret);
        let keys = secret.chain(self.password_key.iter().map(OpeningKey::Symmetric));
        let mut opened = Err(SealedMessageError::Key);
        for key in keys {
            opened = message::open(envelope.data, key);
            // Any other result, even another error, means that the request was encrypted for this
            // key.
            if opened != Err(SealedMessageError::Key) {
                break;
            }
        }
        let opened = opened.map_err(RequestRefusal::Sealed)?;
        if opened.signer().is_none() {
            return Err(RequestRefusal::Unsigned);
        }
        let parsed = HistoryRequest::parse(opened.payload())?;
        let is_bare = opened.payload().first().is_some_and(|first| *first < 0xc0);
        if let Some(range_max_s) = self.bare_range_max_s.filter(|_| is_bare) {
            let upper = if parsed.upper == 0 { now_s + AHEAD_S } else { parsed.upper.into() };
            let range_s = upper.saturating_sub(parsed.lower.into());
            if range_s > range_max_s {
                return Err(RequestRefusal::Range(range_s, range_max_s));
            }
        }
        Ok(MailRequest::new(id, &parsed, is_bare))
    }
}

impl MailRequest {
    fn new(id: Id, request: &HistoryRequest<'_>, is_bare: bool) -> Self {
        let request = HistoryRequest { limit: request.limit.min(LIMIT_MAX), ..*request };
        Self { id, wanted: (&request).into(), batch: request.batch, is_bare }
    }

    /// Whether the request has the old format without RLP.
    pub(super) fn is_bare(&self) -> bool {
        self.is_bare
    }
}

#[cfg(test)]
mod tests;
