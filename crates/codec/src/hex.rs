//! Encodes and decodes lowercase hex. Uppercase is refused, because an id has only one spelling in
//! NIP-01.
//!
//! The unsafe code is sound because every load and store accesses an array whose size is part of
//! its type.
#![allow(unsafe_code)]
// This file uses only unaligned loads and stores.
#![allow(clippy::cast_ptr_alignment)]

/// Returns the hex of 32 bytes.
#[inline]
pub fn encode_32(bytes: &[u8; 32]) -> [u8; 64] {
    let mut out = [0; 64];
    encode(bytes, &mut out);
    out
}

/// Returns the hex of 32 bytes as text.
///
/// ```
/// assert_eq!(hark_codec::hex::text_32(&[0xab; 32]), "ab".repeat(32));
/// ```
pub fn text_32(bytes: &[u8; 32]) -> String {
    String::from_utf8_lossy(&encode_32(bytes)).into_owned()
}

/// Returns the hex of 64 bytes.
#[inline]
pub fn encode_64(bytes: &[u8; 64]) -> [u8; 128] {
    let mut out = [0; 128];
    encode(bytes, &mut out);
    out
}

/// Appends the hex of any bytes to `out`.
pub fn encode_into(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bytes.len() * 2, 0);
    encode(bytes, &mut out[start..]);
}

/// Reads exactly 64 lowercase hex characters.
///
/// ```
/// use hark_codec::hex::{decode_32, encode_32};
///
/// let digits = encode_32(&[0xab; 32]);
/// assert_eq!(decode_32(&digits), Some([0xab; 32]));
/// assert_eq!(decode_32(&digits.to_ascii_uppercase()), None);
/// assert_eq!(decode_32(&digits[2..]), None);
/// ```
#[inline]
pub fn decode_32(hex: &[u8]) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    decode(hex.first_chunk::<64>().filter(|_| hex.len() == 64)?, &mut out).then_some(out)
}

/// Whether the text consists of 64 lowercase hex digits, as keys and ids do.
#[inline]
pub fn is_hex_64(text: &[u8]) -> bool {
    const LETTERS: u8 = b'a' - b'0' - 10;
    let (blocks, rest) = text.as_chunks::<16>();
    if blocks.len() != 4 || !rest.is_empty() {
        return false;
    }
    // The compiler tests 16 bytes at once. A hex digit is at most `f - '0'` above the digit 0. With
    // the ten digits subtracted and the result wrapped, a letter is at least as far as `a`; all
    // bytes between the digits and the letters are nearer.
    let (mut highest, mut lowest) = ([0; 16], [u8::MAX; 16]);
    for block in blocks {
        for ((byte, highest), lowest) in block.iter().zip(&mut highest).zip(&mut lowest) {
            let distance = byte.wrapping_sub(b'0');
            *highest = distance.max(*highest);
            *lowest = distance.saturating_sub(9).wrapping_sub(1).min(*lowest);
        }
    }
    let far = |bad: u8, distance: &u8| bad | u8::from(*distance > b'f' - b'0');
    let near = |bad: u8, distance: &u8| bad | u8::from(*distance < LETTERS);
    highest.iter().fold(0, far) | lowest.iter().fold(0, near) == 0
}

/// Reads exactly 128 lowercase hex characters.
#[inline]
pub fn decode_64(hex: &[u8]) -> Option<[u8; 64]> {
    let mut out = [0; 64];
    decode(hex.first_chunk::<128>().filter(|_| hex.len() == 128)?, &mut out).then_some(out)
}

/// Appends the bytes that `hex` encodes to `out`. Returns false, and appends nothing, if `hex` is
/// not lowercase hex of whole bytes.
pub fn decode_into(hex: &[u8], out: &mut Vec<u8>) -> bool {
    if !hex.len().is_multiple_of(2) {
        return false;
    }
    let start = out.len();
    out.resize(start + hex.len() / 2, 0);
    let good = decode(hex, &mut out[start..]);
    if !good {
        out.truncate(start);
    }
    good
}

/// Writes the hex of `bytes` to `out`, which is twice as long.
#[inline]
fn encode(bytes: &[u8], out: &mut [u8]) {
    let (blocks, rest) = bytes.as_chunks::<16>();
    let (out_blocks, out_rest) = out.as_chunks_mut::<32>();
    for (block, hex) in blocks.iter().zip(out_blocks) {
        encode_block(block, hex);
    }
    for (byte, pair) in rest.iter().zip(out_rest.as_chunks_mut::<2>().0) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
}

/// Decodes `hex` into `out`, which is half as long. Returns false if `hex` is not lowercase hex.
#[inline]
fn decode(hex: &[u8], out: &mut [u8]) -> bool {
    let (blocks, rest) = hex.as_chunks::<32>();
    let (out_blocks, out_rest) = out.as_chunks_mut::<16>();
    let mut good = true;
    for (block, bytes) in blocks.iter().zip(out_blocks) {
        good &= decode_block(block, bytes);
    }
    for (pair, byte) in rest.as_chunks::<2>().0.iter().zip(out_rest) {
        let (high, low) = (nibble(pair[0]), nibble(pair[1]));
        good &= (high | low) < 16;
        *byte = high << 4 | low & 15;
    }
    good
}

#[inline]
const fn digit(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }
}

