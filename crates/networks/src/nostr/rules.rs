//! Nostr's rules: replaceable and addressable events (NIP-01), deletion (NIP-09), gift wraps and
//! their recipients (NIP-59), vanishing (NIP-62).
//!
//! A stored deletion (kind 5) serves as the tombstone: the events that it deletes are refused
//! later, even if the deletion arrived before these events. A deletion cannot delete other
//! deletions or requests to vanish. A request to vanish also deletes its author's deletions and
//! earlier requests to vanish.

use std::collections::{BTreeMap, BTreeSet};

use hark_archive::effects::{Effects, Prohibition, Refusal, Rules};
use hark_archive::query::{LabelSet, Query};
use hark_codec::hex::{decode_32 as unhex, encode_32 as hex};
use hark_codec::record::{Id, Key, Record};

/// Private label of an addressable event: the value of its first `d` tag, or an empty value. The
/// label `d` cannot be used for this purpose, because `#d` must find only events that have a `d`
/// tag.
pub const SLOT: u8 = 0;
/// Private label of a request to vanish that is meant for this relay.
pub const VANISH: u8 = 1;

/// Kind of a deletion (NIP-09).
pub const DELETION: u32 = 5;
/// Kind of a request to vanish (NIP-62).
pub const VANISH_KIND: u32 = 62;
const GIFT_WRAP: u32 = 1059;

/// The class of a kind (NIP-01). The class determines which events of the kind are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindClass {
    /// All events are stored.
    Regular,
    /// Only the newest event of each author and kind is stored.
    Replaceable,
    /// No event is stored.
    Ephemeral,
    /// Only the newest event of each author, kind and `d` value is stored.
    Addressable,
}

/// Returns the class of a kind.
pub fn class(kind: u32) -> KindClass {
    match kind {
        0 | 3 | 10_000..=19_999 => KindClass::Replaceable,
        20_000..=29_999 => KindClass::Ephemeral,
        30_000..=39_999 => KindClass::Addressable,
        _ => KindClass::Regular,
    }
}

/// [`Rules`] of a Nostr shelf.
#[derive(Clone, Copy, Debug, Default)]
pub struct NostrRules;

impl Rules for NostrRules {
    fn forbids(&self, kind: u32) -> bool {
        [DELETION, VANISH_KIND].contains(&kind)
    }

    fn effects(&self, record: &Record<'_>, effects: &mut Effects) {
        let (id, kind, time) = (record.id(), record.kind(), record.time());
        let Some(author) = record.author() else { return };
        effects.refuse_if(vanish(author, time));
        if ![DELETION, VANISH_KIND].contains(&kind) {
            let id_hex = hex(id);
            effects.refuse_if(deletion(author, (b'e', &id_hex), 0));
            if kind == GIFT_WRAP {
                refuse_wrap(record, &id_hex, effects);
            }
        }
        match class(kind) {
            KindClass::Replaceable => {
                refuse_address(author, kind, b"", time, effects);
                effects.slot = Some(Query {
                    authors: Some(vec![*author]),
                    kinds: Some(vec![kind]),
                    ..Query::default()
                });
            }
            KindClass::Addressable => {
                let d = record.labels().find(|(name, _)| *name == SLOT).map_or(&[][..], |(_, d)| d);
                refuse_address(author, kind, d, time, effects);
                effects.slot = Some(Query {
                    authors: Some(vec![*author]),
                    kinds: Some(vec![kind]),
                    labels: vec![LabelSet::one(SLOT, d)],
                    ..Query::default()
                });
            }
            KindClass::Regular | KindClass::Ephemeral => {}
        }
        match kind {
            DELETION => erase_deleted(record, author, effects),
            VANISH_KIND if record.labels().any(|(name, _)| name == VANISH) => {
                effects.erases.push(Query {
                    authors: Some(vec![*author]),
                    to: time,
                    ..Query::default()
                });
                effects.erases.push(Query {
                    kinds: Some(vec![GIFT_WRAP]),
                    labels: vec![LabelSet::one(b'p', &hex(author))],
                    to: time,
                    ..Query::default()
                });
            }
            _ => {}
        }
    }
}

/// Returns a prohibition that matches the author's request to vanish, if it covers events up to
/// `time` or later.
fn vanish(author: &Key, time: u64) -> Prohibition<'_> {
    let label = (VANISH, &b""[..]);
    Prohibition { author, kind: VANISH_KIND, label, from: time, refusal: Refusal::Vanished }
}

