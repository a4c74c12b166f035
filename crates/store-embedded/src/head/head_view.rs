//! A head as a source for queries.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hark_archive::query::source::Source;
use hark_archive::{Id, Order, Query, Record};

use super::Head;
use super::lists::HeadPostings;
use super::table::{CHUNK, Rank, id_prefix};
use crate::log::put_of;
use crate::segment::file::partition;

/// A snapshot of a head.
pub struct HeadView {
    head: Arc<Head>,
    /// Number of rows in the view; later rows are hidden.
    pub(super) rows: u32,
    /// Whether rows that the current batch deletes already count as dead.
    writing: bool,
    /// The frames of the current batch. In the log, they will follow the bytes written so far.
    batch: Option<Arc<Vec<u8>>>,
}

impl HeadView {
    /// Makes the current view of readers.
    pub fn published(head: &Arc<Head>) -> Self {
        Self { head: Arc::clone(head), rows: head.published(), writing: false, batch: None }
    }

    /// Makes the writer's view, which includes the rows of the current batch. The view cannot read
    /// the records of the current batch; see [`HeadView::with_batch`].
    pub fn writing(head: &Arc<Head>) -> Self {
        Self { head: Arc::clone(head), rows: u32::MAX, writing: true, batch: None }
    }

    /// Makes the writer's view, which reads the records of the current batch from `frames`. In the
    /// log, the frames will follow the bytes written so far. Later rows are hidden.
    pub fn with_batch(head: &Arc<Head>, frames: &Arc<Vec<u8>>) -> Self {
        Self { rows: head.inserted(), batch: Some(Arc::clone(frames)), ..Self::writing(head) }
    }

    /// The head.
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }
}

/// The part of a query's window that a head needs.
pub struct HeadWindow {
    from: u64,
    /// In the order from newest to oldest, all rows up to this rank come before the window.
    before: Rank,
}

impl HeadWindow {
    fn is_before(&self, rank: Rank) -> bool {
        rank <= self.before
    }

    fn is_everything(&self) -> bool {
        self.from == 0 && self.before == (0, [0; 2])
    }
}

/// (time key, id, row), ascending in the query's order.
pub type HeadKey = (u64, [u64; 2], u32);

impl Source for HeadView {
    type Key = HeadKey;
    type PostingList = HeadPostings;
    type Window = HeadWindow;
    /// The offset of the frame in the log.
    type RecordLocation = u32;

    fn name(&self) -> String {
        format!("head of log {}", self.head.log.number)
    }

    fn rows(&self) -> u64 {
        u64::from(self.rows.min(self.head.inserted()))
    }

    fn span(&self) -> Option<(u64, u64)> {
        let oldest = self.head.oldest.load(Ordering::Acquire);
        (self.rows() > 0).then(|| (oldest, self.head.newest.load(Ordering::Acquire)))
    }

    fn every(&self, each: &mut impl FnMut(HeadPostings)) {
        self.head.lists.every(each);
    }

    fn kinds(&self, kinds: &[u32], each: &mut impl FnMut(HeadPostings)) {
        for &kind in kinds {
            self.head.lists.kind(self.head.every, kind, each);
        }
    }

    #[inline]
    fn kind_of(&self, row: u32) -> Option<u32> {
        self.head.row(row).map(|row| row.kind)
    }

    fn has_kinds(&self, kinds: &[u32]) -> bool {
        kinds.iter().any(|&kind| self.head.lists.has_kind(self.head.every, kind))
    }

    fn list_kind(&self, list: &HeadPostings) -> Option<u32> {
        list.kind().or_else(|| self.head.row(list.row(0)).map(|row| row.kind))
    }

    fn has_term(&self, term: u64, kinds: Option<&[u32]>) -> bool {
        self.head.lists.has(term, kinds)
    }

    fn terms(
        &self,
        terms: &[u64],
        kinds: Option<&[u32]>,
        each: &mut impl FnMut(u32, HeadPostings) -> ControlFlow<()>,
    ) {
        self.head.lists.warm(terms);
        for (at, &term) in (0..).zip(terms) {
            if self.head.lists.postings(term, kinds, &mut |list| each(at, list)).is_break() {
                return;
            }
        }
    }

    fn has_words(&self) -> bool {
        self.head.terms.has_words()
    }

    fn word(&self, word: &str, kinds: Option<&[u32]>, each: &mut impl FnMut(u8, HeadPostings)) {
        let hash = self.head.terms.word_hash(word);
        self.head.words.lists((hash, word), kinds, &self.head.table, each);
    }

    fn words_from(&self, beginning: &str, max: usize) -> Option<Vec<Box<str>>> {
        self.head.words.beginning(beginning, max)
    }

    fn find(&self, id: &Id, hash: u64) -> Option<u32> {
        let prefix = id_prefix(id);
        let mut rows = self.head.ids.rows(hash).filter(|&row| {
            row < self.rows && self.head.row(row).is_some_and(|row| row.id == prefix)
        });
        // If a record was deleted and put again, its id has several rows. At most one of them is
        // alive.
        let first = rows.next()?;
        if !self.is_dead(first) {
            return Some(first);
        }
        rows.find(|&row| !self.is_dead(row)).or(Some(first))
    }

