//! Reads a segment file in place. Opening the file verifies the trailer, and that every section
//! lies within the file. Every access checks bounds, so damage can hide rows but cannot crash the
//! process.

use std::io;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::OnceLock;

use hark_archive::Id;
use hark_codec::id_sum::IdSum;

use super::packed::PackedReader;
use super::values::{self, Values};
use super::word_blocks::{INDEX_ENTRY, Words};
use super::{
    MAGIC, MAGIC_1, MAGIC_2, MAGIC_3, SECTIONS, SUMMED_ROWS, SegmentSection, filter, path,
};
use crate::disk::Disk;
use crate::map::Map;

/// Size of the trailer after the table of sections, in bytes.
const TAIL: usize = 8 + 8 + 4 + 4 + 8;
/// Size of a page in bytes. A hole in a file has at least this size, and reads as zeros.
const PAGE_BYTES: usize = 4096;
/// If a term has at most this many kinds per requested kind, all kinds of the term are scanned.
const SCANNED_PER_KIND: usize = 8;

/// An open segment file.
pub struct SegmentFile {
    map: Map,
    sections: [Range<usize>; SECTIONS.len()],
    sums: [u32; SECTIONS.len()],
    /// Whether the checksum of a section is right; set for each section in which a page of zeros
    /// was found.
    with_zeros: [OnceLock<bool>; SECTIONS.len()],
    /// Number of rows.
    pub rows: u32,
    /// The oldest time of the rows.
    pub oldest: u64,
    /// The newest time of the rows.
    pub newest: u64,
    wide: bool,
    /// Whether the file has the ids of the rows and the sums of these ids.
    pub has_ids: bool,
    /// Whether the file's format has a section of words.
    pub has_words: bool,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl SegmentFile {
    /// Opens the file of segment `number`.
    pub fn open(disk: &dyn Disk, shelf: &Path, number: u32) -> io::Result<Self> {
        let map = disk.map(&path(shelf, number), None)?;
        Self::from_map(map).ok_or_else(|| bad("the segment's trailer is damaged"))
    }

    fn from_map(map: Map) -> Option<Self> {
        let magic = map.first_chunk::<8>()?;
        let count = match magic {
            MAGIC_1 => SegmentSection::Values as usize,
            MAGIC_2 => SegmentSection::Ids as usize,
            MAGIC_3 => SegmentSection::Words as usize,
            MAGIC => SECTIONS.len(),
            _ => return None,
        };
        let body = map.len().checked_sub(count * 20 + TAIL)?;
        let trailer = &map[body..];
        let (table, tail) = trailer.split_at(trailer.len() - 12);
        let sum = u32::from_le_bytes(*tail.first_chunk()?);
        if tail[4..] != magic[..] || crc32c::crc32c(table) != sum {
            return None;
        }
        let mut sections = [const { 0..0 }; SECTIONS.len()];
        let mut sums = [0; SECTIONS.len()];
        // Sections follow one another, and the padding must be zeros, so that checksums cover all
        // other bytes of the file.
        let mut next = MAGIC.len();
        for (at, entry) in table.chunks_exact(20).take(count).enumerate() {
            let start = u64::from_le_bytes(*entry.first_chunk()?) as usize;
            let len = u64::from_le_bytes(*entry[8..].first_chunk()?) as usize;
            sections[at] = start..start.checked_add(len)?;
            sums[at] = u32::from_le_bytes(*entry.last_chunk()?);
            let padded = sections[at].end.checked_next_multiple_of(8)?;
            let padding = map.get(..body)?.get(sections[at].end..padded)?;
            if start != next || padding.iter().any(|byte| *byte != 0) {
                return None;
            }
            next = padded;
        }
        if next != body {
            return None;
        }
        let rest = &table[count * 20..];
        let oldest = u64::from_le_bytes(*rest.first_chunk()?);
        let newest = u64::from_le_bytes(*rest[8..].first_chunk()?);
        let rows = u32::from_le_bytes(*rest.last_chunk()?);
        let wide = newest.checked_sub(oldest)? > u64::from(u32::MAX);
        let (has_ids, has_words) = (magic == MAGIC || magic == MAGIC_3, magic == MAGIC);
        let with_zeros = [const { OnceLock::new() }; SECTIONS.len()];
        let file = Self {
            map,
            sections,
            sums,
            with_zeros,
            rows,
            oldest,
            newest,
            wide,
            has_ids,
            has_words,
        };
        file.lengths_agree().then_some(file)
    }

    fn lengths_agree(&self) -> bool {
        let rows = self.rows as usize;
        let len = |section: SegmentSection| self.sections[section as usize].len();
        let with_id = if self.has_ids { rows } else { 0 };
        len(SegmentSection::Times) == rows * if self.wide { 8 } else { 4 }
            && len(SegmentSection::IdHashes) == rows * 8
            && len(SegmentSection::IdRows) == rows * 4
            && len(SegmentSection::IdFilter) == filter::words(self.rows) * 8
            && len(SegmentSection::Kinds) * 2 == len(SegmentSection::Terms)
            && len(SegmentSection::Starts) == len(SegmentSection::Kinds) + 4
            && len(SegmentSection::ExpiryRows) * 2 == len(SegmentSection::ExpiryTimes)
            && len(SegmentSection::Ids) == with_id * 32
            && len(SegmentSection::IdSums) == with_id / SUMMED_ROWS as usize * 32
            && len(SegmentSection::WordIndex).is_multiple_of(INDEX_ENTRY)
    }

    fn section(&self, section: SegmentSection) -> &[u8] {
        &self.map[self.sections[section as usize].clone()]
    }

    fn u32(&self, section: SegmentSection, index: usize) -> Option<u32> {
        self.section(section).get(index * 4..)?.first_chunk().map(|four| u32::from_le_bytes(*four))
    }

    fn u64(&self, section: SegmentSection, index: usize) -> Option<u64> {
        self.section(section)
            .get(index * 8..)?
            .first_chunk()
            .map(|eight| u64::from_le_bytes(*eight))
    }

    /// Checks whether the zero at byte `at` of a section belongs to a lost page, and notes the
    /// loss. A page of zeros may also be correct: many rows may have the oldest time, or all
    /// entries of a page may have kind 0 or row 0. So the checksum of the section decides. It is
    /// calculated once, since every lookup comes here in a network without kinds.
    #[cold]
    fn note_zero(&self, section: SegmentSection, at: usize) {
        let is_whole = &self.with_zeros[section as usize];
        if is_whole.get() == Some(&true) {
            return;
        }
        let all = &self.sections[section as usize];
        let page = (all.start + at) / PAGE_BYTES * PAGE_BYTES;
        let part = page.max(all.start)..(page + PAGE_BYTES).min(all.end);
        if self.map.get(part).is_none_or(|part| part.iter().any(|byte| *byte != 0)) {
            return;
        }
        if !*is_whole.get_or_init(|| !self.is_damaged(section)) {
            self.note_lost();
        }
    }

    /// Size on disk.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Number of failed reads of the file.
    pub fn faults(&self) -> u32 {
        self.map.faults()
    }

    /// Notes that a part of the file is lost, or that its content is impossible.
    pub(crate) fn note_lost(&self) {
        self.map.note_lost();
    }

    /// The sections whose checksum is wrong.
    pub fn damaged_sections(&self) -> Vec<SegmentSection> {
        SECTIONS.into_iter().filter(|section| self.is_damaged(*section)).collect()
    }

    /// Whether the checksum of a section is wrong.
    pub fn is_damaged(&self, section: SegmentSection) -> bool {
        crc32c::crc32c(self.section(section)) != self.sums[section as usize]
    }

    /// Adds the bytes in `part` of a section to `sum`, the checksum of the section's earlier bytes.
    /// Returns the new checksum and the number of added bytes, which is smaller than `part` if the
    /// section ends earlier.
    pub fn sum_of_part(
        &self,
        section: SegmentSection,
        part: Range<usize>,
        sum: u32,
    ) -> (u32, usize) {
        let all = &self.sections[section as usize];
        let start = (all.start + part.start).min(all.end);
        let part = start..(all.start + part.end).min(all.end);
        self.map.read_ahead(part.clone());
        let bytes = self.map.get(part).unwrap_or_default();
        (crc32c::crc32c_append(sum, bytes), bytes.len())
    }

    /// Whether `sum` is the right checksum of a section.
    pub fn is_sum_of(&self, section: SegmentSection, sum: u32) -> bool {
        self.sums[section as usize] == sum
    }

    /// Whether the posting list of a term and kind contains a row.
    pub fn has_row(&self, term: u64, kind: u32, row: u32) -> bool {
        self.term(term).filter(|&entry| self.kind(entry) == kind).any(|entry| {
            let list = self.list(entry);
            let before = |at| self.posting(list.start + at) < row;
            let at = list.start + partition(list.end - list.start, before);
            at < list.end && self.posting(at) == row
        })
    }

    /// The words and their posting lists. A file of an earlier format has no words.
    #[inline]
    pub fn words(&self) -> Words<'_> {
        let (blocks, index) =
            (self.section(SegmentSection::Words), self.section(SegmentSection::WordIndex));
        Words { blocks, index, rows: self.rows }
    }

