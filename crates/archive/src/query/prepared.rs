//! A question made ready once for all the parts of a shelf that it is asked of.

use std::ops::Deref;

use hark_codec::record::{Id, Key};

use super::plan::{Set, conditions};
use super::{Open, Query};

/// Gives authors and labels the numbers under which a shelf's sources know them.
pub trait Terms {
    /// An id's hash.
    fn id(&self, id: &Id) -> u64;
    /// An author's term.
    fn author(&self, author: &Key) -> u64;
    /// A label's term.
    fn label(&self, name: u8, value: &[u8]) -> u64;
}

/// A normalised query and what follows from it.
#[derive(Clone, Debug)]
pub struct Prepared {
    query: Query,
    /// Hashes of the ids.
    pub id_hashes: Vec<u64>,
    /// Terms of the authors.
    pub authors: Vec<u64>,
    /// Terms of the values of each label condition.
    pub labels: Vec<Vec<u64>>,
    /// What an index can answer and how many terms each has to look up, in the order in which they
    /// are worth a look.
    pub conditions: Vec<(Set, u64)>,
    /// What alone it may be driven by, if that is not left to the planner.
    pub driver: Option<Set>,
}

impl Prepared {
    /// Makes a query ready.
    pub fn new(mut query: Query, terms: &impl Terms) -> Self {
        query.normalise();
        Self::with_labels(query, Vec::new(), terms)
    }

    /// Makes a normal query ready of which the terms of the first `labels` are known.
    fn with_labels(query: Query, mut labels: Vec<Vec<u64>>, terms: &impl Terms) -> Self {
        let id_hashes = query.ids.iter().flatten().map(|id| terms.id(id)).collect();
        let authors = query.authors.iter().flatten().map(|author| terms.author(author)).collect();
        let known = labels.len();
        labels.extend(query.labels.iter().skip(known).map(|set| {
            set.values.iter().map(|value| terms.label(set.name, value)).collect::<Vec<u64>>()
        }));
        let conditions = conditions(&query);
        Self { query, id_hashes, authors, labels, conditions, driver: None }
    }

    /// Makes a query ready that may have a gate: it becomes one, or several of which none finds what
    /// another does, or none where nothing can be seen.
    pub fn opened(mut query: Query, terms: &impl Terms) -> Vec<Self> {
        query.normalise();
        let mut all: Vec<Self> = Vec::new();
        for Open { query, driver } in query.opened() {
            // All have the labels of the query, in their order, and some one more.
            let shared = all.first().map_or_else(Vec::new, |first| {
                let labels = first.query.labels.iter().zip(&query.labels);
                let same = labels.take_while(|(one, other)| one == other).count();
                first.labels[..same].to_vec()
            });
            all.push(Self { driver, ..Self::with_labels(query, shared, terms) });
        }
        all
    }

    /// The same with another limit.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.query.limit = limit;
        self
    }
}

impl Deref for Prepared {
    type Target = Query;

    fn deref(&self) -> &Query {
        &self.query
    }
}
