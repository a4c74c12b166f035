//! A segment as a source for queries.

use std::cell::RefCell;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use hark_archive::query::source::Source;
use hark_archive::{Id, Order, Query, Record};

use super::RecordAddress;
use super::file::{SegmentFile, partition, partition_near};
use super::opened::Segment;
use super::packed::{BLOCK_ROWS, PackedList, PackedReader};

/// A segment in the view of readers or of the writer.
pub struct SegmentView {
    /// The segment.
    pub segment: Arc<Segment>,
    /// Whether rows that the current batch deletes already count as dead.
    pub writing: bool,
}

/// A posting list of a segment.
#[derive(Clone)]
pub enum SegmentPostings {
    /// All rows.
    Every,
    /// A posting list: its kind, and its position in the postings.
    List(u32, Range<u32>),
    /// The list of a word.
    Packed(PackedPostings),
}

/// The posting list of a word, and the block that was unpacked last.
pub struct PackedPostings {
    kind: u32,
    list: PackedList,
    reader: RefCell<PackedReader>,
}

impl PackedPostings {
    fn new(kind: u32, list: PackedList) -> Self {
        Self { kind, list, reader: RefCell::new(PackedReader::new(list)) }
    }

    /// The first index, from `from` on, at which the row is `row` or higher.
    fn seek(&self, file: &SegmentFile, from: usize, row: u32) -> usize {
        self.reader.borrow_mut().seek(file.words().blocks, from, row)
    }
}

impl Clone for PackedPostings {
    fn clone(&self) -> Self {
        Self::new(self.kind, self.list)
    }
}

impl SegmentView {
    fn file(&self) -> &SegmentFile {
        &self.segment.file
    }

    #[inline]
    fn at(&self, posting_list: &SegmentPostings, index: usize) -> u32 {
        match posting_list {
            SegmentPostings::Every => index as u32,
            SegmentPostings::List(_, list) => self.file().posting(list.start + index as u32),
            SegmentPostings::Packed(packed) => {
                packed.reader.borrow_mut().get(self.file().words().blocks, index)
            }
        }
    }

    /// Returns the first row that comes after this time and id, in the order from newest to oldest.
    fn first_behind(&self, time: u64, id: &Id) -> u32 {
        let start = self.file().first_at_or_before(time);
        let older = time.checked_sub(1);
        let end = older.map_or(self.file().rows, |time| self.file().first_at_or_before(time));
        start
            + partition(end.saturating_sub(start), |row| {
                // In a format without ids, the id is read from the record, which only a dead row
                // can lack. Instead of such a row, the next row that has a record is compared.
                let mut rows = start + row..end;
                rows.find_map(|row| self.segment.id(row)).is_some_and(|other| other <= *id)
            })
    }
}

impl Source for SegmentView {
    /// The time (or 0) and the row, ascending in the query's order. The time is needed only in the
    /// order from oldest to newest.
    type Key = (u64, u32);
    type PostingList = SegmentPostings;
    type Window = Range<u32>;
    type RecordLocation = RecordAddress;

    fn name(&self) -> String {
        format!("segment {}", self.segment.entry.number)
    }

    fn trouble(&self) -> Option<String> {
        self.segment.trouble()
    }

    fn rows(&self) -> u64 {
        u64::from(self.file().rows)
    }

    fn span(&self) -> Option<(u64, u64)> {
        (self.file().rows > 0).then(|| (self.file().oldest, self.file().newest))
    }

    fn every(&self, each: &mut impl FnMut(SegmentPostings)) {
        each(SegmentPostings::Every);
    }

    fn kinds(&self, kinds: &[u32], each: &mut impl FnMut(SegmentPostings)) {
        let known = &self.segment.kinds;
        for kind in kinds {
            if let Ok(at) = known.binary_search_by_key(kind, |(kind, _)| *kind) {
                each(SegmentPostings::List(*kind, known[at].1.clone()));
            }
        }
    }

    fn has_kinds(&self, kinds: &[u32]) -> bool {
        let known = &self.segment.kinds;
        kinds.iter().any(|kind| known.binary_search_by_key(kind, |(kind, _)| *kind).is_ok())
    }

    fn list_kind(&self, posting_list: &SegmentPostings) -> Option<u32> {
        match posting_list {
            SegmentPostings::Every => None,
            SegmentPostings::List(kind, _) => Some(*kind),
            SegmentPostings::Packed(packed) => Some(packed.kind),
        }
    }

