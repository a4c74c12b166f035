//! The statements of queries and commits, independent of the layout of the tables.

use hark_archive::Order;

/// A statement, prepared once a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StatementForm {
    /// Keys of index ranges of (term, kind), each range behind its own position.
    TermKeys(Order),
    /// Keys of index ranges of (author, kind).
    AuthorKeys(Order),
    /// Keys and authors of index ranges of a kind.
    KindKeys(Order),
    /// Keys and authors of all records.
    TimeKeys(Order),
    /// Keys and authors of all records but those of some kinds.
    TimeKeysBut(Order),
    /// A page of index ranges of (term, kind), with its records: of all parts, or of one.
    TermPage(Order, usize, Option<i64>),
    /// A page of index ranges of (author, kind).
    AuthorPage(Order, usize),
    /// A page of index ranges of a kind.
    KindPage(Order, usize),
    /// A page of all records.
    TimePage(Order),
    /// A page of all records but those of some kinds.
    TimePageBut(Order),
    /// A page of all records that have any of some terms: of all parts, or of one.
    TermTimePage(Order, Option<i64>),
    /// Keys of ids, with their records if `whole`.
    Ids { whole: bool },
    /// The first few keys of terms, in no order.
    TermFew,
    /// The first few keys of authors, in no order.
    AuthorFew,
    /// The first few keys of terms, in ranges of kinds.
    TermFewBut,
    /// The first few keys of authors, in ranges of kinds.
    AuthorFewBut,
    /// How many records have each of some listed terms, together, and how many records there are.
    ListedSize,
    /// Which kinds terms have.
    TermKinds,
    /// Which kinds authors have.
    AuthorKinds,
    /// How many rows terms have, up to a bound.
    TermSize,
    /// How many rows authors have, up to a bound.
    AuthorSize,
    /// How many rows terms have in ranges of kinds, each up to a bound.
    TermSizeBut,
    /// How many rows authors have in ranges of kinds, each up to a bound.
    AuthorSizeBut,
    /// Bodies of keys: of all parts, or of one.
    Bodies(Option<i64>),
    /// Begins a transaction.
    Begin,
    /// Locks the shelf and returns its state.
    Lock,
    /// The given keys that are stored.
    Known,
    /// The newest forbidding record of each key.
    Forbids,
    /// Keys of authors' records of a kind.
    Slots,
    /// Keys of records with a term and a kind.
    TermSlots,
    /// Deletes records and their tags.
    Delete,
    /// The same, and lowers the numbers of records of their labels' values.
    DeleteListed,
    /// Deletes the `forbid` rows of records.
    DeleteForbids,
    /// Inserts records.
    CopyRecords,
    /// Inserts tags.
    CopyTags,
    /// Inserts the `forbid` rows of records.
    AddForbids,
    /// Adds to the numbers of records of labels' values.
    AddValues,
    /// Values of a label, with their numbers of records, by term.
    Values,
    /// Updates the shelf's state, and notifies other nodes.
    Advance,
    /// The shelf's line and number, and records by number.
    News,
    /// Records that have expired.
    Expired,
    /// The parts.
    Parts,
}

impl StatementForm {
    /// Returns the statement's name in metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TermKeys(_) => "term_keys",
            Self::AuthorKeys(_) => "author_keys",
            Self::KindKeys(_) => "kind_keys",
            Self::TimeKeys(_) => "time_keys",
            Self::TimeKeysBut(_) => "time_keys_but",
            Self::TermPage(..) => "term_page",
            Self::AuthorPage(..) => "author_page",
            Self::KindPage(..) => "kind_page",
            Self::TimePage(_) => "time_page",
            Self::TimePageBut(_) => "time_page_but",
            Self::TermTimePage(..) => "term_time_page",
            Self::Ids { .. } => "ids",
            Self::TermFew => "term_few",
            Self::AuthorFew => "author_few",
            Self::TermFewBut => "term_few_but",
            Self::AuthorFewBut => "author_few_but",
            Self::ListedSize => "listed_size",
            Self::TermKinds => "term_kinds",
            Self::AuthorKinds => "author_kinds",
            Self::TermSize => "term_size",
            Self::AuthorSize => "author_size",
            Self::TermSizeBut => "term_size_but",
            Self::AuthorSizeBut => "author_size_but",
            Self::Bodies(None) => "bodies",
            Self::Bodies(Some(_)) => "part_bodies",
            Self::Begin => "begin",
            Self::Lock => "lock",
            Self::Known => "known",
            Self::Forbids => "forbids",
            Self::Slots => "slots",
            Self::TermSlots => "term_slots",
            Self::Delete => "delete",
            Self::DeleteListed => "delete_listed",
            Self::DeleteForbids => "delete_forbids",
            Self::CopyRecords => "copy_records",
            Self::CopyTags => "copy_tags",
            Self::AddForbids => "add_forbids",
            Self::AddValues => "add_values",
            Self::Values => "values",
            Self::Advance => "advance",
            Self::News => "news",
            Self::Expired => "expired",
            Self::Parts => "parts",
        }
    }
}
