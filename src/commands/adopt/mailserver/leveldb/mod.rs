//! Reads a LevelDB, and never writes into its directory.
//!
//! Existing LevelDB crates are whole databases, which write when they are opened: they turn a log
//! into a table, take the lock and merge. An adoption must not change the mail server's directory,
//! since the directory is the original, and the mail server may keep running. The formats to read
//! are small and have not changed since 2011.
//!
//! CURRENT names the newest MANIFEST (`manifest`). MANIFEST names the tables (`table`) and the
//! first log (`log`) with entries that are not in a table. Among all entries with the same key, the
//! entry with the highest sequence number is current: it has the value, or marks the key as
//! deleted.

mod bytes;
mod entry;
mod log;
mod manifest;
mod merge;
mod table;

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use self::bytes::ByteReader;
use self::entry::{Entry, FileError, LevelDbRow, ScanState};
use self::manifest::DatabaseVersion;
use self::merge::MergedScan;

/// Maximum length of MANIFEST and of all logs together, in bytes. These files are read into memory
/// as a whole.
const WHOLE_FILES_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of attempts to read the directory while a running mail server changes its files.
const TRIES: usize = 20;

/// A LevelDB that is read key by key.
pub(super) struct LevelDb {
    dir: PathBuf,
    scan: MergedScan,
    bytes_total: u64,
    /// The last key that was returned.
    last: Vec<u8>,
    state: ScanState,
}

impl LevelDb {
    /// Opens the directory. The scan begins after the key `after`, or at the first key if `after`
    /// is empty.
    pub(super) fn open(dir: &Path, after: &[u8]) -> anyhow::Result<Self> {
        if !dir.join("CURRENT").is_file() {
            bail!(
                "{} is no LevelDB directory: there is no file CURRENT in it. Nothing was done",
                dir.display()
            );
        }
        let OpenedScan { scan, bytes_total, of_logs } = open_scan(dir, after)?;
        Ok(Self { dir: dir.into(), scan, bytes_total, last: after.to_vec(), state: of_logs })
    }

    /// Returns the next key and its value.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<LevelDbRow>> {
        for _ in 0..TRIES {
            match self.scan.next(&mut self.state) {
                Ok(None) => return Ok(None),
                Ok(Some((key, value))) => {
                    self.last.clone_from(&key);
                    return Ok(Some((key, value)));
                }
                // A running server has merged the table into others.
                Err(FileError { error, .. }) if error.kind() == ErrorKind::NotFound => {
                    let opened = open_scan(&self.dir, &self.last)?;
                    (self.scan, self.bytes_total) = (opened.scan, opened.bytes_total);
                    self.state.bytes_done = 0;
                }
                Err(error) => return Err(error.into()),
            }
        }
        bail!(
            "{} names tables that do not exist: files are missing, or the directory changes too \
             fast. Adopt from a copy that was made while the mail server was stopped",
            self.dir.display()
        )
    }

    /// Returns the number of bytes read from tables so far, and the total length of all tables.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.state.bytes_done.min(self.bytes_total), self.bytes_total)
    }

    /// Returns the number of damaged parts found, and a description of the first.
    pub(super) fn damage(&self) -> (u64, &str) {
        (self.state.damaged, &self.state.first_damage)
    }
}

/// An opened scan, the total length of its tables, and the damage in the logs.
struct OpenedScan {
    scan: MergedScan,
    bytes_total: u64,
    of_logs: ScanState,
}

/// Opens a consistent set of files. Reads MANIFEST and the logs, and checks that the tables exist;
/// starts again if MANIFEST has changed meanwhile. If a table is missing and MANIFEST has not
/// changed, the table counts as damage, and the other tables are read.
fn open_scan(dir: &Path, after: &[u8]) -> anyhow::Result<OpenedScan> {
    let mut missing = None;
    for _ in 0..TRIES {
        let (name, manifest) = match read_manifest(dir)? {
            Ok(read) => read,
            // The server writes a new MANIFEST, then names it in CURRENT, and then removes the old
            // MANIFEST.
            Err(path) if missing.as_ref() == Some(&path) => bail!(
                "CURRENT names {}, which is not there, so it is not known which files count. Nothing was \
                 done; bring it back from a backup, or repair a copy (goleveldb's RecoverFile) and adopt \
                 from that",
                path.display()
            ),
            Err(path) => {
                missing = Some(path);
                continue;
            }
        };
        let mut version = DatabaseVersion::read(&manifest).with_context(|| {
            format!(
                "{} is damaged, so it is not known which files count. Nothing was done; repair a \
                 copy (goleveldb's RecoverFile) and adopt from that",
                name.display()
            )
        })?;
        let mut of_logs = ScanState::default();
        let Some(entries) = read_logs(dir, &version, after, &mut of_logs)? else { continue };
        let lost = version.without(|table| !table::exists(dir, table.number));
        if read_manifest(dir)? != Ok((name, manifest)) {
            continue;
        }
        for table in lost {
            of_logs.damage(&table::path(dir, table.number), "it is missing");
        }
        let files = version.levels.values().flat_map(|tables| tables.values());
        let bytes_total = files.map(|file| file.bytes).sum();
        let scan = MergedScan::open(dir, version, entries, after);
        return Ok(OpenedScan { scan, bytes_total, of_logs });
    }
    bail!(
        "{} changes too fast to be read. Adopt from a copy that was made while the mail server was \
         stopped",
        dir.display()
    )
}

