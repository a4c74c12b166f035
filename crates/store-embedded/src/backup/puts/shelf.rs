//! The backup of one shelf of a store without logs.

use std::path::{Path, PathBuf};

use hark_archive::Record;

use super::list::{ListedPut, PutListReader, PutListWriter};
use super::logs::LogWriter;
use super::{PutSource, SourceError};
use crate::backup::BackupError;
use crate::backup::catalog::{LogCopy, PutListCopy, ShelfBackup, list_path};
use crate::backup::shelf_copy::{CopyTarget, PutTotals, SavedShelf};
use crate::disk::Disk;
use crate::manifest::Manifest;
use crate::term::SECRET;

/// Number of bytes after which the catalog of an incomplete first backup is written.
const CHECKPOINT_BYTES: u64 = if cfg!(test) { 1 << 16 } else { 256 << 20 };

/// A callback that receives the backup of a shelf as far as it is written.
pub(super) type OnCheckpoint<'a> = &'a mut dyn FnMut(ShelfBackup) -> Result<(), BackupError>;

/// The directory of a shelf in the backup, and the file of its new list.
#[derive(Clone)]
pub(super) struct ListPlace<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) shelf: PathBuf,
    /// The number of the new list.
    pub(super) file: u32,
}

impl ListPlace<'_> {
    fn path(&self) -> PathBuf {
        list_path(&self.shelf, self.file)
    }
}

/// The backup of one shelf while it is being written.
pub(super) struct ShelfWriting<'a> {
    name: &'a str,
    source: &'a mut dyn PutSource,
    logs: LogWriter<'a>,
    /// The new list; `None` if the backup is one file.
    list: Option<(PutListWriter, ListPlace<'a>)>,
    pub(super) totals: PutTotals,
}

impl<'a> ShelfWriting<'a> {
    /// Begins a backup. `former` is the former backup that is continued. If there is none, `first`
    /// is the number of the first log.
    pub(super) fn new(
        (name, source): (&'a str, &'a mut dyn PutSource),
        target: &'a mut dyn CopyTarget,
        former: Option<&ShelfBackup>,
        first: u32,
        place: Option<ListPlace<'a>>,
    ) -> Result<Self, BackupError> {
        let (manifest, copies) = match former {
            Some(former) => (former.manifest.clone(), former.copies.clone()),
            None => (new_manifest()?, Vec::new()),
        };
        let logs = LogWriter::new(target, (manifest, copies), first);
        let list = place.map(|place| {
            let path = place.path();
            let writer = PutListWriter::create(place.disk, &path).map_err(BackupError::io(&path));
            writer.map(|writer| (writer, place))
        });
        Ok(Self { name, source, logs, list: list.transpose()?, totals: PutTotals::default() })
    }

