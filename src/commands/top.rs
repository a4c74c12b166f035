//! `hark top`: the kinds, authors and days that have the most records and bytes of the archive.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use hark_archive::Store;
use hark_archive::store::shares::{
    LargestShares, RecordShare, ShareBy, ShareKey, ShareOrder, largest_shares,
};
use hark_codec::hex;
use hark_server::words::date;
use serde_json::{Value, json};

use crate::location::ArchiveLocation;
use crate::{damage, print};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark top
  hark top --by author --sort bytes --limit 20
  hark top --by day --limit 0 --json

For the largest kinds, authors and days, shows the number of events, their bytes, and both as
percentages of the total. A day is the UTC day of an event's own time. The bytes are those of the
stored events, without indices and without deleted events. Expired events and events of banned keys
count until they are deleted. A server may run.

The command reads the events of an archive in files, or the fields of the events in a database, some
thousands at a time, so it takes long for a large archive. Events that are deleted while the command
runs may count.

With --json, the output is one object. It has the number of all `records` and `bytes`, and an object
for each of `kind`, `author` and `day`, with the number of all `groups`, and the largest in `top`,
each with `kind`, `author` (hex) or `day`, `records` and `bytes`. An `author` or `day` of null
stands for events without an author, or after the year 9999. Authors and kinds are null on networks
without them.")]
pub(crate) struct TopArgs {
    /// The groups to show
    #[arg(long, value_enum, default_value_t = TopBy::All)]
    by: TopBy,
    /// Maximum number of kinds, authors and days each; 0: all
    #[arg(long, value_name = "N", default_value_t = 10)]
    limit: usize,
    /// The largest first: by number of events, or by bytes
    #[arg(long, value_enum, default_value_t = TopSort::Records)]
    sort: TopSort,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The values of `--by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TopBy {
    Kind,
    Author,
    Day,
    All,
}

/// The values of `--sort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TopSort {
    Records,
    Bytes,
}

const DAY_S: u64 = 86_400;

pub(crate) fn run(args: &TopArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let store = location.read()?;
    let nature = location.network.nature();
    let all = [TopBy::Kind, TopBy::Author, TopBy::Day];
    let mut json = json!({});
    for by in all.into_iter().filter(|by| args.by == TopBy::All || args.by == *by) {
        let found = match by {
            TopBy::Kind if nature.one_kind => None,
            TopBy::Author if !nature.has_authors => None,
            TopBy::Kind => Some(largest(&*store, ShareBy::Kind, args)?),
            TopBy::Author => Some(largest(&*store, ShareBy::Author, args)?),
            TopBy::Day | TopBy::All => {
                let day = ShareBy::Time(nature.units_per_s.saturating_mul(DAY_S));
                Some(largest(&*store, day, args)?)
            }
        };
        let (name, plural) = match by {
            TopBy::Kind => ("kind", "kinds"),
            TopBy::Author => ("author", "authors"),
            TopBy::Day | TopBy::All => ("day", "days"),
        };
        if args.json {
            if let Some(found) = &found {
                json["records"] = json!(found.total.records);
                json["bytes"] = json!(found.total.bytes);
            }
            json[name] = found.map_or(Value::Null, |found| object(name, &found));
            continue;
        }
        match found {
            Some(found) => print::line(&table((name, plural), &found, location.network.records()))?,
            None => print::line(&format!("{} have no {plural}", location.network.records()))?,
        }
    }
    if args.json {
        print::line(&json.to_string())?;
    }
    Ok(damage::report(&*store, location, "They are not counted"))
}

fn largest(store: &dyn Store, by: ShareBy, args: &TopArgs) -> anyhow::Result<LargestShares> {
    let order = match args.sort {
        TopSort::Records => ShareOrder::Records,
        TopSort::Bytes => ShareOrder::Bytes,
    };
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    Ok(largest_shares(order, limit, |each| store.shares(by, each))?)
}

/// The groups as an object. `name` is the member that has the name of a group.
fn object(name: &str, found: &LargestShares) -> Value {
    let group = |(key, share): &(ShareKey, RecordShare)| {
        let key = match key {
            ShareKey::Kind(kind) => json!(kind),
            ShareKey::Author(author) => {
                json!(author.as_ref().map(hex::text_32))
            }
            ShareKey::Time(day) => json!(day_of(*day)),
        };
        json!({ name: key, "records": share.records, "bytes": share.bytes })
    };
    let top: Vec<Value> = found.largest.iter().map(group).collect();
    json!({ "groups": found.groups, "top": top })
}

/// Returns a day as text; `None` after the year 9999.
fn day_of(day: u64) -> Option<String> {
    let text = date(day.saturating_mul(DAY_S));
    (text.len() == "2024-02-29".len()).then_some(text)
}

/// The groups as a table, with the total as its first row.
fn table((name, plural): (&str, &str), found: &LargestShares, records: &str) -> String {
    let groups = if found.groups == 1 { name } else { plural };
    let total = format!("{} {groups}", print::number(found.groups));
    let label = |key: &ShareKey| match key {
        ShareKey::Kind(kind) => format!("kind {kind}"),
        ShareKey::Author(Some(author)) => hex::text_32(author),
        ShareKey::Author(None) => "no author".into(),
        ShareKey::Time(day) => day_of(*day).unwrap_or_else(|| "after 9999-12-31".into()),
    };
    let groups = found.largest.iter().map(|(key, share)| (label(key), *share));
    let rows: Vec<_> = std::iter::once((total, found.total)).chain(groups).collect();
    let cells = rows.iter().map(|(label, share)| {
        let bytes = percent(share.bytes, found.total.bytes);
        let rest = format!(
            "{:>7}  {:>10} {bytes:>7}",
            percent(share.records, found.total.records),
            print::bytes(share.bytes),
        );
        (label.as_str(), format!("{} {records}", print::number(share.records)), rest)
    });
    print::table(&cells.collect::<Vec<_>>())
}

/// Formats a part of a total in percent.
fn percent(part: u64, total: u64) -> String {
    format!("{:.1} %", part as f64 / total.max(1) as f64 * 100.0)
}
