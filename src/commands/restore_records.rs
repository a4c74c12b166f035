//! The restore of a backup into a store that is not in the archive's directory, such as a database.
//! The whole backup is verified first. Then its records are put like the records of an import.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use hark_archive::Outcome;
use hark_archive::effects::Refusal;
use hark_store_embedded::DirectoryLock;
use hark_store_embedded::backup::{
    BackupCatalog, LogFolder, ShelfBackup, VerifiedShelf, backed_up_records, verify_records,
};
use hark_store_embedded::disk::RealDisk;
use hark_store_embedded::permissions;
use serde_json::json;

use crate::commands::backup_file::{self, BackupForm};
use crate::config::{setup, setups};
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::owner;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::writer::HistoryWriter;

/// The directory, within the archive's directory, for the unpacked content of a single-file backup.
const UNPACKED: &str = "restore-unpacked";
/// Maximum number of bytes of the records that are put together.
const BATCH_BYTES: usize = 8 << 20;

/// The number of records of a shelf, by their outcome.
#[derive(Default)]
struct RestoreTotals {
    restored: u64,
    /// Records that the store had before.
    present: u64,
    /// Records that newer versions or deletions in the store have replaced.
    refused: u64,
    /// Records that a ban of the store refuses.
    banned: u64,
}

/// A restore of a backup.
pub(super) struct RecordRestore<'a> {
    /// The backup: a directory, a file, or - for stdin.
    pub(super) from: &'a Path,
    /// Whether the store may have records.
    pub(super) merge: bool,
    /// Whether the result is printed as JSON.
    pub(super) json: bool,
}

pub(super) fn run(
    args: &RecordRestore<'_>,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let form = BackupForm::to_read(args.from)?;
    interrupt::end_at_signal(
        "what was restored so far stays. Run the command again with --merge to continue".into(),
    )?;
    let (catalog, unpacked) = match form {
        BackupForm::Directory => (backup_file::read_catalog(args.from)?, None),
        BackupForm::File | BackupForm::Stream => {
            let unpacked = UnpackedBackup::read(args.from, &location.data)?;
            (unpacked.catalog.clone(), Some(unpacked))
        }
    };
    let dir = unpacked.as_ref().map_or(args.from, |unpacked| &*unpacked.dir);
    let is_unpacked = unpacked.is_some();
    must_be_known(&catalog)?;
    must_fit(&catalog, args.merge, &location.data)?;
    let mut writers = Vec::new();
    for shelf in &catalog.shelves {
        writers.push(writer(args, location, shelf)?);
    }
    let verified = verify(&catalog, dir, is_unpacked)
        .context("the backup is damaged, and nothing was restored; an older backup may be whole")?;
    let mut totals = Vec::new();
    for ((shelf, writer), verified) in catalog.shelves.iter().zip(&mut writers).zip(&verified) {
        let place = (dir.join(&shelf.name), is_unpacked);
        let batch = location.facts().batch_records;
        totals.push((&*shelf.name, restore(shelf, place, verified, writer, batch)?));
        writer.report_held();
    }
    save_files(&catalog, args, &location.data)?;
    drop(unpacked);
    report(args, location, &catalog, &totals)?;
    Ok(ExitCode::SUCCESS)
}

/// Opens a shelf for writing. Fails if the shelf has records and --merge is not given.
fn writer(
    args: &RecordRestore<'_>,
    location: &ArchiveLocation,
    shelf: &ShelfBackup,
) -> anyhow::Result<HistoryWriter> {
    let network = setup(&shelf.name).map_or(location.network, |known| known.network);
    let location = location.of(network);
    let writer = location.import()?;
    let stats = location.read_beside(&writer)?.stats();
    if location.facts().is_remote && stats.database.is_none() {
        bail!(
            "the number of records in {} could not be read. Nothing was restored",
            location.store.shown(&location.place())
        );
    }
    let records = stats.records;
    if records > 0 && !args.merge {
        bail!(
            "{} has {} already; name an empty database, or add what it lacks with --merge. Nothing was \
             restored",
            location.store.shown(&location.place()),
            print::count(records, network.record())
        );
    }
    Ok(writer)
}

