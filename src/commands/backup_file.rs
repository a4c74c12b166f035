//! Backups in a single file or through a pipe. [`BackupForm`] determines from a path whether a
//! backup is a directory, a file or a pipe.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use hark_store_embedded::backup::{self, BackupCatalog, BackupResult, SavedFile};
use hark_store_embedded::disk::{Disk as _, DiskFile, RealDisk};
use hark_store_embedded::permissions;

use super::backup_source::BackedUpArchive;
use super::unfinished::{open, rename, unfinished};
use crate::print::{CommandProgress, CountedUnit};

/// The file name extension of single-file backups.
const ENDING: &str = "hark";
/// The first bytes of a single-file backup.
const BEGINNING: &[u8] = b"hark-backup-file ";
/// The name of stdin and stdout, on the command line and in messages.
const STREAM: &str = "-";
const STDIN: &str = "stdin";
const STDOUT: &str = "stdout";

/// The form of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackupForm {
    /// A directory, which can be updated incrementally.
    Directory,
    /// One file.
    File,
    /// Stdin or stdout.
    Stream,
}

impl BackupForm {
    /// Returns the form of a backup to write at `path`: the form of the existing file or directory,
    /// or else the form that the name implies.
    pub(super) fn to_write(path: &Path) -> anyhow::Result<Self> {
        if path.as_os_str() == STREAM {
            return Ok(Self::Stream);
        }
        let is_named_dir = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let ending = path.extension().map(|ending| ending == ENDING);
        match fs::metadata(path) {
            Ok(about) if about.is_dir() => Ok(Self::Directory),
            Ok(about) if about.is_file() => Ok(Self::File),
            Ok(_) => bail!("{} is neither a file nor a directory", path.display()),
            Err(_) if is_named_dir => Ok(Self::Directory),
            Err(_) => match ending {
                None => Ok(Self::Directory),
                Some(true) => Ok(Self::File),
                Some(false) => bail!(
                    "is {0} to be a directory or a file? {0}/ is a directory, and {0}.{ENDING} a \
                     file. No backup was taken",
                    path.display()
                ),
            },
        }
    }

    /// Returns the form of the backup to read at `path`.
    pub(super) fn to_read(path: &Path) -> anyhow::Result<Self> {
        if path.as_os_str() == STREAM {
            return Ok(Self::Stream);
        }
        match fs::metadata(path) {
            Ok(about) if !about.is_dir() => Ok(Self::File),
            Ok(_) => Ok(Self::Directory),
            // Reading the directory will report the missing catalog, which is the clearer error.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Directory),
            Err(error) => {
                Err(error).with_context(|| format!("{} could not be read", path.display()))
            }
        }
    }
}

/// Writes a backup beside `path`, and renames it to `path` once it is whole and durable.
pub(super) fn write(
    from: &BackedUpArchive<'_>,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> anyhow::Result<BackupResult> {
    must_be_ours(path)?;
    let aside = unfinished(path);
    let context =
        || format!("no backup was taken; what was under {} before is unchanged", path.display());
    let mut file = open(&aside, path).with_context(context)?;
    let whole = (|| {
        let done = from.pack((&mut file, &aside), progress)?;
        rename(&aside, path)?;
        anyhow::Ok(done)
    })();
    if whole.is_err() {
        // Only the first failure is reported: if the file remains, its name shows that it is
        // unfinished.
        let _ = fs::remove_file(&aside);
    }
    whole.with_context(context)
}

/// Fails if `path` exists and is no backup.
fn must_be_ours(path: &Path) -> anyhow::Result<()> {
    let mut beginning = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(BEGINNING.len() as u64).read_to_end(&mut beginning)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("{} could not be read", path.display()));
        }
    };
    if beginning.is_empty() || beginning == BEGINNING {
        return Ok(());
    }
    bail!("{} is there and is no backup; name another file. No backup was taken", path.display())
}

/// Writes a backup to stdout.
pub(super) fn print(
    from: &BackedUpArchive<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> anyhow::Result<BackupResult> {
    if io::stdout().is_terminal() {
        bail!("a backup is not for a terminal: send stdout to a file or to another program");
    }
    from.pack((&mut StdoutFile, Path::new(STDOUT)), progress)
        .context("the backup on stdout is incomplete, and of no use")
}

/// Reads the catalog of a backup in a directory.
pub(super) fn read_catalog(dir: &Path) -> anyhow::Result<BackupCatalog> {
    let catalog = BackupCatalog::read(&RealDisk, dir)?.with_context(|| {
        format!(
            "{} holds no backup; name a directory that `hark backup` has written",
            dir.display()
        )
    })?;
    if catalog.time_s == 0 {
        bail!("the backup in {} was never finished; nothing was restored", dir.display());
    }
    Ok(catalog)
}

/// Creates the small files of a backup durably in the directory `into`.
pub(super) fn write_small_files<'a>(
    files: impl IntoIterator<Item = &'a SavedFile>,
    into: &Path,
) -> anyhow::Result<()> {
    for file in files {
        let path = into.join(&file.name);
        let write = || {
            let mut out = permissions::create_file(&path)?;
            io::Write::write_all(&mut out, &file.content)?;
            out.sync_all()
        };
        write().with_context(|| format!("{} could not be written", path.display()))?;
    }
    RealDisk.sync_dir(into).with_context(|| format!("{} could not be synced", into.display()))
}

/// Reads a backup of one file, or stdin, into a directory.
pub(super) fn unpack(path: &Path, into: &Path) -> anyhow::Result<BackupCatalog> {
    let (mut from, path, bytes): (Box<dyn Read>, PathBuf, u64) = if path.as_os_str() == STREAM {
        if io::stdin().is_terminal() {
            bail!("a backup cannot be typed: redirect stdin from a file or from another program");
        }
        (Box::new(io::stdin()), STDIN.into(), 0)
    } else {
        let file =
            File::open(path).with_context(|| format!("{} could not be opened", path.display()))?;
        let bytes = file.metadata().map_or(0, |about| about.len());
        (Box::new(file), path.into(), bytes)
    };
    let mut meter = CommandProgress::start("restore", bytes, CountedUnit::Bytes);
    let mut read = 0;
    let catalog = backup::unpack(&mut *from, &path, (&RealDisk, into), &mut |piece| {
        read += piece;
        meter.at(read, bytes, "");
    });
    meter.finish();
    Ok(catalog?)
}

/// Stdout as a file that is written from front to back.
struct StdoutFile;

impl DiskFile for StdoutFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        crate::print::Output::new().write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        crate::print::Output::new().flush()
    }

    fn reserve(&mut self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_is_made_under_it() {
        for (name, form) in [
            ("/no/such/backup", Some(BackupForm::Directory)),
            ("/no/such/backup/", Some(BackupForm::Directory)),
            ("/no/such/monday.hark/", Some(BackupForm::Directory)),
            ("/no/such/monday.hark", Some(BackupForm::File)),
            ("-", Some(BackupForm::Stream)),
            ("/", Some(BackupForm::Directory)),
            ("/no/such/2024.01.01", None),
            ("/no/such/monday.tar", None),
            ("/dev/null", None),
        ] {
            assert_eq!(BackupForm::to_write(Path::new(name)).ok(), form, "{name}");
        }
    }
}
