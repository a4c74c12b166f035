//! Copies the logs of one shelf. A server may be writing to the shelf.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::BackupError;
use super::catalog::{LogCopy, ShelfBackup};
use super::copy::BackedUpLog;
use crate::disk::Disk;
use crate::engine::open_error::ShelfOpenError;
use crate::engine::shelf_dir::{existing_manifest, has_records, read_manifest};
use crate::log::{self, LogError};
use crate::manifest::{LogEntry, Manifest};

/// The archive to back up.
#[derive(Clone)]
pub struct BackupSource<'a> {
    /// The archive's directory.
    pub data: &'a Path,
    /// The names of all shelves that an archive may have.
    pub shelves: &'a [&'a str],
    /// The archive's disk.
    pub disk: Arc<dyn Disk>,
    /// The time, in seconds since 1970.
    pub now_s: u64,
}

impl BackupSource<'_> {
    /// Whether the archive has the shelf `name`. A shelf that has records but no MANIFEST is an
    /// error, since a backup without this shelf would look complete.
    pub(super) fn has(&self, name: &str) -> Result<bool, BackupError> {
        let shelf = self.data.join(name);
        if read_manifest(&*self.disk, &shelf)?.is_some() {
            return Ok(true);
        }
        if has_records(&*self.disk, &shelf).map_err(BackupError::io(&shelf))? {
            return Err(ShelfOpenError::NoManifest(shelf).into());
        }
        Ok(false)
    }
}

/// The figures of the backup of a shelf whose store has no logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutTotals {
    /// Number of records in the backup.
    pub records: u64,
    /// Number of records that this backup has added.
    pub added: u64,
    /// Number of records that the previous backup had and the store has no longer.
    pub deleted: u64,
    /// Whether all records were read, although there was a previous backup.
    pub anew: bool,
}

/// The numbers of logs and bytes in the backup of a shelf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedShelf {
    /// The shelf.
    pub name: String,
    /// Number of logs of the shelf.
    pub logs: u64,
    /// Total size of these logs, in bytes.
    pub bytes: u64,
    /// Number of logs from which this backup has copied bytes.
    pub logs_copied: u64,
    /// Number of bytes that this backup has copied.
    pub bytes_copied: u64,
    /// The figures of a shelf whose store has no logs.
    pub puts: Option<PutTotals>,
}

/// A copy that is already in the target.
#[derive(Clone)]
pub(super) struct KnownCopy {
    pub(super) copy: LogCopy,
    /// Whether the log was already complete when it was copied. If so, the copy has all bytes of
    /// the log.
    pub(super) is_all: bool,
}

/// The target of a shelf's copies.
pub(super) trait CopyTarget {
    /// Whether bytes can be appended to an existing copy. If false, a log that has grown is copied
    /// as a whole again.
    fn can_extend(&self) -> bool;

    /// Appends the remaining bytes of the source to the copy, and returns the CRC32C of the whole
    /// copy. `progress` receives the length of each piece that was written.
    fn write(
        &mut self,
        copy: &LogCopy,
        source: &mut BackedUpLog,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u32, BackupError>;

    /// Called after all logs of the shelf are copied.
    fn end_shelf(&mut self) -> Result<(), BackupError>;
}

/// One shelf while its logs are being copied.
pub(super) struct ShelfCopying<'a> {
    from: &'a dyn Disk,
    name: &'a str,
    /// The shelf in the archive.
    shelf: PathBuf,
    /// Copies that the former catalog names, and copies that this backup made.
    known: Vec<KnownCopy>,
    /// The shelf's secret according to the former backup, and the backup's directory.
    expected: Option<([u8; crate::term::SECRET], &'a Path)>,
    target: &'a mut dyn CopyTarget,
    saved: SavedShelf,
}

impl<'a> ShelfCopying<'a> {
    /// Prepares the copying of the shelf `name`. `known` lists the copies of the shelf's logs that
    /// the target already has.
    pub(super) fn new(
        from: &'a BackupSource<'_>,
        name: &'a str,
        known: Vec<KnownCopy>,
        target: &'a mut dyn CopyTarget,
    ) -> Self {
        let (shelf, from) = (from.data.join(name), &*from.disk);
        let saved = SavedShelf { name: name.into(), ..SavedShelf::default() };
        Self { from, name, shelf, known, expected: None, target, saved }
    }

    /// Makes the copying fail unless the shelf's secret equals `secret`, the secret in the backup
    /// at `dir`.
    pub(super) fn expect(&mut self, secret: [u8; crate::term::SECRET], dir: &'a Path) {
        self.expected = Some((secret, dir));
    }

