//! An open segment with the parts that change: addresses and dead rows.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hark_archive::query::prepared::TermMap as _;
use hark_archive::{Id, Record};

use super::RecordAddress;
use super::file::{SegmentFile, partition};
use super::marks::RowMarks;
use super::rare_kinds::rare_terms;
use super::sidecar::SidecarWords;
use crate::log::Log;
use crate::manifest::{LogEntry, SegmentEntry};
use crate::term::{TermHasher, lists_words};

/// An open segment.
pub struct Segment {
    /// The segment's line of the manifest at the time when the segment was opened.
    pub entry: SegmentEntry,
    /// The segment's index.
    pub file: Arc<SegmentFile>,
    /// The addresses of the segment's records.
    pub addresses: Arc<SidecarWords>,
    /// The logs that the segment covers, from the first to the last; `None` for a removed log.
    pub logs: Vec<Option<Arc<Log>>>,
    /// The segment's dead rows.
    pub dead: Arc<RowMarks>,
    /// The kinds, ascending, each with the position of its list in the postings.
    pub(crate) kinds: Arc<[(u32, Range<u32>)]>,
    /// The terms of the rare kinds, ascending. They are in memory because, for every put, rules
    /// search for records of rare kinds (for example deletions) that name the new record, and
    /// nearly always find none.
    rare: Arc<[(u32, Box<[u64]>)]>,
    terms: TermHasher,
    /// Whether the segment indexes the words that the shelf is configured to index.
    has_words: bool,
}

/// Number of dictionary entries, and number of postings, that have the weight of one row. By this
/// weight, [`crate::options::EmbeddedOptions::segment_records_max`] also bounds the entries and
/// postings of a segment.
const ENTRIES_PER_ROW: usize = 2;
const POSTINGS_PER_ROW: usize = 256;
/// Maximum weight of a segment, even if the settings allow more. A heavier segment could have more
/// postings than 32 bits can count.
pub(crate) const WEIGHT_MAX: u64 = u32::MAX as u64 / POSTINGS_PER_ROW as u64;

impl Segment {
    /// The weight of the segment: its size, expressed as a number of rows with few terms each.
    /// Entries count because they also take memory in a merge, and postings count because a segment
    /// counts its postings in 32 bits.
    pub fn weight(&self) -> u32 {
        let entries = self.file.entries().div_ceil(ENTRIES_PER_ROW);
        let postings = self.file.posting_count().div_ceil(POSTINGS_PER_ROW);
        (self.file.rows as usize).max(entries).max(postings).try_into().unwrap_or(u32::MAX)
    }

    /// Returns the terms of these kinds; `None` unless all these kinds are rare. For callers that
    /// look up many terms.
    #[inline]
    pub(super) fn rare_only(&self, kinds: Option<&[u32]>) -> Option<Vec<&[u64]>> {
        let terms = |kind: &u32| {
            let at = self.rare.binary_search_by_key(kind, |(kind, _)| *kind).ok()?;
            Some(&*self.rare[at].1)
        };
        kinds?.iter().map(terms).collect()
    }

