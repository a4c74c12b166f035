//! Encodes an event as a record of the archive, and reads events from records.
//!
//! The record's wire bytes are the event's JSON in the canonical spelling of `json.rs`. The first
//! value of a single-letter tag becomes a label named by the letter. If the value occurs verbatim
//! in the JSON, the label is a slice of the JSON.

use super::event::Event;
use super::json::{
    BACK_LEN, ByteSink, CONTENT_KEY, JsonPrefix, put_back, put_content, put_escaped,
};
use super::span::Span;
use super::tag::Tag;
use crate::record::{Id, Key, Record, RecordHeader, RecordWriter};

/// Longest value of a label, in bytes. A longer value stays in the event, but cannot be queried.
pub const LABEL_LEN_MAX: usize = 65_535;

/// Encodes events. Tags and content that were not received in canonical spelling are first written
/// in this spelling to reused buffers.
#[derive(Debug, Default)]
pub struct EventEncoder {
    tags: Vec<u8>,
    content: Vec<u8>,
    /// For each label, the offset of its value in `tags`; `None` if the value has escapes there.
    offsets: Vec<Option<usize>>,
}

impl EventEncoder {
    /// Appends the event as a record to `out`. `private` labels, with names below
    /// [`PRIVATE_LABELS`](crate::record::PRIVATE_LABELS), follow the event's own labels.
    pub fn encode(&mut self, event: &Event<'_>, private: &[(u8, &[u8])], out: &mut Vec<u8>) {
        let Self { tags, content, offsets } = self;
        let content = if let Some(raw) = event.raw_content() {
            raw.as_bytes()
        } else {
            content.clear();
            put_content(content, event);
            content
        };
        let front = JsonPrefix::new(event);
        let tags_at = front.len();
        let parts = RecordParts { event, front, content, private };
        if let (Some(raw), Some(from)) = (event.raw_tags(), event.raw_tags_at()) {
            let in_text = |span: Span| Some(tags_at + span.text_at()? - from);
            parts.write(raw.as_bytes(), |_, tag| in_text(tag.value_span()), out);
        } else {
            write_tags(event, tags, offsets);
            let written = |label: usize| Some(tags_at + (*offsets.get(label)?)?);
            parts.write(tags, |label, _| written(label), out);
        }
    }
}

/// The parts of a record, except the tags.
struct RecordParts<'a> {
    event: &'a Event<'a>,
    front: JsonPrefix<'a>,
    content: &'a [u8],
    private: &'a [(u8, &'a [u8])],
}

impl RecordParts<'_> {
    /// Appends the record to `out`. `offset_of` receives the index and the tag of a label. It
    /// returns the offset of the label's value in the wire bytes, or `None` if the value has
    /// escapes there.
    #[inline]
    fn write(
        self,
        tags: &[u8],
        offset_of: impl Fn(usize, &Tag<'_>) -> Option<usize>,
        out: &mut Vec<u8>,
    ) {
        let Self { event, front, content, private } = self;
        let head = RecordHeader {
            id: *event.id(),
            time: event.created_at(),
            author: Some(*event.pubkey()),
            kind: u32::from(event.kind()),
            expires: event.expiration(),
        };
        let wire_len = front.len() + tags.len() + CONTENT_KEY.len() + content.len() + BACK_LEN;
        let mut writer = RecordWriter::begin(out, &head, wire_len);
        let mut all_in_wire = true;
        for (n, (letter, tag)) in labels(event).enumerate() {
            match offset_of(n, &tag) {
                Some(at) => writer.label(letter, at, tag.value_span().len()),
                None => all_in_wire = false,
            }
        }
        // A value that has escapes in the wire bytes is also stored without escapes. Such values
        // follow the wire bytes, and the values of private labels come last.
        let escaped = || {
            let all = labels(event).enumerate();
            all.filter(|(n, (_, tag))| offset_of(*n, tag).is_none()).map(|(_, label)| label)
        };
        let mut at = wire_len;
        // Usually no value has escapes. Then the labels are not read a second time.
        if !all_in_wire {
            for (letter, tag) in escaped() {
                writer.label(letter, at, tag.value_span().len());
                at += tag.value_span().len();
            }
        }
        for (name, value) in private {
            writer.label(*name, at, value.len());
            at += value.len();
        }
        let out = writer.end_labels();
        front.put(out);
        out.put(tags);
        out.put(CONTENT_KEY);
        out.put(content);
        put_back(out, event);
        if !all_in_wire {
            for (_, tag) in escaped() {
                out.put(tag.value().unwrap_or_default().as_bytes());
            }
        }
        for (_, value) in private {
            out.put(value);
        }
    }
}

