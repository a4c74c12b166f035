//! The words of a segment, ascending. Each word has a posting list for each kind and class that has
//! rows. A class is a level of the word's relevance in a record. Words are in blocks. Within a
//! block, each word is written as its difference from the previous word, and the lists of all words
//! follow the words. docs/format.md describes the bytes.

use hark_codec::record::put_varint;

use super::packed::{self, PackedList, varint};

/// Maximum number of words in a block.
const BLOCK_WORDS: usize = 32;
/// Size of a block's lists in bytes at which the block ends.
const BLOCK_BYTES: usize = 16 << 10;
/// Size in bytes of a block's entry in the index of blocks.
pub const INDEX_ENTRY: usize = 16;
/// Number of bits of a class.
const CLASS_BITS: u32 = 2;

/// Upper bound for the packed bytes of all words and their posting lists. `lists` is the number of
/// lists of all words, `rows` the number of rows in these lists, and `word_bytes` the total length
/// of the words.
pub fn bytes_max(lists: u64, rows: u64, word_bytes: u64) -> u64 {
    // In the worst case, each list belongs to a different word, and each word has two lengths and
    // begins a block.
    packed::bytes_max(lists, rows) + word_bytes + lists * (12 + INDEX_ENTRY as u64)
}

/// The kind of a list's rows, and the class of the word in these rows.
pub type ListKey = (u32, u8);

/// The first bytes of a word, as a number with the same order.
pub fn index_key(word: &[u8]) -> u64 {
    let mut eight = [0; 8];
    eight.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(eight)
}

/// Packs words into blocks.
#[derive(Default)]
pub struct WordPacker {
    /// The words of the block, and their lists.
    words: Vec<u8>,
    lists: Vec<u8>,
    count: usize,
    /// The packed posting lists of the current word.
    next: Vec<u8>,
    last: Vec<u8>,
    index: Vec<(u64, u64)>,
    /// Total length of the earlier blocks.
    written: u64,
}

impl WordPacker {
    /// Adds a posting list of the current word, which the next call of [`Self::word`] ends. Lists
    /// must ascend by their keys, and rows must ascend. A list without rows is left out.
    pub fn list(&mut self, (kind, class): ListKey, rows: &[u32]) {
        if rows.is_empty() {
            return;
        }
        put_varint(&mut self.next, kind.into());
        put_varint(&mut self.next, (rows.len() as u64 - 1) << CLASS_BITS | u64::from(class));
        packed::pack(rows, &mut self.next);
    }

    /// Ends the current word. A word without lists is left out. Words must ascend. Returns the
    /// block of the section, if the word completes a block.
    pub fn word(&mut self, word: &[u8]) -> Option<Vec<u8>> {
        if self.next.is_empty() {
            return None;
        }
        let full = (self.count == BLOCK_WORDS || self.lists.len() >= BLOCK_BYTES)
            .then(|| self.block())
            .flatten();
        let same = self.last.iter().zip(word).take_while(|(one, other)| one == other).count();
        if self.count == 0 {
            self.index.push((index_key(word), self.written));
        }
        put_varint(&mut self.words, same as u64);
        put_varint(&mut self.words, (word.len() - same) as u64);
        self.words.extend_from_slice(&word[same..]);
        put_varint(&mut self.words, self.next.len() as u64);
        self.lists.append(&mut self.next);
        self.last.clear();
        self.last.extend_from_slice(word);
        self.count += 1;
        full
    }

    /// Ends the block; returns `None` if the block is empty.
    fn block(&mut self) -> Option<Vec<u8>> {
        let count = std::mem::take(&mut self.count);
        self.last.clear();
        (count > 0).then(|| {
            let mut block = Vec::with_capacity(1 + self.words.len() + self.lists.len());
            block.push(count as u8);
            block.append(&mut self.words);
            block.append(&mut self.lists);
            self.written += block.len() as u64;
            block
        })
    }

