//! `hark backup`: copies what is new in the archive to a directory, beside a running server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_store_embedded::DirectoryLock;
use hark_store_embedded::backup::{BackupCatalog, BackupResult, BackupTask, back_up};
use hark_store_embedded::disk::RealDisk;
use serde_json::json;

use crate::config::setups;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::when;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark backup /mnt/backup/hark
  hark backup --incremental /mnt/backup/hark
  hark backup --incremental --verify /mnt/backup/hark
  hark --data /var/lib/hark restore /mnt/backup/hark

All networks, as they are at one moment, also while the server runs: it waits for nothing. Every record that
is copied is compared with its checksum. A backup that is interrupted leaves the former one as it was; run
it again to continue. Keep several directories to have several moments. `hark export --output FILE` writes
one network into one file.")]
pub(crate) struct BackupArgs {
    /// The backup's directory; it is made if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Bring the backup that is there up to date: copy only what is new
    #[arg(long)]
    pub(crate) incremental: bool,
    /// Also read what the backup has already, and copy again what is damaged there
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &BackupArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    if location.database.is_some() {
        bail!(
            "the archive is in PostgreSQL, whose own programs back it up: `pg_dump` for a copy of one \
             moment, `pg_basebackup` with an archive of the log for any moment (on Citus, of every node)"
        );
    }
    let data = &location.data;
    let shelves: Vec<&str> = setups().iter().map(|setup| setup.network.name()).collect();
    if !shelves.iter().any(|shelf| data.join(shelf).is_dir()) {
        location.must_exist()?;
    }
    must_be_free(args)?;
    let _lock = DirectoryLock::acquire(&args.dir).with_context(|| {
        format!("{} cannot be written, or another backup writes it", args.dir.display())
    })?;
    let task = BackupTask {
        data,
        shelves: &shelves,
        from: Arc::new(RealDisk),
        dir: &args.dir,
        to: Arc::new(RealDisk),
        verify: args.verify,
        now_s: when::now_s(),
    };
    let mut meter = CommandProgress::start("backup", 0, CountedUnit::Bytes);
    let done = back_up(&task, &mut |done, total| meter.at(done, total, ""));
    meter.finish();
    let done = done.with_context(|| {
        format!("no backup was taken; what {} held before is unchanged", args.dir.display())
    })?;
    report(args, &done)?;
    Ok(ExitCode::SUCCESS)
}

/// Fails unless the directory is missing, empty, or holds a backup that may be continued.
fn must_be_free(args: &BackupArgs) -> anyhow::Result<()> {
    let dir = args.dir.display();
    match BackupCatalog::read(&RealDisk, &args.dir)? {
        // A first backup that was interrupted.
        Some(found) if found.time_s == 0 => Ok(()),
        Some(found) if !args.incremental => bail!(
            "{dir} holds the backup of {}; --incremental brings it up to date, or name another directory",
            print::moment(found.time_s)
        ),
        Some(_) => Ok(()),
        None if is_empty(&args.dir)? => Ok(()),
        None => {
            bail!("{dir} is not empty and holds no backup; name an empty directory or a new one")
        }
    }
}

fn is_empty(dir: &Path) -> anyhow::Result<bool> {
    let of_lock = |name: &std::ffi::OsStr| name == "LOCK" || name == "WRITER";
    match std::fs::read_dir(dir) {
        Ok(entries) => {
            for entry in entries {
                if !of_lock(&entry?.file_name()) {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| format!("{} could not be read", dir.display())),
    }
}

fn report(args: &BackupArgs, done: &BackupResult) -> anyhow::Result<()> {
    if args.json {
        let shelves = done.shelves.iter().map(|shelf| {
            json!({
                "network": shelf.name,
                "logs": shelf.logs,
                "bytes": shelf.bytes,
                "logs_copied": shelf.logs_copied,
                "bytes_copied": shelf.bytes_copied,
            })
        });
        let shelves: Vec<_> = shelves.collect();
        return print::line(&json!({ "shelves": shelves, "damaged": done.damaged }).to_string());
    }
    for path in &done.damaged {
        eprintln!("hark: {} was damaged; it is replaced", path.display());
    }
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
            (shelf.name.as_str(), print::bytes(shelf.bytes_copied), copied)
        })
        .collect();
    print::line(&print::table(&rows))
}
