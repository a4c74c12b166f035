//! Writes a segment file, section by section, from front to back.

use std::io;
use std::path::Path;

use hark_archive::Id;
use hark_codec::id_sum::IdSum;

use super::spool::Spool;
use super::values::{self, Value};
use super::word_blocks::{ListKey, WordPacker};
use super::{MAGIC, SECTIONS, SUMMED_ROWS, SegmentSection, filter, path};
use crate::disk::{Disk, DiskFile};

/// Number of bytes that are gathered before a write to the disk.
const BUFFER: usize = 256 << 10;

/// Marks an old row that was left out, in a list that has the new row of each old row.
pub const DROPPED: u32 = u32::MAX;

/// A segment file being written.
pub struct SegmentBuilder {
    file: Box<dyn DiskFile>,
    buffer: Vec<u8>,
    /// Number of bytes written to the file so far.
    written: u64,
    sum: u32,
    section_start: u64,
    table: [(u64, u64, u32); SECTIONS.len()],
    rows: u32,
    oldest: u64,
    newest: u64,
}

impl SegmentBuilder {
    /// Starts the file of segment `number`.
    pub fn new(disk: &dyn Disk, shelf: &Path, number: u32) -> io::Result<Self> {
        let mut builder = Self {
            file: disk.create(&path(shelf, number))?,
            buffer: Vec::with_capacity(BUFFER + 8),
            written: 0,
            sum: 0,
            section_start: 0,
            table: [(0, 0, 0); SECTIONS.len()],
            rows: 0,
            oldest: 0,
            newest: 0,
        };
        builder.put(MAGIC)?;
        builder.flush()?;
        builder.sum = 0;
        Ok(builder)
    }

    /// Writes the times of all rows, newest first.
    pub fn times(
        &mut self,
        times: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + Clone,
    ) -> io::Result<()> {
        self.rows = times.len() as u32;
        self.newest = times.clone().next().unwrap_or(0);
        self.oldest = times.clone().next_back().unwrap_or(0);
        let oldest = self.oldest;
        // If a page was lost during a merge, a time may be wrong and earlier than the oldest time.
        let since = |time: u64| time.saturating_sub(oldest);
        if u32::try_from(since(self.newest)).is_ok() {
            self.u32s(SegmentSection::Times, times.map(|time| since(time) as u32))
        } else {
            self.u64s(SegmentSection::Times, times.map(since))
        }
    }

    /// Writes the hashes and rows of all ids, ascending by hash, and the id filter.
    pub fn ids(&mut self, ids: impl Iterator<Item = (u64, u32)>) -> io::Result<()> {
        let mut rows = Vec::with_capacity(self.rows as usize);
        let mut filter = vec![0; filter::words(self.rows)];
        self.u64s(
            SegmentSection::IdHashes,
            ids.map(|(hash, row)| {
                rows.push(row);
                let (at, bits) = filter::word_and_bits(hash, filter.len());
                filter[at] |= bits;
                hash
            }),
        )?;
        self.u32s(SegmentSection::IdRows, rows.into_iter())?;
        self.u64s(SegmentSection::IdFilter, filter.into_iter())
    }

    /// Writes the posting lists and their dictionary. `next` adds the rows of the next list to its
    /// argument and returns the term and kind of this list. The lists must ascend by term and kind.
    pub fn lists(
        &mut self,
        mut entries: Spool<'_>,
        mut next: impl FnMut(&mut Vec<u32>) -> Option<(u64, u32)>,
    ) -> io::Result<()> {
        let mut rows = Vec::new();
        let mut end = 0u32;
        self.begin();
        while let Some((term, kind)) = next(&mut rows) {
            if rows.is_empty() {
                continue;
            }
            for row in rows.drain(..) {
                self.put(&row.to_le_bytes())?;
                // This cannot overflow, because segments are merged only if 32 bits can count their
                // postings.
                end = end.checked_add(1).ok_or_else(|| io::Error::other("too many postings"))?;
            }
            entries.push((term, kind, end))?;
        }
        self.end(SegmentSection::Postings)?;
        self.begin();
        entries.for_each(|(term, ..)| self.put(&term.to_le_bytes()))?;
        self.end(SegmentSection::Terms)?;
        self.begin();
        entries.for_each(|(_, kind, _)| self.put(&kind.to_le_bytes()))?;
        self.end(SegmentSection::Kinds)?;
        self.begin();
        self.put(&0u32.to_le_bytes())?;
        entries.for_each(|(.., end)| self.put(&end.to_le_bytes()))?;
        self.end(SegmentSection::Starts)?;
        entries.remove()
    }

