//! A segment with its changing parts (addresses, dead rows), as a source of query results.

use std::cell::RefCell;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hark_archive::query::prepared::TermMap as _;
use hark_archive::query::source::Source;
use hark_archive::{Id, Order, Query, Record};
use parking_lot::Mutex;

use super::RecordAddress;
use super::file::{SegmentFile, partition, partition_near};
use super::packed::{PackedList, PackedReader};
use super::sidecar::SidecarWords;
use crate::bits::{AtomicBits, DeadRows};
use crate::log::Log;
use crate::manifest::{LogEntry, SegmentEntry};
use crate::sums::ExcludedRows;
use crate::term::{TermHasher, lists_words};

/// An open segment.
pub struct Segment {
    /// The segment's line of the manifest when the segment was opened.
    pub entry: SegmentEntry,
    /// The segment's index.
    pub file: Arc<SegmentFile>,
    /// The addresses of the segment's records.
    pub addresses: Arc<SidecarWords>,
    /// The logs from the first to the last that the segment covers; `None` for a removed log.
    pub logs: Vec<Option<Arc<Log>>>,
    /// The segment's dead rows.
    pub dead: Arc<RowMarks>,
    /// The kinds, ascending, with the positions of their lists in the postings.
    pub(crate) kinds: Arc<[(u32, Range<u32>)]>,
    /// The terms of the rare kinds, ascending. For every put, rules search for records of such a
    /// kind that name the new record, and nearly always find none.
    rare: Arc<[(u32, Box<[u64]>)]>,
    terms: TermHasher,
    /// Whether the segment indexes the same words as the shelf.
    has_words: bool,
}

/// The dead rows and the verified rows of a segment. Both stay the same when the segment's
/// addresses are replaced.
pub struct RowMarks {
    /// Rows that are durably deleted.
    pub dead: AtomicBits,
    /// Rows deleted by synced batches and by the current batch; a superset of `dead`.
    pub doomed: AtomicBits,
    /// The number of dead rows, and the dead rows by kind.
    pub rows: DeadRows,
    /// Rows with a verified checksum of their record.
    pub verified: AtomicBits,
    /// Number of dead rows in the `.dead` file.
    pub saved: AtomicU32,
    /// Rows that sums exclude, including all dead rows; `None` until the first question for sums.
    pub excluded: Mutex<Option<ExcludedRows>>,
}

impl RowMarks {
    /// Makes the dead rows from the words of a `.dead` file. Without words, all rows are alive.
    pub fn new(rows: u32, words: Option<&SidecarWords>) -> Self {
        let dead =
            AtomicBits::from_words(rows as usize, words.into_iter().flat_map(SidecarWords::iter));
        let all = dead.words().map(u64::count_ones).sum();
        Self {
            doomed: AtomicBits::from_words(rows as usize, dead.words()),
            dead,
            rows: DeadRows::new(all),
            verified: AtomicBits::new(rows as usize),
            saved: AtomicU32::new(all),
            excluded: Mutex::default(),
        }
    }

    /// Number of words of a `.dead` file for `rows` rows.
    pub fn words_on_disk(rows: u32) -> usize {
        rows.div_ceil(64) as usize
    }

    /// Records that the manifest names a `.dead` file with all dead rows. The caller holds the
    /// writer's lock.
    pub fn note_saved(&self) {
        self.saved.store(self.rows.count(), Ordering::Relaxed);
    }

    /// The words of a `.dead` file.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.dead.words()
    }
}

/// All rare kinds together have at most one row in this many.
const RARE_SHARE: u32 = 32;
/// Maximum number of terms per row of a rare kind, since these terms are kept in memory.
const RARE_TERMS: usize = 16;

fn rare_terms(file: &SegmentFile, kinds: &[(u32, Range<u32>)]) -> Arc<[(u32, Box<[u64]>)]> {
    let mut by_rows: Vec<(usize, u32)> = kinds.iter().map(|(k, list)| (list.len(), *k)).collect();
    by_rows.sort_unstable();
    let mut room = (file.rows / RARE_SHARE) as usize;
    let mut rare: Vec<RareKind> = by_rows
        .into_iter()
        .map_while(|(rows, kind)| {
            room = room.checked_sub(rows)?;
            Some(RareKind { kind, terms: Some(Vec::new()), terms_max: rows * RARE_TERMS })
        })
        .collect();
    rare.sort_unstable_by_key(|rare| rare.kind);
    file.read_ahead_kinds();
    for entry in 0..file.entries() {
        if let Ok(at) = rare.binary_search_by_key(&file.kind(entry), |rare| rare.kind) {
            rare[at].add(|| file.entry_term(entry));
        }
    }
    rare.into_iter().filter_map(|rare| Some((rare.kind, rare.terms?.into()))).collect()
}

