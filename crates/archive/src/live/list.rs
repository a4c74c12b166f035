//! A list of filters that share a value. The list finds the filters whose time range includes the
//! time of a record.
//!
//! A short list is scanned. A long list is an interval tree. A filter covers the times from its
//! `from` to its `to`, and belongs to the node with a center between these two times. The level of
//! the node is the highest bit in which the two times differ. A record's time can lie in at most
//! one node of each of the 65 levels. Within a node, one comparison per filter suffices. A time
//! before the center is before every `to`, so only `from` is compared. A time at the center or
//! later is after every `from`, so only `to` is compared. So filters for other times hardly add to
//! the cost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::subscription::Subscription;
use crate::query::Query;

/// Maximum number of filters in a short list.
const FEW: usize = 16;
/// The level of filters whose `from` and `to` are equal.
const POINTS: u32 = 64;

/// A filter of a subscription: one of its queries.
#[derive(Clone)]
pub(super) struct ListedQuery {
    pub(super) subscription: Arc<Subscription>,
    pub(super) query: u32,
}

impl ListedQuery {
    /// Returns the number of the subscription and the number of the query, which identify the
    /// entry.
    pub(super) fn number(&self) -> (u64, u32) {
        (self.subscription.number, self.query)
    }

    pub(super) fn query(&self) -> Option<&Query> {
        self.subscription.queries.get(self.query as usize)
    }
}

/// A list of filters without duplicates.
#[derive(Default)]
pub(super) enum QueryList {
    #[default]
    Empty,
    /// One entry. Most lists have one entry, because most authors have one follower on this relay.
    One(ListedQuery),
    /// Some entries, in no order.
    Few(Vec<ListedQuery>),
    Many(Box<TimeTree>),
}

impl QueryList {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::One(_) => false,
            Self::Few(entries) => entries.is_empty(),
            Self::Many(tree) => tree.len == 0,
        }
    }

    /// Adds an entry, unless the list contains it already.
    pub(super) fn insert(&mut self, entry: ListedQuery) {
        match self {
            Self::Empty => *self = Self::One(entry),
            Self::One(known) if known.number() == entry.number() => {}
            Self::One(known) => *self = Self::Few(vec![known.clone(), entry]),
            Self::Few(entries) => {
                if entries.iter().any(|known| known.number() == entry.number()) {
                    return;
                }
                if entries.len() < FEW {
                    entries.push(entry);
                    return;
                }
                let mut tree = TimeTree::default();
                entries.drain(..).chain([entry]).for_each(|entry| tree.insert(entry));
                *self = Self::Many(Box::new(tree));
            }
            Self::Many(tree) => tree.insert(entry),
        }
    }

    /// Removes an entry, if present.
    pub(super) fn remove(&mut self, entry: &ListedQuery) {
        match self {
            Self::Empty => {}
            Self::One(known) if known.number() != entry.number() => {}
            Self::One(_) => *self = Self::Empty,
            Self::Few(entries) => entries.retain(|known| known.number() != entry.number()),
            Self::Many(tree) => {
                tree.remove(entry);
                // A long list becomes short only at half of `FEW`. Otherwise an entry that is added
                // and removed repeatedly would rebuild the list each time.
                if tree.len <= FEW / 2 {
                    *self = Self::Few(tree.entries());
                }
            }
        }
    }

    /// Calls `each` for each entry that could match a record of this time and kind.
    pub(super) fn find(&self, time: u64, kind: u32, each: &mut impl FnMut(&ListedQuery)) {
        match self {
            Self::Empty => {}
            Self::One(entry) => each(entry),
            Self::Few(entries) => entries.iter().for_each(each),
            Self::Many(tree) => tree.find(time, bit(kind), each),
        }
    }
}

/// Returns the kinds of a query as a mask of one bit per kind. Several kinds may share a bit.
pub(super) fn mask(query: &Query) -> u64 {
    query.kinds.as_ref().map_or(u64::MAX, |kinds| kinds.iter().fold(0, |all, &k| all | bit(k)))
}

/// Returns the bit of a kind in a mask.
pub(super) fn bit(kind: u32) -> u64 {
    1 << (kind.wrapping_mul(0x9e37_79b9) >> 26)
}

/// The `from` or the `to` of a filter, and the numbers that identify the filter.
type TimeBound = (u64, u64, u32);

/// Filters, sorted by `from` or by `to`, with the masks of their kinds.
type TimeBounds = BTreeMap<TimeBound, (u64, ListedQuery)>;

/// A long list, as an interval tree.
#[derive(Default)]
pub(super) struct TimeTree {
    /// The nodes, by level, then by the high bits that all times of the node share.
    levels: BTreeMap<u32, HashMap<u64, TimeTreeNode>>,
    len: usize,
}

#[derive(Default)]
struct TimeTreeNode {
    by_from: TimeBounds,
    by_to: TimeBounds,
}

/// Returns the node of a filter from `from` to `to`: a level, and the bits above this level, in
/// which the two times agree.
fn node_position(from: u64, to: u64) -> (u32, u64) {
    match (from ^ to).checked_ilog2() {
        Some(level) => (level, above(from, level)),
        None => (POINTS, from),
    }
}

fn above(time: u64, level: u32) -> u64 {
    time.checked_shr(level + 1).unwrap_or(0)
}

impl TimeTree {
    fn insert(&mut self, entry: ListedQuery) {
        let Some(query) = entry.query() else { return };
        let ((from, to), mask, (number, at)) =
            ((query.from, query.to), mask(query), entry.number());
        let (level, above) = node_position(from, to);
        let node = self.levels.entry(level).or_default().entry(above).or_default();
        let known = node.by_from.insert((from, number, at), (mask, entry.clone()));
        if level != POINTS {
            node.by_to.insert((to, number, at), (mask, entry));
        }
        self.len += usize::from(known.is_none());
    }

    fn remove(&mut self, entry: &ListedQuery) {
        let Some(query) = entry.query() else { return };
        let ((from, to), (number, at)) = ((query.from, query.to), entry.number());
        let (level, above) = node_position(from, to);
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

    fn entries(&self) -> Vec<ListedQuery> {
        let nodes = self.levels.values().flat_map(HashMap::values);
        nodes.flat_map(|node| node.by_from.values()).map(|(_, entry)| entry.clone()).collect()
    }

    fn find(&self, time: u64, bit: u64, each: &mut impl FnMut(&ListedQuery)) {
        let mut pass = |(mask, entry): &(u64, ListedQuery)| {
            if mask & bit != 0 {
                each(entry);
            }
        };
        for (&level, nodes) in &self.levels {
            let Some(node) = nodes.get(&position_in_level(time, level)) else { continue };
            if level == POINTS {
                node.by_from.values().for_each(&mut pass);
            } else if time >> level & 1 == 0 {
                let ends = node.by_from.range(..=(time, u64::MAX, u32::MAX));
                ends.for_each(|(_, found)| pass(found));
            } else {
                node.by_to.range((time, 0, 0)..).for_each(|(_, found)| pass(found));
            }
        }
    }
}

/// Returns the position, within a level, of the only node that can contain a time.
fn position_in_level(time: u64, level: u32) -> u64 {
    if level == POINTS { time } else { above(time, level) }
}
