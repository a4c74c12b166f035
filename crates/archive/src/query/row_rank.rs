//! An upper bound for the rank of a row. A ranked search uses the bound to skip rows.

use std::sync::Arc;

use hark_words::CLASS_MAX;

use super::ranked::RankBound;
use super::set::Set;

/// The best rank that a row can have. The class of each word of the query is known from the posting
/// lists in which the row was found. Each word of a phrase occurs at least as often as the phrase.
/// So the class of a phrase is at most the class of each of its words.
pub(super) struct RowRank {
    pub(super) bound: Arc<RankBound>,
    /// For each intersected set, and last for the driver: the index of the word or phrase whose
    /// class is known from the set's lists.
    pub(super) terms: Vec<Option<usize>>,
    classes: Vec<u8>,
}

impl RowRank {
    pub(super) fn new(bound: &Arc<RankBound>, sets: impl Iterator<Item = Set>) -> Self {
        let needed = bound.words().needed();
        let term = |set| match set {
            // The lists of a word prefix show no class.
            Set::Word(i) => needed.get(i).filter(|one| !one.is_prefix).map(|one| one.term),
            _ => None,
        };
        let classes = vec![CLASS_MAX; bound.words().term_count()];
        Self { bound: Arc::clone(bound), terms: sets.map(term).collect(), classes }
    }

    #[inline]
    pub(super) fn reset(&mut self) {
        self.classes.fill(CLASS_MAX);
    }

    /// Notes that the row was found in a list of the set; `of_row` is the class of the
    /// list.
    #[inline]
    pub(super) fn note(&mut self, set: usize, of_row: u32) {
        if let Some(class) =
            self.terms.get(set).copied().flatten().and_then(|t| self.classes.get_mut(t))
        {
            *class = (*class).min(of_row as u8);
        }
    }

    /// Returns whether a row of this time can still rank high enough.
    #[inline]
    pub(super) fn admits(&self, time: u64) -> bool {
        self.bound.admits(time, self.classes.iter().map(|&class| u32::from(class)).sum())
    }
}