    /// Whether the posting list of a word, kind and class contains a row.
    pub fn has_word(&self, word: &str, key: (u32, u8), row: u32) -> bool {
        let words = self.words();
        words.find(word).any(|(other, list)| {
            let mut reader = PackedReader::new(list);
            let at = reader.seek(words.blocks, 0, row);
            other == key && at < list.len && reader.get(words.blocks, at) == row
        })
    }

    /// A row's time.
    #[inline]
    pub fn time(&self, row: u32) -> u64 {
        let above = if self.wide {
            self.u64(SegmentSection::Times, row as usize)
        } else {
            self.u32(SegmentSection::Times, row as usize).map(u64::from)
        };
        if above == Some(0) {
            self.note_zero(SegmentSection::Times, row as usize * if self.wide { 8 } else { 4 });
        }
        above.map_or(0, |above| self.oldest.wrapping_add(above))
    }

    /// A row's id; `None` in a file of format 1 or 2.
    #[inline]
    pub fn id(&self, row: u32) -> Option<Id> {
        self.section(SegmentSection::Ids).get(row as usize * 32..)?.first_chunk().copied()
    }

    /// The sum of the ids of all rows before `row`.
    pub fn sum_before(&self, row: u32) -> IdSum {
        let summed = row / SUMMED_ROWS;
        let sums = self.section(SegmentSection::IdSums).as_chunks().0;
        let mut sum = summed
            .checked_sub(1)
            .and_then(|at| sums.get(at as usize))
            .map_or_else(IdSum::default, IdSum::from);
        (summed * SUMMED_ROWS..row).filter_map(|row| self.id(row)).for_each(|id| sum.add(&id));
        sum
    }

