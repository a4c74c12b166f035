//! The words of a head. The last ones that came are as they came; all others are in sorted runs,
//! which never change. Whoever looks words up copies the last ones, and searches without a lock.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::merged::merged;

/// Words that are not sorted yet, at most. Each lookup copies and compares them.
const UNSORTED_MAX: usize = if cfg!(test) { 1 << 4 } else { 1 << 10 };
/// Runs of the same length are merged until they have so many words.
const RUN_MAX: usize = UNSORTED_MAX << 4;

/// Approximate bytes of memory of a word, without its letters.
pub(super) const WORD_BYTES: u64 = 4;

/// Words, each once. One thread adds, any number of threads read.
#[derive(Default)]
pub(super) struct HeadWords(Mutex<WordsNow>);

#[derive(Default)]
struct WordsNow {
    runs: Vec<Arc<HeadWordList>>,
    unsorted: HeadWordList,
    bytes: u64,
}

/// Words, one behind the other.
#[derive(Clone, Default)]
struct HeadWordList {
    text: String,
    /// Where each word ends in the text.
    ends: Vec<u32>,
}

impl HeadWordList {
    fn push(&mut self, word: &str) {
        self.text.push_str(word);
        self.ends.push(self.text.len() as u32);
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, at: usize) -> &str {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start as usize..self.ends[at] as usize]
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|at| self.get(at))
    }

    /// The words of a sorted list from `beginning` on.
    fn from(&self, beginning: &str) -> impl Iterator<Item = &str> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.get(middle) < beginning {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low..self.len()).map(|at| self.get(at))
    }

    /// A list of `words`, which take so many bytes and are so many.
    fn of<'a>(words: impl Iterator<Item = &'a str>, (bytes, count): (usize, usize)) -> Self {
        let mut list = Self { text: String::with_capacity(bytes), ends: Vec::with_capacity(count) };
        words.for_each(|word| list.push(word));
        list
    }

    fn sorted(&self) -> Self {
        let mut words: Vec<&str> = self.iter().collect();
        words.sort_unstable();
        Self::of(words.into_iter(), (self.text.len(), self.len()))
    }

    /// The words of this sorted list and another one, sorted.
    fn and(&self, other: &Self) -> Self {
        let size = (self.text.len() + other.text.len(), self.len() + other.len());
        let (mut ones, mut others) = (self.iter().peekable(), other.iter().peekable());
        let next = || {
            let is_other = match (ones.peek(), others.peek()) {
                (Some(one), Some(other)) => other < one,
                (one, _) => one.is_none(),
            };
            if is_other { others.next() } else { ones.next() }
        };
        Self::of(std::iter::from_fn(next), size)
    }
}

impl HeadWords {
    /// Adds a word that is not there yet. Called by one thread at a time.
    pub(super) fn add(&self, word: &str) {
        let (unsorted, mut runs) = {
            let mut now = self.0.lock();
            now.unsorted.push(word);
            now.bytes += word.len() as u64 + WORD_BYTES;
            if now.unsorted.len() < UNSORTED_MAX {
                return;
            }
            (now.unsorted.clone(), now.runs.clone())
        };
        // Readers do not wait for this: they find the words where they were.
        let mut run = unsorted.sorted();
        while let Some(last) = runs.pop_if(|last| last.len() == run.len() && run.len() < RUN_MAX) {
            run = last.and(&run);
        }
        runs.push(Arc::new(run));
        let mut now = self.0.lock();
        now.runs = runs;
        now.unsorted.text.clear();
        now.unsorted.ends.clear();
    }

    /// Approximate bytes of memory, or of the words in a file.
    pub(super) fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }

    /// All words, ascending.
    pub(super) fn all(&self) -> Vec<Box<str>> {
        let (runs, unsorted) = self.parts();
        let unsorted = unsorted.sorted();
        let lists = runs.iter().map(|run| &**run).chain([&unsorted]);
        merged(lists.map(|list| list.from("")).collect()).map(Box::from).collect()
    }

    /// The words that begin with `beginning`, in no order; `None` if these are more than `max`.
    pub(super) fn beginning(&self, beginning: &str, max: usize) -> Option<Vec<Box<str>>> {
        let (runs, unsorted) = self.parts();
        let is_found = |word: &&str| word.starts_with(beginning);
        let sorted = runs.iter().flat_map(|run| run.from(beginning).take_while(is_found));
        let found = sorted.chain(unsorted.iter().filter(is_found));
        let found: Vec<Box<str>> = found.take(max + 1).map(Box::from).collect();
        (found.len() <= max).then_some(found)
    }

    fn parts(&self) -> (Vec<Arc<HeadWordList>>, HeadWordList) {
        let now = self.0.lock();
        (now.runs.clone(), now.unsorted.clone())
    }
}

#[cfg(test)]
mod tests {
    use hark_testkit::random::Random;

    use super::*;

    #[test]
    fn words_are_found_by_their_beginnings_however_many_came() {
        let (words, mut model) = (HeadWords::default(), Vec::<Box<str>>::new());
        let mut random = Random::new(5);
        let mut bytes = 0;
        for n in 0..3 * RUN_MAX + 7 {
            let word = format!("{}é{n}", ["a", "ab", "b", "今"][random.below(4)]);
            words.add(&word);
            bytes += word.len() as u64 + WORD_BYTES;
            model.push(word.into());
            let runs = words.0.lock().runs.len();
            assert!(runs <= n / RUN_MAX + 7, "{runs} runs of {n} words");
            if n % 50 > 0 && n < 3 * RUN_MAX {
                continue;
            }
            for beginning in ["", "a", "aé1", "ab", "b", "bé", "今é2", "z"] {
                let mut expected: Vec<_> =
                    model.iter().filter(|word| word.starts_with(beginning)).cloned().collect();
                let mut found = words.beginning(beginning, expected.len()).unwrap();
                found.sort_unstable();
                expected.sort_unstable();
                assert_eq!(found, expected, "{beginning} of {n}");
                if !expected.is_empty() {
                    assert_eq!(words.beginning(beginning, expected.len() - 1), None);
                }
            }
        }
        model.sort_unstable();
        assert_eq!((words.all(), words.bytes()), (model, bytes));
    }

    #[test]
    fn no_word_is_missing_while_others_are_added() {
        let words = HeadWords::default();
        std::thread::scope(|threads| {
            threads.spawn(|| (0..20_000).for_each(|n| words.add(&format!("{n:05}"))));
            let mut before = 0;
            while before < 20_000 {
                let found = words.beginning("", usize::MAX - 1).unwrap().len();
                assert!(found >= before);
                before = found;
                let mut all = words.all();
                assert!(all.len() >= before && all.is_sorted());
                before = all.len();
                all.dedup();
                assert_eq!(all.len(), before);
            }
        });
    }
}
