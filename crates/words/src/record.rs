//! The words of a record, and how well a record matches a search text.
//!
//! **The score.** A match has every word (or phrase) of the search text. So the rarity of a word is
//! the same for all matches, and the score needs no statistics of the collection. Therefore hidden
//! records cannot influence the order of the records that a reader sees. Matches differ in how
//! prominent a word is in the record. The *class* of the word in the record measures this:
//!
//! | class | the word is |
//! |---|---|
//! | 3 | in a title, a name or a hashtag |
//! | 2 | in the body, at least once per 16 words of the body |
//! | 1 | in the body, at least once per 64 words of the body |
//! | 0 | elsewhere in the body |
//!
//! The score is the record's time plus a number of weeks. This number is the average class of the
//! search text's words. So of two matches from the same day, the match with the higher classes
//! comes first. Of two matches with equal classes, the newer match comes first. (The order is the
//! same as if relevance doubled with each class and halved with each week of age.) All values are
//! integers, so all stores compute the same order.

use std::cell::{Cell, OnceCell};
use std::ops::Range;

use crate::language::Scripts;
use crate::phrases::WordOrder;
use crate::search_text::{NeededWord, SearchTerm, SearchText};
use crate::token::Tokens;

/// The highest class.
pub const CLASS_MAX: u8 = 3;
/// Maximum number of words of a record that are read.
pub const TOKENS_MAX: usize = 4_096;
/// Number of search texts that are compared with a record before its words are sorted.
const SORTED_AFTER: u32 = 8;
/// A word has class 2 if it occurs at least once per [`OFTEN`] words of a body, and class 1 if it
/// occurs at least once per [`SELDOM`] words.
const OFTEN: usize = 16;
const SELDOM: usize = 64;

/// The part of a record to which a text belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A title, a name, a hashtag.
    Title,
    /// The record's content.
    Body,
    /// The code (ISO 639-1) of a language that the record declares. This text is not searched.
    Language,
}

/// The words of a record.
///
/// ```
/// use hark_words::{Part, RecordWords, SearchText};
///
/// let asked = SearchText::parse("bread")?.ok_or("no condition")?;
/// let mut words = RecordWords::default();
/// words.add(Part::Body, "A recipe for bread");
/// let points_of_body = words.points(&asked);
/// assert!(words.matches(&asked) && points_of_body.is_some());
///
/// words.clear();
/// words.add(Part::Title, "Bread");
/// assert!(words.points(&asked) > points_of_body);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RecordWords {
    titles: Tokens,
    bodies: Tokens,
    languages: Vec<Box<str>>,
    scripts: OnceCell<Scripts>,
    /// The first place of each distinct word, and whether this place is in a body; sorted by word.
    sorted: OnceCell<Vec<(bool, u32)>>,
    /// The places of all words, in sorted order.
    order: OnceCell<WordOrder>,
    /// Number of search texts with which the record was compared.
    compared: Cell<u32>,
}

/// A word of a record, in the form that an index stores.
#[derive(Clone, Copy, Debug)]
pub struct WeighedWord {
    /// The word's hash.
    pub hash: u64,
    /// The word's class in the record.
    pub class: u8,
    in_body: bool,
    place: u32,
    /// How many times the record has the word.
    count: u32,
}

/// The distinct words of a record, in the order of their first places. The memory is reused for the
/// next record.
#[derive(Debug, Default)]
pub struct WeighedWords {
    words: Vec<WeighedWord>,
    /// A hash table. A slot has the number of a word plus one; 0 means a free slot. A word is in
    /// the slot that its hash selects, or in a later slot.
    slots: Vec<u32>,
}

impl WeighedWords {
    /// Removes all words.
    pub fn clear(&mut self) {
        self.words.clear();
    }

    /// The words.
    pub fn iter(&self) -> impl Iterator<Item = &WeighedWord> {
        self.words.iter()
    }
}

