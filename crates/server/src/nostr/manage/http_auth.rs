//! HTTP requests that are signed with a key of Nostr (NIP-98): the `Authorization` header has an
//! event that names the URL, the method, the time and the hash of the body.

use std::collections::{BTreeSet, HashSet};

use hark_codec::crypto::{SignatureVerifier, sha256};
use hark_codec::hex;
use hark_codec::nostr::{Event, EventArena, VerifiedEvent};
use hark_codec::record::{Id, Key};
use parking_lot::Mutex;

/// The kind of the event in the header.
const HTTP_AUTH: u16 = 27_235;

/// Seconds that the time of a signature may lie before or after the current time.
pub(super) const AGE_S_MAX: u64 = 60;

/// Maximum length of the header's value. A signature with all its tags takes less than 1 KiB.
const HEADER_BYTES_MAX: usize = 8 << 10;

/// Maximum number of signatures that are remembered. Only signatures of managers are remembered.
const SEEN_MAX: usize = 10_000;

/// A request whose signature is checked.
pub(super) struct HttpAuthRequest<'a> {
    /// The value of the `Authorization` header. `None` if the request has no such header.
    pub(super) header: Option<&'a str>,
    /// The method of the request, such as `POST`.
    pub(super) method: &'a str,
    /// Whether a URL is the URL of the request.
    pub(super) is_own_url: &'a dyn Fn(&str) -> bool,
    /// The URL to name when a signature for another URL is refused. `None` if this URL is not
    /// known.
    pub(super) own_url: Option<&'a str>,
    /// The current time, in seconds since 1970.
    pub(super) now_s: u64,
}

/// A valid signature of a request whose body has not been read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpSignature {
    pub(super) key: Key,
    id: Id,
    created_at: u64,
    /// SHA-256 of the body that was signed.
    payload: [u8; 32],
}

/// Why a request is not authorized.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HttpAuthFault {
    #[error("the request has no Authorization header with the scheme Nostr (NIP-98)")]
    Missing,
    #[error("the Authorization header has more than {HEADER_BYTES_MAX} bytes")]
    Long,
    #[error("the Authorization header is not the base64 of an event")]
    Encoding,
    #[error("the event in the Authorization header is invalid: {0}")]
    Event(String),
    #[error("the event in the Authorization header must have kind {HTTP_AUTH}, and has kind {0}")]
    Kind(u16),
    #[error(
        "created_at is more than {AGE_S_MAX} s from this server's time, {0}; check the clock, and \
         sign again"
    )]
    Time(u64),
    #[error("created_at is before the start of this server; sign again")]
    BeforeStart,
    #[error("the u tag must be the URL of this relay{}", own(.0.as_deref()))]
    Url(Option<String>),
    #[error("the method tag must be {0}")]
    Method(String),
    #[error("the event has no payload tag with the SHA-256 of the body in hex")]
    NoPayload,
    #[error("the payload tag is not the SHA-256 of the body")]
    Payload,
    #[error("this signature was used before; sign each request anew")]
    Replayed,
    #[error("too many signed requests within {} s; wait a minute", 2 * AGE_S_MAX)]
    TooMany,
}

fn own(url: Option<&str>) -> String {
    url.map(|url| format!(", {url}")).unwrap_or_default()
}

impl HttpAuthRequest<'_> {
    /// Checks the header of the request, whose body need not have been read.
    pub(super) fn signature(&self) -> Result<HttpSignature, HttpAuthFault> {
        let header = self.header.ok_or(HttpAuthFault::Missing)?;
        let (scheme, token) = header.trim().split_once(' ').ok_or(HttpAuthFault::Missing)?;
        if !scheme.eq_ignore_ascii_case("nostr") {
            return Err(HttpAuthFault::Missing);
        }
        if token.len() > HEADER_BYTES_MAX {
            return Err(HttpAuthFault::Long);
        }
        let token = token.trim().trim_end_matches('=');
        let json = base64_simd::STANDARD_NO_PAD.decode_to_vec(token);
        let json = json.or_else(|_| base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token));
        let json = json.map_err(|_| HttpAuthFault::Encoding)?;
        let mut arena = EventArena::new();
        let event = Event::parse(&json, &mut arena);
        let event = event.map_err(|fault| HttpAuthFault::Event(fault.to_string()))?;
        let payload = self.check(&event)?;
        let (id, created_at) = (*event.id(), event.created_at());
        let verified = VerifiedEvent::check(event, &mut SignatureVerifier::new(1));
        let verified = verified.map_err(|fault| HttpAuthFault::Event(fault.to_string()))?;
        Ok(HttpSignature { key: *verified.event().pubkey(), id, created_at, payload })
    }

    /// Checks the fields of the event, and returns the hash of the body.
    fn check(&self, event: &Event<'_>) -> Result<[u8; 32], HttpAuthFault> {
        if event.kind() != HTTP_AUTH {
            return Err(HttpAuthFault::Kind(event.kind()));
        }
        if event.created_at().abs_diff(self.now_s) > AGE_S_MAX {
            return Err(HttpAuthFault::Time(self.now_s));
        }
        if !event.first_value("u").is_some_and(|url| (self.is_own_url)(url)) {
            return Err(HttpAuthFault::Url(self.own_url.map(str::to_owned)));
        }
        if !event.first_value("method").is_some_and(|it| it.eq_ignore_ascii_case(self.method)) {
            return Err(HttpAuthFault::Method(self.method.to_owned()));
        }
        let payload = event.first_value("payload").map(str::to_ascii_lowercase);
        payload.and_then(|hash| hex::decode_32(hash.as_bytes())).ok_or(HttpAuthFault::NoPayload)
    }
}

