//! Makes many Nostr events that resemble the events of a public relay: a mix of kinds, few busy and
//! many quiet authors, threads, reactions, zaps, follow lists, articles, and gift wraps. The same
//! seed and count give the same events. Events are made unsigned, since signing is the most
//! expensive step and can run on all cores. Unsigned events already have their ids, since later
//! events refer to earlier ids.

use std::collections::VecDeque;

use hark_codec::crypto::{KeyPair, Signature, sha256, sign};
use hark_codec::hex;
use hark_codec::nostr::json;
use hark_codec::record::{Id, Key};

use crate::random::Random;
use crate::text::Vocabulary;
use crate::{people, text};

/// The seed of the events, unless another one is chosen.
pub(crate) const SEED: u64 = 7;
/// The time of the last event: the beginning of 2026.
const END: u64 = 1_767_225_600;
/// The time that the events span: half a year.
const SPAN_S: u64 = 182 * 86_400;
/// Maximum number of events of the busiest author, who writes every fifth event until this number
/// is reached.
pub(crate) const BUSIEST_MAX: u64 = 200_000;
/// Maximum number of authors.
pub(crate) const AUTHORS_MAX: usize = 50_000;
/// Number of hashtags to draw from. The first hashtags are drawn more often.
const TAGS: usize = 3_000;
/// Maximum number of entries of a follow list: a list must fit into 64 KB, the most that some
/// relays accept.
const FOLLOWS_MAX: usize = 850;
/// A kind that few authors write.
pub(crate) const RARE_KIND: u16 = 31_337;
/// Gift wraps (NIP-59).
pub(crate) const WRAP: u16 = 1_059;
/// A reply refers to one of the latest [`RECENT`] notes, or to one of the latest [`POPULAR`]
/// popular notes.
const RECENT: usize = 20_000;
const POPULAR: usize = 400;

/// The author that signs an event.
#[derive(Clone, Copy, Debug)]
enum EventAuthor {
    /// The author of this rank.
    Ranked(u32),
    /// A key with this secret, used only for this event.
    Once([u8; 32]),
}

/// An event that still lacks its signature.
#[derive(Debug)]
pub(crate) struct UnsignedEvent {
    author: EventAuthor,
    created_at: u64,
    kind: u16,
    /// The tags as JSON, in the codec's spelling. The content has this form as well.
    tags: Vec<u8>,
    content: Vec<u8>,
    /// The id. `None` for events of an author that signs only one event.
    id: Option<Id>,
}

impl UnsignedEvent {
    /// Appends the bytes whose hash is the id: all fields but the id and the signature.
    fn write_canonical(&self, pubkey: &Key, out: &mut Vec<u8>) {
        out.extend_from_slice(b"[0,\"");
        out.extend_from_slice(&hex::encode_32(pubkey));
        out.extend_from_slice(b"\",");
        json::write_u64(out, self.created_at);
        out.push(b',');
        json::write_u64(out, u64::from(self.kind));
        out.push(b',');
        out.extend_from_slice(&self.tags);
        out.push(b',');
        out.extend_from_slice(&self.content);
        out.push(b']');
    }

    fn hash(&self, pubkey: &Key) -> Id {
        let mut canonical = Vec::with_capacity(self.tags.len() + self.content.len() + 128);
        self.write_canonical(pubkey, &mut canonical);
        sha256(&canonical)
    }

    /// Appends the event and a line break. Unless `signed`, the id's bytes replace the signature.
    pub(crate) fn sign(
        &self,
        people: &[KeyPair],
        signed: bool,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let once;
        let keys = match self.author {
            EventAuthor::Ranked(rank) => &people[rank as usize],
            EventAuthor::Once(secret) => {
                once =
                    KeyPair::from_secret(secret).ok_or_else(|| anyhow::anyhow!("no secret key"))?;
                &once
            }
        };
        let id = self.id.unwrap_or_else(|| self.hash(keys.public()));
        let signature = if signed { sign(keys, &id) } else { no_signature(&id) };
        self.write(&id, keys.public(), &hex::encode_64(&signature), out);
        out.push(b'\n');
        Ok(())
    }

