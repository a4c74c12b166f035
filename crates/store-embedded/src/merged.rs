//! Merging sorted sequences.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Merges ascending sequences into one ascending sequence. Equal items are all kept.
pub(crate) fn merged<T: Ord>(mut parts: Vec<impl Iterator<Item = T>>) -> impl Iterator<Item = T> {
    let first = parts.iter_mut().enumerate();
    let first = first.filter_map(|(at, part)| Some(Reverse((part.next()?, at))));
    let mut heap: BinaryHeap<_> = first.collect();
    std::iter::from_fn(move || {
        let Reverse((item, at)) = heap.pop()?;
        heap.extend(parts[at].next().map(|next| Reverse((next, at))));
        Some(item)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_equal_ones_stay() {
        let parts = vec![vec![1, 4, 4], vec![], vec![2, 4], vec![0]];
        let all = merged(parts.into_iter().map(Vec::into_iter).collect());
        assert_eq!(all.collect::<Vec<_>>(), [0, 1, 2, 4, 4, 4]);
    }
}
