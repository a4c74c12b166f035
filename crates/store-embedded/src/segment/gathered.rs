//! The words of a segment that is made from records directly, without a head. Unpacked words take
//! far more memory than packed words. So words are packed whenever the unpacked words reach a
//! bound, and the packed parts are merged at the end.

use std::io;

use super::build::WordBuilder;
use super::merge::merge_words;
use super::word_blocks::{WordPacker, Words};
use crate::word_postings::WordPostings;

/// Approximate maximum of the memory of unpacked words, in bytes. The tests of this crate use a
/// smaller maximum.
const UNPACKED_BYTES_MAX: usize = if cfg!(test) { 16 << 10 } else { 64 << 20 };

/// The words of records, and their postings.
#[derive(Default)]
pub struct GatheredWords {
    unpacked: WordPostings,
    packed: Vec<PackedWords>,
}

/// A packed part of the words, with the same layout as the sections of a segment.
struct PackedWords {
    blocks: Vec<u8>,
    index: Vec<u8>,
}

impl PackedWords {
    /// Returns this part as the words of a segment with `rows` rows.
    fn words(&self, rows: u32) -> Words<'_> {
        Words { blocks: &self.blocks, index: &self.index, rows }
    }
}

impl GatheredWords {
    /// Adds the words of a row, each with its hash and class.
    pub fn add<'a>(
        &mut self,
        kind: u32,
        row: u32,
        words: impl Iterator<Item = (u64, u8, &'a str)>,
    ) {
        words.for_each(|(hash, class, word)| self.unpacked.add((hash, word), (kind, class), row));
        if self.unpacked.bytes() >= UNPACKED_BYTES_MAX {
            self.pack();
        }
    }

    fn pack(&mut self) {
        let (mut packer, mut blocks, mut list) = (WordPacker::default(), Vec::new(), Vec::new());
        self.unpacked.sorted(self.unpacked.rows(), |word, postings| {
            for same in postings.chunk_by(|(one, _), (other, _)| one == other) {
                list.clear();
                list.extend(same.iter().map(|(_, row)| *row));
                packer.list(same[0].0, &list);
            }
            blocks.extend(packer.word(word.as_bytes()).unwrap_or_default());
        });
        let (last, index) = packer.end();
        blocks.extend(last.unwrap_or_default());
        blocks.shrink_to_fit();
        let entry = |(key, at): (u64, u64)| [key.to_le_bytes(), at.to_le_bytes()];
        let index = index.into_iter().flat_map(entry).flatten().collect();
        self.packed.push(PackedWords { blocks, index });
        self.unpacked.clear();
    }