/// A kind that may be rare, while its terms are counted.
struct RareKind {
    kind: u32,
    /// `None` if the kind has too many terms to be rare.
    terms: Option<Vec<u64>>,
    terms_max: usize,
}

impl RareKind {
    fn add(&mut self, term: impl FnOnce() -> u64) {
        match &mut self.terms {
            Some(terms) if terms.len() < self.terms_max => terms.push(term()),
            terms => *terms = None,
        }
    }
}

/// Number of dictionary entries, and of postings, that weigh as much as a row. So
/// [`crate::options::EmbeddedOptions::segment_records_max`] also bounds the entries and postings of
/// a segment.
const ENTRIES_PER_ROW: usize = 2;
const POSTINGS_PER_ROW: usize = 256;
/// Maximum weight of a segment, for all settings: the postings of a heavier segment could not be
/// counted.
pub(crate) const WEIGHT_MAX: u64 = u32::MAX as u64 / POSTINGS_PER_ROW as u64;

impl Segment {
    /// The size of the segment, in rows with few terms each. The memory of a merge grows with the
    /// rows and with the dictionary entries, and the postings of a segment are counted in 32 bits.
    pub fn weight(&self) -> u32 {
        let entries = self.file.entries().div_ceil(ENTRIES_PER_ROW);
        let postings = self.file.posting_count().div_ceil(POSTINGS_PER_ROW);
        (self.file.rows as usize).max(entries).max(postings).try_into().unwrap_or(u32::MAX)
    }

    /// Returns the terms of these kinds, if all these kinds are rare. For lookups of many terms.
    fn rare_only(&self, kinds: Option<&[u32]>) -> Option<Vec<&[u64]>> {
        let terms = |kind: &u32| {
            let at = self.rare.binary_search_by_key(kind, |(kind, _)| *kind).ok()?;
            Some(&*self.rare[at].1)
        };
        kinds?.iter().map(terms).collect()
    }

    /// Whether a row of these kinds may have the term. Only the result false is certain; it occurs
    /// only for rare kinds. The test does not read the dictionary.
    fn may_have(&self, term: u64, kinds: Option<&[u32]>) -> bool {
        kinds.is_none_or(|kinds| {
            kinds.iter().any(|kind| {
                let rare = self.rare.binary_search_by_key(kind, |(kind, _)| *kind);
                rare.map_or(true, |at| self.rare[at].1.binary_search(&term).is_ok())
            })
        })
    }

    /// The rare kinds and their terms.
    #[cfg(test)]
    pub(crate) fn rare_kinds(&self) -> impl Iterator<Item = (u32, &[u64])> {
        self.rare.iter().map(|(kind, terms)| (*kind, &**terms))
    }

    /// Makes a segment from its opened parts.
    pub fn new(
        entry: SegmentEntry,
        file: Arc<SegmentFile>,
        addresses: SidecarWords,
        logs: Vec<Option<Arc<Log>>>,
        dead: Arc<RowMarks>,
        terms: TermHasher,
    ) -> Self {
        let every = file.term(terms.every());
        let kinds: Arc<[_]> = every.map(|entry| (file.kind(entry), file.list(entry))).collect();
        let rare = rare_terms(&file, &kinds);
        let has_words = file.has_words && terms.are_words_in(file.listed());
        let addresses = Arc::new(addresses);
        Self { entry, file, addresses, logs, dead, kinds, rare, terms, has_words }
    }

    /// Returns the same segment with a changed line of the manifest.
    #[must_use]
    pub fn with_entry(&self, entry: SegmentEntry) -> Self {
        Self {
            entry,
            file: Arc::clone(&self.file),
            addresses: Arc::clone(&self.addresses),
            logs: self.logs.clone(),
            dead: Arc::clone(&self.dead),
            kinds: Arc::clone(&self.kinds),
            rare: Arc::clone(&self.rare),
            terms: self.terms.clone(),
            has_words: self.has_words,
        }
    }

    /// Sets the dead bytes and dead records of the segment's logs from these lines of a manifest.
    pub fn set_dead(&self, lines: &[LogEntry]) {
        for log in self.logs.iter().flatten() {
            if let Some(line) = lines.iter().find(|line| line.number == log.number) {
                log.dead_bytes.store(line.dead_bytes, Ordering::Relaxed);
                log.dead_records.store(line.dead_records, Ordering::Relaxed);
            }
        }
    }

