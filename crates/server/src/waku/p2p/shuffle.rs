//! Random order. No peer can predict the order, because each call has a new secret key.

use std::hash::{BuildHasher as _, RandomState};

/// Returns the items in random order.
pub(super) fn shuffled<T>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let key = RandomState::new();
    let mut keyed: Vec<(u64, T)> =
        items.into_iter().enumerate().map(|(at, item)| (key.hash_one(at), item)).collect();
    keyed.sort_unstable_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, item)| item).collect()
}
