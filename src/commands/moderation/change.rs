//! `hark ban`, `hark unban`, `hark allow` and `hark unallow`.

use std::io::BufRead as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use hark_server::moderation::{ModerationRequest, Ruling, RulingSubject, SUBJECTS_MAX};
use serde_json::Value;

use super::{ModerationDesk, actor, purge, shown_time};
use crate::location::ArchiveLocation;
use crate::print;
use crate::when;
use crate::wrong_use::WrongUse;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark ban npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg --reason spam
  hark ban 198.51.100.7 198.51.100.0/24 --for 7d
  hark ban note1gmtnz6q2m55epmlpe3semjdcq987av3jvx4emmjsa8g3s9x7tg4sclreky kind:1984 word:casino
  hark ban npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg --purge --yes
  hark ban - --reason 'list of a friend' < keys.txt

A subject is a key (npub1…, or 64 hex digits), an event (note1…, nevent1…, or id:HEX), kind:NUMBER,
word:TEXT with a * for further letters, an address, or a network of addresses. `-` reads one
subject per line from stdin.

The ban is stored in the archive, and is in force at once on all servers of the archive: new events
with a banned key, id, kind or word are refused with the reason, also from `hark import`, `sync`,
`stream` and `router`. Stored events of a banned key or id are hidden from clients. Connections of a
banned address or key are closed with the reason. The lists in the configuration ([policy]) stay in
force.

--purge also deletes the stored events of banned keys, ids and kinds: it shows their number, and
deletes them with --yes. Without --purge, `hark unban` makes the stored events visible again.

