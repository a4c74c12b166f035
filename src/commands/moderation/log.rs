//! `hark log`: the audit log of the archive.

use std::process::ExitCode;

use clap::Args;
use hark_server::moderation::ModerationRequest;
use serde_json::Value;

use super::{ModerationDesk, shown_time};
use crate::location::ArchiveLocation;
use crate::print;
use crate::when;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark log
  hark log --since 7d
  hark log --json --since 2026-01-01

Each row is an act, newest first: the time, who acted, what was done, and the state before and
after. Every ban, unban, allow and unallow by a command or a management call has a row. Rows are
deleted after 400 days, and the oldest rows when the archive has more than 2,000,000 entries and
rows.

This is not the server's own log, which goes to stderr.

With --json, each line is an object, times are in seconds since 1970, and --limit is 0 by default.")]
pub(crate) struct AuditArgs {
    /// Only acts since this time: seconds since 1970, a UTC date, or an age like 7d
    #[arg(long, value_name = "TIME", value_parser = when::parse)]
    since: Option<u64>,
    /// Maximum number of rows; 0: all [default: 100]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print one JSON object per act, one per line
    #[arg(long)]
    json: bool,
}

/// Default of `--limit` for people.
const LIMIT: usize = 100;

pub(crate) fn run(args: &AuditArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let limit = args.limit.unwrap_or(if args.json { 0 } else { LIMIT });
    let limit = if limit == 0 { usize::MAX } else { limit };
    let since = args.since.unwrap_or(0);
    let request = |after| ModerationRequest::Log { since, after };
    let has_more = ModerationDesk::read(location)?.pages(limit, request, |row| {
        if args.json {
            return print::row(&row.to_string());
        }
        let text = |name: &str| row[name].as_str().unwrap_or_default();
        let at = row["at"].as_u64().map(shown_time).unwrap_or_default();
        let (by, act, subject) = (text("by"), text("act"), text("subject"));
        let states = match (state(&row["before"]), state(&row["after"])) {
            (None, None) => String::new(),
            (None, Some(after)) => format!(": {after}"),
            (Some(before), None) => format!(", before: {before}"),
            (Some(before), Some(after)) => format!(": {after}, before: {before}"),
        };
        print::row(&format!("{at} {by}: {act} {subject}{states}"))
    })?;
    if has_more && !args.json {
        print::line("more follow (--limit)")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the state of a subject before or after an act as text; `None` if there is no state.
fn state(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) => {
            let shown = fields.iter().filter(|(name, value)| {
                // The field `by` is left out: the row of the act that made the entry names its
                // maker.
                name.as_str() != "by" && !value.is_null() && **value != ""
            });
            let fields: Vec<String> =
                shown.map(|(name, value)| format!("{name} {value}")).collect();
            Some(fields.join(", ")).filter(|text| !text.is_empty())
        }
        other => Some(other.to_string()),
    }
}
