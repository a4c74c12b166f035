//! The statements of queries and commits, independent of the layout of the tables.

use hark_archive::Order;

/// The number of values of a condition. With one value, an index has the rows in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ValueCount {
    /// No condition.
    None,
    /// One value.
    One,
    /// A list with this number of values. Each value has its own index range of one shard.
    Arms(usize),
    /// A list of values.
    Many,
}

impl ValueCount {
    /// Returns the count of a condition's values. `None` means no condition.
    pub(crate) fn of<T>(values: Option<&[T]>) -> Self {
        match values {
            None => Self::None,
            Some([_]) => Self::One,
            Some(_) => Self::Many,
        }
    }
}

/// The table and condition by which a window is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WindowTable {
    /// Keys and places by terms.
    Tag,
    /// Records by authors.
    Author,
    /// Records by kinds, or all.
    Record,
}

/// A statement for a window of time of distributed tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowForm {
    pub(crate) order: Order,
    pub(crate) table: WindowTable,
    /// The number of terms or authors.
    pub(crate) values: ValueCount,
    pub(crate) kinds: ValueCount,
    pub(crate) has_not_kinds: bool,
}

/// A statement that is prepared once per session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StatementForm {
    /// Keys of index ranges of (term, kind), each behind its own position.
    TermKeys(Order),
    /// Keys of index ranges of (author, kind).
    AuthorKeys(Order),
    /// Keys and authors of index ranges of a kind.
    KindKeys(Order),
    /// Keys and authors of all records.
    TimeKeys(Order),
    /// Keys and authors of all records except those of some kinds.
    TimeKeysBut(Order),
    /// A page of index ranges of (term, kind) with its records, in all parts or one part.
    TermPage(Order, usize, Option<i64>),
    /// A page of index ranges of (author, kind), in all parts or one part.
    AuthorPage(Order, usize, Option<i64>),
    /// A page of index ranges of a kind, in all parts or one part.
    KindPage(Order, usize, Option<i64>),
    /// A page of all records, in all parts or one part.
    TimePage(Order, Option<i64>),
    /// A page of all records except those of some kinds, in all parts or one part.
    TimePageBut(Order, Option<i64>),
    /// A page of all records that have any of the given terms, in all parts or one part.
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
    /// The sum of the numbers of records of listed terms, and the number of all records.
    ListedSize,
    /// The kinds of the rows of terms.
    TermKinds,
    /// The kinds of the records of authors.
    AuthorKinds,
    /// The number of rows of terms, up to a bound.
    TermSize,
    /// The number of rows of authors, up to a bound.
    AuthorSize,
    /// The number of rows of terms in ranges of kinds, each up to a bound.
    TermSizeBut,
    /// The number of rows of authors in ranges of kinds, each up to a bound.
    AuthorSizeBut,
    /// Bodies of keys, in all parts or one part.
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
    /// The columns of the records of ids that suffice to match rules.
    NamedRecords,
    /// Deletes records and their tags.
    Delete,
    /// Deletes records and their tags, and lowers the numbers of records of their labels' values.
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
    /// The shelf's timeline and number, and records by number.
    News,
    /// The shelf's timeline and the number of the newest put.
    Newest,
    /// Records that have expired.
    Expired,
    /// The parts.
    Parts,
    /// The texts whose words are indexed, the number of the last indexed put, and the number of the
    /// newest put.
    WordState,
    /// The next rows of index ranges of (word, kind), with the classes of further words.
    WordKeys(Order),
    /// The words with the same beginning.
    WordsFrom,
    /// The number of rows of words in some kinds, up to a bound.
    WordSize,
    /// Records by time and the first bits of their ids, in all parts or one part.
    WordBodies(Option<i64>),
    /// Bodies of those keys whose records have some words.
    WordedBodies(Option<i64>),
    /// Inserts the rows of words.
    CopyWords,
    /// Inserts the list of words of each record.
    CopyWorded,
    /// Sets the number of the put up to which words are indexed.
    AdvanceWords,
    /// Those of the given numbers whose records are still stored.
    StillThere,
    /// The next rows of a window of time. This form and the following ones are for distributed
    /// tables.
    Window(WindowForm),
    /// Some keys and places of a window, in no order.
    Few(WindowForm),
    /// The places of ids.
    Places(ValueCount),
    /// Records by place and id, in no order.
    PlacedBodies(ValueCount),
    /// The times of the newest records.
    NewestTimes,
    /// The time of the oldest record.
    OldestTime,
    /// Inserts the places of ids.
    CopyPlaces,
    /// Deletes tags by key.
    DeleteTags,
    /// Deletes the places of ids.
    DeletePlaces,
    /// Waits until no other process commits, and excludes other commits.
    Enter,
    /// Lets other processes commit.
    Leave,
    /// Lets other processes commit, and notifies other nodes.
    LeaveTelling,
    /// The shelf's timeline and the number of the put up to which all workers have committed.
    WholeState,
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
            Self::TimePage(..) => "time_page",
            Self::TimePageBut(..) => "time_page_but",
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
            Self::NamedRecords => "named_records",
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
            Self::Newest => "newest",
            Self::Expired => "expired",
            Self::Parts => "parts",
            Self::WordState => "word_state",
            Self::WordKeys(_) => "word_keys",
            Self::WordsFrom => "words_from",
            Self::WordSize => "word_size",
            Self::WordBodies(None) => "word_bodies",
            Self::WordBodies(Some(_)) => "part_word_bodies",
            Self::WordedBodies(None) => "worded_bodies",
            Self::WordedBodies(Some(_)) => "part_worded_bodies",
            Self::CopyWords => "copy_words",
            Self::CopyWorded => "copy_worded",
            Self::AdvanceWords => "advance_words",
            Self::StillThere => "still_there",
            Self::Window(WindowForm { table: WindowTable::Tag, .. }) => "term_window",
            Self::Window(WindowForm { table: WindowTable::Author, .. }) => "author_window",
            Self::Window(WindowForm { table: WindowTable::Record, .. }) => "record_window",
            Self::Few(_) => "few",
            Self::Places(_) => "places",
            Self::PlacedBodies(_) => "placed_bodies",
            Self::NewestTimes => "newest_times",
            Self::OldestTime => "oldest_time",
            Self::CopyPlaces => "copy_places",
            Self::DeleteTags => "delete_tags",
            Self::DeletePlaces => "delete_places",
            Self::Enter => "enter",
            Self::Leave => "leave",
            Self::LeaveTelling => "leave_telling",
            Self::WholeState => "whole_state",
        }
    }
}
