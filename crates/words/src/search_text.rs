//! Parses the text of a filter's `search` field (NIP-50).
//!
//! Words are separated by white space, and a match must have all words. `"quoted words"` must
//! follow each other directly. A word that ends with `*` is a prefix of a word. `key:value` is an
//! extension: `language:` is supported, and any other extension has no effect. A text that has only
//! extensions imposes no condition. A text that has characters, but no word and no extension,
//! matches nothing.

use crate::token::Tokens;

/// Maximum number of bytes of a search text.
const BYTES_MAX: usize = 1_024;
/// Bounds of a search text: the number of words and phrases, the number of words including the
/// words of phrases, and the number of languages.
const TERMS_MAX: usize = 16;
const WORDS_MAX: usize = 64;
const LANGUAGES_MAX: usize = 8;
/// Maximum number of bytes of an extension's value. Text with a longer value is read as an address
/// instead of an extension.
const VALUE_BYTES_MAX: usize = 40;
/// Maximum number of words that are looked up in an index. Further words are checked on the
/// records.
const NEEDED_MAX: usize = 16;

/// A parsed search text.
///
/// ```
/// use hark_words::{SearchText, SearchTextError};
///
/// let asked = SearchText::parse("bread \"sour dough\" bak*")?;
/// assert!(asked.is_some_and(|asked| asked.term_count() == 3 && !asked.is_void()));
/// // An unsupported extension imposes no condition, and a text without words finds nothing.
/// assert_eq!(SearchText::parse("include:spam")?, None);
/// assert!(SearchText::parse("!?")?.is_some_and(|asked| asked.is_void()));
/// assert_eq!(SearchText::parse(&"x".repeat(2_000)), Err(SearchTextError::TooLong(1_024)));
/// # Ok::<(), SearchTextError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchText {
    text: Box<str>,
    terms: Vec<SearchTerm>,
    languages: Vec<Box<str>>,
    needed: Vec<NeededWord>,
}

/// A single word, or a phrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SearchTerm {
    words: Vec<Box<str>>,
    /// Whether the last word is a prefix.
    is_prefix: bool,
    /// The table of the Knuth-Morris-Pratt search: for each complete word of the phrase, the length
    /// of the longest shorter start of the phrase that ends with this word. So the search need not
    /// start again at each place in the text.
    borders: Vec<u16>,
}

/// A word that every match must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeededWord {
    /// The word or the prefix.
    pub word: Box<str>,
    /// Whether `word` is a prefix.
    pub is_prefix: bool,
    /// The index of the word or phrase of the search text to which this word belongs.
    pub term: usize,
}

/// Why a search text is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchTextError {
    /// The text has more bytes than the bound.
    TooLong(usize),
    /// The text has more words and phrases than allowed.
    TooManyTerms(usize),
    /// The text has more words than allowed, including the words in phrases.
    TooManyWords(usize),
}

impl std::error::Error for SearchTextError {}

impl std::fmt::Display for SearchTextError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong(max) => write!(f, "search is longer than {max} bytes; shorten it"),
            Self::TooManyTerms(max) => {
                write!(f, "search has more than {max} words and phrases; leave some out")
            }
            Self::TooManyWords(max) => {
                write!(f, "search has more than {max} words; leave some out")
            }
        }
    }
}

impl SearchTerm {
    /// Makes a term from `words`, which must not be empty.
    fn new(words: Vec<Box<str>>, is_prefix: bool) -> Self {
        let whole = if is_prefix { &words[..words.len() - 1] } else { &words[..] };
        let mut borders: Vec<u16> = Vec::with_capacity(whole.len());
        for at in 0..whole.len() {
            let mut border = if at == 0 { 0 } else { usize::from(borders[at - 1]) };
            while at > 0 && border > 0 && whole[border] != whole[at] {
                border = usize::from(borders[border - 1]);
            }
            borders.push((border + usize::from(at > 0 && whole[border] == whole[at])) as u16);
        }
        Self { words, is_prefix, borders }
    }

    /// Returns the words. The list is never empty.
    pub(crate) fn words(&self) -> &[Box<str>] {
        &self.words
    }

    /// Whether the last word is a prefix.
    pub(crate) fn is_prefix(&self) -> bool {
        self.is_prefix
    }

    /// Counts the places at which these words follow each other. Stops at `max`.
    pub(crate) fn count_in(&self, tokens: &Tokens, max: usize) -> usize {
        self.count(tokens, max, &mut || {})
    }

