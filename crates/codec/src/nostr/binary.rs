//! Between an event and the archive's record.
//!
//! The record's wire is the event's JSON in our own spelling. First values of single-letter tags
//! become labels under their letter: in place, where they stand verbatim in the JSON.

use super::event::Event;
use super::json::{Sink, put_event_head, put_event_rest, put_string, put_tags};
use crate::record::{self, Head, Id, Key, Place, Record};

/// Longest value that can be asked for. Longer ones stay in the event, but are no label.
pub const LABEL_LEN_MAX: usize = 65_535;

/// Encodes events, with reused buffers.
#[derive(Debug, Default)]
pub struct Encoder {
    wire: Vec<u8>,
    labels: Vec<Label>,
    /// Values that stand escaped in the wire.
    extra: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Label {
    letter: u8,
    in_wire: bool,
    at: u32,
    len: u32,
}

impl Encoder {
    /// Appends the event as a record to `out`, with `private` labels (names below
    /// [`record::PRIVATE_LABELS`]) behind its own.
    pub fn encode(&mut self, event: &Event<'_>, private: &[(u8, &[u8])], out: &mut Vec<u8>) {
        self.wire.clear();
        self.labels.clear();
        self.extra.clear();
        self.wire.reserve(event.json_len_guess());
        put_event_head(&mut self.wire, event);
        match event.raw_tags_at() {
            Some(from) => self.copy_tags(event, from),
            None => self.write_tags(event),
        }
        put_event_rest(&mut self.wire, event);
        let head = Head {
            id: *event.id(),
            time: event.created_at(),
            author: Some(*event.pubkey()),
            kind: u32::from(event.kind()),
            expires: event.expiration(),
        };
        let Self { wire, labels, extra } = self;
        out.reserve(wire.len() + extra.len() + labels.len() * 4 + 128);
        let own = labels.iter().map(|label| (label.letter, label.place(extra)));
        let private = private.iter().map(|(name, value)| (*name, Place::Bytes(value)));
        record::write(out, &head, wire, own.chain(private));
    }

    /// The tags came in our own spelling, from `from` on in the text.
    fn copy_tags(&mut self, event: &Event<'_>, from: usize) {
        let start = self.wire.len();
        put_tags(&mut self.wire, event);
        for tag in event.tags() {
            if let (Some(letter), Some(value)) = (tag.letter(), tag.value()) {
                match tag.value_at() {
                    Some(at) => self.label(letter, start + at - from, value.len()),
                    None => self.extra_label(letter, value),
                }
            }
        }
    }

    fn write_tags(&mut self, event: &Event<'_>) {
        self.wire.put(b"[");
        let mut open: &[u8] = b"[";
        for tag in event.tags() {
            self.wire.put(open);
            open = b",[";
            for (n, value) in tag.iter().enumerate() {
                self.wire.put(if n == 0 { b"" } else { b"," });
                let at = self.wire.len() + 1;
                put_string(&mut self.wire, value);
                let Some(letter) = tag.letter().filter(|_| n == 1) else { continue };
                if self.wire.len() == at + value.len() + 1 {
                    self.label(letter, at, value.len());
                } else {
                    self.extra_label(letter, value);
                }
            }
            self.wire.put(b"]");
        }
        self.wire.put(b"]");
    }

    fn label(&mut self, letter: u8, at: usize, len: usize) {
        if len <= LABEL_LEN_MAX {
            self.labels.push(Label { letter, in_wire: true, at: at as u32, len: len as u32 });
        }
    }

    fn extra_label(&mut self, letter: u8, value: &str) {
        if value.len() <= LABEL_LEN_MAX {
            let (at, len) = (self.extra.len() as u32, value.len() as u32);
            self.extra.put(value.as_bytes());
            self.labels.push(Label { letter, in_wire: false, at, len });
        }
    }
}

impl Label {
    #[inline]
    fn place(self, extra: &[u8]) -> Place<'_> {
        let Self { at, len, .. } = self;
        if self.in_wire {
            return Place::Wire { at, len };
        }
        Place::Bytes(extra.get(at as usize..(at + len) as usize).unwrap_or_default())
    }
}

/// A record that holds an event: what is asked for often is read in place.
#[derive(Clone, Copy, Debug)]
pub struct EventRecord<'a> {
    record: Record<'a>,
    pubkey: &'a Key,
}

impl<'a> EventRecord<'a> {
    /// `None` if the record has no author or a kind beyond 16 bits: then it is no event.
    pub fn new(record: Record<'a>) -> Option<Self> {
        u16::try_from(record.kind()).ok()?;
        Some(Self { record, pubkey: record.author()? })
    }

    /// Its id.
    pub fn id(&self) -> &'a Id {
        self.record.id()
    }

    /// Its author.
    pub fn pubkey(&self) -> &'a Key {
        self.pubkey
    }

    /// Unix time, s.
    pub fn created_at(&self) -> u64 {
        self.record.time()
    }

    /// Its kind.
    pub fn kind(&self) -> u16 {
        self.record.kind() as u16
    }

    /// From when on it is not to be served (NIP-40).
    pub fn expires(&self) -> Option<u64> {
        self.record.expires()
    }

    /// The event as JSON. [`Event::parse`] reads all of it.
    pub fn json(&self) -> &'a [u8] {
        self.record.wire()
    }

    /// The record.
    pub fn record(&self) -> Record<'a> {
        self.record
    }
}