    /// Ends the last block. Returns the last block, and the index of all blocks: for each block,
    /// the first bytes of its first word, and its offset.
    pub fn end(mut self) -> (Option<Vec<u8>>, Vec<(u64, u64)>) {
        (self.block(), self.index)
    }
}

/// The words of a segment: the two sections with words, and the number of rows.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    /// The section of blocks.
    pub blocks: &'a [u8],
    /// The section of the blocks' index.
    pub index: &'a [u8],
    /// Number of rows in the segment.
    pub rows: u32,
}

impl<'a> Words<'a> {
    /// The first bytes of a block's first word, and the offset of the block.
    fn entry(&self, block: usize) -> Option<(u64, usize)> {
        let entry = self.index.as_chunks::<INDEX_ENTRY>().0.get(block)?;
        let (key, start) = entry.split_first_chunk()?;
        Some((u64::from_le_bytes(*key), u64::from_le_bytes(*start.first_chunk()?) as usize))
    }

    /// The number of blocks.
    fn len(&self) -> usize {
        self.index.len() / INDEX_ENTRY
    }

    /// Begins to read a block at its first word.
    fn block(&self, block: usize) -> Option<WordBlockReader<'a>> {
        let (_, start) = self.entry(block)?;
        let end = self.entry(block + 1).map_or(self.blocks.len(), |(_, end)| end);
        let (&count, words) = self.blocks.get(start..end)?.split_first()?;
        let mut rest = words;
        for _ in 0..count {
            varint(&mut rest)?;
            let len = usize::try_from(varint(&mut rest)?).ok()?;
            rest = rest.get(len..)?;
            varint(&mut rest)?;
        }
        Some(WordBlockReader { words, left: count, lists: end - rest.len(), end })
    }

    /// Reads all words, ascending.
    pub fn read(self) -> WordReader<'a> {
        self.from(0)
    }

    fn from(self, block: usize) -> WordReader<'a> {
        WordReader { words: self, next: block, block: None, word: Vec::new(), lists: 0..0 }
    }

    /// The last block whose first word is `word` or comes before `word`.
    fn block_of(&self, word: &[u8]) -> usize {
        let key = index_key(word);
        let is_before = |block: usize| {
            let first = self.entry(block).map_or(u64::MAX, |(first, _)| first);
            first < key
                || (first == key && {
                    let mut reader = self.from(block);
                    reader.advance() && *reader.word <= *word
                })
        };
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if is_before(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.saturating_sub(1)
    }

    /// The lists of a word; none if no row has the word.
    pub fn find(&self, word: &str) -> WordLists<'a> {
        let mut reader = self.from(self.block_of(word.as_bytes()));
        while reader.advance() {
            if *reader.word >= *word.as_bytes() {
                if *reader.word == *word.as_bytes() {
                    return reader.lists();
                }
                break;
            }
        }
        WordLists { words: *self, at: 0..0 }
    }

    /// The words that begin with `beginning`; `None` if there are more than `max` words.
    pub fn beginning(&self, beginning: &str, max: usize) -> Option<Vec<Box<str>>> {
        let (mut found, beginning) = (Vec::new(), beginning.as_bytes());
        let mut reader = self.from(self.block_of(beginning));
        while reader.advance() {
            if reader.word.starts_with(beginning) {
                if found.len() == max {
                    return None;
                }
                found.extend(str::from_utf8(&reader.word).ok().map(Box::from));
            } else if *reader.word > *beginning {
                break;
            }
        }
        Some(found)
    }
}

/// The unread part of a block.
struct WordBlockReader<'a> {
    words: &'a [u8],
    left: u8,
    /// The position of the next word's lists, and the end of the block.
    lists: usize,
    end: usize,
}

/// Reads words one after another.
pub struct WordReader<'a> {
    words: Words<'a>,
    /// The number of the next block.
    next: usize,
    block: Option<WordBlockReader<'a>>,
    /// The current word.
    pub word: Vec<u8>,
    lists: std::ops::Range<usize>,
}

