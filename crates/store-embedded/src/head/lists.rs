//! The lists of a head: which rows carry a term, by kind, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use papaya::HashMap;

use super::table::Table;
use crate::segment::file::partition;

/// Sizes at which a list's tiers are merged into the next: an insert copies some hundred bytes,
/// whatever the list's length.
const TIERS: [usize; 2] = [64, 2048];
/// Kinds a term may have before its lists move into a map of their own.
const FEW_KINDS: usize = 16;

/// Rows in order, oldest first, with room to grow: the first number says how many follow. What comes
/// in order is put behind the others, where a reader that came before does not look.
pub type Tier = Arc<[AtomicU32]>;

fn new_tier(rows: impl ExactSizeIterator<Item = u32>, room: usize) -> Tier {
    let len = rows.len() as u32;
    let empty = std::iter::repeat_n(0, room.saturating_sub(rows.len()));
    std::iter::once(len).chain(rows).chain(empty).map(AtomicU32::new).collect()
}

fn no_tier() -> Tier {
    new_tier(std::iter::empty(), 0)
}

/// How many rows a tier has.
#[inline]
fn tier_len(tier: &[AtomicU32]) -> usize {
    tier.first().map_or(0, |len| len.load(Ordering::Acquire) as usize)
}

/// A tier's `index`th row, oldest first.
#[inline]
pub(super) fn tier_row(tier: &[AtomicU32], index: usize) -> u32 {
    tier.get(index + 1).map_or(u32::MAX, |row| row.load(Ordering::Relaxed))
}

fn tier_rows(tier: &[AtomicU32]) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator {
    (0..tier_len(tier)).map(|index| tier_row(tier, index))
}

/// Puts a row into its place, behind the others if it is the newest and there is room; else gives the
/// tier that is to replace this one.
fn add(tier: &Tier, row: u32, table: &Table) -> Option<Tier> {
    let (len, place) = (tier_len(tier), table.place(row));
    let is_newer = |index: usize| table.place(tier_row(tier, index)) < place;
    // Nearly always it belongs at the end or near it.
    let mut ahead = 1;
    while ahead <= len && is_newer(len - ahead) {
        ahead *= 2;
    }
    let near = len.saturating_sub(ahead);
    let at = near + partition((len - near) as u32, |i| !is_newer(near + i as usize)) as usize;
    if at == len
        && let Some(free) = tier.get(len + 1)
    {
        free.store(row, Ordering::Relaxed);
        tier[0].store(len as u32 + 1, Ordering::Release);
        return None;
    }
    let room = if len + 1 < tier.len() { tier.len() - 1 } else { (len * 2).max(4) };
    let mut rows: Vec<u32> = tier_rows(tier).collect();
    rows.insert(at, row);
    Some(new_tier(rows.into_iter(), room))
}

fn merge(newer: &[AtomicU32], older: &[AtomicU32], table: &Table) -> Tier {
    let mut out = Vec::with_capacity(tier_len(newer) + tier_len(older));
    let mut from = 0;
    for row in tier_rows(newer) {
        let (len, place) = (tier_len(older), table.place(row));
        let is_older = |index: usize| table.place(tier_row(older, index)) > place;
        // What came later is newer as a rule: few of the older ones come behind it.
        let mut ahead = 1;
        while ahead <= len - from && !is_older(len - ahead) {
            ahead *= 2;
        }
        let near = len.saturating_sub(ahead).max(from);
        let to = near + partition((len - near) as u32, |i| is_older(near + i as usize)) as usize;
        out.extend((from..to).map(|index| tier_row(older, index)));
        out.push(row);
        from = to;
    }
    out.extend((from..tier_len(older)).map(|index| tier_row(older, index)));
    new_tier(out.into_iter(), 0)
}

/// Rows in order, in up to three tiers.
#[derive(Clone)]
pub(super) enum List {
    One(u32),
    Few(Tier),
    Many(Arc<[Tier; 3]>),
}

impl List {
    /// Inserts a row; gives the list that is to replace this one, if it does not grow where it is.
    pub(super) fn insert(&self, row: u32, table: &Table) -> Option<Self> {
        match self {
            Self::One(one) => {
                let few = new_tier(std::iter::once(*one), 4);
                Some(Self::Few(add(&few, row, table).unwrap_or(few)))
            }
            Self::Few(few) if tier_len(few) < TIERS[0] => add(few, row, table).map(Self::Few),
            Self::Few(few) => {
                let first = new_tier(std::iter::once(row), TIERS[0]);
                Some(Self::Many(Arc::new([first, Arc::clone(few), no_tier()])))
            }
            Self::Many(tiers) => {
                let added = add(&tiers[0], row, table);
                let len = added.as_ref().map_or_else(|| tier_len(&tiers[0]), |tier| tier_len(tier));
                if added.is_none() && len < TIERS[0] {
                    return None;
                }
                let mut tiers = (**tiers).clone();
                if let Some(added) = added {
                    tiers[0] = added;
                }
                for (at, full) in TIERS.into_iter().enumerate() {
                    if tier_len(&tiers[at]) < full {
                        break;
                    }
                    tiers[at + 1] = merge(&tiers[at], &tiers[at + 1], table);
                    tiers[at] =
                        if at == 0 { new_tier(std::iter::empty(), TIERS[0]) } else { no_tier() };
                }
                Some(Self::Many(Arc::new(tiers)))
            }
        }
    }

