//! `hark restore`: restores an archive from a backup.
//!
//! The archive is built in a separate directory (see `Making` in `stores/embedded`). After an
//! interruption, the next restore moves a completely built archive into place, or else starts
//! again. Until then, no other command opens the archive.
//!
//! `restore_records` restores into any other store.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_server::growth;
use hark_store_embedded::DirectoryLock;
use hark_store_embedded::backup::{self, BackupCatalog, restore, restore_unpacked};
use hark_store_embedded::disk::{Disk as _, RealDisk};
use hark_store_embedded::permissions;
use serde_json::json;

use crate::commands::backup_file::{self, BackupForm};
use crate::commands::restore_records::{self, RecordRestore, is_promise, must_be_without_promises};
use crate::config::{setup, setups};
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::owner;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::stores::embedded::{FileArchive, RESTORE};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark --data /var/lib/hark restore /mnt/backup/hark
  hark --data /var/lib/hark restore /mnt/backup/monday.hark
  zstd -dc monday.hark.zst | hark --data /var/lib/hark restore -
  hark --data /var/lib/hark restore --move-aside /mnt/backup/hark
  hark --data /var/lib/hark check
  hark --store postgres://hark@127.0.0.1/hark restore /mnt/backup/hark

The archive's directory must have no archive. With --move-aside, an existing archive is moved into
the folder before-restore in this directory, once the backup has been read. Remove that folder when
it is no longer needed.

The command restores all networks, and the keys by which peers know the nodes. It compares every
byte with its checksum, and does not change the backup. If the command is interrupted, run it again.
Files that root restores into a new directory belong to the owner of the backup.

