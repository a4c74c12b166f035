//! Compresses messages as clients do (permessage-deflate, RFC 7692), with the algorithm of zlib and
//! any of its settings. Also makes contents for such messages.

use zlib_rs::{Deflate, DeflateFlush, Inflate, InflateFlush};

use crate::random::Random;

/// Levels of compression, from no compression to the best.
pub const LEVELS: std::ops::RangeInclusive<i32> = 0..=9;
/// Sizes of the window, as powers of two.
pub const WINDOW_BITS: std::ops::RangeInclusive<u8> = 9..=15;

/// The last bytes of every compressed message, which are not sent.
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// Compresses one message.
pub fn deflate(message: &[u8], level: i32, window_bits: u8) -> Vec<u8> {
    let mut out = vec![0; message.len() * 2 + 1_024];
    let mut deflate = Deflate::new(level, false, window_bits);
    deflate.compress(message, &mut out, DeflateFlush::SyncFlush).expect("settings that exist");
    assert_eq!(deflate.total_in(), message.len() as u64, "there was room for all of it");
    out.truncate(deflate.total_out() as usize);
    assert!(out.ends_with(&TAIL));
    out.truncate(out.len() - TAIL.len());
    out
}

/// Decompresses one message, which is at most `len_max` bytes long.
pub fn inflate(payload: &[u8], len_max: usize) -> Vec<u8> {
    let mut out = vec![0; len_max];
    let mut inflate = Inflate::new(false, 15);
    let payload = [payload, &TAIL].concat();
    inflate.decompress(&payload, &mut out, InflateFlush::SyncFlush).expect("a compressed message");
    out.truncate(inflate.total_out() as usize);
    out
}

/// The content of a message. The variants are ordered by compressibility, from the best to none at
/// all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// One letter, again and again.
    Letter,
    /// Events in JSON.
    Events,
    /// Words of a small vocabulary.
    Words,
    /// Hex digits.
    Hex,
    /// Random bytes.
    Noise,
}

impl Content {
    /// All contents.
    pub const ALL: [Self; 5] = [Self::Letter, Self::Events, Self::Words, Self::Hex, Self::Noise];

    /// Makes `len` bytes of this content. All contents except noise are plain text.
    pub fn make(self, random: &mut Random, len: usize) -> Vec<u8> {
        const WORDS: [&str; 16] = [
            "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "hark",
            "keeps", "what", "was", "said", "today",
        ];
        let mut out = Vec::with_capacity(len + 256);
        while out.len() < len {
            match self {
                Self::Letter => out.resize(len, b'x'),
                Self::Events => {
                    let (id, key) = (random.bits(), random.pick(&[1, 2, 3]));
                    let event = format!(
                        "{{'id':'{id:064x}','pubkey':'{key:064x}','created_at':1700000000,'kind':1,\
                         'tags':[['e','{key:064x}'],['p','{key:064x}']],'content':'hark'}},"
                    );
                    out.extend_from_slice(event.as_bytes());
                }
                Self::Words => {
                    out.extend_from_slice(random.pick(&WORDS).as_bytes());
                    out.push(b' ');
                }
                Self::Hex => out.extend_from_slice(format!("{:016x}", random.bits()).as_bytes()),
                Self::Noise => out.extend_from_slice(&random.bytes()),
            }
        }
        out.truncate(len);
        out
    }
}

/// Picks a random length from 2 bytes to 300 kB. Each order of magnitude is equally likely.
pub fn length(random: &mut Random) -> usize {
    let bits = 1 + random.below(18);
    ((1 << bits) + random.below(1 << bits)).min(300_000)
}
