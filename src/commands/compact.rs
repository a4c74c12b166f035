//! `hark compact`: frees disk space.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use crate::commands::stats::StatsArgs;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::stores::embedded::summary;

pub(crate) fn run(args: &StatsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let (archive, shelf) = location.files("compact")?;
    location.must_exist()?;
    let mut meter = CommandProgress::start("compact", 0, CountedUnit::Records);
    let summary = if let Some(mut client) = location.server()? {
        interrupt::end_at_signal("the server continues to compact".into())?;
        client
            .compact(&mut |words| meter.at(0, 0, words))
            .context("the server did not finish compacting; the archive is whole. Try again")?
    } else {
        let _lock = archive.directory_lock()?;
        let left = "the archive is whole. Run the command again to continue";
        interrupt::end_at_signal(left.into())?;
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
