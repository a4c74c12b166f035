//! An index of the filters of subscriptions. Each filter is indexed under the first of these fields
//! that the filter has: ids, authors, a whole word of a search, the label with the fewest values, a
//! word prefix, kinds. All filters without these fields share one list. Filters under the same
//! value are indexed further by their times and kinds ([`super::list`]), so that a new record is
//! compared with few filters that it does not match. The newest subscriptions are not in this
//! index, but in [`super::newest`].

use std::collections::hash_map::Entry;
use std::collections::{HashMap as StdHashMap, HashSet};
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use hark_codec::record::{Id, Key, Record};
use hark_words::NeededWord;

use super::list::{ListedQuery, QueryList};
use super::newest::NewestQueries;
use super::subscription::{IndexProgress, Subscription};
use crate::query::{ComparedRecord, LabelSet, Query, TextSource};

/// A map with a fast hash, because subscriptions change the maps often. A subscription to the notes
/// of hundreds of authors adds hundreds of entries, and later removes them again. The seed of the
/// hash is secret, so clients cannot cause collisions.
type HashMap<K, V> = StdHashMap<K, V, foldhash::quality::RandomState>;

#[derive(Default)]
pub(super) struct SubscriptionIndex {
    /// Subscriptions that are in no list yet.
    pub(super) newest: NewestQueries,
    ids: HashMap<Id, QueryList>,
    authors: HashMap<Key, QueryList>,
    labels: HashMap<u8, HashMap<Box<[u8]>, QueryList>>,
    words: HashMap<Box<str>, QueryList>,
    /// Filters that are indexed under a word prefix.
    beginnings: HashMap<Box<str>, QueryList>,
    kinds: HashMap<u32, QueryList>,
    /// Filters without an indexed field.
    all: QueryList,
    /// The source of the records' texts. Set by the first filter that searches for words.
    texts: Option<Arc<dyn TextSource>>,
}

