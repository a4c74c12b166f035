//! Packed posting lists of words: ascending rows, in little more space than the gaps between the
//! rows need.
//!
//! Rows are in blocks of 128. The first row of a block is stored in full. For each other row, the
//! block stores the number of absent rows between the first row and this row. As in Elias-Fano
//! coding, this number has two parts: the low bits are stored as they are, and the high bits as
//! positions of ones. A list of several blocks begins with the first row and the offset of each
//! block. So a reader can skip blocks, and can read any row by its index. docs/format.md describes
//! the bytes.

use hark_codec::record::put_varint;

/// Maximum number of rows in a block.
pub const BLOCK_ROWS: usize = 128;
/// Size in bytes of an entry of a list's table of blocks: a row and an offset.
const TABLE_ENTRY: usize = 8;
/// Upper bounds for segments of fewer than 2^24 rows: the bytes of a list without its rows, and the
/// average bytes of a row. The bytes of a row include its share of the table of blocks. The share
/// is at most an eighth of a byte: 129 rows have two blocks, so two entries of eight bytes.
const LIST_BYTES_MAX: u64 = 32;
const ROW_BYTES_MAX: u64 = 4;

/// Upper bound for the bytes of `lists` lists that have `rows` rows in total, including kinds,
/// classes and lengths.
pub fn bytes_max(lists: u64, rows: u64) -> u64 {
    lists * LIST_BYTES_MAX + rows * ROW_BYTES_MAX
}

/// Reads a varint at the start of `bytes`, and advances `bytes` to the next byte.
pub fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The layout of a packed block that has `len` rows. The first row is `first`, and all rows are
/// below `end`.
#[derive(Clone, Copy)]
struct BlockShape {
    first: u32,
    /// Number of rows after the first.
    others: usize,
    /// Number of low bits per row.
    low: u32,
    /// Total number of high bits.
    high: usize,
}

impl BlockShape {
    fn new(first: u32, end: u32, len: usize) -> Self {
        let others = len.saturating_sub(1);
        // Maximum number of absent rows between the block's first and last rows.
        let spread = (end.saturating_sub(first) as usize).saturating_sub(len);
        let low = spread.checked_div(others).and_then(usize::checked_ilog2).unwrap_or(0);
        let high = if others == 0 { 0 } else { others + (spread >> low) };
        Self { first, others, low, high }
    }

    fn bytes(self) -> usize {
        (self.others * self.low as usize + self.high).div_ceil(8)
    }

    fn pack(self, rows: &[u32], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.bytes(), 0);
        let bits = &mut out[start..];
        let high = self.others * self.low as usize;
        for (at, &row) in rows.iter().skip(1).enumerate() {
            let far = u64::from(row - self.first) - 1 - at as u64;
            let low = far & ((1 << self.low) - 1);
            let place = at * self.low as usize;
            let eight = (low << (place % 8)).to_le_bytes();
            bits[place / 8..].iter_mut().zip(eight).for_each(|(byte, low)| *byte |= low);
            let place = high + (far >> self.low) as usize + at;
            bits[place / 8] |= 1 << (place % 8);
        }
    }

    /// Appends the rows. If bytes are missing or wrong, appends the right number of wrong rows.
    fn unpack(self, bytes: &[u8], rows: &mut Vec<u32>) {
        let (start, others) = (rows.len(), self.others);
        rows.push(self.first);
        if bytes.len() >= self.bytes() {
            let (width, high) = (self.low as usize, others * self.low as usize);
            let mask = (1 << self.low) - 1;
            let (mut at, mut base) = (0, 0);
            while at < others && base < self.high {
                let left = (self.high - base).min(SURE_BITS);
                let mut ones = bits_at(bytes, high + base) & ((1 << left) - 1);
                while ones != 0 && at < others {
                    let above = base + ones.trailing_zeros() as usize - at;
                    let low = bits_at(bytes, at * width) & mask;
                    let far = (above << self.low) as u32 | low as u32;
                    rows.push(self.first.wrapping_add(1 + at as u32).wrapping_add(far));
                    ones &= ones - 1;
                    at += 1;
                }
                base += left;
            }
        }
        rows.resize(start + 1 + others, u32::MAX);
    }
}

/// Minimum number of bits that one call of [`bits_at`] returns.
const SURE_BITS: usize = 57;

/// The bits from bit `at` on.
#[inline]
fn bits_at(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at / 8..).unwrap_or_default();
    let word = rest.first_chunk().map_or_else(
        || {
            let mut eight = [0; 8];
            eight[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(eight)
        },
        |eight| u64::from_le_bytes(*eight),
    );
    word >> (at % 8)
}

