//! Keys and ids in the text forms that people exchange: `npub1…`, `nsec1…`, `note1…` and `nevent1…`,
//! the Bech32 forms of NIP-19.

use crate::record::{Id, Key};

/// The characters of Bech32's data part; the index of a character is its value (BIP-173).
const CHARACTERS: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
/// The prefixes of public keys (`PUBLIC`) and secret keys (`SECRET`), before the separator `1`.
const PUBLIC: &[u8; 4] = b"npub";
const SECRET: &[u8; 4] = b"nsec";
/// The prefixes of an event's id, alone (`NOTE`) and with hints about its relays (`EVENT`).
const NOTE: &[u8; 4] = b"note";
const EVENT: &[u8; 6] = b"nevent";
/// Maximum number of characters of an `nevent1…` text.
const EVENT_CHARACTERS_MAX: usize = 2_000;
/// Number of characters of a key: 32 bytes, five bits in each character.
const KEY_CHARACTERS: usize = 52;
/// Number of characters of the checksum.
const CHECKSUM_CHARACTERS: usize = 6;

/// Returns the key of an `npub1…` text, in lower or in upper case. Returns `None` for mixed case,
/// and if the prefix, the length, a character, the checksum or the padding is wrong.
///
/// ```
/// use hark_codec::{hex, nostr::npub};
///
/// let npub = "npub180cvv07tjdrrgpa0j7j7tmnyl2yr6yr7l8j4s3evf6u64th6gkwsyjh6w6";
/// let key = hex::decode_32(b"3bf0c63fcb93463407af97a5e5ee64fa883d107ef9e558472c4eb9aaaefa459d");
/// assert!(key.is_some() && npub::decode(npub) == key);
/// assert_eq!(npub::decode(&npub.replace('7', "8")), None);
/// ```
pub fn decode(text: &str) -> Option<Key> {
    decode_as(text, *PUBLIC)
}

/// Returns the `npub1…` text of a key.
///
/// ```
/// use hark_codec::nostr::npub;
///
/// assert_eq!(npub::decode(&npub::encode(&[7; 32])), Some([7; 32]));
/// ```
pub fn encode(key: &Key) -> String {
    let mut values = [0; KEY_CHARACTERS + CHECKSUM_CHARACTERS];
    let (mut bits, mut count, mut bytes) = (0_u32, 0, key.iter());
    for value in values.iter_mut().take(KEY_CHARACTERS) {
        if count < 5 {
            // The last character has only one bit of the key.
            bits = (bits << 8 | u32::from(bytes.next().copied().unwrap_or(0))) & 0xffff;
            count += 8;
        }
        count -= 5;
        *value = (bits >> count & 31) as u8;
    }
    let sum = checksum(PUBLIC, &values) ^ 1;
    for (at, value) in values.iter_mut().skip(KEY_CHARACTERS).enumerate() {
        *value = (sum >> (5 * (CHECKSUM_CHARACTERS - 1 - at)) & 31) as u8;
    }
    let prefix = PUBLIC.iter().chain(b"1").copied();
    let data = values.iter().map(|value| CHARACTERS[usize::from(*value)]);
    prefix.chain(data).map(char::from).collect()
}

/// Returns the secret key of an `nsec1…` text. Returns `None` in the same cases as [`decode`].
pub fn decode_secret(text: &str) -> Option<[u8; 32]> {
    decode_as(text, *SECRET)
}

/// Returns the id of a `note1…` or `nevent1…` text. Returns `None` in the same cases as [`decode`],
/// and for an `nevent1…` text without an id. Hints about relays, authors and kinds are ignored.
///
/// ```
/// use hark_codec::{hex, nostr::npub};
///
/// let id = hex::decode_32(b"46d731680add2990efe1cc619dc9b8014feeb23261ab9dee50e9d11814de5a2b");
/// let note = "note1gmtnz6q2m55epmlpe3semjdcq987av3jvx4emmjsa8g3s9x7tg4sclreky";
/// assert!(id.is_some() && npub::decode_id(note) == id);
/// ```
pub fn decode_id(text: &str) -> Option<Id> {
    decode_as(text, *NOTE).or_else(|| decode_event(text))
}

/// Returns the id of an `nevent1…` text: the first field of type 0 in its list of fields.
fn decode_event(text: &str) -> Option<Id> {
    let data = data_part(text, EVENT)?;
    if text.len() > EVENT_CHARACTERS_MAX || data.len() < CHECKSUM_CHARACTERS {
        return None;
    }
    let values: Vec<u8> = data.iter().map(|byte| value_of(*byte)).collect::<Option<_>>()?;
    if checksum(EVENT, &values) != 1 {
        return None;
    }
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for value in &values[..values.len() - CHECKSUM_CHARACTERS] {
        bits = (bits << 5 | u32::from(*value)) & 0xfff;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    let mut fields = &bytes[..];
    loop {
        let ([kind, len], rest) = fields.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(usize::from(*len))?;
        if *kind == 0 {
            return value.try_into().ok();
        }
        fields = rest;
    }
}

/// Returns the part of `text` after the separator. Returns `None` for mixed case, and if the prefix
/// is not `wanted`.
fn data_part<'t>(text: &'t str, wanted: &[u8]) -> Option<&'t [u8]> {
    let has = |is: fn(&u8) -> bool| text.as_bytes().iter().any(is);
    if has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase) {
        return None;
    }
    let (prefix, data) = text.as_bytes().split_at_checked(wanted.len() + 1)?;
    let named = prefix.iter().map(u8::to_ascii_lowercase).eq(wanted.iter().copied().chain(*b"1"));
    named.then_some(data)
}