    /// Returns the first row whose time is `time` or earlier.
    pub fn first_at_or_before(&self, time: u64) -> u32 {
        // The rows are usually spread evenly over time, so the first guess is interpolated.
        let newer = self.newest.saturating_sub(time).min(self.newest - self.oldest);
        let span = u128::from(self.newest - self.oldest).max(1);
        let guess = u128::from(newer) * u128::from(self.rows) / span;
        partition_near(self.rows, guess as u32, |row| self.time(row) > time)
    }

    /// The rows of ids with this hash.
    pub fn rows_of_id(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let (at, bits) = filter::word_and_bits(hash, filter::words(self.rows));
        // A word of 0 counts as a match, because a lost page reads as zeros and must not hide the
        // id. Hardly any undamaged word is 0.
        let may_be_there = self
            .u64(SegmentSection::IdFilter, at)
            .is_none_or(|word| word & bits == bits || word == 0);
        let rows = if may_be_there { self.rows as usize } else { 0 };
        let found = self.equal(SegmentSection::IdHashes, rows, hash);
        found.filter_map(|at| self.u32(SegmentSection::IdRows, at))
    }

    /// Entry number `at` of the id index.
    pub fn id_entry(&self, at: usize) -> Option<(u64, u32)> {
        Some((self.u64(SegmentSection::IdHashes, at)?, self.u32(SegmentSection::IdRows, at)?))
    }

    /// Makes the system read the kinds of all dictionary entries from the disk.
    pub fn read_ahead_kinds(&self) {
        self.map.read_ahead(self.sections[SegmentSection::Kinds as usize].clone());
    }

    /// Number of entries of the dictionary.
    pub fn entries(&self) -> usize {
        self.sections[SegmentSection::Kinds as usize].len() / 4
    }

    /// The dictionary entries of a term, one for each kind.
    pub fn term(&self, term: u64) -> Range<usize> {
        self.equal(SegmentSection::Terms, self.entries(), term)
    }

    /// Passes the kinds and the dictionary entries of a term to `each` until `each` breaks. If
    /// `kinds` (ascending) is given, only entries of these kinds are passed. If a term has many
    /// more kinds than requested, each requested kind is looked up.
    pub fn entries_of(
        &self,
        term: u64,
        kinds: Option<&[u32]>,
        each: &mut impl FnMut(u32, usize) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let entries = self.term(term);
        let Some(kinds) = kinds.filter(|kinds| entries.len() > kinds.len() * SCANNED_PER_KIND)
        else {
            for entry in entries {
                let kind = self.kind(entry);
                if kinds.is_none_or(|kinds| kinds.binary_search(&kind).is_ok()) {
                    each(kind, entry)?;
                }
            }
            return ControlFlow::Continue(());
        };
        for &kind in kinds {
            let before = |at: u32| self.kind(entries.start + at as usize) < kind;
            let entry = entries.start + partition(entries.len() as u32, before) as usize;
            if entry < entries.end && self.kind(entry) == kind {
                each(kind, entry)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Total number of rows in all posting lists.
    pub fn posting_count(&self) -> usize {
        self.sections[SegmentSection::Postings as usize].len() / 4
    }

    /// An entry's term.
    pub fn entry_term(&self, entry: usize) -> u64 {
        self.u64(SegmentSection::Terms, entry).unwrap_or(u64::MAX)
    }

    /// An entry's kind.
    pub fn kind(&self, entry: usize) -> u32 {
        let kind = self.u32(SegmentSection::Kinds, entry).unwrap_or(u32::MAX);
        if kind == 0 {
            self.note_zero(SegmentSection::Kinds, entry * 4);
        }
        kind
    }

    /// The position of an entry's list in the postings.
    pub fn list(&self, entry: usize) -> Range<u32> {
        let start = self.u32(SegmentSection::Starts, entry).unwrap_or(0);
        let end = self.u32(SegmentSection::Starts, entry + 1).unwrap_or(0);
        let all = (self.sections[SegmentSection::Postings as usize].len() / 4) as u32;
        if start >= end || end > all {
            // No undamaged list is empty.
            self.note_lost();
        }
        start.min(all)..end.min(all).max(start.min(all))
    }

    /// The row at a position in the postings.
    #[inline]
    pub fn posting(&self, at: u32) -> u32 {
        let row = self.u32(SegmentSection::Postings, at as usize).unwrap_or(u32::MAX);
        if row == 0 {
            self.note_zero(SegmentSection::Postings, at as usize * 4);
        }
        row
    }

    /// The rows in a part of the postings.
    pub fn postings(&self, range: Range<u32>) -> impl Iterator<Item = u32> + '_ {
        let bytes = self.section(SegmentSection::Postings);
        let bytes = bytes.get(range.start as usize * 4..range.end as usize * 4).unwrap_or_default();
        bytes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four))
    }

