//! `hark backup`: copies the archive to a directory or to one file, beside a running server. Later
//! backups to the same directory copy only new data. From an archive in files, the logs are copied.
//! From any other store, the records are read, and are written as logs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_store_embedded::DirectoryLock;
use hark_store_embedded::backup::{
    BackupCatalog, BackupError, BackupResult, BackupSource, BackupTask, CATALOG_ASIDE, SavedShelf,
};
use hark_store_embedded::disk::RealDisk;
use serde_json::json;

use crate::commands::backup_file::{self, BackupForm};
use crate::commands::backup_source::BackedUpArchive;
use crate::commands::unfinished::unfinished;
use crate::config::{setup, setups};
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::owner;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::when;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark backup /mnt/backup/hark
  hark backup --incremental /mnt/backup/hark
  hark backup --incremental --verify /mnt/backup/hark
  hark backup /mnt/backup/monday.hark
  hark backup - | zstd | ssh elsewhere 'cat > monday.hark.zst'
  hark --data /var/lib/hark restore /mnt/backup/hark

For each network, a backup has the records of one moment. A running server never waits for the
backup. Every copied record is compared with its checksum. An interrupted backup leaves the previous
backup unchanged; run the command again to continue. Only a directory can be updated
(--incremental); a file is always written anew.

An archive in PostgreSQL is read in one consistent snapshot. Its backup has the form of any other
backup: `hark restore` restores it into files or into a database. Commits never wait for the backup.
With --incremental, the command reads the sequence numbers of all records, and then only the new
records.

A name that ends in .hark is a file, and - is stdout. A name that ends in / or has no ending is a
directory. An existing file stays a file, and an existing directory stays a directory.")]
pub(crate) struct BackupArgs {
    /// The backup: a directory, a file NAME.hark, or - for stdout; created if missing
    #[arg(value_name = "DIR|FILE")]
    pub(crate) to: PathBuf,
    /// Update an existing backup: copy only new data
    #[arg(long)]
    pub(crate) incremental: bool,
    /// Also read the existing backup, and copy damaged parts again
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &BackupArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let data = &location.data;
    let shelves: Vec<&str> = setups().iter().map(|setup| setup.network.name()).collect();
    let source =
        BackupSource { data, shelves: &shelves, disk: Arc::new(RealDisk), now_s: when::now_s() };
    let from = BackedUpArchive::new(source, location);
    if from.is_files() && !shelves.iter().any(|shelf| data.join(shelf).is_dir()) {
        location.must_exist()?;
    }
    let form = BackupForm::to_write(&args.to)?;
    if form != BackupForm::Directory && (args.incremental || args.verify) {
        bail!(
            "{} is one file, which is written whole each time: --incremental and --verify are for \
             a directory, such as {}/",
            args.to.display(),
            args.to.with_extension("").display()
        );
    }
    interrupt::end_at_signal(left_by(form, &args.to))?;
    let unit = if from.is_files() { CountedUnit::Bytes } else { CountedUnit::Records };
    let mut meter = CommandProgress::start("backup", 0, unit);
    let progress = &mut |done, total| meter.at(done, total, "");
    let done = match form {
        BackupForm::Directory => to_directory(args, &from, progress),
        BackupForm::File => backup_file::write(&from, &args.to, progress),
        BackupForm::Stream => backup_file::print(&from, progress),
    };
    meter.finish();
    let done = done.map_err(|error| match error.downcast_ref() {
        Some(BackupError::Shelf(cause)) if cause.is_denied() => error.context(owner::denied(data)),
        _ => error,
    })?;
    report(args, form, &done)?;
    Ok(ExitCode::SUCCESS)
}

/// The state that an interrupted backup leaves.
fn left_by(form: BackupForm, to: &Path) -> String {
    let path = to.display();
    match form {
        BackupForm::Directory => format!(
            "no backup was taken, and what {path} held before is unchanged. Run the command again to \
             continue"
        ),
        BackupForm::File => format!(
            "no backup was taken, and what was under {path} before is unchanged; the next backup to \
             {path} replaces {}",
            unfinished(to).display()
        ),
        BackupForm::Stream => "the backup on stdout is incomplete".into(),
    }
}

