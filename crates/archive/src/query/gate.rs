//! A gate: a condition that hides records from the readers of a query's answer.
//!
//! A gate applies before the limit. It applies equally to pages, counts, ids and live messages.
//! Hidden records must not affect the cost of an answer, either: see
//! [`Query::opened`](super::Query::opened).

use hark_codec::record::{Key, Record};

use super::labels::{LabelSet, carries};

/// Records that only some readers may see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// The hidden kinds, ascending.
    pub kinds: Vec<u32>,
    /// The keys of the readers, ascending. A reader sees the hidden records that this reader wrote.
    pub readers: Vec<Key>,
    /// The labels that name the readers as recipients, with ascending values. A reader sees the
    /// hidden records with a label that names this reader.
    pub addressed: LabelSet,
}

impl Gate {
    /// Returns a gate that hides all records of the same kinds, whoever the reader is.
    #[must_use]
    pub fn to_strangers(&self) -> Self {
        Self { kinds: self.kinds.clone(), ..Self::default() }
    }

    /// Returns whether the gate hides all records of its kinds from its readers.
    pub fn is_to_strangers(&self) -> bool {
        self.readers.is_empty() && self.addressed.values.is_empty()
    }

    /// Returns whether the readers may see `record`.
    pub fn is_visible(&self, record: &Record<'_>) -> bool {
        self.is_visible_if(record, &|set| carries(record, set))
    }

    /// Does the same as [`Gate::is_visible`]. `carries` returns whether the record has a label of a
    /// set.
    pub(super) fn is_visible_if(
        &self,
        record: &Record<'_>,
        carries: &impl Fn(&LabelSet) -> bool,
    ) -> bool {
        self.kinds.binary_search(&record.kind()).is_err()
            || record.author().is_some_and(|author| self.readers.binary_search(author).is_ok())
            || carries(&self.addressed)
    }
}
