//! The times and ids of the events of a comparison.
//!
//! A search yields the items newest first, and the comparison reads the items oldest first. The
//! items are kept in chunks of equal size, so growth copies no items. For each chunk, the set
//! stores the sum of all ids before the chunk. So the fingerprint of a range is computed from two
//! stored sums and the few ids at both ends of the range.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hark_codec::id_sum::IdSum;
use hark_codec::nostr::negentropy::{NegentropyItem, NegentropySet};
use hark_networks::nostr::{NostrRefusal, NostrVerdict};

use crate::budget::BudgetShare;
use crate::limits::Limits;

/// Number of items of a chunk.
const CHUNK_ITEMS: usize = 128;

/// Size of a chunk in bytes, with its sum.
pub(super) const CHUNK_BYTES: usize =
    CHUNK_ITEMS * size_of::<NegentropyItem>() + size_of::<Vec<NegentropyItem>>() + 32;

/// The memory of a set. It counts against the bound of the connection, and against the bound of all
/// connections.
pub(super) struct SetMemory {
    share: BudgetShare,
    of_connection: Arc<AtomicUsize>,
    connection_bytes_max: usize,
    bytes_max: usize,
}

impl SetMemory {
    /// Creates a set's memory, without reserved bytes. `of_connection` counts the bytes of the
    /// whole connection.
    pub(super) fn new(
        share: BudgetShare,
        of_connection: Arc<AtomicUsize>,
        limits: &Limits,
    ) -> Self {
        let connection_bytes_max = limits.negentropy_connection_bytes_max;
        Self { share, of_connection, connection_bytes_max, bytes_max: limits.negentropy_bytes_max }
    }

    /// Reserves memory for a number of items outside a [`ComparedSet`], or returns a refusal.
    pub(super) fn hold(&mut self, items: usize) -> Result<(), NostrRefusal> {
        while self.share.bytes() < items.div_ceil(CHUNK_ITEMS) * CHUNK_BYTES {
            self.grow()?;
        }
        Ok(())
    }

    /// Releases the memory, which a [`ComparedSet`] is to reserve again.
    pub(super) fn release(&mut self) {
        self.of_connection.fetch_sub(self.share.bytes(), Ordering::Relaxed);
        // Cannot fail, because the share shrinks.
        let _ = self.share.resize(0, self.bytes_max);
    }

    /// Reserves memory for one more chunk, or returns a refusal.
    fn grow(&mut self) -> Result<(), NostrRefusal> {
        let max = self.connection_bytes_max;
        let before = self.of_connection.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
        if before + CHUNK_BYTES > max {
            self.of_connection.fetch_sub(CHUNK_BYTES, Ordering::Relaxed);
            let words = format!("comparisons of more than {max} bytes; close some");
            return Err(NostrVerdict::Blocked.because(words));
        }
        if !self.share.resize(self.share.bytes() + CHUNK_BYTES, self.bytes_max) {
            self.of_connection.fetch_sub(CHUNK_BYTES, Ordering::Relaxed);
            let words = "open comparisons take all the memory there is for them; close some, or \
                         try again later";
            return Err(NostrVerdict::RateLimited.because(words));
        }
        Ok(())
    }
}

impl Drop for SetMemory {
    fn drop(&mut self) {
        self.of_connection.fetch_sub(self.share.bytes(), Ordering::Relaxed);
    }
}

/// The set of a comparison. Its items are in the order of the search until [`ComparedSet::seal`] is
/// called.
pub(super) struct ComparedSet {
    /// All chunks but the last are full.
    chunks: Vec<Vec<NegentropyItem>>,
    /// Entry `i` is the sum of the ids in the first `i` chunks, all of which are full.
    sums: Vec<IdSum>,
    /// Index of the first item whose time equals the time of the last item.
    run: usize,
    memory: SetMemory,
}

impl ComparedSet {
    pub(super) fn new(memory: SetMemory) -> Self {
        Self { chunks: Vec::new(), sums: vec![IdSum::default()], run: 0, memory }
    }

    /// Adds the next item of the search. Items must come by descending time and, at equal time, by
    /// ascending id. Refuses the item if there is no memory left.
    pub(super) fn push(&mut self, item: NegentropyItem) -> Result<(), NostrRefusal> {
        let len = self.size();
        if self.run < len && self.pushed(len - 1).is_none_or(|last| last.time != item.time) {
            self.end_run();
        }
        if len == self.chunks.len() * CHUNK_ITEMS {
            self.memory.grow()?;
            self.chunks.push(Vec::with_capacity(CHUNK_ITEMS));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(item);
        }
        Ok(())
    }

    /// Prepares the set for comparison.
    pub(super) fn seal(mut self) -> Self {
        self.end_run();
        self
    }

    /// Sorts the last items of equal time by descending id, once all items of that time are in the
    /// set. So the set is in ascending order when it is read backwards. Then adds the sums of the
    /// chunks that are now full and sorted.
    fn end_run(&mut self) {
        let len = self.size();
        let (mut low, mut high) = (self.run, len);
        while high - low > 1 {
            high -= 1;
            let ends = (self.pushed(low).copied(), self.pushed(high).copied());
            if let (Some(first), Some(last)) = ends {
                self.put(low, last);
                self.put(high, first);
            }
            low += 1;
        }
        self.run = len;
        while let (Some(sum), Some(chunk)) =
            (self.sums.last(), self.chunks.get(self.sums.len() - 1))
            && chunk.len() == CHUNK_ITEMS
        {
            let sum = chunk.iter().fold(*sum, |sum, item| sum.plus((&item.id).into()));
            self.sums.push(sum);
        }
    }

    fn pushed(&self, at: usize) -> Option<&NegentropyItem> {
        self.chunks.get(at / CHUNK_ITEMS)?.get(at % CHUNK_ITEMS)
    }

