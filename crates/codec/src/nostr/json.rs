//! Writes JSON: strings, numbers and whole events. All are written in one canonical spelling: no
//! white space, the seven short escapes of NIP-01, `\u00xx` in lowercase for other control
//! characters, and all other characters verbatim.

use super::event::Event;
use crate::{hex, scan};

/// A destination for bytes: a buffer or a hash.
pub(crate) trait ByteSink {
    fn put(&mut self, bytes: &[u8]);
}

impl ByteSink for Vec<u8> {
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
#[inline]
pub fn write_u64(out: &mut Vec<u8>, value: u64) {
    put_u64(out, value);
}

impl Event<'_> {
    /// Appends the event as JSON, in canonical spelling.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        write_event(out, self);
    }
}

impl std::fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut json = Vec::new();
        self.write_json(&mut json);
        f.write_str(&String::from_utf8_lossy(&json))
    }
}

/// Appends the event in the order `id`, `pubkey`, `created_at`, `kind`, `tags`, `content`, `sig`,
/// without white space.
pub fn write_event(out: &mut Vec<u8>, event: &Event<'_>) {
    out.reserve(event.json_len_guess());
    JsonPrefix::new(event).put(out);
    put_tags(out, event);
    out.put(CONTENT_KEY);
    put_content(out, event);
    put_back(out, event);
}

/// The JSON between the tags and the content.
pub(crate) const CONTENT_KEY: &[u8] = b",\"content\":";

/// Writes the JSON before the tags, and can return its length before it is written.
pub(crate) struct JsonPrefix<'a> {
    event: &'a Event<'a>,
    created_at: Decimal,
    kind: Decimal,
}

impl<'a> JsonPrefix<'a> {
    #[inline]
    pub(crate) fn new(event: &'a Event<'a>) -> Self {
        let kind = u64::from(event.kind());
        Self { event, created_at: Decimal::new(event.created_at()), kind: Decimal::new(kind) }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        162 + self.created_at.get().len() + 8 + self.kind.get().len() + 8
    }

    #[inline]
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        // One copy of 162 bytes is cheaper than five copies of the parts.
        let mut keys = [0; 162];
        keys[..7].copy_from_slice(b"{\"id\":\"");
        keys[7..71].copy_from_slice(&hex::encode_32(self.event.id()));
        keys[71..83].copy_from_slice(b"\",\"pubkey\":\"");
        keys[83..147].copy_from_slice(&hex::encode_32(self.event.pubkey()));
        keys[147..].copy_from_slice(b"\",\"created_at\":");
        out.put(&keys);
        out.put(self.created_at.get());
        out.put(b",\"kind\":");
        out.put(self.kind.get());
        out.put(b",\"tags\":");
    }
}

/// Appends the JSON after the content.
#[inline]
pub(crate) fn put_back(out: &mut Vec<u8>, event: &Event<'_>) {
    let mut back = [0; BACK_LEN];
    back[..8].copy_from_slice(b",\"sig\":\"");
    back[8..136].copy_from_slice(&hex::encode_64(event.signature()));
    back[136..].copy_from_slice(b"\"}");
    out.put(&back);
}

/// Number of bytes that [`put_back`] appends, which is always the same.
pub(crate) const BACK_LEN: usize = 138;

/// Appends the tags as JSON. Tags that were received in canonical spelling are copied as a whole.
#[inline]
pub(crate) fn put_tags(out: &mut impl ByteSink, event: &Event<'_>) {
    if let Some(raw) = event.raw_tags() {
        return out.put(raw.as_bytes());
    }
    put_each_tag(out, event);
}

/// Appends the tags as JSON, value by value. Not inlined, so that [`put_tags`] remains small enough
/// to be inlined.
#[inline(never)]
fn put_each_tag(out: &mut impl ByteSink, event: &Event<'_>) {
    let mut open: &[u8] = b"[[\"";
    for tag in event.tags() {
        for value in tag.iter() {
            out.put(open);
            put_escaped(out, value);
            open = b"\",\"";
        }
        open = b"\"],[\"";
    }
    out.put(if open == b"[[\"" { b"[]" } else { b"\"]]" });
}

/// Appends the content as a JSON string. Content that was received in canonical spelling is copied
/// as a whole.
#[inline]
pub(crate) fn put_content(out: &mut impl ByteSink, event: &Event<'_>) {
    match event.raw_content() {
        Some(raw) => out.put(raw.as_bytes()),
        None => put_string(out, event.content()),
    }
}

/// Appends `text` as a JSON string. Not inlined, so that [`put_content`] remains small enough to be
/// inlined.
#[inline(never)]
pub(crate) fn put_string(out: &mut impl ByteSink, text: &str) {
    out.put(b"\"");
    put_escaped(out, text);
    out.put(b"\"");
}

/// Appends `text` as a JSON string without the quotes.
#[inline]
pub(crate) fn put_escaped(out: &mut impl ByteSink, text: &str) {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        let to = scan::find_special(bytes, at);
        out.put(bytes.get(at..to).unwrap_or_default());
        let Some(&special) = bytes.get(to) else { break };
        put_escape(out, special);
        at = to + 1;
    }
}

fn put_escape(out: &mut impl ByteSink, byte: u8) {
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
pub(crate) fn put_u64(out: &mut impl ByteSink, value: u64) {
    out.put(Decimal::new(value).get());
}

/// A number as decimal digits.
pub(crate) struct Decimal {
    digits: [u8; 20],
    from: usize,
}

/// The digits of 00 to 99.
const PAIRS: [[u8; 2]; 100] = {
    let (mut pairs, mut n) = ([[0; 2]; 100], 0);
    while n < 100 {
        pairs[n] = [b'0' + n as u8 / 10, b'0' + n as u8 % 10];
        n += 1;
    }
    pairs
};

impl Decimal {
    #[inline]
    pub(crate) fn new(mut value: u64) -> Self {
        let (mut digits, mut from) = ([0; 20], 20);
        for pair in digits.as_chunks_mut::<2>().0.iter_mut().rev() {
            let two = (value % 100) as usize;
            *pair = PAIRS[two];
            from -= 2;
            value /= 100;
            if value == 0 {
                from += usize::from(two < 10);
                break;
            }
        }
        Self { digits, from }
    }

    #[inline]
    pub(crate) fn get(&self) -> &[u8] {
        &self.digits[self.from..]
    }
}
