//! The verified names (NIP-05) that one process knows.

use std::collections::HashMap;

use hark_codec::record::Key;
use hark_networks::nostr::names::InternetName;
use parking_lot::RwLock;

use super::records::{NS_PER_S, NameState};

/// Maximum number of keys with a verified name. All are in memory, about 200 bytes each.
pub(crate) const NAMES_MAX: usize = 200_000;

/// The names that one process knows.
#[derive(Debug, Default)]
pub(super) struct NameBook {
    /// The newest record of each key.
    pub(super) known: RwLock<HashMap<Key, NameState>>,
}

/// A name that its domain has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedName {
    pub(crate) name: InternetName,
    /// The time of the last confirmation, in seconds since 1970.
    pub(crate) checked_s: u64,
}

impl VerifiedName {
    pub(super) fn of(state: &NameState, now_s: u64) -> Option<Self> {
        let name = state.name.clone().filter(|_| now_s < state.until_s)?;
        Some(Self { name, checked_s: state.at_ns / NS_PER_S })
    }
}

impl NameBook {
    /// Applies a record, unless a newer record of the same key was applied before.
    pub(super) fn apply(&self, state: NameState) {
        let mut known = self.known.write();
        if known.get(&state.key).is_none_or(|older| older.at_ns <= state.at_ns) {
            known.insert(state.key, state);
        }
    }
}
