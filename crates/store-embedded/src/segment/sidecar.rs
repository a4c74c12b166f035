//! The sidecar files of a segment: the addresses of its records (`.addr`), and its dead rows
//! (`.dead`). They are replaced without writing the segment again. Each new file has the next
//! higher generation.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::map::Map;

/// Number of bytes that are gathered before a write to the disk.
const BUFFER: usize = 256 << 10;

/// The two kinds of sidecar files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SidecarKind {
    /// A packed [`super::RecordAddress`] for each row.
    Addresses,
    /// A bit for each row, 64 bits in a word.
    Dead,
}

impl SidecarKind {
    fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Addresses => b"HARKadr1",
            Self::Dead => b"HARKded1",
        }
    }

    /// The path of the file in the shelf.
    pub fn path(self, shelf: &Path, segment: u32, generation: u32) -> PathBuf {
        let ending = match self {
            Self::Addresses => "addr",
            Self::Dead => "dead",
        };
        shelf.join("seg").join(format!("{segment:08}-{generation}.{ending}"))
    }

    /// Size of a file of `words` words.
    pub fn bytes(self, words: usize) -> u64 {
        (self.magic().len() + words * 8 + 4) as u64
    }

    /// Number of words in a file of `bytes` bytes.
    pub fn words_in(bytes: u64) -> usize {
        (bytes.saturating_sub(12) / 8) as usize
    }

    /// Writes a file of words and returns its size. On return the content of the file is durable,
    /// but its name is not.
    pub fn write(
        self,
        disk: &dyn Disk,
        shelf: &Path,
        (segment, generation): (u32, u32),
        words: impl Iterator<Item = u64>,
    ) -> io::Result<u64> {
        let mut file = disk.create(&self.path(shelf, segment, generation))?;
        let (mut bytes, mut sum, mut written) = (self.magic().to_vec(), 0, 0);
        for word in words {
            bytes.extend_from_slice(&word.to_le_bytes());
            if bytes.len() >= BUFFER {
                sum = crc32c::crc32c_append(sum, &bytes);
                file.write_all(&bytes)?;
                written += bytes.len() as u64;
                bytes.clear();
            }
        }
        sum = crc32c::crc32c_append(sum, &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        file.write_all(&bytes)?;
        file.sync()?;
        Ok(written + bytes.len() as u64)
    }

    /// Opens a file of `len` words. If the file has another number of words or a wrong checksum,
    /// the result is an error.
    pub fn open(
        self,
        disk: &dyn Disk,
        shelf: &Path,
        (segment, generation): (u32, u32),
        len: usize,
    ) -> io::Result<SidecarWords> {
        let map = disk.map(&self.path(shelf, segment, generation), None)?;
        map.read_ahead(0..map.len());
        let sound = map.len() as u64 == self.bytes(len)
            && map.starts_with(self.magic())
            && map.last_chunk().is_some_and(|sum| {
                crc32c::crc32c(&map[..map.len() - 4]) == u32::from_le_bytes(*sum)
            });
        if !sound {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is damaged"));
        }
        Ok(SidecarWords(map))
    }
}

/// The content of a sidecar file, as 64-bit words.
pub struct SidecarWords(Map);

impl SidecarWords {
    /// The word at `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<u64> {
        let end = self.0.len().checked_sub(4)?;
        self.0[..end].get(8 + index * 8..)?.first_chunk().map(|eight| u64::from_le_bytes(*eight))
    }

    /// Reads the whole file, and returns whether the checksum is right.
    pub fn is_sound(&self) -> bool {
        let map = &self.0;
        map.last_chunk()
            .is_some_and(|sum| crc32c::crc32c(&map[..map.len() - 4]) == u32::from_le_bytes(*sum))
    }

    /// All words.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..(self.0.len().saturating_sub(12)) / 8).filter_map(|index| self.get(index))
    }

    /// Number of failed reads of the file.
    pub fn faults(&self) -> u32 {
        self.0.faults()
    }

    /// Notes that a part of the file is lost.
    pub(crate) fn note_lost(&self) {
        self.0.note_lost();
    }

    /// Size on disk.
    pub fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}
