//! The sets of rows that an index can list, one for each condition of a query.

/// A set of rows that an index can list: the rows that meet one condition of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// The rows of the query's ids.
    Ids,
    /// The rows of the authors, only of the kinds if any are given.
    Authors,
    /// The rows of the `labels[i]` condition, only of the kinds if any are given.
    Label(usize),
    /// The rows that have the `i`th needed word, only of the kinds if any are given.
    Word(usize),
    /// The rows of the kinds.
    Kinds,
    /// All rows in the time window.
    Time,
}

/// The exact size of a set within the time window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetSize {
    /// Rows. A row counts once for each posting list that it is in.
    pub rows: u64,
    /// Posting lists that are not empty.
    pub lists: usize,
    /// Terms of the set that have such a list.
    pub terms: usize,
}
