//! The archive that a backup reads: files, or the records of another store.

use std::path::Path;

use hark_store_embedded::backup::{
    BackupError, BackupResult, BackupSource, BackupTask, PutSource, SourceError, back_up,
    back_up_puts, pack, pack_puts,
};
use hark_store_embedded::disk::DiskFile;

use crate::config::setup;
use crate::location::ArchiveLocation;
use crate::stores::embedded::FileArchive;

/// The archive that a backup reads.
pub(super) struct BackedUpArchive<'a> {
    source: BackupSource<'a>,
    location: &'a ArchiveLocation,
}

impl<'a> BackedUpArchive<'a> {
    /// Returns the archive at `location`, opened for a backup. `source` names the archive's
    /// directory, which has the small files of every archive, and the logs of an archive in files.
    pub(super) fn new(source: BackupSource<'a>, location: &'a ArchiveLocation) -> Self {
        Self { source, location }
    }

    /// Whether the archive is in files.
    pub(super) fn is_files(&self) -> bool {
        self.location.store_as::<FileArchive>().is_some()
    }

    /// The directory of the archive.
    pub(super) fn source(&self) -> BackupSource<'a> {
        self.source.clone()
    }

    /// Brings a backup in a directory up to date. `progress` receives the amount done and the
    /// total: bytes of files, or records of another store.
    pub(super) fn back_up(
        &self,
        task: &BackupTask<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<BackupResult, BackupError> {
        if self.is_files() {
            return back_up(task, progress);
        }
        back_up_puts(task, &mut |shelf| self.open(shelf), progress)
    }

    /// Writes a backup into a file.
    pub(super) fn pack(
        &self,
        to: (&mut dyn DiskFile, &Path),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<BackupResult, BackupError> {
        if self.is_files() {
            return pack(&self.source, to, progress);
        }
        pack_puts(&self.source, to, &mut |shelf| self.open(shelf), progress)
    }

    fn open(&self, shelf: &str) -> Result<Option<Box<dyn PutSource>>, SourceError> {
        let Some(known) = setup(shelf) else { return Ok(None) };
        let location = self.location.of(known.network);
        let opened = location.store.put_source(&location.place());
        opened.map_err(|error| format!("{error:#}").into())
    }
}
