//! Segments: sealed, immutable indices over the records of one or more logs. Derived from the log,
//! so that they can be thrown away and made again. docs/format.md draws the files.

use std::path::{Path, PathBuf};

pub mod build;
pub mod file;
pub mod filter;
pub mod merge;
pub mod seal;
pub mod sidecar;
pub mod spool;
pub mod view;

/// First and last bytes of a segment file: what it is, and the format's version.
pub const MAGIC: &[u8; 8] = b"HARKseg1";

/// The sections of a segment file, in the order of their places in the trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// A row's time, less the segment's oldest: u32 or u64 a row.
    Times,
    /// Keyed hashes of the ids, u64, ascending.
    IdHashes,
    /// Their rows, u32.
    IdRows,
    /// The id filter's words, u64 (see [`filter`]).
    IdFilter,
    /// Rows, u32, of one list after the other.
    Postings,
    /// Terms, u64, ascending; one entry a term and kind.
    Terms,
    /// The entries' kinds, u32, ascending within a term.
    Kinds,
    /// Where in the postings the entries' lists start, u32; one more says where the last one ends.
    Starts,
    /// Expiry times, u64, ascending.
    ExpiryTimes,
    /// Their rows, u32.
    ExpiryRows,
}

/// All sections in their order.
pub const SECTIONS: [Section; 10] = [
    Section::Times,
    Section::IdHashes,
    Section::IdRows,
    Section::IdFilter,
    Section::Postings,
    Section::Terms,
    Section::Kinds,
    Section::Starts,
    Section::ExpiryTimes,
    Section::ExpiryRows,
];

/// Name of a segment's file within its shelf.
pub fn path(shelf: &Path, number: u32) -> PathBuf {
    shelf.join("seg").join(format!("{number:08}.seg"))
}

/// Where a row's record is: the log's number and the frame's offset in it. Rows whose record has
/// been thrown away have [`Address::GONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The log's number.
    pub log: u32,
    /// The frame's offset.
    pub offset: u32,
}

impl Address {
    /// Nowhere.
    pub const GONE: Self = Self { log: 0, offset: 0 };

    /// As it is stored.
    pub fn pack(self) -> u64 {
        u64::from(self.log) << 32 | u64::from(self.offset)
    }

    /// From what was stored.
    pub fn unpack(packed: u64) -> Self {
        Self { log: (packed >> 32) as u32, offset: packed as u32 }
    }
}
