//! The effects of a record: a new record may replace or delete earlier records, and earlier records
//! may forbid the new record.
//!
//! A network expresses these effects as queries ([`Effects`]). Every store applies the same effects
//! under its own lock or transaction. Effects depend on the record alone. So a record has the same
//! effects in another process, and when an old log is replayed.

use std::ops::Range;

use hark_codec::record::{Key, Record};

use crate::query::{LabelSet, Query};

/// Why a stored record forbids a new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The author (or recipient) of the new record has already deleted it, perhaps before the
    /// record arrived.
    Deleted,
    /// The new record's author has requested the deletion of all the author's records up to a time
    /// that is not before the new record's time.
    Vanished,
    /// An operator has banned the record. No store returns this reason: code in front of the store
    /// refuses the record.
    Banned,
}

/// Describes the stored records that forbid a new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prohibition<'a> {
    /// The author of a forbidding record.
    pub author: &'a Key,
    /// The kind of a forbidding record.
    pub kind: u32,
    /// A label of a forbidding record: name and value.
    pub label: (u8, &'a [u8]),
    /// A forbidding record has this time or a later time.
    pub from: u64,
    /// The reason for the refusal.
    pub refusal: Refusal,
}

impl Prohibition<'_> {
    /// Returns a query that finds one forbidding record.
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

/// A [`Prohibition`] whose label value is stored in `Effects::bytes`; the span has the range of
/// these bytes.
#[derive(Clone, Debug)]
struct ProhibitionSpan {
    author: Key,
    kind: u32,
    label: (u8, Range<usize>),
    from: u64,
    refusal: Refusal,
}

/// The effects of putting a record. They apply in the order of these fields.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// The record is refused if a stored record matches one of these prohibitions. Nearly every
    /// record has prohibitions, and a stored record rarely matches any prohibition. So a
    /// prohibition has this compact form, because a query would need allocations. The values of the
    /// labels are in `bytes`.
    refuse_if: Vec<ProhibitionSpan>,
    bytes: Vec<u8>,
    /// Of the new record and all records that match this query, only the newest is kept. If the new
    /// record is the newest (or has the same time and a lower id), it replaces all other records;
    /// otherwise it is superseded.
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

    /// Adds a prohibition: the new record is refused if a stored record matches `there_is`.
    pub fn refuse_if(&mut self, there_is: Prohibition<'_>) {
        let Prohibition { author, kind, label: (name, value), from, refusal } = there_is;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let label = (name, start..self.bytes.len());
        self.refuse_if.push(ProhibitionSpan { author: *author, kind, label, from, refusal });
    }

    /// Returns the prohibitions of the new record.
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

    /// Normalises every query, because [`Query::matches`] requires normalised queries.
    pub fn normalise(&mut self) {
        self.slot.iter_mut().for_each(Query::normalise);
        self.erases.iter_mut().for_each(Query::normalise);
    }
}

/// A network's rules.
///
/// ```
/// use hark_archive::effects::{Effects, Rules};
/// use hark_archive::store::memory::MemoryStore;
/// use hark_archive::{Outcome, Query, Record, RecordHeader, Store, Write};
///
/// /// Only the newest record of each author stays.
/// struct NewestOfAuthor;
///
/// impl Rules for NewestOfAuthor {
///     fn effects(&self, record: &Record<'_>, effects: &mut Effects) {
///         let of = |author: &[u8; 32]| Query { authors: Some(vec![*author]), ..Query::default() };
///         effects.slot = record.author().map(of);
///     }
/// }
///
/// let store = MemoryStore::new(NewestOfAuthor);
/// let put = |number: u8, time| {
///     let author = Some([9; 32]);
///     let head = RecordHeader { id: [number; 32], time, author, kind: 0, expires: None };
///     let mut bytes = Vec::new();
///     hark_codec::record::write(&mut bytes, &head, b"the message", std::iter::empty());
///     store.commit(&[Write::Put(bytes.into())])
/// };
/// assert_eq!(put(1, 10)?.outcomes, [Outcome::Stored { seq: 1 }]);
/// assert_eq!(put(2, 20)?.outcomes, [Outcome::Stored { seq: 2 }]);
/// assert_eq!(put(3, 15)?.outcomes, [Outcome::Superseded]);
/// assert_eq!(store.count(&Query::default())?, Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Rules: Send + Sync {
    /// Fills the empty `effects` with the effects of `record`.
    fn effects(&self, record: &Record<'_>, effects: &mut Effects);

    /// Returns whether a record of this kind may forbid other records, that is, whether a
    /// [`Prohibition`] may name the kind. By default no kind does.
    fn forbids(&self, kind: u32) -> bool {
        let _ = kind;
        false
    }
}

impl<R: Rules + ?Sized> Rules for Box<R> {
    fn effects(&self, record: &Record<'_>, effects: &mut Effects) {
        (**self).effects(record, effects);
    }

    fn forbids(&self, kind: u32) -> bool {
        (**self).forbids(kind)
    }
}

/// No rules: every record with a new id is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Rules for KeepAll {
    fn effects(&self, _: &Record<'_>, _: &mut Effects) {}
}
