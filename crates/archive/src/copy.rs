//! Compares two shelves: one ordered walk through both finds the records that only one shelf has.
//!
//! No state is kept between two walks, because a later walk finds the copied records in both
//! shelves. So a copy that was stopped can simply be started again. If nothing is left to copy, a
//! walk costs one read of both shelves.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use hark_codec::record::Id;

use crate::query::{Order, Position, Query};
use crate::resumed::ResumedSearch;
use crate::store::{SearchError, SearchProgress, Store};

/// Number of rows that a search visits in one slice.
const SLICE_ROWS: u64 = 4_096;
/// Maximum number of bytes of the source's records in the buffer of a walk.
const READY_BYTES: usize = 1 << 20;
/// Maximum number of ids of the target's records in the buffer of a walk.
const READY_IDS: usize = 8_192;

/// A record that only one of two shelves has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Only the source has this record.
    Missing(Box<[u8]>),
    /// Only the target has a record with this id.
    Extra(Id),
}

/// The target of a walk, with the records that it has when this value is made.
pub struct WalkTarget<'a>(ComparedSide<'a, ()>);

impl<'a> WalkTarget<'a> {
    /// Notes the current records of the target. If other processes write to both shelves, the
    /// caller must open the source afterwards. Otherwise, a record that both shelves get in between
    /// would seem to be only in the target.
    pub fn new(target: &'a dyn Store) -> Result<Self, SearchError> {
        ComparedSide::new(target).map(Self)
    }
}

/// A walk through two shelves, oldest first.
pub struct ComparisonWalk<'a> {
    source: ComparedSide<'a, Box<[u8]>>,
    target: ComparedSide<'a, ()>,
    compared: u64,
}

struct ComparedSide<'a, T> {
    search: ResumedSearch<'a>,
    ready: VecDeque<(Position, T)>,
    done: bool,
}

impl<'a> ComparisonWalk<'a> {
    /// Starts a walk over the current records of both shelves, beginning with the oldest record.
    pub fn new(source: &'a dyn Store, target: &'a dyn Store) -> Result<Self, SearchError> {
        Self::with(source, WalkTarget::new(target)?)
    }

    /// Starts a walk to a target whose records were noted earlier.
    pub fn with(source: &'a dyn Store, target: WalkTarget<'a>) -> Result<Self, SearchError> {
        Ok(Self { source: ComparedSide::new(source)?, target: target.0, compared: 0 })
    }

    /// Returns how many records of the source the walk has passed.
    pub fn compared(&self) -> u64 {
        self.compared
    }

    /// Returns the number of records of the source that the walk could not read. If the target has
    /// a readable copy of such a record, the walk reports the copy as [`Difference::Extra`].
    pub fn damaged(&self) -> u64 {
        self.source.search.damaged()
    }

    /// Returns the next difference, or `None` at the end of both shelves.
    pub fn next_difference(&mut self) -> Result<Option<Difference>, SearchError> {
        self.next_difference_with(|_| ControlFlow::Continue(()))
    }

    /// Does the same as [`ComparisonWalk::next_difference`], and calls `progress` before each
    /// further read from a shelf, with the number of records of the source passed so far. `progress`
    /// can end the walk; then the result is `None`.
    pub fn next_difference_with(
        &mut self,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<Difference>, SearchError> {
        loop {
            let reads = self.source.must_read() || self.target.must_read();
            if reads && progress(self.compared).is_break() {
                return Ok(None);
            }
            self.source.fill(READY_BYTES, <[u8]>::len, |bytes| bytes.into())?;
            self.target.fill(READY_IDS, |_| 1, |_| ())?;
            let order = match (self.source.ready.front(), self.target.ready.front()) {
                (None, None) => return Ok(None),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((source, _)), Some((target, ()))) => {
                    Order::OldestFirst.compare(source, target)
                }
            };
            let source = if order.is_le() { self.source.ready.pop_front() } else { None };
            let target = if order.is_ge() { self.target.ready.pop_front() } else { None };
            self.compared += u64::from(source.is_some());
            match (source, target) {
                (Some((_, record)), None) => return Ok(Some(Difference::Missing(record))),
                (None, Some((position, ()))) => return Ok(Some(Difference::Extra(position.id))),
                _ => {}
            }
        }
    }
}

