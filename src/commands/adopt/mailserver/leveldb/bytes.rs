//! The numbers and strings of LevelDB's formats, and its checksum.

/// Constant that is added to a checksum before the checksum is stored.
const MASK: u32 = 0xa282_ead8;

/// Reads values from the front of a slice, and shortens the slice by the bytes of each value.
#[derive(Clone, Copy)]
pub(super) struct ByteReader<'a>(pub(super) &'a [u8]);

impl<'a> ByteReader<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads this many bytes.
    pub(super) fn read_bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.read_bytes(N)?.try_into().ok()
    }

    /// Reads a varint: seven bits per byte, the lowest first; the top bit of a byte is set if more
    /// bytes follow.
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// Reads a varint that is a length or an offset in memory.
    pub(super) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    /// Reads a length, and then as many bytes.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.size()?;
        self.read_bytes(len)
    }
}

/// Returns the checksum of bytes in its stored form: CRC-32C, rotated, plus [`MASK`]. The mask
/// avoids problems with checksums of bytes that themselves contain checksums.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_end_where_the_bytes_do() {
        let read = |bytes: &[u8]| ByteReader(bytes).number();
        assert_eq!((read(&[0]), read(&[0x7f]), read(&[0x80, 1])), (Some(0), Some(127), Some(128)));
        assert_eq!(
            read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            Some(u64::MAX)
        );
        assert_eq!((read(&[]), read(&[0x80]), read(&[0xff; 11])), (None, None, None));
        let mut reader = ByteReader(&[2, 7, 8, 3, 9]);
        assert_eq!(reader.string(), Some(&[7, 8][..]));
        assert_eq!((reader.string(), reader.array::<1>()), (None, Some([9])));
        assert!(reader.is_empty());
    }

    /// From crc32c_test.cc of LevelDB: the checksum of 32 zeros is 8a9136aa before it is masked.
    #[test]
    fn a_checksum_is_masked() {
        let plain = crc32c::crc32c(&[0; 32]);
        assert_eq!(plain, 0x8a91_36aa);
        let masked = checksum(&[0; 32]);
        assert_eq!(masked.wrapping_sub(MASK).rotate_left(15), plain);
    }
}