/// The class of a word that occurs `count` times in a body of `len` words.
fn body_class(count: usize, len: usize) -> u8 {
    if count * OFTEN >= len { 2 } else { u8::from(count * SELDOM >= len) }
}

impl RecordWords {
    /// Removes all words.
    pub fn clear(&mut self) {
        self.titles.clear();
        self.bodies.clear();
        self.languages.clear();
        self.forget();
    }

    /// Drops everything that was computed from the texts.
    fn forget(&mut self) {
        self.scripts.take();
        self.sorted.take();
        self.order.take();
        self.compared.take();
    }

    /// Adds a text of the record.
    pub fn add(&mut self, part: Part, text: &str) {
        self.forget();
        let others = if part == Part::Title { self.bodies.len() } else { self.titles.len() };
        let max = TOKENS_MAX.saturating_sub(others);
        match part {
            Part::Title => self.titles.read(text, max),
            Part::Body => self.bodies.read(text, max),
            Part::Language => {
                if self.languages.len() < 8 {
                    self.languages.push(text.to_ascii_lowercase().into());
                }
            }
        }
    }

    /// Sets `found` to the distinct words and their classes. `hash` should be keyed, because an
    /// attacker who can compute the hash could write a record with many collisions.
    pub fn weigh(&self, hash: impl Fn(&str) -> u64, found: &mut WeighedWords) {
        let WeighedWords { words, slots } = found;
        words.clear();
        slots.clear();
        slots.resize((2 * (self.titles.len() + self.bodies.len())).next_power_of_two(), 0);
        let mask = slots.len() - 1;
        // Titles are read before bodies, so a word that is in both gets the class of a title.
        for (in_body, tokens) in [(false, &self.titles), (true, &self.bodies)] {
            for (place, word) in (0..).zip(tokens.iter()).filter(|(_, word)| !word.is_empty()) {
                let hash = hash(word);
                let mut slot = hash as usize & mask;
                let known = loop {
                    let Some(at) = slots[slot].checked_sub(1) else { break None };
                    let known = &words[at as usize];
                    if known.hash == hash && self.text(known) == word {
                        break Some(at as usize);
                    }
                    slot = (slot + 1) & mask;
                };
                if let Some(at) = known {
                    words[at].count += 1;
                } else {
                    words.push(WeighedWord { hash, class: CLASS_MAX, in_body, place, count: 1 });
                    slots[slot] = words.len() as u32;
                }
            }
        }
        for word in words.iter_mut().filter(|word| word.in_body) {
            word.class = body_class(word.count as usize, self.bodies.len());
        }
    }

    /// The text of a word that [`RecordWords::weigh`] has found.
    pub fn text(&self, word: &WeighedWord) -> &str {
        let tokens = if word.in_body { &self.bodies } else { &self.titles };
        tokens.get(word.place as usize)
    }

    fn word_at(&self, (in_body, place): (bool, u32)) -> &str {
        let tokens = if in_body { &self.bodies } else { &self.titles };
        tokens.get(place as usize)
    }

    fn sorted(&self) -> &[(bool, u32)] {
        self.sorted.get_or_init(|| {
            let places = |in_body, tokens: &Tokens| {
                (0..tokens.places() as u32).map(move |place| (in_body, place))
            };
            let all = places(false, &self.titles).chain(places(true, &self.bodies));
            let mut all: Vec<_> = all.filter(|at| !self.word_at(*at).is_empty()).collect();
            all.sort_unstable_by_key(|at| self.word_at(*at));
            all.dedup_by(|a, b| self.word_at(*a) == self.word_at(*b));
            all
        })
    }

    /// Returns the distinct words, ascending. The first call sorts the words. From then on,
    /// [`RecordWords::points`] needs only a few steps for a search text with a word that the record
    /// lacks.
    pub fn distinct(&self) -> impl Iterator<Item = &str> {
        self.sorted().iter().map(|at| self.word_at(*at))
    }

