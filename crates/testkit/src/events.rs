//! Makes many Nostr events that look like those of a public relay: a mix of kinds, a few busy and
//! many quiet authors, threads, hashtags, follow lists, gift wraps. The same seed gives the same
//! events. Ids and signatures are random bytes, because archives do not check them again.

use std::fmt::Write as _;

use hark_codec::nostr::{Event, EventArena, EventEncoder};
use hark_codec::record::{Id, Key};

use crate::digits::digits;
use crate::generator::Random;

/// The number of authors.
const AUTHORS: usize = 50_000;
/// Number of events per day.
const PER_DAY: u64 = 22_000;
/// Number of hashtags; the first ones are the most frequent.
const TAGS: usize = 3_000;
/// The kind that benchmarks use as a rare kind (reports, NIP-56).
pub const RARE_KIND: u32 = 1984;
/// The time of the first event.
pub const START: u64 = 1_750_000_000;

/// Makes events, one after the other.
pub struct Events {
    random: Random,
    authors: Vec<Key>,
    recent: Vec<(Id, Key)>,
    /// Notes that get many replies.
    roots: Vec<(Id, Key)>,
    made: u64,
    json: String,
    tags: String,
    encoder: EventEncoder,
    arena: EventArena,
    /// Number of bytes of JSON made so far.
    pub json_bytes: u64,
    /// Number of single-letter tags made so far.
    pub labels: u64,
}

/// The kind and the author of an event, and the length of its content.
struct Plan {
    kind: u32,
    author: Key,
    content: usize,
}

impl Events {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let authors = (0..AUTHORS).map(|_| random.bytes()).collect();
        Self {
            random,
            authors,
            recent: Vec::new(),
            roots: Vec::new(),
            made: 0,
            json: String::new(),
            tags: String::new(),
            encoder: EventEncoder::default(),
            arena: EventArena::new(),
            json_bytes: 0,
            labels: 0,
        }
    }

    /// The authors, busy authors first. One event in 50 is by the first author.
    pub fn authors(&self) -> &[Key] {
        &self.authors
    }

    /// Returns the time up to which events have been made.
    pub fn now(&self) -> u64 {
        START + self.made * 86_400 / PER_DAY
    }

    /// Returns a number below `bound`. Its logarithm is evenly distributed, so low numbers are far
    /// more frequent than high numbers.
    pub fn zipf(random: &mut Random, bound: usize) -> usize {
        let share = (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
        ((bound as f64 + 1.0).powf(share) as usize - 1).min(bound - 1)
    }

    fn author(&mut self) -> Key {
        let rank = if self.random.once_in(50) { 0 } else { Self::zipf(&mut self.random, AUTHORS) };
        self.authors[rank]
    }

    fn tag(&mut self, name: char, value: &str) {
        let comma = if self.tags.is_empty() { "" } else { "," };
        let _ = write!(self.tags, "{comma}[\"{name}\",\"{value}\"]");
        self.labels += 1;
    }

    fn tag_event(&mut self) {
        let popular = !self.random.once_in(3);
        let (from, reach) = if popular { (&self.roots, 400) } else { (&self.recent, 20_000) };
        let back = Self::zipf(&mut self.random, from.len().clamp(1, reach));
        let Some(at) = from.len().checked_sub(1 + back) else { return };
        let (id, author) = from[at];
        self.tag('e', &digits(&id));
        self.tag('p', &digits(&author));
    }

    fn tag_person(&mut self) {
        let author = self.author();
        self.tag('p', &digits(&author));
    }

    fn hashtags(&mut self, count: usize) {
        for _ in 0..count {
            let tag = Self::zipf(&mut self.random, TAGS);
            self.tag('t', &format!("tag{tag}"));
        }
    }

    fn plan(&mut self) -> Plan {
        let author = self.author();
        let (kind, content) = match self.random.below(1000) {
            0..590 => {
                let replies = self.random.below(100);
                if replies < 45 {
                    self.tag_event();
                }
                if replies < 20 {
                    self.tag_event();
                }
                if replies > 80 {
                    let count = 1 + self.random.below(3);
                    self.hashtags(count);
                }
                (1, 40 + self.random.below(700))
            }
            590..780 => {
                self.tag_event();
                (7, 1)
            }
            780..830 => {
                self.tag_event();
                (6, 900)
            }
            830..836 => {
                for _ in 0..20 + self.random.below(800) {
                    self.tag_person();
                }
                (3, 0)
            }
            836..856 => (0, 100 + self.random.below(600)),
            856..910 => {
                self.tag_person();
                (1059, 900 + self.random.below(1200))
            }
            910..918 => {
                let d = self.random.below(100_000);
                self.tag('d', &format!("article-{d}"));
                self.hashtags(3);
                (30_023, 3_000 + self.random.below(10_000))
            }
            918..919 => {
                self.tag_person();
                (RARE_KIND, 60)
            }
            919..925 => {
                self.tag_event();
                (5, 0)
            }
            925..945 => {
                self.tag_person();
                (4, 200)
            }
            _ => {
                self.tag_event();
                self.tag_person();
                (9735, 1500)
            }
        };
        Plan { kind, author, content }
    }

    /// Appends the next event's record to `out` and returns its id.
    pub fn record(&mut self, out: &mut Vec<u8>) -> Id {
        self.tags.clear();
        let Plan { kind, author, content } = self.plan();
        let id = self.random.bytes();
        let late = if self.random.once_in(50) {
            self.random.below(7 * 86_400)
        } else {
            self.random.below(20)
        };
        let time = self.now() - late as u64;
        self.made += 1;
        self.json.clear();
        let _ = write!(
            self.json,
            "{{\"id\":\"{}\",\"pubkey\":\"{}\",\"created_at\":{time},\"kind\":{kind},\"tags\":[{}],\
             \"content\":\"",
            digits(&id),
            digits(&author),
            self.tags
        );
        let text = "the quick brown fox jumps over the lazy dog and back again \\n ";
        for at in 0..=content / text.len() {
            let rest = content - at * text.len();
            self.json.push_str(&text[..rest.min(text.len() - 4)]);
        }
        let (a, b) = (self.random.bytes(), self.random.bytes());
        let _ = write!(self.json, "\",\"sig\":\"{}{}\"}}", digits(&a), digits(&b));
        self.json_bytes += self.json.len() as u64 + 1;
        let event = Event::parse(self.json.as_bytes(), &mut self.arena).expect("well made");
        let d = event.d();
        let slot = [(hark_networks::nostr::rules::SLOT, d.as_bytes())];
        let private = if kind == 30_023 { &slot[..] } else { &[] };
        self.encoder.encode(&event, private, out);
        if kind == 1 {
            self.recent.push((id, author));
            if self.random.once_in(200) {
                self.roots.push((id, author));
            }
        }
        id
    }
}