/// The field under which a query is indexed.
enum IndexField<'a> {
    Ids(&'a [Id]),
    Authors(&'a [Key]),
    Label(&'a LabelSet),
    Word(&'a NeededWord),
    Kinds(&'a [u32]),
    All,
}

impl<'a> IndexField<'a> {
    /// Returns the field of a query. `None` if the query can match no record.
    fn of(query: &'a Query) -> Option<Self> {
        if query.is_void() {
            return None;
        }
        // The first needed word is the longest whole word; if there is no whole word, it is the
        // longest prefix.
        let word = query.words.as_ref().and_then(|words| words.needed().first());
        Some(if let Some(ids) = &query.ids {
            Self::Ids(ids)
        } else if let Some(authors) = &query.authors {
            Self::Authors(authors)
        } else if let Some(word) = word.filter(|word| !word.is_prefix) {
            Self::Word(word)
        } else if let Some(set) = query.labels.iter().min_by_key(|set| set.values.len()) {
            Self::Label(set)
        } else if let Some(word) = word {
            Self::Word(word)
        } else if let Some(kinds) = &query.kinds {
            Self::Kinds(kinds)
        } else {
            Self::All
        })
    }

    /// Returns the number of lists that the query belongs to.
    fn len(&self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Authors(authors) => authors.len(),
            Self::Label(set) => set.values.len(),
            Self::Kinds(kinds) => kinds.len(),
            Self::Word(_) | Self::All => 1,
        }
    }
}

/// Returns the number of lists that these queries belong to in total.
pub(super) fn lists(queries: &[Query]) -> usize {
    queries.iter().filter_map(IndexField::of).map(|field| field.len()).sum()
}

impl SubscriptionIndex {
    /// Inserts a subscription into its lists, at most `lists` of them in this call. Returns true
    /// once all its lists contain the subscription.
    pub(super) fn insert(
        &mut self,
        subscription: &Arc<Subscription>,
        progress: &mut IndexProgress,
        lists: usize,
    ) -> bool {
        self.change_lists(subscription, progress, lists, &mut |list, filter| {
            list.insert(filter.clone());
        })
    }

    /// Removes a subscription from its lists, at most `lists` of them in this call. Returns true
    /// once no list contains the subscription.
    pub(super) fn remove(
        &mut self,
        subscription: &Arc<Subscription>,
        progress: &mut IndexProgress,
        lists: usize,
    ) -> bool {
        self.change_lists(subscription, progress, lists, &mut |list, filter| list.remove(filter))
    }

    fn change_lists(
        &mut self,
        subscription: &Arc<Subscription>,
        progress: &mut IndexProgress,
        mut lists: usize,
        change: &mut dyn FnMut(&mut QueryList, &ListedQuery),
    ) -> bool {
        while let Some(query) = subscription.queries.get(progress.query) {
            if let Some(words) = &query.words {
                self.texts = Some(Arc::clone(words.texts()));
            }
            if let Some(field) = IndexField::of(query) {
                let end = field.len().min(progress.value + lists);
                lists -= end - progress.value;
                let subscription = Arc::clone(subscription);
                let filter = ListedQuery { subscription, query: progress.query as u32 };
                let mut change = |list: &mut QueryList| change(list, &filter);
                self.visit(&field, progress.value..end, &mut change);
                progress.value = end;
                if end < field.len() {
                    return false;
                }
            }
            *progress = IndexProgress { query: progress.query + 1, value: 0 };
        }
        true
    }

    /// Calls `change` for the lists of some values of `field`. Then removes those of the lists that
    /// are empty.
    fn visit(
        &mut self,
        field: &IndexField<'_>,
        some: Range<usize>,
        change: &mut dyn FnMut(&mut QueryList),
    ) {
        match field {
            IndexField::Ids(ids) => each(&mut self.ids, ids[some].iter().copied(), change),
            IndexField::Authors(authors) => {
                each(&mut self.authors, authors[some].iter().copied(), change);
            }
            IndexField::Label(set) => {
                let named = self.labels.entry(set.name).or_default();
                each(named, set.values[some].iter().cloned(), change);
                if named.is_empty() {
                    self.labels.remove(&set.name);
                }
            }
            IndexField::Word(word) => {
                let lists = if word.is_prefix { &mut self.beginnings } else { &mut self.words };
                each(lists, some.map(|_| word.word.clone()), change);
            }
            IndexField::Kinds(kinds) => each(&mut self.kinds, kinds[some].iter().copied(), change),
            IndexField::All if some.is_empty() => {}
            IndexField::All => change(&mut self.all),
        }
    }

    /// Appends the subscriptions that `record` matches; a subscription may be appended more than
    /// once. Returns how often the record was compared with a filter. A record with many labels is
    /// compared with each filter only once, even if several of its labels lead to the filter.
    pub(super) fn find(&self, record: &Record<'_>, found: &mut Vec<Arc<Subscription>>) -> usize {
        let (time, kind) = (record.time(), record.kind());
        let mut comparisons = 0;
        let compared = ComparedRecord::new(*record);
        let many_labels = compared.many_labels();
        let mut done = many_labels.map(|_| HashSet::<_, foldhash::quality::RandomState>::default());
        let mut look = |filter: &ListedQuery| {
            let number = filter.subscription.number;
            if found.last().is_some_and(|last| last.number == number)
                || done.as_mut().is_some_and(|done| !done.insert(filter.number()))
            {
                return;
            }
            comparisons += 1;
            let is_match = filter.query().is_some_and(|query| {
                // A filter in [`super::newest`] may ask for words although this kind of record has
                // no texts.
                let asked = query.words.as_ref();
                asked.is_none_or(|asked| asked.texts().has_texts(kind)) && compared.matches(query)
            });
            if is_match {
                found.push(Arc::clone(&filter.subscription));
            }
        };
        self.newest.find(record, &mut look);
        let mut add = |list: Option<&QueryList>| {
            if let Some(list) = list {
                list.find(time, kind, &mut look);
            }
        };
        add(self.ids.get(record.id()));
        add(record.author().and_then(|author| self.authors.get(author)));
        if !self.labels.is_empty() {
            let mut look_up = |(name, value): (u8, &[u8])| {
                add(self.labels.get(&name).and_then(|named| named.get(value)));
            };
            match many_labels {
                Some(labels) => labels.iter().copied().for_each(&mut look_up),
                None => record.labels().for_each(&mut look_up),
            }
        }
        let are_words_asked = !(self.words.is_empty() && self.beginnings.is_empty());
        if let Some(texts) = self.texts.as_ref()
            && are_words_asked
            && texts.has_texts(kind)
        {
            let mut before = "";
            for word in compared.words.get(record, &**texts).distinct() {
                add(self.words.get(word));
                if !self.beginnings.is_empty() {
                    // The prefixes that this word shares with the previous word have already been
                    // looked up.
                    let shared = word.bytes().zip(before.bytes()).take_while(|(a, b)| a == b);
                    let shared = shared.count();
                    let ends = word.char_indices().map(|(at, c)| at + c.len_utf8());
                    for end in ends.filter(|&end| end > shared) {
                        add(self.beginnings.get(&word[..end]));
                    }
                }
                before = word;
            }
        }
        add(self.kinds.get(&kind));
        add(Some(&self.all));
        comparisons
    }
}

fn each<K: Hash + Eq>(
    lists: &mut HashMap<K, QueryList>,
    keys: impl Iterator<Item = K>,
    change: &mut dyn FnMut(&mut QueryList),
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
                let mut list = QueryList::default();
                change(&mut list);
                if !list.is_empty() {
                    entry.insert(list);
                }
            }
        }
    }
}

#[cfg(test)]
impl SubscriptionIndex {
    /// Returns the number of authors under whom filters are listed.
    pub(super) fn authors_len(&self) -> usize {
        self.authors.len()
    }

    /// Returns whether the index has no entries.
    pub(super) fn is_bare(&self) -> bool {
        self.newest.len() == 0
            && self.ids.is_empty()
            && self.authors.is_empty()
            && self.labels.is_empty()
            && self.words.is_empty()
            && self.beginnings.is_empty()
            && self.kinds.is_empty()
            && self.all.is_empty()
    }
}
