//! Sets of shards that one statement reads.

use std::fmt;

use parking_lot::RwLock;

/// All sets. No set is ever removed, so a small key is enough to find a prepared statement. A move
/// of shards makes two new sets at most.
static SETS: RwLock<Vec<&'static [i64]>> = RwLock::new(Vec::new());

/// A set of shards that one statement reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ShardSet(u32);

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShardSet").field(&self.ids()).finish()
    }
}

impl ShardSet {
    /// Returns the set of shards with these numbers, in this order.
    pub(crate) fn of(ids: &[i64]) -> Self {
        let find = |sets: &[&[i64]]| sets.iter().position(|set| *set == ids);
        if let Some(at) = find(&SETS.read()) {
            return Self(at as u32);
        }
        let mut sets = SETS.write();
        let at = find(&sets).unwrap_or_else(|| {
            sets.push(Vec::leak(ids.to_vec()));
            sets.len() - 1
        });
        Self(at as u32)
    }

    /// Returns the numbers of the shards.
    pub(crate) fn ids(self) -> &'static [i64] {
        SETS.read().get(self.0 as usize).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_are_one() {
        let (one, two) = (ShardSet::of(&[7, 8]), ShardSet::of(&[7, 9]));
        assert!(one == ShardSet::of(&[7, 8]) && one != two);
        assert_eq!((one.ids(), two.ids()), (&[7, 8][..], &[7, 9][..]));
    }
}