    fn write(&self, id: &Id, pubkey: &Key, sig: &[u8; 128], out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":\"");
        out.extend_from_slice(&hex::encode_32(id));
        out.extend_from_slice(b"\",\"pubkey\":\"");
        out.extend_from_slice(&hex::encode_32(pubkey));
        out.extend_from_slice(b"\",\"created_at\":");
        json::write_u64(out, self.created_at);
        out.extend_from_slice(b",\"kind\":");
        json::write_u64(out, u64::from(self.kind));
        out.extend_from_slice(b",\"tags\":");
        out.extend_from_slice(&self.tags);
        out.extend_from_slice(b",\"content\":");
        out.extend_from_slice(&self.content);
        out.extend_from_slice(b",\"sig\":\"");
        out.extend_from_slice(sig);
        out.extend_from_slice(b"\"}");
    }
}

/// Returns the id's bytes, repeated to the length of a signature. Every event has different bytes.
fn no_signature(id: &Id) -> Signature {
    std::array::from_fn(|at| id[at % id.len()])
}

/// A note that later events can refer to.
#[derive(Clone, Copy)]
struct Note {
    id: Id,
    author: usize,
}

/// Makes events, one after the other.
pub(crate) struct EventGenerator {
    random: Random,
    vocabulary: Vocabulary,
    /// Whether all events are short.
    is_small: bool,
    people: Vec<KeyPair>,
    count: u64,
    made: u64,
    recent: VecDeque<Note>,
    popular: VecDeque<Note>,
    /// The last note as JSON, for reposts.
    last_note: Vec<u8>,
    /// Tags of the event that is being made.
    tags: Vec<u8>,
}

impl EventGenerator {
    /// Creates a generator of the `count` events of a seed.
    pub(crate) fn new(count: u64, seed: u64, vocabulary: Vocabulary) -> anyhow::Result<Self> {
        let authors = usize::try_from(count / 10)?.clamp(200, AUTHORS_MAX);
        Ok(Self {
            random: Random::new(seed),
            vocabulary,
            is_small: false,
            people: people::all(authors)?,
            count,
            made: 0,
            recent: VecDeque::new(),
            popular: VecDeque::new(),
            last_note: Vec::new(),
            tags: Vec::new(),
        })
    }

    /// Makes short notes and reactions only.
    pub(crate) fn small(self) -> Self {
        Self { is_small: true, ..self }
    }

    /// Returns the keys of the authors, by rank.
    pub(crate) fn people(&self) -> &[KeyPair] {
        &self.people
    }

    fn public(&self, author: usize) -> &Key {
        self.people[author].public()
    }

    /// Draws any author but the busiest. The busiest is a bot without replies.
    fn draw_author(&mut self) -> usize {
        1 + self.random.zipf(self.people.len() - 1)
    }

    fn tag(&mut self, values: &[&str]) {
        self.tags.push(if self.tags.is_empty() { b'[' } else { b',' });
        for (at, value) in values.iter().enumerate() {
            self.tags.push(if at == 0 { b'[' } else { b',' });
            json::write_string(&mut self.tags, value);
        }
        self.tags.push(b']');
    }

    fn tag_person(&mut self, name: &str, author: usize) {
        let key = text::hex(self.public(author));
        self.tag(&[name, &key]);
    }

    /// Draws the target of a reference: mostly a popular note, otherwise one of the latest notes.
    fn note(&mut self) -> Option<Note> {
        let popular = self.random.below(3) < 2 && !self.popular.is_empty();
        let from = if popular { &self.popular } else { &self.recent };
        // Later notes are drawn more often.
        let back = self.random.zipf(from.len());
        from.get(from.len().checked_sub(1 + back)?).copied()
    }