/// Returns the value of a lowercase hex digit, 0 to 15, or 255 for any other byte.
#[inline]
const fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => 255,
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn encode_block(bytes: &[u8; 16], out: &mut [u8; 32]) {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi8, _mm_and_si128, _mm_cmpgt_epi8, _mm_loadu_si128, _mm_set1_epi8,
        _mm_srli_epi16, _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8,
    };
    // SAFETY: SSE2 is part of x86-64; the loads and stores do not exceed the arrays.
    unsafe {
        let low_bits = _mm_set1_epi8(15);
        let all = _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>());
        let high = _mm_and_si128(_mm_srli_epi16::<4>(all), low_bits);
        let low = _mm_and_si128(all, low_bits);
        let to_digits = |nibbles| {
            let letter = _mm_cmpgt_epi8(nibbles, _mm_set1_epi8(9));
            let shift = _mm_and_si128(letter, _mm_set1_epi8(39));
            _mm_add_epi8(_mm_add_epi8(nibbles, _mm_set1_epi8(48)), shift)
        };
        let to = out.as_mut_ptr().cast::<__m128i>();
        _mm_storeu_si128(to, to_digits(_mm_unpacklo_epi8(high, low)));
        _mm_storeu_si128(to.add(1), to_digits(_mm_unpackhi_epi8(high, low)));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn decode_block(hex: &[u8; 32], out: &mut [u8; 16]) -> bool {
    use std::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8,
        _mm_or_si128, _mm_packus_epi16, _mm_set1_epi8, _mm_set1_epi16, _mm_slli_epi16,
        _mm_srli_epi16, _mm_storeu_si128, _mm_sub_epi8,
    };
    // SAFETY: SSE2 is part of x86-64; the loads and stores do not exceed the arrays.
    unsafe {
        // The values of 16 digits, and a mask that shows which bytes are digits.
        let nibbles = |digits| {
            let decimal = _mm_sub_epi8(digits, _mm_set1_epi8(48));
            let letter = _mm_sub_epi8(digits, _mm_set1_epi8(97));
            let is_decimal = _mm_cmpeq_epi8(_mm_min_epu8(decimal, _mm_set1_epi8(9)), decimal);
            let is_letter = _mm_cmpeq_epi8(_mm_min_epu8(letter, _mm_set1_epi8(5)), letter);
            let ten = _mm_sub_epi8(letter, _mm_set1_epi8(-10));
            let value =
                _mm_or_si128(_mm_and_si128(is_decimal, decimal), _mm_and_si128(is_letter, ten));
            (value, _mm_or_si128(is_decimal, is_letter))
        };
        // Each pair of digits is one little-endian lane of 16 bits: the high digit comes first.
        let join = |pairs| {
            let both = _mm_or_si128(_mm_slli_epi16::<4>(pairs), _mm_srli_epi16::<8>(pairs));
            _mm_and_si128(both, _mm_set1_epi16(255))
        };
        let from = hex.as_ptr().cast::<__m128i>();
        let (first, first_good) = nibbles(_mm_loadu_si128(from));
        let (second, second_good) = nibbles(_mm_loadu_si128(from.add(1)));
        let bytes = _mm_packus_epi16(join(first), join(second));
        _mm_storeu_si128(out.as_mut_ptr().cast::<__m128i>(), bytes);
        _mm_movemask_epi8(_mm_and_si128(first_good, second_good)) == 0xffff
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn encode_block(bytes: &[u8; 16], out: &mut [u8; 32]) {
    for (byte, pair) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn decode_block(hex: &[u8; 32], out: &mut [u8; 16]) -> bool {
    let mut good = true;
    for (pair, byte) in hex.as_chunks::<2>().0.iter().zip(out) {
        let (high, low) = (nibble(pair[0]), nibble(pair[1]));
        good &= (high | low) < 16;
        *byte = high << 4 | low & 15;
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_byte_at_every_place_of_64() {
        let good = [b'7'; 64];
        for place in 0..64 {
            for byte in 0..=255 {
                let mut hex = good;
                hex[place] = byte;
                let expected = (nibble(byte) < 16).then(|| {
                    let mut bytes = [0x77; 32];
                    let shift = if place % 2 == 0 { 4 } else { 0 };
                    bytes[place / 2] &= !(15 << shift);
                    bytes[place / 2] |= nibble(byte) << shift;
                    bytes
                });
                assert_eq!(decode_32(&hex), expected, "{byte:#x} at {place}");
                assert_eq!(is_hex_64(&hex), expected.is_some(), "{byte:#x} at {place}");
            }
        }
    }

    #[test]
    fn only_the_exact_length_and_case() {
        assert_eq!(decode_32(&[b'a'; 63]), None);
        assert_eq!(decode_32(&[b'a'; 65]), None);
        assert_eq!(decode_32(&[b'A'; 64]), None);
        assert!([0, 16, 63, 65, 80].iter().all(|len| !is_hex_64(&vec![b'a'; *len])));
        assert_eq!(decode_64(&[b'0'; 127]), None);
        assert_eq!(decode_64(&[b'0'; 129]), None);
        let mut out = vec![1];
        assert!(!decode_into(b"0", &mut out) && !decode_into(b"0g", &mut out));
        assert_eq!(out, [1]);
    }

    proptest! {
        #[test]
        fn there_and_back(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut hex = Vec::new();
            encode_into(&bytes, &mut hex);
            let plain: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            prop_assert_eq!(str::from_utf8(&hex).unwrap(), plain.concat());
            let mut back = Vec::new();
            prop_assert!(decode_into(&hex, &mut back));
            prop_assert_eq!(&back, &bytes);
            if let Some(first) = bytes.first_chunk::<32>() {
                prop_assert_eq!(decode_32(&encode_32(first)), Some(*first));
            }
            if let Some(first) = bytes.first_chunk::<64>() {
                prop_assert_eq!(decode_64(&encode_64(first)), Some(*first));
            }
        }
    }
}