impl<'a> WordReader<'a> {
    /// Advances to the next word; returns false at the end. Words of a damaged block are skipped.
    pub fn advance(&mut self) -> bool {
        loop {
            if let Some(block) = &mut self.block
                && let Some(lists) = block.next(&mut self.word)
            {
                self.lists = lists;
                return true;
            }
            if self.next >= self.words.len() {
                return false;
            }
            self.block = self.words.block(self.next);
            self.next += 1;
            self.word.clear();
        }
    }

    /// The lists of the current word.
    pub fn lists(&self) -> WordLists<'a> {
        WordLists { words: self.words, at: self.lists.clone() }
    }
}

impl WordBlockReader<'_> {
    /// Changes `word` to the next word, and returns the position of this word's lists.
    fn next(&mut self, word: &mut Vec<u8>) -> Option<std::ops::Range<usize>> {
        self.left = self.left.checked_sub(1)?;
        let same = usize::try_from(varint(&mut self.words)?).ok()?;
        let len = usize::try_from(varint(&mut self.words)?).ok()?;
        let (letters, rest) = self.words.split_at_checked(len)?;
        self.words = rest;
        let bytes = usize::try_from(varint(&mut self.words)?).ok()?;
        word.truncate(same);
        word.extend_from_slice(letters);
        let start = self.lists;
        self.lists = start.checked_add(bytes).filter(|&end| end <= self.end)?;
        Some(start..self.lists)
    }
}

/// The lists of a word, ascending by kind and class.
#[derive(Clone)]
pub struct WordLists<'a> {
    words: Words<'a>,
    at: std::ops::Range<usize>,
}