    /// Adds the tags of a reply (NIP-10): the thread's root, often also the parent note, and the
    /// authors of both.
    fn answer(&mut self) {
        let Some(root) = self.note() else { return };
        let relay = text::relay(&mut self.random);
        self.tag(&["e", &text::hex(&root.id), &relay, "root"]);
        if self.random.once_in(2)
            && let Some(reply) = self.note()
        {
            self.tag(&["e", &text::hex(&reply.id), "", "reply"]);
            self.tag_person("p", reply.author);
        }
        self.tag_person("p", root.author);
    }

    /// Adds the tags of a non-note event that refers to a note, and returns the note.
    fn refer(&mut self) -> Option<Note> {
        let note = self.note()?;
        self.tag(&["e", &text::hex(&note.id)]);
        self.tag_person("p", note.author);
        Some(note)
    }

    fn hashtags(&mut self, count: usize) {
        for _ in 0..count {
            let tag = text::hashtag(self.random.zipf(TAGS));
            self.tag(&["t", &tag]);
        }
    }

    /// Adds the tags of a note (reply tags, hashtags, or neither), and returns the note's text.
    fn note_tags(&mut self) -> String {
        match self.random.below(100) {
            0..58 => self.answer(),
            58..82 => {
                let count = self.random.between(1, 4);
                self.hashtags(count);
            }
            _ => {}
        }
        text::note(&mut self.random, self.vocabulary)
    }

    fn follows(&mut self) {
        let count = (20 << self.random.below(6)) + self.random.below(200);
        for _ in 0..count.min(FOLLOWS_MAX) {
            let author = self.random.below(self.people.len());
            self.tag_person("p", author);
        }
    }

    fn zap(&mut self) {
        let sender = self.draw_author();
        let sender = text::hex(self.public(sender));
        self.tag(&["P", &sender]);
        let Some(note) = self.refer() else { return };
        let msats = 1_000 * self.random.between(1, 100_000);
        let (target, person) = (text::hex(&note.id), text::hex(self.public(note.author)));
        let bolt11 = text::invoice(&mut self.random, msats);
        let preimage = text::hex(&self.random.bytes());
        self.tag(&["bolt11", &bolt11]);
        self.tag(&["preimage", &preimage]);
        self.tag(&["description", &text::zap_request(&sender, &person, &target, msats)]);
    }

    fn comment(&mut self) {
        let Some(note) = self.note() else { return };
        let (id, key) = (text::hex(&note.id), text::hex(self.public(note.author)));
        self.tag(&["E", &id, "", &key]);
        self.tag(&["K", "30023"]);
        self.tag(&["P", &key]);
        self.tag(&["e", &id, "", &key]);
        self.tag(&["k", "30023"]);
        self.tag(&["p", &key]);
    }