/// Verifies the bytes of all shelves.
fn verify(
    catalog: &BackupCatalog,
    dir: &Path,
    is_unpacked: bool,
) -> anyhow::Result<Vec<VerifiedShelf>> {
    let total = catalog.shelves.iter().map(bytes).sum();
    let mut meter = CommandProgress::start("verify", total, CountedUnit::Bytes);
    let (mut done, mut verified) = (0, Vec::new());
    for shelf in &catalog.shelves {
        let dir = dir.join(&shelf.name);
        let folder = LogFolder { disk: &RealDisk, shelf: &dir, is_unpacked };
        verified.push(verify_records(shelf, folder, &mut |bytes| {
            done += bytes;
            meter.at(done, total, "");
        })?);
    }
    meter.finish();
    Ok(verified)
}

fn bytes(shelf: &ShelfBackup) -> u64 {
    shelf.copies.iter().map(|copy| copy.bytes).sum()
}

fn restore(
    shelf: &ShelfBackup,
    (dir, is_unpacked): (PathBuf, bool),
    verified: &VerifiedShelf,
    writer: &mut HistoryWriter,
    batch_records: usize,
) -> anyhow::Result<RestoreTotals> {
    let total = bytes(shelf);
    let mut meter = CommandProgress::start(&shelf.name, total, CountedUnit::Bytes);
    let mut totals = RestoreTotals::default();
    let (mut batch, mut batch_bytes, mut done) = (Vec::new(), 0, 0);
    let folder = LogFolder { disk: &RealDisk, shelf: &dir, is_unpacked };
    backed_up_records(shelf, folder, verified, &mut |record| {
        batch_bytes += record.len();
        batch.push(record.into());
        if batch.len() >= batch_records || batch_bytes >= BATCH_BYTES {
            done += batch_bytes as u64;
            batch_bytes = 0;
            put(writer, std::mem::take(&mut batch), &mut totals)?;
            meter.at(done, total, "");
        }
        anyhow::Ok(())
    })?;
    put(writer, batch, &mut totals)?;
    meter.finish();
    Ok(totals)
}

fn put(
    writer: &mut HistoryWriter,
    batch: Vec<Box<[u8]>>,
    totals: &mut RestoreTotals,
) -> anyhow::Result<()> {
    const AGAIN: &str = "what was restored so far stays; run the command again with --merge";
    for outcome in writer.put(batch).context(AGAIN)? {
        match outcome {
            Ok(Outcome::Stored { .. } | Outcome::Erased(_)) => totals.restored += 1,
            Ok(Outcome::Duplicate) => totals.present += 1,
            Ok(Outcome::Refused(Refusal::Banned)) => totals.banned += 1,
            Ok(Outcome::Superseded | Outcome::Refused(_)) => totals.refused += 1,
            Err(words) => return Err(anyhow::anyhow!("{words}")).context(AGAIN),
        }
    }
    Ok(())
}

fn must_be_known(catalog: &BackupCatalog) -> anyhow::Result<()> {
    match catalog.shelves.iter().find(|shelf| setup(&shelf.name).is_none()) {
        Some(shelf) => {
            bail!("the backup has a network that this Hark does not know: {}", shelf.name)
        }
        None => Ok(()),
    }
}

/// Whether a file of the archive's directory promises that the store has all messages up to a time,
/// so that the server would not fetch missing messages of that time from other nodes.
pub(super) fn is_promise(name: &Path) -> bool {
    name.extension().is_some_and(|ending| ending == "online")
}

/// Fails if the archive's directory promises messages ([`is_promise`]) that the backup may lack.
pub(super) fn must_be_without_promises(catalog: &BackupCatalog, data: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(data).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_saved = catalog.files.iter().any(|file| *file.name == *name);
        if is_promise(Path::new(&name)) && !is_saved {
            bail!(
                "{} promises messages that the backup lacks; stop the server, and move the file away",
                entry.path().display()
            );
        }
    }
    Ok(())
}

