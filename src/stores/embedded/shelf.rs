//! A shelf in files: its options, and the ways to open the shelf.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hark_store_embedded::{DiskReserve, EmbeddedOptions, EmbeddedStore, ShelfOpenError};

use super::bounds::space_bounds;
use super::full::disk_is_full;
use crate::owner;
use crate::stores::ShelfPlace;

/// A shelf in files.
pub(crate) struct FileShelf<'a> {
    pub(super) place: ShelfPlace<'a>,
    /// Reserved disk space of the archive, for use when the disk is full.
    pub(super) reserve: &'a Arc<DiskReserve>,
}

impl FileShelf<'_> {
    /// The directory of the shelf.
    pub(crate) fn dir(&self) -> PathBuf {
        self.place.dir()
    }

    /// The options with which the shelf is opened.
    pub(crate) fn options(&self) -> EmbeddedOptions {
        let (config, settings) = (self.place.config, self.place.settings());
        let bounds = space_bounds(config, &settings.retention);
        EmbeddedOptions {
            seal_records: config.seal_records,
            log_bytes_max: bounds.log_bytes_max,
            head_bytes_max: config.head_bytes_max,
            dead_bytes_max: bounds.dead_bytes_max,
            scrub_within: Some(Duration::from_secs(config.scrub_days.saturating_mul(86_400))),
            listed_labels: self.place.network.nature().listed_labels,
            texts: settings.texts,
            erase_within: bounds.erase_within,
            free_bytes_min: bounds.free_bytes_min,
            reserve: Some(Arc::clone(self.reserve)),
            ..EmbeddedOptions::default()
        }
    }

    /// Opens the shelf for reading, even while a server is running.
    pub(super) fn open_read_only(&self) -> anyhow::Result<EmbeddedStore> {
        EmbeddedStore::open_read_only(&self.dir(), self.options()).map_err(|error| {
            self.not_opened(error, |shelf| {
                format!(
                    "the archive in {shelf} could not be opened for reading; nothing was changed. \
                     `hark check` lists its faults"
                )
            })
        })
    }

    /// Opens the shelf for writing. The caller must hold the archive's lock.
    pub(crate) fn open(&self) -> anyhow::Result<EmbeddedStore> {
        let rules = self.place.network.rules();
        EmbeddedStore::open(&self.dir(), rules, self.options()).map_err(|error| {
            let advice = if error.is_damaged_log() {
                ". Restore the archive from a backup with `hark restore --move-aside`, or copy all \
                 whole records into a new archive with `hark salvage`"
            } else if error.is_unexplained() {
                ". `hark check` lists its faults, and `hark rebuild` rebuilds its indices"
            } else {
                ""
            };
            self.not_opened(error, |shelf| {
                format!("the archive in {shelf} could not be opened; nothing was changed{advice}")
            })
        })
    }

    /// Opens the shelf read-only, after an attempt to open the shelf for writing has failed with
    /// `error`. Returns `error` unless the cause is a full disk. The returned store refuses writes
    /// with the reason.
    pub(super) fn open_refusing(&self, error: anyhow::Error) -> anyhow::Result<EmbeddedStore> {
        match error.downcast_ref::<ShelfOpenError>() {
            Some(cause) if cause.is_disk_full() => {}
            _ => return Err(error),
        }
        let dir = self.dir();
        let why = format!(
            "the disk is full, so the archive was opened for reading only; make room on the disk of \
             {}, then start Hark again",
            dir.display()
        );
        let store = EmbeddedStore::open_refusing(&dir, self.options(), why);
        store.with_context(|| disk_is_full(&dir))
    }

    /// Opens a shelf that the old server has released to this process in a takeover.
    pub(super) fn open_released(&self) -> anyhow::Result<EmbeddedStore> {
        let rules = self.place.network.rules();
        let store = EmbeddedStore::open_released(&self.dir(), rules, self.options());
        store.map_err(|error| {
            self.not_opened(error, |shelf| {
                format!(
                    "the archive in {shelf} could not be opened beside the running server, which \
                     continues. `hark check` says what is wrong with the archive"
                )
            })
        })
    }

    /// Adds to `error` why the shelf could not be opened. A full disk and files of another user
    /// have messages of their own. `words` returns the message for all other faults.
    pub(crate) fn not_opened(
        &self,
        error: ShelfOpenError,
        words: impl Fn(std::path::Display<'_>) -> String,
    ) -> anyhow::Error {
        let dir = self.dir();
        let words = if error.is_disk_full() {
            disk_is_full(&dir)
        } else if error.is_denied() {
            owner::denied(&dir)
        } else {
            words(Path::display(&dir))
        };
        anyhow::Error::new(error).context(words)
    }
}
