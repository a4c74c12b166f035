//! The effects of a new record on the records before it, and of those records on the new one:
//! replace, delete, forbid.
//!
//! A network expresses these effects as queries ([`Effects`]). Every store applies the same effects
//! under its own lock or transaction. Effects follow from the record alone, so a record that comes
//! through another process, or from an old log, has the same effects.

use std::ops::Range;

use hark_codec::record::{Key, Record};

use crate::query::{LabelSet, Query};

/// The reason for which a stored record forbids a new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The new record's author (or recipient) deleted it, before or after it first came.
    Deleted,
    /// The new record's author asked for all of their records up to a time to vanish.
    Vanished,
}

/// The properties of stored records that forbid a new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prohibition<'a> {
    /// The author of the forbidding record.
    pub author: &'a Key,
    /// The kind of the forbidding record.
    pub kind: u32,
    /// Name and value of a label of the forbidding record.
    pub label: (u8, &'a [u8]),
    /// The earliest time of the forbidding record, inclusive.
    pub from: u64,
    /// The reason for the refusal.
    pub refusal: Refusal,
}

impl Prohibition<'_> {
    /// Returns a query for the first such record.
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

/// A [`Prohibition`] whose label value is a range of `Effects::bytes`.
#[derive(Clone, Debug)]
struct ProhibitionSpan {
    author: Key,
    kind: u32,
    label: (u8, Range<usize>),
    from: u64,
    refusal: Refusal,
}

/// The effects of putting a record, in the order in which they apply.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// The record is refused if any of these is stored. Nearly every record has prohibitions, but
    /// the forbidding records are rarely stored. So prohibitions are not kept as queries, which
    /// would need allocations. Label values are in `bytes`.
    refuse_if: Vec<ProhibitionSpan>,
    bytes: Vec<u8>,
    /// The slot that only the newest record holds: all records that match are replaced if the new
    /// record is newer (or as old, with a lower id); otherwise the new record is superseded.
    pub slot: Option<Query>,
    /// The records that are deleted when the new record is stored.
    pub erases: Vec<Query>,
}

impl Effects {
    /// Empties the lists but keeps their capacity.
    pub fn clear(&mut self) {
        self.refuse_if.clear();
        self.bytes.clear();
        self.slot = None;
        self.erases.clear();
    }

    /// Refuses the record if a record with these properties is stored.
    pub fn refuse_if(&mut self, there_is: Prohibition<'_>) {
        let Prohibition { author, kind, label: (name, value), from, refusal } = there_is;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let label = (name, start..self.bytes.len());
        self.refuse_if.push(ProhibitionSpan { author: *author, kind, label, from, refusal });
    }

    /// Returns the properties of records for which the record is refused if one is stored.
    pub fn forbidding(&self) -> impl Iterator<Item = Prohibition<'_>> {
        self.refuse_if.iter().map(|ProhibitionSpan { author, kind, label, from, refusal }| {
            Prohibition {
                author,
                kind: *kind,
                label: (label.0, &self.bytes[label.1.clone()]),
                from: *from,
                refusal: *refusal,
            }
        })
    }

    /// Normalises every query, as [`Query::matches`] requires.
    pub fn normalise(&mut self) {
        self.slot.iter_mut().for_each(Query::normalise);
        self.erases.iter_mut().for_each(Query::normalise);
    }
}

/// A network's rules.
pub trait Rules: Send + Sync {
    /// Fills `effects`, which is empty, with the effects of `record`.
    fn effects(&self, record: &Record<'_>, effects: &mut Effects);

    /// Returns whether records of this kind may forbid others: the kinds that [`Prohibition`]
    /// names. By default no kind does.
    fn forbids(&self, kind: u32) -> bool {
        let _ = kind;
        false
    }
}

/// No rules: every record with a new id is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Rules for KeepAll {
    fn effects(&self, _: &Record<'_>, _: &mut Effects) {}
}
