//! Backups of all shelves of a store without logs, into a directory or one file.

use std::path::{Path, PathBuf};

use super::list::PutListReader;
use super::shelf::{ListPlace, OnCheckpoint, ShelfWriting, next_log};
use super::{PutSource, SourceError};
use crate::backup::BackupError;
use crate::backup::catalog::{BackupCatalog, PutListCopy, ShelfBackup};
use crate::backup::pack::pack_shelves;
use crate::backup::shelf_copy::BackupSource;
use crate::backup::take::{BackupResult, BackupTask, CopiedShelf, ShelfTask, back_up_shelves};
use crate::disk::{Disk, DiskFile};

/// Opens a shelf in its present state; returns `None` if the store has no such shelf.
pub type SourceOpener<'a> =
    &'a mut dyn FnMut(&str) -> Result<Option<Box<dyn PutSource>>, SourceError>;

/// Brings a backup in a directory up to date with a store without logs. Until the catalog is
/// replaced, and after any failure, the former backup stays valid. `progress` receives the records
/// done so far and the total. The data directory of `task` has only the small files.
pub fn back_up_puts(
    task: &BackupTask<'_>,
    open: SourceOpener<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupResult, BackupError> {
    let copy = &mut |shelf: ShelfTask<'_>, progress: &mut dyn FnMut(u64, u64)| {
        let Some(mut source) = opened(shelf.name, open)? else { return Ok(None) };
        copy_shelf(task, shelf, &mut *source, progress).map(Some)
    };
    back_up_shelves(task, copy, progress)
}

/// Writes a backup of a store without logs into a file. Errors name `path` as the file. On return
/// the file is durable. `progress` receives the records done so far and the total.
pub fn pack_puts(
    from: &BackupSource<'_>,
    to: (&mut dyn DiskFile, &Path),
    open: SourceOpener<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupResult, BackupError> {
    pack_shelves(from, to, &mut |name, target| {
        let Some(mut source) = opened(name, open)? else { return Ok(None) };
        let mut writing = ShelfWriting::new((name, &mut *source), target, None, 1, None)?;
        writing.add_puts(0, None, progress)?;
        writing.end().map(Some)
    })
}

fn opened(shelf: &str, open: SourceOpener<'_>) -> Result<Option<Box<dyn PutSource>>, BackupError> {
    open(shelf).map_err(|cause| BackupError::Source { shelf: shelf.into(), cause })
}

fn copy_shelf(
    task: &BackupTask<'_>,
    shelf: ShelfTask<'_>,
    source: &mut dyn PutSource,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CopiedShelf, BackupError> {
    let ShelfTask { name, former, damaged, target, catalog, is_first } = shelf;
    let (disk, into) = (&*task.to, target.into.clone());
    let mut found = None;
    if let Some(former) = former {
        let other = || BackupError::OtherArchive { backup: task.dir.into(), shelf: name.into() };
        let list = former.puts.as_ref().filter(|list| list.origin == source.origin());
        let list = list.ok_or_else(other)?;
        let common = source.common(&list.position).ok_or_else(other)?;
        found = Some((former, list, common));
    }
    let known = target.known(former, damaged)?;
    let lost = known.iter().filter(|known| known.copy.bytes == 0).map(|known| &known.copy);
    let mut lost: Vec<PathBuf> = lost.map(|copy| copy.path(&into)).collect();
    if let Some((_, list, _)) = found
        && !is_whole(disk, &into, list)
    {
        lost.push(list.path(&into));
    }
    if !lost.is_empty() {
        // The whole shelf is read again. Until the end, the former backup stays unchanged.
        damaged.extend(lost.into_iter().filter(|path| !damaged.contains(path)).collect::<Vec<_>>());
        found = None;
    }
    // If most records in the logs are deleted, all stored records are read anew.
    found = found.filter(|(former, list, _)| dead_records(former) <= list.puts);
    let first = next_log(former.map_or(&[], |former| &former.copies));
    let file = former.and_then(|former| former.puts.as_ref()).map_or(1, |list| list.file + 1);
    let place = ListPlace { disk, shelf: into.clone(), file };
    let mut checkpoint = |backup: ShelfBackup| {
        let mut catalog = BackupCatalog { time_s: 0, ..catalog.clone() };
        catalog.shelves.push(backup);
        catalog.write(disk, task.dir).map_err(BackupError::io(&BackupCatalog::path(task.dir)))
    };
    let checkpoint: Option<OnCheckpoint<'_>> = if is_first { Some(&mut checkpoint) } else { None };
    if let Some((former, list, common)) = found {
        let path = list.path(&into);
        let reader = PutListReader::open(disk, &into, list).map_err(BackupError::io(&path))?;
        let mut writing = ShelfWriting::new(
            (name, &mut *source),
            &mut *target,
            Some(former),
            first,
            Some(place.clone()),
        )?;
        if let Some(after) = writing.compare(reader, common, &path, progress)? {
            writing.add_puts(after, checkpoint, progress)?;
            return writing.end();
        }
    }
    let mut writing = ShelfWriting::new((name, source), target, None, first, Some(place))?;
    writing.totals.anew = former.is_some();
    writing.add_puts(0, checkpoint, progress)?;
    writing.end()
}

/// Number of deleted records in the logs.
fn dead_records(backup: &ShelfBackup) -> u64 {
    backup.manifest.logs.iter().map(|log| log.dead_records).sum()
}

/// Whether a list has its length and its checksum.
fn is_whole(disk: &dyn Disk, shelf: &Path, list: &PutListCopy) -> bool {
    let Ok(mut reader) = PutListReader::open(disk, shelf, list) else { return false };
    loop {
        match reader.next_page() {
            Ok(page) if page.is_empty() => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}