    /// Writes all words to `into`, a segment with `rows` rows.
    pub fn put(mut self, into: &mut WordBuilder<'_>, rows: u32) -> io::Result<()> {
        self.pack();
        let Self { unpacked, packed } = self;
        drop(unpacked);
        let parts: Vec<Words<'_>> = packed.iter().map(|part| part.words(rows)).collect();
        merge_words(into, &parts, |_, row| Some(row))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    use hark_testkit::random::Random;

    use super::super::word_blocks::ListKey;
    use super::*;
    use crate::disk::RealDisk;
    use crate::segment::build::SegmentBuilder;
    use crate::segment::file::SegmentFile;
    use crate::segment::packed::PackedList;
    use crate::segment::spool::Spool;

    /// Words, their lists, and the rows of each list.
    type ListsOfWords = BTreeMap<Vec<u8>, BTreeMap<ListKey, Vec<u32>>>;

    /// Writes a segment file with `rows` rows and the words that `give` adds, and returns the words
    /// that the file has.
    fn written(
        dir: &Path,
        rows: u32,
        give: impl FnOnce(&mut WordBuilder<'_>) -> io::Result<()>,
    ) -> ListsOfWords {
        let mut builder = SegmentBuilder::new(&RealDisk, dir, 1).unwrap();
        builder.times((0..rows).map(|_| 7)).unwrap();
        builder.ids((0..rows).map(|row| (u64::from(row), row))).unwrap();
        builder.lists(Spool::new(&RealDisk, dir, 1).unwrap(), |_| None).unwrap();
        builder.expiries(&[]).unwrap();
        builder.values(&[], std::iter::empty()).unwrap();
        builder.sums((0..rows).map(|_| [7; 32])).unwrap();
        builder.words(give).unwrap();
        builder.finish().unwrap();
        let file = SegmentFile::open(&RealDisk, dir, 1).unwrap();
        let (mut reader, mut found) = (file.words().read(), ListsOfWords::new());
        while reader.advance() {
            let rows = |(key, list): (ListKey, PackedList)| {
                (key, list.rows(file.words().blocks).collect())
            };
            found.insert(reader.word.clone(), reader.lists().map(rows).collect());
        }
        found
    }

    fn scratch() -> PathBuf {
        let dir = hark_testkit::disk::scratch("gathered");
        fs::create_dir_all(dir.join("seg")).unwrap();
        dir
    }

    /// Adds rows with some words each. The rows do not ascend.
    fn gather(rows: u32, model: &mut ListsOfWords) -> GatheredWords {
        let (mut random, mut gathered) = (Random::new(11), GatheredWords::default());
        for at in 0..rows {
            let (row, kind) = ((at * 7 + 3) % rows, [1, 30_023][random.below(2)]);
            let mut words: Vec<String> = (0..random.below(30))
                .map(|_| format!("{}{}", ["w", "é", "今"][random.below(3)], random.below(300)))
                .collect();
            words.sort_unstable();
            words.dedup();
            let words: Vec<(&str, u8)> =
                words.iter().map(|word| (&**word, random.below(4) as u8)).collect();
            for (word, class) in &words {
                let lists = model.entry(word.as_bytes().to_vec()).or_default();
                lists.entry((kind, *class)).or_default().push(row);
            }
            gathered.add(kind, row, words.into_iter().map(|(word, class)| (7, class, word)));
            assert!(gathered.unpacked.bytes() < UNPACKED_BYTES_MAX);
        }
        model.values_mut().flat_map(BTreeMap::values_mut).for_each(|rows| rows.sort_unstable());
        gathered
    }

    #[test]
    fn words_that_were_packed_in_parts_come_back() {
        let dir = scratch();
        for rows in [1, 20, 4_999] {
            let mut model = ListsOfWords::new();
            let gathered = gather(rows, &mut model);
            assert!(rows < 4_999 || gathered.packed.len() > 50);
            let found = written(&dir, rows, |into| gathered.put(into, rows));
            assert_eq!(found, model, "{rows} rows");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    /// If a page is lost during a merge, it reads as zeros, and the merge detects the loss only at
    /// its end.
    #[test]
    fn a_lost_page_of_words_does_not_end_a_merge() {
        let (dir, rows) = (scratch(), 400);
        let (mut random, mut gathered) = (Random::new(3), GatheredWords::default());
        for row in 0..rows {
            let words = [random.below(5), 5 + random.below(5)].map(|n| format!("word{n}"));
            gathered.add(1, row, words.iter().map(|word| (7, 1, &**word)));
        }
        gathered.pack();
        let [whole] = &gathered.packed[..] else { panic!("{} parts", gathered.packed.len()) };
        let ascend = |rows: &[u32]| rows.is_sorted_by(|one, other| one < other);
        let mut out_of_order = 0;
        for lost in (0..whole.blocks.len()).step_by(16) {
            for bytes in [1, 16, 4096] {
                let mut blocks = whole.blocks.clone();
                let end = blocks.len().min(lost + bytes);
                blocks[lost..end].fill(0);
                let (mut reader, mut lists) =
                    (Words { blocks: &blocks, ..whole.words(rows) }.read(), Vec::new());
                while reader.advance() {
                    lists.extend(reader.lists().map(|(_, list)| list));
                }
                let read = |list: &PackedList| {
                    list.rows(&blocks).filter(|row| *row < rows).collect::<Vec<u32>>()
                };
                out_of_order += usize::from(lists.iter().any(|list| !ascend(&read(list))));
                let found = written(&dir, rows, |into| {
                    let sound = whole.words(rows);
                    let parts = [Words { blocks: &blocks, ..sound }, sound];
                    merge_words(into, &parts[..=lost / 16 % 2], |_, row| {
                        Some(row).filter(|row| *row < rows)
                    })
                });
                assert!(found.values().flat_map(BTreeMap::values).all(|rows| ascend(rows)));
            }
        }
        assert!(out_of_order > 0, "no list was out of order");
        fs::remove_dir_all(&dir).unwrap();
    }
}
