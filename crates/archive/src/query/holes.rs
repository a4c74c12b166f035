//! Rows that a walk over all rows skips: those of excluded kinds.
//!
//! Skipped rows do not count as visited, so that no query is charged for rows that it excludes.
//! Where many of them follow each other, they are skipped all at once ([`Source::alike`]).

use super::Order;
use super::source::Source;
use super::stream::{Cut, Stream};

/// The posting lists of the excluded kinds.
pub(super) struct Holes<S: Source>(Vec<Hole<S>>);

struct Hole<S: Source> {
    stream: Stream<S::Run>,
    /// The key of the list's next row.
    next: Option<S::Key>,
}

impl<S: Source> Hole<S> {
    fn step(&mut self, source: &S, order: Order) {
        let index = self.stream.step(source, order);
        self.next = index.map(|index| source.key(&self.stream.run, index, order));
    }
}

impl<S: Source> Holes<S> {
    /// Makes holes that skip nothing.
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    pub(super) fn new(source: &S, cuts: Vec<Cut<S::Run>>, order: Order) -> Self {
        let begin = |cut| {
            let mut hole = Hole { stream: Stream::new(cut), next: None };
            hole.step(source, order);
            hole
        };
        Self(cuts.into_iter().map(begin).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the row of `key`, which was taken from `every`, is to be skipped. If so, may
    /// also advance `every` past the rows right after it that are to be skipped.
    pub(super) fn hold(
        &mut self,
        source: &S,
        key: S::Key,
        every: Option<&mut Stream<S::Run>>,
        order: Order,
    ) -> bool {
        for hole in &mut self.0 {
            while hole.next.is_some_and(|next| next < key) {
                hole.step(source, order);
            }
            if hole.next != Some(key) {
                continue;
            }
            if let Some(every) = every.filter(|_| order == Order::NewestFirst) {
                let part = |stream: &Stream<S::Run>| stream.left.clone();
                let (all, some) = (part(every), part(&hole.stream));
                let alike = source.alike((&every.run, all), (&hole.stream.run, some));
                every.left.start += alike;
                hole.stream.left.start += alike;
            }
            hole.step(source, order);
            return true;
        }
        false
    }
}
