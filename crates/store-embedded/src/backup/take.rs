//! Takes a backup into a directory, which may already have an older backup.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_archive::store::RetentionNote;

use super::BackupError;
use super::catalog::{BackupCatalog, LogCopy, SavedFile, ShelfBackup, file_name};
use super::copy::{BackedUpLog, damaged_copies};
use super::shelf_copy::{BackupSource, CopyTarget, KnownCopy, SavedShelf, ShelfCopying};
use crate::disk::{Disk, make_dir};
use crate::engine::retention_notes;

/// Maximum length of a small file that belongs to no shelf. Longer files are not backed up.
const FILE_BYTES_MAX: u64 = 4096;
/// The extensions of small files that are backed up although they belong to no shelf: `key` for a
/// node's key, and `online` for the time up to which a node has received every message.
const FILE_ENDINGS: [&str; 2] = ["key", "online"];

/// The archive to back up, and the directory of the backup.
pub struct BackupTask<'a> {
    /// The archive.
    pub from: BackupSource<'a>,
    /// The backup's directory. The caller holds the lock of the directory.
    pub dir: &'a Path,
    /// The backup's disk.
    pub to: Arc<dyn Disk>,
    /// Whether the copies of the former backup are verified and damaged copies are replaced.
    pub verify: bool,
}

/// The result of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupResult {
    /// The shelves that the archive has.
    pub shelves: Vec<SavedShelf>,
    /// Damaged copies of the former backup. Copies that the backup still needs have been replaced.
    pub damaged: Vec<PathBuf>,
}

/// Copies the new bytes of an archive to a backup, and then replaces the backup's catalog. Until
/// the catalog is replaced, and after any failure, the former backup stays valid. `progress`
/// receives the bytes done so far and the total.
pub fn back_up(
    task: &BackupTask<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupResult, BackupError> {
    let BackupTask { from, dir, .. } = task;
    let copy = &mut |shelf: ShelfTask<'_>, progress: &mut dyn FnMut(u64, u64)| {
        let ShelfTask { name, former, damaged, target, .. } = shelf;
        if !from.has(name)? {
            return Ok(None);
        }
        let known = target.known(former, damaged)?;
        let mut copying = ShelfCopying::new(from, name, known, target);
        if let Some(former) = former {
            if former.puts.is_some() {
                let (backup, shelf) = (dir.to_path_buf(), name.into());
                return Err(BackupError::OtherArchive { backup, shelf });
            }
            copying.expect(former.manifest.secret, dir);
        }
        copying.run(progress).map(Some)
    };
    back_up_shelves(task, copy, progress)
}

/// A shelf to be copied into the backup's directory.
pub(super) struct ShelfTask<'a> {
    pub(super) name: &'a str,
    /// The former backup of the shelf.
    pub(super) former: Option<&'a ShelfBackup>,
    /// Files of the former backup that are missing or damaged. Further files may be added.
    pub(super) damaged: &'a mut Vec<PathBuf>,
    pub(super) target: &'a mut DirectoryTarget<'a>,
    /// The new catalog, with the shelves that were copied before this shelf.
    pub(super) catalog: &'a BackupCatalog,
    /// Whether the directory has no complete backup yet.
    pub(super) is_first: bool,
}

/// Copies one shelf; returns `None` if the archive has no such shelf. The second argument receives
/// the progress.
pub(super) type ShelfCopier<'a> = &'a mut dyn FnMut(
    ShelfTask<'_>,
    &mut dyn FnMut(u64, u64),
) -> Result<Option<CopiedShelf>, BackupError>;

/// The new backup of a shelf, and its figures.
pub(super) type CopiedShelf = (ShelfBackup, SavedShelf);

