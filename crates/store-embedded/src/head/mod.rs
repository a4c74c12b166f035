//! The head: the newest records, indexed in memory while their log is being written.
//!
//! One thread inserts, and any number of threads read. Rows, ids and posting lists are read without
//! a lock. The words of the newest rows are read under a lock (`head_words`). Rows are numbered in
//! the order of arrival. A reader notes the number of published rows at its start and skips later
//! rows, so posting lists may grow while it reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hark_archive::query::prepared::TermMap as _;
use hark_archive::{Id, Record};
use parking_lot::Mutex;

pub use self::head_view::HeadView;
use self::head_words::HeadWords;
use self::ids::Ids;
use self::lists::PostingLists;
pub(crate) use self::size::ROW_BYTES;
pub use self::size::ROWS_MAX;
use self::table::{CHUNK, RowTable, TableChunk};
pub use self::table::{HeadRow, id_prefix};
pub use self::word_run::ListOfRun;
use crate::bits::DeadRows;
use crate::log::Log;
use crate::sums::SummedHead;
use crate::term::{TermBuffers, TermHasher};

mod arena;
mod head_view;
mod head_words;
mod ids;
mod lists;
mod long;
mod size;
mod summed;
mod table;
#[cfg(test)]
mod tests;
mod word_run;

/// Lower bound for the average number of bytes that a text has per distinct word.
const TEXT_BYTES_PER_WORD: usize = 4;
/// Approximate upper bound for the bytes of memory that a record takes in a head. It assumes that
/// no other record has the same labels and words.
pub(crate) fn bytes_of_record(bytes: &[u8], terms: &TermHasher) -> u64 {
    let Ok(record) = Record::new(bytes) else { return ROW_BYTES };
    let has_words = terms.has_words_of(record.kind());
    let words = if has_words { record.wire().len() / TEXT_BYTES_PER_WORD } else { 0 };
    let words = words.min(hark_words::TOKENS_MAX) as u64;
    // The `+ 1` is for the term of the author.
    ROW_BYTES
        + (record.labels_max() as u64 + 1) * (lists::ENTRY_BYTES + lists::POSTING_BYTES)
        + words * (head_words::LONE_WORD_BYTES + TEXT_BYTES_PER_WORD as u64)
}

/// The newest records of a shelf, indexed in memory; see the module's documentation.
pub struct Head {
    /// The log of these records.
    pub log: Arc<Log>,
    /// Number of rows that earlier heads have had since the shelf was opened.
    pub base: u64,
    terms: TermHasher,
    table: RowTable,
    /// The term that all rows have.
    every: u64,
    lists: PostingLists,
    ids: Ids,
    words: HeadWords,
    inserted: AtomicU32,
    published: AtomicU32,
    /// Total number of rows in the posting lists of labels and authors.
    postings: AtomicU64,
    dead: DeadRows,
    oldest: AtomicU64,
    newest: AtomicU64,
    expiring: Mutex<BTreeMap<u64, Vec<u32>>>,
    next_expiry: AtomicU64,
    /// The rows that are included in sums; `None` before sums are needed for the first time.
    summed: Mutex<Option<SummedHead>>,
}

impl Head {
    /// Makes an empty head for `log`. The tables have space for about `rows` rows. With more rows
    /// the tables grow, which delays the inserting thread.
    pub fn new(log: Arc<Log>, terms: TermHasher, base: u64, rows: u32) -> Self {
        Self {
            log,
            base,
            table: RowTable::new(),
            every: terms.every(),
            terms,
            lists: PostingLists::new(rows),
            ids: Ids::new(rows),
            words: HeadWords::new(rows),
            inserted: AtomicU32::new(0),
            published: AtomicU32::new(0),
            postings: AtomicU64::new(0),
            dead: DeadRows::new(0),
            oldest: AtomicU64::new(u64::MAX),
            newest: AtomicU64::new(0),
            expiring: Mutex::default(),
            next_expiry: AtomicU64::new(u64::MAX),
            summed: Mutex::default(),
        }
    }

    /// Number of inserted rows, published or not.
    pub fn inserted(&self) -> u32 {
        self.inserted.load(Ordering::Acquire)
    }

    /// Approximate memory of the head in bytes. Posting lists may take more memory than rows,
    /// because a record adds a list for each of its unique labels.
    pub fn bytes(&self) -> u64 {
        let rows = u64::from(self.inserted());
        let tables = if rows > 0 { self.lists.table_bytes() + self.ids.table_bytes() } else { 0 };
        let lists = self.lists.bytes();
        let postings = self.postings.load(Ordering::Relaxed);
        self.words.bytes() + tables + rows * ROW_BYTES + lists + postings * lists::POSTING_BYTES
    }

    /// Number of rows that readers may see.
    pub fn published(&self) -> u32 {
        self.published.load(Ordering::Acquire)
    }

    /// Makes all inserted rows visible to readers.
    pub fn publish(&self) {
        self.published.store(self.inserted(), Ordering::Release);
    }

    /// Number of rows that are durably dead.
    pub fn dead_count(&self) -> u32 {
        self.dead.count()
    }