/// Appends a list to `out`. `rows` must ascend without duplicates and must not be empty.
pub fn pack(rows: &[u32], out: &mut Vec<u8>) {
    let (Some(&first), Some(&last)) = (rows.first(), rows.last()) else { return };
    if rows.len() <= BLOCK_ROWS {
        put_varint(out, first.into());
        if rows.len() > 1 {
            put_varint(out, (last - first).into());
            BlockShape::new(first, last + 1, rows.len()).pack(rows, out);
        }
        return;
    }
    let table = out.len();
    let blocks = rows.chunks(BLOCK_ROWS);
    let data = table + (blocks.len() + 1) * TABLE_ENTRY;
    out.resize(data, 0);
    let firsts = blocks.clone().map(|block| block[0]).chain([last + 1]);
    let ends: Vec<u32> = firsts.collect();
    for (at, block) in blocks.enumerate() {
        let (first, end) = (ends[at], ends[at + 1]);
        put_entry(out, table, at, (first, data));
        BlockShape::new(first, end, block.len()).pack(block, out);
    }
    put_entry(out, table, ends.len() - 1, (last + 1, data));
}

/// Sets an entry of the table of blocks to a row and to the current end of the data.
fn put_entry(out: &mut [u8], table: usize, at: usize, (row, data): (u32, usize)) {
    let offset = (out.len() - data) as u32;
    let entry = u64::from(offset) << 32 | u64::from(row);
    out[table + at * TABLE_ENTRY..][..TABLE_ENTRY].copy_from_slice(&entry.to_le_bytes());
}

/// A packed list: its offset in the section, and its number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedList {
    /// Offset in the section.
    pub at: usize,
    /// Number of rows.
    pub len: usize,
}

impl PackedList {
    fn blocks(&self) -> usize {
        self.len.div_ceil(BLOCK_ROWS)
    }

    /// An entry of the table of blocks.
    fn entry(&self, section: &[u8], block: usize) -> Option<(u32, usize)> {
        let at = self.at.checked_add(block.checked_mul(TABLE_ENTRY)?)?;
        let entry = u64::from_le_bytes(*section.get(at..)?.first_chunk()?);
        Some((entry as u32, (entry >> 32) as usize))
    }

    /// Reads the start of a list of one block. Returns the list's first row, its last row plus one,
    /// and the bytes that follow.
    fn only_block<'a>(&self, section: &'a [u8]) -> Option<(u32, u32, &'a [u8])> {
        let mut bytes = section.get(self.at..)?;
        let first = u32::try_from(varint(&mut bytes)?).ok()?;
        let span = if self.len > 1 { u32::try_from(varint(&mut bytes)?).ok()? } else { 0 };
        Some((first, first.checked_add(span)?.checked_add(1)?, bytes))
    }

    /// The offset at which the list ends; `None` if the list is damaged.
    pub fn end(&self, section: &[u8]) -> Option<usize> {
        if self.len <= BLOCK_ROWS {
            let (first, end, rest) = self.only_block(section)?;
            let bytes = BlockShape::new(first, end, self.len).bytes();
            return (section.len() - rest.len())
                .checked_add(bytes)
                .filter(|&at| at <= section.len());
        }
        let blocks = self.blocks();
        let (_, bytes) = self.entry(section, blocks)?;
        let data = self.at.checked_add((blocks + 1).checked_mul(TABLE_ENTRY)?)?;
        data.checked_add(bytes).filter(|&at| at <= section.len())
    }

    /// The first row of a block; `u32::MAX` if the row cannot be read.
    fn first(&self, section: &[u8], block: usize) -> u32 {
        if self.len <= BLOCK_ROWS {
            return self.only_block(section).map_or(u32::MAX, |(first, ..)| first);
        }
        self.entry(section, block).map_or(u32::MAX, |(first, _)| first)
    }

    /// Appends the rows of a block. If the bytes are damaged, the number of rows is still right.
    pub fn unpack(&self, section: &[u8], block: usize, rows: &mut Vec<u32>) {
        let len = self.len.saturating_sub(block * BLOCK_ROWS).min(BLOCK_ROWS);
        let shape = if self.len <= BLOCK_ROWS {
            self.only_block(section).filter(|_| block == 0)
        } else {
            self.entry(section, block).zip(self.entry(section, block + 1)).and_then(
                |((first, offset), (end, _))| {
                    let data = self.at + (self.blocks() + 1) * TABLE_ENTRY;
                    Some((first, end, section.get(data.checked_add(offset)?..)?))
                },
            )
        };
        let all = rows.len() + len;
        if let Some((first, end, bytes)) = shape.filter(|_| len > 0) {
            BlockShape::new(first, end, len).unpack(bytes, rows);
        }
        rows.resize(all, u32::MAX);
    }

    /// All rows.
    pub fn rows<'a>(&self, section: &'a [u8]) -> impl Iterator<Item = u32> + use<'a> {
        let list = *self;
        let mut block = Vec::new();
        (0..list.len).map(move |at| {
            if at % BLOCK_ROWS == 0 {
                block.clear();
                list.unpack(section, at / BLOCK_ROWS, &mut block);
            }
            block[at % BLOCK_ROWS]
        })
    }
}

/// Reads a packed list, and caches the last unpacked block.
#[derive(Debug)]
pub struct PackedReader {
    list: PackedList,
    /// The number of the unpacked block, and its rows.
    now: usize,
    rows: Vec<u32>,
}