impl HttpSignature {
    /// Checks that `body` is the body that was signed.
    pub(super) fn check_body(&self, body: &[u8]) -> Result<(), HttpAuthFault> {
        if sha256(body) == self.payload { Ok(()) } else { Err(HttpAuthFault::Payload) }
    }
}

/// The signatures that were used, until they are too old to be used again. A signature from before
/// the start of the server is refused, because an earlier process may have accepted this signature.
pub(super) struct SeenSignatures {
    since_s: u64,
    used: Mutex<UsedSignatures>,
}

#[derive(Default)]
struct UsedSignatures {
    ids: HashSet<Id>,
    /// The same signatures in the order of their times.
    by_time: BTreeSet<(u64, Id)>,
}

impl SeenSignatures {
    /// Creates the memory of a server that has started at this time.
    pub(super) fn new(since_s: u64) -> Self {
        Self { since_s, used: Mutex::default() }
    }

    /// Checks that a signature was not used. Records nothing.
    pub(super) fn check(&self, signature: &HttpSignature) -> Result<(), HttpAuthFault> {
        if signature.created_at < self.since_s {
            return Err(HttpAuthFault::BeforeStart);
        }
        if self.used.lock().ids.contains(&signature.id) {
            return Err(HttpAuthFault::Replayed);
        }
        Ok(())
    }

