//! A query that is prepared once and then run on all parts of a shelf.

use std::ops::Deref;
use std::sync::Arc;

use hark_codec::record::{Id, Key};

use super::plan::conditions;
use super::ranked::RankBound;
use super::set::Set;
use super::{Query, UngatedQuery};

/// Maps ids, authors and labels to the numbers that the sources of a shelf use.
pub trait TermMap {
    /// Returns the hash of an id.
    fn id(&self, id: &Id) -> u64;
    /// Returns the term of an author.
    fn author(&self, author: &Key) -> u64;
    /// Returns the term of a label.
    fn label(&self, name: u8, value: &[u8]) -> u64;
}

/// A normalised query, with values derived from the query.
#[derive(Clone, Debug)]
pub struct PreparedQuery {
    query: Query,
    /// Hashes of the ids.
    pub id_hashes: Vec<u64>,
    /// Terms of the authors.
    pub authors: Vec<u64>,
    /// Terms of the values of each label condition.
    pub labels: Vec<Vec<u64>>,
    /// For a ranked query, the score that a further record must reach to be among the best.
    pub rank: Option<Arc<RankBound>>,
    /// The conditions that an index can evaluate, each with the number of terms to look up. The
    /// planner considers the conditions in this order.
    pub conditions: Vec<(Set, u64)>,
    /// The only set that may drive the query, if the caller has chosen a driver. With `None`, the
    /// planner chooses the driver.
    pub driver: Option<Set>,
}

impl PreparedQuery {
    /// Prepares a query.
    pub fn new(mut query: Query, terms: &impl TermMap) -> Self {
        query.normalise();
        Self::with_labels(query, Vec::new(), terms)
    }

    /// Prepares a normalised query. `labels` has the terms of those first label conditions whose
    /// terms the caller already knows.
    fn with_labels(query: Query, mut labels: Vec<Vec<u64>>, terms: &impl TermMap) -> Self {
        let id_hashes = query.ids.iter().flatten().map(|id| terms.id(id)).collect();
        let authors = query.authors.iter().flatten().map(|author| terms.author(author)).collect();
        let known = labels.len();
        labels.extend(query.labels.iter().skip(known).map(|set| {
            set.values.iter().map(|value| terms.label(set.name, value)).collect::<Vec<u64>>()
        }));
        let conditions = conditions(&query);
        let (rank, driver) = (None, None);
        Self { query, id_hashes, authors, labels, rank, conditions, driver }
    }

    /// Prepares a query that may have a gate. Returns one query, or several queries with disjoint
    /// matches ([`Query::opened`]).
    pub fn opened(mut query: Query, terms: &impl TermMap) -> Vec<Self> {
        query.normalise();
        let mut all: Vec<Self> = Vec::new();
        for UngatedQuery { query, driver } in query.opened() {
            // All queries begin with the label conditions of the original query, in the same order.
            // Some queries have one more label condition.
            let shared = all.first().map_or_else(Vec::new, |first| {
                let labels = first.query.labels.iter().zip(&query.labels);
                let same = labels.take_while(|(one, other)| one == other).count();
                first.labels[..same].to_vec()
            });
            all.push(Self { driver, ..Self::with_labels(query, shared, terms) });
        }
        all
    }

    /// Returns the same query, restricted to matches that rank above `rank`.
    #[must_use]
    pub fn with_rank(self, rank: &Arc<RankBound>) -> Self {
        Self { rank: Some(Arc::clone(rank)), ..self }
    }

    /// Returns the same query with another limit.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.query.limit = limit;
        self
    }
}

impl Deref for PreparedQuery {
    type Target = Query;

    fn deref(&self) -> &Query {
        &self.query
    }
}
