//! Subscriptions by the one field that each of their filters is found under: ids, else authors,
//! else the label with the fewest values, else kinds, else nothing.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use hark_codec::record::{Id, Key, Record};

use super::Subscription;
use crate::query::Query;

/// Ascending by number, each once.
type List = Vec<Arc<Subscription>>;

#[derive(Default)]
pub(super) struct Index {
    ids: HashMap<Id, List>,
    authors: HashMap<Key, List>,
    labels: HashMap<u8, HashMap<Box<[u8]>, List>>,
    kinds: HashMap<u32, List>,
    all: List,
    numbers: u64,
    len: usize,
}

impl Index {
    /// Numbers ascend, so that lists stay in order by themselves.
    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, subscription: &Arc<Subscription>) {
        self.len += 1;
        for query in &subscription.queries {
            self.visit(query, &mut |list| {
                if list.last().is_none_or(|last| last.number != subscription.number) {
                    list.push(Arc::clone(subscription));
                }
            });
        }
    }

    pub(super) fn remove(&mut self, subscription: &Arc<Subscription>) {
        self.len -= 1;
        for query in &subscription.queries {
            self.visit(query, &mut |list| {
                if let Ok(at) = list.binary_search_by_key(&subscription.number, |s| s.number) {
                    list.remove(at);
                }
            });
        }
    }

    /// Hands over every list that `query` belongs to. Lists that are empty afterwards go.
    fn visit(&mut self, query: &Query, change: &mut dyn FnMut(&mut List)) {
        if query.is_void() {
            return;
        }
        if let Some(ids) = &query.ids {
            each(&mut self.ids, ids.iter().copied(), change);
        } else if let Some(authors) = &query.authors {
            each(&mut self.authors, authors.iter().copied(), change);
        } else if let Some(set) = query.labels.iter().min_by_key(|set| set.values.len()) {
            let named = self.labels.entry(set.name).or_default();
            each(named, set.values.iter().cloned(), change);
            if named.is_empty() {
                self.labels.remove(&set.name);
            }
        } else if let Some(kinds) = &query.kinds {
            each(&mut self.kinds, kinds.iter().copied(), change);
        } else {
            change(&mut self.all);
        }
    }

    /// Adds whoever could be asking for `record`; some may come more than once.
    pub(super) fn find(&self, record: &Record<'_>, found: &mut List) {
        let mut add = |list: Option<&List>| found.extend(list.into_iter().flatten().cloned());
        add(self.ids.get(record.id()));
        add(record.author().and_then(|author| self.authors.get(author)));
        if !self.labels.is_empty() {
            for (name, value) in record.labels() {
                add(self.labels.get(&name).and_then(|named| named.get(value)));
            }
        }
        add(self.kinds.get(&record.kind()));
        add(Some(&self.all));
    }
}

fn each<K: Hash + Eq>(
    lists: &mut HashMap<K, List>,
    keys: impl Iterator<Item = K>,
    change: &mut dyn FnMut(&mut List),
) {
    for key in keys {
        match lists.entry(key) {
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                change(entry.get_mut());
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
            std::collections::hash_map::Entry::Vacant(entry) => {
                let mut list = List::new();
                change(&mut list);
                if !list.is_empty() {
                    entry.insert(list);
                }
            }
        }
    }
}

#[cfg(test)]
impl Index {
    /// Whether nothing is left behind.
    pub(super) fn is_bare(&self) -> bool {
        self.ids.is_empty()
            && self.authors.is_empty()
            && self.labels.is_empty()
            && self.kinds.is_empty()
            && self.all.is_empty()
    }
}
