//! The event id (NIP-01): SHA-256 of `[0,pubkey,created_at,kind,tags,content]` in canonical
//! spelling.
//!
//! NIP-01 has seven escapes and demands "all other characters verbatim". But JSON allows no
//! unescaped control characters in strings. Clients hash the output of `JSON.stringify`, which
//! writes such characters as `\u00xx`, in lowercase. The canonical spelling of `json.rs` does the
//! same, so tags and content that were received in this spelling are hashed without a copy.

use sha2::{Digest, Sha256};

use super::event::Event;
use super::json::{ByteSink, put_content, put_string, put_tags, put_u64};
use crate::hex;
use crate::record::{Id, Key};

impl ByteSink for Sha256 {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }
}

/// A buffer for the bytes before the tags, so that they are hashed in one call.
struct HashPrefix {
    bytes: [u8; 104],
    len: usize,
}

impl ByteSink for HashPrefix {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Formats `[0,"<pubkey>",<created_at>,<kind>,`: at most 4 + 64 + 2 + 20 + 1 + 5 + 1 bytes.
#[inline]
fn front(pubkey: &Key, created_at: u64, kind: u16) -> HashPrefix {
    let mut front = HashPrefix { bytes: [0; 104], len: 0 };
    front.put(b"[0,\"");
    front.put(&hex::encode_32(pubkey));
    front.put(b"\",");
    put_u64(&mut front, created_at);
    front.put(b",");
    put_u64(&mut front, u64::from(kind));
    front.put(b",");
    front
}

impl Event<'_> {
    /// Computes the id from the event's fields.
    pub fn compute_id(&self) -> Id {
        event_id(self)
    }

    /// Whether the id is the hash of the fields.
    pub fn has_valid_id(&self) -> bool {
        self.compute_id() == *self.id()
    }
}

/// Computes the id from the event's fields.
pub fn event_id(event: &Event<'_>) -> Id {
    let front = front(event.pubkey(), event.created_at(), event.kind());
    let mut hash = Sha256::new();
    hash.put(&front.bytes[..front.len]);
    put_tags(&mut hash, event);
    hash.put(b",");
    put_content(&mut hash, event);
    hash.put(b"]");
    hash.finalize().into()
}

/// Appends the bytes that [`event_id`] hashes.
pub fn write_canonical(out: &mut Vec<u8>, event: &Event<'_>) {
    let front = front(event.pubkey(), event.created_at(), event.kind());
    out.put(&front.bytes[..front.len]);
    put_tags(out, event);
    out.put(b",");
    put_content(out, event);
    out.put(b"]");
}

/// Does the same as [`write_canonical`], for an event that is not signed yet.
pub(crate) fn write_unsigned(
    out: &mut Vec<u8>,
    pubkey: &Key,
    created_at: u64,
    kind: u16,
    tags: &[&[&str]],
    content: &str,
) {
    let front = front(pubkey, created_at, kind);
    out.put(&front.bytes[..front.len]);
    put_plain_tags(out, tags);
    out.put(b",");
    put_string(out, content);
    out.put(b"]");
}

/// Appends the tags of an event that is not signed yet, as JSON.
pub(crate) fn put_plain_tags(out: &mut Vec<u8>, tags: &[&[&str]]) {
    out.put(b"[");
    for (n, tag) in tags.iter().enumerate() {
        out.put(if n == 0 { b"[" } else { b",[" });
        for (n, value) in tag.iter().enumerate() {
            out.put(if n == 0 { b"" } else { b"," });
            put_string(out, value);
        }
        out.put(b"]");
    }
    out.put(b"]");
}
