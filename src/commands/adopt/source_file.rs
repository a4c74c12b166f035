//! The file of a source. The source's server may replace the file during an adoption, as a
//! compaction does.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Context as _;

/// The device of a file, and the file's number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity(u64, u64);

impl FileIdentity {
    /// Returns the identity of the file at `path`. `None` if no file has this name.
    pub(super) fn at(path: &Path) -> anyhow::Result<Option<Self>> {
        match fs::metadata(path) {
            Ok(about) => Ok(Some(Self(about.dev(), about.ino()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }

    /// Whether another file than `opened` is at `path`. False while no file has this name.
    pub(super) fn is_replaced(path: &Path, opened: Option<Self>) -> anyhow::Result<bool> {
        Ok(Self::at(path)?.is_some_and(|found| Some(found) != opened))
    }
}
