//! An event as a view over the bytes from which it was read. One pass parses the JSON and decodes
//! the hex. A string without escapes is a slice of these bytes; a string with escapes is unescaped
//! into a reused arena.

use super::json_error::{JsonError, NumberError};
use super::read::JsonReader;
use super::span::Span;
use super::tag::Tags;
use crate::crypto::Signature;
use crate::hex;
use crate::record::{Id, Key};

/// Largest `created_at`: the largest integer that JavaScript represents exactly. For a larger
/// number, clients written in JavaScript would compute a different id. The maximum also fits a
/// signed 64-bit column.
pub const CREATED_AT_MAX: u64 = (1 << 53) - 1;

/// Kinds of the events with which authors request the removal of their own data: deletions (NIP-09)
/// and requests to vanish (NIP-62).
pub const REQUESTS: [u16; 2] = [5, 62];

/// Why bytes are not a valid event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Not valid JSON.
    #[error("{0}")]
    Json(#[from] JsonError),
    /// Not an object.
    #[error("event is not an object")]
    NoObject,
    /// A field is missing.
    #[error("event has no {0}")]
    Missing(&'static str),
    /// A field occurs twice.
    #[error("event has more than one {0}")]
    Duplicate(&'static str),
    /// A field is not lowercase hex, or does not have the right length.
    #[error("{field} is not {digits} lowercase hex digits")]
    Hex {
        /// Name of the field.
        field: &'static str,
        /// The right length.
        digits: u8,
    },
    /// `created_at` is not a valid number.
    #[error("created_at {0}")]
    CreatedAt(NumberError),
    /// `created_at` is above [`CREATED_AT_MAX`].
    #[error("created_at {0} is above {CREATED_AT_MAX}")]
    CreatedAtRange(u64),
    /// `kind` is not a valid number.
    #[error("kind {0}")]
    Kind(NumberError),
    /// `kind` is beyond 16 bits.
    #[error("kind {0} is above 65535")]
    KindRange(u64),
    /// `tags` is not an array of arrays.
    #[error("tags is not an array of arrays")]
    Tags,
    /// A tag without a name.
    #[error("tag {0} is empty; it must have at least a name")]
    EmptyTag(u32),
    /// A tag has a value that is not a string.
    #[error("tag {0} holds something other than strings")]
    TagValue(u32),
    /// `content` is not a string.
    #[error("content is not a string")]
    Content,
}

/// Buffers for one event at a time. They are reused: once they have grown, parsing allocates
/// nothing.
#[derive(Debug, Default)]
pub struct EventArena {
    id: [u8; 32],
    pubkey: [u8; 32],
    signature: SignatureBytes,
    created_at: u64,
    kind: u16,
    content: Span,
    /// The JSON of the tags, and the JSON of the content. Each is `None` if it was not received in
    /// the canonical spelling of `json.rs`.
    raw_tags: Option<Span>,
    raw_content: Option<Span>,
    /// The unescaped text of all strings that have escapes in the JSON.
    pub(crate) scratch: String,
    /// All values of all tags, and the index at which the values of each tag end.
    values: Vec<Span>,
    ends: Vec<u32>,
}

#[derive(Debug)]
struct SignatureBytes(Signature);

impl Default for SignatureBytes {
    fn default() -> Self {
        Self([0; 64])
    }
}

// One bit for each field that was read.
const ID: u8 = 1;
const PUBKEY: u8 = 2;
const CREATED_AT: u8 = 4;
const KIND: u8 = 8;
const TAGS: u8 = 16;
const CONTENT: u8 = 32;
const SIG: u8 = 64;
const ALL: [(u8, &str); 7] = [
    (ID, "id"),
    (PUBKEY, "pubkey"),
    (CREATED_AT, "created_at"),
    (KIND, "kind"),
    (TAGS, "tags"),
    (CONTENT, "content"),
    (SIG, "sig"),
];

/// Skips the next key and returns its field, if the key has no escapes and the colon follows
/// directly. The first letter of the key selects the fields with which the key is compared. This is
/// faster than searching for the end of the key.
#[inline]
fn usual_field(reader: &mut JsonReader<'_>) -> Option<(u8, &'static str)> {
    let (found, field) = match reader.second() {
        b'i' => (reader.skip_if(b"\"id\":"), (ID, "id")),
        b'p' => (reader.skip_if(b"\"pubkey\":"), (PUBKEY, "pubkey")),
        b'k' => (reader.skip_if(b"\"kind\":"), (KIND, "kind")),
        b't' => (reader.skip_if(b"\"tags\":"), (TAGS, "tags")),
        b's' => (reader.skip_if(b"\"sig\":"), (SIG, "sig")),
        b'c' if reader.skip_if(b"\"content\":") => (true, (CONTENT, "content")),
        b'c' => (reader.skip_if(b"\"created_at\":"), (CREATED_AT, "created_at")),
        _ => return None,
    };
    if found {
        reader.skip_space();
    }
    found.then_some(field)
}

impl EventArena {
    /// Makes empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the object at the cursor. [`EventArena::event`] then returns the view of the event.
    pub(crate) fn read(&mut self, reader: &mut JsonReader<'_>) -> Result<(), EventError> {
        self.scratch.clear();
        self.values.clear();
        self.ends.clear();
        if !reader.eat(b'{') {
            return Err(EventError::NoObject);
        }
        let mut seen = 0;
        let mut first = true;
        while reader.next_item(&mut first, b'}')? {
            let known = match usual_field(reader) {
                None => self.other_field(reader)?,
                found => found,
            };
            let Some((field, name)) = known else {
                reader.skip_value(&mut self.scratch)?;
                continue;
            };
            if seen & field != 0 {
                return Err(EventError::Duplicate(name));
            }
            seen |= field;
            self.read_field(reader, field)?;
        }
        if seen == ID | PUBKEY | CREATED_AT | KIND | TAGS | CONTENT | SIG {
            return Ok(());
        }
        match ALL.iter().find(|(field, _)| seen & field == 0) {
            None => Ok(()),
            Some((_, name)) => Err(EventError::Missing(name)),
        }
    }

    /// Reads the next key in any spelling and returns its field. `None` means that events do not
    /// have this field.
    fn other_field(
        &mut self,
        reader: &mut JsonReader<'_>,
    ) -> Result<Option<(u8, &'static str)>, JsonError> {
        let key = reader.key(&mut self.scratch)?;
        let key = key.get(reader.text(), &self.scratch);
        Ok(ALL.iter().find(|(_, name)| *name == key).copied())
    }

    #[inline]
    fn read_field(&mut self, reader: &mut JsonReader<'_>, field: u8) -> Result<(), EventError> {
        match field {
            ID => {
                let wrong = EventError::Hex { field: "id", digits: 64 };
                self.id = reader.hex::<64, _>(hex::decode_32).ok_or(wrong)?;
            }
            PUBKEY => {
                let wrong = EventError::Hex { field: "pubkey", digits: 64 };
                self.pubkey = reader.hex::<64, _>(hex::decode_32).ok_or(wrong)?;
            }
            SIG => {
                let wrong = EventError::Hex { field: "sig", digits: 128 };
                self.signature.0 = reader.hex::<128, _>(hex::decode_64).ok_or(wrong)?;
            }
            CREATED_AT => {
                self.created_at = reader.number().map_err(EventError::CreatedAt)?;
                if self.created_at > CREATED_AT_MAX {
                    return Err(EventError::CreatedAtRange(self.created_at));
                }
            }
            KIND => {
                let kind = reader.number().map_err(EventError::Kind)?;
                self.kind = u16::try_from(kind).map_err(|_| EventError::KindRange(kind))?;
            }
            TAGS => {
                let from = reader.at;
                reader.canonical = true;
                self.read_tags(reader)?;
                self.raw_tags = reader.canonical.then(|| reader.since(from));
            }
            _ => {
                if reader.peek() != b'"' {
                    return Err(EventError::Content);
                }
                let from = reader.at;
                reader.canonical = true;
                self.content = reader.string(&mut self.scratch)?;
                self.raw_content = reader.canonical.then(|| reader.since(from));
            }
        }
        Ok(())
    }

    fn read_tags(&mut self, reader: &mut JsonReader<'_>) -> Result<(), EventError> {
        if !reader.eat(b'[') {
            return Err(EventError::Tags);
        }
        loop {
            reader.plain_arrays(&mut self.values, &mut self.ends);
            let mut first_tag = self.ends.is_empty();
            if !reader.next_item(&mut first_tag, b']')? {
                return Ok(());
            }
            let tag = self.ends.len() as u32;
            if !reader.eat(b'[') {
                return Err(EventError::Tags);
            }
            let mut first = true;
            while reader.next_item(&mut first, b']')? {
                if reader.peek() != b'"' {
                    return Err(EventError::TagValue(tag));
                }
                let value = reader.string(&mut self.scratch)?;
                self.values.push(value);
            }
            if first {
                return Err(EventError::EmptyTag(tag));
            }
            self.ends.push(self.values.len() as u32);
        }
    }

    /// The view of the event that [`EventArena::read`] has read from `text`.
    pub(crate) fn event<'a>(&'a self, text: &'a str) -> Event<'a> {
        Event { text, arena: self }
    }
}

/// Finds the id in an invalid event, if possible, so that the refusal can name the id.
#[cold]
pub(crate) fn recover_id(mut reader: JsonReader<'_>, scratch: &mut String) -> Option<Id> {
    let mut first = true;
    if !reader.eat(b'{') {
        return None;
    }
    while reader.next_item(&mut first, b'}').ok()? {
        let key = reader.key(scratch).ok()?;
        if key.get(reader.text(), scratch) == "id" {
            return reader.hex::<64, _>(hex::decode_32);
        }
        reader.skip_value(scratch).ok()?;
    }
    None
}

/// A view of one event. Its form has been checked, but not its id and signature.
///
/// ```
/// use hark_codec::nostr::{Event, EventArena, EventError};
///
/// let zeros = "00".repeat(32);
/// let json = format!(
///     r#"{{"id":"{zeros}","pubkey":"{zeros}","created_at":7,"kind":1,
///     "tags":[["t","bread"]],"content":"line\nline","sig":"{zeros}{zeros}"}}"#
/// );
/// let mut arena = EventArena::new();
/// let event = Event::parse(json.as_bytes(), &mut arena)?;
/// assert_eq!((event.kind(), event.created_at(), event.content()), (1, 7, "line\nline"));
/// assert_eq!(event.first_value("t"), Some("bread"));
/// assert!(!event.has_valid_id());
///
/// // The same buffers parse the next event.
/// assert_eq!(Event::parse(b"[]", &mut arena).err(), Some(EventError::NoObject));
/// # Ok::<(), EventError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Event<'a> {
    text: &'a str,
    arena: &'a EventArena,
}

impl<'a> Event<'a> {
    /// Reads `bytes`, which must be exactly one event.
    pub fn parse(bytes: &'a [u8], arena: &'a mut EventArena) -> Result<Self, EventError> {
        let mut reader = JsonReader::new(bytes)?;
        reader.skip_space();
        arena.read(&mut reader)?;
        reader.end()?;
        Ok(arena.event(reader.text()))
    }

    /// The id that the event claims to have.
    pub fn id(&self) -> &'a Id {
        &self.arena.id
    }

    /// The event's author.
    pub fn pubkey(&self) -> &'a Key {
        &self.arena.pubkey
    }

    /// The event's signature.
    pub fn signature(&self) -> &'a Signature {
        &self.arena.signature.0
    }

    /// Unix time in seconds, at most [`CREATED_AT_MAX`].
    pub fn created_at(&self) -> u64 {
        self.arena.created_at
    }

    /// The event's kind.
    pub fn kind(&self) -> u16 {
        self.arena.kind
    }

    /// The event's content, unescaped.
    pub fn content(&self) -> &'a str {
        self.arena.content.get(self.text, &self.arena.scratch)
    }

    /// The event's tags.
    pub fn tags(&self) -> Tags<'a> {
        let EventArena { scratch, values, ends, .. } = self.arena;
        Tags::new(self.text, scratch, values, ends)
    }

    /// The value of each tag. `without_keys` leaves out values that consist of 64 lowercase hex
    /// digits, as keys and ids do, unless the event was received in an unusual spelling.
    pub fn tag_values(&self, without_keys: bool) -> impl Iterator<Item = &'a str> + use<'a> {
        let (Self { text, arena }, mut from) = (*self, 0);
        arena.ends.iter().filter_map(move |end| {
            let name = std::mem::replace(&mut from, *end as usize);
            // Spans of the next tag do not belong to this tag.
            let span = arena.values.get(name + 1).filter(|_| name + 1 < from)?;
            let is_left_out = without_keys && span.is_hex_64();
            (!is_left_out).then(|| span.get(text, &arena.scratch))
        })
    }

    /// The number of tags.
    pub fn tag_count(&self) -> usize {
        self.arena.ends.len()
    }

    /// The first value (after the name) of the first tag with this name and a value.
    pub fn first_value(&self, name: &str) -> Option<&'a str> {
        self.tags().filter(|tag| tag.is(name)).find_map(|tag| tag.value())
    }

    /// The value of the first `d` tag, which distinguishes addressable events (NIP-01); empty if
    /// there is no such tag.
    pub fn d(&self) -> &'a str {
        let d = self.tags().find(|tag| tag.is("d"));
        d.and_then(|tag| tag.value()).unwrap_or_default()
    }

    /// Time from which the event is no longer served (NIP-40). `None` unless the value of the first
    /// `expiration` tag consists of digits. Events of the kinds in [`REQUESTS`] do not expire:
    /// otherwise, the events that they removed could be stored again.
    pub fn expiration(&self) -> Option<u64> {
        if REQUESTS.contains(&self.kind()) {
            return None;
        }
        let value = self.tags().find(|tag| tag.is("expiration"))?.value()?;
        value.bytes().all(|byte| byte.is_ascii_digit()).then(|| value.parse().ok())?
    }

    /// Whether the event has the tag `["-"]`, by which an author forbids others to publish the
    /// event (NIP-70).
    pub fn is_protected(&self) -> bool {
        self.tags().any(|tag| tag.is("-"))
    }

    /// The tags that filters can query: the letter and first value of each single-letter tag.
    pub fn labels(&self) -> impl Iterator<Item = (u8, &'a str)> + Clone + use<'a> {
        self.tags().filter_map(|tag| Some((tag.letter()?, tag.value()?)))
    }

    /// The JSON of the tags as received, if it is in canonical spelling.
    #[inline]
    pub(crate) fn raw_tags(&self) -> Option<&'a str> {
        self.arena.raw_tags.map(|span| span.get(self.text, ""))
    }

    /// Offset of [`Event::raw_tags`] in the text.
    pub(crate) fn raw_tags_at(&self) -> Option<usize> {
        self.arena.raw_tags?.text_at()
    }

    /// The JSON of the content as received, if it is in canonical spelling.
    #[inline]
    pub(crate) fn raw_content(&self) -> Option<&'a str> {
        self.arena.raw_content.map(|span| span.get(self.text, ""))
    }

    /// Estimates the length of the event's JSON. The estimate is exact if the event was received in
    /// canonical spelling.
    pub(crate) fn json_len_guess(&self) -> usize {
        let tags = self.raw_tags().map_or(self.arena.values.len() * 40, str::len);
        let content = self.raw_content().map_or(self.arena.content.len() + 16, str::len);
        tags + content + 352
    }
}
