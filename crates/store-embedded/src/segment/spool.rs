//! The entries of a dictionary, in a temporary file until the posting lists are written. There may
//! be as many entries as labels, too many to keep in memory. MANIFEST never names this file
//! (`.new`), so if the process is killed, the next start removes the file.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile};

/// Size in bytes of each write and of each read: a multiple of [`ENTRY_BYTES`].
const BUFFER: usize = 64 << 10;

/// A term, a kind, and the end of their list in the postings.
pub type SpoolEntry = (u64, u32, u32);

/// Size of an entry in bytes.
pub const ENTRY_BYTES: u64 = 16;

/// A file of entries in the order in which they were added.
pub struct Spool<'a> {
    disk: &'a dyn Disk,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    buffer: Vec<u8>,
    sum: u32,
}

impl<'a> Spool<'a> {
    /// Creates the file for segment `number`.
    pub fn new(disk: &'a dyn Disk, shelf: &Path, number: u32) -> io::Result<Self> {
        let path = shelf.join("seg").join(format!("{number:08}.new"));
        let file = disk.create(&path)?;
        Ok(Self { disk, path, file, buffer: Vec::with_capacity(BUFFER), sum: 0 })
    }

    /// Adds an entry.
    pub fn push(&mut self, (term, kind, end): SpoolEntry) -> io::Result<()> {
        if self.buffer.len() == BUFFER {
            self.flush()?;
        }
        let packed = u128::from(end) << 96 | u128::from(kind) << 64 | u128::from(term);
        self.buffer.extend_from_slice(&packed.to_le_bytes());
        Ok(())
    }

    /// Passes all entries to `give`, in their order. Returns an error if the file was changed.
    pub fn for_each(
        &mut self,
        mut give: impl FnMut(SpoolEntry) -> io::Result<()>,
    ) -> io::Result<()> {
        self.flush()?;
        let mut file = self.disk.read(&self.path)?;
        let (mut sum, mut piece) = (0, Vec::with_capacity(BUFFER));
        while file.by_ref().take(BUFFER as u64).read_to_end(&mut piece)? > 0 {
            sum = crc32c::crc32c_append(sum, &piece);
            for entry in piece.as_chunks().0 {
                let packed = u128::from_le_bytes(*entry);
                give((packed as u64, (packed >> 64) as u32, (packed >> 96) as u32))?;
            }
            piece.clear();
        }
        // The checksum is compared here, because damaged entries would be covered by a new, valid
        // checksum in the segment.
        if sum == self.sum {
            Ok(())
        } else {
            Err(io::Error::other("the temporary file has changed"))
        }
    }

    /// Removes the file.
    pub fn remove(self) -> io::Result<()> {
        drop(self.file);
        self.disk.remove(&self.path)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sum = crc32c::crc32c_append(self.sum, &self.buffer);
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn entries_come_back_in_their_order_and_a_changed_byte_is_noticed() {
        let dir = hark_testkit::disk::scratch("spool");
        fs::create_dir_all(dir.join("seg")).unwrap();
        let mut spool = Spool::new(&RealDisk, &dir, 7).unwrap();
        // The entries fill more than one buffer, and the last buffer only in part.
        let entries: Vec<SpoolEntry> =
            (0..10_000).map(|n| (u64::MAX - n, n as u32 * 3, u32::MAX - n as u32)).collect();
        for &entry in &entries {
            spool.push(entry).unwrap();
        }
        for _ in 0..2 {
            let mut found = Vec::new();
            let mut note = |entry| {
                found.push(entry);
                Ok(())
            };
            spool.for_each(&mut note).unwrap();
            assert_eq!(found, entries);
        }
        let path = dir.join("seg/00000007.new");
        let mut bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, 10_000 * ENTRY_BYTES);
        bytes[70_000] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(spool.for_each(|_| Ok(())).is_err());
        spool.remove().unwrap();
        assert!(!path.exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
