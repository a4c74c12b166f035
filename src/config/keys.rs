//! Public keys of Nostr as typed in settings and lists.

use hark_archive::Key;
use hark_codec::hex;
use hark_codec::nostr::npub;

/// Reads a public key: 64 lowercase hex digits, or `npub1…`.
pub(super) fn public_key(text: &str) -> Result<Key, String> {
    hex::decode_32(text.as_bytes()).or_else(|| npub::decode(text)).ok_or_else(|| {
        let typed_as = if text.to_ascii_lowercase().starts_with("npub1") {
            "; a character of it is wrong"
        } else {
            " of 64 lowercase hex digits, nor an npub1…"
        };
        format!("{text:?} is no public key{typed_as}")
    })
}