    /// Copies the dead bytes and dead records of the logs from `other`, except for the log numbered
    /// `except`.
    pub fn keep_dead(&self, other: &Self, except: Option<u32>) {
        for both in self.logs.iter().zip(&other.logs) {
            if let (Some(mine), Some(theirs)) = both
                && Some(mine.number) != except
            {
                mine.copy_dead(theirs);
            }
        }
    }

    /// Counts the dead records of logs that have dead bytes but no number of dead records. Earlier
    /// versions did not write this number.
    pub fn count_dead(&self) {
        let uncounted = |log: &Log| log.has_dead() && log.dead_records.load(Ordering::Relaxed) == 0;
        if !self.logs.iter().flatten().any(|log| uncounted(log)) {
            return;
        }
        let mut counts = vec![0u64; self.logs.len()];
        for row in self.dead.dead.ones() {
            let at = self.address(row).log.checked_sub(self.entry.first_log);
            if let Some(count) = at.and_then(|at| counts.get_mut(at as usize)) {
                *count += 1;
            }
        }
        for (log, count) in self.logs.iter().zip(counts) {
            if let Some(log) = log.as_ref().filter(|log| uncounted(log)) {
                log.dead_records.store(count, Ordering::Relaxed);
            }
        }
    }

    /// Whether the segment indexes the same words as the shelf.
    pub fn has_words(&self) -> bool {
        self.has_words
    }

    /// Whether the segment lists exactly the labels and the words that the shelf lists.
    pub fn lists_what_it_should(&self) -> bool {
        let listed = self.file.listed();
        *listed == *self.terms.listed() && (self.file.has_words || !lists_words(listed))
    }

    /// Whether a part of the index could not be read, so that the index cannot be trusted.
    pub fn is_unreadable(&self) -> bool {
        self.faults() > 0
    }

    /// Number of failed reads of the index.
    pub fn faults(&self) -> u32 {
        self.file.faults() + self.addresses.faults()
    }

    /// Whether the addresses can be read and have the right checksum.
    pub fn has_sound_addresses(&self) -> bool {
        // Read the addresses before checking for faults: the read may have returned zeros for a
        // lost page.
        self.addresses.is_sound() && self.addresses.faults() == 0
    }

    /// Returns a message that explains why the index cannot be trusted; `None` if the index can be
    /// trusted.
    pub fn trouble(&self) -> Option<String> {
        let number = self.entry.number;
        self.is_unreadable().then(|| format!("a part of segment {number} could not be read"))
    }

    /// The address of a row's record.
    pub fn address(&self, row: u32) -> RecordAddress {
        RecordAddress::unpack(self.addresses.get(row as usize).unwrap_or(0))
    }

    fn log(&self, address: RecordAddress) -> Option<&Arc<Log>> {
        let at = address.log.checked_sub(self.entry.first_log)?;
        self.logs.get(at as usize)?.as_ref()
    }

