//! A run: the sorted words of successive rows of a head. Each word has its posting lists. Runs
//! never change.

use std::cmp::Ordering;
use std::ops::Range;

use super::table::RowTable;
use crate::segment::word_blocks::{ListKey, index_key};
use crate::word_postings::WordPostings;

/// The sorted words of successive rows.
pub struct WordRun {
    /// The rows that have words, newest first. A posting is an index into these rows.
    rows: Box<[u32]>,
    /// The rows that the run covers, in the order of arrival.
    span: Range<u32>,
    /// The concatenated words.
    text: String,
    words: Vec<RunWord>,
    lists: Vec<RunList>,
    postings: Vec<u32>,
}

struct RunWord {
    /// The first bytes of the word, as [`index_key`].
    key: u64,
    /// The end of the word in the text, and the end of its lists in `lists`.
    end: u32,
    lists_end: u32,
}

struct RunList {
    key: ListKey,
    /// The end of the list in the postings.
    end: u32,
}

/// A posting list from one of several runs.
pub struct ListOfRun<'a> {
    /// The kind of the list's rows, and the class of the word in these rows.
    pub key: ListKey,
    /// The number of the run.
    number: usize,
    run: &'a WordRun,
    /// Indices of the run's rows, ascending.
    postings: &'a [u32],
}

impl ListOfRun<'_> {
    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.postings.len()
    }

    /// The rows, newest first.
    pub fn rows(&self) -> impl Iterator<Item = u32> {
        self.postings.iter().map(|at| self.run.rows[*at as usize])
    }
}

/// Compares two words that have the same first eight bytes, `key` ([`index_key`]). If the last byte
/// of `key` is zero, both words are shorter than eight bytes and equal, because no word contains a
/// zero byte.
#[inline]
fn longer(key: u64, texts: impl FnOnce() -> Ordering) -> Ordering {
    if key.trailing_zeros() >= 8 { Ordering::Equal } else { texts() }
}

/// The start of item number `at`, that is, the end of the previous item.
fn start(at: usize, end: impl Fn(usize) -> u32) -> usize {
    at.checked_sub(1).map_or(0, end) as usize
}

impl WordRun {
    fn empty(rows: Box<[u32]>) -> Self {
        let (first, last) = (rows.iter().min(), rows.iter().max());
        let span = first.map_or(0, |first| *first)..last.map_or(0, |last| *last + 1);
        let (text, words, lists, postings) = Default::default();
        Self { rows, span, text, words, lists, postings }
    }

    /// Makes a run of these words.
    pub(super) fn new(words: &WordPostings, table: &RowTable) -> Self {
        let mut ranked: Vec<(u32, u32)> = words.rows().iter().copied().zip(0..).collect();
        ranked.sort_unstable_by_key(|(row, _)| table.sort_key(*row));
        let mut numbers = vec![0; ranked.len()];
        for (number, (_, at)) in (0..).zip(&ranked) {
            numbers[*at as usize] = number;
        }
        let mut run = Self::empty(ranked.into_iter().map(|(row, _)| row).collect());
        run.postings.reserve_exact(words.len());
        run.text.reserve_exact(words.text_bytes());
        words.sorted(&numbers, |word, postings| {
            for same in postings.chunk_by(|(one, _), (other, _)| one == other) {
                run.postings.extend(same.iter().map(|(_, number)| *number));
                run.end_list(same[0].0);
            }
            run.end_word(word);
        });
        run.lists.shrink_to_fit();
        run.words.shrink_to_fit();
        run
    }

    /// Merges successive runs into a new run.
    pub(super) fn merge(runs: &[&Self], table: &RowTable) -> Self {
        let of_run = |(number, run): (usize, &&Self)| {
            (0..run.rows.len()).map(move |at| (number, at)).collect::<Vec<(usize, usize)>>()
        };
        let row = |(number, at): (usize, usize)| runs[number].rows[at];
        // The newest run comes first, because then the input consists of sorted parts, which a
        // stable sort handles fast.
        let mut ranked: Vec<_> = runs.iter().enumerate().rev().flat_map(of_run).collect();
        ranked.sort_by_key(|at| table.sort_key(row(*at)));
        let mut numbers: Vec<Vec<u32>> = runs.iter().map(|run| vec![0; run.rows.len()]).collect();
        for (new, (number, at)) in (0..).zip(&ranked) {
            numbers[*number][*at] = new;
        }
        let mut merged = Self::empty(ranked.into_iter().map(row).collect());
        merged.postings.reserve_exact(runs.iter().map(|run| run.postings.len()).sum());
        Self::each_word(runs, |word, lists| {
            for same in lists.chunk_by(|one, other| one.key == other.key) {
                let start = merged.postings.len();
                for list in same {
                    let numbers = &numbers[list.number];
                    merged.postings.extend(list.postings.iter().map(|at| numbers[*at as usize]));
                }
                let list = &mut merged.postings[start..];
                if !list.is_sorted() {
                    #[expect(clippy::stable_sort_primitive, reason = "it is sorted in parts")]
                    list.sort();
                }
                merged.end_list(same[0].key);
            }
            merged.end_word(word);
        });
        merged.text.shrink_to_fit();
        merged.lists.shrink_to_fit();
        merged.words.shrink_to_fit();
        merged
    }

