//! Writes JSON: strings, numbers and whole events. One spelling for everything: no white space, the
//! seven short escapes of NIP-01, `\u00xx` in lowercase for other control characters, all else as
//! it is.

use super::event::Event;
use crate::{hex, scan};

/// Where bytes go: a buffer, or a hash that takes them as they come.
pub(crate) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends `text` as a JSON string, with quotes.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    put_string(out, text);
}

/// Appends a number.
pub fn write_u64(out: &mut Vec<u8>, value: u64) {
    put_u64(out, value);
}

/// Appends the event in the order `id`, `pubkey`, `created_at`, `kind`, `tags`, `content`, `sig`,
/// without white space.
pub fn write_event(out: &mut Vec<u8>, event: &Event<'_>) {
    out.reserve(event.json_len_guess());
    put_event_head(out, event);
    put_tags(out, event);
    put_event_rest(out, event);
}

/// Everything up to the tags.
#[inline]
pub(crate) fn put_event_head(out: &mut Vec<u8>, event: &Event<'_>) {
    out.put(b"{\"id\":\"");
    out.put(&hex::encode_32(event.id()));
    out.put(b"\",\"pubkey\":\"");
    out.put(&hex::encode_32(event.pubkey()));
    out.put(b"\",\"created_at\":");
    put_u64(out, event.created_at());
    out.put(b",\"kind\":");
    put_u64(out, u64::from(event.kind()));
    out.put(b",\"tags\":");
}

/// Everything behind the tags.
#[inline]
pub(crate) fn put_event_rest(out: &mut Vec<u8>, event: &Event<'_>) {
    out.put(b",\"content\":");
    put_content(out, event);
    out.put(b",\"sig\":\"");
    out.put(&hex::encode_64(event.signature()));
    out.put(b"\"}");
}

/// The tags as JSON: copied in one go, where they came in our own spelling.
#[inline]
pub(crate) fn put_tags(out: &mut impl Sink, event: &Event<'_>) {
    if let Some(raw) = event.raw_tags() {
        return out.put(raw.as_bytes());
    }
    let mut open: &[u8] = b"[[";
    for tag in event.tags() {
        out.put(open);
        let mut comma: &[u8] = b"";
        for value in tag.iter() {
            out.put(comma);
            put_string(out, value);
            comma = b",";
        }
        open = b"],[";
    }
    out.put(if open == b"[[" { b"[]" } else { b"]]" });
}

/// The content as a JSON string: copied in one go, where it came in our own spelling.
#[inline]
pub(crate) fn put_content(out: &mut impl Sink, event: &Event<'_>) {
    match event.raw_content() {
        Some(raw) => out.put(raw.as_bytes()),
        None => put_string(out, event.content()),
    }
}

pub(crate) fn put_string(out: &mut impl Sink, text: &str) {
    let bytes = text.as_bytes();
    out.put(b"\"");
    let mut at = 0;
    loop {
        let to = scan::find_special(bytes, at);
        out.put(bytes.get(at..to).unwrap_or_default());
        let Some(&special) = bytes.get(to) else { break };
        put_escape(out, special);
        at = to + 1;
    }
    out.put(b"\"");
}

fn put_escape(out: &mut impl Sink, byte: u8) {
    let digit = b"0123456789abcdef"[usize::from(byte & 15)];
    match byte {
        b'\n' => out.put(b"\\n"),
        b'"' => out.put(b"\\\""),
        b'\\' => out.put(b"\\\\"),
        b'\r' => out.put(b"\\r"),
        b'\t' => out.put(b"\\t"),
        8 => out.put(b"\\b"),
        12 => out.put(b"\\f"),
        _ => out.put(&[b'\\', b'u', b'0', b'0', b'0' + (byte >> 4), digit]),
    }
}

#[inline]
pub(crate) fn put_u64(out: &mut impl Sink, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.put(&digits[at..]);
}
