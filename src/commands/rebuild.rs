//! `hark rebuild`: rebuilds everything in an archive that can be derived from its records.

use std::process::ExitCode;

use serde_json::Value;

use crate::commands::check::{faults_table, listed_faults};
use crate::commands::stats::StatsArgs;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};

pub(crate) fn run(args: &StatsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let mut meter = CommandProgress::start("rebuild", 0, CountedUnit::Records);
    let mut steps = |done, total, what: &str| meter.at(done, total, what);
    let rebuilt = location.store.rebuild(&location.place(), &mut steps)?;
    meter.finish();
    let last = rebuilt.last;
    if args.json {
        print::line(&Value::Object(rebuilt.fields).to_string())?;
    } else {
        print::line(&rebuilt.summary)?;
        faults_table(&rebuilt.repaired)?;
        if last.faults > 0 {
            print::line(&format!("{} left", print::count(last.faults, "fault")))?;
            faults_table(&last.sorts)?;
            listed_faults(&last.listed, last.faults)?;
        }
    }
    for note in &last.notes {
        print::note!("hark: {note}");
    }
    if last.faults == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    print::note!("hark: not all faults were repaired. {}", last.advice);
    Ok(ExitCode::FAILURE)
}
