//! Errors of opening a shelf.

use std::io;
use std::path::{Path, PathBuf};

use crate::log::LogError;
use crate::manifest::ManifestError;
use crate::space::errors::is_full;

/// Why a shelf could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ShelfOpenError {
    /// The directory has no archive, and the caller did not ask for a new archive.
    #[error(
        "there is no archive in {0}: start `hark serve` or `hark import` with this --data first"
    )]
    Missing(PathBuf),
    /// The manifest cannot be used.
    #[error("{path}: {cause}")]
    Manifest {
        /// The shelf.
        path: PathBuf,
        /// The cause.
        cause: ManifestError,
    },
    /// The shelf has logs, but no manifest.
    #[error(
        "{0} has logs but no MANIFEST: Hark does not guess which of them count. Run `hark rebuild`, \
         which makes a new one from the logs, or restore the archive from a backup"
    )]
    NoManifest(PathBuf),
    /// A log is damaged in a way that no crash can cause.
    #[error("{}", refusal(.0))]
    Log(LogError),
    /// A file could not be read or written.
    #[error("{path}: {cause}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
}

// The conversion is not `#[from]`, because the message already contains the text of the log error,
// and `#[from]` would print the text again as the cause.
impl From<LogError> for ShelfOpenError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

/// Describes the fault of a log and its remedy.
fn refusal(error: &LogError) -> String {
    match error {
        LogError::Damaged { .. } | LogError::Header { .. } => format!(
            "{error}. Cutting there would lose the records behind, so Hark does not. Restore the \
             archive from a backup, or bring all that is whole into a new archive with `hark salvage`"
        ),
        LogError::Io { .. } | LogError::TooLong { .. } => error.to_string(),
    }
}

impl ShelfOpenError {
    /// Whether the error names no remedy. Then `hark check` and `hark rebuild` may help.
    pub fn is_unexplained(&self) -> bool {
        matches!(self, Self::Io { .. })
    }

    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |cause| Self::Io { path: path.into(), cause }
    }

    /// Whether the shelf could not be opened because the disk is full.
    pub fn is_disk_full(&self) -> bool {
        self.io_cause().is_some_and(is_full)
    }

    /// Whether the shelf could not be opened because this process lacks permission for its files.
    pub fn is_denied(&self) -> bool {
        self.io_cause().is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
    }

    /// The error of the system, if a file could not be read or written.
    pub(crate) fn io_cause(&self) -> Option<&io::Error> {
        match self {
            Self::Io { cause, .. }
            | Self::Log(LogError::Io { cause, .. })
            | Self::Manifest { cause: ManifestError::Io(cause), .. } => Some(cause),
            _ => None,
        }
    }

    /// Whether a log is damaged. Indices can be rebuilt from logs, but a log cannot be rebuilt.
    pub fn is_damaged_log(&self) -> bool {
        let Self::Io { path, cause } = self else { return false };
        cause.kind() == io::ErrorKind::InvalidData && path.extension().is_some_and(|e| e == "log")
    }

    /// Whether a file that the manifest names is missing. Then another process that writes to the
    /// shelf may have replaced the manifest in the meantime.
    pub(super) fn is_stale(&self) -> bool {
        match self {
            Self::Io { cause, .. } | Self::Log(LogError::Io { cause, .. }) => {
                cause.kind() == io::ErrorKind::NotFound
            }
            _ => false,
        }
    }
}
