//! The words of a head. The words of the newest few hundred rows are in the order of arrival and
//! fit into the processor's cache. All other words are in sorted runs, which never change. So an
//! insert costs little more than a lookup among the words of these newest rows, and no lookup waits
//! for a merge.

use std::cmp::Reverse;
use std::sync::Arc;

use parking_lot::RwLock;

use super::lists::{HeadPostings, RunPostings};
use super::table::RowTable;
use super::word_run::{ListOfRun, WordRun};
use crate::segment::word_blocks::{ListKey, bytes_max};
use crate::word_postings::{POSTING_BYTES, WORD_BYTES, WordPostings};

/// Minimum and maximum number of open postings (postings in no run yet) at which a run is made.
/// Within these bounds, the number is a quarter of the rows for which the head is sized.
const OPEN_MAX: u32 = 1 << 13;
const OPEN_MIN: u32 = 1 << 6;
/// Number of runs of similar length that are merged into a longer run. A merged run is not merged
/// again, because a second merge would delay the inserting thread for too long.
const FAN_IN: usize = 16;

/// Approximate memory in bytes of a word that only one row has, without its letters.
pub(super) const LONE_WORD_BYTES: u64 = (WORD_BYTES + POSTING_BYTES) as u64;

/// The words of a head's rows. One thread inserts, and any number of threads read.
pub(super) struct HeadWords {
    now: RwLock<WordsNow>,
    /// Number of open postings at which a run is made.
    open_max: usize,
}

#[derive(Default)]
struct WordsNow {
    /// The runs, oldest first. Merged runs come before all other runs.
    runs: Vec<Arc<WordRun>>,
    /// The number of merged runs.
    merged: usize,
    open: WordPostings,
    /// Memory of the runs in bytes.
    bytes: usize,
}

impl HeadWords {
    /// Makes an empty list of words for a head that is sized for about `rows` rows.
    pub(super) fn new(rows: u32) -> Self {
        let open_max = (rows / 4).clamp(OPEN_MIN, OPEN_MAX) as usize;
        Self { now: RwLock::default(), open_max }
    }

    /// Inserts the words of a row, each with its hash and class (its level of relevance in the
    /// record). Called by one thread at a time, in the order of arrival.
    pub(super) fn insert<'a>(
        &self,
        (row, kind): (u32, u32),
        words: impl Iterator<Item = (u64, u8, &'a str)>,
        table: &RowTable,
    ) {
        let mut words = words.peekable();
        if words.peek().is_none() {
            return;
        }
        let open = {
            let now = &mut *self.now.write();
            words.for_each(|(hash, class, word)| now.open.add((hash, word), (kind, class), row));
            now.open.len()
        };
        if open >= self.open_max {
            self.close(table);
        }
    }

    /// Makes a run from the open words while readers continue.
    fn close(&self, table: &RowTable) {
        let (run, joined, merged) = {
            let now = self.now.read();
            let run = WordRun::new(&now.open, table);
            let last = &now.runs[now.merged..];
            if last.len() + 1 < FAN_IN {
                (run, now.runs.len(), now.merged)
            } else {
                let all: Vec<&WordRun> = last.iter().map(|run| &**run).chain([&run]).collect();
                (WordRun::merge(&all, table), now.merged, now.merged + 1)
            }
        };
        let mut gone = Vec::new();
        {
            let now = &mut *self.now.write();
            gone.extend(now.runs.drain(joined..));
            now.bytes += run.bytes();
            now.bytes -= gone.iter().map(|run: &Arc<WordRun>| run.bytes()).sum::<usize>();
            now.runs.push(Arc::new(run));
            now.merged = merged;
            now.open.clear();
        }
    }

