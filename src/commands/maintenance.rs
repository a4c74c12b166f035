//! `hark compact`, `hark check` and `hark rebuild`: free disk space, check the archive, and rebuild
//! its indices.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use crate::commands::stats::StatsArgs;
use crate::location::ArchiveLocation;
use crate::owner;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::stores::embedded::summary;

/// Maximum faults to print; further faults are only counted.
const FAULTS_SHOWN: usize = 100;

pub(crate) fn compact(args: &StatsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let (archive, shelf) = location.files("compact")?;
    location.must_exist()?;
    let mut meter = CommandProgress::start("compact", 0, CountedUnit::Records);
    let summary = if let Some(mut client) = location.server()? {
        client
            .compact(&mut |words| meter.at(0, 0, words))
            .context("the server did not finish compacting; the archive is whole. Try again")?
    } else {
        let _lock = archive.directory_lock()?;
        let done = shelf
            .open()?
            .compact(&mut |progress| meter.store(progress))
            .context("compacting ended early; the archive is whole. Try again")?;
        summary(&done)
    };
    meter.finish();
    let text = if args.json { json!({ "summary": summary }).to_string() } else { summary };
    print::line(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn check(args: &StatsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let (_, shelf) = location.files("check")?;
    location.must_exist()?;
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
            "Records are damaged: restore the files from a backup, or bring all that is whole into a \
             new archive with `hark salvage`"
        }
    );
    Ok(ExitCode::FAILURE)
}

pub(crate) fn rebuild(args: &StatsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let (archive, shelf) = location.files("rebuild")?;
    location.must_exist()?;
    let lock = archive.directory_lock()?;
    let mut meter = CommandProgress::start("rebuild", 0, CountedUnit::Records);
    let rebuilt = hark_store_embedded::rebuild(&shelf.dir(), &shelf.options(), &mut |progress| {
        meter.store(progress);
    })
    .map_err(|error| {
        let words = if error.is_disk_full() {
            format!(
                "the disk is full, so not all indices could be made; the log is untouched. Make \
                     room on the disk of {}, then run the command again",
                shelf.dir().display()
            )
        } else if error.is_denied() {
            owner::denied(&shelf.dir())
        } else {
            let again = if error.is_unexplained() { ". Run it again" } else { "" };
            format!("rebuilding ended early; the log is untouched{again}")
        };
        anyhow::Error::new(error).context(words)
    })?;
    meter.finish();
    drop(lock);
    // The last log has no index, and a server continues this log.
    let in_all = location.read()?.stats().records;
    let text = if args.json {
        let (records, segments, doubles) = (rebuilt.records, rebuilt.segments, rebuilt.doubles);
        json!({ "records": records, "segments": segments, "doubles": doubles, "in_all": in_all })
            .to_string()
    } else {
        let doubles = match rebuilt.doubles {
            0 => String::new(),
            doubles => format!("; stored twice, and now once: {}", print::number(doubles)),
        };
        format!(
            "{} in the archive; {} of them in {}, rebuilt from the log{doubles}",
            print::count(in_all, location.network.record()),
            print::number(rebuilt.records),
            print::count(rebuilt.segments, "segment")
        )
    };
    print::line(&text)?;
    Ok(ExitCode::SUCCESS)
}