    /// Records that a signature is used. Fails if it was used before.
    pub(super) fn record(
        &self,
        signature: &HttpSignature,
        now_s: u64,
    ) -> Result<(), HttpAuthFault> {
        let mut used = self.used.lock();
        while let Some(&(created_at, id)) = used.by_time.first()
            && created_at + AGE_S_MAX < now_s
        {
            used.by_time.pop_first();
            used.ids.remove(&id);
        }
        if used.ids.contains(&signature.id) {
            return Err(HttpAuthFault::Replayed);
        }
        // A forgotten signature could be used again. So at the bound, new signatures are refused
        // instead.
        if used.ids.len() >= SEEN_MAX {
            return Err(HttpAuthFault::TooMany);
        }
        used.ids.insert(signature.id);
        used.by_time.insert((signature.created_at, signature.id));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hark_codec::crypto::KeyPair;
    use hark_codec::nostr::EventDraft;

    use super::*;

    const NOW: u64 = 1_700_000_000;
    const BODY: &[u8] = br#"{"method":"supportedmethods","params":[]}"#;

    fn hash(body: &[u8]) -> String {
        String::from_utf8(hex::encode_32(&sha256(body)).to_vec()).unwrap()
    }

    fn keys() -> KeyPair {
        KeyPair::from_secret([7; 32]).unwrap()
    }

    /// A signed event with these tags, as the value of the header.
    fn header(kind: u16, created_at: u64, tags: &[[&str; 2]]) -> String {
        let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
        let mut json = Vec::new();
        EventDraft { created_at, kind, tags: &tags, content: "" }.sign(&keys(), &mut json);
        format!("Nostr {}", base64_simd::STANDARD.encode_to_string(json))
    }

    fn verify(header: Option<&str>) -> Result<HttpSignature, HttpAuthFault> {
        let is_own_url = |url: &str| url == "https://relay.example/";
        let request = HttpAuthRequest {
            header,
            method: "POST",
            is_own_url: &is_own_url,
            own_url: Some("wss://relay.example"),
            now_s: NOW,
        };
        request.signature()
    }

    #[test]
    fn a_signature_counts_for_its_url_its_method_its_time_and_its_body() {
        let (url, method) = (["u", "https://relay.example/"], ["method", "post"]);
        let hash_of_body = hash(BODY);
        let payload = ["payload", hash_of_body.as_str()];
        for created_at in [NOW - AGE_S_MAX, NOW, NOW + AGE_S_MAX] {
            let header = header(HTTP_AUTH, created_at, &[url, method, payload]);
            let signature = verify(Some(&header)).unwrap();
            assert_eq!(signature.key, *keys().public());
            assert_eq!(signature.check_body(BODY), Ok(()));
            assert_eq!(signature.check_body(b"{}"), Err(HttpAuthFault::Payload));
        }
        let other_url = HttpAuthFault::Url(Some("wss://relay.example".into()));
        let upper = hash_of_body.to_ascii_uppercase();
        assert!(verify(Some(&header(HTTP_AUTH, NOW, &[url, method, ["payload", &upper]]))).is_ok());
        for (kind, created_at, tags, fault) in [
            (22_242, NOW, &[url, method, payload][..], HttpAuthFault::Kind(22_242)),
            (HTTP_AUTH, NOW - 61, &[url, method, payload], HttpAuthFault::Time(NOW)),
            (HTTP_AUTH, NOW + 61, &[url, method, payload], HttpAuthFault::Time(NOW)),
            (HTTP_AUTH, NOW, &[method, payload], other_url),
            (
                HTTP_AUTH,
                NOW,
                &[["u", "https://relay.example/x"], url, method, payload],
                HttpAuthFault::Url(Some("wss://relay.example".into())),
            ),
            (HTTP_AUTH, NOW, &[url, payload], HttpAuthFault::Method("POST".into())),
            (
                HTTP_AUTH,
                NOW,
                &[url, ["method", "GET"], payload],
                HttpAuthFault::Method("POST".into()),
            ),
            (HTTP_AUTH, NOW, &[url, method], HttpAuthFault::NoPayload),
            (HTTP_AUTH, NOW, &[url, method, ["payload", "ab"]], HttpAuthFault::NoPayload),
        ] {
            assert_eq!(verify(Some(&header(kind, created_at, tags))), Err(fault));
        }
    }

    #[test]
    fn a_header_that_is_no_signed_event_is_refused() {
        let hash_of_body = hash(BODY);
        let tags =
            [["u", "https://relay.example/"], ["method", "POST"], ["payload", &hash_of_body]];
        let valid = header(HTTP_AUTH, NOW, &tags);
        let token = valid.strip_prefix("Nostr ").unwrap();
        // Clients differ in the padding and the alphabet of base64, and in the case of the scheme's
        // name.
        for spelled in [
            format!("nostr   {token}  "),
            format!("NOSTR {}", token.trim_end_matches('=')),
            format!("Nostr {}", token.replace('+', "-").replace('/', "_")),
        ] {
            assert!(verify(Some(&spelled)).is_ok(), "{spelled}");
        }
        let json = base64_simd::STANDARD.decode_to_vec(token).unwrap();
        let json = String::from_utf8(json).unwrap();
        let token_of = |json: &str| base64_simd::STANDARD.encode_to_string(json);
        let later = json.replace("1700000000", "1700000001");
        let at = json.find("\"sig\":\"").unwrap() + 7;
        let flipped = if &json[at..=at] == "0" { "1" } else { "0" };
        let forged = [&json[..at], flipped, &json[at + 1..]].concat();
        assert_eq!(verify(None), Err(HttpAuthFault::Missing));
        let long = format!("Nostr {}", "A".repeat(HEADER_BYTES_MAX + 1));
        for (header, fault) in [
            ("", HttpAuthFault::Missing),
            ("Nostr", HttpAuthFault::Missing),
            ("Nostr ", HttpAuthFault::Missing),
            ("Bearer abc", HttpAuthFault::Missing),
            ("Basic bm9zdHI6", HttpAuthFault::Missing),
            ("Nostr %%%", HttpAuthFault::Encoding),
            (&long, HttpAuthFault::Long),
        ] {
            assert_eq!(verify(Some(header)), Err(fault), "{header}");
        }
        for json in ["{}", &later, &forged] {
            let refused = verify(Some(&format!("Nostr {}", token_of(json))));
            assert!(matches!(refused, Err(HttpAuthFault::Event(_))), "{json}: {refused:?}");
        }
    }

    #[test]
    fn a_signature_is_used_once_and_forgotten_when_it_is_too_old_to_be_used() {
        let signed = |number: u32, created_at| {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&number.to_be_bytes());
            HttpSignature { key: [1; 32], id, created_at, payload: [0; 32] }
        };
        let seen = SeenSignatures::new(NOW - 30);
        assert_eq!(seen.check(&signed(1, NOW - 31)), Err(HttpAuthFault::BeforeStart));
        assert_eq!(seen.check(&signed(1, NOW - 30)), Ok(()));
        assert_eq!(seen.record(&signed(1, NOW - 30), NOW), Ok(()));
        assert_eq!(seen.check(&signed(1, NOW - 30)), Err(HttpAuthFault::Replayed));
        assert_eq!(seen.record(&signed(1, NOW - 30), NOW), Err(HttpAuthFault::Replayed));
        // A signature with a time in the future is remembered for as long as it could be used.
        assert_eq!(seen.record(&signed(2, NOW + 60), NOW), Ok(()));
        let later = NOW + 120;
        assert_eq!(seen.record(&signed(2, NOW + 60), later), Err(HttpAuthFault::Replayed));
        assert_eq!(seen.used.lock().ids.len(), 1);
        assert_eq!(seen.record(&signed(3, later), later + 1), Ok(()));
        assert_eq!(seen.used.lock().ids.len(), 1);
        for number in 4..SEEN_MAX as u32 + 3 {
            assert_eq!(seen.record(&signed(number, later), later + 1), Ok(()));
        }
        let last = signed(0, later);
        assert_eq!(seen.record(&last, later + 1), Err(HttpAuthFault::TooMany));
        assert_eq!(seen.record(&last, later + AGE_S_MAX + 1), Ok(()));
        let used = seen.used.lock();
        assert_eq!((used.ids.len(), used.by_time.len()), (1, 1));
    }
}