Exit codes: 0 the subjects are banned, 1 failed, 2 wrong flags or subjects.")]
pub(crate) struct BanArgs {
    #[command(flatten)]
    set: SetArgs,
    /// Also delete the stored events of these keys, ids and kinds; without --yes, only show their
    /// number
    #[arg(long)]
    purge: bool,
    /// Really delete
    #[arg(long, requires = "purge")]
    yes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark allow npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg --reason member
  hark allow kind:30078 --for 30d
  hark allow 203.0.113.0/24

An allow adds a key, kind, word, address or network to the allow list of [policy] with the same
name. If that list allows everything, the allow has no effect, so an allow never makes an open
server closed. A ban, or a deny list of [policy], still refuses an allowed subject. An allowed event
(note1…, nevent1… or id:HEX) is accepted in spite of all lists and bans; only [policy] pow_bits_min
applies.

Exit codes: 0 the subjects are allowed, 1 failed, 2 wrong flags or subjects.")]
pub(crate) struct AllowArgs {
    #[command(flatten)]
    set: SetArgs,
}

/// The flags of a command that makes entries.
#[derive(Debug, Args)]
struct SetArgs {
    /// Keys, events, kinds, words, addresses or networks; `-`: one per line from stdin
    #[arg(value_name = "SUBJECT", required = true)]
    subjects: Vec<String>,
    /// How long: 90s, 15m, 12h, 7d or 2w [default: until it is lifted]
    #[arg(long = "for", value_name = "TIME")]
    time: Option<String>,
    /// The reason, which refused clients get
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Print one JSON object per subject, one per line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark unban npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg
  hark unban 198.51.100.0/24 kind:1984
  hark unallow 203.0.113.0/24

The ban of a network can only be lifted as a whole: `hark unban 198.51.100.7` does not change a ban
of 198.51.100.0/24.

Exit codes: 0 lifted, 1 no subject had an entry or the command failed, 2 wrong flags or subjects.")]
pub(crate) struct LiftArgs {
    /// Keys, events, kinds, words, addresses or networks, as `hark list` shows them; `-`: one per
    /// line from stdin
    #[arg(value_name = "SUBJECT", required = true)]
    subjects: Vec<String>,
    /// Print one JSON object per subject, one per line
    #[arg(long)]
    json: bool,
}

/// Runs `hark ban`.
pub(crate) fn ban(args: &BanArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let subjects = subjects(&args.set.subjects)?;
    let filters = if args.purge { purge::filters(&subjects)? } else { Vec::new() };
    let desk = set(Ruling::Ban, &args.set, &subjects, location)?;
    if args.purge {
        return purge::run(&filters, (args.yes, args.set.json), desk, location);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `hark allow`.
pub(crate) fn allow(args: &AllowArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let subjects = subjects(&args.set.subjects)?;
    set(Ruling::Allow, &args.set, &subjects, location)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `hark unban` or `hark unallow`.
pub(crate) fn lift(
    ruling: Ruling,
    args: &LiftArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let (subjects, act) = (subjects(&args.subjects)?, ruling.lifting_name());
    let mut desk = ModerationDesk::open(location)?;
    let (by, mut lifted) = (actor(act), 0);
    change(
        &mut desk,
        &subjects,
        args.json,
        |subjects| {
            let (act, by) = (act.into(), by.clone());
            ModerationRequest::Change { act, subjects, reason: String::new(), until: None, by }
        },
        |row| {
            let subject = row["subject"].as_str().unwrap_or_default();
            lifted += usize::from(row["changed"] == true);
            match (row["changed"] == true, ruling) {
                (true, Ruling::Ban) => format!("{subject} is no longer banned"),
                (true, Ruling::Allow) => format!("{subject} is no longer allowed"),
                (false, _) => format!("{subject} had no {}", ruling.name()),
            }
        },
    )?;
    Ok(if lifted > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn set(
    ruling: Ruling,
    args: &SetArgs,
    subjects: &[RulingSubject],
    location: &ArchiveLocation,
) -> anyhow::Result<ModerationDesk> {
    let wrong = "--for takes a time like 12h, 7d or 2w";
    let age = args.time.as_deref().map(|text| when::age(text).filter(|age_s| *age_s > 0));
    let age = age.map(|age| age.ok_or_else(|| WrongUse(wrong.into()))).transpose()?;
    let until = age.map(|age_s| when::now_s().saturating_add(age_s));
    let mut desk = ModerationDesk::open(location)?;
    let (act, by) = (ruling.name(), actor(ruling.name()));
    let done = if ruling == Ruling::Ban { "banned" } else { "allowed" };
    change(
        &mut desk,
        subjects,
        args.json,
        |subjects| {
            let (act, reason, by) = (act.into(), args.reason.clone(), by.clone());
            ModerationRequest::Change { act, subjects, reason, until, by }
        },
        |row| {
            let subject = row["subject"].as_str().unwrap_or_default();
            let until = row["after"]["until"].as_u64();
            let until =
                until.map(|at_s| format!(" until {}", shown_time(at_s))).unwrap_or_default();
            let already = if row["changed"] == true { "" } else { " already" };
            format!("{subject} is {done}{already}{until}")
        },
    )?;
    Ok(desk)
}

/// Maximum number of bytes of the subjects of a request, so that the request fits into a small frame
/// (`limits.control_frame_bytes_max`).
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Divides subjects into requests. The changes of a request become durable and are put in force
/// together, so few requests with many subjects take less time than many requests.
fn requests(subjects: &[RulingSubject]) -> impl Iterator<Item = Vec<String>> {
    let mut texts = subjects.iter().map(ToString::to_string).peekable();
    std::iter::from_fn(move || {
        let (mut request, mut bytes) = (Vec::new(), 0);
        while let Some(text) = texts.next_if(|text| {
            bytes += text.len();
            request.is_empty() || request.len() < SUBJECTS_MAX && bytes <= REQUEST_BYTES_MAX
        }) {
            request.push(text);
        }
        (!request.is_empty()).then_some(request)
    })
}

/// Sends the changes, in requests of a bounded size, and prints a line for each subject.
fn change(
    desk: &mut ModerationDesk,
    subjects: &[RulingSubject],
    json: bool,
    request: impl Fn(Vec<String>) -> ModerationRequest,
    mut words: impl FnMut(&Value) -> String,
) -> anyhow::Result<()> {
    for some in requests(subjects) {
        let answer = desk.ask(&request(some))?;
        let rows = answer["changed"].as_array().context("the answer cannot be read")?;
        for row in rows {
            let words = words(row);
            print::line(&if json { row.to_string() } else { words })?;
        }
    }
    Ok(())
}

/// Reads the subjects, each of which may be `-` for the lines of stdin.
fn subjects(texts: &[String]) -> anyhow::Result<Vec<RulingSubject>> {
    let mut subjects = Vec::new();
    let read = |text: &str| -> anyhow::Result<RulingSubject> {
        Ok(text
            .parse()
            .map_err(|error: hark_server::moderation::SubjectError| WrongUse(error.to_string()))?)
    };
    for text in texts {
        if text != "-" {
            subjects.push(read(text)?);
            continue;
        }
        for line in std::io::stdin().lock().lines() {
            let line = line.context("the subjects could not be read from stdin")?;
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                subjects.push(read(line)?);
            }
        }
    }
    Ok(subjects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_all_subjects_in_order_and_a_bounded_size() {
        let kinds: Vec<_> = (0..2_500).map(RulingSubject::Kind).collect();
        let long = |n: u32| RulingSubject::Word(format!("{n:0200}"));
        let words: Vec<_> = (0..1_000).map(long).collect();
        for (subjects, first) in [(kinds, 1_000), (words, 319), (Vec::new(), 0)] {
            let all: Vec<Vec<String>> = requests(&subjects).collect();
            assert_eq!(all.first().map_or(0, Vec::len), first);
            let texts: Vec<String> = subjects.iter().map(ToString::to_string).collect();
            assert_eq!(all.concat(), texts);
        }
    }
}