    /// Returns kind, author and content of the next event, and puts its tags into `self.tags`.
    fn plan(&mut self) -> (u16, EventAuthor, String) {
        let every = self.count.div_ceil(BUSIEST_MAX).max(5);
        if self.made.is_multiple_of(every) {
            self.hashtags(1);
            let text = if self.is_small { text::short } else { text::note };
            return (1, EventAuthor::Ranked(0), text(&mut self.random, self.vocabulary));
        }
        let mut author = self.draw_author();
        if self.is_small {
            let (kind, content) = self.plan_small();
            return (kind, EventAuthor::Ranked(author as u32), content);
        }
        let (kind, content) = match self.random.below(1_000) {
            0..535 => (1, self.note_tags()),
            535..760 => {
                self.refer();
                self.tag(&["k", "1"]);
                (7, (*self.random.pick(&["+", "🤙", "❤️", "-"])).to_owned())
            }
            760..805 => {
                self.refer();
                let note = self.random.once_in(3);
                let note = if note { &[][..] } else { &self.last_note[..] };
                (6, String::from_utf8_lossy(note).into_owned())
            }
            805..830 => {
                // All authors write profiles equally often, whatever their rank.
                author = self.random.below(self.people.len());
                (0, text::profile(&mut self.random, self.vocabulary, author))
            }
            830..836 => {
                self.follows();
                (3, String::new())
            }
            836..846 => {
                author = self.random.below(self.people.len());
                for _ in 0..self.random.between(2, 8) {
                    let relay = text::relay(&mut self.random);
                    self.tag(&["r", &relay]);
                }
                (10_002, String::new())
            }
            846..853 => {
                let article = self.random.below(100_000);
                self.tag(&["d", &format!("article-{article}")]);
                let title = text::title(&mut self.random, self.vocabulary);
                self.tag(&["title", &title]);
                self.tag(&["published_at", &(END - SPAN_S).to_string()]);
                self.hashtags(3);
                (30_023, text::article(&mut self.random, self.vocabulary))
            }
            853..903 => {
                let reader = self.draw_author();
                self.tag_person("p", reader);
                let secret = self.random.bytes();
                let length = 700 << self.random.below(3);
                return (WRAP, EventAuthor::Once(secret), text::sealed(&mut self.random, length));
            }
            903..913 => {
                let reader = self.draw_author();
                self.tag_person("p", reader);
                let sealed = text::sealed(&mut self.random, 200);
                (4, format!("{sealed}?iv={}", text::sealed(&mut self.random, 16)))
            }
            913..973 => {
                self.zap();
                (9_735, String::new())
            }
            973..993 => {
                self.comment();
                (1_111, text::note(&mut self.random, self.vocabulary))
            }
            993..997 => {
                // No `p` tag: a query for this kind and a person finds nothing.
                self.tag(&["d", &format!("track-{}", self.made)]);
                self.hashtags(1);
                (RARE_KIND, text::title(&mut self.random, self.vocabulary))
            }
            _ => {
                self.refer();
                (1_984, text::title(&mut self.random, self.vocabulary))
            }
        };
        (kind, EventAuthor::Ranked(author as u32), content)
    }

    /// Returns kind and content of a short event.
    fn plan_small(&mut self) -> (u16, String) {
        let (is_reaction, has_tag) = (self.random.below(10) < 3, self.random.once_in(8));
        if is_reaction && let Some(note) = self.note() {
            self.tag(&["e", &text::hex(&note.id)]);
            return (7, "+".into());
        }
        if has_tag {
            self.hashtags(1);
        }
        (1, text::short(&mut self.random, self.vocabulary))
    }

    /// Draws the time of the next event: usually some seconds ago, and for one event in 50 up to a
    /// day ago.
    fn time(&mut self) -> u64 {
        let now = END - SPAN_S + self.made * SPAN_S / self.count.max(1);
        let late =
            if self.random.once_in(50) { self.random.below(86_400) } else { self.random.below(20) };
        now - late as u64
    }

    fn remember(&mut self, event: &UnsignedEvent, id: Id, author: usize) {
        let note = Note { id, author };
        self.recent.push_back(note);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        if self.random.once_in(100) {
            self.popular.push_back(note);
            if self.popular.len() > POPULAR {
                self.popular.pop_front();
            }
        }
        let mut json = std::mem::take(&mut self.last_note);
        json.clear();
        // No relay checks the signature of an event within an event, but the field must exist.
        event.write(&id, self.public(author), &[b'0'; 128], &mut json);
        self.last_note = json;
    }
}

impl Iterator for EventGenerator {
    type Item = UnsignedEvent;

    fn next(&mut self) -> Option<UnsignedEvent> {
        if self.made == self.count {
            return None;
        }
        let (kind, author, text) = self.plan();
        let created_at = self.time();
        self.made += 1;
        let mut tags = std::mem::take(&mut self.tags);
        tags.extend_from_slice(if tags.is_empty() { b"[]" } else { b"]" });
        let mut content = Vec::with_capacity(text.len() + 16);
        json::write_string(&mut content, &text);
        let mut event = UnsignedEvent { author, created_at, kind, tags, content, id: None };
        if let EventAuthor::Ranked(rank) = author {
            let rank = rank as usize;
            let id = event.hash(self.public(rank));
            event.id = Some(id);
            // The busiest author gets no replies.
            if kind == 1 && rank > 0 {
                self.remember(&event, id, rank);
            }
        }
        Some(event)
    }
}
