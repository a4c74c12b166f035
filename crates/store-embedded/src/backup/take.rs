//! Taking a backup, or bringing one up to date.

use std::collections::{BTreeMap, HashSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::BackupError;
use super::catalog::{BackupCatalog, LogCopy, SavedFile, ShelfBackup};
use super::copy::{LogSource, damaged_copies};
use crate::disk::{Disk, make_dir};
use crate::log::{self, LogError};
use crate::manifest::{LogEntry, Manifest};
use crate::open::{ShelfOpenError, read_manifest};

/// Most bytes of a file that belongs to no shelf; larger ones are left out.
const FILE_BYTES_MAX: u64 = 4096;
/// Endings of the files in the archive's directory that belong to no shelf and are saved: keys of
/// nodes, and up to when a node has missed nothing.
const FILE_ENDINGS: [&str; 2] = ["key", "online"];

/// What is to be backed up, and where to.
pub struct BackupTask<'a> {
    /// The archive's directory.
    pub data: &'a Path,
    /// The names of the shelves that the archive may have.
    pub shelves: &'a [&'a str],
    /// The archive's disk.
    pub from: Arc<dyn Disk>,
    /// The backup's directory. The caller holds its lock.
    pub dir: &'a Path,
    /// The backup's disk.
    pub to: Arc<dyn Disk>,
    /// Whether the copies of the former backup are read and those that are damaged made again.
    pub verify: bool,
    /// The time, in seconds since 1970.
    pub now_s: u64,
}

/// What a backup has copied of a shelf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedShelf {
    /// The shelf.
    pub name: String,
    /// Logs of the shelf, and their bytes.
    pub logs: u64,
    /// Bytes of these logs.
    pub bytes: u64,
    /// Logs of which something was copied now.
    pub logs_copied: u64,
    /// Bytes copied now.
    pub bytes_copied: u64,
}

/// What a backup has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupResult {
    /// The shelves that the archive has.
    pub shelves: Vec<SavedShelf>,
    /// Copies of the former backup that were damaged. Those that are still needed were made again.
    pub damaged: Vec<PathBuf>,
}

/// Copies what is new in an archive to a backup, and replaces the backup's catalog. Until that step
/// the former backup stays as it was, and it stays so if anything fails. `progress` gets the bytes
/// done so far, and of how many.
pub fn back_up(
    task: &BackupTask<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupResult, BackupError> {
    let (to, dir) = (&*task.to, task.dir);
    let former = if let Some(former) = BackupCatalog::read(to, dir)? {
        former
    } else {
        // What an interrupted first backup leaves behind is recognised by this catalog.
        let begun = BackupCatalog::default();
        begun.write(to, dir).map_err(BackupError::io(dir))?;
        begun
    };
    let mut result = BackupResult::default();
    if task.verify {
        let total = former.shelves.iter().flat_map(|shelf| &shelf.copies);
        let total = total.map(|copy| copy.bytes).sum();
        let mut read = 0;
        result.damaged = damaged_copies(to, dir, &former, &mut |bytes| {
            read += bytes;
            progress(read, total);
        });
    }
    // Small files first: the time up to which a node has missed nothing must not be later than what
    // its shelf has.
    let files = small_files(task)?;
    let mut catalog = BackupCatalog { time_s: task.now_s, shelves: Vec::new(), files };
    for name in task.shelves {
        let shelf = task.data.join(name);
        if read_manifest(&*task.from, &shelf)?.is_none() {
            continue;
        }
        let former = former.shelves.iter().find(|known| known.name == *name);
        let mut copying = ShelfCopying::new(task, name, former, &result.damaged)?;
        let backup = copying.run(progress).inspect_err(|_| copying.tidy(former))?;
        let mut saved = SavedShelf { name: (*name).into(), ..copying.saved };
        saved.logs = backup.copies.len() as u64;
        saved.bytes = backup.copies.iter().map(|copy| copy.bytes).sum();
        result.shelves.push(saved);
        catalog.shelves.push(backup);
    }
    // A shelf that the archive no longer has stays in the backup.
    let has = |name: &str| catalog.shelves.iter().any(|shelf| shelf.name == name);
    let gone: Vec<_> = former.shelves.iter().filter(|shelf| !has(&shelf.name)).cloned().collect();
    catalog.shelves.extend(gone);
    catalog.write(to, dir).map_err(BackupError::io(&BackupCatalog::path(dir)))?;
    for shelf in &catalog.shelves {
        remove_unnamed(to, &dir.join(&shelf.name), &[&shelf.copies])?;
    }
    Ok(result)
}

fn small_files(task: &BackupTask<'_>) -> Result<Vec<SavedFile>, BackupError> {
    let mut files = Vec::new();
    for (name, len) in task.from.list(task.data).map_err(BackupError::io(task.data))? {
        let path = task.data.join(&name);
        let ending = path.extension().and_then(|ending| ending.to_str());
        if len <= FILE_BYTES_MAX && ending.is_some_and(|ending| FILE_ENDINGS.contains(&ending)) {
            let mut content = Vec::new();
            let read = task.from.read(&path).and_then(|mut file| file.read_to_end(&mut content));
            read.map_err(BackupError::io(&path))?;
            files.push(SavedFile { name, content });
        }
    }
    Ok(files)
}

/// Removes the files that no copy in these lists names.
fn remove_unnamed(disk: &dyn Disk, shelf: &Path, named: &[&[LogCopy]]) -> Result<(), BackupError> {
    let named: HashSet<String> = named.iter().copied().flatten().map(LogCopy::name).collect();
    let dir = shelf.join("log");
    for (name, _) in disk.list(&dir).map_err(BackupError::io(&dir))? {
        let path = dir.join(&name);
        if path.extension().is_some_and(|ending| ending == "log") && !named.contains(&name) {
            disk.remove(&path).map_err(BackupError::io(&path))?;
        }
    }
    Ok(())
}

/// A copy on hand.
#[derive(Clone)]
struct KnownCopy {
    copy: LogCopy,
    /// Whether the log was no longer written when it was copied, so that the copy has all of it.
    is_all: bool,
}

/// The copying of one shelf.
struct ShelfCopying<'a> {
    from: &'a dyn Disk,
    to: &'a dyn Disk,
    name: &'a str,
    /// The shelf in the archive, and in the backup.
    shelf: PathBuf,
    into: PathBuf,
    /// Copies that the former catalog names, and those made now.
    known: Vec<KnownCopy>,
    secret: Option<[u8; crate::term::SECRET]>,
    backup: &'a Path,
    saved: SavedShelf,
}

