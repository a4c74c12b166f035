//! The part of RLP, the encoding of Ethereum's messages, that Whisper uses: byte strings, numbers
//! and lists.
//!
//! Crates for RLP exist, such as alloy-rlp. Hark has its own code for two reasons. An envelope is
//! stored as received and found by the hash of its bytes, so the reader must accept only one
//! encoding of a value. And the reader must borrow from the received bytes. The code is short, and
//! the tests compare it with alloy-rlp.
//!
//! A byte below 0x80 stands for itself. Otherwise the first byte shows both the kind and the length
//! of the item: `0x80 + n` begins a string of n bytes, and `0xc0 + n` begins a list of n bytes,
//! where n is at most 55. For longer content, `0xb7 + m` begins a string and `0xf7 + m` begins a
//! list; then the length follows in m bytes. Lengths and numbers are big-endian and as short as
//! possible; the number 0 is the empty string. A reader returns a nested list unread, and the
//! caller reads its items.

/// Maximum length of a string or list whose length is in its first byte.
const SHORT_MAX: usize = 55;
const STRING: u8 = 0x80;
const LIST: u8 = 0xc0;

/// Why bytes are not the RLP that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RlpError {
    /// An item reaches beyond the end.
    #[error("an item is cut short")]
    Short,
    /// The list ends before the item that is expected.
    #[error("a list has too few items")]
    Missing,
    /// Bytes follow the last item that is expected.
    #[error("a list has too many items, or bytes follow it")]
    Excess,
    /// A length has leading zeros, or would fit into the first byte, or belongs to a single byte
    /// below 0x80.
    #[error("an item's length is not as short as it can be")]
    Length,
    /// A number has leading zeros.
    #[error("a number has leading zeros")]
    Zeros,
    /// A number has more bits than its field, or a flag is neither 0 nor 1.
    #[error("a number is too large")]
    Large,
    /// A string where a list is expected.
    #[error("there are bytes where a list is expected")]
    NoList,
    /// A list where a string is expected.
    #[error("there is a list where bytes are expected")]
    NoBytes,
    /// A string has the wrong length for its field; the values are the string's length and the
    /// field's length.
    #[error("an item has {0} bytes instead of {1}")]
    Width(usize, usize),
}

/// The items of a list that are still to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RlpItems<'a>(&'a [u8]);

impl<'a> RlpItems<'a> {
    /// Reads items that follow each other without an enclosing list.
    pub fn of_sequence(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The items of a list. `bytes` must be exactly one list.
    pub fn of_list(bytes: &'a [u8]) -> Result<Self, RlpError> {
        let mut all = Self(bytes);
        let items = all.list()?;
        all.end()?;
        Ok(items)
    }

    /// The content of a string. `bytes` must be exactly one string.
    pub fn of_string(bytes: &'a [u8]) -> Result<&'a [u8], RlpError> {
        let mut all = Self(bytes);
        let string = all.bytes()?;
        all.end()?;
        Ok(string)
    }

    /// Whether all items have been read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The encoded bytes of the items that are still to be read.
    pub fn remaining(&self) -> &'a [u8] {
        self.0
    }

    /// Whether the next item is a list.
    pub fn next_is_list(&self) -> bool {
        self.0.first().is_some_and(|first| *first >= LIST)
    }

    /// Checks that all items have been read.
    pub fn end(&self) -> Result<(), RlpError> {
        if self.is_empty() { Ok(()) } else { Err(RlpError::Excess) }
    }

    /// Reads a string.
    pub fn bytes(&mut self) -> Result<&'a [u8], RlpError> {
        if self.next_is_list() { Err(RlpError::NoBytes) } else { self.item() }
    }

