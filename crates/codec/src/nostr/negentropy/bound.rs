//! Items of a set, and the bounds of ranges.

use crate::record::Id;

/// An item of a set: the time and id of an event. Items are ordered by time and then by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NegentropyItem {
    /// Time of the event. `u64::MAX` stands for infinity; no item has this time.
    pub time: u64,
    /// The event's id.
    pub id: Id,
}

/// The exclusive end of a range. Only the first `len` bytes of the id are sent; the others are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RangeBound {
    pub(super) at: NegentropyItem,
    /// Number of bytes of the id that are sent, at most 32.
    pub(super) len: u8,
}

impl RangeBound {
    /// The bound after all items.
    pub(super) const INFINITE: Self =
        Self { at: NegentropyItem { time: u64::MAX, id: [0; 32] }, len: 0 };

    /// Returns the shortest bound that separates `before` from `next`. `before` must come before
    /// `next`.
    pub(super) fn between(before: &NegentropyItem, next: &NegentropyItem) -> Self {
        let mut at = NegentropyItem { time: next.time, id: [0; 32] };
        if before.time != next.time {
            return Self { at, len: 0 };
        }
        let shared = before.id.iter().zip(&next.id).take_while(|(a, b)| a == b).count();
        let len = (shared + 1).min(32);
        at.id[..len].copy_from_slice(&next.id[..len]);
        Self { at, len: len as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(time: u64, id: &[u8]) -> NegentropyItem {
        let mut item = NegentropyItem { time, id: [0; 32] };
        item.id[..id.len()].copy_from_slice(id);
        item
    }

    #[test]
    fn a_bound_is_as_short_as_possible() {
        for (before, next, len) in [
            (item(1, b"a"), item(2, b"a"), 0),
            (item(1, &[9]), item(2, &[]), 0),
            (item(1, &[]), item(1, &[1]), 1),
            (item(1, b"ab"), item(1, b"ac"), 2),
            (item(1, &[7; 31]), item(1, &[7; 32]), 32),
        ] {
            let bound = RangeBound::between(&before, &next);
            assert_eq!(bound.len, len, "{before:?} {next:?}");
            assert!(before < bound.at && bound.at <= next);
            assert_eq!(bound.at.id[usize::from(len)..], vec![0; 32 - usize::from(len)]);
        }
    }
}
