//! Sentences in several scripts, and search texts for their words.

use hark_archive::{Record, TextSource};
use hark_words::Part;

use crate::generator::Random;

/// The label whose values are searched as the body of a record.
pub const SENTENCE: u8 = b's';
/// The label whose values are searched as a title.
pub const TITLE: u8 = b'd';

const WORDS: [&str; 40] = [
    "the",
    "The",
    "relay",
    "relays",
    "note",
    "bitcoin",
    "Nostr",
    "über",
    "Größe",
    "señor",
    "être",
    "e\u{301}te\u{301}",
    "привет",
    "МИР",
    "Ёлка",
    "今日は",
    "いい天気",
    "東京都",
    "京都",
    "비트코인을",
    "비트",
    "ภาษาไทย",
    "ไทย",
    "مرحبا",
    "مُحَمَّد",
    "بالعالم",
    "שלום",
    "שָׁלוֹם",
    "עולם",
    "हिन्दी",
    "🚀",
    "👍🏽",
    "🇯🇵",
    "don't",
    "e-mail",
    "x@y.org",
    "#tag",
    "https://a.example/b",
    "2026",
    "\"quoted\"",
];

/// Makes a sentence. Most sentences are short, and a few are long.
pub fn sentence(random: &mut Random) -> String {
    let count = if random.once_in(12) { random.below(150) } else { random.below(14) };
    let mut out = String::new();
    for _ in 0..count {
        // The first words are the most frequent, because in real texts, too, a few words are
        // frequent.
        out.push_str(WORDS[random.skewed(WORDS.len())]);
        out.push_str(random.pick::<&str>(&[" ", " ", " ", ", ", ".\n", ""]));
    }
    out
}

/// Makes a search text from words, phrases, prefixes and extensions.
pub fn question(random: &mut Random) -> String {
    let mut out = String::new();
    for _ in 0..=random.below(3) {
        let word = WORDS[random.skewed(WORDS.len())].replace('"', "");
        match random.below(9) {
            0 => {
                let letters = word.chars().count().max(1);
                let begin: String = word.chars().take(1 + random.below(letters)).collect();
                out.push_str(&begin);
                out.push('*');
            }
            1 => {
                let next = random.pick(&WORDS).replace('"', "");
                for part in ["\"", &word, " ", &next, "\""] {
                    out.push_str(part);
                }
            }
            2 => out.extend(word.chars().take(1)),
            3 if random.once_in(3) => out.push_str("include:spam"),
            4 if random.once_in(3) => {
                out.push_str("language:");
                out.push_str(random.pick::<&str>(&["en", "ja", "ru", "he"]));
            }
            _ => out.push_str(&word),
        }
        out.push(' ');
    }
    out
}

/// The texts of a [`World`](crate::random::World)'s records.
#[derive(Clone, Copy, Debug)]
pub struct Sentences {
    /// A number that identifies this choice of texts.
    pub number: u64,
    /// Kinds with texts.
    pub kinds: &'static [u32],
}

/// All kinds with texts, including private kinds.
pub const SENTENCES: Sentences = Sentences { number: 1, kinds: &[0, 1, 7, 1_059, 30_023] };

impl TextSource for Sentences {
    fn texts(&self, record: &Record<'_>, each: &mut dyn FnMut(Part, &str)) {
        if !self.has_texts(record.kind()) {
            return;
        }
        let labels = || record.labels();
        for (part, wanted) in [(Part::Title, TITLE), (Part::Body, SENTENCE)] {
            for (_, value) in labels().filter(|(name, _)| *name == wanted) {
                each(part, str::from_utf8(value).unwrap_or_default());
            }
        }
    }

    fn kinds(&self) -> &[u32] {
        self.kinds
    }

    fn fingerprint(&self) -> u64 {
        self.number
    }

    fn class_time(&self) -> u64 {
        // In the ranking, one class of a word counts as much as this time. The time is short, so
        // that both times and classes affect the order.
        4
    }
}