/// Returns a prohibition that matches the author's deletions with this label and a time of `from`
/// or later.
fn deletion<'a>(author: &'a Key, label: (u8, &'a [u8]), from: u64) -> Prohibition<'a> {
    Prohibition { author, kind: DELETION, label, from, refusal: Refusal::Deleted }
}

/// Adds the refusal of an event at an address (`kind:pubkey:d`) whose author deleted the address at
/// `time` or later.
fn refuse_address(author: &Key, kind: u32, d: &[u8], time: u64, effects: &mut Effects) {
    let mut address = format!("{kind}:").into_bytes();
    address.extend_from_slice(&hex(author));
    address.push(b':');
    address.extend_from_slice(d);
    effects.refuse_if(deletion(author, (b'a', &address), time));
}

/// Adds the refusals of a gift wrap that a recipient has deleted, or whose recipient has vanished.
/// The signer does not matter, because it is a key that is used only once.
fn refuse_wrap(record: &Record<'_>, id_hex: &[u8], effects: &mut Effects) {
    let recipients = record.labels().filter(|(name, _)| *name == b'p');
    let recipients: BTreeSet<Key> = recipients.filter_map(|(_, p)| unhex(p)).collect();
    for recipient in recipients {
        effects.refuse_if(deletion(&recipient, (b'e', id_hex), 0));
        effects.refuse_if(vanish(&recipient, record.time()));
    }
}

fn erase_deleted(record: &Record<'_>, author: &Key, effects: &mut Effects) {
    let ids: Vec<Id> =
        record.labels().filter(|(name, _)| *name == b'e').filter_map(|(_, e)| unhex(e)).collect();
    if !ids.is_empty() {
        effects.erases.push(Query {
            ids: Some(ids.clone()),
            authors: Some(vec![*author]),
            not_kinds: vec![DELETION, VANISH_KIND],
            ..Query::default()
        });
        effects.erases.push(Query {
            ids: Some(ids),
            kinds: Some(vec![GIFT_WRAP]),
            labels: vec![LabelSet::one(b'p', &hex(author))],
            ..Query::default()
        });
    }
    // A deletion may name thousands of addresses, so one search covers all addresses of a kind. If
    // the author has no events of the kind, the search ends at once.
    let (mut replaceable, mut addressable) = (Vec::new(), BTreeMap::<u32, Vec<Box<[u8]>>>::new());
    let addresses = record.labels().filter(|(name, _)| *name == b'a');
    for (kind, d) in addresses.filter_map(|(_, address)| own_address(address, author)) {
        match class(kind) {
            KindClass::Addressable => addressable.entry(kind).or_default().push(d.into()),
            KindClass::Replaceable if d.is_empty() => replaceable.push(kind),
            _ => {}
        }
    }
    let named = |kinds, labels| Query {
        authors: Some(vec![*author]),
        kinds: Some(kinds),
        labels,
        to: record.time(),
        ..Query::default()
    };
    if !replaceable.is_empty() {
        effects.erases.push(named(replaceable, Vec::new()));
    }
    for (kind, values) in addressable {
        effects.erases.push(named(vec![kind], vec![LabelSet { name: SLOT, values }]));
    }
}

/// Maximum number of recipients of a gift wrap. NIP-59 has a single recipient. The number is
/// bounded because each recipient needs two searches on the writer's thread.
pub const WRAP_RECIPIENTS_MAX: usize = 16;

/// Whether an event of this kind is a gift wrap with more than [`WRAP_RECIPIENTS_MAX`] `recipients`
/// (`p` tags).
pub fn wraps_for_too_many(kind: u32, mut recipients: impl Iterator) -> bool {
    kind == GIFT_WRAP && recipients.nth(WRAP_RECIPIENTS_MAX).is_some()
}

/// Maximum number of kinds in the addresses that one deletion names ([`deletes_too_many_kinds`]).
/// The number is bounded because each kind needs a separate search on the writer's thread.
pub const DELETED_KINDS_MAX: usize = 64;

/// Whether an event of this author and kind is a deletion whose `a` tags, `addresses`, name the
/// author's own addresses of more than [`DELETED_KINDS_MAX`] kinds.
pub fn deletes_too_many_kinds<'a>(
    kind: u32,
    author: &Key,
    addresses: impl Iterator<Item = &'a [u8]>,
) -> bool {
    if kind != DELETION {
        return false;
    }
    let own = addresses.filter_map(|address| own_address(address, author));
    own.map(|(kind, _)| kind).collect::<BTreeSet<u32>>().len() > DELETED_KINDS_MAX
}

