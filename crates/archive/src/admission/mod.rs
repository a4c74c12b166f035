//! What a record does to the records before it, and they to it: replace, delete, forbid.
//!
//! A network says it as queries ([`Effects`]); every store carries the same effects out under its
//! own lock or transaction. Effects follow from the record alone, so a record that comes through
//! another process, or from an old log, has the same ones.

use hark_codec::record::Record;

use crate::query::Query;

pub mod nostr;

/// Why a kept record forbids a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its author (or recipient) deleted it, be it before or after it came.
    Deleted,
    /// Its author asked for everything of theirs up to a time to vanish (NIP-62).
    Vanished,
}

/// What has to happen, in this order, when a record is put.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// The record is refused if any of these finds something.
    pub refuse_if: Vec<(Query, Refusal)>,
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
        self.slot = None;
        self.erases.clear();
    }

    /// Makes every query in it fit for [`Query::matches`].
    pub fn normalise(&mut self) {
        self.refuse_if.iter_mut().for_each(|(query, _)| query.normalise());
        self.slot.iter_mut().for_each(Query::normalise);
        self.erases.iter_mut().for_each(Query::normalise);
    }
}

/// A network's rules.
pub trait Rules: Send + Sync {
    /// Fills `effects`, which is empty, with those of `record`.
    fn effects(&self, record: &Record<'_>, effects: &mut Effects);
}

/// No rules: every record with a new id is kept (Waku, Whisper).
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Rules for KeepAll {
    fn effects(&self, _: &Record<'_>, _: &mut Effects) {}
}