    /// Copies the logs that MANIFEST names, and begins again whenever maintenance has replaced
    /// MANIFEST.
    pub(super) fn run(
        mut self,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(ShelfBackup, SavedShelf), BackupError> {
        loop {
            let manifest = existing_manifest(self.from, &self.shelf)?;
            if let Some((secret, backup)) = self.expected
                && secret != manifest.secret
            {
                let (backup, shelf) = (backup.into(), self.name.into());
                return Err(BackupError::OtherArchive { backup, shelf });
            }
            match self.logs(&manifest, progress) {
                Ok(copies) => {
                    self.target.end_shelf()?;
                    self.saved.logs = copies.len() as u64;
                    self.saved.bytes = copies.iter().map(|copy| copy.bytes).sum();
                    let name = self.name.into();
                    let backup = ShelfBackup { name, manifest, copies, puts: None };
                    return Ok((backup, self.saved));
                }
                Err(error) if error.is_stale() => {
                    let now = read_manifest(self.from, &self.shelf)?;
                    if now.as_ref() == Some(&manifest) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn logs(
        &mut self,
        manifest: &Manifest,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<LogCopy>, BackupError> {
        let dir = self.shelf.join("log");
        let lengths = self.from.list(&dir).map_err(BackupError::io(&dir))?;
        let lengths: BTreeMap<String, u64> = lengths.into_iter().collect();
        let length = |log: &LogEntry| {
            let path = log::path(&self.shelf, log.number, log.generation);
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            lengths.get(&name).copied().unwrap_or_default()
        };
        let total = manifest.logs.iter().map(length).sum();
        let lengths: Vec<u64> = manifest.logs.iter().map(length).collect();
        let last = manifest.logs.last().map(|log| log.number);
        let (mut copies, mut done) = (Vec::new(), 0);
        for (log, len) in manifest.logs.iter().zip(lengths) {
            let is_last = last == Some(log.number);
            let copy = self.log(log, len, is_last, &mut |bytes| progress(done + bytes, total))?;
            copies.push(copy);
            done += len;
            progress(done, total);
        }
        Ok(copies)
    }

    /// Copies the new bytes of a log that has `len` bytes.
    fn log(
        &mut self,
        log: &LogEntry,
        len: u64,
        is_last: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<LogCopy, BackupError> {
        let path = log::path(&self.shelf, log.number, log.generation);
        let io = BackupError::io(&path);
        let salt = self.salt(log, &path)?;
        let same = |known: &&KnownCopy| known.copy.is_of(log);
        let is_of_this = |known: &&KnownCopy| known.copy.salt == salt && known.copy.bytes > 0;
        let known = self.known.iter().rev().find(same).filter(is_of_this).cloned();
        if let Some(known) = &known
            && known.is_all
            && !is_last
            && known.copy.bytes == len
        {
            return Ok(known.copy.clone());
        }
        // All frames are read first, so that damaged bytes never replace an undamaged copy.
        let id = (log.number, log.generation);
        let replay = if is_last { log::replay } else { log::replay_whole };
        let end = replay(self.from, &path, id, &mut |_, _| {})?;
        // The bytes look like a torn end, but an earlier backup copied them as whole batches.
        if known.as_ref().is_some_and(|known| (end.good + 1..=end.len).contains(&known.copy.bytes))
        {
            return Err(LogError::Damaged { path: path.clone(), offset: end.good }.into());
        }
        let open = || -> Result<BackedUpLog, BackupError> {
            let from = self.from.read(&path).map_err(&io)?;
            Ok(BackedUpLog { from, path: path.clone(), bytes: end.good })
        };
        let mut source = open()?;
        let (copy, bytes_before) = match known {
            Some(KnownCopy { copy, .. })
                if (self.target.can_extend() || copy.bytes == source.bytes)
                    && source.begins_with(&copy)? =>
            {
                let bytes = copy.bytes;
                (copy, bytes)
            }
            _ => {
                source = open()?;
                let used = self.known.iter().filter(same).map(|known| known.copy.copy + 1).max();
                let copy = used.unwrap_or_default();
                let (number, generation) = id;
                (LogCopy { number, generation, salt, bytes: 0, crc: 0, copy }, 0)
            }
        };
        let copy = self.extend(copy, &mut source, progress)?;
        self.saved.logs_copied += u64::from(copy.bytes > bytes_before);
        self.saved.bytes_copied += copy.bytes - bytes_before;
        self.known.push(KnownCopy { copy: copy.clone(), is_all: !is_last });
        Ok(copy)
    }

    /// Appends the remaining bytes of the source to a copy.
    fn extend(
        &mut self,
        copy: LogCopy,
        source: &mut BackedUpLog,
        progress: &mut dyn FnMut(u64),
    ) -> Result<LogCopy, BackupError> {
        if copy.bytes == source.bytes {
            return Ok(copy);
        }
        let mut written = 0;
        let crc = self.target.write(&copy, source, &mut |bytes| {
            written += bytes;
            progress(written);
        })?;
        Ok(LogCopy { bytes: source.bytes, crc, ..copy })
    }

    fn salt(&self, log: &LogEntry, path: &Path) -> Result<u32, BackupError> {
        let mut header = Vec::new();
        let read = self.from.read(path);
        read.and_then(|file| file.take(log::HEADER).read_to_end(&mut header))
            .map_err(BackupError::io(path))?;
        let salt = log::salt(&header, log.number, log.generation);
        salt.ok_or_else(|| LogError::Header { path: path.into() }.into())
    }
}
