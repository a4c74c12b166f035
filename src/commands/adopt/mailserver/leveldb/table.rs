//! A table: a file of sorted keys with their values.
//!
//! ```text
//! blocks of entries
//! blocks of other kinds, which are not needed here
//! the index: a block with one entry per block of entries: a key at or after the block's last
//! key, and the block's handle
//! the footer: handles of the metaindex block and of the index, zeros, and an 8-byte magic number
//! ```
//!
//! A block consists of entries, the offsets of the restart points (4 bytes each; a restart point is
//! an entry with a complete key), the number of restart points, a byte for the compression, and a
//! checksum. An entry begins with three varints: the number of key bytes shared with the previous
//! key, the number of other key bytes, and the length of the value. The other key bytes and the
//! value follow. A handle is the offset and the length of a block without compression byte and
//! checksum. See doc/table_format.md of LevelDB.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::bytes::{ByteReader, checksum};
use super::entry::{Entry, FileError, ScanState};

/// Maximum length of a block, both compressed and uncompressed. A block is usually 4 KiB, or one
/// large value.
const BLOCK_BYTES_MAX: usize = 64 << 20;
const FOOTER_BYTES: usize = 48;
const MAGIC: [u8; 8] = 0xdb47_7524_8b80_fb57_u64.to_le_bytes();
/// Length of the compression byte and the checksum after a block.
const TRAILER_BYTES: usize = 5;
const PLAIN: u8 = 0;
const SNAPPY: u8 = 1;

/// The reason why a part of a table cannot be read.
pub(super) enum TableFault {
    /// The operating system's error.
    File(std::io::Error),
    /// A description of the damage.
    Damage(&'static str),
}

impl From<std::io::Error> for TableFault {
    fn from(error: std::io::Error) -> Self {
        if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) {
            return Self::Damage("the disk cannot read a part of it");
        }
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Self::Damage("it is shorter than the length that it states")
            }
            _ => Self::File(error),
        }
    }
}

/// A key as stored in a table: the user's key, a sequence number, and whether the entry is a
/// deletion.
pub(super) struct InternalKey<'a> {
    pub(super) user: &'a [u8],
    pub(super) sequence: u64,
    pub(super) is_deletion: bool,
}

impl<'a> InternalKey<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let (user, number) = bytes.split_last_chunk()?;
        let number = u64::from_le_bytes(*number);
        let is_deletion = match number & 0xff {
            0 => true,
            1 => false,
            _ => return None,
        };
        Some(Self { user, sequence: number >> 8, is_deletion })
    }
}

/// A reader that starts at the beginning of a block.
struct BlockReader {
    block: Vec<u8>,
    /// The end of the entries, and the offset of the next entry.
    end: usize,
    at: usize,
    key: Vec<u8>,
    value: std::ops::Range<usize>,
}

impl BlockReader {
    fn new(block: Vec<u8>) -> Option<Self> {
        let (rest, number) = block.split_last_chunk()?;
        let restarts = usize::try_from(u32::from_le_bytes(*number)).ok()?;
        let end = rest.len().checked_sub(restarts.checked_mul(size_of::<u32>())?)?;
        Some(Self { block, end, at: 0, key: Vec::new(), value: 0..0 })
    }

    /// Moves to the next entry. Returns false at the end, and `None` if the entry is damaged.
    fn advance(&mut self) -> Option<bool> {
        let rest = self.block.get(self.at..self.end)?;
        if rest.is_empty() {
            return Some(false);
        }
        let mut reader = ByteReader(rest);
        let (shared, own, value) = (reader.size()?, reader.size()?, reader.size()?);
        if shared > self.key.len() {
            return None;
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(reader.read_bytes(own)?);
        reader.read_bytes(value)?;
        self.at = self.end - reader.0.len();
        self.value = self.at - value..self.at;
        Some(true)
    }

    fn value(&self) -> &[u8] {
        self.block.get(self.value.clone()).unwrap_or_default()
    }
}

/// The offset and the length of a block.
#[derive(Clone, Copy)]
struct BlockHandle {
    offset: u64,
    len: usize,
}

impl BlockHandle {
    fn read(reader: &mut ByteReader<'_>) -> Option<Self> {
        Some(Self { offset: reader.number()?, len: reader.size()? })
    }
}

/// Returns the path of the table with this number. Newer programs name tables .ldb, older programs
/// .sst.
pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    let (new, old) = (dir.join(format!("{number:06}.ldb")), dir.join(format!("{number:06}.sst")));
    if !new.exists() && old.exists() { old } else { new }
}

/// Whether the table with this number exists. True if the file system returns an error.
pub(super) fn exists(dir: &Path, number: u64) -> bool {
    path(dir, number).try_exists().unwrap_or(true)
}

/// A reader of a table's entries after a key, in key order.
pub(super) struct TableReader {
    path: PathBuf,
    file: File,
    index: BlockReader,
    block: Option<BlockReader>,
    /// Entries up to this key are skipped.
    after: Vec<u8>,
}