    /// Whether a row of these kinds may have the term. `false` is certain, and is returned only if
    /// all these kinds are rare. The test does not read the dictionary.
    #[inline]
    pub(super) fn may_have(&self, term: u64, kinds: Option<&[u32]>) -> bool {
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

    /// Returns the segment with its entry in the manifest replaced by `entry`.
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

    /// Sets the dead bytes and dead records of the segment's logs to the numbers in these lines of
    /// a manifest.
    pub fn set_dead(&self, lines: &[LogEntry]) {
        for log in self.logs.iter().flatten() {
            if let Some(line) = lines.iter().find(|line| line.number == log.number) {
                log.dead_bytes.store(line.dead_bytes, Ordering::Relaxed);
                log.dead_records.store(line.dead_records, Ordering::Relaxed);
            }
        }
    }

    /// Copies the dead bytes and dead records of all logs except number `except` from `other`.
    pub fn copy_dead_from(&self, other: &Self, except: Option<u32>) {
        for both in self.logs.iter().zip(&other.logs) {
            if let (Some(mine), Some(theirs)) = both
                && Some(mine.number) != except
            {
                mine.copy_dead(theirs);
            }
        }
    }

    /// Counts the dead records of each log with dead bytes but without a number of dead records in
    /// the manifest. Earlier versions did not write this number.
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

    /// Whether the segment indexes the words that the shelf is configured to index.
    pub fn has_words(&self) -> bool {
        self.has_words
    }

    /// Whether the segment lists exactly the labels and words that the shelf is configured to list.
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

    /// Whether the addresses are readable and have the right checksum.
    pub fn has_sound_addresses(&self) -> bool {
        // The checksum reads all addresses. Failed reads are counted afterwards, because they
        // return zeros instead of an error.
        self.addresses.is_sound() && self.addresses.faults() == 0
    }

    /// If the index cannot be trusted, returns a message with the reason.
    pub fn trouble(&self) -> Option<String> {
        let number = self.entry.number;
        self.is_unreadable().then(|| format!("a part of segment {number} could not be read"))
    }

    /// The address of a row's record.
    #[inline]
    pub fn address(&self, row: u32) -> RecordAddress {
        RecordAddress::unpack(self.addresses.get(row as usize).unwrap_or(0))
    }

    #[inline]
    pub(super) fn log(&self, address: RecordAddress) -> Option<&Arc<Log>> {
        let at = address.log.checked_sub(self.entry.first_log)?;
        self.logs.get(at as usize)?.as_ref()
    }

    /// Returns a row's record. If the record is damaged, counts the damage and returns `None`.
    pub fn record(&self, row: u32) -> Option<Record<'_>> {
        self.record_at(row, self.address(row))
    }

    #[inline]
    pub(super) fn record_at(&self, row: u32, address: RecordAddress) -> Option<Record<'_>> {
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

    /// Marks a row as dead for readers and the writer.
    pub fn kill(&self, row: u32) {
        if self.kill_row(row) {
            self.note_dead(row);
        }
    }

    /// Like [`Segment::kill`], but does not count the record as dead in its log. Returns false if
    /// the row was already dead.
    pub fn kill_row(&self, row: u32) -> bool {
        self.dead.doomed.set(row);
        let killed = row < self.file.rows && self.dead.rows.kill(row, || self.dead.dead.set(row));
        if killed && let Some(excluded) = &mut *self.dead.excluded.lock() {
            excluded.add(row, &self.file);
        }
        killed
    }

    /// Returns a row's id. If the segment has no ids, the id is read from the record.
    pub fn id(&self, row: u32) -> Option<Id> {
        self.file.id(row).or_else(|| self.record_of_any(row).map(|record| *record.id()))
    }

    /// Returns the kind of each of these dead rows, which must ascend; `None` for a row that is not
    /// in the list of any kind. The call takes hardly longer than reading the lists of all kinds.
    pub(super) fn kinds_of(&self, rows: &[u32]) -> Vec<Option<u32>> {
        let mut kinds = vec![None; rows.len()];
        for (kind, list) in &*self.kinds {
            // Looking up one row costs about as much as reading 16 rows.
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

    /// The rows of this id, including dead rows. `hash` is the hash of the id.
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

    /// Notes that a part of the file was lost, if `id`, the id of a row, does not have the hash
    /// that the index has for the row.
    pub(super) fn note_other(&self, id: &Id, hash: u64) {
        if self.terms.id(id) != hash {
            self.file.note_lost();
        }
    }

    /// Like [`Segment::id`]. A dead row whose record was removed does not count as damage.
    #[inline]
    pub(super) fn id_of_any(&self, row: u32) -> Option<Id> {
        self.file.id(row).or_else(|| self.record_of_any(row).map(|record| *record.id()))
    }

    /// Does the same as [`Segment::record`], but a dead row whose record was removed does not count
    /// as damage.
    fn record_of_any(&self, row: u32) -> Option<Record<'_>> {
        if self.address(row) == RecordAddress::GONE { None } else { self.record(row) }
    }
}