/// Kind and `d` of an address, if the address is the author's own.
fn own_address<'a>(address: &'a [u8], author: &Key) -> Option<(u32, &'a [u8])> {
    let colon = address.iter().position(|&byte| byte == b':')?;
    let kind = std::str::from_utf8(&address[..colon]).ok()?;
    // A padded number would delete the event now, but the label that forbids the event later has
    // another spelling.
    let is_padded = kind.len() > 1 && kind.starts_with('0');
    if kind.is_empty() || is_padded || !kind.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let rest = &address[colon + 1..];
    let key = unhex(rest.get(..64)?)?;
    let d = rest[64..].strip_prefix(b":")?;
    (key == *author).then_some((kind.parse().ok()?, d))
}

#[cfg(test)]
mod tests {
    use hark_codec::record::{self, LabelPosition, RecordHeader};

    use super::*;

    fn erases(addresses: &[String]) -> Vec<Query> {
        let head = RecordHeader {
            id: [9; 32],
            time: 10,
            author: Some([1; 32]),
            kind: DELETION,
            expires: None,
        };
        let labels =
            addresses.iter().map(|address| (b'a', LabelPosition::Bytes(address.as_bytes())));
        let mut bytes = Vec::new();
        record::write(&mut bytes, &head, b"", labels);
        let mut effects = Effects::default();
        NostrRules.effects(&Record::new(&bytes).unwrap(), &mut effects);
        effects.normalise();
        effects.erases
    }

    fn address(kind: u32, d: &str) -> String {
        format!("{kind}:{}:{d}", String::from_utf8_lossy(&hex(&[1; 32])))
    }

    #[test]
    fn a_deletion_of_many_addresses_is_a_search_for_each_kind() {
        let many: Vec<String> = (0..1_700)
            .map(|n| match n % 4 {
                0 => address(30_023, &n.to_string()),
                1 => address(30_000, &(n / 8).to_string()),
                2 => address(10_000 + n % 100, ""),
                _ => address(10_000, &n.to_string()),
            })
            .collect();
        let found = erases(&many);
        let shapes: Vec<(usize, usize)> = found
            .iter()
            .map(|query| {
                let values = query.labels.iter().map(|set| set.values.len()).sum();
                (query.kinds.as_ref().unwrap().len(), values)
            })
            .collect();
        assert_eq!(shapes, [(25, 0), (1, 213), (1, 425)]);
        assert!(found.iter().all(|query| query.to == 10));
        assert_eq!(found[1].authors, Some(vec![[1; 32]]));
    }

    /// An event is forbidden by the label as it is written, so another spelling must not delete.
    #[test]
    fn an_address_in_another_spelling_deletes_nothing() {
        assert_eq!(erases(&[address(30_023, "d")]).len(), 1);
        assert!(erases(&[format!("0{}", address(30_023, "d"))]).is_empty());
        let upper = format!("30023:{}:d", "AB".repeat(32));
        assert!(own_address(upper.as_bytes(), &[0xab; 32]).is_none());
    }

    #[test]
    fn addresses_of_too_many_kinds_are_reported() {
        let too_many = |kinds: u32, kind| {
            let addresses: Vec<String> = (0..kinds).map(|n| address(30_000 + n, "d")).collect();
            let addresses = addresses.iter().map(String::as_bytes);
            deletes_too_many_kinds(kind, &[1; 32], addresses)
        };
        assert!(!too_many(64, DELETION) && too_many(65, DELETION) && !too_many(65, 1));
    }

    #[test]
    fn wraps_for_too_many_are_reported_and_one_who_is_named_often_is_one() {
        assert!(!wraps_for_too_many(GIFT_WRAP, 0..16) && wraps_for_too_many(GIFT_WRAP, 0..17));
        assert!(!wraps_for_too_many(3, 0..2_000));
        let head =
            RecordHeader { id: [7; 32], time: 10, author: None, kind: GIFT_WRAP, expires: None };
        let recipient = hex(&[9; 32]);
        let labels = std::iter::repeat_n((b'p', LabelPosition::Bytes(&recipient)), 5);
        let mut bytes = Vec::new();
        record::write(&mut bytes, &head, b"", labels);
        let mut effects = Effects::default();
        refuse_wrap(&Record::new(&bytes).unwrap(), &hex(&[7; 32]), &mut effects);
        assert_eq!(effects.forbidding().count(), 2);
    }
}
