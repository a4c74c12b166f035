//! The sets that are compared.

use std::ops::Range;

use super::bound::NegentropyItem;
use super::fingerprint::{Fingerprint, fingerprint};
use crate::id_sum::IdSum;

/// A set of items in order, which must not change while it is compared.
///
/// A comparison reads few single items, but many sums of the ids in a range. If a set stores sums,
/// it can compute the sum of a range without reading all items of the range.
pub trait NegentropySet {
    /// The number of items.
    fn size(&self) -> usize;

    /// The item at `index`; `None` if `index` is [`NegentropySet::size`] or higher.
    fn item(&self, index: usize) -> Option<&NegentropyItem>;

    /// The sum of the ids of the items in `range`, which lies within the set.
    fn sum(&self, range: Range<usize>) -> IdSum;

    /// The index of the first item at or after index `from` that is not before `bound`.
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

/// A set without sums. The time for a fingerprint is linear in the number of items in the range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortedItems(Vec<NegentropyItem>);

impl From<Vec<NegentropyItem>> for SortedItems {
    /// Sorts and deduplicates the items. An item with infinite time is left out.
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

/// A set with a stored sum for each group of 128 items. So few items are read to compute the
/// fingerprint of a range.
#[derive(Clone, Debug, Default)]
pub struct SummedItems {
    items: Vec<NegentropyItem>,
    /// For each group, the sum of all items before the group.
    sums: Vec<IdSum>,
}

/// Number of items in a group.
const SUMMED_TOGETHER: usize = 128;

impl From<Vec<NegentropyItem>> for SummedItems {
    /// Sorts and deduplicates the items. An item with infinite time is left out.
    fn from(items: Vec<NegentropyItem>) -> Self {
        let SortedItems(items) = items.into();
        let mut sums = Vec::with_capacity(items.len() / SUMMED_TOGETHER + 1);
        let mut sum = IdSum::default();
        sums.push(sum);
        for group in items.chunks_exact(SUMMED_TOGETHER) {
            for item in group {
                sum.add(&item.id);
            }
            sums.push(sum);
        }
        Self { items, sums }
    }
}

impl SummedItems {
    /// The items with times from `from` to `to`, both inclusive, in order.
    pub fn between(&self, from: u64, to: u64) -> &[NegentropyItem] {
        let start = self.items.partition_point(|item| item.time < from);
        let end = self.items.partition_point(|item| item.time <= to);
        self.items.get(start..end).unwrap_or_default()
    }

    fn sum_before(&self, index: usize) -> IdSum {
        let group = index / SUMMED_TOGETHER;
        let before = self.sums.get(group).copied().unwrap_or_default();
        let items = self.items.get(group * SUMMED_TOGETHER..index).unwrap_or_default();
        items.iter().fold(before, |sum, item| sum.plus((&item.id).into()))
    }
}

impl NegentropySet for SummedItems {
    fn size(&self) -> usize {
        self.items.len()
    }

    fn item(&self, index: usize) -> Option<&NegentropyItem> {
        self.items.get(index)
    }

    fn sum(&self, range: Range<usize>) -> IdSum {
        self.sum_before(range.end).minus(self.sum_before(range.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_groups_are_those_of_their_items() {
        for count in [0_u16, 1, 127, 128, 129, 1_000] {
            let mut items = Vec::new();
            for n in 0..count {
                let mut id = [n as u8; 32];
                id[..2].copy_from_slice(&n.wrapping_mul(40_503).to_be_bytes());
                items.push(NegentropyItem { time: u64::from(n / 3), id });
            }
            let (plain, summed): (SortedItems, SummedItems) = (items.clone().into(), items.into());
            let size = plain.size();
            assert_eq!(summed.size(), size);
            for (from, to) in [(0, size), (0, size / 2), (size / 3, size), (size / 3, size / 2)] {
                assert_eq!(
                    summed.fingerprint(from..to),
                    plain.fingerprint(from..to),
                    "{from}..{to}"
                );
            }
            let times = summed.between(2, 3);
            assert!(times.iter().all(|item| (2..=3).contains(&item.time)));
            assert_eq!(times.len(), plain.0.iter().filter(|item| item.time / 2 == 1).count());
        }
    }
}
