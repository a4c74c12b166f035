//! `hark check`: looks for faults in an archive, and changes nothing.

use std::process::ExitCode;

use serde_json::json;

use crate::commands::stats::StatsArgs;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};

/// Maximum faults to print; further faults are only counted.
const FAULTS_SHOWN: usize = 100;

pub(crate) fn run(args: &StatsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let (_, shelf) = location.files("check")?;
    location.must_exist()?;
    interrupt::end_at_signal("nothing was changed".into())?;
    let mut meter = CommandProgress::start("check", 0, CountedUnit::Records);
    let report = hark_store_embedded::check(&shelf.dir(), &shelf.options(), &mut |progress| {
        meter.store(progress);
    })
    .map_err(|error| {
        shelf.not_opened(error, |_| {
            "the archive could not be checked to its end; nothing was changed".into()
        })
    })?;
    meter.finish();
    let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
    if args.json {
        let json = json!({
            "records": report.records,
            "dead": report.dead,
            "segments": report.segments,
            "logs": report.logs,
            "torn_bytes": report.torn_bytes,
            "faults": faults,
        });
        print::line(&json.to_string())?;
    } else {
        print::line(&format!(
            "{}, {} deleted, {}, {}: {}",
            print::count(report.records, location.network.record()),
            print::number(report.dead),
            print::count(report.segments, "segment"),
            print::count(report.logs, "log"),
            if faults.is_empty() {
                "no faults".into()
            } else {
                print::count(faults.len() as u64, "fault")
            }
        ))?;
        for fault in faults.iter().take(FAULTS_SHOWN) {
            print::line(&format!("  {fault}"))?;
        }
        if faults.len() > FAULTS_SHOWN {
            print::line(&format!("  and {} more", faults.len() - FAULTS_SHOWN))?;
        }
    }
    if report.torn_bytes > 0 {
        print::note!(
            "hark: the last log ends in {} that are no whole batch, which the next start cuts off. After a \
             crash or a power cut, nothing in them was acknowledged. Otherwise the disk has damaged \
             acknowledged {}: before the next start or `hark rebuild`, run `hark salvage`, which \
             copies all whole ones",
            print::bytes(report.torn_bytes),
            location.network.records()
        );
    }
    if faults.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let mendable = report.faults.iter().all(|fault| fault.mendable);
    print::note!(
        "hark: nothing was changed. {}",
        if mendable && report.torn_bytes > 0 {
            "All other records are whole; `hark rebuild` rebuilds the rest, with the server stopped"
        } else if mendable {
            "The records are whole; `hark rebuild` rebuilds the rest, with the server stopped"
        } else {
            "Records are damaged: restore the archive from a backup with `hark restore --move-aside`, \
             or bring all that is whole into a new archive with `hark salvage`"
        }
    );
    Ok(ExitCode::FAILURE)
}
