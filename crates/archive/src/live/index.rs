//! Subscriptions by the one field that each of their filters is found under: ids, else authors,
//! else the label with the fewest values, else kinds, else nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use hark_codec::record::{Id, Key, Record};

use super::Subscription;
use crate::query::{LabelSet, Query};

/// Ascending by number, each once.
type List = Vec<Arc<Subscription>>;

#[derive(Default)]
pub(super) struct Index {
    ids: HashMap<Id, List>,
    authors: HashMap<Key, List>,
    labels: HashMap<u8, HashMap<Box<[u8]>, List>>,
    kinds: HashMap<u32, List>,
    all: List,
}

/// The field that a query is found under.
enum Field<'a> {
    Ids(&'a [Id]),
    Authors(&'a [Key]),
    Label(&'a LabelSet),
    Kinds(&'a [u32]),
    All,
}

impl<'a> Field<'a> {
    /// None if nothing can match.
    fn of(query: &'a Query) -> Option<Self> {
        if query.is_void() {
            return None;
        }
        Some(if let Some(ids) = &query.ids {
            Self::Ids(ids)
        } else if let Some(authors) = &query.authors {
            Self::Authors(authors)
        } else if let Some(set) = query.labels.iter().min_by_key(|set| set.values.len()) {
            Self::Label(set)
        } else if let Some(kinds) = &query.kinds {
            Self::Kinds(kinds)
        } else {
            Self::All
        })
    }

    /// How many lists it belongs to.
    fn len(&self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Authors(authors) => authors.len(),
            Self::Label(set) => set.values.len(),
            Self::Kinds(kinds) => kinds.len(),
            Self::All => 1,
        }
    }
}

/// How far a subscription has been put into the lists that it belongs to, or taken out of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    query: usize,
    value: usize,
}

impl Index {
    /// Puts a subscription into so many more lists at most. True once it is in all of them.
    pub(super) fn insert(
        &mut self,
        subscription: &Arc<Subscription>,
        progress: &mut Progress,
        lists: usize,
    ) -> bool {
        self.go_on(subscription, progress, lists, &mut |list| {
            let number = subscription.number;
            // It is the youngest, unless another came while it was put in bit by bit.
            if list.last().is_none_or(|last| last.number < number) {
                list.reserve_exact(usize::from(list.is_empty()));
                list.push(Arc::clone(subscription));
            } else if let Err(at) = list.binary_search_by_key(&number, |s| s.number) {
                list.insert(at, Arc::clone(subscription));
            }
        })
    }

    /// Takes a subscription out of so many more lists at most. True once it is in none.
    pub(super) fn remove(
        &mut self,
        subscription: &Arc<Subscription>,
        progress: &mut Progress,
        lists: usize,
    ) -> bool {
        self.go_on(subscription, progress, lists, &mut |list| {
            if let Ok(at) = list.binary_search_by_key(&subscription.number, |s| s.number) {
                list.remove(at);
            }
        })
    }

    fn go_on(
        &mut self,
        subscription: &Subscription,
        progress: &mut Progress,
        mut lists: usize,
        change: &mut dyn FnMut(&mut List),
    ) -> bool {
        while let Some(query) = subscription.queries.get(progress.query) {
            if let Some(field) = Field::of(query) {
                let end = field.len().min(progress.value + lists);
                lists -= end - progress.value;
                self.visit(&field, progress.value..end, change);
                progress.value = end;
                if end < field.len() {
                    return false;
                }
            }
            *progress = Progress { query: progress.query + 1, value: 0 };
        }
        true
    }

    /// Hands over the lists of some values of `field`. Those that are empty afterwards go.
    fn visit(&mut self, field: &Field<'_>, some: Range<usize>, change: &mut dyn FnMut(&mut List)) {
        match field {
            Field::Ids(ids) => each(&mut self.ids, ids[some].iter().copied(), change),
            Field::Authors(authors) => {
                each(&mut self.authors, authors[some].iter().copied(), change);
            }
            Field::Label(set) => {
                let named = self.labels.entry(set.name).or_default();
                each(named, set.values[some].iter().cloned(), change);
                if named.is_empty() {
                    self.labels.remove(&set.name);
                }
            }
            Field::Kinds(kinds) => each(&mut self.kinds, kinds[some].iter().copied(), change),
            Field::All if some.is_empty() => {}
            Field::All => change(&mut self.all),
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
            Entry::Occupied(mut entry) => {
                change(entry.get_mut());
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
            Entry::Vacant(entry) => {
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
