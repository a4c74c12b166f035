//! Words that are searched for in texts.
//!
//! Most words consist of letters and digits, and have no star. So a text is divided once into its
//! longest parts of letters and digits (`text_parts`), and each part is looked up in a table: the
//! time hardly depends on the number of words. An automaton finds all other words.
//!
//! Most values of tags are keys and ids. They are left out unless a word can be in 64 hex digits: a
//! word that is as long, or a word with a star that consists of hex digits.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use aho_corasick::{AhoCorasick, BuildError};
use hark_codec::hex::is_hex_64;

use super::text_parts::{LetterRun, find_part};

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
                whole.entry(bare.into_bytes().into()).or_insert(at);
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
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let has_hex = plain.iter().any(|word| word.bytes().all(is_hex));
            Some(WordMatcher { automaton: AhoCorasick::new(plain)?, open, has_hex })
        };
        Ok(Self { whole, rest })
    }

    /// Whether there are no words.
    pub fn is_empty(&self) -> bool {
        self.whole.is_none() && self.rest.is_none()
    }

    /// Whether a word may be in a text of 64 hex digits.
    fn may_have_hex_64(&self) -> bool {
        let has_long = |words: &WholeWords| words.lengths & length_bit(64) != 0;
        self.whole.as_ref().is_some_and(has_long)
            || self.rest.as_ref().is_some_and(|words| words.has_hex)
    }

    /// Whether one of the words is in one of the texts. See [`find_words`] for `texts`.
    pub(crate) fn are_in<'t, I: IntoIterator<Item = &'t str>>(
        &self,
        texts: impl FnOnce(bool) -> I,
    ) -> bool {
        find_words([self], texts, |_, _| Some(())).is_some()
    }
}

/// Passes the words of the lists that are in one of the texts to `each`, until `each` returns a
/// value: the index of the list, and the index of the word. If a word was left out of a list, the
/// indices count only the other words. A word may be passed several times.
///
/// `texts` returns the texts. It receives whether it may leave out keys and ids, which are texts of
/// 64 lowercase hex digits, because no word can be in these texts.
pub(crate) fn find_words<'t, T, I: IntoIterator<Item = &'t str>, const LISTS: usize>(
    lists: [&WordList; LISTS],
    texts: impl FnOnce(bool) -> I,
    mut each: impl FnMut(usize, usize) -> Option<T>,
) -> Option<T> {
    let wholes = lists.map(|list| list.whole.as_ref());
    let has_whole = wholes.iter().any(Option::is_some);
    let wide = wholes.iter().flatten().any(|words| words.are_wide);
    let has_rest = lists.iter().any(|list| list.rest.is_some());
    if !has_whole && !has_rest {
        return None;
    }
    let skips_keys = !lists.iter().any(|list| list.may_have_hex_64());
    let mut lower = String::new();
    texts(skips_keys).into_iter().find_map(|text| {
        let mut look_up = |part: LetterRun<'_>| {
            wholes.iter().enumerate().find_map(|(list, words)| {
                let word = words.as_ref()?.find(part)?;
                each(list, word)
            })
        };
        let is_hex = is_hex_64(text.as_bytes());
        let found = match (has_whole, is_hex) {
            (_, true) if skips_keys => return None,
            (true, true) => look_up(LetterRun::new(text.as_bytes())),
            (true, false) => find_part(text, wide, &mut look_up),
            (false, _) => None,
        };
        if found.is_some() || !has_rest {
            return found;
        }
        set_lowercase(&mut lower, text);
        lists.iter().enumerate().find_map(|(list, words)| {
            let words = words.rest.as_ref().filter(|words| words.has_hex || !is_hex)?;
            words.found_in(&lower).find_map(|word| each(list, word))
        })
    })
}

/// Sets `lower` to a text in lower case. Nearly all texts are in ASCII, and need no further memory.
fn set_lowercase(lower: &mut String, text: &str) {
    lower.clear();
    if text.is_ascii() {
        lower.push_str(text);
        lower.make_ascii_lowercase();
    } else {
        lower.push_str(&text.to_lowercase());
    }
}

