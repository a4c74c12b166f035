//! Writing a backup into one file, from front to back. docs/format.md describes the format.
//!
//! The copies of logs come first. A line before each copy names the log. A copy stays in the file
//! even if maintenance replaces the log before the backup is complete. The catalog at the end of
//! the file lists the copies that are valid.

use std::io;
use std::path::Path;

use super::BackupError;
use super::catalog::{BackupCatalog, LogCopy};
use super::copy::BackedUpLog;
use super::shelf_copy::{BackupSource, CopyTarget, ShelfCopying};
use super::take::{BackupResult, CopiedShelf, small_files};
use crate::disk::DiskFile;

/// Version of the file's format that this program writes.
pub(super) const VERSION: u32 = 1;
/// The first words of the file's lines: of the first line, of the line before each copy, of the
/// line before the catalog, and of the last line.
pub(super) const HEAD: &str = "hark-backup-file ";
pub(super) const COPY: &str = "copy ";
pub(super) const CATALOG: &str = "catalog ";
pub(super) const SUM: &str = "crc32c ";

/// Copies an archive into a file. Errors name `path` as the file. On return the file is durable.
/// `progress` receives the bytes done so far and the total.
pub fn pack(
    from: &BackupSource<'_>,
    to: (&mut dyn DiskFile, &Path),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupResult, BackupError> {
    pack_shelves(from, to, &mut |name, target| {
        if !from.has(name)? {
            return Ok(None);
        }
        ShelfCopying::new(from, name, Vec::new(), target).run(progress).map(Some)
    })
}

/// Copies one shelf to a target; returns `None` if the archive has no such shelf.
pub(super) type ShelfPacker<'a> =
    &'a mut dyn FnMut(&str, &mut dyn CopyTarget) -> Result<Option<CopiedShelf>, BackupError>;

/// Copies all shelves into a file by `copy`. Errors name `path` as the file. On return the file is
/// durable.
pub(super) fn pack_shelves(
    from: &BackupSource<'_>,
    (to, path): (&mut dyn DiskFile, &Path),
    copy: ShelfPacker<'_>,
) -> Result<BackupResult, BackupError> {
    let io = BackupError::io(path);
    let mut to = SummedFile { to, crc: 0 };
    to.write_all(format!("{HEAD}{VERSION}\n").as_bytes()).map_err(&io)?;
    let mut result = BackupResult::default();
    // The small files come first, as in a backup directory.
    let files = small_files(from)?;
    let mut catalog = BackupCatalog { time_s: from.now_s, shelves: Vec::new(), files };
    for shelf in from.shelves {
        let mut target = FileTarget { to: &mut to, path, shelf };
        if let Some((backup, saved)) = copy(shelf, &mut target)? {
            result.shelves.push(saved);
            catalog.shelves.push(backup);
        }
    }
    if result.shelves.is_empty() {
        return Err(BackupError::NoArchive(from.data.into()));
    }
    let catalog = catalog.text();
    let mut end = || {
        to.write_all(format!("{CATALOG}{}\n{catalog}", catalog.len()).as_bytes())?;
        let sum = to.crc;
        to.write_all(format!("{SUM}{sum:08x}\n").as_bytes())?;
        to.sync()
    };
    end().map_err(&io)?;
    Ok(result)
}

/// Writes the log copies of one shelf into the backup file.
struct FileTarget<'a, 'b> {
    to: &'a mut SummedFile<'b>,
    path: &'a Path,
    shelf: &'a str,
}

impl CopyTarget for FileTarget<'_, '_> {
    fn can_extend(&self) -> bool {
        false
    }

    fn write(
        &mut self,
        copy: &LogCopy,
        source: &mut BackedUpLog,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u32, BackupError> {
        let LogCopy { number, generation, salt, copy: nth, .. } = copy;
        let (shelf, bytes) = (self.shelf, source.bytes);
        let line = format!("{COPY}{shelf} {number} {generation} {salt} {bytes} {nth}\n");
        self.to.write_all(line.as_bytes()).map_err(BackupError::io(self.path))?;
        source.write_remaining((0, 0), (self.to, self.path), progress)
    }

    fn end_shelf(&mut self) -> Result<(), BackupError> {
        Ok(())
    }
}

/// A file, with the CRC32C of all bytes written so far.
struct SummedFile<'a> {
    to: &'a mut dyn DiskFile,
    crc: u32,
}

impl DiskFile for SummedFile<'_> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.to.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.to.sync()
    }

    fn reserve(&mut self, len: u64, end: u64) -> io::Result<()> {
        self.to.reserve(len, end)
    }
}
