//! Skips the rows of excluded kinds in a walk over all rows.
//!
//! Skipped rows do not count as visited, so a query is not charged for rows that it excludes. A
//! long run of such rows is skipped at once ([`Source::alike`]).

use super::source::Source;
use super::stream::{PostingSlice, PostingStream};
use super::{Order, Query};

/// The posting lists of the excluded kinds.
pub(super) struct ExcludedLists<S: Source>(Vec<ExcludedList<S>>);

struct ExcludedList<S: Source> {
    stream: PostingStream<S::PostingList>,
    /// The key of the row that comes next in the list.
    next: Option<S::Key>,
}

impl<S: Source> ExcludedList<S> {
    fn step(&mut self, source: &S, query: &Query) {
        let index = self.stream.step(source, query);
        self.next = index.map(|index| source.key(&self.stream.list, index, query.order));
    }
}

impl<S: Source> ExcludedLists<S> {
    /// Returns an empty set of lists.
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    pub(super) fn new(source: &S, cuts: Vec<PostingSlice<S::PostingList>>, query: &Query) -> Self {
        let begin = |cut| {
            let mut list = ExcludedList { stream: PostingStream::new(cut), next: None };
            list.step(source, query);
            list
        };
        Self(cuts.into_iter().map(begin).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether to skip the row of `key`, which was popped from `every`. If so, this method
    /// may also advance `every` past the following rows that must be skipped, too.
    pub(super) fn skip(
        &mut self,
        source: &S,
        key: S::Key,
        every: Option<&mut PostingStream<S::PostingList>>,
        query: &Query,
    ) -> bool {
        for list in &mut self.0 {
            while list.next.is_some_and(|next| next < key) {
                list.step(source, query);
            }
            if list.next != Some(key) {
                continue;
            }
            if let Some(every) = every.filter(|_| query.order == Order::NewestFirst) {
                let part = |stream: &PostingStream<S::PostingList>| stream.left.clone();
                let (all, some) = (part(every), part(&list.stream));
                let alike = source.alike((&every.list, all), (&list.stream.list, some));
                every.left.start += alike;
                list.stream.left.start += alike;
            }
            list.step(source, query);
            return true;
        }
        false
    }
}