/// The words that need an automaton.
#[derive(Clone, Debug)]
struct WordMatcher {
    automaton: AhoCorasick,
    /// For each word: whether more letters may come before the word, whether more letters may come
    /// after the word, and the word's index.
    open: Vec<(bool, bool, usize)>,
    /// Whether a word consists of hex digits, so that the word may be part of a key.
    has_hex: bool,
}

impl WordMatcher {
    /// The indices of the words in `text`, which must be in lower case.
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
    /// The words in lower case, with their indices.
    words: HashMap<Box<[u8]>, usize>,
    /// A table of bits, with two bits of each word set. A part of a text whose bits are not both
    /// set is no word. The table is small enough for a processor's cache.
    bits: Box<[u64]>,
    /// A bit for each length of a word in bytes. The last bit stands for all longer words.
    lengths: u64,
    /// Whether a word has a letter beyond ASCII.
    are_wide: bool,
    /// A number that clients do not know, so that they cannot choose parts with the bits of words.
    secret: u64,
}

/// Number of bits of the table for each word.
const BITS_PER_WORD: usize = 16;

impl WholeWords {
    fn new(words: HashMap<Box<[u8]>, usize>) -> Self {
        let size = (words.len() * BITS_PER_WORD / 64).next_power_of_two();
        let mut whole = Self {
            bits: vec![0; size].into(),
            lengths: 0,
            are_wide: words.keys().any(|word| !word.is_ascii()),
            secret: RandomState::new().hash_one(0_u64) | 1,
            words,
        };
        for word in whole.words.keys() {
            let (at, mask) = whole.place(LetterRun::new(word));
            whole.bits[at] |= mask;
            whole.lengths |= length_bit(word.len());
        }
        whole
    }

    /// Returns the index of the word that is this part of a text.
    #[inline]
    fn find(&self, part: LetterRun<'_>) -> Option<usize> {
        if self.lengths & length_bit(part.text.len()) == 0 {
            return None;
        }
        let (at, mask) = self.place(part);
        if self.bits[at] & mask == mask { self.look_up(part.text) } else { None }
    }

    #[cold]
    fn look_up(&self, part: &[u8]) -> Option<usize> {
        self.words.get(&*part.to_ascii_lowercase()).copied()
    }

    /// Returns the place of a part's bits in the table, whose length is a power of two. The place
    /// depends on the length of the part, and on its first and its last bytes.
    #[inline]
    fn place(&self, part: LetterRun<'_>) -> (usize, u64) {
        let ends = part.first.wrapping_mul(self.secret).rotate_left(29) ^ part.last;
        let mixed = (ends ^ part.text.len() as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let bits = 1 << (mixed >> 34 & 63) | 1 << (mixed >> 28 & 63);
        ((mixed >> 40) as usize & (self.bits.len() - 1), bits)
    }
}

fn length_bit(bytes: usize) -> u64 {
    1 << bytes.min(63)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn found(list: &WordList, texts: &[&str]) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        find_words(
            [list],
            |_| texts.iter().copied(),
            |_, word| {
                found.insert(word);
                None::<()>
            },
        );
        found
    }

    #[test]
    fn a_word_stands_alone_unless_it_has_a_star() {
        let words =
            WordList::new(&["Coin", "*cash", "ca$h*", "*скам*", "two words", "*", ""]).unwrap();
        for text in [
            "a coin.",
            "COIN",
            "bitcash",
            "ca$hed",
            "это скамище",
            "ЭТО СКАМИЩЕ",
            "say Two Words!",
            "#coin",
        ] {
            assert!(words.are_in(|_| [text]), "{text}");
            assert!(words.are_in(|_| ["", "bread", text]), "{text}");
        }
        for text in ["bitcoin", "coins", "cashed", "сам", "two  words", "*", ""] {
            assert!(!words.are_in(|_| [text]), "{text}");
        }
        assert!(!words.are_in(|_| ["two", "words"]));
        assert!(WordList::new(&["*", " "]).unwrap().is_empty());
    }

