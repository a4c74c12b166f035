//! `hark salvage`: copies every whole record of a damaged archive to a new archive.
//!
//! The new archive is built in a separate directory (see `Making` in `stores/embedded`), so that an
//! unfinished archive is never mistaken for a complete archive. After an interruption, the next
//! salvage starts from the beginning.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_archive::Id;
use hark_codec::hex;
use hark_networks::Network;
use hark_store_embedded::disk::{Disk as _, RealDisk};
use hark_store_embedded::{DirectoryLock, LockError, LostPart, SalvageReport};
use serde_json::{Value, json};

use crate::config::setups;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::owner;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::stores::embedded::SALVAGE;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark salvage --from /var/lib/hark --to /mnt/new

For an archive with a damaged log, which `hark serve` refuses or serves without some records. The
damaged archive is not changed, and its disk may be read-only. Deleted and replaced records are left
out, as far as the undamaged files show that they were deleted or replaced. Lost records are listed,
with their ids if they are known: other servers may have these records. If the command is
interrupted, run it again.")]
pub(crate) struct SalvageArgs {
    /// The directory of the damaged archive; stop its server first
    #[arg(long, value_name = "DIR")]
    pub(crate) from: PathBuf,
    /// The directory of the new archive, which must be missing or empty
    #[arg(long, value_name = "NEW")]
    pub(crate) to: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Maximum number of lost parts to print; further parts are only counted. JSON has more.
const PARTS_SHOWN: usize = 100;
/// Maximum number of ids to print for one part.
const IDS_SHOWN: usize = 20;

/// Runs the command for the shelf of `location`, or for all shelves of the archive.
pub(crate) fn run(
    args: &SalvageArgs,
    location: &ArchiveLocation,
    one_shelf: bool,
) -> anyhow::Result<ExitCode> {
    let from = location.in_directory(&args.from);
    let making = args.to.join(SALVAGE.unfinished);
    let to = location.in_directory(&making);
    let all = setups().iter().map(|setup| setup.network);
    let wanted = all.filter(|network| !one_shelf || network.name() == location.network.name());
    let shelves: Vec<&'static dyn Network> =
        wanted.filter(|network| from.of(*network).shelf().is_dir()).collect();
    if shelves.is_empty() {
        bail!("there is no archive in {}; nothing was done", from.data.display());
    }
    must_be_new(&args.to)?;
    let _lock = lock(&from)?;
    owner::make_dir_like(&args.to, &args.from)?;
    let _new = DirectoryLock::acquire(&args.to)
        .with_context(|| format!("{} cannot be salvaged into", args.to.display()))?;
    if args.to.join(SALVAGE.finished).exists() {
        SALVAGE.finish(&args.to)?;
        bail!(
            "{} has the archive of an interrupted salvage, which is whole; the interrupted run has \
             listed the lost parts. To list the lost parts again, salvage into another directory",
            args.to.display()
        );
    }
    if making.exists() {
        std::fs::remove_dir_all(&making)
            .with_context(|| format!("{} could not be removed", making.display()))?;
    }
    interrupt::end_at_signal(format!(
        "nothing was changed in {}, and {} has no archive yet. Run the command again",
        from.data.display(),
        args.to.display()
    ))?;
    owner::make_dir_like(&making, &args.from)?;
    let mut reports = Vec::new();
    for network in shelves {
        let (from, to) = (from.of(network), to.of(network));
        let (_, files) = to.files("salvage")?;
        let store = files.open()?;
        let mut meter = CommandProgress::start("salvage", 0, CountedUnit::Bytes);
        let report =
            hark_store_embedded::salvage(&RealDisk, &from.shelf(), &store, &mut |progress| {
                meter.store(progress);
            });
        meter.finish();
        let report = report.with_context(|| {
            format!(
                "the {} in {} could not be brought over to the end; nothing was changed there. Run \
                 the command again",
                network.records(),
                from.shelf().display(),
            )
        })?;
        reports.push((network, report));
    }
    RealDisk
        .sync_dir(&making)
        .with_context(|| format!("{} could not be synced", making.display()))?;
    let is_whole = reports.iter().all(|(_, report)| is_whole(report));
    if args.json {
        let shelves: Vec<Value> =
            reports.iter().map(|(network, report)| to_json(network.name(), report)).collect();
        print::line(&json!({ "shelves": shelves }).to_string())?;
    } else {
        for (network, report) in &reports {
            print_report(*network, report)?;
        }
    }
    // The report is printed before the archive is moved to its final place. So if an archive is
    // there, its report has been printed, as far as the reader of stdout wanted the report.
    SALVAGE.finish(&args.to)?;
    owner::report_to_root(&args.to, Some(&args.from));
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn must_be_new(to: &Path) -> anyhow::Result<()> {
    let Ok(entries) = std::fs::read_dir(to) else { return Ok(()) };
    let ours = ["LOCK", "WRITER", SALVAGE.unfinished, SALVAGE.finished];
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    if !to.join(SALVAGE.finished).exists()
        && names.any(|name| ours.iter().all(|known| name != *known))
    {
        bail!("{} is not empty; name a new directory. Nothing was done", to.display());
    }
    Ok(())
}

/// Locks the damaged archive. Returns `None` if its disk cannot be written: no lock is needed then,
/// since no server can run on the archive.
fn lock(from: &ArchiveLocation) -> anyhow::Result<Option<DirectoryLock>> {
    match DirectoryLock::acquire(&from.data) {
        Ok(lock) => Ok(Some(lock)),
        Err(LockError::Io { .. }) => Ok(None),
        Err(LockError::Held { pid, .. }) => bail!(
            "another process ({pid}) holds the archive in {}; stop it first. Nothing was done",
            from.data.display()
        ),
    }
}

/// Whether no acknowledged record is lost, as far as the files show.
fn is_whole(report: &SalvageReport) -> bool {
    report.lost.iter().all(|part| part.may_be_torn) && report.manifest.is_none()
}

fn text(id: &Id) -> String {
    hex::encode_32(id).iter().map(|digit| char::from(*digit)).collect()
}

fn to_json(shelf: &str, report: &SalvageReport) -> Value {
    let part = |part: &LostPart| {
        json!({
            "file": part.file,
            "from": part.bytes.start,
            "to": (part.bytes.end != u64::MAX).then_some(part.bytes.end),
            "records": part.records,
            "oldest": part.times.map(|(oldest, _)| oldest),
            "newest": part.times.map(|(_, newest)| newest),
            "ids": part.ids.iter().map(text).collect::<Vec<_>>(),
            "likely_id": part.likely_id.as_ref().map(text),
            "may_be_torn": part.may_be_torn,
            "unopened": part.unopened,
        })
    };
    json!({
        "shelf": shelf,
        "records": report.records,
        "deleted": report.deleted,
        "replaced": report.replaced,
        "logs": report.logs,
        "bytes": report.bytes,
        "lost_bytes": report.lost_bytes,
        "lost": report.lost.iter().map(part).collect::<Vec<_>>(),
        "more_lost": report.more_lost,
        "manifest": report.manifest,
    })
}

fn print_report(network: &dyn Network, report: &SalvageReport) -> anyhow::Result<()> {
    print::line(&format!(
        "{}: {} brought over; had been deleted: {}, replaced by others or there twice: {}",
        network.name(),
        print::count(report.records, network.record()),
        print::number(report.deleted),
        print::number(report.replaced),
    ))?;
    if let Some(why) = &report.manifest {
        print::line(&format!(
            "  MANIFEST is of no use ({why}): records may be back whose deletion was in a damaged \
             part"
        ))?;
    }
    if report.lost.is_empty() {
        return print::line("  nothing is lost");
    }
    print::line(&format!("  {} of the log are lost:", print::bytes(report.lost_bytes)))?;
    for part in report.lost.iter().take(PARTS_SHOWN) {
        print::line(&format!("  {part}"))?;
        for id in part.ids.iter().take(IDS_SHOWN) {
            print::line(&format!("    {}", text(id)))?;
        }
        if part.ids.len() > IDS_SHOWN {
            print::line(&format!("    and {} more", part.ids.len() - IDS_SHOWN))?;
        }
        if let Some(id) = &part.likely_id {
            print::line(&format!("    probably {}", text(id)))?;
        }
    }
    let more = report.lost.len().saturating_sub(PARTS_SHOWN) as u64 + report.more_lost;
    if more > 0 {
        print::line(&format!("  and {}", print::count(more, "more part")))?;
    }
    Ok(())
}
