//! What a record does to the records before it, and they to it: replace, delete, forbid.
//!
//! A network says it as queries ([`Effects`]); every store carries the same effects out under its
//! own lock or transaction. Effects follow from the record alone, so a record that comes through
//! another process, or from an old log, has the same ones.

use std::ops::Range;

use hark_codec::record::{Key, Record};

use crate::query::{LabelSet, Query};

/// Why a kept record forbids a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its author (or recipient) deleted it, be it before or after it came.
    Deleted,
    /// Its author asked for everything of theirs up to a time to vanish (NIP-62).
    Vanished,
}

/// A record that forbids another while it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forbidding<'a> {
    /// Its author.
    pub author: &'a Key,
    /// Its kind.
    pub kind: u32,
    /// Name and value of a label that it has.
    pub label: (u8, &'a [u8]),
    /// It is no older than this.
    pub from: u64,
    /// Why it forbids.
    pub refusal: Refusal,
}

impl Forbidding<'_> {
    /// Asks for the first such record.
    pub fn query(&self) -> Query {
        let (name, value) = self.label;
        Query {
            authors: Some(vec![*self.author]),
            kinds: Some(vec![self.kind]),
            labels: vec![LabelSet::one(name, value)],
            from: self.from,
            limit: 1,
            ..Query::default()
        }
    }
}

/// [`Forbidding`], its label's value apart.
#[derive(Clone, Debug)]
struct Forbids {
    author: Key,
    kind: u32,
    label: (u8, Range<usize>),
    from: u64,
    refusal: Refusal,
}

/// What has to happen, in this order, when a record is put.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// The record is refused if any of these is kept. Nearly all records have some and nearly none
    /// is found, so they are not queries, which would have to be allocated. Values are in `bytes`.
    refuse_if: Vec<Forbids>,
    bytes: Vec<u8>,
    /// The place that only the newest record holds: all that matches is replaced if the record is
    /// newer (or as old, with a lower id); else the record is superseded.
    pub slot: Option<Query>,
    /// What is deleted when the record is kept.
    pub erases: Vec<Query>,
}

impl Effects {
    /// Empties the lists, keeping their room.
    pub fn clear(&mut self) {
        self.refuse_if.clear();
        self.bytes.clear();
        self.slot = None;
        self.erases.clear();
    }

    /// Has the record refused if there is such a one.
    pub fn refuse_if(&mut self, there_is: Forbidding<'_>) {
        let Forbidding { author, kind, label: (name, value), from, refusal } = there_is;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let label = (name, start..self.bytes.len());
        self.refuse_if.push(Forbids { author: *author, kind, label, from, refusal });
    }

    /// What the record is refused for, if it is there.
    pub fn forbidding(&self) -> impl Iterator<Item = Forbidding<'_>> {
        self.refuse_if.iter().map(|Forbids { author, kind, label, from, refusal }| Forbidding {
            author,
            kind: *kind,
            label: (label.0, &self.bytes[label.1.clone()]),
            from: *from,
            refusal: *refusal,
        })
    }

    /// Makes every query in it fit for [`Query::matches`].
    pub fn normalise(&mut self) {
        self.slot.iter_mut().for_each(Query::normalise);
        self.erases.iter_mut().for_each(Query::normalise);
    }
}

/// A network's rules.
pub trait Rules: Send + Sync {
    /// Fills `effects`, which is empty, with those of `record`.
    fn effects(&self, record: &Record<'_>, effects: &mut Effects);

    /// Whether records of this kind may forbid others: the kinds that [`Forbidding`] names. None do,
    /// unless a network says so.
    fn forbids(&self, kind: u32) -> bool {
        let _ = kind;
        false
    }
}

/// No rules: every record with a new id is kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Rules for KeepAll {
    fn effects(&self, _: &Record<'_>, _: &mut Effects) {}
}
