//! Places, of which each may have so many at a time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who has how many; nobody is in it who has none.
#[derive(Debug)]
pub(crate) struct Seats<K>(Arc<Mutex<HashMap<K, usize>>>);

/// A place: free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat<K: Copy + Eq + Hash> {
    seats: Seats<K>,
    of: K,
}

impl<K> Default for Seats<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Copy + Eq + Hash> Seats<K> {
    fn open(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, if `of` has fewer than `max`.
    pub(crate) fn take(&self, of: K, max: usize) -> Option<Seat<K>> {
        let mut open = self.open();
        let count = open.get(&of).copied().unwrap_or(0);
        (count < max).then(|| {
            open.insert(of, count + 1);
            Seat { seats: Self(Arc::clone(&self.0)), of }
        })
    }
}

impl<K: Copy + Eq + Hash> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut open = self.seats.open();
        match open.get(&self.of) {
            Some(&count) if count > 1 => drop(open.insert(self.of, count - 1)),
            _ => drop(open.remove(&self.of)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_free_again_when_they_are_dropped() {
        let seats = Seats::default();
        let one: Vec<_> = (0..3).map_while(|_| seats.take("one", 2)).collect();
        assert_eq!(one.len(), 2);
        assert!(seats.take("two", 2).is_some());
        drop(one);
        assert!(seats.take("one", 1).is_some());
        assert!(seats.open().is_empty());
    }
}