With --store, the backup is restored into a database. The database must have no records. With
--merge, it may have records: the command adds the records that the database lacks, and the
database's newer versions and deletions stay in force. The keys are written into the archive's
directory.")]
pub(crate) struct RestoreArgs {
    /// The backup: a directory or file written by `hark backup`, or - for stdin
    #[arg(value_name = "DIR|FILE")]
    pub(crate) from: PathBuf,
    /// Move the existing archive into DIR/before-restore
    #[arg(long)]
    pub(crate) move_aside: bool,
    /// Restore into a database that has records, and add the records that it lacks
    #[arg(long)]
    pub(crate) merge: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &RestoreArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    if location.store_as::<FileArchive>().is_none() {
        if args.move_aside {
            bail!(
                "--move-aside is for archives in files. Name an empty database with --store, or add \
                 the records that the database lacks with --merge"
            );
        }
        let RestoreArgs { merge, json, .. } = *args;
        let task = RecordRestore { from: &args.from, merge, json };
        return restore_records::run(&task, location);
    }
    if args.merge {
        bail!(
            "--merge is for databases. Restore the backup into another directory, and add its records \
             with `hark copy --from DIR --to {}`",
            location.data.display()
        );
    }
    let data = &location.data;
    let form = BackupForm::to_read(&args.from)?;
    let catalog = match form {
        BackupForm::Directory => Some(backup_file::read_catalog(&args.from)?),
        // A single file ends with its catalog, which is read when the file is unpacked.
        BackupForm::File | BackupForm::Stream => None,
    };
    let source = match form {
        BackupForm::Directory => Some(BackupCatalog::path(&args.from)),
        BackupForm::File => Some(args.from.clone()),
        BackupForm::Stream => None,
    };
    if let Some(source) = &source {
        owner::make_dir_like(data, source)?;
    }
    let _lock = DirectoryLock::acquire(data)
        .with_context(|| format!("{} cannot be restored into", data.display()))?;
    interrupt::end_at_signal(format!(
        "{} has a restore that is not finished, so no other command opens its archive. Run the \
         command again",
        data.display()
    ))?;
    let (restoring, restored) = (data.join(RESTORE.unfinished), data.join(RESTORE.finished));
    // If an interrupted restore has written all its files, this run only moves them into place, and
    // does not restore the backup that the command line names.
    let mut time = None;
    if !restored.exists() {
        if args.move_aside {
            must_be_without_aside(data, &restoring)?;
        } else {
            must_be_without_archive(data)?;
        }
        if restoring.exists() {
            fs::remove_dir_all(&restoring)
                .with_context(|| format!("{} could not be removed", restoring.display()))?;
        }
        let made = make(args, location, catalog, &restoring);
        time = Some(made.map_err(|error| withdraw(data, &restoring, error))?);
        if args.move_aside {
            move_aside(data, &restoring)?;
        }
    }
    RESTORE.finish(data)?;
    owner::report_to_root(data, source.as_deref());
    if args.json {
        let names = setups().iter().map(|setup| setup.network.name());
        let shelves: Vec<_> = names.filter(|name| data.join(name).is_dir()).collect();
        return print::line(&json!({ "shelves": shelves, "time": time }).to_string())
            .map(|()| ExitCode::SUCCESS);
    }
    let of = match time {
        Some(time) => format!("of {}", print::moment(time)),
        None => "whose restore was interrupted".into(),
    };
    print::line(&format!("{} has the archive {of}", data.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of a shelf of the archive in `data`.
fn existing_shelf(data: &Path) -> Option<&'static str> {
    let mut names = setups().iter().map(|setup| setup.network.name());
    names.find(|name| data.join(name).exists())
}

fn must_be_without_archive(data: &Path) -> anyhow::Result<()> {
    if let Some(shelf) = existing_shelf(data) {
        bail!(
            "there is an archive in {} already ({shelf}); move it aside with --move-aside, or \
             name another directory with --data",
            data.display()
        );
    }
    Ok(())
}

/// The folder within the archive's directory to which the existing archive is moved before a
/// restore.
const BEFORE: &str = "before-restore";

/// Fails if an earlier, completed restore has moved an archive aside. After an interrupted restore,
/// the folder is used again.
fn must_be_without_aside(data: &Path, restoring: &Path) -> anyhow::Result<()> {
    let before = data.join(BEFORE);
    // A symbolic link made by a service's user could lead to any directory of this machine.
    if before.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
        bail!("{} is no directory, but a link or a file; remove it", before.display());
    }
    if before.exists() && !restoring.exists() {
        bail!(
            "{} is there already, of an earlier restore; remove it if you no longer need its \
             archive, or move it away",
            before.display()
        );
    }
    Ok(())
}

/// Removes `restoring` after a failure if the existing archive is still in its place, so that
/// other commands open the archive. Once a part of the archive may have been moved aside,
/// `restoring` stays, and only another restore goes on.
fn withdraw(data: &Path, restoring: &Path, error: anyhow::Error) -> anyhow::Error {
    if existing_shelf(data).is_none() || data.join(BEFORE).exists() {
        return error;
    }
    let unchanged = format!("the archive in {} is unchanged", data.display());
    match fs::remove_dir_all(restoring) {
        Err(left) if left.kind() != ErrorKind::NotFound => error.context(format!(
            "{unchanged}, but {} could not be removed ({left}); remove it, so that other commands \
             open the archive",
            restoring.display()
        )),
        _ => error.context(unchanged),
    }
}

/// Moves all shelves in `data` aside, and those small files that `restoring` will replace, that
/// promise messages of the moved archive, or that have its earlier sizes or the peers of its node.
fn move_aside(data: &Path, restoring: &Path) -> anyhow::Result<()> {
    let before = data.join(BEFORE);
    let mut names: Vec<OsString> =
        setups().iter().map(|setup| setup.network.name().into()).collect();
    let mut moved = || -> std::io::Result<()> {
        for entry in fs::read_dir(restoring)? {
            names.push(entry?.file_name());
        }
        for entry in fs::read_dir(data)? {
            let name = entry?.file_name();
            let has_peers = Path::new(&name).extension().is_some_and(|ending| ending == "nodes");
            if is_promise(Path::new(&name)) || has_peers || name == growth::FILE {
                names.push(name);
            }
        }
        if !before.exists() {
            permissions::create_dir(&before)?;
        }
        for name in &names {
            match fs::rename(data.join(name), before.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        RealDisk.sync_dir(&before)?;
        RealDisk.sync_dir(data)
    };
    moved().with_context(|| {
        format!(
            "the archive in {} could not be moved to {}; run the command again to continue",
            data.display(),
            before.display()
        )
    })
}

/// Creates all shelves and small files durably in `restoring`, and returns the time of the backup.
/// Without a `catalog`, the backup is a single file.
fn make(
    args: &RestoreArgs,
    location: &ArchiveLocation,
    catalog: Option<BackupCatalog>,
    restoring: &Path,
) -> anyhow::Result<u64> {
    let nothing = || {
        format!(
            "nothing was restored into {}; an older backup may be whole",
            location.data.display()
        )
    };
    permissions::create_dir(restoring)
        .with_context(|| format!("{} could not be made", restoring.display()))?;
    let is_file = catalog.is_none();
    let catalog = match catalog {
        Some(catalog) => catalog,
        None => backup_file::unpack(&args.from, restoring).with_context(nothing)?,
    };
    let is_there = |name: &str| location.data.join(name).exists();
    let in_the_way = catalog.root_files().find(|file| !args.move_aside && is_there(&file.name));
    if let Some(file) = in_the_way {
        bail!(
            "{} is there already, and the file of the backup would replace it; move it away",
            location.data.join(&file.name).display()
        );
    }
    if !args.move_aside {
        must_be_without_promises(&catalog, &location.data)?;
    }
    for backup in &catalog.shelves {
        let Some(known) = setup(&backup.name) else {
            bail!("the backup has a network that this Hark does not know: {}", backup.name);
        };
        let shelf = location.of(known.network);
        let (_, files) = shelf.files("restore")?;
        let options = files.options();
        let (from, to) = (args.from.join(&backup.name), restoring.join(&backup.name));
        let mut meter = CommandProgress::start(&backup.name, 0, CountedUnit::Records);
        let progress = &mut |progress| meter.store(progress);
        let done = if is_file {
            restore_unpacked(backup, &to, &options, progress)
        } else {
            restore(backup, &RealDisk, &from, &to, &options, progress)
        };
        meter.finish();
        let done = done.with_context(nothing)?;
        if let Some(until) = catalog.held_until(&backup.name) {
            backup::hold(&RealDisk, &to, until).with_context(nothing)?;
        }
        if !args.json {
            let logs = print::count(backup.copies.len() as u64, "log");
            let segments = print::count(done.segments, "segment");
            print::note!("{}: {logs} restored, {segments} rebuilt", backup.name);
        }
    }
    backup_file::write_small_files(catalog.root_files(), restoring)?;
    Ok(catalog.time_s)
}