/// Fails if the archive's directory has a file `*.key` that differs from the backup's. Before a
/// restore into an empty store, the directory must also promise no messages except those of the
/// backup.
fn must_fit(catalog: &BackupCatalog, is_merged: bool, data: &Path) -> anyhow::Result<()> {
    if !is_merged {
        must_be_without_promises(catalog, data)?;
    }
    let is_key = |name: &Path| name.extension().is_some_and(|ending| ending == "key");
    let is_compared = |name: &str| {
        let name = Path::new(name);
        is_key(name) || !is_merged && is_promise(name)
    };
    for file in catalog.files.iter().filter(|file| is_compared(&file.name)) {
        let path = data.join(&file.name);
        match fs::read(&path) {
            Ok(found) if found != file.content => bail!(
                "{} is there already, and differs from the one of the backup; move it away",
                path.display()
            ),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{} could not be read", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes the small files of the backup that the archive's directory lacks.
fn save_files(
    catalog: &BackupCatalog,
    args: &RecordRestore<'_>,
    data: &Path,
) -> anyhow::Result<()> {
    let missing: Vec<_> =
        catalog.root_files().filter(|file| !data.join(&file.name).exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let source = if args.from.exists() { args.from } else { data };
    owner::make_dir_like(data, source)?;
    backup_file::write_small_files(missing, data)
}

/// The content of a single-file backup, unpacked into a directory. The directory is removed when
/// this value is dropped.
struct UnpackedBackup {
    dir: PathBuf,
    catalog: BackupCatalog,
    _lock: DirectoryLock,
}

impl UnpackedBackup {
    /// Unpacks the file `from` into a directory within `data`.
    fn read(from: &Path, data: &Path) -> anyhow::Result<Self> {
        let dir = data.join(UNPACKED);
        if !data.exists() {
            permissions::create_dir(data)
                .with_context(|| format!("{} could not be made", data.display()))?;
        }
        let lock = DirectoryLock::acquire(&dir).with_context(|| {
            format!("{} cannot be written, or another restore writes it", dir.display())
        })?;
        // An interrupted restore may have left files.
        for network in setups().iter().map(|setup| dir.join(setup.network.name())) {
            match fs::remove_dir_all(&network) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let context = format!("{} could not be removed", network.display());
                    return Err(error).context(context);
                }
                _ => {}
            }
        }
        let unpacked = backup_file::unpack(from, &dir);
        let catalog = unpacked.inspect_err(|_| remove(&dir)).context("nothing was restored")?;
        Ok(Self { dir, catalog, _lock: lock })
    }
}

impl Drop for UnpackedBackup {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

fn remove(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir) {
        print::note!("hark: {} could not be removed: {error}", dir.display());
    }
}

fn report(
    args: &RecordRestore<'_>,
    location: &ArchiveLocation,
    catalog: &BackupCatalog,
    totals: &[(&str, RestoreTotals)],
) -> anyhow::Result<()> {
    if args.json {
        let shelf = |(name, totals): &(&str, RestoreTotals)| {
            let RestoreTotals { restored, present, refused, banned } = totals;
            json!({
                "network": name,
                "restored": restored,
                "present": present,
                "refused": refused,
                "banned": banned,
            })
        };
        let shelves: Vec<_> = totals.iter().map(shelf).collect();
        return print::line(&json!({ "shelves": shelves, "time": catalog.time_s }).to_string());
    }
    for (name, totals) in totals {
        let record = setup(name).map_or("record", |known| known.network.record());
        print::note!(
            "{name}: {} restored, {} were there already, {} refused because of newer versions or \
             deletions, {} banned",
            print::count(totals.restored, record),
            print::number(totals.present),
            print::number(totals.refused),
            print::number(totals.banned)
        );
    }
    let store = location.store.shown(&location.place());
    print::line(&format!("{store} has the archive of {}", print::moment(catalog.time_s)))
}