    fn list_bytes(&self, posting_list: &SegmentPostings) -> usize {
        match posting_list {
            SegmentPostings::Every | SegmentPostings::List(..) => 0,
            SegmentPostings::Packed(_) => BLOCK_ROWS * size_of::<u32>(),
        }
    }

    fn has_term(&self, term: u64, kinds: Option<&[u32]>) -> bool {
        let any = &mut |_, _| ControlFlow::Break(());
        self.segment.may_have(term, kinds) && self.file().entries_of(term, kinds, any).is_break()
    }

    fn terms(
        &self,
        terms: &[u64],
        kinds: Option<&[u32]>,
        each: &mut impl FnMut(u32, SegmentPostings) -> ControlFlow<()>,
    ) {
        let rare = self.segment.rare_only(kinds);
        for (at, &term) in (0..).zip(terms) {
            if rare
                .as_ref()
                .is_some_and(|rare| !rare.iter().any(|terms| terms.binary_search(&term).is_ok()))
            {
                continue;
            }
            let flow = self.file().entries_of(term, kinds, &mut |kind, entry| {
                each(at, SegmentPostings::List(kind, self.file().list(entry)))
            });
            if flow.is_break() {
                return;
            }
        }
    }

    fn has_words(&self) -> bool {
        self.segment.has_words()
    }

    fn word(&self, word: &str, kinds: Option<&[u32]>, each: &mut impl FnMut(u8, SegmentPostings)) {
        let wanted = |kind: u32| kinds.is_none_or(|kinds| kinds.binary_search(&kind).is_ok());
        for ((kind, class), list) in self.file().words().find(word) {
            if wanted(kind) {
                each(class, SegmentPostings::Packed(PackedPostings::new(kind, list)));
            }
        }
    }

    fn words_from(&self, beginning: &str, max: usize) -> Option<Vec<Box<str>>> {
        self.file().words().beginning(beginning, max)
    }

    fn find(&self, id: &Id, hash: u64) -> Option<u32> {
        let (mut alive, mut dead) = (None, None);
        // If a record was deleted and put again, its id has several rows. At most one of them is
        // alive.
        for row in self.file().rows_of_id(hash) {
            match (self.segment.id_of_any(row), self.is_dead(row)) {
                (Some(other), _) if other != *id => self.segment.note_other(&other, hash),
                (None, true) => {}
                (Some(_), true) => dead = dead.or(Some(row)),
                // The hash shows that the row belongs to the id, even if the record is damaged. So
                // a reader of the row reports damage instead of a missing record. If the record was
                // put again, the undamaged copy is returned.
                (_, false) => {
                    let first = alive.filter(|&first| self.segment.record(first).is_some());
                    alive = first.or(Some(row));
                }
            }
        }
        alive.or(dead)
    }

    fn window(&self, query: &Query) -> Range<u32> {
        let mut start = self.file().first_at_or_before(query.to);
        let mut from = query.from;
        match query.after {
            Some(after) if query.order == Order::NewestFirst => {
                start = start.max(self.first_behind(after.time, &after.id));
            }
            Some(after) => from = from.max(after.time),
            None => {}
        }
        let end = match from.checked_sub(1) {
            Some(before) => self.file().first_at_or_before(before),
            None => self.file().rows,
        };
        start..end.max(start)
    }

    fn clip(&self, posting_list: &SegmentPostings, window: &Range<u32>) -> Range<usize> {
        match posting_list {
            SegmentPostings::Every => window.start as usize..window.end as usize,
            SegmentPostings::List(_, list) => {
                let len = list.end - list.start;
                if window.start == 0 && window.end == self.file().rows {
                    return 0..len as usize;
                }
                // The rows of a list are usually spread evenly over the segment, so the first guess
                // is interpolated.
                let first = |row: u32| {
                    let share =
                        u64::from(row) * u64::from(len) / u64::from(self.file().rows.max(1));
                    let before = |at| self.file().posting(list.start + at) < row;
                    partition_near(len, share as u32, before)
                };
                let start = first(window.start);
                start as usize..first(window.end).max(start) as usize
            }
            SegmentPostings::Packed(packed) => {
                let len = packed.list.len;
                if window.start == 0 && window.end == self.file().rows {
                    return 0..len;
                }
                let start = packed.seek(self.file(), 0, window.start).min(len);
                start..packed.seek(self.file(), start, window.end).min(len)
            }
        }
    }

