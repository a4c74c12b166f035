//! The interface through which the query engine uses an index: posting lists, which are sorted
//! lists of rows.
//!
//! To a source, authors and labels are *terms*: numbers that the shelf gives them
//! ([`super::prepared`]). Words are passed as text, as a source may index words as text. A source
//! is an immutable part of a shelf (a segment) or a snapshot of a growing part (a head). For a term
//! and a kind it finds the posting list (a [`Source::PostingList`]) of the rows that have both,
//! newest first. Everything else (planning, merging, intersecting, counting) is implemented once
//! for all sources, in [`super`].

use std::ops::{ControlFlow, Range};

use hark_codec::record::{Id, Record};

use super::{Order, Query};

/// A part of a shelf. Rows are numbered; a row's key orders it within the source.
pub trait Source: Send + Sync + 'static {
    /// A key that sorts the rows of this source in the order of a query.
    type Key: Ord + Copy + Send;
    /// A posting list: sorted rows, newest first. Cheap to clone.
    type PostingList: Clone + Send;
    /// The location of a record.
    type RecordLocation: Copy + Send;
    /// A time window and cursor, prepared for [`Source::clip`].
    type Window: Send;

    /// Returns the name of this part in explanations.
    fn name(&self) -> String;
    /// Returns the reason if the data of this source cannot be trusted. Queries that need the
    /// source fail.
    fn trouble(&self) -> Option<String> {
        None
    }
    /// Returns the number of rows, including dead ones.
    fn rows(&self) -> u64;
    /// Returns the oldest and the newest time. `None` if the source is empty.
    fn span(&self) -> Option<(u64, u64)>;

    /// Passes the posting lists of all rows to `each`.
    fn every(&self, each: &mut impl FnMut(Self::PostingList));
    /// Passes the posting lists of these kinds to `each`.
    fn kinds(&self, kinds: &[u32], each: &mut impl FnMut(Self::PostingList));
    /// Returns the kind of a row, if it is known without a search.
    fn kind_of(&self, _: u32) -> Option<u32> {
        None
    }
    /// Returns whether a row of any of these kinds may exist. Cheap.
    fn has_kinds(&self, kinds: &[u32]) -> bool;
    /// Returns the kind of a posting list's rows. Meaningless for the lists of [`Source::every`].
    fn list_kind(&self, list: &Self::PostingList) -> Option<u32>;
    /// Returns whether a row with the term may exist, of these kinds or (`None`) of any. Cheap.
    fn has_term(&self, term: u64, kinds: Option<&[u32]>) -> bool;
    /// Passes the posting lists of a few dozen terms, of these kinds or (`None`) of all, to `each`,
    /// with the index of the term, until it breaks. Lists of other kinds cost next to nothing.
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
    /// Passes the posting lists of a word, of these kinds or (`None`) of all, to `each`, with the
    /// class of the word in the rows of the list.
    fn word(
        &self,
        _word: &str,
        _kinds: Option<&[u32]>,
        _each: &mut impl FnMut(u8, Self::PostingList),
    ) {
    }
    /// Returns the words that begin with `beginning`. `None` if there are more than `max`.
    fn words_from(&self, _beginning: &str, _max: usize) -> Option<Vec<Box<str>>> {
        None
    }
    /// Returns the row of an id. `hash` is the id's hash; a row found by the hash is checked
    /// against its record.
    fn find(&self, id: &Id, hash: u64) -> Option<u32>;

    /// Prepares the query's time window and cursor. Oldest first, the window includes all rows of
    /// the cursor's own time: ids ascend in both orders, so the rows of that time that come after
    /// the cursor do not form one range with the newer rows.
    fn window(&self, query: &Query) -> Self::Window;
    /// Returns the range of a posting list that lies in the window.
    fn clip(&self, list: &Self::PostingList, window: &Self::Window) -> Range<usize>;
    /// Returns whether a row lies in the window.
    fn within(&self, row: u32, window: &Self::Window) -> bool;

    /// Returns whether the id of a row is at most `id`, as far as the source knows without the
    /// row's record.
    fn is_up_to(&self, _row: u32, _id: &Id) -> bool {
        false
    }

    /// Returns the key of a posting list's row at `index`.
    fn key(&self, list: &Self::PostingList, index: usize, order: Order) -> Self::Key;
    /// Returns a posting list's row at `index`.
    fn row_at(&self, list: &Self::PostingList, index: usize) -> u32;
    /// Returns the time of a row.
    fn time_of(&self, row: u32) -> u64;
    /// Returns the key of a row.
    fn key_of(&self, row: u32, order: Order) -> Self::Key;
    /// Returns the row of a key.
    fn row(&self, key: Self::Key) -> u32;
    /// Returns the time of a posting list's row at `index`.
    fn list_time(&self, list: &Self::PostingList, index: usize) -> u64;
    /// Returns whether a row can be in a posting list, as far as that is known without a search.
    fn may_have(&self, _list: &Self::PostingList, _row: u32) -> bool {
        true
    }
    /// Returns the first index in `range` whose row is `row` or comes after it, newest first. The
    /// result is likely to be near the start of the range.
    fn seek(&self, list: &Self::PostingList, range: Range<usize>, row: u32) -> usize;

    /// Returns how many rows at the start of two ranges of posting lists are the same, as far as
    /// that is cheap to find out. The first list contains all rows of the second.
    fn alike(
        &self,
        _: (&Self::PostingList, Range<usize>),
        _: (&Self::PostingList, Range<usize>),
    ) -> usize {
        0
    }

    /// Returns whether a row is deleted, or newer than the snapshot.
    fn is_dead(&self, row: u32) -> bool;
    /// Appends the dead rows of the kind, or of all kinds, each once. May append other rows as
    /// well.
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
    /// Starts to load a record into the processor's cache and returns at once. Memory serves many
    /// such requests at the same time, while the same number of reads would wait one after another.
    fn prefetch(&self, location: Self::RecordLocation);
    /// Starts to read a record from the disk and returns at once. Costs a system call.
    fn read_ahead(&self, location: Self::RecordLocation);
    /// Returns the record of a row, which is at `location`. Notes a damaged record and returns
    /// `None`.
    fn read(&self, row: u32, location: Self::RecordLocation) -> Option<Record<'_>>;
    /// Returns the record of a row.
    fn record(&self, row: u32) -> Option<Record<'_>> {
        self.read(row, self.locate(row))
    }
    /// Appends the rows, dead or alive, that expire at or before `now`.
    fn expired(&self, now: u64, rows: &mut Vec<u32>);
}
