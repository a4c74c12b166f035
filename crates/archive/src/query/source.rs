//! The interface through which the query engine uses an index: posting lists, which are sorted
//! lists of rows.
//!
//! To a source, authors and labels are *terms*: numbers that the shelf assigns
//! ([`super::prepared`]). Words are passed as text, since some sources index words as text. A
//! source is an immutable part of a shelf (a segment) or a snapshot of a growing part (a head). For
//! a term and a kind, a source finds the posting list ([`Source::PostingList`]) of the rows that
//! have the term and the kind, newest first. Everything else (planning, merging, intersecting,
//! counting) is implemented once for all sources, in [`super`].

use std::ops::{ControlFlow, Range};

use hark_codec::record::{Id, Record};

use super::{Order, Query};

/// A part of a shelf, with numbered rows. The rows' keys ascend in the order of a query.
pub trait Source: Send + Sync + 'static {
    /// A key that sorts the rows of this source in the order of a query.
    type Key: Ord + Copy + Send;
    /// A posting list: sorted rows, newest first. Cheap to clone.
    type PostingList: Clone + Send;
    /// The location of a record.
    type RecordLocation: Copy + Send;
    /// A query's time window and cursor, prepared for [`Source::clip`].
    type Window: Send;

    /// Returns the name of this part in explanations.
    fn name(&self) -> String;
    /// Returns the reason if the data of this source cannot be trusted. Queries that need the
    /// source then fail.
    fn trouble(&self) -> Option<String> {
        None
    }
    /// Returns the number of rows, including dead rows.
    fn rows(&self) -> u64;
    /// Returns the oldest and the newest time; `None` if the source is empty.
    fn span(&self) -> Option<(u64, u64)>;

    /// Passes to `each` the posting lists that together contain all rows.
    fn every(&self, each: &mut impl FnMut(Self::PostingList));
    /// Passes the posting lists of these kinds to `each`.
    fn kinds(&self, kinds: &[u32], each: &mut impl FnMut(Self::PostingList));
    /// Returns the kind of a row, if it is known without a search.
    fn kind_of(&self, _: u32) -> Option<u32> {
        None
    }
    /// Returns whether a row of any of these kinds may exist. The check must be cheap.
    fn has_kinds(&self, kinds: &[u32]) -> bool;
    /// Returns the kind that all rows of a posting list have. For the lists of [`Source::every`],
    /// which have rows of all kinds, the result has no meaning.
    fn list_kind(&self, list: &Self::PostingList) -> Option<u32>;
    /// Returns how many bytes of memory a posting list uses in addition to its own size after it
    /// was read.
    fn list_bytes(&self, _: &Self::PostingList) -> usize {
        0
    }
    /// Returns whether a row with the term may exist. If `kinds` is given, only rows of these kinds
    /// count. The check must be cheap.
    fn has_term(&self, term: u64, kinds: Option<&[u32]>) -> bool;
    /// Looks up a few dozen terms, and passes each posting list to `each`, with the index of the
    /// term, until `each` breaks. If `kinds` is given, only lists of these kinds are passed.
    /// Skipping lists of other kinds costs hardly any time.
    fn terms(
        &self,
        terms: &[u64],
        kinds: Option<&[u32]>,
        each: &mut impl FnMut(u32, Self::PostingList) -> ControlFlow<()>,
    );
    /// Returns whether the words of the records are indexed.
    fn has_words(&self) -> bool {
        false
    }
    /// Calls `each` for each posting list of a word, with the class (see `hark_words::WeighedWord`)
    /// that the word has in the records of the list. If `kinds` is given, only lists of these kinds
    /// are passed.
    fn word(
        &self,
        _word: &str,
        _kinds: Option<&[u32]>,
        _each: &mut impl FnMut(u8, Self::PostingList),
    ) {
    }
    /// Returns the words that begin with `beginning`; `None` if there are more than `max`.
    fn words_from(&self, _beginning: &str, _max: usize) -> Option<Vec<Box<str>>> {
        None
    }
    /// Returns the row of an id. `hash` is the id's hash. A source that finds a row by the hash
    /// must compare the id in the record.
    fn find(&self, id: &Id, hash: u64) -> Option<u32>;

    /// Prepares the query's time window and cursor. If the order is oldest first, the window
    /// includes all rows of the cursor's own time. (Ids ascend in both orders among records of the
    /// same time. So in a posting list, the rows before the cursor lie between the newer rows and
    /// the remaining rows of the cursor's time, and cannot be cut off.)
    fn window(&self, query: &Query) -> Self::Window;
    /// Returns the range of a posting list that lies in the window.
    fn clip(&self, list: &Self::PostingList, window: &Self::Window) -> Range<usize>;
    /// Returns whether a row lies in the window.
    fn within(&self, row: u32, window: &Self::Window) -> bool;

    /// Returns true if the source knows, without reading the record, that the id of a row is at
    /// most `id`.
    fn is_up_to(&self, _row: u32, _id: &Id) -> bool {
        false
    }

    /// Returns the key of a posting list's row at `index`.
    fn key(&self, list: &Self::PostingList, index: usize, order: Order) -> Self::Key;
    /// Returns a posting list's row at `index`.
    fn row_at(&self, list: &Self::PostingList, index: usize) -> u32;
    /// Returns the time of a row.
    fn time_of(&self, row: u32) -> u64;
    /// Returns the key of a row in this order.
    fn key_of(&self, row: u32, order: Order) -> Self::Key;
    /// Returns the row of a key.
    fn row(&self, key: Self::Key) -> u32;
    /// Returns the time of a posting list's row at `index`.
    fn list_time(&self, list: &Self::PostingList, index: usize) -> u64;
    /// Returns false if the source knows, without a search, that a posting list does not contain a
    /// row.
    fn may_have(&self, _list: &Self::PostingList, _row: u32) -> bool {
        true
    }
    /// Returns the first index in `range` whose row is `row` or follows `row` in the list (newest
    /// first). Usually the result is near the start of the range.
    fn seek(&self, list: &Self::PostingList, range: Range<usize>, row: u32) -> usize;

    /// Returns the number of equal rows at the start of two ranges of posting lists. The number may
    /// be too low if an exact comparison would be expensive. The first list must contain all rows
    /// of the second.
    fn alike(
        &self,
        _: (&Self::PostingList, Range<usize>),
        _: (&Self::PostingList, Range<usize>),
    ) -> usize {
        0
    }

    /// Returns whether a row is dead, that is, deleted or newer than the snapshot.
    fn is_dead(&self, row: u32) -> bool;
    /// Appends each dead row of the kind, or of all kinds, once. May also append other rows.
    fn dead_rows(&self, kind: Option<u32>, rows: &mut Vec<u32>);
    /// Counts the dead rows in a range of a posting list.
    fn count_dead(&self, list: &Self::PostingList, range: Range<usize>) -> u64 {
        range.filter(|&index| self.is_dead(self.row_at(list, index))).count() as u64
    }
    /// Returns the location of a row's record.
    fn locate(&self, row: u32) -> Self::RecordLocation;
    /// Returns the location of a row's record, if the row is not dead.
    fn locate_alive(&self, row: u32) -> Option<Self::RecordLocation> {
        (!self.is_dead(row)).then(|| self.locate(row))
    }
    /// Starts to load a record into the processor's cache and returns at once. Many such loads run
    /// in parallel, whereas ordinary reads would wait for one another.
    fn prefetch(&self, location: Self::RecordLocation);
    /// Starts to read a record from the disk and returns at once. Each call costs a system call.
    fn read_ahead(&self, location: Self::RecordLocation);
    /// Returns the record of a row; the caller passes the row's `location`. If the record is
    /// damaged, notes the damage and returns `None`.
    fn read(&self, row: u32, location: Self::RecordLocation) -> Option<Record<'_>>;
    /// Returns the record of a row.
    fn record(&self, row: u32) -> Option<Record<'_>> {
        self.read(row, self.locate(row))
    }
    /// Appends the rows, dead or alive, that expire at or before `now`.
    fn expired(&self, now: u64, rows: &mut Vec<u32>);
}
