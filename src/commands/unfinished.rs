//! A file that is written under another name until it is complete.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::bail;
use hark_store_embedded::disk::{Disk as _, RealDisk};

/// Returns the name of a file while it is still being written.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".unfinished");
    name.into()
}

/// Locks and empties `file`, whose name is `aside`, so that no other process writes `path` at the
/// same time.
pub(super) fn lock_and_empty(file: File, aside: &Path, path: &Path) -> anyhow::Result<File> {
    let other = || format!("another process writes {}, or has just done so", path.display());
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!(other()),
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    // The process that held the lock may have renamed the file.
    let about = file.metadata()?;
    if fs::metadata(aside).map(|about| about.ino()).ok() != Some(about.ino()) {
        bail!(other());
    }
    // A pipe has no length.
    if about.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Gives a complete file its name, durably.
pub(super) fn rename(aside: &Path, path: &Path) -> io::Result<()> {
    RealDisk.rename(aside, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    RealDisk.sync_dir(dir.unwrap_or(Path::new(".")))
}
