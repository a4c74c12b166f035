//! The rows that drive a walk: posting lists that are merged lazily, or sorted rows. The planner
//! (`plan.rs`) has chosen this set of rows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;

use super::Query;
use super::source::Source;
use super::stream::{PostingSlice, PostingStream};

/// Maximum number of streams of a driver that are begun in one step. Beginning a stream reads its
/// first row.
const BEGUN_MAX: usize = 64;

/// The rows that drive a walk, in the state that the walk has reached.
pub(super) enum Driver<S: Source> {
    /// Sorted rows, each with the value under which its posting list was found.
    Keys(std::vec::IntoIter<(S::Key, u32)>),
    /// Lists with so few rows that the rows are intersected with the other sets first, and sorted
    /// afterwards; see `SourceWalk::cut_all`.
    Few(Vec<PostingStream<S::PostingList>>),
    One(PostingStream<S::PostingList>),
    /// Streams that are being begun: the first `begun` are at their first rows, which are in
    /// `heads`.
    Beginning {
        streams: Vec<PostingStream<S::PostingList>>,
        begun: usize,
        heads: Vec<Reverse<(S::Key, u32)>>,
    },
    /// The walk follows one stream while its next key comes before the next keys of all other
    /// streams. The other streams are in the heap, sorted by their next keys.
    Many {
        streams: Vec<PostingStream<S::PostingList>>,
        now: Option<(S::Key, u32)>,
        heap: RowHeap<S::Key>,
    },
}

type RowHeap<K> = BinaryHeap<Reverse<(K, u32)>>;

impl<S: Source> Driver<S> {
    /// Returns the number of posting lists; if the driver's rows are sorted, the number of rows.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.len(),
            Self::Few(streams) | Self::Beginning { streams, .. } | Self::Many { streams, .. } => {
                streams.len()
            }
            Self::One(_) => 1,
        }
    }

    /// Pops the next row, with the value and the kind of its posting list. A row that is in several
    /// lists is returned once for each list, in succession.
    #[inline]
    pub(super) fn next_row(
        &mut self,
        source: &S,
        query: &Query,
    ) -> Option<(u32, u32, Option<u32>)> {
        match self {
            Self::Keys(keys) => keys.next().map(|(key, value)| (source.row(key), value, None)),
            // The rows are not prepared, because the search has used up its work.
            Self::Few(_) | Self::Beginning { .. } => None,
            Self::One(stream) => {
                let index = stream.step(source, query)?;
                Some((source.row_at(&stream.list, index), stream.value, stream.kind))
            }
            Self::Many { streams, now, heap } => {
                let (key, at) = now.take()?;
                let stream = &mut streams[at as usize];
                let found = (source.row(key), stream.value, stream.kind);
                let next = stream.step(source, query);
                let next = next.map(|index| (source.key(&stream.list, index, query.order), at));
                *now = match (next, heap.peek_mut()) {
                    (Some(next), Some(mut first)) if first.0 < next => {
                        Some(std::mem::replace(&mut first.0, next))
                    }
                    (Some(next), _) => Some(next),
                    (None, Some(first)) => Some(PeekMut::pop(first).0),
                    (None, None) => None,
                };
                Some(found)
            }
        }
    }
}

pub(super) fn drive<S: Source>(
    source: &S,
    cuts: Vec<PostingSlice<S::PostingList>>,
    query: &Query,
) -> Driver<S> {
    let mut streams: Vec<PostingStream<S::PostingList>> =
        cuts.into_iter().map(PostingStream::new).collect();
    if streams.len() == 1
        && let Some(stream) = streams.pop()
    {
        return Driver::One(stream);
    }
    if streams.len() > BEGUN_MAX {
        return Driver::Beginning { streams, begun: 0, heads: Vec::new() };
    }
    let mut heads = Vec::with_capacity(streams.len());
    let all = 0..streams.len();
    begin(source, &mut streams, all, query, &mut heads);
    merged(streams, heads)
}

/// Advances these streams to their first rows.
pub(super) fn begin<S: Source>(
    source: &S,
    streams: &mut [PostingStream<S::PostingList>],
    some: Range<usize>,
    query: &Query,
    heads: &mut Vec<Reverse<(S::Key, u32)>>,
) {
    for at in some {
        let stream = &mut streams[at];
        if let Some(index) = stream.step(source, query) {
            heads.push(Reverse((source.key(&stream.list, index, query.order), at as u32)));
        }
    }
}

pub(super) fn merged<S: Source>(
    streams: Vec<PostingStream<S::PostingList>>,
    heads: Vec<Reverse<(S::Key, u32)>>,
) -> Driver<S> {
    let mut heap = BinaryHeap::from(heads);
    let now = heap.pop().map(|Reverse(first)| first);
    Driver::Many { streams, now, heap }
}

/// Returns the indices in `set` of the posting lists of `kind`. The lists of the set must be sorted
/// by kind.
#[inline]
pub(super) fn of_kind<R>(set: &[PostingSlice<R>], kind: Option<u32>) -> Range<usize> {
    let start = set.partition_point(|cut| cut.kind < kind);
    start..start + set[start..].partition_point(|cut| cut.kind == kind)
}

/// Sets the kinds of the posting lists (`PostingSlice::kind`). A row is only in lists of its own
/// kind, so a list is dropped if another set has no list of the same kind. The lists of a `fixed`
/// driver are not dropped, because the other sets must not change the number of walked rows. Sorts
/// the lists of the other sets by kind; lists of one kind keep their order.
pub(super) fn pair_by_kind<S: Source>(
    source: &S,
    driver: &mut Vec<PostingSlice<S::PostingList>>,
    sets: &mut [Vec<PostingSlice<S::PostingList>>],
    fixed: bool,
) {
    for cut in driver.iter_mut().chain(sets.iter_mut().flatten()) {
        cut.kind = source.list_kind(&cut.list);
    }
    for set in &mut *sets {
        set.sort_by_key(|cut| cut.kind);
    }
    let has = |set: &[PostingSlice<S::PostingList>], kind| {
        set.binary_search_by_key(&kind, |cut| cut.kind).is_ok()
    };
    driver.retain(|cut| fixed || sets.iter().all(|set| has(set, cut.kind)));
    let mut kinds: Vec<Option<u32>> = driver.iter().map(|cut| cut.kind).collect();
    kinds.sort_unstable();
    for set in sets {
        set.retain(|cut| kinds.binary_search(&cut.kind).is_ok());
    }
}
