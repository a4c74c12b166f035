//! The statements of the layout for one server. [`sql`](super::sql) has their texts.

use hark_archive::Order;

/// A statement that only the layout for one server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PlainStatement {
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
    /// Inserts records.
    CopyRecords,
    /// Inserts tags.
    CopyTags,
    /// Inserts the `forbid` rows of records.
    AddForbids,
    /// Updates the shelf's state, and notifies other nodes.
    Advance,
    /// The shelf's timeline and number, and records by number.
    News,
    /// The shelf's timeline and the number of the newest put.
    Newest,
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
        }
    }
}