    fn window(&self, query: &Query) -> HeadWindow {
        // This rank comes directly before all rows of time `to`: the next newer time, with the
        // highest id.
        let newer = query.to.checked_add(1).map_or((0, [0; 2]), |time| (!time, [u64::MAX; 2]));
        match (query.after, query.order) {
            (Some(after), Order::NewestFirst) => {
                let before = newer.max((!after.time, id_prefix(&after.id)));
                HeadWindow { from: query.from, before }
            }
            (Some(after), Order::OldestFirst) => {
                HeadWindow { from: query.from.max(after.time), before: newer }
            }
            (None, _) => HeadWindow { from: query.from, before: newer },
        }
    }

    fn clip(&self, list: &HeadPostings, window: &HeadWindow) -> Range<usize> {
        let len = list.len();
        if window.is_everything() {
            return 0..len;
        }
        let rank = |index: u32| self.head.table.rank(list.row(index as usize));
        let start = partition(len as u32, |index| window.is_before(rank(index)));
        let end = partition(len as u32, |index| !rank(index).0 >= window.from);
        start as usize..end.max(start) as usize
    }

    fn within(&self, row: u32, window: &HeadWindow) -> bool {
        let rank = self.head.table.rank(row);
        !rank.0 >= window.from && !window.is_before(rank)
    }

    fn is_up_to(&self, row: u32, id: &Id) -> bool {
        self.head.table.rank(row).1 < id_prefix(id)
    }

    #[inline]
    fn key(&self, list: &HeadPostings, index: usize, order: Order) -> HeadKey {
        self.key_of(list.row(index), order)
    }

    #[inline]
    fn key_of(&self, row: u32, order: Order) -> HeadKey {
        let (time, id) = self.head.table.rank(row);
        (if order == Order::NewestFirst { time } else { !time }, id, row)
    }

    #[inline]
    fn time_of(&self, row: u32) -> u64 {
        self.head.row(row).map_or(0, |row| row.time)
    }

    #[inline]
    fn row(&self, key: HeadKey) -> u32 {
        key.2
    }

    #[inline]
    fn row_at(&self, list: &HeadPostings, index: usize) -> u32 {
        list.row(index)
    }

    #[inline]
    fn may_have(&self, list: &HeadPostings, row: u32) -> bool {
        list.may_have(row)
    }

    fn list_time(&self, list: &HeadPostings, index: usize) -> u64 {
        self.head.row(list.row(index)).map_or(0, |row| row.time)
    }

    fn seek(&self, list: &HeadPostings, range: Range<usize>, row: u32) -> usize {
        let table = &self.head.table;
        let sort_key = table.sort_key(row);
        let before = |at: u32| table.sort_key(list.row(range.start + at as usize)) < sort_key;
        range.start + partition(range.len() as u32, before) as usize
    }

    #[inline]
    fn is_dead(&self, row: u32) -> bool {
        row >= self.rows
            || self.head.chunk(row).is_none_or(|chunk| {
                let bits = if self.writing { &chunk.doomed } else { &chunk.dead };
                bits.get(row % CHUNK as u32)
            })
    }

    fn dead_rows(&self, kind: Option<u32>, rows: &mut Vec<u32>) {
        let all = || {
            let rows = 0..self.head.inserted().min(self.rows);
            rows.filter(|&row| self.is_dead(row)).collect::<Vec<u32>>()
        };
        match kind {
            Some(kind) if !self.writing => {
                let words = || {
                    // The bits of all rows are read, even of rows beyond this view, because views
                    // with more rows use the same sorted rows.
                    let firsts = (0..self.head.inserted()).step_by(CHUNK);
                    let chunks = firsts.filter_map(|row| self.head.chunk(row));
                    chunks.flat_map(|chunk| chunk.dead.words()).collect::<Vec<u64>>()
                };
                let kind_of = |&row: &u32| self.head.row(row).map(|row| row.kind);
                let kinds_of = |rows: &[u32]| rows.iter().map(kind_of).collect();
                self.head.dead.of_kind(kind, words, kinds_of, rows);
                rows.retain(|&row| row < self.rows);
            }
            _ if self.writing || self.head.dead_count() > 0 => rows.extend(all()),
            _ => {}
        }
        rows.extend(self.rows..self.head.inserted());
    }

    fn locate(&self, row: u32) -> u32 {
        self.head.row(row).map_or(u32::MAX, |row| row.offset)
    }

    #[inline]
    fn locate_alive(&self, row: u32) -> Option<u32> {
        let chunk = self.head.chunk(row).filter(|_| row < self.rows)?;
        let (bits, at) =
            (if self.writing { &chunk.doomed } else { &chunk.dead }, row % CHUNK as u32);
        let found = chunk.rows[at as usize].get()?;
        (!bits.get(at)).then_some(found.offset)
    }

    #[inline]
    fn prefetch(&self, offset: u32) {
        self.head.log.prefetch(offset);
    }

    fn read_ahead(&self, offset: u32) {
        self.head.log.read_ahead(offset);
    }

    #[inline]
    fn read(&self, row: u32, offset: u32) -> Option<Record<'_>> {
        if let Some(batch) = &self.batch
            && let Some(at) = u64::from(offset).checked_sub(self.head.log.written())
        {
            return put_of(batch.get(at as usize..)?);
        }
        self.head.record_at(row, offset)
    }

    fn expired(&self, now: u64, rows: &mut Vec<u32>) {
        rows.extend(self.head.expired_by(now).into_iter().map(|(_, row)| row));
    }
}
