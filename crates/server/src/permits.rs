//! Permits, of which every key may hold at most a given number at a time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// Permits held, by key. Keys that hold none are removed.
#[derive(Debug)]
pub(crate) struct Permits<K>(Arc<Mutex<HashMap<K, usize>>>);

/// A permit: given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit<K: Copy + Eq + Hash> {
    permits: Permits<K>,
    of: K,
}

impl<K> Default for Permits<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Copy + Eq + Hash> Permits<K> {
    /// Takes a permit, if `of` holds fewer than `max`.
    pub(crate) fn take(&self, of: K, max: usize) -> Option<Permit<K>> {
        let mut open = self.0.lock();
        let count = open.get(&of).copied().unwrap_or(0);
        (count < max).then(|| {
            open.insert(of, count + 1);
            Permit { permits: Self(Arc::clone(&self.0)), of }
        })
    }
}

impl<K: Copy + Eq + Hash> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut open = self.permits.0.lock();
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
    fn permits_are_given_back_when_they_are_dropped() {
        let permits = Permits::default();
        let one: Vec<_> = (0..3).map_while(|_| permits.take("one", 2)).collect();
        assert_eq!(one.len(), 2);
        assert!(permits.take("two", 2).is_some());
        drop(one);
        assert!(permits.take("one", 1).is_some());
        assert!(permits.0.lock().is_empty());
    }
}
