//! The entries of a LevelDB, the errors of its files, and the progress of a scan.

use std::path::{Path, PathBuf};

/// A key and its value.
pub(in crate::commands::adopt::mailserver) type LevelDbRow = (Vec<u8>, Vec<u8>);

/// A version of a key: a value, or a deletion mark.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    pub(super) sequence: u64,
    /// `None` if the key was deleted.
    pub(super) value: Option<Vec<u8>>,
}

/// A file that cannot be read.
pub(super) struct FileError {
    pub(super) path: PathBuf,
    pub(super) error: std::io::Error,
}

impl From<FileError> for anyhow::Error {
    fn from(FileError { path, error }: FileError) -> Self {
        Self::new(error).context(format!("{} cannot be read", path.display()))
    }
}

/// The progress of a scan, and the damage found so far.
#[derive(Debug, Default)]
pub(super) struct ScanState {
    pub(super) bytes_done: u64,
    pub(super) damaged: u64,
    pub(super) first_damage: String,
}

impl ScanState {
    /// Counts a damaged part of a file.
    pub(super) fn damage(&mut self, path: &Path, words: &str) {
        self.damaged += 1;
        if self.first_damage.is_empty() {
            let name = path.file_name().unwrap_or_default();
            self.first_damage = format!("{}: {words}", name.display());
        }
    }
}
