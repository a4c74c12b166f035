//! HyperLogLog (NIP-45): an estimate of how many different authors an answer has, in a form that
//! clients can merge with the estimates of other relays. The NIP defines the bytes.

use hark_archive::Key;
use hark_codec::crypto::sha256;
use hark_codec::hex;
use hark_codec::nostr::Filter;

/// The questions that the NIP names, by kind and tag: reactions, reposts, replies, quotes,
/// comments, followers.
const SHAPES: [(u8, &[u16]); 6] =
    [(b'e', &[7]), (b'e', &[6]), (b'e', &[1]), (b'q', &[1, 1111]), (b'E', &[1111]), (b'p', &[3])];

pub(super) struct HyperLogLog {
    /// Index of the byte of an author's key that selects the register.
    offset: usize,
    registers: Box<[u8; 256]>,
}

impl HyperLogLog {
    /// Creates the estimate for a question of one of the [`SHAPES`]. `None` for other questions,
    /// for which the NIP defines no estimate.
    pub(super) fn of(filters: &[Filter]) -> Option<Self> {
        let [filter] = filters else { return None };
        let narrowed = filter.ids().is_some()
            || filter.authors().is_some()
            || filter.since().is_some()
            || filter.until().is_some()
            || filter.search().is_some()
            || filter.and_tags().next().is_some();
        let mut tags = filter.tags();
        let (Some((letter, values)), None) = (tags.next(), tags.next()) else { return None };
        let named = SHAPES.iter().any(|shape| Some(*shape) == Some(letter).zip(filter.kinds()));
        if narrowed || !named || values.len() != 1 {
            return None;
        }
        let offset = offset(values.iter().next()?);
        Some(Self { offset, registers: Box::new([0; 256]) })
    }

    /// Counts an author.
    pub(super) fn add(&mut self, author: &Key) {
        let rest = &author[self.offset + 1..];
        let zeros = rest.iter().take_while(|byte| **byte == 0).count();
        let bits = rest.get(zeros).map_or(0, |byte| byte.leading_zeros() as usize);
        let register = &mut self.registers[usize::from(author[self.offset])];
        *register = (*register).max((zeros * 8 + bits + 1) as u8);
    }

    pub(super) fn registers(&self) -> &[u8; 256] {
        &self.registers
    }
}

/// Returns the register offset of a tag value: 8 plus the value of the 33rd hex digit. The digits
/// are taken from an id or a public key itself, from the public key in an address, or from the hash
/// of any other value.
fn offset(value: &str) -> usize {
    let mut parts = value.split(':');
    let address_key = parts.nth(1).filter(|_| parts.next().is_some());
    let known = hex::decode_32(value.as_bytes())
        .or_else(|| hex::decode_32(address_key?.as_bytes()))
        .unwrap_or_else(|| sha256(value.as_bytes()));
    usize::from(known[16] >> 4) + 8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hll(json: &str) -> Option<HyperLogLog> {
        let mut filter = Filter::default();
        filter.parse(json.as_bytes()).unwrap();
        HyperLogLog::of(&[filter])
    }

    #[test]
    fn only_the_shapes_of_the_nip_have_one() {
        let id = "ab".repeat(32);
        let with = |rest: &str| hll(&rest.replace('X', &id)).is_some();
        for yes in [
            r##"{"#e":["X"],"kinds":[7]}"##,
            r##"{"kinds":[6],"#e":["X"]}"##,
            r##"{"#e":["X"],"kinds":[1],"limit":1}"##,
            r##"{"#q":["30023:X:d"],"kinds":[1111,1]}"##,
            r##"{"#E":["X"],"kinds":[1111]}"##,
            r##"{"#p":["X"],"kinds":[3]}"##,
        ] {
            assert!(with(yes), "{yes}");
        }
        for no in [
            "{}",
            r##"{"#e":["X"]}"##,
            r##"{"#e":["X"],"kinds":[7,6]}"##,
            r##"{"#e":["X"],"kinds":[3]}"##,
            r##"{"#q":["X"],"kinds":[1]}"##,
            r##"{"#E":["X","Y"],"kinds":[1111]}"##,
            r##"{"#p":["X"],"kinds":[3],"#t":["a"]}"##,
            r##"{"#p":["X"],"kinds":[3],"since":1}"##,
            r##"{"#p":["X"],"kinds":[3],"authors":["X"]}"##,
        ] {
            assert!(!with(no), "{no}");
        }
    }

    #[test]
    fn the_offset_comes_from_the_id_the_address_key_or_a_hash() {
        let mut id = "0".repeat(64);
        id.replace_range(32..33, "c");
        assert_eq!(offset(&id), 20);
        assert_eq!(offset(&format!("30023:{id}:a:b")), 20);
        assert_eq!(offset(&format!("0:{id}:")), 20);
        assert_eq!(offset("hark"), 16);
        let digit = |text: &str| usize::from(sha256(text.as_bytes())[16] >> 4) + 8;
        for text in ["", ":", "a:b", "1:2:3", &id[1..], &format!("{id}:{id}")] {
            assert_eq!(offset(text), digit(text), "{text:?}");
        }
    }

    #[test]
    fn a_register_keeps_the_longest_run_of_zeros_and_one() {
        let mut hll = HyperLogLog { offset: 8, registers: Box::new([0; 256]) };
        let key = |register: u8, rest: [u8; 3]| {
            let mut key = [0xff; 32];
            (key[8], key[9], key[10], key[11]) = (register, rest[0], rest[1], rest[2]);
            key
        };
        hll.add(&key(5, [0x80, 0, 0]));
        assert_eq!(hll.registers[5], 1);
        hll.add(&key(5, [0, 0x10, 0]));
        hll.add(&key(5, [0x40, 0, 0]));
        assert_eq!(hll.registers[5], 12);
        hll.add(&key(0, [0, 0, 0]));
        assert_eq!(hll.registers[0], 25, "all that follows counts");
        hll.add(&[0; 32]);
        assert_eq!(hll.registers[0], 23 * 8 + 1, "up to the end of the key");
        assert_eq!(hll.registers.iter().filter(|register| **register > 0).count(), 2);
    }
}
