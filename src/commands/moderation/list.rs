//! `hark list`: the bans and allows in the archive.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use hark_server::moderation::ModerationRequest;

use super::{ModerationDesk, shown_time};
use crate::location::ArchiveLocation;
use crate::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark list
  hark list bans --of addresses
  hark list allows --limit 0
  hark list bans --json | jq -r .subject

Each row is an entry in force: the ruling, the subject, the end, who made the entry and when, and the
reason. Entries that have ended are not listed. The lists in the configuration ([policy]) are not
part of this list; `hark config` explains them.

With --json, each line is an object, times are in seconds since 1970, and --limit is 0 by default.")]
pub(crate) struct ListArgs {
    /// Only bans, or only allows
    #[arg(value_enum)]
    rulings: Option<ListedRulings>,
    /// Only subjects of this sort
    #[arg(long, value_enum, value_name = "SORT")]
    of: Option<ListedSort>,
    /// Maximum number of entries; 0: all [default: 100]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print one JSON object per entry, one per line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ListedRulings {
    Bans,
    Allows,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ListedSort {
    Key,
    Id,
    Kind,
    Word,
    Addresses,
}

/// Default of `--limit` for people.
const LIMIT: usize = 100;

pub(crate) fn run(args: &ListArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let limit = args.limit.unwrap_or(if args.json { 0 } else { LIMIT });
    let limit = if limit == 0 { usize::MAX } else { limit };
    let ruling = args.rulings.map(|rulings| match rulings {
        ListedRulings::Bans => "ban".to_owned(),
        ListedRulings::Allows => "allow".to_owned(),
    });
    let sort = args.of.and_then(|sort| Some(sort.to_possible_value()?.get_name().to_owned()));
    let request =
        |after| ModerationRequest::Entries { ruling: ruling.clone(), sort: sort.clone(), after };
    let mut shown: u64 = 0;
    let has_more = ModerationDesk::read(location)?.pages(limit, request, |row| {
        shown += 1;
        if args.json {
            return print::row(&row.to_string());
        }
        let text = |name: &str| row[name].as_str().unwrap_or_default();
        let until = row["until"].as_u64().map(|at_s| format!(" until {}", shown_time(at_s)));
        let since = row["since"].as_u64().map(shown_time).unwrap_or_default();
        let reason = text("reason");
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        let (ruling, subject, by) = (text("ruling"), text("subject"), text("by"));
        let until = until.unwrap_or_default();
        print::row(&format!("{ruling} {subject}{until}, by {by} at {since}{reason}"))
    })?;
    if !args.json {
        let more = if has_more { "; more follow (--limit)" } else { "" };
        let entries = if shown == 1 { "entry" } else { "entries" };
        print::line(&format!("{} {entries}{more}", print::number(shown)))?;
    }
    Ok(ExitCode::SUCCESS)
}
