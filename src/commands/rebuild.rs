//! `hark rebuild`: builds the indices of an archive anew from its logs.

use std::process::ExitCode;

use serde_json::json;

use crate::commands::stats::StatsArgs;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::owner;
use crate::print::{self, CommandProgress, CountedUnit};

pub(crate) fn run(args: &StatsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let (archive, shelf) = location.files("rebuild")?;
    location.must_exist()?;
    let lock = archive.directory_lock()?;
    interrupt::end_at_signal("the log is untouched. Run the command again".into())?;
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
    // The total includes the records of the last log, which a server continues. They are not in
    // `rebuilt`, since this log has no index.
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
