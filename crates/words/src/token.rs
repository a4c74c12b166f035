//! Divides a text into words.
//!
//! A word is an uninterrupted sequence (a run) of letters and digits, folded. Some scripts put no
//! space between words: Han, kana, Thai and others. Their runs are divided into pairs of
//! neighbouring characters. Runs of Hangul are divided in the same way, because Korean words have
//! endings. The last character of such a run is also a word by itself. A search text with a run
//! becomes a sequence of pairs. A search text with a single character becomes a prefix, which
//! matches a pair or the last character of a run. An emoji is a word, and the two letters of a flag
//! together are one word.

use crate::fold;

/// Maximum number of characters of a word, after folding. A longer word is cut off at this length,
/// in texts and in search texts.
pub const WORD_CHARS_MAX: usize = 40;

/// Maximum size of a buffer that is kept for the next record, in bytes of text.
const KEPT: usize = 1 << 16;

/// The words of texts, in order.
///
/// ```
/// use hark_words::token::Tokens;
///
/// let mut tokens = Tokens::default();
/// tokens.read("Größer, 今日は", 100);
/// assert_eq!(tokens.iter().collect::<Vec<_>>(), ["grosser", "今日", "日は", "は"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// The texts, with ASCII letters in lower case. Each text is followed by the folded forms of
    /// its words with other letters.
    text: String,
    /// The range of each word in `text`; an empty range is a boundary between texts.
    places: Vec<(u32, u32)>,
    /// The number of words, without the boundaries between texts.
    len: usize,
    /// A run of a script that puts no space between words.
    run: String,
}

/// The class of a character. It decides how the character is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Letter,
    /// A letter of a script whose runs are divided into pairs.
    Dense,
    Emoji,
    /// A letter of a flag.
    Flag,
    Boundary,
}

fn class(c: char) -> CharClass {
    match c {
        // The most frequent characters are checked first, without a table lookup.
        'a'..='z'
        | 'A'..='Z'
        | '0'..='9'
        | '\u{d8}'..='\u{f6}'
        | '\u{c0}'..='\u{d6}'
        | '\u{f8}'..='\u{24f}'
        | '\u{3b1}'..='\u{3c9}'
        | '\u{400}'..='\u{481}'
        | '\u{5d0}'..='\u{5ea}'
        | '\u{620}'..='\u{64a}' => CharClass::Letter,
        '\0'..='\u{a8}' | '\u{2000}'..='\u{2070}' => CharClass::Boundary,
        '\u{e01}'..='\u{e3a}'
        | '\u{e40}'..='\u{e4e}'
        | '\u{e81}'..='\u{ecd}'
        | '\u{1000}'..='\u{1049}'
        | '\u{1780}'..='\u{17d3}'
        | '\u{1100}'..='\u{11ff}'
        | '\u{3005}'..='\u{3007}'
        | '\u{3041}'..='\u{309f}'
        | '\u{30a1}'..='\u{30fa}'
        | '\u{30fc}'..='\u{30ff}'
        | '\u{3131}'..='\u{318e}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{ff66}'..='\u{ff9f}'
        | '\u{20000}'..='\u{323af}' => CharClass::Dense,
        '\u{1f1e6}'..='\u{1f1ff}' => CharClass::Flag,
        '\u{231a}'..='\u{23ff}'
        | '\u{2600}'..='\u{27bf}'
        | '\u{2b1b}'..='\u{2b55}'
        | '\u{1f000}'..='\u{1f1e5}'
        | '\u{1f200}'..='\u{1f3fa}'
        | '\u{1f400}'..='\u{1faff}' => CharClass::Emoji,
        _ if c.is_alphanumeric() => CharClass::Letter,
        _ => CharClass::Boundary,
    }
}

impl Tokens {
    /// Removes all words.
    pub fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(KEPT);
        self.run.clear();
        self.run.shrink_to(KEPT);
        self.places.clear();
        self.len = 0;
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no words.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of places; a place has a word or a boundary between texts.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The word at a place; empty at a boundary between texts, which no phrase crosses.
    #[inline]
    pub fn get(&self, place: usize) -> &str {
        let (start, end) = self.places[place];
        &self.text[start as usize..end as usize]
    }

