//! What a reader may not see, as a part of the question.
//!
//! A gate is applied before the limit counts, and the same way for pages, counts, ids and live messages.
//! What it hides must not show in what an answer costs either: rows that are visited are charged, and take
//! time. So stores ask a question with a gate as up to three without ([`Query::opened`]), of which each
//! finds its records in lists that have nothing hidden in them, and is planned from the lengths of such
//! lists alone.

use hark_codec::record::{Key, Record};

use super::plan::Set;
use super::{LabelSet, Query, carries};

/// Records that only some readers may see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// The kinds that are kept back, ascending.
    pub kinds: Vec<u32>,
    /// Who is asking: these authors see what they wrote, ascending.
    pub readers: Vec<Key>,
    /// ... and what carries one of these labels (the readers as recipients), ascending.
    pub addressed: LabelSet,
}

impl Gate {
    /// Whether the readers may see `record`.
    pub fn lets_see(&self, record: &Record<'_>) -> bool {
        self.kinds.binary_search(&record.kind()).is_err()
            || record.author().is_some_and(|author| self.readers.binary_search(author).is_ok())
            || carries(record, &self.addressed)
    }
}

/// A question that finds nothing hidden on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Normal, and without a gate unless it names ids.
    pub query: Query,
    /// What alone it may be driven by, as the other conditions have lists of what is hidden.
    pub driver: Option<Set>,
}

impl Query {
    /// The questions that together find what this one does, none of it twice. To be asked of a query that
    /// is normal; they are, too.
    ///
    /// Questions that name ids are left as they are: who knows an id is told nothing by the cost of its
    /// lookup, if that does not depend on what was found.
    pub fn opened(mut self) -> Vec<Open> {
        let alone = |query| vec![Open { query, driver: None }];
        if self.ids.is_some() {
            return alone(self);
        }
        let Some(gate) = self.gate.take() else { return alone(self) };
        let asked = |kind: &&u32| {
            self.kinds.as_ref().is_none_or(|kinds| kinds.binary_search(kind).is_ok())
                && !self.not_kinds.contains(kind)
        };
        let blind = gate.readers.is_empty() && gate.addressed.values.is_empty();
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
            all.push(Open { query: self, driver: None });
        }
        all
    }

    /// Appends the questions for what matches and concerns the gate's readers. They are driven by what
    /// the readers wrote or got, of which everything may be seen.
    fn concerning(self, gate: &Gate, all: &mut Vec<Open>) {
        let is_reader = |key: &Key| gate.readers.binary_search(key).is_ok();
        if self.authors.as_ref().is_some_and(|authors| authors.iter().all(is_reader)) {
            return all.push(Open { query: self, driver: Some(Set::Authors) });
        }
        let is_addressed = |set: &LabelSet| {
            let own = |value| gate.addressed.values.binary_search(value).is_ok();
            set.name == gate.addressed.name && set.values.iter().all(own)
        };
        if let Some(at) = self.labels.iter().position(is_addressed) {
            return all.push(Open { query: self, driver: Some(Set::Label(at)) });
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
            all.push(Open { query, driver: Some(Set::Authors) });
        }
        if !gate.addressed.values.is_empty() {
            // What a reader wrote to a reader is found above.
            let not_authors = if others.is_some() { &[][..] } else { &gate.readers };
            let mut query = Self { authors: others, ..self };
            query.not_authors.extend_from_slice(not_authors);
            query.labels.push(gate.addressed.clone());
            query.normalise();
            let at = query.labels.len() - 1;
            all.push(Open { query, driver: Some(Set::Label(at)) });
        }
    }
}
