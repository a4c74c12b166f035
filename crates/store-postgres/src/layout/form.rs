//! The statements of queries and commits, independent of the layout of the tables.

use hark_archive::Order;

/// How many values a condition has. With one value, an index has the rows in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ValueCount {
    /// There is no condition.
    None,
    /// One.
    One,
    /// A list of so many, each of which has its own index range of one shard.
    Arms(usize),
    /// A list.
    Many,
}

impl ValueCount {
    /// The count of the values of a condition, if there is one.
    pub(crate) fn of<T>(values: Option<&[T]>) -> Self {
        match values {
            None => Self::None,
            Some([_]) => Self::One,
            Some(_) => Self::Many,
        }
    }
}

/// What a window is read by.
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
    /// How many terms or authors there are.
    pub(crate) values: ValueCount,
    pub(crate) kinds: ValueCount,
    pub(crate) has_not_kinds: bool,
}

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
    /// A page of index ranges of (author, kind): of all parts, or of one.
    AuthorPage(Order, usize, Option<i64>),
    /// A page of index ranges of a kind: of all parts, or of one.
    KindPage(Order, usize, Option<i64>),
    /// A page of all records: of all parts, or of one.
    TimePage(Order, Option<i64>),
    /// A page of all records but those of some kinds: of all parts, or of one.
    TimePageBut(Order, Option<i64>),
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
    /// As much of the records of ids as tells whether rules delete them.
    NamedRecords,
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
    /// The shelf's line and the number of the newest put.
    Newest,
    /// Records that have expired.
    Expired,
    /// The parts.
    Parts,
    /// Which words are indexed, up to which put, and the newest put.
    WordState,
    /// The next rows of index ranges of (word, kind), with the classes of further words.
    WordKeys(Order),
    /// The words that begin in the same way.
    WordsFrom,
    /// How many rows words have in some kinds, up to a bound.
    WordSize,
    /// Records by time and the first bits of their ids: of all parts, or of one.
    WordBodies(Option<i64>),
    /// Bodies of keys that have some words.
    WordedBodies(Option<i64>),
    /// Inserts the rows of words.
    CopyWords,
    /// Inserts the words of records.
    CopyWorded,
    /// Notes up to which put words are indexed.
    AdvanceWords,
    /// The numbers of puts that are still stored.
    StillThere,
    /// The next rows of a window of time. This form and those below are for distributed tables.
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
    /// Waits until no other process commits, and keeps others from it.
    Enter,
    /// Lets others commit.
    Leave,
    /// The same, and notifies other nodes.
    LeaveTelling,
    /// The shelf's line and the number up to which all workers have committed.
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
