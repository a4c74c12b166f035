//! The statements of the layout for one server. [`sql`](super::sql) has their texts.

use hark_archive::Order;

/// The rows of a window that a statement reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WindowRows {
    /// All rows, in no order.
    All,
    /// The first rows, in order.
    First,
    /// The first rows behind a given row, in order.
    Behind,
}

/// The rows from which a page is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum IndexPage {
    /// The rows of all parts, from the edge of the page's times on.
    All,
    /// The rows of a part, from the edge of the page's times on.
    First(i64),
    /// The rows of a part behind a given row.
    Behind(i64),
}

impl IndexPage {
    /// Returns the number of the part.
    pub(super) fn part(self) -> Option<i64> {
        match self {
            Self::All => None,
            Self::First(part) | Self::Behind(part) => Some(part),
        }
    }
}

/// A statement that only the layout for one server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PlainStatement {
    /// Reads the keys of index ranges of (term, kind), each range from its own position on.
    TermKeys(Order),
    /// Reads the keys of index ranges of (author, kind).
    AuthorKeys(Order),
    /// Reads the keys and authors of index ranges of a kind.
    KindKeys(Order),
    /// Reads the keys and authors of all records.
    TimeKeys(Order),
    /// Reads the keys and authors of all records except those of some kinds.
    TimeKeysBut(Order),
    /// Reads a page of index ranges of (term, kind) with its records, in all parts or in one part.
    TermPage(Order, usize, IndexPage),
    /// Reads a page of index ranges of (author, kind), in all parts or in one part.
    AuthorPage(Order, usize, IndexPage),
    /// Reads a page of index ranges of a kind, in all parts or in one part.
    KindPage(Order, usize, IndexPage),
    /// Reads a page of all records, in all parts or in one part.
    TimePage(Order, IndexPage),
    /// Reads a page of all records except those of some kinds, in all parts or in one part.
    TimePageBut(Order, IndexPage),
    /// Reads a page of all records that have any of the given terms, in all parts or in one part.
    TermTimePage(Order, IndexPage),
    /// Reads records of slim tables that have any of the given terms within a window of time, in
    /// all parts or in one part.
    SlimWindow(Order, Option<i64>, WindowRows),
    /// Finds the keys of ids; if `whole`, with their records.
    Ids { whole: bool },
    /// Reads the first few keys of terms, in no order.
    TermFew,
    /// Reads the first few keys of authors, in no order.
    AuthorFew,
    /// Reads the first few keys of terms, in ranges of kinds.
    TermFewBut,
    /// Reads the first few keys of authors, in ranges of kinds.
    AuthorFewBut,
    /// Reads how many records listed terms have together, and the number of all records.
    ListedSize,
    /// Finds the kinds of the rows of terms.
    TermKinds,
    /// Finds the kinds of the records of authors.
    AuthorKinds,
    /// Counts the rows of terms, up to a bound.
    TermSize,
    /// Counts the rows of authors, up to a bound.
    AuthorSize,
    /// Counts the rows of terms in ranges of kinds, each up to a bound.
    TermSizeBut,
    /// Counts the rows of authors in ranges of kinds, each up to a bound.
    AuthorSizeBut,
    /// Reads the records of keys, in all parts or in one part.
    Bodies(Option<i64>),
    /// Locks the shelf and returns its state.
    Lock,
    /// Finds the keys that are already stored, among the given keys.
    Known,
    /// Finds the newest forbidding record of each key.
    Forbids,
    /// Finds the keys of records of an author and a kind.
    Slots,
    /// Finds the keys of records with a term and a kind.
    TermSlots,
    /// Reads the records with given ids: only the columns that suffice to match rules.
    NamedRecords,
    /// Deletes records and their tags.
    Delete,
    /// Deletes records and their tags, and for each value of a listed label lowers the number of
    /// records.
    DeleteListed,
    /// Inserts records.
    CopyRecords,
    /// Inserts tags.
    CopyTags,
    /// Inserts the `forbid` rows of records.
    AddForbids,
    /// Updates the shelf's state, and notifies other nodes.
    Advance,
    /// Reads the shelf's timeline and number, and records by number.
    News,
    /// Reads the shelf's timeline and the number of the newest put.
    Newest,
    /// Reads which texts have indexed words, the number of the last put with indexed words, and the
    /// number of the newest put.
    WordState,
    /// Reads the next rows of index ranges of (word, kind), with the classes of further words.
    WordKeys(Order),
    /// Finds the words with a given prefix.
    WordsFrom,
    /// Counts the rows of words in some kinds, up to a bound.
    WordSize,
    /// Reads records by time and the first bits of their ids, in all parts or in one part.
    WordBodies(Option<i64>),
    /// Reads the records of keys that have the given words, in all parts or in one part.
    WordedBodies(Option<i64>),
    /// Inserts the rows of words.
    CopyWords,
    /// Inserts the list of each record's words.
    CopyWorded,
    /// Sets the number of the newest put whose words are indexed.
    AdvanceWords,
    /// Finds the numbers whose records are still stored, among the given numbers.
    StillThere,
    /// Finds those labels of records that do not have exactly one row.
    LabelCounts,
    /// Reads the lists of the words of records.
    WordLists,
    /// Finds those words of records that do not have exactly one row, or have another class.
    WordCounts,
    /// Writes the columns of a record's row again.
    RepairColumns,
}

impl PlainStatement {
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
            Self::SlimWindow(..) => "slim_window",
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
            Self::Lock => "lock",
            Self::Known => "known",
            Self::Forbids => "forbids",
            Self::Slots => "slots",
            Self::TermSlots => "term_slots",
            Self::NamedRecords => "named_records",
            Self::Delete => "delete",
            Self::DeleteListed => "delete_listed",
            Self::CopyRecords => "copy_records",
            Self::CopyTags => "copy_tags",
            Self::AddForbids => "add_forbids",
            Self::Advance => "advance",
            Self::News => "news",
            Self::Newest => "newest",
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
            Self::LabelCounts => "label_counts",
            Self::WordLists => "word_lists",
            Self::WordCounts => "word_counts",
            Self::RepairColumns => "repair_columns",
        }
    }
}