impl<'a, T> ComparedSide<'a, T> {
    fn new(store: &'a dyn Store) -> Result<Self, SearchError> {
        let query = Query { order: Order::OldestFirst, ..Query::default() };
        Ok(Self { search: ResumedSearch::new(store, query)?, ready: VecDeque::new(), done: false })
    }

    /// Whether the next record is not buffered yet.
    fn must_read(&self) -> bool {
        self.ready.is_empty() && !self.done
    }

    /// Reads until a record is buffered or the shelf ends. `keep` returns the part of a record to
    /// buffer. `size` returns the size of this part, which counts towards `ready_max`.
    fn fill(
        &mut self,
        ready_max: usize,
        size: impl Fn(&[u8]) -> usize,
        keep: impl Fn(&[u8]) -> T,
    ) -> Result<(), SearchError> {
        while self.must_read() {
            let Self { search, ready, .. } = self;
            let mut taken = 0;
            let progress = search.gather(SLICE_ROWS, ready, &mut |record| {
                taken += size(record.bytes());
                let is_enough = taken >= ready_max;
                let flow =
                    if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                (keep(record.bytes()), flow)
            })?;
            self.done = progress != SearchProgress::Paused;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hark_codec::record::{RecordHeader, write};

    use super::*;
    use crate::effects::KeepAll;
    use crate::store::Write;
    use crate::store::memory::MemoryStore;

    fn record(n: u8) -> Box<[u8]> {
        let mut out = Vec::new();
        let head = RecordHeader {
            id: [n; 32],
            time: u64::from(n / 3),
            author: None,
            kind: 1,
            expires: None,
        };
        write(&mut out, &head, b"{}", std::iter::empty());
        out.into()
    }

    fn shelf(of: &[u8]) -> MemoryStore {
        let store = MemoryStore::new(KeepAll);
        let writes: Vec<Write> = of.iter().map(|n| Write::Put(record(*n))).collect();
        store.commit(&writes).unwrap();
        store
    }

    #[test]
    fn a_walk_reports_what_only_one_side_has_in_order() {
        let (source, target) = (shelf(&[1, 2, 3, 5, 8, 9]), shelf(&[0, 2, 4, 5, 9, 10]));
        let mut walk = ComparisonWalk::new(&source, &target).unwrap();
        let mut differences = Vec::new();
        while let Some(difference) = walk.next_difference().unwrap() {
            differences.push(match difference {
                Difference::Missing(record) => ('+', record[0]),
                Difference::Extra(id) => ('-', id[0]),
            });
        }
        assert_eq!(differences, [('-', 0), ('+', 1), ('+', 3), ('-', 4), ('+', 8), ('-', 10)]);
        assert_eq!(walk.compared(), 6);
    }

    #[test]
    fn a_walk_through_equal_shelves_ends_when_it_is_asked_to() {
        let (source, target) = (shelf(&[1, 2, 3]), shelf(&[1, 2, 3]));
        let mut walk = ComparisonWalk::new(&source, &target).unwrap();
        assert_eq!(walk.next_difference_with(|_| ControlFlow::Break(())).unwrap(), None);
        assert_eq!(walk.compared(), 0);
        let mut reads = 0;
        let ended = walk.next_difference_with(|_| {
            reads += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((ended.unwrap(), walk.compared()), (None, 3));
        assert!(reads > 0);
    }

    #[test]
    fn a_record_that_both_shelves_get_after_the_target_was_noted_is_no_extra_record() {
        let (source, target) = (shelf(&[1, 2]), shelf(&[1, 2]));
        let noted = WalkTarget::new(&target).unwrap();
        for shelf in [&source, &target] {
            shelf.commit(&[Write::Put(record(7))]).unwrap();
        }
        let mut walk = ComparisonWalk::with(&source, noted).unwrap();
        // The record is copied once more, which changes nothing.
        let missing = Difference::Missing(record(7));
        assert_eq!(walk.next_difference().unwrap(), Some(missing));
        assert_eq!(walk.next_difference().unwrap(), None);
    }
}
