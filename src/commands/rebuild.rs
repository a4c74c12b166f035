//! `hark rebuild`: builds everything in an archive anew that follows from its records.

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
    if args.json {
        print::line(&Value::Object(rebuilt.fields).to_string())?;
    } else {
        print::line(&rebuilt.summary)?;
        faults_table(&rebuilt.repaired)?;
        if rebuilt.left > 0 {
            print::line(&format!("{} left", print::count(rebuilt.left, "fault")))?;
            faults_table(&rebuilt.sorts)?;
            listed_faults(&rebuilt.listed, rebuilt.left)?;
        }
    }
    for note in &rebuilt.notes {
        print::note!("hark: {note}");
    }
    if rebuilt.left == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    print::note!("hark: not all faults were repaired. {}", rebuilt.advice);
    Ok(ExitCode::FAILURE)
}