    /// Does the same as [`Self::count_in`], and calls `step` for each comparison of two words. A
    /// phrase takes at most three comparisons per place (Knuth, Morris and Pratt), even if words
    /// repeat in the phrase and in the text.
    #[inline]
    fn count(&self, tokens: &Tokens, max: usize, step: &mut impl FnMut()) -> usize {
        let whole = self.borders.len();
        let beginning = self.words.last().filter(|_| self.is_prefix);
        let (mut count, mut matched) = (0, 0);
        for token in tokens.iter() {
            if count == max {
                break;
            }
            if matched == whole
                && let Some(beginning) = beginning
            {
                // Up to here, all words before the prefix have matched.
                step();
                count += usize::from(token.starts_with(&**beginning));
            }
            if matched == whole && whole > 0 {
                matched = usize::from(self.borders[whole - 1]);
            }
            while matched < whole {
                step();
                if *self.words[matched] == *token {
                    matched += 1;
                    break;
                }
                if matched == 0 {
                    break;
                }
                matched = usize::from(self.borders[matched - 1]);
            }
            count += usize::from(matched == whole && beginning.is_none());
        }
        count
    }
}

#[cfg(test)]
pub(crate) fn count_steps(term: &SearchTerm, tokens: &Tokens) -> usize {
    let mut steps = 0;
    term.count(tokens, usize::MAX, &mut || steps += 1);
    steps
}

/// A part of a search text.
enum Piece<'a> {
    Quoted(&'a str),
    Bare(&'a str),
}

/// Removes the next part from the front of a text, and returns this part.
fn piece<'a>(text: &mut &'a str) -> Option<Piece<'a>> {
    *text = text.trim_start();
    if text.is_empty() {
        return None;
    }
    let (piece, rest) = if let Some(quoted) = text.strip_prefix('"') {
        // If the closing quotation mark is missing, the quotation extends to the end of the text.
        let (inner, rest) = quoted.split_once('"').unwrap_or((quoted, ""));
        (Piece::Quoted(inner), rest)
    } else {
        let end = text.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(text.len());
        let (bare, rest) = text.split_at(end);
        (Piece::Bare(bare), rest)
    };
    *text = rest;
    Some(piece)
}

/// Divides an extension into its key and value. An address, such as a URL, is not an extension.
fn extension(bare: &str) -> Option<(&str, &str)> {
    let (key, value) = bare.split_once(':')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let is_key = key.starts_with(|c: char| c.is_ascii_alphabetic()) && key.chars().all(is_name);
    let is_value = (1..=VALUE_BYTES_MAX).contains(&value.len()) && !value.starts_with('/');
    (is_key && is_value).then_some((key, value))
}

impl SearchText {
    /// Reads a search text; `None` if the text imposes no condition.
    pub fn parse(text: &str) -> Result<Option<Self>, SearchTextError> {
        if text.len() > BYTES_MAX {
            return Err(SearchTextError::TooLong(BYTES_MAX));
        }
        let mut terms: Vec<SearchTerm> = Vec::new();
        let mut languages: Vec<Box<str>> = Vec::new();
        let (mut words, mut is_bare) = (0, true);
        let mut rest = text;
        while let Some(piece) = piece(&mut rest) {
            let inner = match piece {
                Piece::Quoted(inner) => inner,
                Piece::Bare(bare) => {
                    if let Some((key, value)) = extension(bare) {
                        if key.eq_ignore_ascii_case("language") && languages.len() < LANGUAGES_MAX {
                            languages.push(value.to_ascii_lowercase().into());
                        }
                        continue;
                    }
                    bare
                }
            };
            is_bare = false;
            let mut tokens = Tokens::default();
            let is_open = tokens.read_question(inner);
            if tokens.is_empty() {
                continue;
            }
            let is_prefix = is_open || inner.trim_end().ends_with('*');
            let term = SearchTerm::new(tokens.iter().map(Box::from).collect(), is_prefix);
            if terms.contains(&term) {
                continue;
            }
            words += term.words.len();
            terms.push(term);
            if terms.len() > TERMS_MAX {
                return Err(SearchTextError::TooManyTerms(TERMS_MAX));
            }
            if words > WORDS_MAX {
                return Err(SearchTextError::TooManyWords(WORDS_MAX));
            }
        }
        if terms.is_empty() && languages.is_empty() && is_bare {
            return Ok(None);
        }
        let needed = needed(&terms);
        Ok(Some(Self { text: text.into(), terms, languages, needed }))
    }

    /// Returns the original text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether nothing can match, because the text has characters but no word and no
    /// extension.
    pub fn is_void(&self) -> bool {
        self.terms.is_empty() && self.languages.is_empty()
    }

    pub(crate) fn terms(&self) -> &[SearchTerm] {
        &self.terms
    }

    pub(crate) fn languages(&self) -> &[Box<str>] {
        &self.languages
    }

