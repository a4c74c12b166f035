//! The sets of rows that an index can list, one for each condition of a query.

/// The rows that meet one condition of the query. An index can list these rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// The rows that have one of the query's ids.
    Ids,
    /// The rows of the authors. If the query names kinds, only their rows of these kinds.
    Authors,
    /// The rows that meet the condition `labels[i]`. If the query names kinds, only rows of these
    /// kinds.
    Label(usize),
    /// The rows that have the `i`th needed word. If the query names kinds, only rows of these
    /// kinds.
    Word(usize),
    /// The rows that have one of the query's kinds.
    Kinds,
    /// All rows in the time window.
    Time,
}

/// The exact size of a set within the time window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetSize {
    /// Number of rows. A row counts once for each posting list that contains the row.
    pub rows: u64,
    /// Number of posting lists that are not empty.
    pub lists: usize,
    /// Number of terms that have such a list.
    pub terms: usize,
}