fn to_directory(
    args: &BackupArgs,
    from: &BackedUpArchive<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> anyhow::Result<BackupResult> {
    must_be_free(args)?;
    let _lock = DirectoryLock::acquire(&args.to).with_context(|| {
        format!("{} cannot be written, or another backup writes it", args.to.display())
    })?;
    let (dir, to, verify) = (&*args.to, Arc::new(RealDisk), args.verify);
    let task = BackupTask { from: from.source(), dir, to, verify };
    from.back_up(&task, progress).with_context(|| {
        format!("no backup was taken; what {} held before is unchanged", args.to.display())
    })
}

/// Fails unless the directory is missing, empty, or contains a backup that may be continued.
fn must_be_free(args: &BackupArgs) -> anyhow::Result<()> {
    let dir = args.to.display();
    match BackupCatalog::read(&RealDisk, &args.to)? {
        // The directory has an interrupted first backup.
        Some(found) if found.time_s == 0 => Ok(()),
        Some(found) if !args.incremental => bail!(
            "{dir} holds the backup of {}; --incremental brings it up to date, or name another directory",
            print::moment(found.time_s)
        ),
        Some(_) => Ok(()),
        None if is_empty(&args.to)? => Ok(()),
        None => {
            bail!("{dir} is not empty and holds no backup; name an empty directory or a new one")
        }
    }
}

fn is_empty(dir: &Path) -> anyhow::Result<bool> {
    // An interrupted backup may have left these files.
    let left = ["LOCK", "WRITER", CATALOG_ASIDE];
    match std::fs::read_dir(dir) {
        Ok(entries) => {
            for entry in entries {
                let name = entry?.file_name();
                if !left.iter().any(|known| name == *known) {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| format!("{} could not be read", dir.display())),
    }
}

fn report(args: &BackupArgs, form: BackupForm, done: &BackupResult) -> anyhow::Result<()> {
    for path in done.damaged.iter().filter(|_| !args.json) {
        print::note!("hark: {} was damaged; it is replaced", path.display());
    }
    let text = if args.json { to_json(done) } else { to_text(done) };
    if form == BackupForm::Stream {
        // Stdout receives the backup, so the report goes to stderr.
        print::note!("{text}");
        return Ok(());
    }
    print::line(&text)
}

fn to_json(done: &BackupResult) -> String {
    let shelves = done.shelves.iter().map(|shelf| {
        let mut fields = json!({
            "network": shelf.name,
            "logs": shelf.logs,
            "bytes": shelf.bytes,
            "logs_copied": shelf.logs_copied,
            "bytes_copied": shelf.bytes_copied,
        });
        if let Some(puts) = shelf.puts {
            fields["records"] = json!(puts.records);
            fields["records_added"] = json!(puts.added);
            fields["records_deleted"] = json!(puts.deleted);
            fields["anew"] = json!(puts.anew);
        }
        fields
    });
    let shelves: Vec<_> = shelves.collect();
    json!({ "shelves": shelves, "damaged": done.damaged }).to_string()
}

fn to_text(done: &BackupResult) -> String {
    let rows: Vec<_> = done
        .shelves
        .iter()
        .map(|shelf| {
            let copied = format!(
                "copied now, of {}: {} of {}",
                print::bytes(shelf.bytes),
                print::number(shelf.logs_copied),
                print::count(shelf.logs, "log")
            );
            (shelf.name.as_str(), print::bytes(shelf.bytes_copied), copied + &puts_text(shelf))
        })
        .collect();
    print::table(&rows)
}

/// Returns the end of a shelf's line in the report; empty if the shelf's logs were copied.
fn puts_text(shelf: &SavedShelf) -> String {
    let Some(puts) = shelf.puts else { return String::new() };
    let record = setup(&shelf.name).map_or("record", |known| known.network.record());
    format!(
        "; {}{} added, {} deleted, {} in the backup",
        if puts.anew { "all read anew: " } else { "" },
        print::count(puts.added, record),
        print::number(puts.deleted),
        print::number(puts.records)
    )
}