impl<'a> ShelfCopying<'a> {
    fn new(
        task: &'a BackupTask<'_>,
        name: &'a str,
        former: Option<&ShelfBackup>,
        damaged: &[PathBuf],
    ) -> Result<Self, BackupError> {
        let (to, into) = (&*task.to, task.dir.join(name));
        let dir = into.join("log");
        make_dir(to, &dir).map_err(BackupError::io(&dir))?;
        let lengths: BTreeMap<String, u64> =
            to.list(&dir).map_err(BackupError::io(&dir))?.into_iter().collect();
        let last = former.and_then(|former| former.manifest.logs.last()).map(|log| log.number);
        let known = former.into_iter().flat_map(|former| &former.copies);
        let known = known.map(|copy| {
            let is_there = lengths.get(&copy.name()).is_some_and(|len| *len >= copy.bytes)
                && !damaged.contains(&copy.path(&into));
            // A copy that is not there is kept in mind with no bytes: its name is in use.
            let copy = if is_there { copy.clone() } else { LogCopy { bytes: 0, ..copy.clone() } };
            KnownCopy { is_all: last != Some(copy.number), copy }
        });
        Ok(Self {
            from: &*task.from,
            to,
            name,
            shelf: task.data.join(name),
            known: known.collect(),
            into,
            secret: former.map(|former| former.manifest.secret),
            backup: task.dir,
            saved: SavedShelf::default(),
        })
    }

    /// Copies the logs that MANIFEST names, beginning again whenever maintenance has replaced it.
    fn run(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<ShelfBackup, BackupError> {
        loop {
            let missing = || ShelfOpenError::Missing(self.shelf.clone());
            let manifest = read_manifest(self.from, &self.shelf)?.ok_or_else(missing)?;
            if self.secret.is_some_and(|secret| secret != manifest.secret) {
                let (backup, shelf) = (self.backup.into(), self.name.into());
                return Err(BackupError::OtherArchive { backup, shelf });
            }
            match self.logs(&manifest, progress) {
                Ok(copies) => {
                    let dir = self.into.join("log");
                    self.to.sync_dir(&dir).map_err(BackupError::io(&dir))?;
                    return Ok(ShelfBackup { name: self.name.into(), manifest, copies });
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

    /// Removes what this backup has made, after a failure. What cannot be removed is removed by the
    /// next backup.
    fn tidy(&self, former: Option<&ShelfBackup>) {
        let named = former.map_or(&[][..], |former| &former.copies);
        let _ = remove_unnamed(self.to, &self.into, &[named]);
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

    /// Copies what is new of a log of `len` bytes.
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
        // Reads all frames: what is damaged is not copied over what is whole.
        let id = (log.number, log.generation);
        let replay = if is_last { log::replay } else { log::replay_whole };
        let end = replay(self.from, &path, id, &mut |_, _| {})?;
        // What looks like a torn end was whole when it was copied.
        if known.as_ref().is_some_and(|known| (end.good + 1..=end.len).contains(&known.copy.bytes))
        {
            return Err(LogError::Damaged { path: path.clone(), offset: end.good }.into());
        }
        let open = || -> Result<LogSource, BackupError> {
            let from = self.from.read(&path).map_err(&io)?;
            Ok(LogSource { from, path: path.clone(), bytes: end.good })
        };
        let mut source = open()?;
        let (copy, bytes_before) = match known {
            Some(KnownCopy { copy, .. }) if source.begins_with(&copy)? => {
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

    /// Appends to a copy what the source has behind it.
    fn extend(
        &self,
        copy: LogCopy,
        source: &mut LogSource,
        progress: &mut dyn FnMut(u64),
    ) -> Result<LogCopy, BackupError> {
        if copy.bytes == source.bytes {
            return Ok(copy);
        }
        let path = copy.path(&self.into);
        let file = if copy.bytes == 0 {
            self.to.create(&path)
        } else {
            self.to.append(&path, copy.bytes, copy.bytes)
        };
        let mut file = file.map_err(BackupError::io(&path))?;
        let mut written = 0;
        let crc = source.write_rest((copy.bytes, copy.crc), (&mut *file, &path), &mut |bytes| {
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