impl TableReader {
    /// Opens the table with this number.
    pub(super) fn open(
        dir: &Path,
        number: u64,
        after: &[u8],
    ) -> Result<Self, (PathBuf, TableFault)> {
        let path = path(dir, number);
        let file = File::open(&path);
        let read = |file: File| {
            let bytes = file.metadata()?.len();
            let mut footer = [0; FOOTER_BYTES];
            let footer_at = bytes.checked_sub(FOOTER_BYTES as u64);
            let footer_at = footer_at.ok_or(TableFault::Damage("it is shorter than a table"))?;
            file.read_exact_at(&mut footer, footer_at)?;
            let damage = TableFault::Damage("its footer is damaged");
            if !footer.ends_with(&MAGIC) {
                return Err(damage);
            }
            let mut handles = ByteReader(&footer);
            let other = BlockHandle::read(&mut handles);
            let index = other.and_then(|_| BlockHandle::read(&mut handles)).ok_or(damage)?;
            Ok((read_block(&file, index)?, file))
        };
        match file.map_err(TableFault::from).and_then(read) {
            Ok((index, file)) => Ok(Self { path, file, index, block: None, after: after.to_vec() }),
            Err(fault) => Err((path, fault)),
        }
    }

    /// Returns the next entry. Damaged blocks are counted and skipped.
    pub(super) fn next(&mut self, state: &mut ScanState) -> Result<Option<Entry>, FileError> {
        loop {
            match self.step(state) {
                Ok(step) => match step {
                    TableStep::Entry(entry) => return Ok(Some(entry)),
                    TableStep::Skip => {}
                    TableStep::End => return Ok(None),
                },
                Err(TableFault::Damage(words)) => {
                    state.damage(&self.path, words);
                    self.block = None;
                }
                Err(TableFault::File(error)) => {
                    return Err(FileError { path: self.path.clone(), error });
                }
            }
        }
    }

    fn step(&mut self, state: &mut ScanState) -> Result<TableStep, TableFault> {
        let Some(block) = &mut self.block else { return self.next_block(state) };
        if !block.advance().ok_or(TableFault::Damage("an entry is damaged"))? {
            self.block = None;
            return Ok(TableStep::Skip);
        }
        let key = InternalKey::read(&block.key).ok_or(TableFault::Damage("a key is damaged"))?;
        if key.user <= &self.after[..] && !self.after.is_empty() {
            return Ok(TableStep::Skip);
        }
        let value = (!key.is_deletion).then(|| block.value().to_vec());
        Ok(TableStep::Entry(Entry { key: key.user.to_vec(), sequence: key.sequence, value }))
    }

    /// Moves to the next block, and opens this block if it may have keys after `after`.
    fn next_block(&mut self, state: &mut ScanState) -> Result<TableStep, TableFault> {
        let damage = TableFault::Damage("its index is damaged");
        let Some(has_more) = self.index.advance() else {
            // The rest of the index cannot be read.
            self.index.at = self.index.end;
            return Err(damage);
        };
        if !has_more {
            return Ok(TableStep::End);
        }
        let handle = BlockHandle::read(&mut ByteReader(self.index.value())).ok_or(damage)?;
        state.bytes_done += handle.len as u64;
        let last = self.index.key.split_last_chunk::<8>();
        if last.is_none_or(|(user, _)| user >= &self.after[..]) {
            self.block = Some(read_block(&self.file, handle)?);
        }
        Ok(TableStep::Skip)
    }
}

/// The result of one step through a table.
enum TableStep {
    Entry(Entry),
    Skip,
    End,
}

fn read_block(file: &File, handle: BlockHandle) -> Result<BlockReader, TableFault> {
    const DAMAGED: TableFault = TableFault::Damage("a block is damaged");
    if handle.len > BLOCK_BYTES_MAX {
        return Err(TableFault::Damage("a block is too long"));
    }
    // The length itself may be damaged, so it is compared with the file's length before a buffer is
    // allocated.
    let end = handle.offset.checked_add((handle.len + TRAILER_BYTES) as u64);
    if end.is_none_or(|end| file.metadata().is_ok_and(|found| end > found.len())) {
        return Err(TableFault::Damage("a block reaches beyond its end"));
    }
    let mut bytes = vec![0; handle.len + TRAILER_BYTES];
    file.read_exact_at(&mut bytes, handle.offset)?;
    let (covered, sum) = bytes.split_last_chunk().ok_or(DAMAGED)?;
    if checksum(covered) != u32::from_le_bytes(*sum) {
        return Err(DAMAGED);
    }
    let (compression, stored) = covered.split_last().ok_or(DAMAGED)?;
    let block = match *compression {
        PLAIN => stored.to_vec(),
        SNAPPY => {
            let len = snap::raw::decompress_len(stored).map_err(|_| DAMAGED)?;
            if len > BLOCK_BYTES_MAX {
                return Err(TableFault::Damage("a block is too long"));
            }
            snap::raw::Decoder::new().decompress_vec(stored).map_err(|_| DAMAGED)?
        }
        _ => return Err(TableFault::Damage("a block is compressed in a way that is not known")),
    };
    BlockReader::new(block).ok_or(DAMAGED)
}