    /// Returns whether the record has a word. A prefix matches any word that begins with the
    /// prefix.
    fn has(&self, sorted: &[(bool, u32)], needed: &NeededWord) -> bool {
        let at = sorted.partition_point(|at| self.word_at(*at) < &*needed.word);
        sorted.get(at).is_some_and(|at| {
            let word = self.word_at(*at);
            if needed.is_prefix { word.starts_with(&*needed.word) } else { word == &*needed.word }
        })
    }

    /// Returns whether the record has all words and phrases of a search text and is in one of its
    /// languages. If many search texts are compared with the record, each search text takes only a
    /// few steps per word of the search text.
    pub fn matches(&self, asked: &SearchText) -> bool {
        self.compared.set(self.compared.get().saturating_add(1));
        if self.compared.get() > SORTED_AFTER {
            self.sorted();
        }
        self.matches_in(asked, &mut || {})
    }

    /// Calls `step` for each comparison of two words, once the record's words are sorted.
    fn matches_in(&self, asked: &SearchText, step: &mut impl FnMut()) -> bool {
        let is_there = |term: &SearchTerm| match self.sorted.get() {
            Some(sorted) => self.has_term(sorted, term, step),
            None => term.count_in(&self.titles, 1) > 0 || term.count_in(&self.bodies, 1) > 0,
        };
        asked.terms().iter().all(is_there) && self.is_in(asked.languages())
    }

    /// Returns the range of the sorted words that equal `word` or, if `is_prefix`, begin with
    /// `word`.
    fn range(
        &self,
        sorted: &[(bool, u32)],
        (word, is_prefix): (&str, bool),
        step: &mut impl FnMut(),
    ) -> Range<usize> {
        let start = sorted.partition_point(|at| {
            step();
            self.word_at(*at) < word
        });
        let of_beginning = |at: &(bool, u32)| {
            step();
            let other = self.word_at(*at);
            if is_prefix { other.starts_with(word) } else { other == word }
        };
        start..start + sorted[start..].partition_point(of_beginning)
    }

    fn has_term(&self, sorted: &[(bool, u32)], term: &SearchTerm, step: &mut impl FnMut()) -> bool {
        let Some((last, before)) = term.words().split_last() else { return false };
        let last = self.range(sorted, (last, term.is_prefix()), step);
        if last.is_empty() || before.is_empty() {
            return !last.is_empty();
        }
        let mut phrase = Vec::with_capacity(before.len());
        for word in before {
            let place = self.range(sorted, (word, false), step);
            if place.is_empty() {
                return false;
            }
            phrase.push(place.start as u32);
        }
        let order = self.order.get_or_init(|| {
            let number = |tokens: &Tokens, place| {
                let word = tokens.get(place);
                let at = sorted.binary_search_by(|at| self.word_at(*at).cmp(word));
                at.ok().map(|at| at as u32)
            };
            let of = |tokens| (0..Tokens::places(tokens)).map(move |place| number(tokens, place));
            WordOrder::new(of(&self.titles).chain([None]).chain(of(&self.bodies)))
        });
        order.has(&phrase, last.start as u32..last.end as u32, step)
    }

    /// Returns the sum of the classes that the words and phrases of a search text have in this
    /// record. Returns `None` if a word or phrase is not in the record, or if the record is in
    /// another language.
    pub fn points(&self, asked: &SearchText) -> Option<u32> {
        if let Some(sorted) = self.sorted.get()
            && !asked.needed().iter().all(|needed| self.has(sorted, needed))
        {
            return None;
        }
        let mut points = 0;
        for term in asked.terms() {
            if term.count_in(&self.titles, 1) > 0 {
                points += u32::from(CLASS_MAX);
                continue;
            }
            match term.count_in(&self.bodies, usize::MAX) {
                0 => return None,
                found => points += u32::from(body_class(found, self.bodies.len())),
            }
        }
        self.is_in(asked.languages()).then_some(points)
    }