    fn put(&mut self, at: usize, item: NegentropyItem) {
        let chunk = self.chunks.get_mut(at / CHUNK_ITEMS);
        if let Some(place) = chunk.and_then(|chunk| chunk.get_mut(at % CHUNK_ITEMS)) {
            *place = item;
        }
    }

    /// The sum of the ids of the first `count` items in the order of the search.
    fn sum_of_first(&self, count: usize) -> IdSum {
        let (chunk, rest) = (count / CHUNK_ITEMS, count % CHUNK_ITEMS);
        let before = self.sums.get(chunk).copied().unwrap_or_default();
        let items = self.chunks.get(chunk).and_then(|chunk| chunk.get(..rest));
        let items = items.unwrap_or_default().iter();
        items.fold(before, |sum, item| sum.plus((&item.id).into()))
    }
}

impl NegentropySet for ComparedSet {
    fn size(&self) -> usize {
        let full = self.chunks.len().saturating_sub(1) * CHUNK_ITEMS;
        full + self.chunks.last().map_or(0, Vec::len)
    }

    fn item(&self, index: usize) -> Option<&NegentropyItem> {
        self.pushed(self.size().checked_sub(index)?.checked_sub(1)?)
    }

    fn sum(&self, range: Range<usize>) -> IdSum {
        let size = self.size();
        let (from, to) = (size.saturating_sub(range.end), size.saturating_sub(range.start));
        self.sum_of_first(to).minus(self.sum_of_first(from))
    }
}

/// Cost of computing one sum, as a multiple of the cost of one compared or copied item. On average,
/// a sum adds half of a chunk's ids at each end of its range.
const SUM_ITEMS: u64 = 16;
/// Number of items that are compared or copied in the time that a search takes for one row.
const ITEMS_PER_ROW: u64 = 4;

/// A set that counts how many items and sums are read.
pub(super) struct CountedSet<'a> {
    set: &'a ComparedSet,
    items: Cell<u64>,
}

impl<'a> CountedSet<'a> {
    pub(super) fn new(set: &'a ComparedSet) -> Self {
        Self { set, items: Cell::new(0) }
    }

    /// The work so far, as the number of rows that a search visits in the same time.
    pub(super) fn rows(&self) -> u64 {
        self.items.get().div_ceil(ITEMS_PER_ROW)
    }

    fn count(&self, items: u64) {
        self.items.set(self.items.get() + items);
    }
}

impl NegentropySet for CountedSet<'_> {
    fn size(&self) -> usize {
        self.set.size()
    }

    fn item(&self, index: usize) -> Option<&NegentropyItem> {
        self.count(1);
        self.set.item(index)
    }

    fn sum(&self, range: Range<usize>) -> IdSum {
        self.count(SUM_ITEMS);
        self.set.sum(range)
    }
}

#[cfg(test)]
mod tests {
    use hark_codec::nostr::negentropy::SortedItems;
    use hark_testkit::random::Random;

    use super::*;
    use crate::budget::Budget;

    fn memory(of_connection: &Arc<AtomicUsize>, limits: &Limits) -> SetMemory {
        SetMemory::new(Arc::<Budget>::default().share(None), Arc::clone(of_connection), limits)
    }

    /// A set of chunks gives the same answers as a sorted list, even if many items have the same
    /// time.
    #[test]
    fn chunks_answer_like_a_sorted_list() {
        let mut random = Random::new(77);
        for (count, times) in
            [(0, 1), (1, 1), (128, 3), (129, 1), (2_000, 1), (2_000, 9), (2_500, 4_000)]
        {
            let mut items: Vec<NegentropyItem> = (0..count)
                .map(|_| NegentropyItem { time: random.below(times) as u64, id: random.bytes() })
                .collect();
            let sorted: SortedItems = items.clone().into();
            items.sort_unstable_by(|a, b| b.time.cmp(&a.time).then(a.id.cmp(&b.id)));
            let of_connection = Arc::default();
            let mut set = ComparedSet::new(memory(&of_connection, &Limits::default()));
            for item in items {
                set.push(item).unwrap();
            }
            let set = set.seal();
            let size = sorted.size();
            assert_eq!(set.size(), size);
            assert!((0..=size).all(|at| set.item(at) == sorted.item(at)), "{count} of {times}");
            for _ in 0..200 {
                let from = random.below(size + 1);
                let to = from + random.below(size - from + 1);
                assert_eq!(set.fingerprint(from..to), sorted.fingerprint(from..to), "{from}..{to}");
            }
            assert_eq!(
                of_connection.load(Ordering::Relaxed),
                size.div_ceil(CHUNK_ITEMS) * CHUNK_BYTES
            );
            drop(set);
            assert_eq!(of_connection.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn what_a_connection_and_all_of_them_hold_is_bounded() {
        let connection =
            Limits { negentropy_connection_bytes_max: 2 * CHUNK_BYTES, ..Limits::default() };
        let all = Limits { negentropy_bytes_max: 2 * CHUNK_BYTES, ..Limits::default() };
        for (limits, verdict) in
            [(connection, NostrVerdict::Blocked), (all, NostrVerdict::RateLimited)]
        {
            let of_connection = Arc::default();
            let mut set = ComparedSet::new(memory(&of_connection, &limits));
            let refused = (0..).find_map(|n| {
                set.push(NegentropyItem { time: u64::MAX - 1 - n, id: [1; 32] }).err()
            });
            assert_eq!(refused.map(|refusal| refusal.verdict), Some(verdict));
            assert_eq!(set.size(), 2 * CHUNK_ITEMS);
            drop(set);
            assert_eq!(of_connection.load(Ordering::Relaxed), 0);
        }
    }
}
