//! All bans and allows (entries) of the archive, as one process knows them, and the changes that
//! the sets of `lists` do not contain yet.

use std::collections::BTreeMap;
use std::ops::Bound;

use hark_codec::record::{Id, Key};

use super::entry::RulingEntry;
use super::lists::RulingLists;
use super::records::RulingState;
use super::subject::{Ruling, RulingSubject};

/// The identity of an entry.
pub(super) type EntryKey = (Ruling, RulingSubject);

/// The entries, and their changes.
#[derive(Debug, Default)]
pub(super) struct RulingBook {
    /// Each entry, with the time of its record in nanoseconds.
    entries: BTreeMap<EntryKey, (u64, RulingEntry)>,
    /// The entries that have changed since the sets were made.
    changed: Vec<EntryKey>,
    /// Whether all entries of the archive were read.
    is_complete: bool,
    /// The entries that were lifted while the archive was still being read, each with the time at
    /// which it was lifted. Reading may still return these entries, because it began before they
    /// were lifted.
    lifted: BTreeMap<EntryKey, u64>,
    /// A time before which no entry ends, in seconds since 1970.
    next_end_s: u64,
}

/// The effects of new sets on clients.
#[derive(Debug, Default)]
pub(super) struct NewBans {
    /// Whether keys or addresses were banned. Their connections are to be closed.
    pub(super) concern_clients: bool,
    /// The banned keys and the banned ids, whose records are hidden from readers.
    pub(super) keys: Vec<Key>,
    pub(super) ids: Vec<Id>,
}

impl RulingBook {
    /// Applies a record, unless a newer record of the same subject was applied before.
    pub(super) fn apply(&mut self, state: RulingState) {
        let RulingState { at_ns, ruling, subject, entry } = state;
        let key = (ruling, subject);
        let known_ns = self.entries.get(&key).map(|(known_ns, _)| *known_ns);
        if known_ns.max(self.lifted.get(&key).copied()).is_some_and(|known_ns| known_ns > at_ns) {
            return;
        }
        if let Some(entry) = entry {
            self.next_end_s = self.next_end_s.min(entry.until_s.unwrap_or(u64::MAX));
            self.entries.insert(key.clone(), (at_ns, entry));
        } else {
            self.entries.remove(&key);
            if !self.is_complete {
                self.lifted.insert(key.clone(), at_ns);
            }
        }
        self.changed.push(key);
    }

    /// Notes that all entries of the archive were read.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
        self.lifted.clear();
    }

    /// Returns the entry, with the time of its record.
    pub(super) fn find(&self, key: &EntryKey) -> Option<&(u64, RulingEntry)> {
        self.entries.get(key)
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Removes the entries that have ended.
    pub(super) fn remove_ended(&mut self, now_s: u64) {
        if now_s < self.next_end_s {
            return;
        }
        let ended = self.entries.iter().filter(|(_, (_, entry))| !entry.is_in_force(now_s));
        let ended: Vec<EntryKey> = ended.map(|(key, _)| key.clone()).collect();
        for key in ended {
            self.entries.remove(&key);
            self.changed.push(key);
        }
        let ends = self.entries.values().filter_map(|(_, entry)| entry.until_s);
        self.next_end_s = ends.min().unwrap_or(u64::MAX);
    }

    /// The entries after a key, in order.
    pub(super) fn after(
        &self,
        key: Option<&EntryKey>,
    ) -> impl Iterator<Item = (&EntryKey, &RulingEntry)> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.entries.range((from, Bound::Unbounded));
        rest.map(|(key, (_, entry))| (key, entry))
    }

    /// Returns a copy of `before` with the changes since the last call, and the effects of the new
    /// bans. Returns `None` if nothing has changed.
    pub(super) fn make_lists(&mut self, before: &RulingLists) -> Option<(RulingLists, NewBans)> {
        if self.changed.is_empty() {
            return None;
        }
        let (mut lists, mut new) = (before.clone(), NewBans::default());
        let changed = std::mem::take(&mut self.changed);
        for key in &changed {
            let (ruling, subject) = key;
            let entry = self.entries.get(key).map(|(_, entry)| entry);
            lists.put((*ruling, subject), entry);
            // Without its allow, an event is hidden again if its id or its author is banned.
            if let (None, Ruling::Allow, RulingSubject::Id(id)) = (entry, ruling, subject) {
                new.ids.push(*id);
            }
            if entry.is_some() && *ruling == Ruling::Ban {
                use RulingSubject::{Addresses, Id, Key};
                new.concern_clients |= matches!(subject, Key(_) | Addresses(_));
                match subject {
                    Key(key) => new.keys.push(*key),
                    Id(id) => new.ids.push(*id),
                    _ => {}
                }
            }
        }
        for ruling in Ruling::ALL {
            let words = changed.iter().filter_map(|key| match key {
                (of, RulingSubject::Word(word)) if *of == ruling => {
                    Some((word.as_str(), self.entries.get(key).map(|(_, entry)| entry)))
                }
                _ => None,
            });
            if let Err(error) = lists.put_words(ruling, words) {
                // Not reached: the number of entries bounds the size of the automaton.
                tracing::error!(%error, "the words of the bans could not be put in force");
            }
        }
        Some((lists, new))
    }
}