    #[test]
    fn each_of_many_words_is_found_by_its_index() {
        let words: Vec<String> =
            (0..3_000).map(|n| format!("Word{n}{}", "x".repeat(n % 90))).collect();
        let list = WordList::new(&words).unwrap();
        for (at, word) in words.iter().enumerate() {
            let text = format!("a {}, b", word.to_uppercase());
            assert_eq!(found(&list, &[&text]), [at].into());
            let other = format!("{word}y");
            assert!(!list.are_in(|_| [other.as_str()]), "{word}");
        }
    }

    #[test]
    fn a_key_is_searched_like_any_other_text() {
        let key = "00c0ffee".repeat(8);
        for (word, is_found) in [
            (key.as_str(), true),
            (&key.to_uppercase(), true),
            (&key[1..], false),
            ("*c0FFee*", true),
            ("*coin*", false),
            ("c0ffee", false),
            ("00c0ffee*", true),
        ] {
            let list = WordList::new(&[word]).unwrap();
            assert_eq!(list.are_in(|_| ["bread", &key]), is_found, "{word}");
        }
    }

    /// The words in a text, by the definition: a word is at a place of the text in lower case, and
    /// has no letter and no digit beside it, except on the side of a star.
    fn by_definition(words: &[String], text: &str) -> BTreeSet<usize> {
        let text = text.to_lowercase();
        let is_letter = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        let is_in = |word: &str| {
            let bare = word.trim_matches('*').to_lowercase();
            text.char_indices().any(|(at, _)| {
                let Some(rest) = text[at..].strip_prefix(&bare) else { return false };
                (word.starts_with('*') || !is_letter(text[..at].chars().next_back()))
                    && (word.ends_with('*') || !is_letter(rest.chars().next()))
            })
        };
        (0..words.len()).filter(|at| is_in(&words[*at])).collect()
    }

    #[test]
    fn random_words_are_found_as_the_definition_says() {
        const PIECES: [&str; 31] = [
            "a",
            "B",
            "7",
            "ab",
            "Ba",
            "abcdefg",
            "ABCDEFGH",
            "hijklmn0",
            " ",
            " ",
            " ",
            "#",
            "-",
            "@",
            "[",
            "{",
            "\u{10}",
            "é",
            "É",
            "ß",
            "Σ",
            "σ",
            "ς",
            "İ",
            "\u{307}",
            "\u{212a}",
            "語",
            "、",
            "\u{1f600}",
            "'",
            "00c0ffee",
        ];
        let mut seed = 1_u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        let mut all_found = 0;
        for _ in 0..400 {
            let mut text = |pieces: usize| -> String {
                (0..random(pieces)).map(|_| PIECES[random(PIECES.len())]).collect()
            };
            let texts: Vec<String> =
                (0..12).map(|_| text(9)).chain([PIECES[30].repeat(8)]).collect();
            let mut words: BTreeSet<String> = (0..12).map(|_| text(4).to_lowercase()).collect();
            for other in texts.iter().take(6) {
                words.insert(format!("*{}", text(3)).to_lowercase());
                words.insert(format!("{}*", text(3)).to_lowercase());
                words.insert(format!("*{}*", text(3)).to_lowercase());
                let parts = other.split(|letter: char| !letter.is_alphanumeric());
                words.extend(parts.map(str::to_lowercase));
            }
            words.retain(|word| word.trim() == word && !word.trim_matches('*').is_empty());
            let words: Vec<String> = words.into_iter().collect();
            let list = WordList::new(&words).unwrap();
            for text in &texts {
                let expected = by_definition(&words, text);
                assert_eq!(found(&list, &[text]), expected, "{words:?} in {text:?}");
                all_found += expected.len();
            }
        }
        assert!(all_found > 5_000, "{all_found}");
    }
}
