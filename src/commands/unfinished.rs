//! A file that is written under another name until it is complete.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::bail;
use hark_store_embedded::disk::{Disk as _, RealDisk};
use hark_store_embedded::permissions;

/// Returns the name of a file while it is still being written.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".unfinished");
    name.into()
}

/// Opens an empty file `aside` that only its owner can read, and that is to get the name `path`. The
/// file is locked, so that no other process writes `path` at the same time.
pub(super) fn open(aside: &Path, path: &Path) -> anyhow::Result<File> {
    must_be_replaceable(path)?;
    let file = permissions::open_file(aside)?;
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

/// Fails if there is anything but a file at `path`, such as a device or a link, which the complete
/// file would replace.
fn must_be_replaceable(path: &Path) -> anyhow::Result<()> {
    match path.symlink_metadata() {
        Ok(about) if !about.is_file() => bail!(
            "{} is a link, a directory or a device; name the file itself, or send stdout there",
            path.display()
        ),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Gives a complete file its name, durably.
pub(super) fn rename(aside: &Path, path: &Path) -> io::Result<()> {
    RealDisk.rename(aside, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    RealDisk.sync_dir(dir.unwrap_or(Path::new(".")))
}