    /// Approximate memory in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let now = self.now.read();
        (now.bytes + now.open.bytes()) as u64
    }

    /// Upper bound for the bytes that the head's words take in a segment.
    pub(super) fn bytes_max(&self, table: &RowTable) -> u64 {
        let (mut count, mut postings, mut text) = (0, 0, 0);
        self.each_word(table, |word, lists| {
            count += lists.chunk_by(|one, other| one.key == other.key).count();
            postings += lists.iter().map(ListOfRun::len).sum::<usize>();
            text += word.len();
        });
        bytes_max(count as u64, postings as u64, text as u64)
    }

    /// Passes the lists of a word to `each`, with the class that the word has in the list's rows.
    /// If `kinds` is given, only lists of these kinds are passed. Lists of the same class are
    /// passed in succession.
    pub(super) fn lists(
        &self,
        (hash, word): (u64, &str),
        kinds: Option<&[u32]>,
        table: &RowTable,
        each: &mut impl FnMut(u8, HeadPostings),
    ) {
        let is_wanted = |(kind, _): ListKey| kinds.is_none_or(|k| k.binary_search(&kind).is_ok());
        let (mut open, runs): (Vec<(ListKey, u32)>, _) = {
            let now = self.now.read();
            let open = now.open.of((hash, word)).filter(|(key, _)| is_wanted(*key));
            (open.collect(), now.runs.clone())
        };
        let mut lists = Vec::new();
        // `open` begins with the row that arrived last, usually the newest row. Each list begins
        // with its oldest row.
        open.sort_by_cached_key(|(key, row)| (*key, Reverse(table.sort_key(*row))));
        for same in open.chunk_by(|(one, _), (other, _)| one == other) {
            let rows = same.iter().map(|(_, row)| *row).collect();
            lists.push((same[0].0, HeadPostings::Many(rows)));
        }
        for run in runs.iter().rev() {
            for (key, at) in run.find(word).filter(|(key, _)| is_wanted(*key)) {
                lists.push((key, HeadPostings::OfRun(RunPostings::new(run, key.0, at))));
            }
        }
        lists.sort_by_key(|((kind, class), _)| (*class, *kind));
        for ((_, class), list) in lists {
            each(class, list);
        }
    }

    /// The words that begin with `beginning`, in no order; `None` if there are more than `max`
    /// words.
    pub(super) fn beginning(&self, beginning: &str, max: usize) -> Option<Vec<Box<str>>> {
        let (open, runs) = {
            let now = self.now.read();
            let open = now.open.words().filter(|word| word.starts_with(beginning));
            (open.take(max + 1).map(Box::from).collect::<Vec<Box<str>>>(), now.runs.clone())
        };
        let mut found = open;
        for run in &runs {
            found.extend(run.beginning(beginning).take(max + 1).map(Box::from));
            found.sort_unstable();
            found.dedup();
            if found.len() > max {
                return None;
            }
        }
        (found.len() <= max).then_some(found)
    }

    /// Passes each word to `each`, in ascending order, with its lists, which ascend by key. Several
    /// lists may have the same key.
    pub(super) fn each_word(&self, table: &RowTable, each: impl FnMut(&str, &[ListOfRun<'_>])) {
        let (last, runs) = {
            let now = self.now.read();
            (WordRun::new(&now.open, table), now.runs.clone())
        };
        let runs: Vec<&WordRun> = runs.iter().map(|run| &**run).chain([&last]).collect();
        WordRun::each_word(&runs, each);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hark_testkit::random::Random;

    use super::super::table::HeadRow;
    use super::*;

    /// Words, and the rows of each by kind and class.
    type Model = BTreeMap<String, BTreeMap<ListKey, Vec<u32>>>;

    fn hash(word: &str) -> u64 {
        // This hash has few values, so several words have the same hash.
        word.len() as u64
    }

    fn row(table: &RowTable, row: u32, random: &mut Random) {
        let id = [random.below(3) as u64, u64::from(row)];
        let time = 1_000 + u64::from(row / 9) - random.below(20) as u64;
        table.set(row, HeadRow { time, id, hash: 0, offset: 0, kind: 0 });
    }

    fn words_of(random: &mut Random) -> Vec<(String, u8)> {
        let word = |random: &mut Random| {
            let text = ["a", "ab", "b", "今", "longer than eight"][random.below(5)];
            format!("{text}é{}", random.below(60))
        };
        let mut words: Vec<_> = (0..random.below(8)).map(|_| word(random)).collect();
        words.sort_unstable();
        words.dedup();
        words.into_iter().map(|word| (word, random.below(4) as u8)).collect()
    }

    fn compare(words: &HeadWords, table: &RowTable, model: &Model, rows: u32) {
        let none = BTreeMap::new();
        for word in model.keys().map(|word| &**word).step_by(7).chain(["missing", ""]) {
            let expected = model.get(word).unwrap_or(&none);
            for kinds in [None, Some(&[1][..]), Some(&[2, 9])] {
                let (mut found, mut classes) = (Vec::new(), Vec::new());
                words.lists((hash(word), word), kinds, table, &mut |class, list| {
                    let rows: Vec<u32> = (0..list.len()).map(|at| list.row(at)).collect();
                    assert!(rows.is_sorted_by_key(|row| table.sort_key(*row)), "newest first");
                    assert!(rows.iter().all(|row| list.may_have(*row)));
                    classes.push(class);
                    found.extend(rows.into_iter().map(|row| (class, row)));
                });
                assert!(classes.is_sorted());
                found.sort_unstable();
                let wanted = |kind: &u32| kinds.is_none_or(|kinds| kinds.contains(kind));
                let lists = expected.iter().filter(|((kind, _), _)| wanted(kind));
                let mut expected: Vec<(u8, u32)> = lists
                    .flat_map(|((_, class), rows)| rows.iter().map(|row| (*class, *row)))
                    .collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "{word} of {kinds:?}");
            }
        }
        for beginning in ["", "a", "aé1", "ab", "longer than eighté", "今é2", "z"] {
            let mut expected: Vec<Box<str>> = Vec::new();
            expected
                .extend(model.keys().filter(|w| w.starts_with(beginning)).map(|w| (**w).into()));
            let mut found = words.beginning(beginning, expected.len()).unwrap();
            found.sort_unstable();
            assert_eq!(found, expected, "{beginning} of {rows} rows");
            if !expected.is_empty() {
                assert_eq!(words.beginning(beginning, expected.len() - 1), None);
            }
        }
        let mut all = Model::new();
        let mut last = String::new();
        words.each_word(table, |word, found| {
            assert!(*last < *word && found.is_sorted_by_key(|list| list.key));
            last = word.to_owned();
            let lists = all.entry(last.clone()).or_default();
            for list in found {
                lists.entry(list.key).or_default().extend(list.rows());
            }
        });
        all.values_mut().flat_map(BTreeMap::values_mut).for_each(|rows| rows.sort_unstable());
        assert_eq!(all, *model);
    }

    #[test]
    fn words_and_their_rows_are_found_however_many_came() {
        let (words, table, mut model) = (HeadWords::new(0), RowTable::new(), Model::new());
        let mut random = Random::new(5);
        for at in 0..2_000 {
            row(&table, at, &mut random);
            let (kind, of_row) = ([1, 2, 9][random.below(3)], words_of(&mut random));
            let given = of_row.iter().map(|(word, class)| (hash(word), *class, &**word));
            words.insert((at, kind), given, &table);
            for (word, class) in of_row {
                let lists = model.entry(word).or_default();
                lists.entry((kind, class)).or_default().push(at);
            }
            if at % 97 == 0 || at == 1_999 {
                compare(&words, &table, &model, at + 1);
            }
        }
        let now = words.now.read();
        assert!(now.merged > 3 && now.runs.len() < now.merged + FAN_IN);
        assert_eq!(now.bytes, now.runs.iter().map(|run| run.bytes()).sum::<usize>());
    }

    const ROWS: u32 = 5_000;

    #[test]
    fn no_word_is_missing_while_others_are_added() {
        let (words, table) = (HeadWords::new(0), RowTable::new());
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut random = Random::new(3);
                for at in 0..ROWS {
                    row(&table, at, &mut random);
                    let (one, every) = (format!("{at:05}"), "every");
                    let given = [&*one, every].map(|word| (hash(word), 0, word));
                    words.insert((at, 1), given.into_iter(), &table);
                }
            });
            let (mut before, mut rows_before) = (0, 0);
            while before <= ROWS as usize {
                let found = words.beginning("", usize::MAX - 1).unwrap().len();
                let mut rows = Vec::new();
                words.lists((hash("every"), "every"), None, &table, &mut |_, list| {
                    rows.extend((0..list.len()).map(|at| list.row(at)));
                });
                rows.sort_unstable();
                // Each row is listed once, and no row is missing.
                assert!(rows.iter().copied().eq(0..rows.len() as u32));
                assert!(found >= before && rows.len() >= rows_before);
                (before, rows_before) = (found, rows.len());
            }
        });
    }
}
