//! Segments: immutable indices over the records of one or more sealed logs. A segment is made from
//! its logs, so it can be removed and rebuilt. docs/format.md describes the files.

use std::path::{Path, PathBuf};

pub mod build;
pub mod file;
pub mod filter;
pub mod gathered;
pub mod marks;
pub mod merge;
pub(crate) mod open;
pub mod opened;
pub mod packed;
mod rare_kinds;
pub mod seal;
pub mod segment_view;
pub mod sidecar;
pub mod spool;
pub mod values;
pub mod word_blocks;

/// First and last bytes of a segment file: the file's type and the format's version.
pub const MAGIC: &[u8; 8] = b"HARKseg4";
/// The magic of format 3, which has the sections before [`SegmentSection::Words`]. It stores words
/// as values of a label, with the same posting lists as other values.
pub const MAGIC_3: &[u8; 8] = b"HARKseg3";
/// The magic of format 2, which has the sections up to [`SegmentSection::Values`].
pub const MAGIC_2: &[u8; 8] = b"HARKseg2";
/// The magic of format 1, which has the sections before [`SegmentSection::Values`].
pub const MAGIC_1: &[u8; 8] = b"HARKseg1";

/// Number of rows in each group for which a segment has a sum of ids.
pub const SUMMED_ROWS: u32 = 64;

/// The sections of a segment file, in the order of the trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentSection {
    /// For each row, its time minus the segment's oldest time: u32 or u64.
    Times,
    /// Keyed hashes of the ids, u64, ascending.
    IdHashes,
    /// The rows of these ids, u32, in the order of [`Self::IdHashes`].
    IdRows,
    /// The id filter's words, u64 (see [`filter`]).
    IdFilter,
    /// The rows of all posting lists, u32, one list after the other.
    Postings,
    /// The terms of the dictionary's entries, u64, ascending. The dictionary has one entry per term
    /// and kind.
    Terms,
    /// The kinds of these entries, u32, ascending within a term.
    Kinds,
    /// The position in the postings at which each entry's list starts, u32. One further value is
    /// the end of the last list.
    Starts,
    /// Expiry times, u64, ascending.
    ExpiryTimes,
    /// The rows that expire at these times, u32, in the order of [`Self::ExpiryTimes`].
    ExpiryRows,
    /// The names of the listed labels, a fingerprint of the listed words, and the values of the
    /// labels (see [`values`]).
    Values,
    /// The id of each row, 32 bytes.
    Ids,
    /// For each group of [`SUMMED_ROWS`] rows: the sum of the ids of this group and of all earlier
    /// groups.
    IdSums,
    /// The words and their packed posting lists, in blocks (see [`word_blocks`]).
    Words,
    /// For each block of words, the first bytes of its first word, u64, and its offset, u64.
    WordIndex,
}

/// All sections in their order.
pub const SECTIONS: [SegmentSection; 15] = [
    SegmentSection::Times,
    SegmentSection::IdHashes,
    SegmentSection::IdRows,
    SegmentSection::IdFilter,
    SegmentSection::Postings,
    SegmentSection::Terms,
    SegmentSection::Kinds,
    SegmentSection::Starts,
    SegmentSection::ExpiryTimes,
    SegmentSection::ExpiryRows,
    SegmentSection::Values,
    SegmentSection::Ids,
    SegmentSection::IdSums,
    SegmentSection::Words,
    SegmentSection::WordIndex,
];

/// The path of a segment file of a shelf.
pub fn path(shelf: &Path, number: u32) -> PathBuf {
    shelf.join("seg").join(format!("{number:08}.seg"))
}

/// The address of a row's record: the number of the log, and the offset of the frame. If the record
/// was removed, the address is [`RecordAddress::GONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAddress {
    /// The log's number.
    pub log: u32,
    /// The frame's offset.
    pub offset: u32,
}

impl RecordAddress {
    /// The address of a record that was removed.
    pub const GONE: Self = Self { log: 0, offset: 0 };

    /// Encodes the address as it is stored.
    pub fn pack(self) -> u64 {
        u64::from(self.log) << 32 | u64::from(self.offset)
    }

    /// Decodes a stored address.
    pub fn unpack(packed: u64) -> Self {
        Self { log: (packed >> 32) as u32, offset: packed as u32 }
    }
}