    /// Compares the former list with the store, whose history is the same up to the put `common`.
    /// Adds a deletion for each listed record whose number is greater than `common`. Of the records
    /// up to `common`, it adds a deletion for each that the store no longer has. Adds all other
    /// records to the new list. Returns the number above which the store has further records.
    /// Returns `None` if the store has a record again that it had deleted, because it went back to
    /// an earlier state. Then the caller must read all records.
    pub(super) fn compare(
        &mut self,
        mut former: PutListReader,
        common: u64,
        path: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<u64>, BackupError> {
        let mut after = 0;
        loop {
            let page = former.next_page().map_err(BackupError::io(path))?;
            let Some(last) = page.last() else { return Ok(Some(after.min(common))) };
            let to = last.number.min(common);
            let stored = if after < to {
                self.read(|source| source.numbers(after, to))?
            } else {
                Vec::new()
            };
            let mut stored = stored.into_iter().peekable();
            for put in &page {
                if stored.next_if_eq(&put.number).is_some() {
                    self.add(put)?;
                } else {
                    self.logs.delete(put.id, put.log)?;
                    self.totals.deleted += 1;
                }
                if stored.peek().is_some_and(|number| *number <= put.number) {
                    return Ok(None);
                }
            }
            if stored.next().is_some() {
                return Ok(None);
            }
            after = last.number;
            progress(self.totals.records, self.source.records());
        }
    }

    /// Adds all records with numbers above `after`. `checkpoint` receives the backup so far at
    /// intervals.
    pub(super) fn add_puts(
        &mut self,
        mut after: u64,
        mut checkpoint: Option<OnCheckpoint<'_>>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), BackupError> {
        let mut saved = self.logs.bytes_copied;
        loop {
            let page = self.read(|source| source.puts(after))?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = *last;
            for (number, record) in &page {
                let whole = Record::new(record).and_then(|found| found.check().map(|()| found));
                let Ok(found) = whole else {
                    let cause =
                        format!("the record of put {number} is damaged; `hark check` tells more");
                    return Err(self.failed(cause.into()));
                };
                let log = self.logs.put(record)?;
                self.add(&ListedPut { number: *number, id: *found.id(), log })?;
                self.totals.added += 1;
            }
            progress(self.totals.records, self.source.records());
            if let Some(checkpoint) = &mut checkpoint
                && self.logs.bytes_copied - saved >= CHECKPOINT_BYTES
            {
                saved = self.logs.bytes_copied;
                checkpoint(self.backup(Some(after))?)?;
            }
        }
    }

    /// Ends the backup of the shelf. On return everything is durable.
    pub(super) fn end(mut self) -> Result<(ShelfBackup, SavedShelf), BackupError> {
        let backup = self.backup(None)?;
        let saved = SavedShelf {
            name: self.name.into(),
            logs: backup.copies.len() as u64,
            bytes: backup.copies.iter().map(|copy| copy.bytes).sum(),
            logs_copied: self.logs.logs_copied,
            bytes_copied: self.logs.bytes_copied,
            puts: Some(self.totals),
        };
        Ok((backup, saved))
    }

    /// Makes everything durable, and returns the backup of the state up to the put `number`.
    fn backup(&mut self, number: Option<u64>) -> Result<ShelfBackup, BackupError> {
        self.logs.end()?;
        let puts = match &mut self.list {
            Some((list, place)) => {
                list.sync().map_err(BackupError::io(&place.path()))?;
                let (origin, position) = (self.source.origin(), self.source.position(number));
                place.disk.sync_dir(&place.shelf).map_err(BackupError::io(&place.shelf))?;
                let (file, puts, crc) = (place.file, list.puts, list.crc);
                Some(PutListCopy { file, puts, crc, origin, position })
            }
            None => None,
        };
        let (manifest, copies) = (self.logs.manifest.clone(), self.logs.copies.clone());
        Ok(ShelfBackup { name: self.name.into(), manifest, copies, puts })
    }

    fn add(&mut self, put: &ListedPut) -> Result<(), BackupError> {
        self.totals.records += 1;
        match &mut self.list {
            Some((list, place)) => {
                list.add(put).map_err(|cause| BackupError::io(&place.path())(cause))
            }
            None => Ok(()),
        }
    }

    fn read<T>(
        &mut self,
        read: impl FnOnce(&mut dyn PutSource) -> Result<T, SourceError>,
    ) -> Result<T, BackupError> {
        read(self.source).map_err(|cause| self.failed(cause))
    }

    fn failed(&self, cause: SourceError) -> BackupError {
        BackupError::Source { shelf: self.name.into(), cause }
    }
}

fn new_manifest() -> Result<Manifest, BackupError> {
    let mut secret = [0; SECRET];
    getrandom::fill(&mut secret)
        .map_err(|error| BackupError::io(Path::new("MANIFEST"))(std::io::Error::other(error)))?;
    Ok(Manifest { secret, next_segment: 1, ..Manifest::empty() })
}

/// The number of the first log of a backup that begins anew, so that its logs have other names than
/// the logs of the former backup.
pub(super) fn next_log(former: &[LogCopy]) -> u32 {
    former.last().map_or(1, |last| last.number + 1)
}
