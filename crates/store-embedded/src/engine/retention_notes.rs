//! Numbers that retention stores in a shelf's directory. Each number is text in a file of its own.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use hark_archive::store::RetentionNote;

use crate::disk::Disk;

fn path(shelf: &Path, note: RetentionNote) -> PathBuf {
    shelf.join(note.name().to_ascii_uppercase())
}

/// Reads a number; `None` if the file is missing. A file without a number is damaged, and does not
/// count as missing, because retention would then delete the history that it must keep.
pub(crate) fn read(disk: &dyn Disk, shelf: &Path, note: RetentionNote) -> io::Result<Option<u64>> {
    let (path, mut bytes) = (path(shelf, note), Vec::new());
    match disk.read(&path) {
        Ok(mut file) => file.read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim_end().parse().ok());
    number.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, damaged(&path, note)))
}

/// The message for a file without a number.
fn damaged(path: &Path, note: RetentionNote) -> String {
    let without = match note {
        RetentionNote::ClockTrusted => "retention trusts the present clock",
        RetentionNote::HeldUntil => "rules may delete imported history",
    };
    format!(
        "{} is damaged, so rules by age delete nothing: restore this file from a copy of the data \
         directory, or remove it, and {without}",
        path.display()
    )
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
