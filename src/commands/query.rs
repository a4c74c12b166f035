//! `hark query`: the events that match, newest first.

use std::io::{BufWriter, Write as _};
use std::process::ExitCode;

use clap::Args;

use crate::damage;
use crate::location::ArchiveLocation;
use crate::question::{self, MergedAnswer};
use crate::when;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark query '{\"kinds\":[1],\"limit\":20}'
  hark query '{\"authors\":[\"<hex key>\"]}' '{\"#p\":[\"<hex key>\"]}'
  hark count '{\"kinds\":[0]}' --json

Several filters are one question: an event counts once if it matches any of them.")]
pub(crate) struct QueryArgs {
    /// Filters of the network, as JSON
    #[arg(value_name = "FILTER", required = true)]
    pub(crate) filters: Vec<String>,
    /// Print JSON (events are always JSON)
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &QueryArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let queries = question::read(location, &args.filters, when::now_s())?;
    let store = location.read()?;
    let mut answer = MergedAnswer::new(&*store, &queries)?.with_lines(location.network);
    let mut out = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    while let Some(found) = answer.next()? {
        out.write_all(&found.json)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(damage::report(&*store, location, "They are missing above, if they match"))
}
