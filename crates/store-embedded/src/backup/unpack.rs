//! Reads a backup in one file, in one pass from front to back, so the file may be a pipe.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};

use super::BackupError;
use super::catalog::{BackupCatalog, LogCopy, ShelfBackup, file_name};
use super::copy::pass;
use super::pack::{CATALOG, COPY, HEAD, SUM, VERSION};
use crate::disk::{Disk, make_dir};
use crate::log;

/// Maximum length of a line and of the catalog, in bytes. The catalog may list some hundred
/// thousand logs.
const LINE_BYTES_MAX: u64 = 1 << 10;
const CATALOG_BYTES_MAX: u64 = 64 << 20;
/// Size of a read in bytes.
const READ_BYTES: usize = 256 << 10;

/// Reads a backup in one file, writes its logs durably to `dir`, each shelf in its own directory,
/// and returns the catalog. Every byte of the file is verified by a checksum. The caller then
/// completes each shelf with [`restore_unpacked`](super::restore_unpacked). Errors name `path` as
/// the file, and `progress` receives the length of each piece that was read.
pub fn unpack(
    from: &mut dyn Read,
    path: &Path,
    (to, dir): (&dyn Disk, &Path),
    progress: &mut dyn FnMut(u64),
) -> Result<BackupCatalog, BackupError> {
    let mut from =
        PackReader { from: BufReader::with_capacity(READ_BYTES, from), path, at: 0, crc: 0 };
    let head = from.line().map_err(|error| match error {
        BackupError::Packed { .. } => BackupError::Foreign(path.into()),
        other => other,
    })?;
    match head.strip_prefix(HEAD).map(str::parse) {
        Some(Ok(VERSION)) => {}
        Some(Ok(version)) => return Err(BackupError::Version { path: path.into(), version }),
        _ => return Err(BackupError::Foreign(path.into())),
    }
    let mut copies = BTreeMap::new();
    let catalog = loop {
        let (at, line) = (from.at, from.line()?);
        if let Some(bytes) = line.strip_prefix(CATALOG) {
            break from.catalog(bytes)?;
        }
        let (shelf, copy) = copy_line(&line).ok_or_else(|| from.damaged(at))?;
        let unpacked = copy.path(&dir.join(shelf));
        if copies.contains_key(&unpacked) {
            return Err(from.damaged(at));
        }
        let copy = from.copy(&copy, (to, &unpacked), progress)?;
        copies.insert(unpacked, (copy, at));
    };
    from.end()?;
    let is_known =
        |path: &Path| catalog.shelves.iter().any(|shelf| path.starts_with(dir.join(&shelf.name)));
    if let Some((_, at)) = copies.iter().find(|(path, _)| !is_known(path)).map(|(_, copy)| copy) {
        return Err(from.damaged(*at));
    }
    for shelf in &catalog.shelves {
        place(shelf, &copies, (to, &dir.join(&shelf.name)), path)?;
    }
    Ok(catalog)
}

/// Parses the line before a copy: the name of the shelf, and the copy without its checksum.
fn copy_line(line: &str) -> Option<(String, LogCopy)> {
    let mut words = line.strip_prefix(COPY)?.split(' ');
    let mut word = || words.next();
    let shelf = file_name(word()?)?;
    let copy = LogCopy {
        number: word()?.parse().ok()?,
        generation: word()?.parse().ok()?,
        salt: word()?.parse().ok()?,
        bytes: word()?.parse().ok()?,
        copy: word()?.parse().ok()?,
        crc: 0,
    };
    word().is_none().then_some((shelf, copy))
}

/// Renames the files of the copies in the catalog to the names of their logs, and removes all other
/// copies.
fn place(
    backup: &ShelfBackup,
    copies: &BTreeMap<PathBuf, (LogCopy, u64)>,
    (to, shelf): (&dyn Disk, &Path),
    file: &Path,
) -> Result<(), BackupError> {
    let dir = shelf.join("log");
    make_dir(to, &dir).map_err(BackupError::io(&dir))?;
    let mut placed = HashSet::new();
    for log in &backup.manifest.logs {
        // The parser of the catalog has checked that each log has a copy.
        let Some(copy) = backup.copy_of(log) else { continue };
        let unpacked = copy.path(shelf);
        match copies.get(&unpacked) {
            Some((found, _)) if found == copy => {}
            Some((_, offset)) => {
                return Err(BackupError::Packed { path: file.into(), offset: *offset });
            }
            None => return Err(BackupError::Packed { path: file.into(), offset: 0 }),
        }
        let path = log::path(shelf, log.number, log.generation);
        to.rename(&unpacked, &path).map_err(BackupError::io(&unpacked))?;
        placed.insert(unpacked);
    }
    let others = copies.keys().filter(|path| path.starts_with(&dir) && !placed.contains(*path));
    for other in others {
        to.remove(other).map_err(BackupError::io(other))?;
    }
    Ok(())
}