    /// Reads a string of `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], RlpError> {
        let bytes = self.bytes()?;
        bytes.try_into().map_err(|_| RlpError::Width(bytes.len(), N))
    }

    /// Reads a list.
    pub fn list(&mut self) -> Result<Self, RlpError> {
        if !self.0.is_empty() && !self.next_is_list() {
            return Err(RlpError::NoList);
        }
        self.item().map(Self)
    }

    /// Reads a number of up to 64 bits.
    pub fn uint64(&mut self) -> Result<u64, RlpError> {
        let bytes = self.bytes()?;
        match bytes.first() {
            Some(0) => Err(RlpError::Zeros),
            _ => number(bytes).ok_or(RlpError::Large),
        }
    }

    /// Reads a number of up to 32 bits.
    pub fn uint32(&mut self) -> Result<u32, RlpError> {
        u32::try_from(self.uint64()?).map_err(|_| RlpError::Large)
    }

    /// Reads a flag: the number 0 or 1.
    pub fn flag(&mut self) -> Result<bool, RlpError> {
        let number = self.uint64()?;
        if number > 1 { Err(RlpError::Large) } else { Ok(number == 1) }
    }

    /// Reads an item of either kind, and returns its encoded bytes, including its length. The
    /// content of a list is not checked.
    pub fn raw(&mut self) -> Result<&'a [u8], RlpError> {
        let all = self.0;
        self.item()?;
        let (item, _) = all.split_at_checked(all.len() - self.0.len()).ok_or(RlpError::Short)?;
        Ok(item)
    }

    /// Reads an item of either kind and returns its content.
    fn item(&mut self) -> Result<&'a [u8], RlpError> {
        let (&first, mut rest) = self.0.split_first().ok_or(RlpError::Missing)?;
        if first < STRING {
            let (byte, rest) = self.0.split_at(1);
            self.0 = rest;
            return Ok(byte);
        }
        let mut len = usize::from(first - if first < LIST { STRING } else { LIST });
        if len > SHORT_MAX {
            let (digits, behind) = rest.split_at_checked(len - SHORT_MAX).ok_or(RlpError::Short)?;
            let long = number(digits).filter(|len| *len > SHORT_MAX as u64 && digits[0] != 0);
            len = usize::try_from(long.ok_or(RlpError::Length)?).map_err(|_| RlpError::Short)?;
            rest = behind;
        }
        let (content, rest) = rest.split_at_checked(len).ok_or(RlpError::Short)?;
        if first == STRING + 1 && content[0] < STRING {
            return Err(RlpError::Length);
        }
        self.0 = rest;
        Ok(content)
    }
}