    /// All places in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> + '_ {
        (0..self.places()).map(|place| self.get(place))
    }

    /// Appends the words of a text, until there are `max` words in total.
    pub fn read(&mut self, text: &str, max: usize) {
        self.read_run(text, max, false);
    }

    /// Appends the words of a search text. If a run without spaces ends the search text, a matching
    /// text may continue the run. Returns whether the last word is a prefix, which is the case if
    /// the last run is a single character.
    pub fn read_question(&mut self, text: &str) -> bool {
        self.read_run(text, usize::MAX, true)
    }

    fn read_run(&mut self, text: &str, max: usize, asked: bool) -> bool {
        if !self.places.is_empty() && !text.is_empty() {
            self.places.push((0, 0));
        }
        let base = self.text.len();
        if self.len < max {
            self.text.push_str(text);
            self.text[base..].make_ascii_lowercase();
        }
        let bytes = text.as_bytes();
        let (mut at, mut is_open) = (0, false);
        while self.len < max
            && let Some(&byte) = bytes.get(at)
        {
            // Most text is ASCII.
            if byte.is_ascii() {
                if !byte.is_ascii_alphanumeric() {
                    at += 1;
                    continue;
                }
                is_open = false;
                let rest = &bytes[at..];
                let len = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
                if rest.get(len).is_none_or(u8::is_ascii) {
                    self.add(base + at, base + at + len.min(WORD_CHARS_MAX));
                    at += len;
                    continue;
                }
            }
            let Some(c) = text[at..].chars().next() else { break };
            let class = class(c);
            let before = self.len;
            at += match class {
                CharClass::Boundary => c.len_utf8(),
                CharClass::Letter => self.read_letters(&text[at..]),
                CharClass::Dense => {
                    let read;
                    (read, is_open) = self.read_dense(&text[at..], asked, max);
                    at += read;
                    continue;
                }
                CharClass::Emoji => {
                    let start = self.text.len();
                    self.text.push(c);
                    self.end(start);
                    c.len_utf8()
                }
                CharClass::Flag => self.read_flag(&text[at..]),
            };
            is_open &= self.len == before;
        }
        is_open
    }

    /// Reads the letters of a flag, at most two, and returns their length.
    fn read_flag(&mut self, text: &str) -> usize {
        let start = self.text.len();
        self.text.extend(text.chars().take(2).take_while(|c| class(*c) == CharClass::Flag));
        self.end(start);
        self.text.len() - start
    }

    /// Adds the word that has this range in the text.
    fn add(&mut self, start: usize, end: usize) {
        self.places.push((start as u32, end as u32));
        self.len += 1;
    }

    /// Ends a word that began at `start`, if it has any letters.
    fn end(&mut self, start: usize) {
        if self.text.len() > start {
            self.add(start, self.text.len());
        }
    }

    /// Reads the word at the start of `text` and returns its length.
    fn read_letters(&mut self, text: &str) -> usize {
        let (start, mut read, mut chars) = (self.text.len(), 0, 0);
        for c in text.chars() {
            match class(c) {
                CharClass::Letter => {}
                CharClass::Boundary if fold::continues(c) => {}
                _ => break,
            }
            read += c.len_utf8();
            if chars < WORD_CHARS_MAX {
                let before = self.text.len();
                fold::push(c, &mut self.text, start);
                // Folding may turn one character into 18 characters.
                chars += self.text.get(before..).map_or(0, |added| added.chars().count());
                while chars > WORD_CHARS_MAX {
                    self.text.pop();
                    chars -= 1;
                }
            }
        }
        self.end(start);
        read
    }

    /// Reads a run of a script without spaces, until there are `max` words in total. Returns the
    /// length of the run, and whether its last character was read as a prefix.
    fn read_dense(&mut self, text: &str, asked: bool, max: usize) -> (usize, bool) {
        let mut run = std::mem::take(&mut self.run);
        run.clear();
        let mut read = 0;
        for c in text.chars() {
            if class(c) != CharClass::Dense && !fold::continues(c) {
                break;
            }
            read += c.len_utf8();
            fold::push(c, &mut run, 0);
        }
        let is_last = asked && text[read..].chars().all(|c| class(c) == CharClass::Boundary);
        let mut chars = run.chars().peekable();
        let mut words = 0;
        while self.len < max
            && let Some(c) = chars.next()
        {
            let next = chars.peek().copied();
            if next.is_none() && is_last && words > 0 {
                break;
            }
            let start = self.text.len();
            self.text.push(c);
            self.text.extend(next);
            self.end(start);
            words += 1;
        }
        let is_open = is_last && run.chars().nth(1).is_none() && words == 1;
        self.run = run;
        (read, is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut tokens = Tokens::default();
        tokens.read(text, usize::MAX);
        tokens.iter().map(str::to_owned).collect()
    }

    fn asked(text: &str) -> (Vec<String>, bool) {
        let mut tokens = Tokens::default();
        let open = tokens.read_question(text);
        (tokens.iter().map(str::to_owned).collect(), open)
    }

    #[test]
    fn texts_are_divided_into_words() {
        for (text, expected) in [
            ("Hello, World!", &["hello", "world"][..]),
            ("don't e-mail me@x.org", &["don", "t", "e", "mail", "me", "x", "org"]),
            ("#Nostr_rocks 2026", &["nostr", "rocks", "2026"]),
            ("über größer", &["uber", "grosser"]),
            ("na\u{308}chster ab\u{308}c", &["nachster", "abc"]),
            ("今日は", &["今日", "日は", "は"]),
            ("天", &["天"]),
            ("ビット2024", &["ビッ", "ット", "ト", "2024"]),
            ("비트코인을", &["비트", "트코", "코인", "인을", "을"]),
            ("ภาษาไทย", &["ภา", "าษ", "ษา", "าไ", "ไท", "ทย", "ย"]),
            ("☕🚀🚀", &["☕", "🚀", "🚀"]),
            ("👍🏽❤️", &["👍", "❤"]),
            ("🇩🇪🇯🇵", &["🇩🇪", "🇯🇵"]),
            ("привет, МИР", &["привет", "мир"]),
            // The half-width vowel is a word by itself, and joins with no other letter.
            ("ｶﾞ ￂ ᄀ", &["ガ", "\u{1161}", "ᄀ"]),
            ("مرحبا بالعالم", &["مرحبا", "بالعالم"]),
            ("שלום עולם", &["שלום", "עולם"]),
            ("हिन्दी में", &["हिन्दी", "में"]),
            ("", &[]),
            ("!!! … ---", &[]),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn a_run_that_is_asked_for_may_go_on() {
        assert_eq!(asked("今日"), (vec!["今日".into()], false));
        assert_eq!(asked("今"), (vec!["今".into()], true));
        assert_eq!(asked("今。"), (vec!["今".into()], true));
        assert_eq!(asked("今日 は"), (vec!["今日".into(), "日".into(), "は".into()], true));
        assert_eq!(asked("京2024"), (vec!["京".into(), "2024".into()], false));
        assert_eq!(asked("word"), (vec!["word".into()], false));
    }

    #[test]
    fn long_words_are_cut_and_texts_have_a_boundary_between_them() {
        assert_eq!(words(&"x".repeat(100)), ["x".repeat(WORD_CHARS_MAX)]);
        assert_eq!(words(&"é".repeat(100)), ["e".repeat(WORD_CHARS_MAX)]);
        assert_eq!(words(&"ß".repeat(100)), ["s".repeat(WORD_CHARS_MAX)]);
        // A character that stands for 18: three words, and a space before each but the first.
        let cut: String = "صلى الله عليه وسلم".repeat(3).chars().take(WORD_CHARS_MAX).collect();
        assert_eq!(words(&"\u{fdfa}".repeat(100)), vec![cut.clone()]);
        assert_eq!(asked(&"\u{fdfa}".repeat(100)), (vec![cut], false));
        let mut tokens = Tokens::default();
        tokens.read("one two", usize::MAX);
        tokens.read("three", usize::MAX);
        assert_eq!(tokens.iter().collect::<Vec<_>>(), ["one", "two", "", "three"]);
        assert_eq!(tokens.len(), 3);
        tokens.clear();
        tokens.read("a b c d 今日は", 5);
        assert_eq!(tokens.iter().collect::<Vec<_>>(), ["a", "b", "c", "d", "今日"]);
    }

    #[test]
    fn whatever_comes_is_divided_without_a_panic() {
        proptest::proptest!(|(text: String)| {
            let _ = (words(&text), asked(&text));
        });
    }
}