/// Reads the file that CURRENT names. The inner error is the path of a missing file.
fn read_manifest(dir: &Path) -> anyhow::Result<Result<(PathBuf, Vec<u8>), PathBuf>> {
    let current = dir.join("CURRENT");
    let name = fs::read_to_string(&current)
        .with_context(|| format!("{} cannot be read", current.display()))?;
    let name = name.trim_end();
    if !name.starts_with("MANIFEST-") || name.contains('/') {
        bail!("{} does not name a MANIFEST, so it is damaged", current.display());
    }
    let path = dir.join(name);
    let bytes = read_whole(&path, WHOLE_FILES_BYTES_MAX)?;
    Ok(match bytes {
        Some(bytes) => Ok((path, bytes)),
        None => Err(path),
    })
}

/// Reads the entries after a key from all logs whose entries are not in tables. Returns `None` if a
/// log is missing because the server has turned it into a table.
fn read_logs(
    dir: &Path,
    version: &DatabaseVersion,
    after: &[u8],
    state: &mut ScanState,
) -> anyhow::Result<Option<Vec<Entry>>> {
    let mut left = WHOLE_FILES_BYTES_MAX;
    let mut entries = Vec::new();
    let listed = fs::read_dir(dir).with_context(|| format!("{} cannot be read", dir.display()))?;
    for file in listed {
        let path = file.with_context(|| format!("{} cannot be read", dir.display()))?.path();
        let number = path.file_stem().and_then(OsStr::to_str).and_then(|stem| stem.parse().ok());
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if !is_log || !number.is_some_and(|number| version.has_log(number)) {
            continue;
        }
        let Some(log) = read_whole(&path, left)? else { return Ok(None) };
        left -= log.len() as u64;
        let mut is_damaged = false;
        let damaged = log::read(&log, &mut |batch| {
            is_damaged |= read_batch(batch, after, &mut entries).is_none();
        });
        if damaged > 0 {
            state.damage(&path, "a record is damaged");
        }
        if is_damaged {
            state.damage(&path, "a batch is damaged");
        }
    }
    Ok(Some(entries))
}

/// Reads a batch of writes: the sequence number of the first write in 8 bytes, the number of writes
/// in 4, then the writes. Each write has a kind (value or deletion), the key, and the value.
/// Returns `None` if the batch is damaged.
fn read_batch(batch: &[u8], after: &[u8], entries: &mut Vec<Entry>) -> Option<()> {
    let mut reader = ByteReader(batch);
    let first = u64::from_le_bytes(reader.array()?);
    let count = u32::from_le_bytes(reader.array()?);
    for number in 0..count {
        let [kind] = reader.array()?;
        let key = reader.string()?;
        let value = match kind {
            0 => None,
            1 => Some(reader.string()?.to_vec()),
            _ => return None,
        };
        if key > after || after.is_empty() {
            let sequence = first.wrapping_add(number.into());
            entries.push(Entry { key: key.to_vec(), sequence, value });
        }
    }
    Some(())
}

/// Reads a whole file. Returns `None` if the file does not exist.
fn read_whole(path: &Path, bytes_max: u64) -> anyhow::Result<Option<Vec<u8>>> {
    let read = || -> std::io::Result<Option<Vec<u8>>> {
        if fs::metadata(path)?.len() > bytes_max {
            return Ok(None);
        }
        fs::read(path).map(Some)
    };
    match read() {
        Ok(Some(bytes)) => Ok(Some(bytes)),
        Ok(None) => bail!(
            "{} is longer than the {WHOLE_FILES_BYTES_MAX} bytes that are read; start the mail \
             server once, which makes tables of its logs",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}

#[cfg(test)]
mod tests;
