//! The record: the form in which a message of any network is stored.
//!
//! A record is one flat sequence of bytes, little-endian and unaligned. So it can be read in place:
//! in a memory-mapped log, in a batch that is being written to disk, or in a row of a database.
//!
//! ```text
//!  0  32  id
//! 32   8  time, in the network's own unit
//! 40   4  kind
//! 44   4  L, length of the labels in bytes
//! 48   4  W, length of the wire in bytes
//! 52   2  flags: bit 0 author present, bit 1 expiry present; others 0
//! 54  32  author                  only with flag bit 0
//!  .   8  expires                 only with flag bit 1
//!  .   L  labels: (name u8, gap varint, length varint) each
//!  .   W  wire: the message, byte for byte as it is sent out again
//!  .   .  extra: label values that are not verbatim in the wire, to the end
//! ```
//!
//! A label's value is a slice of `wire ++ extra`; `gap` is the distance from the end of the
//! previous label's value. Most gaps are small, so gap and length together take two or three bytes.

/// The identity of a message: event id, message hash or envelope hash.
pub type Id = [u8; 32];
/// An author's public key.
pub type Key = [u8; 32];

/// The lowest label name that is public. Labels with lower names are private: the code that accepts
/// a message adds such labels, and clients cannot query private labels.
pub const PRIVATE_LABELS: u8 = 0x20;

/// Number of bytes before the optional fields.
const HEADER: usize = 54;
const FLAG_AUTHOR: u16 = 1;
const FLAG_EXPIRES: u16 = 2;

/// Why bytes are not a valid record of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is shorter than the lengths in its header require.
    #[error("record is cut short")]
    Short,
    /// The record has flag bits that are unknown to this version of Hark.
    #[error("record has unknown flags")]
    Flags,
    /// A label extends beyond the record.
    #[error("record has a label outside of its bytes")]
    Label,
}

/// The fixed part of a record, as the caller passes it to [`write()`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Identity of the message.
    pub id: Id,
    /// Time of the message in the network's unit: seconds or nanoseconds since 1970.
    pub time: u64,
    /// Author of the message, if the network has authors.
    pub author: Option<Key>,
    /// Kind of the message; 0 if the network has no kinds.
    pub kind: u32,
    /// Time from which the message is no longer served, in the unit of `time`.
    pub expires: Option<u64>,
}

/// The position of a label's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelPosition<'a> {
    /// The value is in the wire bytes. Labels with such values must come in ascending order of
    /// `at`, and their values must not overlap.
    Wire {
        /// Offset in the wire bytes.
        at: u32,
        /// Length in bytes.
        len: u32,
    },
    /// The value is not in the wire bytes, so it is stored after the wire bytes.
    Bytes(&'a [u8]),
}

/// Appends a record to `out`. Memory is allocated only if `out` must grow.
///
/// ```
/// use hark_codec::record::{LabelPosition, Record, RecordHeader, write};
///
/// let head = RecordHeader { id: [1; 32], time: 7, author: None, kind: 0, expires: None };
/// let wire = b"a message about bread";
/// // The value of this label is a part of the message.
/// let label = (b't', LabelPosition::Wire { at: 16, len: 5 });
/// let mut bytes = Vec::new();
/// write(&mut bytes, &head, wire, [label].into_iter());
///
/// let record = Record::new(&bytes)?;
/// record.check()?;
/// assert_eq!((record.head(), record.wire()), (head, &wire[..]));
/// assert_eq!(record.labels().next(), Some((b't', &b"bread"[..])));
/// assert!(Record::new(&bytes[..60]).is_err());
/// # Ok::<(), hark_codec::record::RecordError>(())
/// ```
pub fn write<'a, L>(out: &mut Vec<u8>, head: &RecordHeader, wire: &[u8], labels: L)
where
    L: Iterator<Item = (u8, LabelPosition<'a>)> + Clone,
{
    let mut writer = RecordWriter::begin(out, head, wire.len());
    for (name, position) in labels.clone() {
        if let LabelPosition::Wire { at, len } = position {
            writer.label(name, at as usize, len as usize);
        }
    }
    let others = labels.filter_map(|(name, position)| match position {
        LabelPosition::Bytes(value) => Some((name, value)),
        LabelPosition::Wire { .. } => None,
    });
    let mut at = wire.len();
    for (name, value) in others.clone() {
        writer.label(name, at, value.len());
        at += value.len();
    }
    let out = writer.end_labels();
    out.extend_from_slice(wire);
    for (_, value) in others {
        out.extend_from_slice(value);
    }
}

/// Writes a record step by step: first the labels, in the order of their values in `wire ++ extra`,
/// then the wire and the extra bytes.
pub(crate) struct RecordWriter<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    labels_at: usize,
    /// End of the previous label's value.
    end: usize,
}

