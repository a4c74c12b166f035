//! The mark in a row of a word. It identifies the record by the first 62 bits of the record's id,
//! and has the class of the word in the lowest two bits.

use crate::time::{from_db, to_db};

/// The bits of a mark that contain the class.
pub(crate) const CLASS_BITS: i64 = 3;

/// Returns the mark of a record, with class 0.
pub(crate) fn mark(id: &[u8; 32]) -> i64 {
    let head = id.first_chunk().map_or(0, |head| u64::from_be_bytes(*head));
    to_db(head) & !CLASS_BITS
}

/// Returns the first and the last id that a record with this mark may have.
pub(crate) fn ids_of(mark: i64) -> ([u8; 32], [u8; 32]) {
    let (mut first, mut last) = ([0; 32], [0xff; 32]);
    let head = from_db(mark & !CLASS_BITS);
    first[..8].copy_from_slice(&head.to_be_bytes());
    last[..8].copy_from_slice(&(head | CLASS_BITS.cast_unsigned()).to_be_bytes());
    (first, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_which_ids_it_is_of_in_their_order() {
        let ids = [[0; 32], [7; 32], [0x7f; 32], [0x80; 32], [0xff; 32]];
        let marks = ids.map(|id| mark(&id));
        assert!(marks.is_sorted(), "{marks:?}");
        for (id, mark) in ids.iter().zip(marks) {
            for class in 0..4 {
                let (first, last) = ids_of(mark | class);
                assert!(first <= *id && *id <= last, "{first:?} {last:?}");
                assert_eq!((super::mark(&first), super::mark(&last)), (mark, mark));
            }
        }
        let (_, last) = ids_of(mark(&[0x10; 32]));
        assert_eq!(mark(&last), mark(&[0x10; 32]));
    }
}
