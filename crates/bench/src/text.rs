//! Text for generated events, like the text of people, wallets and gift wraps: in several
//! alphabets, and with characters that JSON must escape.

use std::fmt::Write as _;

use crate::random::Random;

const WORDS: [&str; 48] = [
    "the",
    "a",
    "relay",
    "and",
    "of",
    "to",
    "is",
    "this",
    "we",
    "have",
    "that",
    "in",
    "note",
    "for",
    "on",
    "with",
    "bitcoin",
    "nostr",
    "good",
    "morning",
    "people",
    "time",
    "it",
    "not",
    "you",
    "are",
    "what",
    "just",
    "from",
    "open",
    "zap",
    "coffee",
    "freedom",
    "node",
    "block",
    "über",
    "größer",
    "señor",
    "être",
    "привет",
    "мир",
    "今日",
    "は",
    "いい",
    "天気",
    "🌅",
    "🚀",
    "☕",
];

/// Encodes 32 bytes as lowercase hex.
pub(crate) fn hex(bytes: &[u8; 32]) -> String {
    hark_codec::hex::text_32(bytes)
}

/// The vocabulary of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vocabulary {
    /// 48 words with equal frequencies.
    Few,
    /// 60,000 words with the frequencies of natural text: twice the rank means half the frequency
    /// (Zipf).
    Natural,
}

/// Number of words of [`Vocabulary::Natural`].
const NATURAL: usize = 60_000;

impl Vocabulary {
    /// Appends a word.
    fn put(self, random: &mut Random, out: &mut String) {
        match self {
            Self::Few => out.push_str(WORDS[random.below(WORDS.len())]),
            Self::Natural => put_natural(random.zipf(NATURAL), out),
        }
    }
}

/// Appends the word of this rank: of one syllable for the 64 most common words, of two for the next
/// 4,096, of three for the others.
fn put_natural(rank: usize, out: &mut String) {
    let mut rest = rank;
    loop {
        out.push(char::from(b"bcdfghklmnprstvz"[rest % 16]));
        out.push(char::from(b"aeio"[rest / 16 % 4]));
        let Some(next) = (rest / 64).checked_sub(1) else { return };
        rest = next;
    }
}

fn words(random: &mut Random, vocabulary: Vocabulary, bytes: usize) -> String {
    let mut out = String::with_capacity(bytes + 16);
    while out.len() < bytes {
        vocabulary.put(random, &mut out);
        out.push_str(match random.below(40) {
            0 => ".\n",
            1 => ", \"quoted\" ",
            2 => "!\n\n",
            _ => " ",
        });
    }
    out
}

/// Makes the text of a note: most are short, a few are long, some have a link.
pub(crate) fn note(random: &mut Random, vocabulary: Vocabulary) -> String {
    let least = 28 << random.below(6);
    let length = random.between(least, 2 * least);
    let mut out = words(random, vocabulary, length);
    if random.once_in(5) {
        let name = random.bits();
        let _ = write!(out, "\nhttps://image.example/{name:016x}{name:016x}.jpg");
    }
    out
}

/// Makes the text of a short note.
pub(crate) fn short(random: &mut Random, vocabulary: Vocabulary) -> String {
    let length = random.between(4, 40);
    words(random, vocabulary, length)
}

/// Makes a title of a few words.
pub(crate) fn title(random: &mut Random, vocabulary: Vocabulary) -> String {
    words(random, vocabulary, 40)
}

/// Makes some 8 KB of Markdown.
pub(crate) fn article(random: &mut Random, vocabulary: Vocabulary) -> String {
    let mut out = String::new();
    for part in 1..=8 {
        let _ = write!(out, "## Part {part}\n\n{}\n\n", words(random, vocabulary, 1_000));
    }
    out
}

/// Makes a profile: JSON that becomes a string in the event's JSON.
pub(crate) fn profile(random: &mut Random, vocabulary: Vocabulary, author: usize) -> String {
    let about = words(random, vocabulary, 150).replace('"', "\\\"").replace('\n', "\\n");
    format!(
        "{{\"name\":\"author{author}\",\"display_name\":\"Author № {author} ✨\",\"about\":\"{about}\",\
         \"picture\":\"https://image.example/{author}.png\",\"banner\":\"https://image.example/b/{author}.jpg\",\
         \"nip05\":\"author{author}@names.example\",\"lud16\":\"author{author}@wallet.example\",\
         \"website\":\"https:\\/\\/author{author}.example\"}}"
    )
}

/// Makes text that looks encrypted: at least `bytes` of base64.
pub(crate) fn sealed(random: &mut Random, bytes: usize) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes + 8);
    while out.len() < bytes {
        let mut bits = random.bits();
        for _ in 0..8 {
            out.push(char::from(DIGITS[(bits & 63) as usize]));
            bits >>= 6;
        }
    }
    out
}

/// Makes text that looks like a Lightning invoice.
pub(crate) fn invoice(random: &mut Random, msats: usize) -> String {
    format!("lnbc{}n1p{}", msats / 100, sealed(random, 240).to_lowercase().replace(['+', '/'], "q"))
}

/// Makes the request that a zap answers (NIP-57), as JSON.
pub(crate) fn zap_request(sender: &str, person: &str, note: &str, msats: usize) -> String {
    format!(
        "{{\"id\":\"{note}\",\"pubkey\":\"{sender}\",\"created_at\":1750000000,\"kind\":9734,\"tags\":[\
         [\"relays\",\"wss://relay1.example\"],[\"amount\",\"{msats}\"],[\"p\",\"{person}\"],[\"e\",\"{note}\"]],\
         \"content\":\"\",\"sig\":\"{sender}{person}\"}}"
    )
}

/// Picks one of 60 relay URLs. Earlier URLs are picked more often.
pub(crate) fn relay(random: &mut Random) -> String {
    format!("wss://relay{}.example", 1 + random.zipf(60))
}

/// Returns the hashtag with this rank. Some hashtags are not ASCII.
pub(crate) fn hashtag(rank: usize) -> String {
    let word = WORDS[rank % WORDS.len()];
    if rank < WORDS.len() { word.to_owned() } else { format!("{word}{}", rank / WORDS.len()) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn natural_words_are_distinct_and_the_common_ones_short() {
        let word = |rank| {
            let mut out = String::new();
            put_natural(rank, &mut out);
            out
        };
        let all: HashSet<String> = (0..NATURAL).map(word).collect();
        assert_eq!(all.len(), NATURAL);
        assert_eq!([0, 63, 64, 4_159, 4_160].map(|rank| word(rank).len()), [2, 2, 4, 4, 6]);
        let text = words(&mut Random::new(1), Vocabulary::Natural, 100_000);
        let distinct: HashSet<&str> = text.split_whitespace().collect();
        assert!((3_000..15_000).contains(&distinct.len()), "{}", distinct.len());
    }
}