impl<'o> RecordWriter<'o> {
    #[inline]
    pub(crate) fn begin(out: &'o mut Vec<u8>, head: &RecordHeader, wire_len: usize) -> Self {
        out.reserve(wire_len + HEADER + 64);
        let flags = if head.author.is_some() { FLAG_AUTHOR } else { 0 }
            | if head.expires.is_some() { FLAG_EXPIRES } else { 0 };
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        // All offsets into the array are constants, so the compiler can remove the bounds checks.
        if let Some(header) = out[start..].first_chunk_mut::<HEADER>() {
            header[..32].copy_from_slice(&head.id);
            header[32..40].copy_from_slice(&head.time.to_le_bytes());
            header[40..44].copy_from_slice(&head.kind.to_le_bytes());
            header[48..52].copy_from_slice(&(wire_len as u32).to_le_bytes());
            header[52..].copy_from_slice(&flags.to_le_bytes());
        }
        if let Some(author) = &head.author {
            out.extend_from_slice(author);
        }
        if let Some(expires) = head.expires {
            out.extend_from_slice(&expires.to_le_bytes());
        }
        Self { start, labels_at: out.len(), end: 0, out }
    }

    /// Adds a label whose value will be at offset `at` of `wire ++ extra`.
    #[inline]
    pub(crate) fn label(&mut self, name: u8, at: usize, len: usize) {
        let gap = at - self.end;
        self.end = at + len;
        if gap < 0x80 && len < 0x80 {
            return self.out.extend_from_slice(&[name, gap as u8, len as u8]);
        }
        self.wide_label(name, gap, len);
    }

    #[cold]
    fn wide_label(&mut self, name: u8, gap: usize, len: usize) {
        self.out.push(name);
        put_varint(self.out, gap as u64);
        put_varint(self.out, len as u64);
    }

    /// Returns the buffer, to which the caller appends the wire and the extra bytes.
    #[inline]
    pub(crate) fn end_labels(self) -> &'o mut Vec<u8> {
        let labels_len = (self.out.len() - self.labels_at) as u32;
        let at = self.start + 44;
        self.out[at..at + 4].copy_from_slice(&labels_len.to_le_bytes());
        self.out
    }
}

/// A view of a record's bytes. [`Record::new`] checks the lengths in constant time, so every later
/// access stays within the bytes.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    bytes: &'a [u8],
    /// Offset of the labels.
    labels: u32,
    /// Offset of the wire.
    wire: u32,
    /// Offset of the first byte after the wire.
    extra: u32,
}

impl<'a> Record<'a> {
    /// Reads `bytes`, which must be one whole record.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, RecordError> {
        if bytes.len() < HEADER || bytes.len() > u32::MAX as usize {
            return Err(RecordError::Short);
        }
        let flags = u16::from_le_bytes([bytes[52], bytes[53]]);
        if flags & !(FLAG_AUTHOR | FLAG_EXPIRES) != 0 {
            return Err(RecordError::Flags);
        }
        let optional = u64::from(flags & FLAG_AUTHOR) * 32 + u64::from(flags & FLAG_EXPIRES) * 4;
        let labels = HEADER as u64 + optional;
        let wire = labels + u64::from(get_u32(bytes, 44));
        let extra = wire + u64::from(get_u32(bytes, 48));
        if extra > bytes.len() as u64 {
            return Err(RecordError::Short);
        }
        Ok(Self { bytes, labels: labels as u32, wire: wire as u32, extra: extra as u32 })
    }

    /// Checks, in addition to [`Record::new`], that every label lies within the bytes and that no
    /// bytes are left over.
    pub fn check(&self) -> Result<(), RecordError> {
        let mut labels = self.labels();
        let mut end = 0;
        while let Some(label) = labels.step() {
            end = label?;
        }
        let data = self.bytes.len() - self.wire as usize;
        let wire = (self.extra - self.wire) as usize;
        if end.max(wire) == data { Ok(()) } else { Err(RecordError::Label) }
    }

    /// The whole record.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Identity of the message.
    #[inline]
    pub fn id(&self) -> &'a Id {
        self.bytes.first_chunk().unwrap_or(&[0; 32])
    }

    /// Time of the message, in the network's unit.
    #[inline]
    pub fn time(&self) -> u64 {
        get_u64(self.bytes, 32)
    }

    /// Kind of the message.
    #[inline]
    pub fn kind(&self) -> u32 {
        get_u32(self.bytes, 40)
    }

    /// Author of the message, if the network has authors.
    #[inline]
    pub fn author(&self) -> Option<&'a Key> {
        if self.flags() & FLAG_AUTHOR == 0 {
            return None;
        }
        self.bytes[HEADER..].first_chunk()
    }

    /// Time from which the message is no longer served.
    #[inline]
    pub fn expires(&self) -> Option<u64> {
        let flags = self.flags();
        let at = if flags & FLAG_AUTHOR == 0 { HEADER } else { HEADER + 32 };
        (flags & FLAG_EXPIRES != 0).then(|| get_u64(self.bytes, at))
    }

    /// The fixed part of the record.
    #[inline]
    pub fn head(&self) -> RecordHeader {
        RecordHeader {
            id: *self.id(),
            time: self.time(),
            author: self.author().copied(),
            kind: self.kind(),
            expires: self.expires(),
        }
    }

    /// The message's bytes, exactly as they are sent out again.
    #[inline]
    pub fn wire(&self) -> &'a [u8] {
        &self.bytes[self.wire as usize..self.extra as usize]
    }

    /// The labels, in the order in which they were written. A label may occur more than once.
    #[inline]
    pub fn labels(&self) -> Labels<'a> {
        Labels {
            codes: &self.bytes[self.labels as usize..self.wire as usize],
            data: &self.bytes[self.wire as usize..],
            end: 0,
        }
    }

    /// Upper bound for the number of labels. It is computed without reading the labels, since each
    /// label takes at least three bytes.
    #[inline]
    pub fn labels_max(&self) -> usize {
        (self.wire - self.labels) as usize / 3
    }

    fn flags(&self) -> u16 {
        u16::from_le_bytes([self.bytes[52], self.bytes[53]])
    }
}