    fn is_in(&self, languages: &[Box<str>]) -> bool {
        if languages.is_empty() {
            return true;
        }
        if !self.languages.is_empty() {
            return languages.iter().any(|language| self.languages.contains(language));
        }
        let scripts = self.scripts.get_or_init(|| {
            let mut scripts = Scripts::default();
            self.titles.iter().chain(self.bodies.iter()).for_each(|word| scripts.add(word));
            scripts
        });
        languages.iter().any(|language| scripts.may_be(language))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(texts: &[(Part, &str)]) -> RecordWords {
        let mut words = RecordWords::default();
        for (part, text) in texts {
            words.add(*part, text);
        }
        words
    }

    fn points(texts: &[(Part, &str)], asked: &str) -> Option<u32> {
        let (record, asked) = (record(texts), SearchText::parse(asked).unwrap().unwrap());
        let points = record.points(&asked);
        for _ in 0..=SORTED_AFTER {
            assert_eq!(record.matches(&asked), points.is_some(), "{asked:?}");
        }
        points
    }

    #[test]
    fn a_record_matches_if_it_has_every_word_and_phrase() {
        let text = [(Part::Body, "The quick brown fox jumps over the lazy dog. 東京都に行く")];
        for yes in [
            "fox",
            "FOX dog",
            "\"quick brown fox\"",
            "qui*",
            "\"brown fo*\"",
            "東京",
            "京都",
            "都",
            "行く",
            "東京都",
            "quick-brown",
            "fóx",
            "foo:bar fox",
        ] {
            assert!(points(&text, yes).is_some(), "{yes}");
        }
        for no in
            ["cat", "fox cat", "\"brown quick\"", "quic", "東都", "fox*x", "\"dog 東京 fox\"", "x*"]
        {
            assert_eq!(points(&text, no), None, "{no}");
        }
    }

    #[test]
    fn classes_say_how_much_a_record_is_about_a_word() {
        let filler = "lorem ".repeat(99);
        assert_eq!(points(&[(Part::Title, "Fox"), (Part::Body, &filler)], "fox"), Some(3));
        assert_eq!(points(&[(Part::Body, "a fox")], "fox"), Some(2));
        assert_eq!(points(&[(Part::Body, &format!("{} fox", "x ".repeat(30)))], "fox"), Some(1));
        assert_eq!(points(&[(Part::Body, &format!("{filler} fox"))], "fox"), Some(0));
        assert_eq!(
            points(&[(Part::Body, &format!("{filler} {}", "fox ".repeat(9)))], "fox"),
            Some(2)
        );
        assert_eq!(points(&[(Part::Body, "fox dog")], "fox dog"), Some(4));
        assert_eq!(points(&[(Part::Title, "one"), (Part::Title, "two")], "\"one two\""), None);
    }

    #[test]
    fn an_index_has_the_classes_that_the_score_has() {
        let record = [
            (Part::Title, "fox"),
            (Part::Body, &*format!("fox dog dog {} 東京 🚀", "cow ".repeat(70))),
        ];
        let words = self::record(&record);
        let hash = |word: &str| word.bytes().fold(7_u64, |all, b| all * 31 + u64::from(b));
        let mut found = WeighedWords::default();
        words.weigh(|_| 7, &mut found);
        assert_eq!(found.iter().count(), 6);
        words.weigh(hash, &mut found);
        assert_eq!(found.iter().count(), 6);
        for word in found.iter() {
            let text = words.text(word);
            assert_eq!(word.hash, hash(text));
            let asked = if text == "京" { "京*" } else { text };
            assert_eq!(points(&record, asked), Some(word.class.into()), "{text}");
        }
    }

    #[test]
    fn phrases_that_overlap_themselves_are_counted_like_by_a_loop() {
        let mut state = 1_u64;
        let mut words = |count: usize| {
            let word = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if state >> 62 == 0 { "ab " } else { "a " }
            };
            (0..count).map(word).collect::<String>()
        };
        for round in 0..200 {
            let (text, phrase) = (words(60), words(1 + round % 7));
            let star = if round % 3 == 0 { "*" } else { "" };
            let asked = format!("\"{}{star}\"", phrase.trim());
            let text: Vec<&str> = text.split_whitespace().collect();
            let phrase: Vec<&str> = phrase.split_whitespace().collect();
            let is_at = |at: &[&str]| {
                let (last, all) = phrase.split_last().unwrap();
                let word = at[all.len()];
                at.starts_with(all) && (word == *last || (star == "*" && word.starts_with(last)))
            };
            let found = text.windows(phrase.len()).filter(|at| is_at(at)).count();
            let expected = (found > 0).then(|| u32::from(body_class(found, text.len())));
            let record = record(&[(Part::Body, &text.join(" "))]);
            let asked = SearchText::parse(&asked).unwrap().unwrap();
            assert_eq!(record.points(&asked), expected, "{asked:?} in {text:?}");
            assert_eq!(record.distinct().collect::<Vec<_>>(), ["a", "ab"]);
            assert_eq!(record.points(&asked), expected, "{asked:?} in {text:?}, sorted");
            assert_eq!(record.matches(&asked), expected.is_some(), "{asked:?} in {text:?}");
        }
    }