impl PackedReader {
    /// Makes a reader of a list.
    pub fn new(list: PackedList) -> Self {
        Self { list, now: usize::MAX, rows: Vec::new() }
    }

    fn block(&mut self, section: &[u8], block: usize) -> &[u32] {
        if self.now != block {
            self.rows.clear();
            self.list.unpack(section, block, &mut self.rows);
            self.now = block;
        }
        &self.rows
    }

    /// The row at an index.
    #[inline]
    pub fn get(&mut self, section: &[u8], index: usize) -> u32 {
        let rows = self.block(section, index / BLOCK_ROWS);
        rows.get(index % BLOCK_ROWS).copied().unwrap_or(u32::MAX)
    }

    /// Returns the first index, from `from` on, at which the list's row is `row` or higher. The
    /// search is fast if this index is near `from`.
    pub fn seek(&mut self, section: &[u8], from: usize, row: u32) -> usize {
        if from >= self.list.len {
            return self.list.len;
        }
        let (mut block, blocks) = (from / BLOCK_ROWS, self.list.blocks());
        // Find the last block whose first row is not above `row`.
        let mut reach = 1;
        while block + reach < blocks && self.list.first(section, block + reach) <= row {
            block += reach;
            reach *= 2;
        }
        let (mut low, mut high) = (block, (block + reach).min(blocks));
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.list.first(section, middle) <= row {
                low = middle;
            } else {
                high = middle;
            }
        }
        block = low;
        let rows = self.block(section, block);
        let at = block * BLOCK_ROWS + rows.partition_point(|&other| other < row);
        at.max(from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(rows: &[u32]) -> (Vec<u8>, PackedList) {
        let mut section = vec![0xaa; 5];
        pack(rows, &mut section);
        (section, PackedList { at: 5, len: rows.len() })
    }

    /// Rows with these gaps.
    fn rows(gaps: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut row = 0u32;
        let next = |gap| {
            row += gap + 1;
            row - 1
        };
        gaps.into_iter().map(next).collect()
    }

    fn assert_reads(rows: &[u32]) {
        let (section, list) = packed(rows);
        assert_eq!(list.end(&section), Some(section.len()));
        assert_eq!(list.rows(&section).collect::<Vec<_>>(), rows);
        let mut reader = PackedReader::new(list);
        for (at, &row) in rows.iter().enumerate().rev() {
            assert_eq!(reader.get(&section, at), row);
            for wanted in [row.saturating_sub(1), row, row.saturating_add(1)] {
                for from in [0, at / 2, at, (at + 200).min(rows.len())] {
                    let expected = from + rows[from..].partition_point(|&other| other < wanted);
                    assert_eq!(reader.seek(&section, from, wanted), expected, "{wanted} {from}");
                }
            }
        }
        let bytes = section.len() as u64 - 5;
        assert!(bytes <= bytes_max(1, rows.len() as u64), "{bytes} for {} rows", rows.len());
    }

    #[test]
    fn rows_come_back_and_are_found() {
        for len in [1, 2, 3, 127, 128, 129, 255, 256, 257, 1000] {
            assert_reads(&rows(vec![0; len]));
            assert_reads(&rows((0..len).map(|at| at as u32 % 7)));
            assert_reads(&rows((0..len).map(|at| (at as u32).wrapping_mul(0x9e37_79b9) >> 19)));
            assert_reads(&rows((0..len).map(|at| if at % 100 == 3 { 60_000 } else { 0 })));
            let mut far = rows(vec![0; len]);
            far[len - 1] = (1 << 24) - 1;
            assert_reads(&far);
        }
    }

    #[test]
    fn rows_take_little_more_than_their_gaps() {
        // On average, one row in 250 is in the list, at random: each gap takes 8 bits, and the
        // table adds hardly any bits per row.
        let gaps = (0..40_000u32).map(|at| {
            let bits = at.wrapping_add(7).wrapping_mul(0x9e37_79b9);
            (bits ^ bits >> 15).wrapping_mul(0x85eb_ca6b) >> 16
        });
        let rows = rows(gaps.map(|bits| bits % 500));
        let (section, _) = packed(&rows);
        assert!(section.len() * 8 < rows.len() * 11, "{} bytes", section.len());
        let every = self::rows(vec![0; 100_000]);
        assert!(packed(&every).0.len() * 8 < every.len() * 2);
    }

    proptest! {
        #[test]
        fn whatever_the_bytes_are_there_are_as_many_rows(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            at in 0usize..700,
            len in 1usize..1000,
        ) {
            let list = PackedList { at, len };
            let _ = list.end(&bytes);
            prop_assert_eq!(list.rows(&bytes).count(), len);
            let mut reader = PackedReader::new(list);
            for row in [0, 7, 1 << 20, u32::MAX] {
                let found = reader.seek(&bytes, len / 2, row);
                prop_assert!((len / 2..=len.next_multiple_of(BLOCK_ROWS)).contains(&found));
            }
        }

        #[test]
        fn any_rows_come_back(gaps in proptest::collection::vec(0u32..5000, 1..700)) {
            assert_reads(&rows(gaps));
        }
    }
}