    /// Returns a row's record. For a damaged record, counts the damage and returns `None`.
    pub fn record(&self, row: u32) -> Option<Record<'_>> {
        self.record_at(row, self.address(row))
    }

    fn record_at(&self, row: u32, address: RecordAddress) -> Option<Record<'_>> {
        let log = self.log(address);
        let verified = self.dead.verified.get(row);
        if verified && log.is_some_and(|log| !log.is_doubtful()) {
            return log?.record(address.offset, false);
        }
        let record = log
            .and_then(|log| log.record(address.offset, true))
            .filter(|record| record.time() == self.file.time(row));
        if record.is_some() {
            self.dead.verified.set(row);
        } else if let Some(log) = log.or_else(|| self.logs.iter().flatten().next()) {
            log.note_damaged(address.offset);
        }
        record
    }

    /// Marks a row as deleted for readers and the writer.
    pub fn kill(&self, row: u32) {
        if self.kill_row(row) {
            self.note_dead(row);
        }
    }

    /// Does the same as [`Segment::kill`], but does not count the record as dead. Returns false if
    /// the row was already dead.
    pub fn kill_row(&self, row: u32) -> bool {
        self.dead.doomed.set(row);
        let killed = row < self.file.rows && self.dead.rows.kill(row, || self.dead.dead.set(row));
        if killed && let Some(excluded) = &mut *self.dead.excluded.lock() {
            excluded.add(row, &self.file);
        }
        killed
    }

    /// Returns a row's id, from the record if the segment has no ids.
    pub fn id(&self, row: u32) -> Option<Id> {
        self.file.id(row).or_else(|| self.record_of_any(row).map(|record| *record.id()))
    }

    /// Returns the kinds of ascending dead rows; `None` for a row in no kind's list. Takes at most
    /// about as long as reading the lists of all kinds.
    fn kinds_of(&self, rows: &[u32]) -> Vec<Option<u32>> {
        let mut kinds = vec![None; rows.len()];
        for (kind, list) in &*self.kinds {
            // Looking up one row costs about as much as reading 16.
            if rows.len() * 16 < list.len() {
                for (&row, found) in rows.iter().zip(&mut kinds) {
                    if found.is_none() && self.has_row(list, row) {
                        *found = Some(*kind);
                    }
                }
            } else {
                let listed = self.file.postings(list.clone());
                for row in listed.filter(|&row| self.dead.dead.get(row)) {
                    if let Ok(at) = rows.binary_search(&row) {
                        kinds[at] = Some(*kind);
                    }
                }
            }
        }
        kinds
    }

    /// Whether a row is in this part of the postings.
    fn has_row(&self, list: &Range<u32>, row: u32) -> bool {
        let before = |at: u32| self.file.posting(list.start + at) < row;
        let at = list.start + partition(list.end - list.start, before);
        at < list.end && self.file.posting(at) == row
    }

    /// Counts a row's record as dead in its log.
    pub fn note_dead(&self, row: u32) {
        let address = self.address(row);
        if let Some(log) = self.log(address) {
            log.note_dead(address.offset);
        }
    }

    /// Rows with this id, including dead rows; `hash` is the hash of the id.
    pub fn rows_of(&self, id: &Id, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let id = *id;
        self.file.rows_of_id(hash).filter(move |&row| {
            let Some(record) = self.record_of_any(row) else { return false };
            if *record.id() != id {
                self.note_other(record.id(), hash);
            }
            *record.id() == id
        })
    }

    /// Records that a part of the file was lost if the hash of a row's id differs from the row's
    /// hash in the index.
    fn note_other(&self, id: &Id, hash: u64) {
        if self.terms.id(id) != hash {
            self.file.note_lost();
        }
    }

    /// Does the same as [`Segment::id`], but a removed record of a dead row is no damage.
    fn id_of_any(&self, row: u32) -> Option<Id> {
        self.file.id(row).or_else(|| self.record_of_any(row).map(|record| *record.id()))
    }

    /// Does the same as [`Segment::record`], but a removed record of a dead row is no damage.
    fn record_of_any(&self, row: u32) -> Option<Record<'_>> {
        if self.address(row) == RecordAddress::GONE { None } else { self.record(row) }
    }
}

/// A segment in the view of readers or of the writer.
pub struct SegmentView {
    /// The segment.
    pub segment: Arc<Segment>,
    /// Whether rows deleted by the current batch already count as dead.
    pub writing: bool,
}

/// A posting list of a segment.
#[derive(Clone)]
pub enum SegmentPostings {
    /// All rows.
    Every,
    /// The kind of a list, and its position in the postings.
    List(u32, Range<u32>),
    /// The list of a word.
    Packed(PackedPostings),
}

/// The posting list of a word, with the last unpacked block.
pub struct PackedPostings {
    kind: u32,
    list: PackedList,
    reader: RefCell<PackedReader>,
}

impl PackedPostings {
    fn new(kind: u32, list: PackedList) -> Self {
        Self { kind, list, reader: RefCell::new(PackedReader::new(list)) }
    }

    /// The first index at or after `from` whose row is at least `row`.
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

    /// Returns the first row after this time and id, newest first.
    fn first_behind(&self, time: u64, id: &Id) -> u32 {
        let start = self.file().first_at_or_before(time);
        let older = time.checked_sub(1);
        let end = older.map_or(self.file().rows, |time| self.file().first_at_or_before(time));
        start
            + partition(end.saturating_sub(start), |row| {
                // In a format without ids, a row with a removed record is dead. The next row with a
                // record replaces the dead row in the comparison.
                let mut rows = start + row..end;
                rows.find_map(|row| self.segment.id(row)).is_some_and(|other| other <= *id)
            })
    }
}

impl Source for SegmentView {
    /// (time or 0, row), ascending in the query's order. Only the oldest-first order needs the
    /// time.
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
        self.segment.has_words
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
        // An id that was deleted and put again has several rows, and one of these rows may be
        // alive.
        for row in self.file().rows_of_id(hash) {
            match (self.segment.id_of_any(row), self.is_dead(row)) {
                (Some(other), _) if other != *id => self.segment.note_other(&other, hash),
                (None, true) => {}
                (Some(_), true) => dead = dead.or(Some(row)),
                // By the hash, this is the record of the id. A reader of this row reports damage
                // instead of a missing record. If the record was put again, the whole record
                // counts.
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
                // Rows of a list are usually spread evenly over the segment.
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
        // Rows of a list ascend, so the common rows are a prefix.
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
