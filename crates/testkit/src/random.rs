//! Random records and queries from a seed, with many hard cases: equal times, odd strings, replaced
//! and deleted records, expiries, extreme times.

use std::sync::Arc;

use hark_archive::{
    Gate, Id, Key, LabelPosition, LabelSet, Order, Position, Query, Record, RecordHeader,
    WordCondition,
};
use hark_networks::nostr::rules::{KindClass, SLOT, VANISH, class};
use hark_words::SearchText;

use crate::digits::digits;
pub use crate::generator::Random;
use crate::sentences::{SENTENCE, SENTENCES, question, sentence};

/// The kind of network for which a [`World`] makes data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// As in Nostr: authors, kinds, labels, Nostr's rules, times in seconds.
    Nostr,
    /// As in Waku and Whisper: labels, times in nanoseconds; no authors, kinds or rules.
    Labels,
}

const KINDS: [u32; 14] = [1, 1, 1, 1, 0, 3, 5, 7, 7, 62, 1059, 10_002, 30_023, 30_000];
const ODD: [&str; 10] = ["", "a", "\"", "\\", "nostr", "\u{7f}", "\u{2028}", "é", "🦀🦀", "a b:c"];

/// Makes records and queries. Records have few different authors and values, so that queries find
/// matches.
pub struct World {
    /// The source of randomness.
    pub random: Random,
    flavour: Flavour,
    authors: Vec<Key>,
    /// The id, time and author of every record made so far.
    made: Vec<(Id, u64, Key)>,
    /// The current time, in the flavour's unit.
    pub now: u64,
    /// Whether records have sentences and queries search for their words.
    has_words: bool,
    /// Whether each record has exactly one label.
    has_one_label: bool,
}

impl World {
    /// Creates a world without records.
    pub fn new(seed: u64, flavour: Flavour) -> Self {
        let mut random = Random::new(seed);
        let authors = (0..60).map(|_| random.bytes()).collect();
        let now = match flavour {
            Flavour::Nostr => 1_700_000_000,
            Flavour::Labels => 1_700_000_000_000_000_000,
        };
        let (has_words, has_one_label) = (false, false);
        Self { random, flavour, authors, made: Vec::new(), now, has_words, has_one_label }
    }

    /// Makes records with sentences and queries for their words.
    #[must_use]
    pub fn with_words(self) -> Self {
        Self { has_words: true, ..self }
    }

    /// Makes records with exactly one label each.
    #[must_use]
    pub fn with_one_label(self) -> Self {
        Self { has_one_label: true, ..self }
    }

    /// Returns the number of records made so far.
    pub fn made(&self) -> usize {
        self.made.len()
    }

    fn unit(&self) -> u64 {
        if self.flavour == Flavour::Nostr { 1 } else { 250_000_000 }
    }

    fn time(&mut self) -> u64 {
        match self.random.below(200) {
            0 => 0,
            1 => self.random.bits() >> 12,
            2..=20 => self.now - self.random.below(3_000) as u64 * self.unit(),
            _ => self.now - self.random.skewed(12) as u64 * self.unit(),
        }
    }

    fn author(&mut self) -> Key {
        self.authors[self.random.skewed(self.authors.len())]
    }

    /// Picks an earlier record; recent records are picked more often.
    fn earlier(&mut self) -> (Id, u64, Key) {
        if self.made.is_empty() {
            return (self.random.bytes(), self.now, self.author());
        }
        let back = if self.random.once_in(3) {
            self.random.below(self.made.len())
        } else {
            self.random.skewed(self.made.len().min(200))
        };
        self.made[self.made.len() - 1 - back]
    }

    fn odd(&mut self) -> Vec<u8> {
        if self.random.once_in(30) {
            return vec![b'x'; 1 + self.random.below(2_000)];
        }
        self.random.pick(&ODD).as_bytes().to_vec()
    }

    fn value(&mut self, name: u8) -> Vec<u8> {
        match name {
            b'e' => digits(&self.earlier().0).into_bytes(),
            b'p' => digits(&self.author()).into_bytes(),
            b'a' => {
                let kind = *self.random.pick(&[0, 3, 10_002, 30_023, 30_000]);
                let d = if kind < 30_000 { Vec::new() } else { self.odd() };
                let mut address = format!("{kind}:").into_bytes();
                address.extend(digits(&self.author()).into_bytes());
                address.push(b':');
                address.extend(d);
                address
            }
            _ => self.odd(),
        }
    }

    /// Makes the bytes of a record. One record in 40 repeats the id of an earlier record.
    pub fn record(&mut self) -> Box<[u8]> {
        self.now += u64::from(self.random.once_in(3)) * self.unit();
        let author = self.author();
        // An id is a hash of its record's content, so a record that repeats an id also repeats the
        // time and the author.
        let (id, time, repeated) = if self.random.once_in(40) {
            let (id, time, author) = self.earlier();
            (id, time, Some(author))
        } else {
            (self.random.bytes(), self.time(), None)
        };
        let kind = if self.flavour == Flavour::Nostr { *self.random.pick(&KINDS) } else { 0 };
        let mut labels = Vec::new();
        let count = if self.random.once_in(50) { 120 } else { self.random.below(4) };
        let count = if self.has_one_label { 1 } else { count };
        for _ in 0..count {
            let name = if self.flavour == Flavour::Nostr {
                *self.random.pick(b"eepptda")
            } else {
                *self.random.pick(b"pc")
            };
            labels.push((name, self.value(name)));
        }
        if self.has_words {
            labels.push((SENTENCE, sentence(&mut self.random).into_bytes()));
        }
        if kind == 5 {
            let target = self.earlier();
            labels.push((b'e', digits(&target.0).into_bytes()));
        }
        if class(kind) == KindClass::Addressable {
            let d = labels.iter().find(|(name, _)| *name == b'd').map(|(_, d)| d.clone());
            labels.push((SLOT, d.unwrap_or_default()));
        }
        if kind == 62 && self.random.once_in(20) {
            labels.push((VANISH, Vec::new()));
        }
        let expires = self
            .random
            .once_in(12)
            .then(|| self.now - 20 * self.unit() + self.random.below(200) as u64 * self.unit());
        // Authors can delete only their own records, so a deletion often has the author of the
        // record that the deletion names.
        let author = match labels.iter().find(|(name, _)| kind == 5 && *name == b'e') {
            Some((_, e)) if !self.random.once_in(4) => {
                let named = |made: &&(Id, u64, Key)| digits(&made.0).into_bytes() == *e;
                self.made.iter().rev().take(400).find(named).map_or(author, |made| made.2)
            }
            _ => author,
        };
        let author = repeated.unwrap_or(author);
        self.made.push((id, time, author));
        let author = (self.flavour == Flavour::Nostr).then_some(author);
        let head = RecordHeader { id, time, author, kind, expires };
        encode(&head, &labels)
    }

