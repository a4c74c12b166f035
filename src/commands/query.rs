//! `hark query`: prints the matching events, newest first.

use std::io::{BufWriter, Write as _};
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::damage;
use crate::location::ArchiveLocation;
use crate::question::{self, MergedAnswer};
use crate::when;
use crate::wrong_use::WrongUse;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark query '{\"kinds\":[1],\"limit\":20}'
  hark query '{\"authors\":[\"<hex key>\"]}' '{\"#p\":[\"<hex key>\"]}'
  hark query --search 'bread \"sour dough\" bak*' '{\"limit\":20}'
  hark count '{\"kinds\":[0]}' --json

Several filters form one query: an event that matches several filters is printed or counted once.
Without `limit`, a query prints all matching events.")]
pub(crate) struct QueryArgs {
    /// Filters of the network, as JSON
    #[arg(value_name = "FILTER", required_unless_present = "search")]
    pub(crate) filters: Vec<String>,
    /// Words that events must have (NIP-50), in addition to each filter; the best matches come first
    #[arg(long, value_name = "WORDS")]
    pub(crate) search: Option<String>,
    /// Print JSON (events are always JSON)
    #[arg(long)]
    pub(crate) json: bool,
}

impl QueryArgs {
    /// Returns the filters, each with the words of `--search` added.
    pub(crate) fn all_filters(&self) -> anyhow::Result<Vec<String>> {
        let Some(words) = &self.search else { return Ok(self.filters.clone()) };
        let every = ["{}".to_owned()];
        let filters = if self.filters.is_empty() { &every[..] } else { &self.filters };
        let with_words = |filter: &String| {
            let Ok(Value::Object(mut fields)) = serde_json::from_str(filter) else {
                let what = format!("--search needs a filter that is a JSON object, not {filter}");
                return Err(WrongUse(what).into());
            };
            if fields.insert("search".into(), words.as_str().into()).is_some() {
                let what = format!("{filter} already has a search; leave --search out");
                return Err(WrongUse(what).into());
            }
            Ok(Value::Object(fields).to_string())
        };
        filters.iter().map(with_words).collect()
    }
}

pub(crate) fn run(args: &QueryArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let queries = question::read(location, &args.all_filters()?, when::now_s())?;
    let store = location.read()?;
    let mut answer = MergedAnswer::new(&*store, &queries)?.with_lines(location.network);
    let mut out = BufWriter::with_capacity(64 << 10, crate::print::Output::new());
    while let Some(found) = answer.next()? {
        out.write_all(&found.json)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(damage::report(&*store, location, "If they match, they are missing above"))
}
