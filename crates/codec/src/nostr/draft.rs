//! Makes and signs new events: for tests, for benchmarks, for AUTH, and for a relay that has its
//! own key.

use super::canonical;
use super::json::{self, ByteSink};
use crate::crypto::{self, KeyPair};
use crate::hex;
use crate::record::Id;

/// An event that still lacks author, id and signature.
///
/// ```
/// use hark_codec::crypto::KeyPair;
/// use hark_codec::nostr::{Event, EventArena, EventDraft};
///
/// let keys = KeyPair::from_secret([7; 32]).ok_or("no secret key")?;
/// let tags: &[&[&str]] = &[&["t", "bread"]];
/// let mut json = Vec::new();
/// let id = EventDraft { created_at: 7, kind: 1, tags, content: "fresh" }.sign(&keys, &mut json);
/// let mut arena = EventArena::new();
/// let event = Event::parse(&json, &mut arena)?;
/// assert!(event.has_valid_id() && event.id() == &id && event.pubkey() == keys.public());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct EventDraft<'a> {
    /// Unix time in seconds.
    pub created_at: u64,
    /// Kind.
    pub kind: u16,
    /// Tags, each with at least its name.
    pub tags: &'a [&'a [&'a str]],
    /// Content.
    pub content: &'a str,
}

impl EventDraft<'_> {
    /// Appends the signed event as JSON to `out` and returns its id.
    pub fn sign(&self, keys: &KeyPair, out: &mut Vec<u8>) -> Id {
        let Self { created_at, kind, tags, content } = *self;
        let start = out.len();
        canonical::write_unsigned(out, keys.public(), created_at, kind, tags, content);
        let id = crypto::sha256(&out[start..]);
        out.truncate(start);
        let signature = crypto::sign(keys, &id);
        out.put(b"{\"id\":\"");
        out.put(&hex::encode_32(&id));
        out.put(b"\",\"pubkey\":\"");
        out.put(&hex::encode_32(keys.public()));
        out.put(b"\",\"created_at\":");
        json::write_u64(out, created_at);
        out.put(b",\"kind\":");
        json::write_u64(out, u64::from(kind));
        out.put(b",\"tags\":");
        canonical::put_plain_tags(out, tags);
        out.put(b",\"content\":");
        json::write_string(out, content);
        out.put(b",\"sig\":\"");
        out.put(&hex::encode_64(&signature));
        out.put(b"\"}");
        id
    }
}
