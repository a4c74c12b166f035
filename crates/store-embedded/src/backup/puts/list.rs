//! The list of the puts in a backup: the number, the id and the log of each record, ascending by
//! number. docs/format.md describes the format.

use std::io::{self, Read};
use std::path::Path;

use hark_archive::Id;

use crate::backup::catalog::PutListCopy;
use crate::disk::{Disk, DiskFile};

/// Number of bytes of an entry.
const ENTRY: usize = 8 + 32 + 4;
/// Number of entries that are read or written at a time.
pub(super) const PAGE: usize = 1 << 16;

/// A record in the backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListedPut {
    pub(super) number: u64,
    pub(super) id: Id,
    /// The number of the log that has the record.
    pub(super) log: u32,
}

/// A list that is read from front to back.
pub(super) struct PutListReader {
    from: Box<dyn Read + Send>,
    left: u64,
    crc: u32,
    expected: u32,
}

impl PutListReader {
    pub(super) fn open(disk: &dyn Disk, shelf: &Path, list: &PutListCopy) -> io::Result<Self> {
        let from = disk.read(&list.path(shelf))?;
        Ok(Self { from, left: list.puts, crc: 0, expected: list.crc })
    }

    /// Reads the next entries; none at the end. After the last entry, compares the checksum.
    pub(super) fn next_page(&mut self) -> io::Result<Vec<ListedPut>> {
        let count = self.left.min(PAGE as u64) as usize;
        let mut bytes = vec![0; count * ENTRY];
        self.from.read_exact(&mut bytes)?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        self.left -= count as u64;
        if self.left == 0 && self.crc != self.expected {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is another"));
        }
        let entry = |bytes: &[u8]| {
            Some(ListedPut {
                number: u64::from_le_bytes(*bytes.first_chunk()?),
                id: bytes[8..40].try_into().ok()?,
                log: u32::from_le_bytes(*bytes.last_chunk()?),
            })
        };
        Ok(bytes.chunks(ENTRY).filter_map(entry).collect())
    }
}

/// A list that is written.
pub(super) struct PutListWriter {
    file: Box<dyn DiskFile>,
    bytes: Vec<u8>,
    pub(super) puts: u64,
    pub(super) crc: u32,
}

impl PutListWriter {
    pub(super) fn create(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        Ok(Self { file: disk.create(path)?, bytes: Vec::new(), puts: 0, crc: 0 })
    }

    pub(super) fn add(&mut self, put: &ListedPut) -> io::Result<()> {
        self.bytes.extend_from_slice(&put.number.to_le_bytes());
        self.bytes.extend_from_slice(&put.id);
        self.bytes.extend_from_slice(&put.log.to_le_bytes());
        self.puts += 1;
        if self.bytes.len() >= PAGE * ENTRY { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, &self.bytes);
        self.file.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }

    /// Writes all entries durably.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.write()?;
        self.file.sync()
    }
}