    /// Writes the rows that expire and their expiry times, ascending by time.
    pub fn expiries(&mut self, expiries: &[(u64, u32)]) -> io::Result<()> {
        self.u64s(SegmentSection::ExpiryTimes, expiries.iter().map(|(time, _)| *time))?;
        self.u32s(SegmentSection::ExpiryRows, expiries.iter().map(|(_, row)| *row))
    }

    /// Writes the names of the listed labels, and their values, which must ascend without
    /// duplicates.
    pub fn values<'a>(
        &mut self,
        names: &[u8],
        values: impl Iterator<Item = Value<'a>>,
    ) -> io::Result<()> {
        self.begin();
        self.put(&values::header(names).collect::<Vec<u8>>())?;
        for value in values {
            self.put(&values::entry(value))?;
            self.put(value.1)?;
        }
        self.end(SegmentSection::Values)
    }

    /// Writes the ids of all rows, in the order of the rows, and the sums of the ids.
    pub fn sums(&mut self, ids: impl Iterator<Item = Id>) -> io::Result<()> {
        let (mut sum, mut sums) = (IdSum::default(), Vec::new());
        self.begin();
        for (row, id) in (1..).zip(ids) {
            self.put(&id)?;
            sum.add(&id);
            if row % SUMMED_ROWS == 0 {
                sums.push(sum);
            }
        }
        self.end(SegmentSection::Ids)?;
        self.begin();
        for sum in sums {
            self.put(&sum.bytes())?;
        }
        self.end(SegmentSection::IdSums)
    }

    /// Writes the words and posting lists that `give` passes to the [`WordBuilder`].
    pub fn words(
        &mut self,
        give: impl FnOnce(&mut WordBuilder<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.begin();
        let mut words = WordBuilder { packer: WordPacker::default(), builder: self };
        give(&mut words)?;
        let (last, index) = words.packer.end();
        self.put(&last.unwrap_or_default())?;
        self.end(SegmentSection::Words)?;
        let index = index.into_iter().flat_map(|(key, at)| [key, at]);
        self.u64s(SegmentSection::WordIndex, index)
    }

    /// Writes the trailer and returns the file's size. On return the content of the file is
    /// durable, but its name is not.
    pub fn finish(mut self) -> io::Result<u64> {
        let mut trailer = Vec::new();
        for (offset, len, sum) in self.table {
            trailer.extend_from_slice(&offset.to_le_bytes());
            trailer.extend_from_slice(&len.to_le_bytes());
            trailer.extend_from_slice(&sum.to_le_bytes());
        }
        trailer.extend_from_slice(&self.oldest.to_le_bytes());
        trailer.extend_from_slice(&self.newest.to_le_bytes());
        trailer.extend_from_slice(&self.rows.to_le_bytes());
        let sum = crc32c::crc32c(&trailer);
        trailer.extend_from_slice(&sum.to_le_bytes());
        trailer.extend_from_slice(MAGIC);
        self.put(&trailer)?;
        self.flush()?;
        self.file.sync()?;
        Ok(self.written)
    }

    fn u64s(
        &mut self,
        section: SegmentSection,
        values: impl Iterator<Item = u64>,
    ) -> io::Result<()> {
        self.begin();
        for value in values {
            self.put(&value.to_le_bytes())?;
        }
        self.end(section)
    }

    fn u32s(
        &mut self,
        section: SegmentSection,
        values: impl Iterator<Item = u32>,
    ) -> io::Result<()> {
        self.begin();
        for value in values {
            self.put(&value.to_le_bytes())?;
        }
        self.end(section)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sum = crc32c::crc32c_append(self.sum, &self.buffer);
        self.file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn begin(&mut self) {
        self.section_start = self.written;
    }

    fn end(&mut self, section: SegmentSection) -> io::Result<()> {
        let start = self.section_start;
        self.flush()?;
        let len = self.written - start;
        self.table[section as usize] = (start, len, self.sum);
        self.buffer.resize(len.next_multiple_of(8) as usize - len as usize, 0);
        let padding = std::mem::take(&mut self.buffer);
        self.file.write_all(&padding)?;
        self.written += padding.len() as u64;
        self.buffer = padding;
        self.buffer.clear();
        self.sum = 0;
        Ok(())
    }
}

/// Writes the words of a segment file.
pub struct WordBuilder<'a> {
    packer: WordPacker,
    builder: &'a mut SegmentBuilder,
}

impl WordBuilder<'_> {
    /// Adds a posting list of the current word, which the next call of [`Self::word`] ends. Lists
    /// must ascend by kind and class, and their rows must ascend.
    pub fn list(&mut self, key: ListKey, rows: &[u32]) {
        self.packer.list(key, rows);
    }

    /// Ends the current word. Words must ascend. A word without rows is left out.
    pub fn word(&mut self, word: &[u8]) -> io::Result<()> {
        let block = self.packer.word(word);
        block.map_or(Ok(()), |block| self.builder.put(&block))
    }
}
