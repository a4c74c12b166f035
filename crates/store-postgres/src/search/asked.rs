//! A query and the values that its statements need.

use std::sync::Arc;

use hark_archive::Query;
use hark_archive::query::UngatedQuery;
use hark_archive::query::plan::Set;
use hark_archive::query::ranked::RankBound;

use crate::state::ShelfProperties;
use crate::terms::DatabaseTermHasher;

/// Maximum number of values of a label condition that the database also compares, to send only
/// matching records.
const CUT_VALUES_MAX: usize = 64;

/// A query and the values that are derived from it before it is run.
pub(crate) struct SqlQuery {
    pub(crate) query: Query,
    /// The terms of each label condition's values. `None` if no index has these terms.
    pub(crate) terms: Vec<Option<Vec<i64>>>,
    /// For each label condition, whether a large part of all records meets the condition.
    pub(crate) common: Vec<bool>,
    /// For each label condition, whether the numbers of records of its values are kept.
    pub(crate) listed: Vec<bool>,
    /// Records with a higher sequence number are invisible to the search.
    pub(crate) seq: i64,
    /// The era of the cached records that the search may use; see [`recent`](super::recent). `None`
    /// if the search depends on the database alone, as a commit's does.
    pub(crate) era: Option<u64>,
    /// The only set that may drive the search. `None` leaves the choice to the planner.
    pub(crate) driver: Option<Set>,
    /// The query without its words, which are the most expensive part to compare.
    pub(super) plain: Query,
    /// The bound of the ranked search that contains this search. The ranked search compares words
    /// itself.
    pub(crate) rank: Option<Arc<RankBound>>,
    /// The number of best records that a ranked search wants.
    pub(crate) best: usize,
    /// Words that a record must have to be read. Used if words are indexed but no word drives the
    /// search.
    pub(super) probes: Vec<Vec<u8>>,
}

impl SqlQuery {
    /// Returns the queries without a gate that replace a query.
    pub(crate) fn opened(
        query: &Query,
        terms: &DatabaseTermHasher,
        nature: ShelfProperties,
        seq: i64,
    ) -> Vec<Self> {
        let mut query = query.clone();
        query.normalise();
        let asked = |UngatedQuery { query, driver }| Self {
            driver,
            ..Self::new(&query, terms, nature, seq)
        };
        query.opened().into_iter().map(asked).collect()
    }

    pub(crate) fn new(
        query: &Query,
        terms: &DatabaseTermHasher,
        nature: ShelfProperties,
        seq: i64,
    ) -> Self {
        let mut query = query.clone();
        if nature.one_kind {
            query.kinds.get_or_insert_with(|| vec![0]);
        }
        query.normalise();
        let author = match query.authors.as_deref() {
            Some([one]) => Some(*one),
            _ => None,
        };
        let of = |set: &hark_archive::LabelSet| {
            let values = set.values.iter();
            values
                .map(|value| terms.label(set.name, value, author.as_ref()))
                .collect::<Option<Vec<i64>>>()
        };
        let terms = query.labels.iter().map(of).collect();
        let common = query.labels.iter().map(|set| nature.common_labels.contains(&set.name));
        let common = common.collect();
        let listed = query.labels.iter().map(|set| nature.listed_labels.contains(&set.name));
        let listed = listed.collect();
        let plain = Query { words: None, ..query.clone() };
        let (era, driver, rank, best, probes) = (None, None, None, 0, Vec::new());
        Self { query, terms, common, listed, seq, era, driver, plain, rank, best, probes }
    }

    /// Returns the first and the last kind of each range between the excluded kinds. `None` if the
    /// query excludes no kind.
    pub(crate) fn gaps(&self) -> Option<(Vec<i32>, Vec<i32>)> {
        if self.query.not_kinds.is_empty() {
            return None;
        }
        let mut not: Vec<i32> =
            self.query.not_kinds.iter().map(|kind| kind.cast_signed()).collect();
        not.sort_unstable();
        let (mut firsts, mut lasts, mut next) = (Vec::new(), Vec::new(), Some(i32::MIN));
        for kind in not {
            if let Some(first) = next.filter(|&first| first < kind) {
                firsts.push(first);
                lasts.push(kind - 1);
            }
            next = kind.checked_add(1);
        }
        if let Some(first) = next {
            firsts.push(first);
            lasts.push(i32::MAX);
        }
        Some((firsts, lasts))
    }

    /// Returns the excluded kinds in the database's type.
    pub(super) fn not_kinds(&self) -> Vec<i32> {
        self.query.not_kinds.iter().map(|kind| kind.cast_signed()).collect()
    }

    /// Returns the label condition, other than `driver`, that is cheapest for the database to
    /// compare.
    pub(super) fn cut(&self, driver: Option<Set>) -> Option<&Vec<i64>> {
        let others =
            self.terms.iter().enumerate().filter(|(at, _)| driver != Some(Set::Label(*at)));
        let short = others.filter_map(|(_, terms)| terms.as_ref());
        short.filter(|terms| terms.len() <= CUT_VALUES_MAX).min_by_key(|terms| terms.len())
    }
}
