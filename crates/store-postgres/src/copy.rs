//! Rows in the binary format of COPY: numbers are big-endian, and each field is preceded by its
//! length.

use bytes::{BufMut as _, Bytes, BytesMut};

const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// PostgreSQL's OIDs of the types bigint and bytea. The encoding of an array contains the OID of
/// its elements.
const INT8_OID: u32 = 20;
const BYTEA_OID: u32 = 17;

pub(crate) struct CopyRows(BytesMut);

impl CopyRows {
    pub(crate) fn new(bytes: usize) -> Self {
        let mut rows = BytesMut::with_capacity(bytes + 64);
        rows.put_slice(HEADER);
        Self(rows)
    }

    /// Begins a row of `fields` fields.
    pub(crate) fn row(&mut self, fields: i16) {
        self.0.put_i16(fields);
    }

    pub(crate) fn bigint(&mut self, value: i64) {
        self.0.put_i32(8);
        self.0.put_i64(value);
    }

    pub(crate) fn int(&mut self, value: i32) {
        self.0.put_i32(4);
        self.0.put_i32(value);
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.0.put_u32(value.len() as u32);
        self.0.put_slice(value);
    }

    pub(crate) fn null(&mut self) {
        self.0.put_i32(-1);
    }

    pub(crate) fn bigints(&mut self, values: &[i64]) {
        let dimensions = u32::from(!values.is_empty());
        let count = values.len() as u32;
        self.0.put_u32(12 + dimensions * 8 + count * 12);
        self.0.put_u32(dimensions);
        self.0.put_i32(0);
        self.0.put_u32(INT8_OID);
        if dimensions == 1 {
            self.0.put_u32(count);
            self.0.put_i32(1);
        }
        for value in values {
            self.bigint(*value);
        }
    }

    /// Writes a non-empty array of bytea.
    pub(crate) fn byte_strings<'a>(&mut self, values: impl Iterator<Item = &'a [u8]> + Clone) {
        let (count, bytes) =
            values.clone().fold((0, 0), |(n, all), value| (n + 1, all + 4 + value.len() as u32));
        self.0.put_u32(20 + bytes);
        self.0.put_u32(1);
        self.0.put_i32(0);
        self.0.put_u32(BYTEA_OID);
        self.0.put_u32(count);
        self.0.put_i32(1);
        for value in values {
            self.bytes(value);
        }
    }

    /// Marks the end of the rows.
    pub(crate) fn end(&mut self) {
        self.0.put_i16(-1);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes written since the last call, and reserves `next` bytes for later writes.
    pub(crate) fn take(&mut self, next: usize) -> Bytes {
        let written = self.0.split().freeze();
        self.0.reserve(next);
        written
    }
}
