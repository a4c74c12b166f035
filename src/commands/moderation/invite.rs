//! `hark invite`: codes with which keys join the members of the relay (NIP-43).

use std::process::ExitCode;

use clap::Args;
use hark_server::moderation::{INVITE_USES_MAX, ModerationRequest};
use serde_json::Value;

use super::{ModerationDesk, actor, shown_time};
use crate::location::ArchiveLocation;
use crate::print;
use crate::when;
use crate::wrong_use::WrongUse;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark invite
  hark invite --uses 20 --for 7d
  hark invite --uses 0
  hark invite --list
  hark invite --revoke 5f0c4a1be2d94e5f8a3c7d6b9e0f1a2b

Prints a code with which a client can join the relay (NIP-43). The client's key is then allowed, as
by `hark allow`, and `hark log` names the key and the first characters of the code. The relay
answers requests to join only if it has a key of its own ([self] key_file).

The codes are stored in the archive, so all servers of the archive know the codes. A code is a
secret: everybody who has the code can use it. With [self] member_invites, members make codes in
their clients, and the list names the makers.

Exit codes: 0 done, 1 failed or no such code, 2 wrong flags.")]
pub(crate) struct InviteArgs {
    /// Number of keys that may join with the code; 0: any number
    #[arg(long, value_name = "N", default_value_t = 1)]
    uses: u32,
    /// How long the code is valid: 90s, 15m, 12h, 7d or 2w [default: until it is used or revoked]
    #[arg(long = "for", value_name = "TIME")]
    time: Option<String>,
    /// List the codes and their uses
    #[arg(long, conflicts_with_all = ["uses", "time", "revoke"])]
    list: bool,
    /// Revoke a code; keys that have joined stay
    #[arg(long, value_name = "CODE", conflicts_with_all = ["uses", "time"])]
    revoke: Option<String>,
    /// Print one JSON object per code, one per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &InviteArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    if args.list {
        return list(args.json, location);
    }
    let by = actor("invite");
    if let Some(code) = &args.revoke {
        let code = code.trim().to_ascii_lowercase();
        let request = ModerationRequest::Uninvite { code: code.clone(), by };
        let answer = ModerationDesk::open(location)?.ask(&request)?;
        let is_revoked = answer["revoked"] == true;
        let words = if is_revoked { "is revoked" } else { "is no code of this archive" };
        print::line(&if args.json { answer.to_string() } else { format!("{code} {words}") })?;
        return Ok(if is_revoked { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if args.uses > INVITE_USES_MAX {
        let words = format!("--uses takes at most {INVITE_USES_MAX}, or 0 for any number");
        return Err(WrongUse(words).into());
    }
    let wrong = "--for takes a time like 12h, 7d or 2w";
    let age = args.time.as_deref().map(|text| when::age(text).filter(|age_s| *age_s > 0));
    let age = age.map(|age| age.ok_or_else(|| WrongUse(wrong.into()))).transpose()?;
    let until = age.map(|age_s| when::now_s().saturating_add(age_s));
    let uses = (args.uses > 0).then_some(args.uses);
    let answer =
        ModerationDesk::open(location)?.ask(&ModerationRequest::Invite { uses, until, by })?;
    let code = answer["code"].as_str().unwrap_or_default();
    print::line(&if args.json { answer.to_string() } else { code.to_owned() })?;
    Ok(ExitCode::SUCCESS)
}

fn list(json: bool, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let mut shown: u64 = 0;
    let request = |after| ModerationRequest::Invites { after };
    ModerationDesk::read(location)?.pages(usize::MAX, request, |row| {
        shown += 1;
        print::row(&if json { row.to_string() } else { words(row) })
    })?;
    if !json {
        let codes = if shown == 1 { "code" } else { "codes" };
        print::line(&format!("{} {codes}", print::number(shown)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn words(row: &Value) -> String {
    let (code, by) = (row["code"].as_str().unwrap_or_default(), row["by"].as_str());
    let uses = match (row["uses"].as_u64(), row["uses_max"].as_u64()) {
        (Some(uses), Some(uses_max)) => format!("{uses} of {uses_max} uses"),
        _ => "any number of uses".into(),
    };
    let until = row["until"].as_u64().map(|at_s| format!(", until {}", shown_time(at_s)));
    let since = row["since"].as_u64().map(shown_time).unwrap_or_default();
    let until = until.unwrap_or_default();
    format!("{code} {uses}{until}, by {} at {since}", by.unwrap_or_default())
}