    /// The number of words and phrases. The score is an average over this number.
    pub fn term_count(&self) -> usize {
        self.terms.len()
    }

    /// The words that every match must have, without duplicates. A record with all these words may
    /// still not match, for example if the words of a phrase are in another order.
    pub fn needed(&self) -> &[NeededWord] {
        &self.needed
    }

    /// Whether every record with all needed words matches.
    pub fn is_needed_enough(&self) -> bool {
        self.languages.is_empty()
            && self.needed.len() == self.terms.len()
            && self.terms.iter().all(|term| term.words.len() == 1)
    }
}

fn needed(terms: &[SearchTerm]) -> Vec<NeededWord> {
    let mut needed: Vec<NeededWord> = Vec::new();
    for (term, SearchTerm { words, is_prefix, .. }) in terms.iter().enumerate() {
        for (at, word) in words.iter().enumerate() {
            let is_prefix = *is_prefix && at + 1 == words.len();
            let known = |one: &NeededWord| one.word == *word && one.is_prefix == is_prefix;
            if !word.is_empty() && !needed.iter().any(known) {
                needed.push(NeededWord { word: word.clone(), is_prefix, term });
            }
        }
    }
    // The longest words come first, because they are probably the rarest.
    needed.sort_by_key(|one| (one.is_prefix, std::cmp::Reverse(one.word.len())));
    needed.truncate(NEEDED_MAX);
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> SearchText {
        SearchText::parse(text).unwrap().unwrap()
    }

    fn terms(text: &str) -> Vec<(String, bool)> {
        let parsed = parsed(text);
        parsed.terms.iter().map(|term| (term.words.join(" "), term.is_prefix)).collect()
    }

    #[test]
    fn words_phrases_and_beginnings_are_told_apart() {
        let expected = |list: &[(&str, bool)]| -> Vec<(String, bool)> {
            list.iter().map(|(words, prefix)| ((*words).to_owned(), *prefix)).collect()
        };
        for (text, list) in [
            ("Hello  world", &[("hello", false), ("world", false)][..]),
            ("\"Hello world\" bitc*", &[("hello world", false), ("bitc", true)]),
            ("foo-bar x@y.z", &[("foo bar", false), ("x y z", false)]),
            ("\"open end", &[("open end", false)]),
            ("東京都 今", &[("東京 京都", false), ("今", true)]),
            ("a a A", &[("a", false)]),
            ("say\"it now\"", &[("say", false), ("it now", false)]),
            ("https://x.org/y 12:30", &[("https x org y", false), ("12 30", false)]),
            (
                &format!("scheme:{}", "x".repeat(41)),
                &[(&format!("scheme {}", "x".repeat(40)), false)],
            ),
        ] {
            assert_eq!(terms(text), expected(list), "{text}");
        }
    }

    #[test]
    fn extensions_are_ignored_but_for_the_language() {
        assert_eq!(terms("fox include:spam domain:x.org nsfw:false").len(), 1);
        assert_eq!(parsed("language:EN fox").languages, ["en".into()]);
        assert_eq!(SearchText::parse("include:spam nsfw:false"), Ok(None));
        assert_eq!(SearchText::parse("  "), Ok(None));
        assert!(parsed("!!! ---").is_void() && parsed("\"\"").is_void());
        assert!(!parsed("language:de").is_void());
    }

    #[test]
    fn what_is_too_much_is_refused() {
        assert_eq!(SearchText::parse(&"x".repeat(1_025)), Err(SearchTextError::TooLong(1_024)));
        let many = (0..17).map(|i| format!("w{i}")).collect::<Vec<_>>().join(" ");
        assert_eq!(SearchText::parse(&many), Err(SearchTextError::TooManyTerms(16)));
        let long = format!("\"{many} {many} {many} {many}\"");
        assert_eq!(SearchText::parse(&long), Err(SearchTextError::TooManyWords(64)));
    }

    #[test]
    fn needed_words_are_bounded_and_say_whether_they_are_enough() {
        let of = |text: &str| {
            let parsed = parsed(text);
            (parsed.needed.len(), parsed.is_needed_enough())
        };
        assert_eq!(of("fox dog"), (2, true));
        assert_eq!(of("fox do*"), (2, true));
        assert_eq!(of("\"fox dog\""), (2, false));
        assert_eq!(of("fox language:en"), (1, false));
        assert_eq!(of("東京タワーから見える景色はとても綺麗です"), (16, false));
    }

    #[test]
    fn whatever_is_written_is_read_or_refused() {
        proptest::proptest!(|(text: String)| {
            if let Ok(Some(parsed)) = SearchText::parse(&text) {
                proptest::prop_assert!(parsed.needed.iter().all(|one| !one.word.is_empty()));
            }
        });
    }
}