impl Iterator for WordLists<'_> {
    type Item = (ListKey, PackedList);

    /// Returns the next list. If a list is damaged, the iteration ends.
    fn next(&mut self) -> Option<Self::Item> {
        let section = self.words.blocks.get(..self.at.end)?;
        let mut rest = section.get(self.at.start..).filter(|rest| !rest.is_empty())?;
        let kind = u32::try_from(varint(&mut rest)?).ok()?;
        let (len, class) = varint(&mut rest).map(|both| (both >> CLASS_BITS, both & 3))?;
        let len = usize::try_from(len).ok()?;
        if len >= self.words.rows as usize {
            return None;
        }
        let list = PackedList { at: section.len() - rest.len(), len: len + 1 };
        self.at.start = list.end(section)?;
        Some(((kind, class as u8), list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type WordAndLists<'a> = (&'a str, &'a [(ListKey, &'a [u32])]);

    /// The two sections for words that have these lists.
    fn sections(words: &[WordAndLists<'_>]) -> (Vec<u8>, Vec<u8>) {
        let (mut packer, mut blocks) = (WordPacker::default(), Vec::new());
        for (word, lists) in words {
            lists.iter().for_each(|(key, rows)| packer.list(*key, rows));
            blocks.extend(packer.word(word.as_bytes()).into_iter().flatten());
        }
        let (last, index) = packer.end();
        blocks.extend(last.into_iter().flatten());
        let bytes = |(key, at): (u64, u64)| [key.to_le_bytes(), at.to_le_bytes()].concat();
        (blocks, index.into_iter().flat_map(bytes).collect())
    }

    fn many() -> Vec<String> {
        let mut words: Vec<String> = (0..500).map(|n| format!("prefixed{}", n * 7)).collect();
        words.extend(["a", "ab", "b", "éa", "今日", "zz"].map(str::to_owned));
        words.sort_unstable();
        words
    }

    #[test]
    fn words_and_their_lists_come_back_and_are_found() {
        let words = many();
        let rows: Vec<Vec<u32>> = (0..words.len() as u32)
            .map(|n| (0..=n % 300).map(|at| at * (1 + n % 5)).collect())
            .collect();
        let lists: Vec<[(ListKey, &[u32]); 3]> = rows
            .iter()
            .map(|rows| [((1, 0), &rows[..]), ((1, 3), &rows[..1]), ((30_023, 2), &rows[..])])
            .collect();
        let all: Vec<WordAndLists<'_>> =
            words.iter().zip(&lists).map(|(word, lists)| (&**word, &lists[..])).collect();
        let (blocks, index) = sections(&all);
        assert!(index.len() / INDEX_ENTRY > words.len() / BLOCK_WORDS);
        let read = Words { blocks: &blocks, index: &index, rows: 2000 };
        let mut reader = read.read();
        for (word, lists) in &all {
            assert!(reader.advance());
            assert_eq!(reader.word, word.as_bytes());
            for lists_of in [reader.lists(), read.find(word)] {
                let found: Vec<(ListKey, Vec<u32>)> =
                    lists_of.map(|(key, list)| (key, list.rows(&blocks).collect())).collect();
                let expected: Vec<(ListKey, Vec<u32>)> =
                    lists.iter().map(|(key, rows)| (*key, rows.to_vec())).collect();
                assert_eq!(found, expected, "{word}");
            }
        }
        assert!(!reader.advance());
        for missing in ["", "aa", "prefixed", "prefixed00", "zzz", "今"] {
            assert_eq!(read.find(missing).count(), 0, "{missing}");
        }
        for beginning in ["", "a", "prefixed1", "prefixed3493", "é", "今", "zzz"] {
            let expected: Vec<&String> =
                words.iter().filter(|w| w.starts_with(beginning)).collect();
            let found = read.beginning(beginning, expected.len());
            let found: Vec<String> = found.unwrap().into_iter().map(String::from).collect();
            assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{beginning}");
            if !expected.is_empty() {
                assert_eq!(read.beginning(beginning, expected.len() - 1), None);
            }
        }
    }

    #[test]
    fn words_without_rows_are_left_out() {
        let (blocks, index) = sections(&[("a", &[((1, 0), &[])]), ("b", &[((1, 0), &[4])])]);
        let read = Words { blocks: &blocks, index: &index, rows: 5 };
        assert_eq!(read.beginning("", 9).unwrap(), ["b".into()]);
        let (blocks, index) = sections(&[]);
        assert!(blocks.is_empty() && index.is_empty());
        assert_eq!(Words { blocks: &[], index: &[], rows: 5 }.beginning("", 9).unwrap(), []);
    }

    #[test]
    fn damaged_bytes_end_a_list_and_nothing_else() {
        let words = many();
        let rows: Vec<u32> = (0..300).collect();
        let lists = [((1, 0), &rows[..]), ((1, 1), &rows[..9])];
        let all: Vec<WordAndLists<'_>> = words.iter().map(|word| (&**word, &lists[..])).collect();
        let (blocks, index) = sections(&all);
        let ask = |blocks: &[u8], index: &[u8]| {
            let read = Words { blocks, index, rows: 300 };
            let mut reader = read.read();
            let mut count = 0;
            while reader.advance() {
                count += reader.lists().map(|(_, list)| list.rows(blocks).count()).sum::<usize>();
            }
            // Each byte of a list is read once, and yields at most 64 rows.
            assert!(count <= blocks.len() * 64 * (1 + index.len() / INDEX_ENTRY));
            let _ = (read.find("prefixed7").count(), read.beginning("pre", 64));
        };
        for at in 0..blocks.len().min(3000) {
            let mut harmed = blocks.clone();
            harmed[at] ^= 1 << (at % 8);
            ask(&harmed, &index);
            harmed[at] = 0xff;
            ask(&harmed, &index);
        }
        for at in 0..index.len() {
            let mut harmed = index.clone();
            harmed[at] ^= 1 << (at % 8);
            ask(&blocks, &harmed);
            ask(&blocks, &harmed[..at]);
        }
        for cut in 0..200 {
            ask(&blocks[..blocks.len() - cut * 7], &index);
        }
    }
}
