//! `hark restore`: makes an archive of a backup.
//!
//! Everything is made beside, in a directory of its own within the archive's. Once all is durable
//! that directory is renamed, which decides that the restore has happened; then its content is
//! moved to its place. A restore that was interrupted is continued by the next one, and until then
//! nothing else opens the archive (see `location`).

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_store_embedded::DirectoryLock;
use hark_store_embedded::backup::{BackupCatalog, restore};
use hark_store_embedded::disk::{Disk as _, RealDisk};
use hark_store_embedded::permissions;
use serde_json::json;

use crate::config::setup;
use crate::location::{ArchiveLocation, RESTORED, RESTORING};
use crate::print::{self, CommandProgress, CountedUnit};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark --data /var/lib/hark restore /mnt/backup/hark
  hark --data /var/lib/hark check

The archive's directory must have no archive. All networks are restored, and the keys by which peers know
the node. Every byte is compared with its checksum, and the backup is only read. If it is interrupted, run it
again.")]
pub(crate) struct RestoreArgs {
    /// The backup's directory
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &RestoreArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    location.must_be_files("restore")?;
    let (data, dir) = (&location.data, args.dir.display());
    let catalog = BackupCatalog::read(&RealDisk, &args.dir)?;
    let catalog = catalog.with_context(|| {
        format!("{dir} holds no backup; name a directory that `hark backup` has written")
    })?;
    if catalog.time_s == 0 {
        bail!("the backup in {dir} was never finished; nothing was restored");
    }
    let _lock = DirectoryLock::acquire(data)
        .with_context(|| format!("{} cannot be restored into", data.display()))?;
    let (restoring, restored) = (data.join(RESTORING), data.join(RESTORED));
    if !restored.exists() {
        for shelf in &catalog.shelves {
            if data.join(&shelf.name).exists() {
                bail!(
                    "there is an archive in {} already ({}); move it away, or name another \
                     directory with --data",
                    data.display(),
                    shelf.name
                );
            }
        }
        if restoring.exists() {
            fs::remove_dir_all(&restoring)
                .with_context(|| format!("{} could not be removed", restoring.display()))?;
        }
        make(args, location, &catalog, &restoring)?;
        fs::rename(&restoring, &restored)
            .and_then(|()| RealDisk.sync_dir(data))
            .with_context(|| format!("{} could not be renamed", restoring.display()))?;
    }
    move_all(&restored, data).with_context(|| {
        format!("{} could not be moved to its place; run the command again", restored.display())
    })?;
    let taken = print::moment(catalog.time_s);
    if args.json {
        let shelves: Vec<_> = catalog.shelves.iter().map(|shelf| &shelf.name).collect();
        print::line(&json!({ "shelves": shelves, "time": catalog.time_s }).to_string())?;
    } else {
        print::line(&format!("{} has the archive of {taken}", data.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes all shelves and small files in `restoring`, durably.
fn make(
    args: &RestoreArgs,
    location: &ArchiveLocation,
    catalog: &BackupCatalog,
    restoring: &Path,
) -> anyhow::Result<()> {
    permissions::create_dir(restoring)
        .with_context(|| format!("{} could not be made", restoring.display()))?;
    for backup in &catalog.shelves {
        let Some(known) = setup(&backup.name) else {
            bail!("the backup has a network that this Hark does not know: {}", backup.name);
        };
        let options = location.of(known.network).options();
        let (from, to) = (args.dir.join(&backup.name), restoring.join(&backup.name));
        let mut meter = CommandProgress::start(&backup.name, 0, CountedUnit::Records);
        let done = restore(backup, &RealDisk, &from, &to, &options, &mut |progress| {
            meter.store(progress);
        });
        meter.finish();
        let done = done.with_context(|| {
            format!(
                "nothing was restored into {}; an older backup may be whole",
                location.data.display()
            )
        })?;
        if !args.json {
            let logs = print::count(backup.copies.len() as u64, "log");
            let segments = print::count(done.segments, "segment");
            eprintln!("{}: {logs} restored, {segments} rebuilt", backup.name);
        }
    }
    for file in &catalog.files {
        let path = restoring.join(&file.name);
        let write = || {
            let mut out = permissions::create_file(&path)?;
            out.write_all(&file.content)?;
            out.sync_all()
        };
        write().with_context(|| format!("{} could not be written", path.display()))?;
    }
    RealDisk
        .sync_dir(restoring)
        .with_context(|| format!("{} could not be synced", restoring.display()))
}

/// Moves the content of `restored` into `data`, and removes `restored`.
fn move_all(restored: &Path, data: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(restored)? {
        let entry = entry?;
        fs::rename(entry.path(), data.join(entry.file_name()))?;
    }
    RealDisk.sync_dir(data)?;
    fs::remove_dir(restored)?;
    RealDisk.sync_dir(data)
}