    /// All rows that expire, as (time, row), ascending.
    pub fn expiries(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.expiries_from(0)
    }

    /// The list of rows that expire, from entry `start` of the list on, as (time, row), ascending.
    pub fn expiries_from(&self, start: usize) -> impl Iterator<Item = (u64, u32)> + '_ {
        let count = self.sections[SegmentSection::ExpiryRows as usize].len() / 4;
        (start..count).filter_map(|at| {
            Some((
                self.u64(SegmentSection::ExpiryTimes, at)?,
                self.u32(SegmentSection::ExpiryRows, at)?,
            ))
        })
    }

    /// The names of the labels that the segment lists; none in a file of format 1.
    pub fn listed(&self) -> &[u8] {
        values::open(self.section(SegmentSection::Values)).0
    }

    /// The values that the listed labels had when the segment was written, ascending by name and
    /// value.
    pub fn values(&self) -> Values<'_> {
        values::open(self.section(SegmentSection::Values)).1
    }

    /// Returns the indices at which an ascending array of hashes has `value`. Hashes are spread
    /// evenly, so an interpolation and a few steps from there find these indices.
    fn equal(&self, section: SegmentSection, len: usize, value: u64) -> Range<usize> {
        let hashes = self.section(section).as_chunks::<8>().0;
        let at =
            |index: usize| hashes.get(index).map_or(u64::MAX, |hash| u64::from_le_bytes(*hash));
        let share = |hash: u64| ((u128::from(hash) * len as u128) >> 64) as usize;
        let guess = share(value);
        // The second guess corrects the first guess by the difference between `value` and the hash
        // at the first guess.
        let there = at(guess);
        let guess = if there > value {
            guess.saturating_sub(share(there - value))
        } else {
            (guess + share(value - there)).min(len)
        };
        let (mut low, mut high) = (guess, guess);
        let mut reach = 2;
        while low > 0 && at(low) >= value {
            low = low.saturating_sub(reach);
            reach *= 2;
        }
        reach = 2;
        while high < len && at(high) < value {
            high = (high + reach).min(len);
            reach *= 2;
        }
        let start = low + partition((high - low) as u32, |i| at(low + i as usize) < value) as usize;
        if start > 0 && at(start - 1) == 0 {
            // No hash is 0, so a part of the file was lost here, and the part may have contained
            // `value`.
            self.note_lost();
        }
        let mut end = start;
        let mut step = 1;
        while end < len && at(end) == value {
            end += step;
            step *= 2;
        }
        let end = end.min(len);
        start..start + partition((end - start) as u32, |i| at(start + i as usize) == value) as usize
    }
}

/// Returns the first number in `0..len` for which `before` is false. `before` must be true for all
/// numbers below the result and false for all others.
pub fn partition(len: u32, before: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Like [`partition`], but faster if the result is near `guess`. If the file is damaged, `before`
/// may become false at several numbers. Then the result may be any of these numbers.
pub fn partition_near(len: u32, guess: u32, before: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (guess.min(len), guess.min(len));
    let mut reach = 8;
    while low > 0 && !before(low - 1) {
        (low, high) = (low.saturating_sub(reach), low - 1);
        reach *= 4;
    }
    let mut reach = 8;
    while high < len && before(high) {
        (low, high) = (high + 1, (high + reach).min(len));
        reach *= 4;
    }
    low + partition(high - low, |at| before(low + at))
}
