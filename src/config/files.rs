//! The files that were read: their texts, and their states.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The texts of the files that were read.
pub(crate) type FileTexts = BTreeMap<PathBuf, String>;

/// The state of a file at one moment. Two different states mean that the file has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    file: PathBuf,
    /// The file's modification time and length; `None` if the file does not exist.
    state: Option<(SystemTime, u64)>,
}

impl FileState {
    pub(crate) fn new(file: PathBuf) -> Self {
        let state = |file: &Path| {
            let meta = std::fs::metadata(file).ok()?;
            Some((meta.modified().ok()?, meta.len()))
        };
        Self { state: state(&file), file }
    }

    /// Returns the current state of the same file.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.file.clone())
    }
}