    /// Inserts a record; its frame is at `offset` of the log. Called by one thread at a time.
    pub fn insert(&self, record: &Record<'_>, offset: u32, buffers: &mut TermBuffers) -> u32 {
        let row = self.inserted();
        let (time, kind, id) = (record.time(), record.kind(), record.id());
        let hash = self.terms.id(id);
        self.table.set(row, HeadRow { time, id: id_prefix(id), hash, offset, kind });
        self.oldest.fetch_min(time, Ordering::AcqRel);
        self.newest.fetch_max(time, Ordering::AcqRel);
        if let Some(at) = record.expires() {
            self.expiring.lock().entry(at).or_default().push(row);
            self.next_expiry.fetch_min(at, Ordering::AcqRel);
        }
        self.inserted.store(row + 1, Ordering::Release);
        self.terms.of(record, buffers);
        let terms = &buffers.terms;
        self.lists.warm(terms);
        self.postings.fetch_add(terms.len() as u64, Ordering::Relaxed);
        self.lists.insert_every(self.every, row, (kind, time), &self.table);
        for &term in terms.iter().filter(|&&term| term != self.every) {
            self.lists.insert(term, row, (kind, time), &self.table);
        }
        self.words.insert((row, kind), buffers.words(), &self.table);
        self.ids.insert(hash, row);
        row
    }

    /// Passes each word to `each`, in ascending order, with its lists, which ascend by kind and
    /// class. Several lists may have the same kind and class.
    pub fn each_word(&self, each: impl FnMut(&str, &[ListOfRun<'_>])) {
        self.words.each_word(&self.table, each);
    }

    /// Upper bound for the bytes that the head's words take in a segment.
    pub fn word_bytes_max(&self) -> u64 {
        self.words.bytes_max(&self.table)
    }

    /// A row of the table.
    pub fn row(&self, row: u32) -> Option<&HeadRow> {
        self.table.get(row)
    }

    /// Returns a row's record, if the record is in the log and undamaged.
    pub fn record(&self, row: u32) -> Option<Record<'_>> {
        self.record_at(row, self.row(row)?.offset)
    }

    /// Returns the record of a row. The record's frame is at `offset`. The first call for a row
    /// verifies the checksum.
    #[inline]
    fn record_at(&self, row: u32, offset: u32) -> Option<Record<'_>> {
        let (verified, at) = (&self.chunk(row)?.verified, row % CHUNK as u32);
        if verified.get(at) {
            return self.whole(self.log.record(offset, false), offset);
        }
        let record = self.whole(self.log.record(offset, true), offset)?;
        verified.set(at);
        Some(record)
    }

    #[inline]
    fn whole<'a>(&self, record: Option<Record<'a>>, offset: u32) -> Option<Record<'a>> {
        if record.is_none() && u64::from(offset) < self.log.written() {
            self.log.note_damaged(offset);
        }
        record
    }

    /// Makes the next read of each record verify the checksum again.
    pub(crate) fn forget_verified(&self) {
        let firsts = (0..self.inserted()).step_by(CHUNK);
        firsts.filter_map(|row| self.chunk(row)).for_each(|chunk| chunk.verified.clear_all());
    }

    /// The term, kind and number of every posting list, in no order. [`Head::rows_of_list`] takes
    /// the number.
    pub fn lists(&self) -> impl Iterator<Item = (u64, u32, u32)> + '_ {
        self.lists.all()
    }

    /// Adds the rows of a posting list to `rows`, in no order.
    pub fn rows_of_list(&self, number: u32, rows: &mut Vec<u32>) {
        self.lists.nth(number, &mut |list| rows.extend((0..list.len()).map(|at| list.row(at))));
    }

    /// The rows that expire and their expiry times, ascending by time.
    pub fn expiries(&self) -> Vec<(u64, u32)> {
        let expiring = self.expiring.lock();
        expiring.iter().flat_map(|(&at, rows)| rows.iter().map(move |&row| (at, row))).collect()
    }

    /// The rows that expire by `now` and their expiry times, ascending by time.
    pub fn expired_by(&self, now: u64) -> Vec<(u64, u32)> {
        if self.next_expiry.load(Ordering::Acquire) > now {
            return Vec::new();
        }
        let expiring = self.expiring.lock();
        let due = expiring.range(..=now);
        due.flat_map(|(&at, rows)| rows.iter().map(move |&row| (at, row))).collect()
    }

    /// Marks a row as deleted by the current batch; returns false if the row was already marked.
    pub fn mark_deleted(&self, row: u32) -> bool {
        self.chunk(row).is_some_and(|chunk| chunk.doomed.set(row % CHUNK as u32))
    }

    /// Marks a row as dead for readers and the writer. The bytes of its frame then count as dead
    /// bytes.
    pub fn kill(&self, row: u32) {
        let (Some(chunk), Some(found)) = (self.chunk(row), self.row(row)) else { return };
        chunk.doomed.set(row % CHUNK as u32);
        if self.dead.kill(row, || chunk.dead.set(row % CHUNK as u32)) {
            self.log.note_dead(found.offset);
            if let Some(summed) = &mut *self.summed.lock() {
                self.remove_summed(summed, row);
            }
        }
    }

    /// Marks the unpublished rows as dead, because writing their batch has failed. No reader has
    /// seen these rows.
    pub fn discard_unpublished(&self) {
        for row in self.published()..self.inserted() {
            if let Some(chunk) = self.chunk(row) {
                chunk.doomed.set(row % CHUNK as u32);
                self.dead.kill(row, || chunk.dead.set(row % CHUNK as u32));
            }
        }
        self.publish();
    }

    /// Withdraws the deletion of a row, because the batch with this deletion could not be written.
    pub fn spare(&self, row: u32) {
        if let Some(chunk) = self.chunk(row)
            && !chunk.dead.get(row % CHUNK as u32)
        {
            chunk.doomed.clear(row % CHUNK as u32);
        }
    }

    /// Returns the id of a row's record.
    pub fn id(&self, row: u32) -> Option<Id> {
        self.record(row).map(|record| *record.id())
    }

    /// Whether a row is durably dead.
    pub fn is_dead(&self, row: u32) -> bool {
        self.chunk(row).is_some_and(|chunk| chunk.dead.get(row % CHUNK as u32))
    }

    fn chunk(&self, row: u32) -> Option<&TableChunk> {
        self.table.chunk(row)
    }
}