    fn within(&self, row: u32, window: &Range<u32>) -> bool {
        window.contains(&row)
    }

    fn is_up_to(&self, row: u32, id: &Id) -> bool {
        self.file().id(row).is_some_and(|of_row| of_row <= *id)
    }

    #[inline]
    fn key(&self, posting_list: &SegmentPostings, index: usize, order: Order) -> (u64, u32) {
        self.key_of(self.at(posting_list, index), order)
    }

    #[inline]
    fn key_of(&self, row: u32, order: Order) -> (u64, u32) {
        match order {
            Order::NewestFirst => (0, row),
            Order::OldestFirst => (self.file().time(row), row),
        }
    }

    fn time_of(&self, row: u32) -> u64 {
        self.file().time(row)
    }

    fn row(&self, key: (u64, u32)) -> u32 {
        key.1
    }

    #[inline]
    fn row_at(&self, posting_list: &SegmentPostings, index: usize) -> u32 {
        self.at(posting_list, index)
    }

    fn list_time(&self, posting_list: &SegmentPostings, index: usize) -> u64 {
        self.file().time(self.at(posting_list, index))
    }

    fn seek(&self, posting_list: &SegmentPostings, range: Range<usize>, row: u32) -> usize {
        if let SegmentPostings::Packed(packed) = posting_list {
            return packed.seek(self.file(), range.start, row).min(range.end);
        }
        let len = range.len();
        let before = |at: usize| self.at(posting_list, range.start + at) < row;
        let (mut low, mut reach) = (0, 1);
        while low + reach < len && before(low + reach) {
            low += reach;
            reach *= 2;
        }
        let high = (low + reach).min(len);
        range.start + low + partition((high - low) as u32, |at| before(low + at as usize)) as usize
    }

    fn alike(
        &self,
        all: (&SegmentPostings, Range<usize>),
        some: (&SegmentPostings, Range<usize>),
    ) -> usize {
        let ((SegmentPostings::Every, all), (SegmentPostings::List(_, list), some)) = (all, some)
        else {
            return 0;
        };
        let len = all.len().min(some.len()) as u32;
        // The rows of a list ascend, so the common rows of the two parts come first.
        let same = |at: u32| {
            self.file().posting(list.start + some.start as u32 + at) == all.start as u32 + at
        };
        partition_near(len, 0, same) as usize
    }

    fn is_dead(&self, row: u32) -> bool {
        let dead = &self.segment.dead;
        if self.writing { dead.doomed.get(row) } else { dead.dead.get(row) }
    }

    fn count_dead(&self, posting_list: &SegmentPostings, range: Range<usize>) -> u64 {
        let dead = &self.segment.dead;
        let bits = if self.writing { &dead.doomed } else { &dead.dead };
        let count = match posting_list {
            SegmentPostings::Every => range.filter(|&row| bits.get(row as u32)).count(),
            SegmentPostings::List(_, list) => {
                let rows = self.file().postings(list.clone()).skip(range.start).take(range.len());
                rows.filter(|&row| bits.get(row)).count()
            }
            SegmentPostings::Packed(_) => {
                range.filter(|&at| bits.get(self.at(posting_list, at))).count()
            }
        };
        count as u64
    }

    fn dead_rows(&self, kind: Option<u32>, rows: &mut Vec<u32>) {
        let dead = &self.segment.dead;
        let bits = if self.writing { &dead.doomed } else { &dead.dead };
        match kind {
            Some(kind) if !self.writing => {
                let kinds_of = |rows: &[u32]| self.segment.kinds_of(rows);
                dead.rows.of_kind(kind, || dead.dead.words().collect(), kinds_of, rows);
            }
            _ => rows.extend(bits.ones()),
        }
    }

    fn locate(&self, row: u32) -> RecordAddress {
        self.segment.address(row)
    }

    fn prefetch(&self, address: RecordAddress) {
        if let Some(log) = self.segment.log(address) {
            log.prefetch(address.offset);
        }
    }

    fn read_ahead(&self, address: RecordAddress) {
        if let Some(log) = self.segment.log(address) {
            log.read_ahead(address.offset);
        }
    }

    fn read(&self, row: u32, address: RecordAddress) -> Option<Record<'_>> {
        self.segment.record_at(row, address)
    }

    fn expired(&self, now: u64, rows: &mut Vec<u32>) {
        rows.extend(
            self.file().expiries().take_while(|(time, _)| *time <= now).map(|(_, row)| row),
        );
    }
}