/// Copies all shelves by `copy`, and then replaces the backup's catalog.
pub(super) fn back_up_shelves(
    task: &BackupTask<'_>,
    copy: ShelfCopier<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupResult, BackupError> {
    let (from, to, dir) = (&task.from, &*task.to, task.dir);
    let former = if let Some(former) = BackupCatalog::read(to, dir)? {
        former
    } else {
        // This catalog identifies the directory as a backup if the first backup is interrupted.
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
    // The small files are copied first: a node's `online` file promises that the node's shelf has
    // every message up to a time, so it must not be newer than the copy of the shelf.
    let files = small_files(from)?;
    let mut catalog = BackupCatalog { time_s: from.now_s, shelves: Vec::new(), files };
    for name in from.shelves {
        let known = former.shelves.iter().find(|known| known.name == *name);
        let mut target = DirectoryTarget { to, into: dir.join(name) };
        let shelf = ShelfTask {
            name,
            former: known,
            damaged: &mut result.damaged,
            target: &mut target,
            catalog: &catalog,
            is_first: former.time_s == 0,
        };
        let copied = copy(shelf, progress).inspect_err(|_| {
            // During a first backup, `copy` may already have written a catalog that names some
            // copies.
            if let Ok(Some(now)) = BackupCatalog::read(to, dir) {
                let named = now.shelves.iter().find(|known| known.name == *name);
                DirectoryTarget { to, into: dir.join(name) }.tidy(named);
            }
        })?;
        if let Some((backup, saved)) = copied {
            result.shelves.push(saved);
            catalog.shelves.push(backup);
        }
    }
    if result.shelves.is_empty() {
        return Err(BackupError::NoArchive(from.data.into()));
    }
    // If the archive no longer has a shelf, the shelf stays in the backup.
    let has = |name: &str| catalog.shelves.iter().any(|shelf| shelf.name == name);
    let gone: Vec<_> = former.shelves.iter().filter(|shelf| !has(&shelf.name)).cloned().collect();
    catalog.shelves.extend(gone);
    catalog.write(to, dir).map_err(BackupError::io(&BackupCatalog::path(dir)))?;
    for shelf in &catalog.shelves {
        remove_unnamed(to, &dir.join(&shelf.name), &[shelf])?;
    }
    Ok(result)
}

/// Reads the archive's files that belong to no shelf, and the times up to which the history of the
/// shelves is held.
pub(super) fn small_files(from: &BackupSource<'_>) -> Result<Vec<SavedFile>, BackupError> {
    let mut files = Vec::new();
    for name in from.shelves {
        let shelf = from.data.join(name);
        let held = retention_notes::read(&*from.disk, &shelf, RetentionNote::HeldUntil);
        match held {
            Ok(until) => files.extend(until.map(|until| SavedFile::held(name, until))),
            // The copy of the shelf fails as well, and names the owner.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(BackupError::io(&shelf)(error)),
        }
    }
    let listed = match from.disk.list(from.data) {
        // If the records are in a database, there may be no data directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        listed => listed.map_err(BackupError::io(from.data))?,
    };
    for (name, len) in listed {
        let path = from.data.join(&name);
        let ending = path.extension().and_then(|ending| ending.to_str());
        let is_ours = ending.is_some_and(|ending| FILE_ENDINGS.contains(&ending))
            && file_name(&name).is_some();
        if is_ours && len <= FILE_BYTES_MAX {
            let mut content = Vec::new();
            let read = from.disk.read(&path).and_then(|mut file| file.read_to_end(&mut content));
            match read {
                Ok(_) => files.push(SavedFile { name, content }),
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
                Err(error) => return Err(BackupError::io(&path)(error)),
            }
        }
    }
    Ok(files)
}

/// Removes the logs and the lists of puts that belong to none of these backups of a shelf.
fn remove_unnamed(
    disk: &dyn Disk,
    shelf: &Path,
    named: &[&ShelfBackup],
) -> Result<(), BackupError> {
    let copies = named.iter().flat_map(|backup| &backup.copies);
    let lists = named.iter().filter_map(|backup| backup.puts.as_ref());
    let named: HashSet<PathBuf> =
        copies.map(|copy| copy.path(shelf)).chain(lists.map(|list| list.path(shelf))).collect();
    for (dir, ending) in [(shelf.join("log"), "log"), (shelf.to_path_buf(), "puts")] {
        for (name, _) in disk.list(&dir).map_err(BackupError::io(&dir))? {
            let path = dir.join(&name);
            if path.extension().is_some_and(|found| found == ending) && !named.contains(&path) {
                disk.remove(&path).map_err(BackupError::io(&path))?;
            }
        }
    }
    Ok(())
}

/// A shelf's directory in a backup, as the target of the shelf's copies.
pub(super) struct DirectoryTarget<'a> {
    pub(super) to: &'a dyn Disk,
    pub(super) into: PathBuf,
}

impl DirectoryTarget<'_> {
    /// Creates the directory, and returns the copies of the former backup.
    pub(super) fn known(
        &self,
        former: Option<&ShelfBackup>,
        damaged: &[PathBuf],
    ) -> Result<Vec<KnownCopy>, BackupError> {
        let dir = self.into.join("log");
        make_dir(self.to, &dir).map_err(BackupError::io(&dir))?;
        let lengths: BTreeMap<String, u64> =
            self.to.list(&dir).map_err(BackupError::io(&dir))?.into_iter().collect();
        let last = former.and_then(|former| former.manifest.logs.last()).map(|log| log.number);
        let known = former.into_iter().flat_map(|former| &former.copies).map(|copy| {
            let is_there = lengths.get(&copy.name()).is_some_and(|len| *len >= copy.bytes)
                && !damaged.contains(&copy.path(&self.into));
            // A missing or damaged copy stays in the list with 0 bytes: its file name must not be
            // used again.
            let copy = if is_there { copy.clone() } else { LogCopy { bytes: 0, ..copy.clone() } };
            KnownCopy { is_all: last != Some(copy.number), copy }
        });
        Ok(known.collect())
    }

    /// After a failure, removes the copies that this backup made. Files that cannot be removed now
    /// are removed by the next backup.
    fn tidy(&self, former: Option<&ShelfBackup>) {
        let _ = remove_unnamed(self.to, &self.into, former.as_slice());
    }
}

impl CopyTarget for DirectoryTarget<'_> {
    fn can_extend(&self) -> bool {
        true
    }

    fn write(
        &mut self,
        copy: &LogCopy,
        source: &mut BackedUpLog,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u32, BackupError> {
        let path = copy.path(&self.into);
        let file = if copy.bytes == 0 {
            self.to.create(&path)
        } else {
            self.to.append(&path, copy.bytes, copy.bytes)
        };
        let mut file = file.map_err(BackupError::io(&path))?;
        let crc = source.write_remaining((copy.bytes, copy.crc), (&mut *file, &path), progress)?;
        file.sync().map_err(BackupError::io(&path))?;
        Ok(crc)
    }

    fn end_shelf(&mut self) -> Result<(), BackupError> {
        let dir = self.into.join("log");
        self.to.sync_dir(&dir).map_err(BackupError::io(&dir))
    }
}
