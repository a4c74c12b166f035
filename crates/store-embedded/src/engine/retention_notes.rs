//! Numbers that retention stores in a shelf's directory. Each number is text in a file of its own.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use hark_archive::store::RetentionNote;

use crate::disk::Disk;

fn path(shelf: &Path, note: RetentionNote) -> PathBuf {
    shelf.join(note.name().to_ascii_uppercase())
}

/// Reads a number; `None` if the file is missing or has no number.
pub(crate) fn read(disk: &dyn Disk, shelf: &Path, note: RetentionNote) -> io::Result<Option<u64>> {
    let mut text = String::new();
    match disk.read(&path(shelf, note)) {
        Ok(mut file) => file.read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(text.trim_end().parse().ok())
}

/// Writes a number; for `None`, removes the file. The change is durable on return.
pub(crate) fn write(
    disk: &dyn Disk,
    shelf: &Path,
    note: RetentionNote,
    number: Option<u64>,
) -> io::Result<()> {
    let path = path(shelf, note);
    match number {
        Some(number) => {
            let aside = path.with_extension("new");
            let mut file = disk.create(&aside)?;
            file.write_all(format!("{number}\n").as_bytes())?;
            file.sync()?;
            disk.rename(&aside, &path)?;
        }
        None => match disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        },
    }
    disk.sync_dir(shelf)
}
