//! `hark check`: looks for faults in an archive, and changes nothing.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::commands::stats::StatsArgs;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};

/// Maximum number of faults to print; further faults are only counted.
const FAULTS_SHOWN: usize = 100;

pub(crate) fn run(args: &StatsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    interrupt::end_at_signal("nothing was changed".into())?;
    let mut meter = CommandProgress::start("check", 0, CountedUnit::Records);
    let mut steps = |done, total, what: &str| meter.at(done, total, what);
    let report = location.store.check(&location.place(), &mut steps)?;
    meter.finish();
    if args.json {
        let mut fields = report.fields;
        fields.insert("faults".into(), json!(report.listed));
        print::line(&Value::Object(fields).to_string())?;
    } else {
        let faults = if report.faults == 0 {
            "no faults".into()
        } else {
            print::count(report.faults, "fault")
        };
        print::line(&format!("{}: {faults}", report.compared.join(", ")))?;
        faults_table(&report.sorts)?;
        listed_faults(&report.listed, report.faults)?;
    }
    for note in &report.notes {
        print::note!("hark: {note}");
    }
    if report.faults == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    print::note!("hark: nothing was changed. {}", report.advice);
    Ok(ExitCode::FAILURE)
}

/// Prints a table with the number of faults of each kind.
pub(super) fn faults_table(sorts: &[(&'static str, u64)]) -> anyhow::Result<()> {
    if sorts.is_empty() {
        return Ok(());
    }
    let row = |(sort, count): &(&'static str, u64)| (*sort, print::number(*count), String::new());
    print::line(&print::table(&sorts.iter().map(row).collect::<Vec<_>>()))
}

/// Prints the first faults, and how many more there are. `faults` is the number of all faults.
pub(super) fn listed_faults(listed: &[String], faults: u64) -> anyhow::Result<()> {
    let listed = listed.iter().take(FAULTS_SHOWN);
    let more = faults - listed.len() as u64;
    for fault in listed {
        print::line(&format!("  {fault}"))?;
    }
    if more > 0 {
        print::line(&format!("  and {} more", print::number(more)))?;
    }
    Ok(())
}
