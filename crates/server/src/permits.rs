//! Permits per key: every key may hold at most a given number at a time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// Permits held, by key. Keys that hold none are removed.
#[derive(Debug)]
pub(crate) struct Permits<K>(Arc<Mutex<HashMap<K, usize>>>);

/// A permit, released on drop.
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
    /// Acquires a permit for the key `of`, if this key holds fewer than `max` permits.
    pub(crate) fn acquire(&self, of: K, max: usize) -> Option<Permit<K>> {
        let mut open = self.0.lock();
        let count = open.get(&of).copied().unwrap_or(0);
        (count < max).then(|| {
            open.insert(of, count + 1);
            Permit { permits: Self(Arc::clone(&self.0)), of }
        })
    }
}

impl<K: Copy + Eq + Hash> Permit<K> {
    /// The key that holds the permit.
    pub(crate) fn of(&self) -> K {
        self.of
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

/// One key may hold at most the units that other keys do not hold, divided by this number.
const SHARE: usize = 4;

/// A bounded number of units, shared between keys. Each key may hold up to a fixed number of units,
/// and at most a quarter of the units that other keys do not hold. So one key cannot hold all
/// units, and each key gets fewer units as other keys hold more.
#[derive(Debug)]
pub(crate) struct Shares<K>(Arc<Mutex<SharesHeld<K>>>);

#[derive(Debug)]
struct SharesHeld<K> {
    max: usize,
    of_key_max: usize,
    held: usize,
    by_key: HashMap<K, usize>,
}

/// Units that a key holds, released on drop.
#[derive(Debug)]
pub(crate) struct Share<K: Copy + Eq + Hash> {
    shares: Shares<K>,
    of: K,
    units: usize,
}

impl<K> Clone for Shares<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// Allows `max` units in total, and `of_key_max` units for each key.
    pub(crate) fn new(max: usize, of_key_max: usize) -> Self {
        let by_key = HashMap::new();
        Self(Arc::new(Mutex::new(SharesHeld { max, of_key_max, held: 0, by_key })))
    }

    /// Changes the bounds. Units that are held above the new bounds stay held.
    pub(crate) fn set_bounds(&self, max: usize, of_key_max: usize) {
        let mut held = self.0.lock();
        (held.max, held.of_key_max) = (max, of_key_max);
    }

    /// Takes units if they are within the share of the key. A key that holds no units may take all
    /// free units, so that even a large request can succeed.
    pub(crate) fn acquire(&self, of: K, units: usize) -> Option<Share<K>> {
        self.acquire_if(of, units, |held, own, free| {
            own == 0 || own + units <= held.of_key_max.min((own + free) / SHARE)
        })
    }

    /// Takes free units for a key that stands for many clients. The bounds of one key do not apply.
    pub(crate) fn acquire_any(&self, of: K, units: usize) -> Option<Share<K>> {
        self.acquire_if(of, units, |_, _, _| true)
    }

    fn acquire_if(
        &self,
        of: K,
        units: usize,
        may: impl FnOnce(&SharesHeld<K>, usize, usize) -> bool,
    ) -> Option<Share<K>> {
        let mut held = self.0.lock();
        let own = held.by_key.get(&of).copied().unwrap_or(0);
        let free = held.max.saturating_sub(held.held);
        if units > free || !may(&held, own, free) {
            return None;
        }
        held.held += units;
        held.by_key.insert(of, own + units);
        Some(Share { shares: self.clone(), of, units })
    }
}

impl<K: Copy + Eq + Hash> Share<K> {
    /// Releases the units above `units`.
    pub(crate) fn shrink(&mut self, units: usize) {
        let spare = self.units.saturating_sub(units);
        self.units -= spare;
        let mut held = self.shares.0.lock();
        held.held -= spare;
        match held.by_key.get(&self.of) {
            Some(&own) if own > spare => drop(held.by_key.insert(self.of, own - spare)),
            _ => drop(held.by_key.remove(&self.of)),
        }
    }
}

impl<K: Copy + Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_cannot_hold_all_and_all_keys_together_hold_no_more_than_there_is() {
        let shares = Shares::new(100, 50);
        let mut held: Vec<Share<u32>> = Vec::new();
        held.extend(std::iter::from_fn(|| shares.acquire(0, 1)));
        // While no other key holds a unit, the share is a quarter of all units.
        assert_eq!(held.len(), 25);
        // Each further key gets a smaller share than the key before, but at least one unit until
        // all units are held.
        for key in 1..200 {
            let own: Vec<_> = std::iter::from_fn(|| shares.acquire(key, 1)).collect();
            assert!(!own.is_empty() || held.len() == 100, "{key}");
            held.extend(own);
        }
        assert_eq!(held.len(), 100);
        drop(held);
        assert!(shares.0.lock().by_key.is_empty());
        // A key that holds no units may take all free units, but not more.
        assert!(shares.acquire(7, 101).is_none());
        let all = shares.acquire(7, 100);
        assert!(
            all.is_some() && shares.acquire(8, 1).is_none() && shares.acquire_any(8, 1).is_none()
        );
        let mut all = all.unwrap();
        all.shrink(70);
        all.shrink(80);
        assert!(shares.acquire(8, 31).is_none() && shares.acquire(8, 30).is_some());
        drop(all);
        assert_eq!(shares.0.lock().held, 0);
    }

    #[test]
    fn bounds_change_while_units_are_held() {
        let shares = Shares::new(16, 4);
        let mut held: Vec<_> = std::iter::from_fn(|| shares.acquire(0, 1)).collect();
        assert_eq!(held.len(), 4, "a key gets all of its units while they are free");
        shares.set_bounds(3, 1);
        assert!(shares.acquire(1, 1).is_none(), "more is held than the new bound allows");
        held.truncate(2);
        assert!(shares.acquire(0, 1).is_none() && shares.acquire(1, 1).is_some());
    }

    #[test]
    fn permits_are_given_back_when_they_are_dropped() {
        let permits = Permits::default();
        let one: Vec<_> = (0..3).map_while(|_| permits.acquire("one", 2)).collect();
        assert_eq!(one.len(), 2);
        assert!(permits.acquire("two", 2).is_some());
        drop(one);
        assert!(permits.acquire("one", 1).is_some());
        assert!(permits.0.lock().is_empty());
    }
}
