//! Words that are searched for in texts.
//!
//! Most words consist of letters and digits, and have no star. So the text is divided once into its
//! longest parts of letters and digits, and each part is looked up in a table: the time does not
//! depend on the number of words. An automaton finds all other words.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, BuildError};

/// Words to search for, ignoring case. A word matches only as a whole word, unless a `*` before or
/// after the word permits more letters there: `*coin` is in "bitcoin", and `coin` is not.
#[derive(Clone, Debug, Default)]
pub struct WordList {
    whole: Option<WholeWords>,
    rest: Option<WordMatcher>,
}

impl WordList {
    /// Creates a list of words. Words that are empty without their stars are left out.
    pub fn new(words: &[impl AsRef<str>]) -> Result<Self, BuildError> {
        let (mut whole, mut open, mut plain, mut at) = (HashMap::new(), Vec::new(), Vec::new(), 0);
        for word in words {
            let word = word.as_ref().trim();
            let without_stars = word.trim_matches('*');
            let bare = without_stars.to_lowercase();
            if bare.is_empty() {
                continue;
            }
            if without_stars.len() == word.len() && bare.chars().all(char::is_alphanumeric) {
                whole.entry(bare.into()).or_insert(at);
            } else {
                open.push((word.starts_with('*'), word.ends_with('*'), at));
                plain.push(bare);
            }
            at += 1;
        }
        let whole = (!whole.is_empty()).then(|| WholeWords::new(whole));
        let rest = if plain.is_empty() {
            None
        } else {
            Some(WordMatcher { automaton: AhoCorasick::new(plain)?, open })
        };
        Ok(Self { whole, rest })
    }

    /// Whether there are no words.
    pub fn is_empty(&self) -> bool {
        self.whole.is_none() && self.rest.is_none()
    }

    /// Whether one of the words is in `text`, which must be in lower case.
    pub(crate) fn are_in(&self, text: &str) -> bool {
        self.found_in(text).next().is_some()
    }

    /// The indices of the words in `text`, which must be in lower case. If a word was left out, the
    /// indices count only the other words.
    pub(crate) fn found_in(&self, text: &str) -> impl Iterator<Item = usize> {
        let whole = self.whole.iter().flat_map(move |words| words.found_in(text));
        whole.chain(self.rest.iter().flat_map(move |words| words.found_in(text)))
    }
}

/// The words that need an automaton.
#[derive(Clone, Debug)]
struct WordMatcher {
    automaton: AhoCorasick,
    /// For each word: whether more letters may come before the word, whether more letters may come
    /// after the word, and the word's index.
    open: Vec<(bool, bool, usize)>,
}

impl WordMatcher {
    fn found_in(&self, text: &str) -> impl Iterator<Item = usize> {
        let is_letter = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        self.automaton.find_overlapping_iter(text).filter_map(move |word| {
            let (before, after, at) = self.open[word.pattern().as_usize()];
            let is_alone = (before || !is_letter(text[..word.start()].chars().next_back()))
                && (after || !is_letter(text[word.end()..].chars().next()));
            is_alone.then_some(at)
        })
    }
}

/// Words of letters and digits, without stars.
#[derive(Clone, Debug)]
struct WholeWords {
    /// The words, with their indices.
    words: HashMap<Box<str>, usize>,
    /// A table of bits, with the bit of each word set. A part of a text whose bit is not set is no
    /// word. The table is small enough for a processor's cache.
    bits: Box<[u64]>,
    /// A bit for each length of a word in bytes. The last bit stands for all longer words.
    lengths: u64,
}

/// Number of bits for each word.
const BITS_PER_WORD: usize = 16;

impl WholeWords {
    fn new(words: HashMap<Box<str>, usize>) -> Self {
        let size = (words.len() * BITS_PER_WORD / 64).next_power_of_two();
        let mut whole = Self { words, bits: vec![0; size].into(), lengths: 0 };
        for word in whole.words.keys() {
            let (at, bit) = place(word.as_bytes(), size);
            whole.bits[at] |= bit;
            whole.lengths |= length_bit(word.len());
        }
        whole
    }

    fn found_in(&self, text: &str) -> impl Iterator<Item = usize> {
        LetterRuns { text, at: 0 }.filter_map(|part| {
            if self.lengths & length_bit(part.len()) == 0 {
                return None;
            }
            let (at, bit) = place(part.as_bytes(), self.bits.len());
            (self.bits[at] & bit != 0).then(|| self.words.get(part).copied()).flatten()
        })
    }
}

