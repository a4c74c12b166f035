//! The directory of a shelf: its manifest, and the files that the manifest does not name.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use super::open_error::ShelfOpenError;
use crate::disk::Disk;
use crate::log;
use crate::manifest::{LogEntry, Manifest};
use crate::term::SECRET;

/// Reads the manifest of a shelf; `None` if the shelf has no manifest.
pub(crate) fn read_manifest(
    disk: &dyn Disk,
    dir: &Path,
) -> Result<Option<Manifest>, ShelfOpenError> {
    let path = dir.join("MANIFEST");
    Manifest::read(disk, dir).map_err(|cause| ShelfOpenError::Manifest { path, cause })
}

/// Reads the manifest of a shelf that must exist.
pub(crate) fn existing_manifest(disk: &dyn Disk, dir: &Path) -> Result<Manifest, ShelfOpenError> {
    if let Some(manifest) = read_manifest(disk, dir)? {
        return Ok(manifest);
    }
    // A directory with records but without a manifest is a damaged shelf.
    let has_records = has_records(disk, dir).map_err(ShelfOpenError::io(dir))?;
    let error = if has_records { ShelfOpenError::NoManifest } else { ShelfOpenError::Missing };
    Err(error(dir.into()))
}

/// Whether the directory of a shelf has a log with more than its header.
pub(crate) fn has_records(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    match disk.list(&dir.join("log")) {
        Ok(logs) => Ok(logs.iter().any(|(_, len)| *len > log::HEADER)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates a shelf: an empty log, and a manifest that names this log.
pub(super) fn first_manifest(disk: &dyn Disk, dir: &Path) -> Result<Manifest, ShelfOpenError> {
    let log_dir = dir.join("log");
    let io = ShelfOpenError::io(&log_dir);
    // A crash before the first manifest leaves at most an empty log, and no write was acknowledged
    // by then.
    let kept = disk.list(&log_dir).map_err(&io)?;
    if kept.iter().any(|(_, len)| *len > log::HEADER) {
        return Err(ShelfOpenError::NoManifest(dir.into()));
    }
    let mut secret = [0; SECRET];
    getrandom::fill(&mut secret).map_err(|error| io(io::Error::other(error.to_string())))?;
    let begin = || {
        // An existing file is removed instead of being emptied and reused, because its name may not
        // be durable.
        for (name, _) in &kept {
            disk.remove(&log_dir.join(name))?;
        }
        let mut file = disk.create(&log::path(dir, 1, 0))?;
        file.write_all(&log::header(1, 0, random_u32()?))?;
        file.sync()?;
        disk.sync_dir(&log_dir)?;
        // The directory of the shelf and the directory above may be new as well.
        for dir in dir.ancestors().take(3) {
            disk.sync_dir(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })?;
        }
        let manifest = Manifest {
            secret,
            logs: vec![LogEntry::new(1)],
            segments: Vec::new(),
            next_segment: 1,
        };
        manifest.write(disk, dir)?;
        Ok(manifest)
    };
    begin().map_err(&io)
}

/// Removes files that the manifest does not name: remains of jobs that a crash or a failure
/// interrupted.
pub(crate) fn remove_orphans(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
) -> Result<(), ShelfOpenError> {
    for path in orphans(disk, dir, manifest)? {
        disk.remove(&path).map_err(ShelfOpenError::io(&path))?;
    }
    Ok(())
}

/// Returns the files of a shelf that the manifest does not name.
pub(crate) fn orphans(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
) -> Result<Vec<PathBuf>, ShelfOpenError> {
    let named: HashSet<PathBuf> = manifest.files(dir).collect();
    let mut orphans = Vec::new();
    for sub in ["log", "seg"] {
        let sub = dir.join(sub);
        for (name, _) in disk.list(&sub).map_err(ShelfOpenError::io(&sub))? {
            let path = sub.join(name);
            let ours = path.extension().is_some_and(|ending| {
                ["log", "seg", "addr", "dead", "new"].iter().any(|known| ending == *known)
            });
            if ours && !named.contains(&path) {
                orphans.push(path);
            }
        }
    }
    Ok(orphans)
}

/// Returns a random number, for the salt of a log.
pub(crate) fn random_u32() -> io::Result<u32> {
    getrandom::u32().map_err(|error| io::Error::other(error.to_string()))
}
