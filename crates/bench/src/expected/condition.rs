//! The conditions of one filter.

use std::collections::BTreeSet;

use hark_codec::hex;
use hark_codec::nostr::Event;
use hark_codec::record::{Id, Key};
use serde_json::Value;

/// A value of an event, by which to find the filters that may match the event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum AnchorKey {
    Id(Id),
    Author(Key),
    Label(u8, Box<str>),
    /// A value that every event has.
    All,
}

impl AnchorKey {
    pub(super) fn label(letter: u8, value: &str) -> Self {
        Self::Label(letter, value.into())
    }
}

/// The conditions of a filter, all of which an event must meet.
#[derive(Debug)]
pub(super) struct FilterCondition {
    ids: Option<BTreeSet<Id>>,
    authors: Option<BTreeSet<Key>>,
    kinds: Option<BTreeSet<u64>>,
    labels: Vec<(u8, BTreeSet<Box<str>>)>,
    since: u64,
    until: u64,
    /// Maximum number of events.
    pub(super) limit: usize,
}

impl FilterCondition {
    /// Reads a filter. `None` if the filter has a condition other than those of NIP-01.
    pub(super) fn new(filter: &Value) -> Option<Self> {
        let mut condition = Self {
            ids: None,
            authors: None,
            kinds: None,
            labels: Vec::new(),
            since: 0,
            until: u64::MAX,
            limit: usize::MAX,
        };
        for (name, value) in filter.as_object()? {
            match name.as_bytes() {
                b"ids" => condition.ids = Some(keys(value)?),
                b"authors" => condition.authors = Some(keys(value)?),
                b"kinds" => {
                    condition.kinds = value.as_array()?.iter().map(Value::as_u64).collect();
                }
                b"since" => condition.since = value.as_u64()?,
                b"until" => condition.until = value.as_u64()?,
                b"limit" => condition.limit = usize::try_from(value.as_u64()?).ok()?,
                [b'#', letter] => {
                    let values = value.as_array()?.iter().map(|value| value.as_str());
                    let values = values.map(|value| value.map(Box::from)).collect::<Option<_>>()?;
                    condition.labels.push((*letter, values));
                }
                _ => return None,
            }
        }
        Some(condition)
    }

    pub(super) fn names_kinds(&self) -> bool {
        self.kinds.is_some()
    }

    /// Keys of which every matching event has at least one.
    pub(super) fn anchors(&self) -> Vec<AnchorKey> {
        if let Some(ids) = &self.ids {
            return ids.iter().copied().map(AnchorKey::Id).collect();
        }
        if let Some((letter, values)) = self.labels.first() {
            return values.iter().map(|value| AnchorKey::label(*letter, value)).collect();
        }
        if let Some(authors) = &self.authors {
            return authors.iter().copied().map(AnchorKey::Author).collect();
        }
        vec![AnchorKey::All]
    }

    pub(super) fn matches(&self, event: &Event<'_>) -> bool {
        let has_label = |(letter, values): &(u8, BTreeSet<Box<str>>)| {
            event.labels().any(|(of, value)| of == *letter && values.contains(value))
        };
        (self.since..=self.until).contains(&event.created_at())
            && self.ids.as_ref().is_none_or(|ids| ids.contains(event.id()))
            && self.authors.as_ref().is_none_or(|authors| authors.contains(event.pubkey()))
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&u64::from(event.kind())))
            && self.labels.iter().all(has_label)
    }
}

/// Reads a list of ids or keys.
fn keys(value: &Value) -> Option<BTreeSet<[u8; 32]>> {
    let key = |value: &Value| hex::decode_32(value.as_str()?.as_bytes());
    value.as_array()?.iter().map(key).collect()
}