fn length_bit(bytes: usize) -> u64 {
    1 << bytes.min(63)
}

/// Returns the place of a word's bit in a table of `size` numbers. `size` is a power of two. The
/// place depends on the length of the word, and on its first and its last bytes.
fn place(word: &[u8], size: usize) -> (usize, u64) {
    let (first, last) = match (word.first_chunk(), word.last_chunk()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => (word.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)), 0),
    };
    let mixed = first.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ last;
    let mixed = (mixed ^ word.len() as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
    ((mixed >> 32) as usize & (size - 1), 1 << (mixed >> 26 & 63))
}

/// The longest parts of a text, in lower case, that consist of letters and digits.
struct LetterRuns<'t> {
    text: &'t str,
    at: usize,
}

/// A number whose eight bytes are all this byte.
const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Returns how many of the eight bytes are digits or lower-case ASCII letters, up to the first
/// other byte.
fn letters(bytes: [u8; 8]) -> usize {
    let all = u64::from_le_bytes(bytes);
    let low = all & each(0x7f);
    // The highest bit of each byte tells whether the byte is at least `byte`.
    let from = |byte: u8| low + each(0x80 - byte);
    let is_letter = (from(b'a') & !from(b'z' + 1)) | (from(b'0') & !from(b'9' + 1));
    let others = !(is_letter & !all) & each(0x80);
    others.trailing_zeros() as usize / 8
}

impl LetterRuns<'_> {
    /// Whether the next character is a letter or a digit, and its number of bytes. 0 at the end.
    fn next_char(&self) -> (bool, usize) {
        let next = self.text[self.at..].chars().next();
        next.map_or((false, 0), |next| (next.is_alphanumeric(), next.len_utf8()))
    }

    /// Advances past all letters and digits that follow.
    fn skip_letters(&mut self) {
        loop {
            let next = self.text.as_bytes()[self.at..].first_chunk();
            let ascii = next.map_or(0, |eight| letters(*eight));
            self.at += ascii;
            if ascii == 8 {
                continue;
            }
            match self.next_char() {
                (true, bytes) => self.at += bytes,
                (false, _) => return,
            }
        }
    }
}

impl<'t> Iterator for LetterRuns<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        loop {
            let from = self.at;
            self.skip_letters();
            if self.at > from {
                return Some(&self.text[from..self.at]);
            }
            match self.next_char() {
                (_, 0) => return None,
                (_, bytes) => self.at += bytes,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stands_alone_unless_it_has_a_star() {
        let words =
            WordList::new(&["Coin", "*cash", "ca$h*", "*скам*", "two words", "*", ""]).unwrap();
        for text in
            ["a coin.", "COIN", "bitcash", "ca$hed", "это скамище", "say two words!", "#coin"]
        {
            assert!(words.are_in(&text.to_lowercase()), "{text}");
        }
        for text in ["bitcoin", "coins", "cashed", "сам", "two  words", "*", ""] {
            assert!(!words.are_in(text), "{text}");
        }
        assert!(WordList::new(&["*", " "]).unwrap().is_empty());
    }

    #[test]
    fn a_text_is_divided_at_all_that_is_no_letter_and_no_digit() {
        let parts = |text| LetterRuns { text, at: 0 }.collect::<Vec<_>>();
        for text in [
            "",
            " ",
            "one",
            "a bc-def,ghij;klmno/pqrstu:vwxyz01{23456789}x",
            "abcdefghijklmnopqrstuvwxyz0123456789",
            "`az{ /09: @[",
            "größe der straße: это скам, ça va? \u{1f600}emoji\u{1f600}",
            "eightabc éightabcé abcdefg é",
            "x\ny\tz\0",
        ] {
            let split = text.split(|letter: char| !letter.is_alphanumeric());
            assert_eq!(parts(text), split.filter(|part| !part.is_empty()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn each_of_many_words_is_found_by_its_index() {
        let words: Vec<String> =
            (0..3_000).map(|n| format!("Word{n}{}", "x".repeat(n % 90))).collect();
        let list = WordList::new(&words).unwrap();
        for (at, word) in words.iter().enumerate() {
            let text = format!("a {}, b", word.to_lowercase());
            assert_eq!(list.found_in(&text).collect::<Vec<_>>(), [at]);
            assert!(!list.are_in(&format!("{}y", word.to_lowercase())), "{word}");
        }
    }
}