    /// Makes a query.
    pub fn query(&mut self) -> Query {
        let mut query = Query { now: self.now, ..Query::default() };
        if self.random.once_in(6) {
            let count = 1 + self.random.below(6);
            query.ids = Some((0..count).map(|_| self.earlier().0).collect());
        }
        if self.flavour == Flavour::Nostr {
            self.authors_and_kinds(&mut query);
        }
        let names: &[u8] = if self.flavour == Flavour::Nostr { b"eepptda" } else { b"pc" };
        for _ in 0..[0, 0, 1, 1, 2, 3][self.random.below(6)] {
            let name = *self.random.pick(names);
            let count = if self.random.once_in(8) { 60 } else { 1 + self.random.below(3) };
            let values = (0..count).map(|_| self.value(name).into()).collect();
            query.labels.push(LabelSet { name, values });
        }
        if self.random.once_in(3) {
            query.from = self.earlier().1.saturating_sub(self.random.below(9) as u64);
        }
        if self.random.once_in(3) {
            query.to = self.earlier().1.saturating_add(self.random.below(9) as u64);
        }
        if self.random.once_in(2) {
            query.order = Order::OldestFirst;
        }
        if self.random.once_in(3) {
            let (id, time, _) = self.earlier();
            query.after = Some(Position { time, id });
        }
        query.limit = match self.random.below(6) {
            0 => 1,
            1 => usize::MAX,
            _ => self.random.below(60),
        };
        if self.has_words && !self.random.once_in(4) {
            self.words(&mut query);
        }
        query
    }

    /// Adds a search for words to a query. Most of these queries are ranked and have no other
    /// conditions on records.
    fn words(&mut self, query: &mut Query) {
        let asked = SearchText::parse(&question(&mut self.random)).expect("not too much");
        query.words = asked.map(|asked| WordCondition::new(asked, Arc::new(SENTENCES)).into());
        if self.random.once_in(2) {
            query.ids = None;
            query.labels.clear();
        }
        if !self.random.once_in(4) {
            (query.ranked, query.after) = (query.words.is_some(), None);
        }
    }

    fn authors_and_kinds(&mut self, query: &mut Query) {
        if self.random.once_in(2) {
            let count = if self.random.once_in(5) { 50 } else { 1 + self.random.below(3) };
            query.authors = Some((0..count).map(|_| self.author()).collect());
        }
        if self.random.once_in(2) {
            let count = 1 + self.random.below(3);
            query.kinds = Some((0..count).map(|_| *self.random.pick(&KINDS)).collect());
        }
        if self.random.once_in(30) {
            query.not_kinds = vec![1, 5];
        }
        if self.random.once_in(30) {
            query.not_authors = (0..3).map(|_| self.author()).collect();
        }
        if self.random.once_in(6) {
            query.gate = Some(self.gate(query).into());
        }
    }

    /// Makes a gate for up to three readers. Also changes some queries so that they match records
    /// by the readers, records to the readers, or private kinds.
    fn gate(&mut self, query: &mut Query) -> Gate {
        let mut readers: Vec<Key> = (0..self.random.below(4)).map(|_| self.author()).collect();
        readers.sort_unstable();
        readers.dedup();
        let values: Vec<Box<[u8]>> =
            readers.iter().map(|reader| digits(reader).into_bytes().into()).collect();
        match self.random.below(6) {
            0 => query.authors = Some(readers.clone()),
            1 => query.labels.push(LabelSet { name: b'p', values: values.clone() }),
            2 => query.kinds = Some(vec![7, 1059]),
            _ => {}
        }
        Gate { kinds: vec![7, 1059], readers, addressed: LabelSet { name: b'p', values } }
    }
}

/// Encodes a record. Some values of labels are part of the wire bytes, and the others are stored
/// separately.
pub fn encode(head: &RecordHeader, labels: &[(u8, Vec<u8>)]) -> Box<[u8]> {
    let mut wire = format!("wire of {} ", head.time).into_bytes();
    let mut positions: Vec<(u8, LabelPosition<'_>)> = Vec::new();
    for (at, (name, value)) in labels.iter().enumerate() {
        if at % 3 == 2 {
            positions.push((*name, LabelPosition::Bytes(value)));
        } else {
            let position = LabelPosition::Wire { at: wire.len() as u32, len: value.len() as u32 };
            positions.push((*name, position));
            wire.extend_from_slice(value);
            wire.push(b';');
        }
    }
    let mut out = Vec::new();
    hark_codec::record::write(&mut out, head, &wire, positions.iter().copied());
    debug_assert!(Record::new(&out).is_ok_and(|record| record.check().is_ok()));
    out.into()
}
