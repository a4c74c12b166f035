//! Requests for history (packet 126): opened, and checked as mail servers check them.
//!
//! A request is an envelope whose message only a mail server can read, encrypted with the key of a
//! password or for the server's key. It must be signed, by whatever key: status-go and go-ethereum do
//! not compare that with the peer's. status-go's clients may also send a request openly.

use hark_codec::record::Id;
use hark_codec::whisper::message::{self, OpeningKey, SymmetricKey};
use hark_codec::whisper::rlp::RlpItems;
use hark_codec::whisper::{Envelope, HistoryRequest, RequestError, SealedMessageError, SecretKey};

/// How far a request without an end reaches, in s from now.
const AHEAD_S: u64 = 60;

/// What requests must be, and the keys that open them.
#[derive(Clone, Default)]
pub struct RequestRules {
    /// The key of the password that clients know, if there is one.
    pub password_key: Option<SymmetricKey>,
    /// The key for which clients may encrypt requests instead, if there is one.
    pub secret_key: Option<SecretKey>,
    /// The longest time that a request in the form before RLP may cover, in s, if that is bounded:
    /// status-go's mail servers allow a day.
    pub bare_range_max_s: Option<u64>,
}

/// Without the keys.
impl std::fmt::Debug for RequestRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestRules")
            .field("bare_range_max_s", &self.bare_range_max_s)
            .finish_non_exhaustive()
    }
}

/// A request that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MailRequest {
    /// The hash of its envelope, or the id that it gives itself.
    pub(super) id: Id,
    content: RequestContent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RequestContent {
    /// The payload of a message.
    Sealed(Box<[u8]>),
    /// A packet.
    Open(Box<[u8]>),
}

/// Why a request is refused. The texts are for clients.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum RequestRefusal {
    /// The packet is neither an envelope nor an open request.
    #[error("this is no request: {0}")]
    Packet(RequestError),
    /// Too little proof of work.
    #[error("the request's proof of work is {0}, less than the minimum of {1}")]
    Pow(f64, f64),
    /// None of the server's keys opens it, or its signature is not one.
    #[error("failed to decrypt p2p request: {0}")]
    Sealed(SealedMessageError),
    /// There is no signature.
    #[error("check message signature failed: the request is not signed")]
    Unsigned,
    /// See [`RequestError`].
    #[error("request is invalid: {0}")]
    Request(#[from] RequestError),
    /// See [`RequestRules::bare_range_max_s`].
    #[error("query range too big: {0} s, at most {1} s")]
    Range(u64, u64),
}

/// A request that is refused.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RefusedRequest {
    /// The request's id; `None` if the packet has none, so that no answer could be told apart.
    pub(super) id: Option<Id>,
    /// Why.
    pub(super) why: RequestRefusal,
}

impl RequestRules {
    /// Opens the request in a packet and checks it. Its envelope needs the proof of work that others
    /// need.
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
            Ok((id, _)) => Ok(MailRequest { id, content: RequestContent::Open(packet.into()) }),
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
            // Whatever it is then, it was for this key.
            if opened != Err(SealedMessageError::Key) {
                break;
            }
        }
        let opened = opened.map_err(RequestRefusal::Sealed)?;
        if opened.signer().is_none() {
            return Err(RequestRefusal::Unsigned);
        }
        let request = MailRequest { id, content: RequestContent::Sealed(opened.payload().into()) };
        let parsed = request.parsed()?;
        if let Some(range_max_s) = self.bare_range_max_s.filter(|_| request.is_bare()) {
            let upper = if parsed.upper == 0 { now_s + AHEAD_S } else { parsed.upper.into() };
            let range_s = upper.saturating_sub(parsed.lower.into());
            if range_s > range_max_s {
                return Err(RequestRefusal::Range(range_s, range_max_s));
            }
        }
        Ok(request)
    }
}

impl MailRequest {
    /// What is asked for.
    pub(super) fn parsed(&self) -> Result<HistoryRequest<'_>, RequestError> {
        match &self.content {
            RequestContent::Sealed(payload) => HistoryRequest::parse(payload),
            RequestContent::Open(packet) => {
                HistoryRequest::parse_open(packet).map(|(_, request)| request)
            }
        }
    }

    /// Whether the request has the form before RLP.
    pub(super) fn is_bare(&self) -> bool {
        match &self.content {
            RequestContent::Sealed(payload) => payload.first().is_some_and(|first| *first < 0xc0),
            RequestContent::Open(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
