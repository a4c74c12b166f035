//! The sets that are compared.

use std::ops::Range;

use super::bound::NegentropyItem;
use super::fingerprint::{Fingerprint, fingerprint};
use crate::id_sum::IdSum;

/// A set of items in order, which must not change while it is compared.
///
/// A comparison asks for few items by index and for many sums of ranges. So a set may keep sums, and
/// answer without touching all items.
pub trait NegentropySet {
    /// The number of items.
    fn size(&self) -> usize;

    /// The item at `index`; `None` from [`NegentropySet::size`] on.
    fn item(&self, index: usize) -> Option<&NegentropyItem>;

    /// The sum of the ids of the items in `range`, which lies within the set.
    fn sum(&self, range: Range<usize>) -> IdSum;

    /// The index of the first item, from the index `from` on, that is not before `bound`.
    fn lower_bound(&self, from: usize, bound: &NegentropyItem) -> usize {
        let (mut low, mut high) = (from, self.size());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.item(middle).is_some_and(|item| item < bound) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The fingerprint of the items in `range`, which lies within the set.
    fn fingerprint(&self, range: Range<usize>) -> Fingerprint {
        let count = range.len() as u64;
        fingerprint(self.sum(range), count)
    }
}

/// A set without sums: a fingerprint takes time in proportion to its items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortedItems(Vec<NegentropyItem>);

impl From<Vec<NegentropyItem>> for SortedItems {
    /// Sorts and deduplicates the items. Items of infinite time are left out.
    fn from(mut items: Vec<NegentropyItem>) -> Self {
        items.retain(|item| item.time < u64::MAX);
        items.sort_unstable();
        items.dedup();
        Self(items)
    }
}

impl NegentropySet for SortedItems {
    fn size(&self) -> usize {
        self.0.len()
    }

    fn item(&self, index: usize) -> Option<&NegentropyItem> {
        self.0.get(index)
    }

    fn sum(&self, range: Range<usize>) -> IdSum {
        let mut sum = IdSum::default();
        for item in self.0.get(range).unwrap_or_default() {
            sum.add(&item.id);
        }
        sum
    }
}
