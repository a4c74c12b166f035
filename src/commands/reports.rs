//! `hark reports`: lists the reported events and keys that nobody has decided about.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use hark_archive::clock::Clock;
use hark_codec::hex;
use hark_codec::nostr::npub;
use hark_networks::nostr::Nostr;
use hark_networks::nostr::reports::{ReportChoice, ReportQueue, ReportedItem, ReportedSubject};
use hark_server::moderation::{ModerationRequest, Ruling, RulingSubject};
use serde_json::{Value, json};

use super::moderation::ModerationDesk;
use crate::damage;
use crate::location::ArchiveLocation;
use crate::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark reports
  hark reports --json | jq -r 'select(.reporters > 2) | .id'
  hark ban id:<hex id> --reason illegal
  hark allow id:<hex id>

Lists the events and keys that reports (NIP-56, kind 1984) name: the time of the newest report, the
number of reporters, the event or key, and the types of the reports with a comment. The newest
report is first. Once the event or key is banned or allowed, by `hark ban`, `hark allow` or a client
(NIP-86), its line is no longer listed. Reports by banned keys do not count, and neither do reports
of events that are not stored, unless --absent is given. At most 20,000 reports are read, the newest
first.

With --json, each line is an object. Its fields are `id` or `pubkey`, `author` of a stored event,
`reports`, `reporters`, `types` (the number of reports of each type), `latest` (seconds since 1970)
and `comment`.")]
pub(crate) struct ReportsArgs {
    /// Maximum number of lines; 0: all [default: 50, with --json 0]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Also list reported events that are not stored
    #[arg(long)]
    absent: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Default of `--limit` for a table.
const LIMIT: usize = 50;

pub(crate) fn run(args: &ReportsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let limit = args.limit.unwrap_or(if args.json { 0 } else { LIMIT });
    let limit = if limit == 0 { usize::MAX } else { limit };
    let events = location.of(&Nostr);
    let store = events.read()?;
    let now_s = Clock::System.now_s();
    let rulings = Rulings::read(location)?;
    let choice = ReportChoice {
        is_open: &|subject| !rulings.decide(subject),
        is_heard: &|key| !rulings.bans.contains(&RulingSubject::Key(*key)),
        with_absent: args.absent,
        now_s,
    };
    let mut queue = ReportQueue::read(&*store, &choice)?;
    // The events of a banned key are hidden already.
    queue.items.retain(|item| item.author.is_none_or(|key| (choice.is_heard)(&key)));
    for item in queue.items.iter().take(limit) {
        print::row(&if args.json { object(item).to_string() } else { row(item) })?;
    }
    if !args.json {
        let count = print::count(queue.items.len() as u64, "subject");
        let cut = if queue.is_cut { "; older reports were not read" } else { "" };
        let more = if queue.items.len() > limit { "; --limit shows more" } else { "" };
        print::line(&format!("{count} reported{more}{cut}"))?;
    }
    Ok(damage::report(&*store, &events, "If they are reports, they are missing above"))
}

/// The bans and allows in force.
struct Rulings {
    bans: BTreeSet<RulingSubject>,
    allows: BTreeSet<RulingSubject>,
}

impl Rulings {
    fn read(location: &ArchiveLocation) -> anyhow::Result<Self> {
        let mut rulings = Self { bans: BTreeSet::new(), allows: BTreeSet::new() };
        let request = |after| ModerationRequest::Entries { ruling: None, sort: None, after };
        ModerationDesk::read(location)?.pages(usize::MAX, request, |row| {
            let text = |name: &str| row[name].as_str().unwrap_or_default();
            let subject = text("subject").parse::<RulingSubject>();
            let subject = subject.context("an entry of the bans cannot be read")?;
            let is_ban = text("ruling") == Ruling::Ban.name();
            let list = if is_ban { &mut rulings.bans } else { &mut rulings.allows };
            list.insert(subject);
            Ok(())
        })?;
        Ok(rulings)
    }

    fn decide(&self, subject: &ReportedSubject) -> bool {
        let subject = match subject {
            ReportedSubject::Event(id) => RulingSubject::Id(*id),
            ReportedSubject::Key(key) => RulingSubject::Key(*key),
        };
        self.bans.contains(&subject) || self.allows.contains(&subject)
    }
}

fn object(item: &ReportedItem) -> Value {
    let (name, subject) = match &item.subject {
        ReportedSubject::Event(id) => ("id", hex::text_32(id)),
        ReportedSubject::Key(key) => ("pubkey", hex::text_32(key)),
    };
    let mut object = json!({
        name: subject,
        "reports": item.reports,
        "reporters": item.reporters.len(),
        "types": item.types,
        "latest": item.latest_s,
        "comment": item.comment,
    });
    if let Some(author) = &item.author {
        object["author"] = hex::text_32(author).into();
    }
    object
}

fn row(item: &ReportedItem) -> String {
    let subject = match &item.subject {
        ReportedSubject::Event(id) => format!("id:{}", hex::text_32(id)),
        ReportedSubject::Key(key) => npub::encode(key),
    };
    let reporters = print::count(item.reporters.len() as u64, "reporter");
    let reason: String = item.reason().chars().map(printable).collect();
    format!("{}  {reporters:>12}  {subject:<67}  {reason}", print::moment(item.latest_s))
}

/// Replaces a character that could change the terminal or the direction of the text.
fn printable(letter: char) -> char {
    let is_plain = letter == ' ' || letter.is_alphanumeric() || letter.is_ascii_punctuation();
    if is_plain { letter } else { '?' }
}
