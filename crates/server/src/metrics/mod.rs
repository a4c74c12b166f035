//! Counters since the start of the server, as plain numbers. [`MetricsPage`] writes them as text.
//!
//! The values of a label are an enum here, so that clients cannot add values.

use std::marker::PhantomData;

pub use hark_archive::meter::{Counter, Histogram};
use hark_archive::query::plan::Set;
pub(crate) use page::CONTENT_TYPE;
pub use page::MetricsPage;
use serde_json::Value;

mod page;

/// A value of a label of a metric.
pub trait MetricLabel: Copy + 'static {
    /// All values with their names, in the order of their numbers.
    const ALL: &'static [(Self, &'static str)];

    /// The number of this value.
    fn number(self) -> usize;

    /// The name of this value.
    fn name(self) -> &'static str {
        Self::ALL[self.number()].1
    }
}

macro_rules! labels {
    ($($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$value_doc])* $value,)* }

        impl MetricLabel for $name {
            const ALL: &'static [(Self, &'static str)] = &[$((Self::$value, $text)),*];

            fn number(self) -> usize {
                self as usize
            }
        }
    )*};
}
pub(crate) use labels;

labels! {
    /// Why a connection was refused before its client could send anything.
    ConnectionRefusal {
        /// The door has its maximum number of connections.
        Full = "full",
        /// The client's address has its maximum number of connections.
        Address = "address",
        /// The address lists reject the client's address.
        Denied = "denied",
    }

    /// The kind of condition with which a search found its candidates.
    SearchDriver {
        /// Ids.
        Ids = "ids",
        /// Authors.
        Authors = "authors",
        /// A label's values.
        Label = "label",
        /// A word.
        Word = "word",
        /// Kinds.
        Kinds = "kinds",
        /// Time alone.
        Time = "time",
        /// No condition: the lengths of posting lists showed that nothing matches.
        Nothing = "nothing",
        /// A count. Each part of the store plans its own search.
        Count = "count",
    }
}

impl From<Option<Set>> for SearchDriver {
    fn from(driver: Option<Set>) -> Self {
        match driver {
            Some(Set::Ids) => Self::Ids,
            Some(Set::Authors) => Self::Authors,
            Some(Set::Label(_)) => Self::Label,
            Some(Set::Word(_)) => Self::Word,
            Some(Set::Kinds) => Self::Kinds,
            Some(Set::Time) => Self::Time,
            None => Self::Nothing,
        }
    }
}

/// One `T` for each value of a label.
#[derive(Debug)]
pub struct ByLabel<L, T = Counter>(Box<[T]>, PhantomData<L>);

impl<L: MetricLabel, T: Default> Default for ByLabel<L, T> {
    fn default() -> Self {
        Self(L::ALL.iter().map(|_| T::default()).collect(), PhantomData)
    }
}

impl<L: MetricLabel, T> ByLabel<L, T> {
    /// The `T` of the value `label`.
    pub fn of(&self, label: L) -> &T {
        &self.0[label.number()]
    }

    /// All `T`s, with the names of their values.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &T)> {
        L::ALL.iter().map(|(_, name)| *name).zip(&*self.0)
    }
}

impl<L: MetricLabel> ByLabel<L> {
    /// The sum of the counts whose labels `counted` accepts.
    pub fn sum(&self, counted: impl Fn(L) -> bool) -> u64 {
        let labels = L::ALL.iter().filter(|(label, _)| counted(*label));
        labels.map(|(label, _)| self.of(*label).get()).sum()
    }

    /// The counts above zero, by their names.
    pub fn named(&self) -> Value {
        let counts = self.all().filter(|(_, count)| count.get() > 0);
        counts.map(|(name, count)| (name.to_owned(), count.get())).collect()
    }
}

impl<A: MetricLabel, B: MetricLabel> ByLabel<A, ByLabel<B>> {
    /// The sum of the counts whose inner labels `counted` accepts, over all outer labels.
    pub fn sum(&self, counted: impl Fn(B) -> bool) -> u64 {
        self.0.iter().map(|counts| counts.sum(&counted)).sum()
    }

    /// The counts above zero, by their names: an object for each outer label.
    pub fn nested(&self) -> Value {
        self.all().map(|(name, counts)| (name.to_owned(), counts.named())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_by_label_and_named_where_there_are_any() {
        let counts = ByLabel::<SearchDriver, ByLabel<ConnectionRefusal>>::default();
        counts.of(SearchDriver::Ids).of(ConnectionRefusal::Full).add(2);
        counts.of(SearchDriver::Time).of(ConnectionRefusal::Full).add(3);
        counts.of(SearchDriver::Time).of(ConnectionRefusal::Denied).add(5);
        assert_eq!(counts.sum(|why| why == ConnectionRefusal::Full), 5);
        assert_eq!(counts.of(SearchDriver::Time).sum(|_| true), 8);
        let nested = counts.nested();
        assert_eq!(nested["time"], serde_json::json!({ "denied": 5, "full": 3 }));
        assert_eq!(nested["kinds"], serde_json::json!({}));
    }
}
