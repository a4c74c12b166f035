//! The questions about verified names (NIP-05), and the changes of these names. Each verification is
//! a record of the same shelf as the bans, so it holds over restarts, and on all servers of a
//! database. The records expire by themselves.

use hark_archive::Write;
use hark_codec::record::Key;
use hark_networks::nostr::names::InternetName;

use super::name_book::VerifiedName;
use super::records::{NS_PER_S, NameState};
use super::state::{Moderation, ModerationError};

/// How long the end of a verification is stored, so that every server of the archive learns of the
/// end.
const ENDED_S: u64 = 86_400;

impl Moderation {
    /// The verified name of a key.
    pub(crate) fn name_of(&self, key: &Key) -> Option<VerifiedName> {
        let known = self.state.names.known.read();
        // Without names, which is the usual case, the clock is not read.
        known.get(key).and_then(|state| VerifiedName::of(state, self.now_s()))
    }

    /// Number of keys in memory, including keys whose verification has ended.
    pub(crate) fn names_len(&self) -> usize {
        self.state.names.known.read().len()
    }

    /// Returns the keys whose names were last confirmed before `before_s`, and removes the names whose
    /// records have expired.
    pub(crate) fn names_due(&self, before_s: u64) -> Vec<Key> {
        let (now_s, mut known) = (self.now_s(), self.state.names.known.write());
        known.retain(|_, state| now_s < state.until_s);
        let is_due = |state: &&NameState| state.name.is_some() && state.at_ns / NS_PER_S < before_s;
        known.values().filter(is_due).map(|state| state.key).collect()
    }

    /// Stores the confirmation of a name. Waits for the archive.
    pub(crate) fn verify_name_now(
        &self,
        key: &Key,
        name: &InternetName,
        valid_s: u64,
    ) -> Result<(), ModerationError> {
        self.put_name(key, Some(name.clone()), valid_s)
    }

    /// Ends the verification of a key. Returns whether the key had a verified name. Waits for the
    /// archive.
    pub(crate) fn end_name_now(&self, key: &Key) -> Result<bool, ModerationError> {
        let is_verified = self.name_of(key).is_some();
        if is_verified {
            self.put_name(key, None, ENDED_S)?;
        }
        Ok(is_verified)
    }

    fn put_name(
        &self,
        key: &Key,
        name: Option<InternetName>,
        for_s: u64,
    ) -> Result<(), ModerationError> {
        let known_ns = self.state.names.known.read().get(key).map_or(0, |state| state.at_ns);
        let at_ns = self.next_ns(known_ns)?;
        let until_s = (at_ns / NS_PER_S).saturating_add(for_s);
        // If another server has stored a newer record meanwhile, the newer record stays in force.
        let record = NameState { at_ns, key: *key, name, until_s }.record();
        self.commit(vec![Write::Put(record)]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hark_archive::clock::Clock;
    use hark_archive::store::memory::MemoryStore;
    use hark_networks::Network as _;

    use super::*;
    use crate::moderation::ModerationNetwork;

    #[test]
    fn a_name_holds_until_its_end_and_over_restarts() {
        let store = Arc::new(MemoryStore::new(ModerationNetwork.rules()));
        let (clock, key) = (Clock::fake(1_800_000_000), [7; 32]);
        let open = || Moderation::with_clock(store.clone(), clock.clone()).unwrap();
        let (one, name) = (open(), "bob@example.com".parse().unwrap());
        let known = |moderation: &Moderation| moderation.name_of(&key).map(|it| it.name);
        assert!(!one.end_name_now(&key).unwrap());
        one.verify_name_now(&key, &name, 100).unwrap();
        for moderation in [&one, &open()] {
            assert_eq!(known(moderation), Some(name.clone()));
            let due = |before_s: u64| moderation.names_due(1_800_000_000 + before_s);
            assert_eq!((due(0), due(1)), (Vec::new(), vec![key]));
        }
        clock.set(1_800_000_099);
        assert!(known(&one).is_some());
        one.verify_name_now(&key, &name, 100).unwrap();
        clock.set(1_800_000_198);
        assert!(known(&one).is_some());
        clock.set(1_800_000_199);
        for moderation in [&one, &open()] {
            assert_eq!(known(moderation), None);
            assert_eq!(moderation.names_due(u64::MAX), Vec::<Key>::new());
            assert_eq!(moderation.names_len(), 0);
        }
        one.verify_name_now(&key, &name, 100).unwrap();
        assert!(one.end_name_now(&key).unwrap());
        assert!(known(&one).is_none() && known(&open()).is_none());
        assert!(!one.end_name_now(&key).unwrap());
    }
}
