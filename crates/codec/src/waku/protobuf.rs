//! The part of the Protocol Buffers wire format that Waku uses. Fields may be in any order. If
//! several fields have the same number, the last field counts. Unknown fields are skipped. Groups,
//! a deprecated wire type, are refused.

pub use crate::record::put_varint;

/// Why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// A field extends beyond the end of the message.
    #[error("the message is cut short")]
    Short,
    /// A varint has more bits than its field.
    #[error("the message has a number that is too long")]
    Varint,
    /// The number of a field is 0 or above 2^29 - 1.
    #[error("the message has a field without a number")]
    Field,
    /// An unknown wire type, or a group.
    #[error("field {0} has a type that is not known")]
    Type(u32),
    /// A field has the wrong wire type.
    #[error("field {0} is of the wrong type")]
    WrongType(u32),
    /// A string that is not UTF-8.
    #[error("field {0} is not UTF-8")]
    Utf8(u32),
}

/// A field's value, by wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtobufValue<'a> {
    /// A value of type int, uint, sint or bool.
    Varint(u64),
    /// A value of type bytes or string, or a nested message.
    Bytes(&'a [u8]),
    /// A value of eight or four bytes. No field of Waku has this type.
    Fixed,
}

/// A field: its number and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtobufField<'a> {
    /// The field's number.
    pub number: u32,
    /// The field's value.
    pub value: ProtobufValue<'a>,
}

impl<'a> ProtobufField<'a> {
    /// The field's value, if it is a varint.
    pub fn varint(&self) -> Result<u64, ProtobufError> {
        match self.value {
            ProtobufValue::Varint(value) => Ok(value),
            _ => Err(ProtobufError::WrongType(self.number)),
        }
    }

    /// The field's value as uint32. A larger number is refused.
    pub fn uint32(&self) -> Result<u32, ProtobufError> {
        u32::try_from(self.varint()?).map_err(|_| ProtobufError::Varint)
    }

    /// The field's value as sint64.
    pub fn sint64(&self) -> Result<i64, ProtobufError> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    /// The field's value, if it is bytes.
    pub fn bytes(&self) -> Result<&'a [u8], ProtobufError> {
        match self.value {
            ProtobufValue::Bytes(value) => Ok(value),
            _ => Err(ProtobufError::WrongType(self.number)),
        }
    }

    /// The field's value as a string.
    pub fn string(&self) -> Result<&'a str, ProtobufError> {
        simdutf8::basic::from_utf8(self.bytes()?).map_err(|_| ProtobufError::Utf8(self.number))
    }
}

/// Iterates over the fields of a message. Ends after the first error.
#[derive(Clone, Debug)]
pub struct ProtobufFields<'a>(&'a [u8]);

impl<'a> ProtobufFields<'a> {
    /// Iterates over the fields of the message in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn read_bytes(&mut self, len: u64) -> Result<&'a [u8], ProtobufError> {
        let len = usize::try_from(len).map_err(|_| ProtobufError::Short)?;
        let (taken, rest) = self.0.split_at_checked(len).ok_or(ProtobufError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<ProtobufField<'a>, ProtobufError> {
        let key = varint(&mut self.0)?;
        let number = u32::try_from(key >> 3).map_err(|_| ProtobufError::Field)?;
        if number == 0 || number > (1 << 29) - 1 {
            return Err(ProtobufError::Field);
        }
        let value = match key & 7 {
            0 => ProtobufValue::Varint(varint(&mut self.0)?),
            1 => self.read_bytes(8).map(|_| ProtobufValue::Fixed)?,
            2 => {
                let len = varint(&mut self.0)?;
                ProtobufValue::Bytes(self.read_bytes(len)?)
            }
            5 => self.read_bytes(4).map(|_| ProtobufValue::Fixed)?,
            _ => return Err(ProtobufError::Type(number)),
        };
        Ok(ProtobufField { number, value })
    }
}

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = Result<ProtobufField<'a>, ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Reads a varint and removes it from the front of `bytes`.
pub fn varint(bytes: &mut &[u8]) -> Result<u64, ProtobufError> {
    let mut value = 0;
    for at in 0..10 {
        let (&byte, rest) = bytes.split_first().ok_or(ProtobufError::Short)?;
        *bytes = rest;
        if at == 9 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(ProtobufError::Varint)
}

/// Appends a varint field.
pub fn put_number(out: &mut Vec<u8>, field: u32, value: u64) {
    put_varint(out, u64::from(field) << 3);
    put_varint(out, value);
}

/// Appends a field of type sint64.
pub fn put_sint64(out: &mut Vec<u8>, field: u32, value: i64) {
    put_number(out, field, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Appends a field with bytes, and returns the offset of these bytes in `out`.
pub fn put_bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) -> usize {
    put_varint(out, u64::from(field) << 3 | 2);
    put_varint(out, value.len() as u64);
    let at = out.len();
    out.extend_from_slice(value);
    at
}

/// The length of an encoded field with `len` bytes.
pub fn bytes_len(field: u32, len: usize) -> usize {
    varint_len(u64::from(field) << 3) + varint_len(len as u64) + len
}

fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_long_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_len(value));
            assert_eq!(varint(&mut &out[..]), Ok(value));
            assert_eq!(varint(&mut &out[..out.len() - 1]), Err(ProtobufError::Short));
        }
        for value in [0, 1, -1, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            put_sint64(&mut out, 12, value);
            let field = ProtobufFields::new(&out).next().unwrap().unwrap();
            assert_eq!((field.number, field.sint64()), (12, Ok(value)));
        }
        assert_eq!(varint(&mut &[0xff; 10][..]), Err(ProtobufError::Varint));
        assert_eq!(varint(&mut &[0x80; 11][..]), Err(ProtobufError::Varint));
    }

    #[test]
    fn a_fault_ends_the_fields() {
        for (bytes, fault) in [
            (&[0x0a, 5, 1][..], ProtobufError::Short),
            (&[0x09, 1, 2, 3], ProtobufError::Short),
            (&[0x02, 0], ProtobufError::Field),
            (&[0x0b], ProtobufError::Type(1)),
            (&[0x0f], ProtobufError::Type(1)),
        ] {
            let fields: Vec<_> = ProtobufFields::new(bytes).collect();
            assert_eq!(fields, [Err(fault)]);
        }
    }
}