/// A big-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> Option<u64> {
    let fits = bytes.len() <= size_of::<u64>();
    fits.then(|| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// A destination for RLP: a buffer that grows, or a hash.
pub trait RlpSink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl RlpSink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl RlpSink for sha3::Keccak256 {
    fn put(&mut self, bytes: &[u8]) {
        sha3::Digest::update(self, bytes);
    }
}

/// Appends a string.
pub fn put_bytes(out: &mut impl RlpSink, bytes: &[u8]) {
    match bytes {
        [byte] if *byte < STRING => {}
        _ => put_string(out, bytes.len()),
    }
    out.put(bytes);
}

/// Appends the header of a string of `len` bytes. The caller then appends the content. A single
/// byte below 0x80 must not have a header.
pub fn put_string(out: &mut impl RlpSink, len: usize) {
    put_head(out, STRING, len);
}

/// Appends a number.
pub fn put_number(out: &mut impl RlpSink, number: u64) {
    put_bytes(out, digits(&number.to_be_bytes()));
}

/// Appends the header of a list whose items have `len` bytes in total. The caller then appends the
/// items.
pub fn put_list(out: &mut impl RlpSink, len: usize) {
    put_head(out, LIST, len);
}

fn put_head(out: &mut impl RlpSink, kind: u8, len: usize) {
    if len <= SHORT_MAX {
        return out.put(&[kind + len as u8]);
    }
    let bytes = (len as u64).to_be_bytes();
    let digits = digits(&bytes);
    out.put(&[kind + (SHORT_MAX + digits.len()) as u8]);
    out.put(digits);
}

/// A big-endian number without its leading zeros.
fn digits(bytes: &[u8; 8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

/// Length of an encoded string.
pub fn bytes_len(bytes: &[u8]) -> usize {
    match bytes {
        [byte] if *byte < STRING => 1,
        _ => head_len(bytes.len()) + bytes.len(),
    }
}

/// Length of an encoded number.
pub fn number_len(number: u64) -> usize {
    bytes_len(digits(&number.to_be_bytes()))
}

/// Length of the header of a string or list whose content has `len` bytes.
pub fn head_len(len: usize) -> usize {
    if len <= SHORT_MAX { 1 } else { 1 + digits(&(len as u64).to_be_bytes()).len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    fn bytes(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(hex::decode_into(text.to_lowercase().as_bytes(), &mut out));
        out
    }

    /// From go-ethereum's rlp/encode_test.go.
    #[test]
    fn values_are_spelled_as_go_ethereum_spells_them() {
        for (number, encoded) in [
            (0, "80"),
            (127, "7F"),
            (128, "8180"),
            (256, "820100"),
            (1024, "820400"),
            (0xff_ffff, "83FFFFFF"),
            (0xffff_ffff, "84FFFFFFFF"),
            (0xff_ffff_ffff, "85FFFFFFFFFF"),
            (u64::MAX, "88FFFFFFFFFFFFFFFF"),
        ] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            assert_eq!((&out, number_len(number)), (&bytes(encoded), out.len()));
            assert_eq!(RlpItems(&out).uint64(), Ok(number));
        }
        let text = b"Lorem ipsum dolor sit amet, consectetur adipisicing elit";
        for (string, head) in [
            (&b""[..], "80"),
            (b"\x00", ""),
            (b"\x7f", ""),
            (b"\x80", "81"),
            (b"dog", "83"),
            (&text[..55], "B7"),
            (text, "B838"),
            (&[7; 1024], "B90400"),
        ] {
            let mut out = Vec::new();
            put_bytes(&mut out, string);
            assert_eq!((&out, bytes_len(string)), (&[&bytes(head), string].concat(), out.len()));
            assert_eq!(RlpItems::of_string(&out), Ok(string));
        }
        // These bytes stand for [ [], [[]], [ [], [[]] ] ].
        let nested = bytes("C7C0C1C0C3C0C1C0");
        let mut items = RlpItems::of_list(&nested).unwrap();
        assert!(items.list().unwrap().is_empty());
        assert_eq!(items.list(), Ok(RlpItems(&[0xc0])));
        assert_eq!(items.list(), Ok(RlpItems(&[0xc0, 0xc1, 0xc0])));
        assert_eq!((items.end(), items.list()), (Ok(()), Err(RlpError::Missing)));
    }

    #[test]
    fn items_are_read_raw_and_one_after_another() {
        let all = bytes("C0C20102826162 05 8180".replace(' ', "").as_str());
        let mut items = RlpItems::of_sequence(&all);
        for item in ["C0", "C20102", "826162", "05", "8180"] {
            assert_eq!(items.raw(), Ok(&bytes(item)[..]));
        }
        assert_eq!((items.raw(), items.end()), (Err(RlpError::Missing), Ok(())));
        assert_eq!(RlpItems::of_sequence(&[0xc2, 1]).raw(), Err(RlpError::Short));
    }

    /// From go-ethereum's rlp/decode_test.go.
    #[test]
    fn other_spellings_are_refused() {
        use RlpError::{Excess, Large, Length, Missing, NoBytes, NoList, Short, Zeros};
        for (encoded, fault) in [
            ("C0", NoBytes),
            ("89000000000000000001", Zeros),
            ("89010000000000000001", Large),
            ("00", Zeros),
            ("820002", Zeros),
            ("8133", Length),
            ("817F", Length),
            ("8100", Length),
            ("B800", Length),
            ("B90000", Length),
            ("B90055", Length),
            ("BA0002FFFF", Length),
            ("B8020004", Length),
            ("", Missing),
            ("81", Short),
            ("B8", Short),
            ("BFFFFFFFFFFFFFFFFFFF", Short),
        ] {
            assert_eq!(RlpItems(&bytes(encoded)).uint64(), Err(fault), "{encoded}");
        }
        for (encoded, fault) in [
            ("", Missing),
            ("00", NoList),
            ("80", NoList),
            ("F800", Length),
            ("F90000", Length),
            ("F90055", Length),
            ("FA0002FFFF", Length),
            ("F8020004", Length),
            ("C801", Short),
            ("FFFFFFFFFFFFFFFFFF", Short),
            ("C000", Excess),
            ("C3010203C0", Excess),
        ] {
            assert_eq!(RlpItems::of_list(&bytes(encoded)), Err(fault), "{encoded}");
        }
        let inner = bytes("C8C9010101010101010101");
        assert_eq!(RlpItems(&inner).list().unwrap().list(), Err(Short));
        assert_eq!(RlpItems(&bytes("02")).flag(), Err(Large));
        assert_eq!(RlpItems(&bytes("850505050505")).uint32(), Err(Large));
        assert_eq!(RlpItems(&bytes("83646F67")).array::<4>(), Err(RlpError::Width(3, 4)));
        // After an error, the reader is still at the same item.
        let number = bytes("05");
        let mut items = RlpItems(&number);
        assert_eq!((items.list(), items.uint32()), (Err(NoList), Ok(5)));
    }
}
