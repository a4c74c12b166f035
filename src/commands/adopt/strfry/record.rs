//! The records of strfry's small tables: FlatBuffers with one table each.
//!
//! A buffer begins with the offset of its table. A table begins with the distance back to its list
//! of fields. The list consists of 2-byte numbers: the length of the list, the length of the table,
//! and the offset of each field in the table. The offset is 0 for a field with its default value.
//! See <https://flatbuffers.dev/internals/>.

/// Reads `N` bytes at an offset.
fn array<const N: usize>(buffer: &[u8], at: usize) -> Option<[u8; N]> {
    buffer.get(at..)?.first_chunk().copied()
}

/// Reads an offset.
fn offset(buffer: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(array(buffer, at)?) as usize)
}

/// The location of a field in a buffer.
enum FieldPlace {
    /// The field is absent and has its default value.
    Default,
    At(usize),
}

/// Returns the location of a field of the buffer's table, or `None` if the buffer is damaged.
fn field(buffer: &[u8], number: usize) -> Option<FieldPlace> {
    let table = offset(buffer, 0)?;
    let back = i64::from(i32::from_le_bytes(array(buffer, table)?));
    let fields = usize::try_from(i64::try_from(table).ok()? - back).ok()?;
    let slot = 4 + 2 * number;
    if slot + 2 > u16::from_le_bytes(array(buffer, fields)?).into() {
        return Some(FieldPlace::Default);
    }
    Some(match u16::from_le_bytes(array(buffer, fields + slot)?) {
        0 => FieldPlace::Default,
        at => FieldPlace::At(table + usize::from(at)),
    })
}

/// Reads a numeric field; the default is 0. Returns `None` if the buffer is damaged.
pub(super) fn number(buffer: &[u8], field_number: usize) -> Option<u64> {
    match field(buffer, field_number)? {
        FieldPlace::Default => Some(0),
        FieldPlace::At(at) => Some(u64::from_le_bytes(array(buffer, at)?)),
    }
}

/// Reads a field of bytes; the default is empty. Returns `None` if the buffer is damaged.
pub(super) fn bytes(buffer: &[u8], field_number: usize) -> Option<&[u8]> {
    let at = match field(buffer, field_number)? {
        FieldPlace::Default => return Some(&[]),
        FieldPlace::At(at) => at,
    };
    let at = at.checked_add(offset(buffer, at)?)?;
    let len = offset(buffer, at)?;
    buffer.get(at.checked_add(4)?..)?.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer with two numbers, as in strfry's table Meta. The list of fields follows the table.
    const NUMBERS: [u8; 38] = [
        4, 0, 0, 0, // the table
        0xea, 0xff, 0xff, 0xff, // its list of fields is 22 bytes further
        0, 0, 0, 0, //
        3, 0, 0, 0, 0, 0, 0, 0, // a number
        2, 1, 0, 0, // half of a number
        0, 0, // the rest would be here
        10, 0, 24, 0, 8, 0, 0, 0, 16, 0, // the list: three fields, the second has its default
        0, 0,
    ];

    #[test]
    fn fields_are_read_and_what_is_left_out_has_its_default() {
        assert_eq!(number(&NUMBERS, 0), Some(3));
        assert_eq!(number(&NUMBERS, 1), Some(0));
        assert_eq!(number(&NUMBERS, 3), Some(0), "a field that is newer than the buffer");
        let text = [8, 0, 0, 0, 6, 0, 8, 0, 8, 0, 0, 0, 4, 0, 2, 0, 2, 0, 0, 0, 7, 9];
        assert_eq!(bytes(&[&text[..], &[0; 8]].concat(), 3), Some(&[][..]));
    }

    #[test]
    fn no_buffer_makes_it_read_beyond_its_end() {
        for end in 0..NUMBERS.len() {
            let _ = (number(&NUMBERS[..end], 0), bytes(&NUMBERS[..end], 0));
        }
        for at in 0..NUMBERS.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = NUMBERS;
                damaged[at] = value;
                let _ = (number(&damaged, 0), bytes(&damaged, 0), bytes(&damaged, 2));
            }
        }
        assert_eq!(number(&[0xff; 40], 0), None);
    }
}