/// Writes the tags, and the offset of each label's value.
fn write_tags(event: &Event<'_>, tags: &mut Vec<u8>, offsets: &mut Vec<Option<usize>>) {
    tags.clear();
    offsets.clear();
    let mut open: &[u8] = b"[[\"";
    for tag in event.tags() {
        for (n, value) in tag.iter().enumerate() {
            tags.put(open);
            open = b"\",\"";
            let at = tags.len();
            put_escaped(tags, value);
            if n == 1 && label(&tag).is_some() {
                let verbatim = tags.len() == at + value.len();
                offsets.push(verbatim.then_some(at));
            }
        }
        open = b"\"],[\"";
    }
    tags.put(if open == b"[[\"" { b"[]" } else { b"\"]]" });
}

/// Returns the tag's letter, if the tag becomes a label.
#[inline]
fn label(tag: &Tag<'_>) -> Option<u8> {
    tag.letter().filter(|_| tag.len() > 1 && tag.value_span().len() <= LABEL_LEN_MAX)
}

#[inline]
fn labels<'a>(event: &Event<'a>) -> impl Iterator<Item = (u8, Tag<'a>)> + Clone + use<'a> {
    event.tags().filter_map(|tag| Some((label(&tag)?, tag)))
}

/// A record that contains an event. Frequently used fields are read directly from the record's
/// bytes.
///
/// ```
/// use hark_codec::crypto::KeyPair;
/// use hark_codec::nostr::{Event, EventArena, EventDraft, EventEncoder, EventRecord};
/// use hark_codec::record::Record;
///
/// let keys = KeyPair::from_secret([7; 32]).ok_or("no secret key")?;
/// let mut json = Vec::new();
/// EventDraft { created_at: 7, kind: 1, tags: &[], content: "fresh" }.sign(&keys, &mut json);
/// let (mut arena, mut bytes) = (EventArena::new(), Vec::new());
/// EventEncoder::default().encode(&Event::parse(&json, &mut arena)?, &[], &mut bytes);
/// let record = EventRecord::new(Record::new(&bytes)?).ok_or("a record of another network")?;
/// assert_eq!((record.kind(), record.created_at(), record.json()), (1, 7, &json[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EventRecord<'a> {
    record: Record<'a>,
    pubkey: &'a Key,
}

impl<'a> EventRecord<'a> {
    /// Interprets a record as an event. Returns `None` if the record is not of an event: it has no
    /// author, or its kind exceeds 16 bits.
    #[inline]
    pub fn new(record: Record<'a>) -> Option<Self> {
        u16::try_from(record.kind()).ok()?;
        Some(Self { record, pubkey: record.author()? })
    }

    /// The event's id.
    #[inline]
    pub fn id(&self) -> &'a Id {
        self.record.id()
    }

    /// The event's author.
    #[inline]
    pub fn pubkey(&self) -> &'a Key {
        self.pubkey
    }

    /// Unix time in seconds.
    #[inline]
    pub fn created_at(&self) -> u64 {
        self.record.time()
    }

    /// The event's kind.
    #[inline]
    pub fn kind(&self) -> u16 {
        self.record.kind() as u16
    }

    /// Time from which the event is no longer served (NIP-40).
    #[inline]
    pub fn expires(&self) -> Option<u64> {
        self.record.expires()
    }

    /// The event as JSON, in the canonical spelling. [`Event::parse`] accepts this JSON.
    #[inline]
    pub fn json(&self) -> &'a [u8] {
        self.record.wire()
    }

    /// The record.
    #[inline]
    pub fn record(&self) -> Record<'a> {
        self.record
    }
}