    pub(super) fn runs(&self, each: &mut impl FnMut(Run)) {
        let mut tier = |tier: &Tier| {
            let len = tier_len(tier);
            if len > 0 {
                each(Run::Tier(Arc::clone(tier), len as u32));
            }
        };
        match self {
            Self::One(row) => each(Run::One(*row)),
            Self::Few(few) => tier(few),
            Self::Many(tiers) => tiers.iter().for_each(tier),
        }
    }
}

/// A term's lists, by kind.
#[derive(Clone)]
pub(super) enum Lists {
    One(u32, List),
    Few(Vec<(u32, List)>),
    Many(Arc<HashMap<u32, List>>),
}

impl Lists {
    /// Inserts a row; gives the lists that are to replace these, if they do not grow where they are.
    pub(super) fn insert(&self, kind: u32, row: u32, table: &Table) -> Option<Self> {
        match self {
            Self::One(known, list) if *known == kind => {
                list.insert(row, table).map(|list| Self::One(kind, list))
            }
            Self::One(known, list) => {
                Some(Self::Few(vec![(*known, list.clone()), (kind, List::One(row))]))
            }
            Self::Few(lists) => {
                let at = lists.iter().position(|(known, _)| *known == kind);
                let grown = match at {
                    Some(at) => lists[at].1.insert(row, table)?,
                    None => List::One(row),
                };
                let mut lists = lists.clone();
                match at {
                    Some(at) => lists[at].1 = grown,
                    None => lists.push((kind, grown)),
                }
                if lists.len() <= FEW_KINDS {
                    return Some(Self::Few(lists));
                }
                Some(Self::Many(Arc::new(lists.into_iter().collect())))
            }
            Self::Many(lists) => {
                insert_in(lists, kind, row, table);
                None
            }
        }
    }

    pub(super) fn has(&self, kinds: Option<&[u32]>) -> bool {
        let Some(kinds) = kinds else { return true };
        match self {
            Self::One(kind, _) => kinds.contains(kind),
            Self::Few(lists) => lists.iter().any(|(kind, _)| kinds.contains(kind)),
            Self::Many(lists) => kinds.iter().any(|kind| lists.pin().contains_key(kind)),
        }
    }

    pub(super) fn runs(&self, kinds: Option<&[u32]>, each: &mut impl FnMut(Run)) {
        match (self, kinds) {
            (Self::One(kind, list), _) => {
                if kinds.is_none_or(|kinds| kinds.binary_search(kind).is_ok()) {
                    list.runs(each);
                }
            }
            (Self::Few(lists), _) => lists
                .iter()
                .filter(|(kind, _)| kinds.is_none_or(|kinds| kinds.binary_search(kind).is_ok()))
                .for_each(|(_, list)| list.runs(each)),
            (Self::Many(lists), None) => {
                lists.pin().iter().for_each(|(_, list)| list.runs(each));
            }
            (Self::Many(lists), Some(kinds)) => runs_in(lists, kinds, each),
        }
    }
}

pub(super) fn insert_in(lists: &HashMap<u32, List>, kind: u32, row: u32, table: &Table) {
    let lists = lists.pin();
    let grown = match lists.get(&kind) {
        Some(list) => list.insert(row, table),
        None => Some(List::One(row)),
    };
    if let Some(grown) = grown {
        lists.insert(kind, grown);
    }
}

pub(super) fn runs_in(lists: &HashMap<u32, List>, kinds: &[u32], each: &mut impl FnMut(Run)) {
    let lists = lists.pin();
    kinds.iter().filter_map(|kind| lists.get(kind)).for_each(|list| list.runs(each));
}

/// A run of a head.
#[derive(Clone)]
pub enum Run {
    /// A list of one.
    One(u32),
    /// A tier of a longer list, and how many rows it had.
    Tier(Tier, u32),
}

impl Run {
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Tier(_, len) => *len as usize,
        }
    }

    /// The `index`th row, newest first.
    #[inline]
    pub(super) fn row(&self, index: usize) -> u32 {
        match self {
            Self::One(row) => *row,
            Self::Tier(tier, len) => tier_row(tier, *len as usize - 1 - index),
        }
    }
}
