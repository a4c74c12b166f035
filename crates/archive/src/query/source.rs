//! What the engine needs of an index to answer questions from it: sorted runs of rows.
//!
//! Authors and labels are *terms* to it, numbers that the shelf gives them ([`super::prepared`]).
//! A source is an immutable part of a shelf (a segment) or a snapshot of a growing one (a head). It
//! finds, for a term and a kind, the *run* of rows that carry both, newest first. Everything else
//! (choosing, merging, cutting, counting) is done once, here in [`super`], for all of them.

use std::ops::Range;

use hark_codec::record::{Id, Record};

use super::{Order, Query};

/// A part of a shelf. Rows are numbered; a row's key orders it within the source.
pub trait Source: Send + Sync + 'static {
    /// Orders rows within this source, in the order of a question.
    type Key: Ord + Copy + Send;
    /// A sorted list of rows, newest first; cheap to clone.
    type Run: Clone + Send;
    /// Where a record is.
    type Place: Copy + Send;
    /// A time window and cursor, made ready for [`Source::clip`].
    type Window;

    /// What this part is called in explanations.
    fn name(&self) -> String;
    /// Why what it says is not to be believed, if it is not; then an answer from it is an error.
    fn trouble(&self) -> Option<String> {
        None
    }
    /// Rows in it, dead ones included.
    fn rows(&self) -> u64;
    /// Oldest and newest time in it; `None` if it is empty.
    fn span(&self) -> Option<(u64, u64)>;

    /// Runs of all rows.
    fn every(&self, each: &mut impl FnMut(Self::Run));
    /// Runs of these kinds.
    fn kinds(&self, kinds: &[u32], each: &mut impl FnMut(Self::Run));
    /// The kind of a row, where that is known without looking for it.
    fn kind_of(&self, _: u32) -> Option<u32> {
        None
    }
    /// Whether a row of any of these kinds may be there; cheap.
    fn has_kinds(&self, kinds: &[u32]) -> bool;
    /// The kind of a run's rows; not asked of the runs of all rows.
    fn run_kind(&self, run: &Self::Run) -> Option<u32>;
    /// Whether a row with the term, of any of these kinds or of any at all, may be there; cheap.
    fn has_term(&self, term: u64, kinds: Option<&[u32]>) -> bool;
    /// Runs of terms, of these kinds or of all, each with the index of its term.
    fn terms(&self, terms: &[u64], kinds: Option<&[u32]>, each: &mut impl FnMut(u32, Self::Run));
    /// The row of an id, whose hash this is; checked against the record.
    fn find(&self, id: &Id, hash: u64) -> Option<u32>;

    /// Makes the query's window and cursor ready. Oldest first, the cursor's own second stays within
    /// the window as a whole: its rows are sorted by id, so that part of it is not a range.
    fn window(&self, query: &Query) -> Self::Window;
    /// The part of a run that lies in the window.
    fn clip(&self, run: &Self::Run, window: &Self::Window) -> Range<usize>;
    /// Whether a row lies in the window.
    fn within(&self, row: u32, window: &Self::Window) -> bool;

    /// Key of a run's `index`th row.
    fn key(&self, run: &Self::Run, index: usize, order: Order) -> Self::Key;
    /// A run's `index`th row.
    fn row_at(&self, run: &Self::Run, index: usize) -> u32;
    /// Key of a row.
    fn key_of(&self, row: u32, order: Order) -> Self::Key;
    /// Row of a key.
    fn row(&self, key: Self::Key) -> u32;
    /// Time of a run's `index`th row.
    fn run_time(&self, run: &Self::Run, index: usize) -> u64;
    /// First index in `range` whose row does not come before `row`, newest first. Is told where the
    /// answer is likely to be: at the range's start.
    fn seek(&self, run: &Self::Run, range: Range<usize>, row: u32) -> usize;

    /// How many rows two parts of runs begin with that are the same in both, as far as that is cheap to
    /// know. One of the runs has all rows of the other.
    fn alike(&self, _: (&Self::Run, Range<usize>), _: (&Self::Run, Range<usize>)) -> usize {
        0
    }

    /// Whether a row is deleted, or newer than the snapshot.
    fn is_dead(&self, row: u32) -> bool;
    /// Appends the rows of the kind, or of all, that are dead, each once; others may be among them.
    fn dead_rows(&self, kind: Option<u32>, rows: &mut Vec<u32>);
    /// How many rows of a part of a run are dead.
    fn count_dead(&self, run: &Self::Run, range: Range<usize>) -> u64 {
        range.filter(|&index| self.is_dead(self.row_at(run, index))).count() as u64
    }
    /// Where a row's record is.
    fn locate(&self, row: u32) -> Self::Place;
    /// Where a row's record is, if the row is not dead.
    fn locate_alive(&self, row: u32) -> Option<Self::Place> {
        (!self.is_dead(row)).then(|| self.locate(row))
    }
    /// Has a record brought closer without waiting for it: the memory answers many such requests at
    /// the same time, where as many reads would each wait for their own.
    fn prefetch(&self, place: Self::Place);
    /// Has a record read from the disk without waiting for it. Costs a call to the system.
    fn read_ahead(&self, place: Self::Place);
    /// The record of a row, which is at `place`; `None`, and noted, where it is damaged.
    fn read(&self, row: u32, place: Self::Place) -> Option<Record<'_>>;
    /// The record of a row.
    fn record(&self, row: u32) -> Option<Record<'_>> {
        self.read(row, self.locate(row))
    }
    /// Rows, dead or alive, that expire at or before `now`.
    fn expired(&self, now: u64, rows: &mut Vec<u32>);
}
