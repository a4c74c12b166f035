//! A query and the values that its statements need.

use std::cmp::Ordering;
use std::sync::Arc;

use hark_archive::query::UngatedQuery;
use hark_archive::query::plan::Set;
use hark_archive::query::ranked::RankBound;
use hark_archive::{Order, Query};

use crate::properties::ShelfProperties;
use crate::time::{IndexKey, to_db};

/// Maximum number of values of a label condition that the database checks in addition to the
/// condition that drives the search. The check reduces the number of records that the database
/// sends.
const CUT_VALUES_MAX: usize = 64;

/// A query, and the values that are computed from it before it is run.
pub(crate) struct SqlQuery {
    pub(crate) query: Query,
    /// For each label condition, the terms of its values; `None` if no index has these terms.
    pub(crate) terms: Vec<Option<Vec<i64>>>,
    /// For each label condition, whether a large part of all records meets the condition.
    pub(crate) common: Vec<bool>,
    /// For each label condition, whether the table of listed values has its values.
    pub(crate) listed: Vec<bool>,
    /// Records with a higher sequence number are not visible to the search.
    pub(crate) seq: i64,
    /// The era of the cached records that the search may use; see [`recent`](super::recent). `None`
    /// if the search must depend on the database alone, as in a commit.
    pub(crate) era: Option<u64>,
    /// Whether shards may be read without the coordinator. False in a commit, which must see what
    /// its own transaction has changed.
    pub(crate) on_shards: bool,
    /// The only set that may drive the search; `None` leaves the choice to the planner.
    pub(crate) driver: Option<Set>,
    /// The query without its words, which are the most expensive to compare.
    pub(crate) plain: Query,
    /// The bound of the ranked search to which this search belongs, if any. A ranked search
    /// compares words itself.
    pub(crate) rank: Option<Arc<RankBound>>,
    /// The number of best records that a ranked search wants.
    pub(crate) best: usize,
    /// Words that are compared before a record is read, if words are indexed but no word drives the
    /// search.
    pub(crate) probes: Vec<Vec<u8>>,
}

impl SqlQuery {
    /// Returns queries without a gate (a condition that hides records from the reader). Together
    /// they replace `query`.
    pub(crate) fn opened(query: &Query, shelf: &ShelfProperties, seq: i64) -> Vec<Self> {
        let mut query = query.clone();
        query.normalise();
        let asked =
            |UngatedQuery { query, driver }| Self { driver, ..Self::new(&query, shelf, seq) };
        query.opened().into_iter().map(asked).collect()
    }

    fn new(query: &Query, shelf: &ShelfProperties, seq: i64) -> Self {
        let mut query = query.clone();
        if shelf.one_kind {
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
                .map(|value| shelf.terms.label(set.name, value, author.as_ref()))
                .collect::<Option<Vec<i64>>>()
        };
        let terms = query.labels.iter().map(of).collect();
        let common = query.labels.iter().map(|set| shelf.common_labels.contains(&set.name));
        let common = common.collect();
        let listed = query.labels.iter().map(|set| shelf.listed_labels.contains(&set.name));
        let listed = listed.collect();
        let plain = Query { words: None, ..query.clone() };
        let (era, driver, rank, best, probes) = (None, None, None, 0, Vec::new());
        Self {
            query,
            terms,
            common,
            listed,
            seq,
            era,
            on_shards: false,
            driver,
            plain,
            rank,
            best,
            probes,
        }
    }

    /// Returns the first kind and the last kind of each range between excluded kinds; `None` if the
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
    pub(crate) fn not_kinds(&self) -> Vec<i32> {
        self.query.not_kinds.iter().map(|kind| kind.cast_signed()).collect()
    }

    /// Returns the label condition, other than `driver`, that the database can compare at the
    /// lowest cost.
    pub(crate) fn cut(&self, driver: Option<Set>) -> Option<&Vec<i64>> {
        let others =
            self.terms.iter().enumerate().filter(|(at, _)| driver != Some(Set::Label(*at)));
        let short = others.filter_map(|(_, terms)| terms.as_ref());
        short.filter(|terms| terms.len() <= CUT_VALUES_MAX).min_by_key(|terms| terms.len())
    }

    /// Returns the query's kinds in the database's type.
    pub(crate) fn kinds(&self) -> Option<Vec<i32>> {
        let kinds = self.query.kinds.as_ref()?;
        Some(kinds.iter().map(|kind| kind.cast_signed()).collect())
    }

    /// Returns the query's cursor in the database's type.
    pub(crate) fn after(&self) -> Option<IndexKey> {
        self.query.after.map(|at| IndexKey { time: to_db(at.time), id: at.id })
    }

    /// Returns the query's times from the cursor on; both bounds are inclusive.
    pub(crate) fn times(&self) -> (i64, i64) {
        let (from, to) = (to_db(self.query.from), to_db(self.query.to));
        match (self.query.order, self.after()) {
            (_, None) => (from, to),
            (Order::NewestFirst, Some(after)) => (from, to.min(after.time)),
            (Order::OldestFirst, Some(after)) => (from.max(after.time), to),
        }
    }

    /// Whether a key is within the query's times and behind its cursor.
    pub(crate) fn lies_ahead(&self, key: &IndexKey) -> bool {
        to_db(self.query.from) <= key.time
            && key.time <= to_db(self.query.to)
            && self.after().is_none_or(|after| compare(self.query.order, &after, key).is_lt())
    }
}

/// Compares the positions of `key` and `other` in `order`.
pub(crate) fn compare(order: Order, key: &IndexKey, other: &IndexKey) -> Ordering {
    let times = match order {
        Order::NewestFirst => other.time.cmp(&key.time),
        Order::OldestFirst => key.time.cmp(&other.time),
    };
    times.then_with(|| key.id.cmp(&other.id))
}