/// The backup's file, with the CRC32C of all bytes read so far.
struct PackReader<'a> {
    from: BufReader<&'a mut dyn Read>,
    path: &'a Path,
    /// Number of bytes read so far, and their CRC32C.
    at: u64,
    crc: u32,
}

impl PackReader<'_> {
    /// Reads a line, and returns the line without its end.
    fn line(&mut self) -> Result<String, BackupError> {
        let mut line = Vec::new();
        let read = (&mut self.from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        read.map_err(BackupError::io(self.path))?;
        let start = self.at;
        self.at += line.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, &line);
        let is_whole = line.pop() == Some(b'\n');
        let line = String::from_utf8(line).ok().filter(|_| is_whole);
        line.ok_or_else(|| self.damaged(start))
    }

    /// Writes a copy of a log to its file, and returns the copy with its checksum.
    fn copy(
        &mut self,
        copy: &LogCopy,
        (to, path): (&dyn Disk, &Path),
        progress: &mut dyn FnMut(u64),
    ) -> Result<LogCopy, BackupError> {
        if let Some(dir) = path.parent() {
            make_dir(to, dir).map_err(BackupError::io(dir))?;
        }
        let mut file = to.create(path).map_err(BackupError::io(path))?;
        let mut failed = None;
        let crc = pass(&mut self.from, copy.bytes, 0, &mut |piece| {
            progress(piece.len() as u64);
            file.write_all(piece).map_err(|cause| {
                failed = Some(cause);
                io::ErrorKind::WriteZero.into()
            })
        });
        if let Some(cause) = failed {
            return Err(BackupError::Io { path: path.into(), cause });
        }
        let crc = crc.map_err(|cause| self.cut(cause))?;
        self.at += copy.bytes;
        self.crc = crc32c::crc32c_combine(self.crc, crc, copy.bytes as usize);
        file.sync().map_err(BackupError::io(path))?;
        Ok(LogCopy { crc, ..copy.clone() })
    }

    /// Reads the catalog. `bytes` is the catalog's length, as text from the preceding line.
    fn catalog(&mut self, bytes: &str) -> Result<BackupCatalog, BackupError> {
        let bytes = bytes.parse().ok().filter(|bytes| *bytes <= CATALOG_BYTES_MAX);
        let bytes = bytes.ok_or_else(|| self.damaged(self.at))?;
        let mut text = Vec::new();
        (&mut self.from).take(bytes).read_to_end(&mut text).map_err(BackupError::io(self.path))?;
        if text.len() as u64 != bytes {
            return Err(self.damaged(self.at));
        }
        self.at += bytes;
        self.crc = crc32c::crc32c_append(self.crc, &text);
        BackupCatalog::of_text(&text, self.path.into())
    }

    /// Reads the last line, which has the checksum of all preceding bytes.
    fn end(&mut self) -> Result<(), BackupError> {
        let (at, expected) = (self.at, format!("{SUM}{:08x}", self.crc));
        let is_right = self.line()? == expected;
        let is_end = self.from.fill_buf().map_err(BackupError::io(self.path))?.is_empty();
        if is_right && is_end { Ok(()) } else { Err(self.damaged(at)) }
    }

    fn damaged(&self, offset: u64) -> BackupError {
        BackupError::Packed { path: self.path.into(), offset }
    }

    /// Returns the error for a failed read. An early end of the file counts as damage.
    fn cut(&self, cause: io::Error) -> BackupError {
        if cause.kind() == io::ErrorKind::UnexpectedEof {
            return self.damaged(self.at);
        }
        BackupError::Io { path: self.path.into(), cause }
    }
}