    #[test]
    fn a_phrase_is_looked_for_in_few_comparisons_wherever_its_words_are() {
        let text = record(&[(Part::Body, &"a ".repeat(TOKENS_MAX))]);
        for last in ["a", "b", "b*"] {
            let asked = format!("\"{}{last}\"", "a ".repeat(59));
            let asked = SearchText::parse(&asked).unwrap().unwrap();
            let steps = crate::search_text::count_steps(&asked.terms()[0], &text.bodies);
            assert!(steps <= 3 * TOKENS_MAX, "{steps} comparisons for {asked:?}");
        }
    }

    /// These search texts have words of the record, and sequences of these words that the record
    /// lacks.
    #[test]
    fn of_many_questions_about_a_record_each_takes_few_steps_for_each_of_its_words() {
        let text: Vec<String> = (0..TOKENS_MAX).map(|n| format!("x{}", n % 60)).collect();
        let long = record(&[(Part::Body, &text.join(" "))]);
        assert!(!long.matches(&SearchText::parse("y*").unwrap().unwrap()));
        long.sorted();
        for asked in
            ["x*", "x59", "zz*", "\"x1 x2 x3\"", "\"x3 x2 x1\"", "\"x59 x0 x*\"", "\"x0 x0\""]
        {
            let asked = SearchText::parse(asked).unwrap().unwrap();
            let (mut steps, words) = (0, asked.terms()[0].words().len());
            let is_match = long.matches_in(&asked, &mut || steps += 1);
            assert_eq!(is_match, long.points(&asked).is_some(), "{asked:?}");
            // Each word takes a binary search in 60 words and in 4,096 places.
            assert!(steps <= 16 * words + 26 * words, "{steps} comparisons for {asked:?}");
        }
    }

    #[test]
    fn a_language_is_what_the_author_says_or_else_what_the_script_allows() {
        let body = (Part::Body, "guten Morgen");
        assert!(points(&[body], "morgen language:de").is_some());
        assert!(points(&[body], "morgen language:ja").is_none());
        let said = [body, (Part::Language, "de")];
        assert!(points(&said, "morgen language:de").is_some());
        assert!(points(&said, "morgen language:en").is_none());
    }

    #[test]
    fn only_so_many_words_of_a_record_are_looked_at() {
        let long = "word ".repeat(TOKENS_MAX) + "end";
        assert_eq!(points(&[(Part::Body, &long)], "end"), None);
        assert!(points(&[(Part::Body, &long[5..])], "end").is_some());
    }
}