    /// Passes each word of these runs to `each`, in ascending order, with its lists, which ascend
    /// by key. Of the lists with the same key, the list of the newest run comes first.
    pub(super) fn each_word<'a>(
        runs: &[&'a Self],
        mut each: impl FnMut(&'a str, &[ListOfRun<'a>]),
    ) {
        let of_run = |(number, run): (u32, &&'a Self)| {
            (0..).zip(&run.words).map(move |(at, word)| (word.key, number, at))
        };
        // The newest run comes first, because then the input consists of sorted parts, which a
        // stable sort handles fast.
        let mut words: Vec<(u64, u32, u32)> = Vec::new();
        words.reserve_exact(runs.iter().map(|run| run.words.len()).sum());
        (0..)
            .zip(runs)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .for_each(|run| words.extend(of_run(run)));
        let text = |(_, run, at): &(u64, u32, u32)| runs[*run as usize].word(*at as usize);
        words.sort_by(|one, other| {
            one.0.cmp(&other.0).then_with(|| longer(one.0, || text(one).cmp(text(other))))
        });
        let mut lists = Vec::new();
        let is_same = |one: &(u64, u32, u32), other: &(u64, u32, u32)| {
            one.0 == other.0 && longer(one.0, || text(one).cmp(text(other))).is_eq()
        };
        for same in words.chunk_by(is_same) {
            for &(_, number, at) in same {
                let (number, run) = (number as usize, runs[number as usize]);
                lists.extend(run.lists_of(at as usize).map(|(key, postings)| ListOfRun {
                    key,
                    number,
                    run,
                    postings: run.at(postings),
                }));
            }
            if same.len() > 1 {
                lists.sort_by_key(|list: &ListOfRun<'_>| list.key);
            }
            each(text(&same[0]), &lists);
            lists.clear();
        }
    }

    fn end_list(&mut self, key: ListKey) {
        self.lists.push(RunList { key, end: self.postings.len() as u32 });
    }

    fn end_word(&mut self, word: &str) {
        self.text.push_str(word);
        self.words.push(RunWord {
            key: index_key(word.as_bytes()),
            end: self.text.len() as u32,
            lists_end: self.lists.len() as u32,
        });
    }

    fn word(&self, number: usize) -> &str {
        let from = start(number, |at| self.words[at].end);
        &self.text[from..self.words[number].end as usize]
    }

    /// The key of each list of a word, and the position of the list in the postings.
    fn lists_of(&self, number: usize) -> impl Iterator<Item = (ListKey, Range<u32>)> {
        let from = start(number, |at| self.words[at].lists_end);
        (from..self.words[number].lists_end as usize).map(|at| {
            let from = start(at, |at| self.lists[at].end);
            (self.lists[at].key, from as u32..self.lists[at].end)
        })
    }

    fn at(&self, postings: Range<u32>) -> &[u32] {
        &self.postings[postings.start as usize..postings.end as usize]
    }

    /// The number of the first word that is equal to `word` or greater.
    fn partition(&self, word: &str) -> usize {
        let key = index_key(word.as_bytes());
        let from = self.words.partition_point(|one| one.key < key);
        let same = self.words[from..].partition_point(|one| one.key == key);
        let (mut low, mut high) = (from, from + same);
        while low < high {
            let middle = low.midpoint(high);
            if self.word(middle) < word {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Finds a word by its text. Returns the key of each list, and the position of the list in the
    /// postings.
    pub(super) fn find(&self, word: &str) -> impl Iterator<Item = (ListKey, Range<u32>)> {
        let at = self.partition(word);
        let found = (at < self.words.len() && self.word(at) == word).then_some(at);
        found.into_iter().flat_map(|at| self.lists_of(at))
    }

    /// The words that begin with `beginning`, ascending.
    pub(super) fn beginning(&self, beginning: &str) -> impl Iterator<Item = &str> {
        let from = self.partition(beginning)..self.words.len();
        from.map(|at| self.word(at)).take_while(move |word| word.starts_with(beginning))
    }

    /// Returns the row that a posting stands for.
    #[inline]
    pub(super) fn row(&self, posting: u32) -> u32 {
        self.rows[self.postings[posting as usize] as usize]
    }

    /// The rows that the run covers, in the order of arrival.
    pub(super) fn span(&self) -> Range<u32> {
        self.span.clone()
    }

    /// Memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
            + self.words.len() * size_of::<RunWord>()
            + self.lists.len() * size_of::<RunList>()
            + (self.postings.len() + self.rows.len()) * 4
    }
}
