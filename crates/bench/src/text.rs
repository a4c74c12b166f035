//! Words for generated events: what people, wallets and wraps write, in several alphabets, with all
//! that JSON has to escape.

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

/// Lowercase hex.
pub(crate) fn hex(bytes: &[u8; 32]) -> String {
    String::from_utf8_lossy(&hark_codec::hex::encode_32(bytes)).into_owned()
}

fn words(random: &mut Random, bytes: usize) -> String {
    let mut out = String::with_capacity(bytes + 16);
    while out.len() < bytes {
        out.push_str(WORDS[random.below(WORDS.len())]);
        out.push_str(match random.below(40) {
            0 => ".\n",
            1 => ", \"quoted\" ",
            2 => "!\n\n",
            _ => " ",
        });
    }
    out
}

/// A note: most are short, a few long, some with a link.
pub(crate) fn note(random: &mut Random) -> String {
    let least = 28 << random.below(6);
    let length = random.between(least, 2 * least);
    let mut out = words(random, length);
    if random.once_in(5) {
        let name = random.bits();
        let _ = write!(out, "\nhttps://image.example/{name:016x}{name:016x}.jpg");
    }
    out
}

/// A few words.
pub(crate) fn title(random: &mut Random) -> String {
    words(random, 40)
}

/// Some 8 KB of Markdown.
pub(crate) fn article(random: &mut Random) -> String {
    let mut out = String::new();
    for part in 1..=8 {
        let _ = write!(out, "## Part {part}\n\n{}\n\n", words(random, 1_000));
    }
    out
}

/// A profile: JSON that is a string within JSON.
pub(crate) fn profile(random: &mut Random, author: usize) -> String {
    let about = words(random, 150).replace('"', "\\\"").replace('\n', "\\n");
    format!(
        "{{\"name\":\"author{author}\",\"display_name\":\"Author № {author} ✨\",\"about\":\"{about}\",\
         \"picture\":\"https://image.example/{author}.png\",\"banner\":\"https://image.example/b/{author}.jpg\",\
         \"nip05\":\"author{author}@names.example\",\"lud16\":\"author{author}@wallet.example\",\
         \"website\":\"https:\\/\\/author{author}.example\"}}"
    )
}

/// What looks encrypted: base64.
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

/// A Lightning invoice, by its looks.
pub(crate) fn invoice(random: &mut Random, msats: usize) -> String {
    format!("lnbc{}n1p{}", msats / 100, sealed(random, 240).to_lowercase().replace(['+', '/'], "q"))
}

/// The request that a zap answers (NIP-57), as JSON.
pub(crate) fn zap_request(sender: &str, person: &str, note: &str, msats: usize) -> String {
    format!(
        "{{\"id\":\"{note}\",\"pubkey\":\"{sender}\",\"created_at\":1750000000,\"kind\":9734,\"tags\":[\
         [\"relays\",\"wss://relay1.example\"],[\"amount\",\"{msats}\"],[\"p\",\"{person}\"],[\"e\",\"{note}\"]],\
         \"content\":\"\",\"sig\":\"{sender}{person}\"}}"
    )
}

/// A relay's URL, from a small world of them.
pub(crate) fn relay(random: &mut Random) -> String {
    format!("wss://relay{}.example", 1 + random.zipf(60))
}

/// The hashtag of this rank; some are not in ASCII.
pub(crate) fn hashtag(rank: usize) -> String {
    let word = WORDS[rank % WORDS.len()];
    if rank < WORDS.len() { word.to_owned() } else { format!("{word}{}", rank / WORDS.len()) }
}