impl std::fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record")
            .field("head", &self.head())
            .field("labels", &self.labels().collect::<Vec<_>>())
            .field("wire", &String::from_utf8_lossy(self.wire()))
            .finish()
    }
}

/// Iterates over a record's labels as (name, value). Ends at the first malformed label, which
/// [`Record::check`] reports.
#[derive(Clone)]
pub struct Labels<'a> {
    codes: &'a [u8],
    data: &'a [u8],
    end: usize,
}

impl<'a> Labels<'a> {
    /// Reads the next label, sets `self.end` to the end of its value, and returns this end.
    #[inline]
    fn step(&mut self) -> Option<Result<usize, RecordError>> {
        if self.codes.is_empty() {
            return None;
        }
        Some(self.read().map(|_| self.end).ok_or(RecordError::Label))
    }

    #[inline]
    fn read(&mut self) -> Option<(u8, &'a [u8])> {
        let (&name, rest) = self.codes.split_first()?;
        self.codes = rest;
        let Some((gap, len)) = self.varint().and_then(|gap| Some((gap, self.varint()?))) else {
            self.codes = &[];
            return None;
        };
        let start = self.end + gap as usize;
        let value = self.data.get(start..start + len as usize);
        if value.is_none() {
            self.codes = &[];
        }
        self.end = start + len as usize;
        value.map(|value| (name, value))
    }

    #[inline]
    fn varint(&mut self) -> Option<u32> {
        let (&first, rest) = self.codes.split_first()?;
        self.codes = rest;
        if first < 0x80 {
            return Some(u32::from(first));
        }
        let mut value = u32::from(first & 0x7f);
        for shift in [7, 14, 21, 28] {
            let (&byte, rest) = self.codes.split_first()?;
            self.codes = rest;
            value |= u32::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = (u8, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.read()
    }
}

/// Appends a number as a varint: seven bits per byte, the lowest bits first.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
fn get_u32(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

#[inline]
fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(author: Option<Key>, expires: Option<u64>) -> Vec<u8> {
        let head = RecordHeader { id: [7; 32], time: 42, author, kind: 30_023, expires };
        let labels = [
            (b'd', LabelPosition::Bytes(b"a\"b")),
            (b'e', LabelPosition::Wire { at: 1, len: 3 }),
            (b'p', LabelPosition::Wire { at: 4, len: 0 }),
            (0, LabelPosition::Bytes(b"")),
            (b't', LabelPosition::Wire { at: 200, len: 100 }),
        ];
        let mut out = b"before".to_vec();
        let wire: Vec<u8> = (0..=255).chain(0..=99).collect();
        write(&mut out, &head, &wire, labels.into_iter());
        let record = Record::new(&out[6..]).unwrap();
        record.check().unwrap();
        assert_eq!(record.head(), head);
        assert_eq!(record.wire(), wire);
        let seen: Vec<_> = record.labels().collect();
        let expected: Vec<(u8, &[u8])> = vec![
            (b'e', &wire[1..4]),
            (b'p', b""),
            (b't', &wire[200..300]),
            (b'd', b"a\"b"),
            (0, b""),
        ];
        assert_eq!(seen, expected);
        out[6..].to_vec()
    }

    #[test]
    fn what_was_written_is_read() {
        for author in [None, Some([9; 32])] {
            for expires in [None, Some(u64::MAX)] {
                sample(author, expires);
            }
        }
    }

    #[test]
    fn any_cut_and_any_flipped_bit_stay_within_the_bytes() {
        let bytes = sample(Some([9; 32]), Some(1));
        for cut in 0..bytes.len() {
            assert!(Record::new(&bytes[..cut]).and_then(|r| r.check()).is_err(), "cut at {cut}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Ok(record) = Record::new(&bad) {
                let _ = (record.head(), record.wire(), record.labels().count(), record.check());
            }
        }
    }
}
