//! Finds the next byte of a JSON string that needs attention: a quote, a backslash or a control
//! character. All other bytes are skipped, 16 at a time.
//!
//! The unsafe code is sound because every load lies within the slice; the offset is checked first.
#![allow(unsafe_code)]
// This file uses only unaligned loads.
#![allow(clippy::cast_ptr_alignment)]

/// Whether a byte cannot appear unescaped within a JSON string.
#[inline]
pub const fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Returns the index of the first special byte at or after `at`, or `bytes.len()` if there is none.
#[inline]
pub fn find_special(bytes: &[u8], at: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    return sse2::find(bytes, at);
    #[cfg(not(target_arch = "x86_64"))]
    return swar::find(bytes, at);
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128,
        _mm_set1_epi8,
    };

    /// Returns a mask with one bit for each of the 16 bytes from `at` on, set if the byte is
    /// special. `at + 16 <= bytes.len()` must hold.
    #[inline]
    fn specials(bytes: &[u8], at: usize) -> u32 {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: SSE2 is part of x86-64, and the caller has checked that `bytes` has 16 bytes from
        // `at` on.
        unsafe {
            let block = _mm_loadu_si128(bytes.as_ptr().add(at).cast::<__m128i>());
            let control = _mm_cmpeq_epi8(_mm_min_epu8(block, _mm_set1_epi8(0x1f)), block);
            let quote = _mm_cmpeq_epi8(block, _mm_set1_epi8(b'"'.cast_signed()));
            let backslash = _mm_cmpeq_epi8(block, _mm_set1_epi8(b'\\'.cast_signed()));
            _mm_movemask_epi8(_mm_or_si128(control, _mm_or_si128(quote, backslash))).cast_unsigned()
        }
    }

    #[inline]
    pub(super) fn find(bytes: &[u8], mut at: usize) -> usize {
        let len = bytes.len();
        // Testing two blocks per iteration halves the number of branches in long runs of hex or
        // text.
        while len.saturating_sub(at) >= 32 {
            let found = specials(bytes, at) | specials(bytes, at + 16) << 16;
            if found != 0 {
                return at + found.trailing_zeros() as usize;
            }
            at += 32;
        }
        if len.saturating_sub(at) >= 16 {
            let found = specials(bytes, at);
            if found != 0 {
                return at + found.trailing_zeros() as usize;
            }
            at += 16;
        }
        tail(bytes, at)
    }

    /// Searches the last bytes, of which there are fewer than 16.
    #[inline]
    fn tail(bytes: &[u8], at: usize) -> usize {
        let len = bytes.len();
        if at >= len {
            return len;
        }
        if len >= 16 {
            // The last 16 bytes of the slice are searched; the shift drops the bytes before `at`.
            let found = specials(bytes, len - 16) >> (at + 16 - len);
            return if found == 0 { len } else { at + found.trailing_zeros() as usize };
        }
        bytes[at..].iter().position(|&byte| super::is_special(byte)).map_or(len, |n| at + n)
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
mod swar {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;

    /// Returns a mask with the high bit set for each byte of `word` that is below `limit` (at most
    /// 0x80). Bits of the mask above the first hit may be wrong, but the search only needs the
    /// first hit.
    const fn below(word: u64, limit: u64) -> u64 {
        word.wrapping_sub(ONES * limit) & !word & HIGH
    }

    pub(super) fn find(bytes: &[u8], mut at: usize) -> usize {
        while let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            let word = u64::from_le_bytes(*eight);
            let found = below(word, 0x20)
                | below(word ^ (ONES * u64::from(b'"')), 1)
                | below(word ^ (ONES * u64::from(b'\\')), 1);
            if found != 0 {
                return at + found.trailing_zeros() as usize / 8;
            }
            at += 8;
        }
        let rest = bytes.get(at..).unwrap_or_default();
        rest.iter().position(|&byte| super::is_special(byte)).map_or(bytes.len(), |n| at + n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn oracle(bytes: &[u8], at: usize) -> usize {
        (at..bytes.len()).find(|&n| is_special(bytes[n])).unwrap_or(bytes.len())
    }

    #[test]
    fn every_byte_at_every_place() {
        for len in 1..70 {
            for place in 0..len {
                for byte in 0..=255 {
                    let mut bytes = vec![b'a'; len];
                    bytes[place] = byte;
                    let expected = oracle(&bytes, 0);
                    assert_eq!(find_special(&bytes, 0), expected, "{byte:#x} at {place} of {len}");
                    assert_eq!(swar::find(&bytes, 0), expected, "{byte:#x} at {place} of {len}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn same_as_byte_by_byte(
            bytes in prop::collection::vec(prop_oneof![8 => 0x20u8..=255, 1 => any::<u8>()], 0..300),
            at in 0usize..310,
        ) {
            let expected = oracle(&bytes, at);
            prop_assert_eq!(find_special(&bytes, at), expected);
            prop_assert_eq!(swar::find(&bytes, at), expected);
        }
    }
}
