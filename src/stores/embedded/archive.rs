//! An archive in files: its lock, and whether the archive exists.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use hark_archive::Store;
use hark_store_embedded::backup::BackupCatalog;
use hark_store_embedded::disk::{RealDisk, make_dir};
use hark_store_embedded::{DirectoryLock, DiskReserve, LockError, ShelfOpenError, permissions};

use super::check::check;
use super::full::disk_is_full;
use super::making::{Making, RESTORE, SALVAGE};
use super::rebuild::rebuild;
use super::served;
use super::shelf::FileShelf;
use crate::config::setups;
use crate::owner;
use crate::stores::{
    ArchiveCheck, ArchiveHeld, ArchiveRebuild, ArchiveStore, CheckMeter, ServedStore, ShelfPlace,
    StoreFacts, StoreLock,
};

/// An archive in the files of a directory.
pub(crate) struct FileArchive {
    data: PathBuf,
    /// Reserved disk space for use when the disk is full.
    reserve: Arc<DiskReserve>,
}

impl FileArchive {
    pub(crate) fn new(data: &Path) -> Self {
        let reserve = Arc::new(DiskReserve::new(data, Arc::new(RealDisk)));
        Self { data: data.into(), reserve }
    }

    /// Returns a shelf of the archive.
    pub(crate) fn shelf<'a>(&'a self, place: ShelfPlace<'a>) -> FileShelf<'a> {
        FileShelf { place, reserve: &self.reserve }
    }

    /// Whether the archive has the shelf of any network.
    fn is_created(&self) -> bool {
        setups().iter().any(|setup| self.data.join(setup.network.name()).is_dir())
    }

    /// Fails, with advice, if the directory contains a backup or an incomplete archive.
    fn must_be_an_archive(&self) -> anyhow::Result<()> {
        let data = self.data.display();
        if BackupCatalog::path(&self.data).exists() {
            bail!(
                "{data} holds a backup, which is not written or served; restore it to another \
                 directory: hark --data NEW restore {data}"
            );
        }
        for Making { command, unfinished, finished } in [RESTORE, SALVAGE] {
            if [unfinished, finished].iter().any(|part| self.data.join(part).exists()) {
                bail!(
                    "a {command} into {data} was interrupted; run `hark {command}` again to finish it"
                );
            }
        }
        Ok(())
    }

    /// Acquires the archive's lock, which only one process can hold.
    pub(crate) fn directory_lock(&self) -> anyhow::Result<DirectoryLock> {
        self.must_be_an_archive()?;
        make_dir(&RealDisk, &self.data).with_context(|| {
            format!(
                "the archive's directory {} could not be made; name a writable one with --data",
                self.data.display()
            )
        })?;
        let mut lock = DirectoryLock::acquire(&self.data);
        if lock.as_ref().is_err_and(LockError::is_disk_full) && self.reserve.remove_file()? {
            lock = DirectoryLock::acquire(&self.data);
        }
        lock.map_err(|error| match error {
            LockError::Held { pid, .. } => ArchiveHeld { pid, data: self.data.clone() }.into(),
            other @ LockError::Io { .. } if other.is_disk_full() => {
                anyhow::Error::new(other).context(disk_is_full(&self.data))
            }
            other @ LockError::Io { .. } if other.is_denied() => {
                anyhow::Error::new(other).context(owner::denied(&self.data))
            }
            other @ LockError::Io { .. } => anyhow::Error::new(other).context(format!(
                "the archive in {} could not be locked; its directory must be writable, or name \
                 another with --data",
                self.data.display()
            )),
        })
    }
}

impl ArchiveStore for FileArchive {
    fn facts(&self) -> StoreFacts {
        StoreFacts {
            name: "embedded",
            is_in_directory: true,
            is_remote: false,
            batch_records: 1_024,
        }
    }

    fn shown(&self, shelf: &ShelfPlace<'_>) -> String {
        shelf.dir().display().to_string()
    }

    fn exists(&self, shelf: &ShelfPlace<'_>) -> bool {
        shelf.dir().is_dir()
    }

    fn must_exist(&self, shelf: &ShelfPlace<'_>) -> anyhow::Result<()> {
        self.must_be_an_archive()?;
        if self.exists(shelf) {
            return Ok(());
        }
        let looked = std::fs::metadata(shelf.dir());
        if looked.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            bail!("{}", owner::denied(&shelf.dir()));
        }
        let (data, records) = (self.data.display(), shelf.network.records());
        if self.is_created() {
            bail!(
                "the archive in {data} has no {records}: nothing of the network {} was ever kept in it",
                shelf.network.name()
            );
        }
        bail!(
            "there is no archive in {data}; name the directory of one (--data), or create one with \
             `hark serve` or `hark import`"
        )
    }

    fn lock(&self) -> anyhow::Result<StoreLock> {
        self.directory_lock().map(StoreLock::new)
    }

    fn open(&self, shelf: &ShelfPlace<'_>) -> anyhow::Result<Arc<dyn Store>> {
        Ok(Arc::new(self.shelf(*shelf).open()?))
    }

    fn open_read_only(&self, shelf: &ShelfPlace<'_>) -> anyhow::Result<Arc<dyn Store>> {
        Ok(Arc::new(self.shelf(*shelf).open_read_only()?))
    }

    fn check(&self, shelf: &ShelfPlace<'_>, steps: CheckMeter<'_>) -> anyhow::Result<ArchiveCheck> {
        self.must_exist(shelf)?;
        check(&self.shelf(*shelf), steps)
    }

    fn rebuild(
        &self,
        shelf: &ShelfPlace<'_>,
        steps: CheckMeter<'_>,
    ) -> anyhow::Result<ArchiveRebuild> {
        self.must_exist(shelf)?;
        rebuild(&self.shelf(*shelf), self.directory_lock()?, steps)
    }

    fn serve(self: Arc<Self>, takeover: Option<&[&str]>) -> anyhow::Result<ServedStore> {
        let taken = match takeover {
            Some(shelves) => served::take_over(&self.data, shelves)?,
            None => None,
        };
        let (lock, taking) = match taken {
            Some((lock, taking)) => (lock, Some(taking)),
            None => (self.directory_lock()?, None),
        };
        if let Some(warning) = permissions::warning(&self.data)? {
            tracing::warn!("{warning}");
        }
        Ok(served::serve(Arc::clone(&self.reserve), lock, taking))
    }

    fn lacks(&self, _: &ShelfPlace<'_>, error: &anyhow::Error) -> bool {
        // This error means that the shelf is missing, and that a full disk has no room for a new
        // shelf.
        matches!(error.downcast_ref(), Some(ShelfOpenError::Missing(_)))
    }
}
