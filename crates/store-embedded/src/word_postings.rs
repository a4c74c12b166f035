//! Words in the order of arrival with their postings, before they are sorted.

use crate::segment::word_blocks::{ListKey, index_key};

/// Words and their postings, in the order of arrival.
#[derive(Default)]
pub struct WordPostings {
    /// The concatenated words.
    text: String,
    words: Vec<GatheredWord>,
    /// The rows that have words; each row occurs once.
    rows: Vec<u32>,
    postings: Vec<WordPosting>,
    /// A hash table of words with linear probing. A slot has the number of a word plus one; 0 means
    /// a free slot.
    slots: Vec<u32>,
}

struct GatheredWord {
    hash: u64,
    /// The end of the word in the text.
    end: u32,
    /// The index of the word's last posting plus one.
    last: u32,
}

struct WordPosting {
    /// The index of the previous posting of the same word plus one; 0 if there is no previous
    /// posting.
    before: u32,
    /// The index of the posting's row in `rows`.
    row: u32,
    key: ListKey,
}

/// Memory of a word without its letters, in bytes: its entry, and up to four slots.
pub const WORD_BYTES: usize = size_of::<GatheredWord>() + 16;
/// Memory of a posting in bytes.
pub const POSTING_BYTES: usize = size_of::<WordPosting>();
/// Memory of a row in bytes.
const ROW_BYTES: usize = size_of::<u32>();
/// Number of letters, of words and of postings for which memory is kept after
/// [`WordPostings::clear`].
const KEPT: usize = 1 << 16;

impl WordPostings {
    /// Number of postings.
    pub fn len(&self) -> usize {
        self.postings.len()
    }

    /// Total size of the words in bytes.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len()
            + self.words.len() * WORD_BYTES
            + self.rows.len() * ROW_BYTES
            + self.postings.len() * POSTING_BYTES
    }

    /// Removes all words, and keeps a limited amount of memory for reuse.
    pub fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(KEPT);
        self.words.clear();
        self.words.shrink_to(KEPT);
        self.rows.clear();
        self.rows.shrink_to(KEPT);
        self.postings.clear();
        self.postings.shrink_to(KEPT);
        self.slots.truncate(KEPT);
        self.slots.shrink_to(KEPT);
        self.slots.fill(0);
    }

    /// The rows that have words, each row once, in the order of arrival.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    fn word(&self, number: usize) -> &str {
        let start = number.checked_sub(1).map_or(0, |before| self.words[before].end);
        &self.text[start as usize..self.words[number].end as usize]
    }

    /// The words, in the order of arrival.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        (0..self.words.len()).map(|number| self.word(number))
    }

    /// Returns the number of a word, or else the free slot in which the word belongs.
    fn find(&self, (hash, word): (u64, &str)) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let Some(number) = self.slots[slot].checked_sub(1) else { return Err(slot) };
            let number = number as usize;
            if self.words[number].hash == hash && self.word(number) == word {
                return Ok(number);
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Adds a posting of a word. `key` has the kind of the row and the class of the word. The
    /// caller must add all postings of a row in succession.
    pub fn add(&mut self, (hash, word): (u64, &str), key: ListKey, row: u32) {
        if self.slots.len() < 2 * (self.words.len() + 1) {
            self.make_room();
        }
        let number = self.find((hash, word)).unwrap_or_else(|slot| {
            self.text.push_str(word);
            self.words.push(GatheredWord { hash, end: self.text.len() as u32, last: 0 });
            self.slots[slot] = self.words.len() as u32;
            self.words.len() - 1
        });
        let before = self.words[number].last;
        if self.rows.last() != Some(&row) {
            self.rows.push(row);
        }
        self.postings.push(WordPosting { before, row: self.rows.len() as u32 - 1, key });
        self.words[number].last = self.postings.len() as u32;
    }

    fn make_room(&mut self) {
        let len = (2 * self.slots.len()).max(1 << 10);
        self.slots.clear();
        self.slots.resize(len, 0);
        for (number, word) in (1..).zip(&self.words) {
            let mut slot = word.hash as usize & (len - 1);
            while self.slots[slot] > 0 {
                slot = (slot + 1) & (len - 1);
            }
            self.slots[slot] = number;
        }
    }

    /// The postings of a word, latest first.
    pub fn of(&self, word: (u64, &str)) -> impl Iterator<Item = (ListKey, u32)> {
        let found = (!self.slots.is_empty()).then(|| self.find(word).ok()).flatten();
        let postings = self.chain(found.map_or(0, |number| self.words[number].last));
        postings.map(|(key, row)| (key, self.rows[row as usize]))
    }

    fn chain(&self, mut next: u32) -> impl Iterator<Item = (ListKey, u32)> {
        std::iter::from_fn(move || {
            let posting = &self.postings[next.checked_sub(1)? as usize];
            next = posting.before;
            Some((posting.key, posting.row))
        })
    }

    /// Passes each word to `each` with its postings. Words and postings ascend. In each posting,
    /// the row is replaced by a number from `numbers`: the number at the row's index in
    /// [`WordPostings::rows`].
    pub fn sorted<'a>(&'a self, numbers: &[u32], mut each: impl FnMut(&'a str, &[(ListKey, u32)])) {
        let mut words: Vec<(u64, u32)> =
            (0..).zip(self.words()).map(|(at, word)| (index_key(word.as_bytes()), at)).collect();
        words.sort_unstable_by(|(one_key, one), (other_key, other)| {
            let texts = || self.word(*one as usize).cmp(self.word(*other as usize));
            one_key.cmp(other_key).then_with(texts)
        });
        let mut postings = Vec::new();
        for (_, number) in words {
            let number = number as usize;
            let chain = self.chain(self.words[number].last);
            postings.extend(chain.map(|(key, row)| (key, numbers[row as usize])));
            postings.sort_unstable();
            each(self.word(number), &postings);
            postings.clear();
        }
    }
}
