//! A query with a gate, split into queries without a gate.
//!
//! Each visited row takes time and counts towards the budget. So if hidden records were visited,
//! the cost of the answer would reveal that they exist. Stores therefore split a query with a gate
//! into up to three queries without a gate ([`Query::opened`]). Each of these queries walks posting
//! lists without hidden records, and only the lengths of such lists affect its plan.

use hark_codec::record::Key;

use super::set::Set;
use super::{Gate, LabelSet, Query};

/// A query that visits no hidden records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UngatedQuery {
    /// The query, normalised. It has a gate only if it names ids.
    pub query: Query,
    /// The only set that may drive the query. It is given if the lists of other conditions may
    /// contain hidden records.
    pub driver: Option<Set>,
}

impl Query {
    /// Splits the query into queries that together find the same records, each record by exactly
    /// one query. The query must be normalised, and the results are normalised.
    ///
    /// A query that names ids is returned unchanged. The cost of looking up an id does not depend
    /// on the result, so a client that knows an id learns nothing from the cost.
    pub fn opened(mut self) -> Vec<UngatedQuery> {
        let alone = |query| vec![UngatedQuery { query, driver: None }];
        if self.ids.is_some() {
            return alone(self);
        }
        let Some(gate) = self.gate.take() else { return alone(self) };
        let asked = |kind: &&u32| {
            self.kinds.as_ref().is_none_or(|kinds| kinds.binary_search(kind).is_ok())
                && !self.not_kinds.contains(kind)
        };
        let blind = gate.is_to_strangers();
        let mut hidden: Vec<u32> = gate.kinds.iter().filter(asked).copied().collect();
        hidden.retain(|_| !blind);
        let mut all = Vec::new();
        if !hidden.is_empty() {
            let query = Self { kinds: Some(hidden), not_kinds: Vec::new(), ..self.clone() };
            query.concerning(&gate, &mut all);
        }
        self.not_kinds.extend(&gate.kinds);
        self.normalise();
        if !self.is_void() || all.is_empty() {
            all.push(UngatedQuery { query: self, driver: None });
        }
        all
    }

    /// Appends the queries for those hidden records that the gate's readers wrote or received. A
    /// list of such records drives each query, and the readers may see all records of this list.
    fn concerning(self, gate: &Gate, all: &mut Vec<UngatedQuery>) {
        let is_reader = |key: &Key| gate.readers.binary_search(key).is_ok();
        if self.authors.as_ref().is_some_and(|authors| authors.iter().all(is_reader)) {
            return all.push(UngatedQuery { query: self, driver: Some(Set::Authors) });
        }
        let is_addressed = |set: &LabelSet| {
            let own = |value| gate.addressed.values.binary_search(value).is_ok();
            set.name == gate.addressed.name && set.values.iter().all(own)
        };
        if let Some(at) = self.labels.iter().position(is_addressed) {
            return all.push(UngatedQuery { query: self, driver: Some(Set::Label(at)) });
        }
        let (own, others): (Vec<Key>, Option<Vec<Key>>) = match &self.authors {
            None => (gate.readers.clone(), None),
            Some(authors) => {
                let (own, others) = authors.iter().partition::<Vec<Key>, _>(|key| is_reader(key));
                (own, Some(others))
            }
        };
        if !own.is_empty() {
            let query = Self { authors: Some(own), ..self.clone() };
            all.push(UngatedQuery { query, driver: Some(Set::Authors) });
        }
        if !gate.addressed.values.is_empty() {
            // The query above already finds records that one reader wrote to another reader.
            let not_authors = if others.is_some() { &[][..] } else { &gate.readers };
            let mut query = Self { authors: others, ..self };
            query.not_authors.extend_from_slice(not_authors);
            query.labels.push(gate.addressed.clone());
            query.normalise();
            let at = query.labels.len() - 1;
            all.push(UngatedQuery { query, driver: Some(Set::Label(at)) });
        }
    }
}
