//! Errors of maintenance.

use std::io;
use std::path::PathBuf;

use crate::engine::open_error::ShelfOpenError;
use crate::log::LogError;
use crate::space::errors::{NoSpace, is_full, is_passing};

/// Why maintenance failed. The archive is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// A file could not be written, renamed or removed.
    #[error("maintenance of the archive failed: {0}")]
    Io(#[from] io::Error),
    /// A file that was written could not be opened again.
    #[error("maintenance of the archive failed: {0}")]
    Open(#[from] ShelfOpenError),
    /// Another process writes to the shelf.
    #[error("another process has taken over the archive; send the request to that process")]
    Resting,
    /// A log is damaged.
    #[error("{0}; run `hark check`")]
    Log(#[from] LogError),
    /// A segment is damaged, and so is a file from which it could be rebuilt.
    #[error(
        "{0} is damaged and is neither merged nor rewritten; stop the server and run `hark rebuild`"
    )]
    Damaged(PathBuf),
}

impl MaintenanceError {
    /// Whether the job failed because the disk was full.
    pub(super) fn wants_room(&self) -> bool {
        self.io_cause().is_some_and(is_full)
    }

    /// Whether the job failed because the system lacked something that it may have again later:
    /// disk space, file descriptors or memory.
    pub(super) fn is_passing(&self) -> bool {
        self.io_cause().is_some_and(is_passing)
    }

    /// Number of free bytes that the job requires; 0 if the disk had enough space.
    pub(super) fn wanted_bytes(&self) -> u64 {
        let cause = self.io_cause().and_then(|error| error.get_ref()?.downcast_ref::<NoSpace>());
        cause.map_or(0, NoSpace::wanted)
    }

    fn io_cause(&self) -> Option<&io::Error> {
        match self {
            Self::Io(error) => Some(error),
            Self::Open(error) => error.io_cause(),
            _ => None,
        }
    }

    /// Whether the job may succeed later with unchanged files.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Open(ShelfOpenError::Io { .. }) | Self::Resting)
    }
}