/// Returns the value of a character.
fn value_of(byte: u8) -> Option<u8> {
    let at = CHARACTERS.iter().position(|known| *known == byte.to_ascii_lowercase())?;
    u8::try_from(at).ok()
}

fn decode_as(text: &str, wanted: [u8; 4]) -> Option<[u8; 32]> {
    let data = data_part(text, &wanted)?;
    if data.len() != KEY_CHARACTERS + CHECKSUM_CHARACTERS {
        return None;
    }
    let mut values = [0; KEY_CHARACTERS + CHECKSUM_CHARACTERS];
    for (value, byte) in values.iter_mut().zip(data) {
        *value = value_of(*byte)?;
    }
    if checksum(&wanted, &values) != 1 {
        return None;
    }
    let mut key = [0; 32];
    let (mut bits, mut count, mut next) = (0_u32, 0, key.iter_mut());
    for value in values.iter().take(KEY_CHARACTERS) {
        bits = (bits << 5 | u32::from(*value)) & 0xfff;
        count += 5;
        if count >= 8 {
            count -= 8;
            *next.next()? = (bits >> count & 0xff) as u8;
        }
    }
    // 52 characters encode 260 bits, four more than the key has. These four bits must be zero.
    (bits & ((1 << count) - 1) == 0).then_some(key)
}

/// Computes the checksum function of Bech32 (`polymod` in BIP-173) over prefix, data and checksum.
/// The result is 1 for a valid text.
fn checksum(prefix: &[u8], values: &[u8]) -> u32 {
    const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    let high = prefix.iter().map(|byte| byte >> 5);
    let low = prefix.iter().map(|byte| byte & 31);
    let all = high.chain([0]).chain(low).chain(values.iter().copied());
    all.fold(1, |sum: u32, value| {
        let top = sum >> 25;
        let shifted = (sum & 0x01ff_ffff) << 5 ^ u32::from(value);
        GENERATOR
            .iter()
            .enumerate()
            .filter(|(bit, _)| top >> bit & 1 == 1)
            .fold(shifted, |sum, (_, generator)| sum ^ generator)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    #[test]
    fn ids_are_read_alone_and_with_hints() {
        let id =
            hex::decode_32(b"b9f5441e45ca39179320e0031cfb18e34078673dcc3d3e3a3b3a981760aa5696");
        let event = "nevent1qqstna2yrezu5wghjvswqqculvvwxsrcvu7uc0f78gan4xqhvz49d9spr3mhxue69uhkummnw3ez6un9d3shjtn4de6x2argwghx6egpr4mhxue69uhkummnw3ez6ur4vgh8wetvd3hhyer9wghxuet5nxnepm";
        assert_eq!(decode_id(event), id);
        assert_eq!(decode_id(&event.to_uppercase()), id);
        for at in 0..event.len() {
            let wrong =
                [&event[..at], if &event[at..=at] == "q" { "p" } else { "q" }, &event[at + 1..]];
            assert_eq!(decode_id(&wrong.concat()), None, "{at}");
        }
        for text in ["", "note1", "nevent1", "nevent1qqqqqq", "note1é"] {
            assert_eq!(decode_id(text), None, "{text}");
        }
    }

    #[test]
    fn keys_are_read_as_nip_19_writes_them_and_typing_mistakes_are_found() {
        for (npub, key) in [
            (
                "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg",
                "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e",
            ),
            (
                "npub180cvv07tjdrrgpa0j7j7tmnyl2yr6yr7l8j4s3evf6u64th6gkwsyjh6w6",
                "3bf0c63fcb93463407af97a5e5ee64fa883d107ef9e558472c4eb9aaaefa459d",
            ),
        ] {
            assert_eq!(decode(npub), hex::decode_32(key.as_bytes()), "{npub}");
            assert_eq!(decode(npub).as_ref().map(encode).as_deref(), Some(npub));
            assert_eq!(decode(&npub.to_uppercase()), decode(npub));
            for at in 0..npub.len() {
                let mut wrong = npub.to_owned().into_bytes();
                wrong[at] = if wrong[at] == b'q' { b'p' } else { b'q' };
                assert_eq!(decode(str::from_utf8(&wrong).unwrap()), None, "character {at}");
                assert_eq!(decode(&npub[..at]), None);
            }
            assert_eq!(decode(&npub.replacen('e', "E", 1)), None);
            assert_eq!(decode(&format!("{npub}q")), None);
        }
        let nsec = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5";
        let secret = b"67dea2ed018072d675f5415ecfaed7d2597555e202d85b3d65ea4e58d2d92ffa";
        assert_eq!(decode_secret(nsec), hex::decode_32(secret));
        assert_eq!(decode(nsec), None);
        for text in ["", "npub", "npub1", "nsec1", "é", "npub1ééééééééééééééééééééééééééééé"]
        {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
