//! Filters that are found under the same value, and those of them whose times a record lies in.
//!
//! A short list is looked through. A long one is an interval tree: each filter asks for the times from
//! its `from` to its `to`, and belongs to the node whose center separates the two, which is the place of
//! the highest bit in which they differ. A record's time can lie in nodes of at most 65 levels, one of
//! each. In a node only one end decides: a time before the center is behind every `to`, and one from the
//! center on is behind every `from`. So filters for other times, however many there are, are passed by.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Subscription;
use crate::query::Query;

/// Filters of a short list.
const FEW: usize = 16;
/// The level of filters for one point of time alone.
const POINTS: u32 = 64;

/// A filter of a subscription: one of its queries.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) subscription: Arc<Subscription>,
    pub(super) query: u32,
}

impl Entry {
    /// Tells entries apart.
    fn number(&self) -> (u64, u32) {
        (self.subscription.number, self.query)
    }

    pub(super) fn query(&self) -> Option<&Query> {
        self.subscription.queries.get(self.query as usize)
    }
}

/// Filters, each once.
pub(super) enum List {
    /// In no order.
    Few(Vec<Entry>),
    Many(Box<Tree>),
}

impl Default for List {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl List {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Few(entries) => entries.is_empty(),
            Self::Many(tree) => tree.len == 0,
        }
    }

    /// Adds an entry that may be there already.
    pub(super) fn insert(&mut self, entry: Entry) {
        match self {
            Self::Few(entries) => {
                if entries.iter().any(|known| known.number() == entry.number()) {
                    return;
                }
                if entries.len() < FEW {
                    entries.reserve_exact(usize::from(entries.is_empty()));
                    entries.push(entry);
                    return;
                }
                let mut tree = Tree::default();
                entries.drain(..).chain([entry]).for_each(|entry| tree.insert(entry));
                *self = Self::Many(Box::new(tree));
            }
            Self::Many(tree) => tree.insert(entry),
        }
    }

    /// Removes an entry that may not be there.
    pub(super) fn remove(&mut self, entry: &Entry) {
        match self {
            Self::Few(entries) => entries.retain(|known| known.number() != entry.number()),
            Self::Many(tree) => {
                tree.remove(entry);
                // Not at once, so that one that comes and goes does not move all of them.
                if tree.len <= FEW / 2 {
                    *self = Self::Few(tree.entries());
                }
            }
        }
    }

    /// Hands over the entries that could match a record of this time and kind.
    pub(super) fn find(&self, time: u64, kind: u32, each: &mut impl FnMut(&Entry)) {
        match self {
            Self::Few(entries) => entries.iter().for_each(each),
            Self::Many(tree) => tree.find(time, bit(kind), each),
        }
    }
}

/// The kinds of a query, a bit each; kinds may share one.
fn mask(query: &Query) -> u64 {
    query.kinds.as_ref().map_or(u64::MAX, |kinds| kinds.iter().fold(0, |all, &k| all | bit(k)))
}

fn bit(kind: u32) -> u64 {
    1 << (kind.wrapping_mul(0x9e37_79b9) >> 26)
}

/// An end of a filter's times, and which filter that is.
type End = (u64, u64, u32);

/// Filters by one end of their times, with the bits of their kinds.
type Ends = BTreeMap<End, (u64, Entry)>;

/// A long list.
#[derive(Default)]
pub(super) struct Tree {
    /// By level, then by the bits of their times above it.
    levels: BTreeMap<u32, HashMap<u64, Node>>,
    len: usize,
}

#[derive(Default)]
struct Node {
    by_from: Ends,
    by_to: Ends,
}

/// Where times from `from` to `to` belong: a level, and the bits above it, which all of them share.
fn place(from: u64, to: u64) -> (u32, u64) {
    match (from ^ to).checked_ilog2() {
        Some(level) => (level, above(from, level)),
        None => (POINTS, from),
    }
}

fn above(time: u64, level: u32) -> u64 {
    time.checked_shr(level + 1).unwrap_or(0)
}

impl Tree {
    fn insert(&mut self, entry: Entry) {
        let Some(query) = entry.query() else { return };
        let ((from, to), mask, (number, at)) =
            ((query.from, query.to), mask(query), entry.number());
        let (level, above) = place(from, to);
        let node = self.levels.entry(level).or_default().entry(above).or_default();
        let known = node.by_from.insert((from, number, at), (mask, entry.clone()));
        if level != POINTS {
            node.by_to.insert((to, number, at), (mask, entry));
        }
        self.len += usize::from(known.is_none());
    }

    fn remove(&mut self, entry: &Entry) {
        let Some(query) = entry.query() else { return };
        let ((from, to), (number, at)) = ((query.from, query.to), entry.number());
        let (level, above) = place(from, to);
        let Some(nodes) = self.levels.get_mut(&level) else { return };
        let Some(node) = nodes.get_mut(&above) else { return };
        self.len -= usize::from(node.by_from.remove(&(from, number, at)).is_some());
        node.by_to.remove(&(to, number, at));
        if node.by_from.is_empty() {
            nodes.remove(&above);
        }
        if nodes.is_empty() {
            self.levels.remove(&level);
        }
    }

    fn entries(&self) -> Vec<Entry> {
        let nodes = self.levels.values().flat_map(HashMap::values);
        nodes.flat_map(|node| node.by_from.values()).map(|(_, entry)| entry.clone()).collect()
    }

    fn find(&self, time: u64, bit: u64, each: &mut impl FnMut(&Entry)) {
        let mut tell = |(mask, entry): &(u64, Entry)| {
            if mask & bit != 0 {
                each(entry);
            }
        };
        for (&level, nodes) in &self.levels {
            let Some(node) = nodes.get(&place_of(time, level)) else { continue };
            if level == POINTS {
                node.by_from.values().for_each(&mut tell);
            } else if time >> level & 1 == 0 {
                let ends = node.by_from.range(..=(time, u64::MAX, u32::MAX));
                ends.for_each(|(_, found)| tell(found));
            } else {
                node.by_to.range((time, 0, 0)..).for_each(|(_, found)| tell(found));
            }
        }
    }
}

/// Which node of a level a time can lie in.
fn place_of(time: u64, level: u32) -> u64 {
    if level == POINTS { time } else { above(time, level) }
}
