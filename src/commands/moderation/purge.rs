//! `hark ban --purge`: deletes the stored events of banned keys, ids and kinds.

use std::process::ExitCode;

use hark_server::moderation::{ModerationRequest, RulingSubject};
use serde_json::json;

use super::{ModerationDesk, actor};
use crate::commands::delete::{self, DeleteArgs};
use crate::commands::relays::events;
use crate::location::ArchiveLocation;
use crate::print;
use crate::question;
use crate::wrong_use::WrongUse;

/// Maximum number of values in one filter.
const VALUES_MAX: usize = 500;

/// Returns the filters for the stored events of these subjects. Fails if a subject has no filter.
pub(super) fn filters(subjects: &[RulingSubject]) -> Result<Vec<String>, WrongUse> {
    let (mut keys, mut ids, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    for subject in subjects {
        let digits = subject.to_string();
        let digits = digits.split_once(':').map_or("", |(_, digits)| digits).to_owned();
        match subject {
            RulingSubject::Key(_) => keys.push(json!(digits)),
            RulingSubject::Id(_) => ids.push(json!(digits)),
            RulingSubject::Kind(kind) => kinds.push(json!(kind)),
            RulingSubject::Word(_) | RulingSubject::Addresses(_) => {
                let shown = subject.shown();
                return Err(WrongUse(format!(
                    "--purge deletes events of keys, ids and kinds, and {shown} is none of them; ban \
                     it without --purge"
                )));
            }
        }
    }
    let lists = [("authors", keys), ("ids", ids), ("kinds", kinds)];
    let filters = lists.iter().flat_map(|(name, values)| {
        values.chunks(VALUES_MAX).map(move |values| json!({ *name: values }).to_string())
    });
    Ok(filters.collect())
}

/// Prints the number of events, and deletes them if `is_confirmed`.
pub(super) fn run(
    filters: &[String],
    (is_confirmed, json): (bool, bool),
    mut desk: ModerationDesk,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let location = events(location)?;
    if matches!(desk, ModerationDesk::Own { .. })
        && location.facts().is_in_directory
        && !location.exists()
    {
        print::line("0 events match")?;
        return Ok(ExitCode::SUCCESS);
    }
    let queries = delete::deletable(&location, filters)?;
    let matching = question::count(&*location.read()?, &queries)?;
    if !json {
        let matches = if matching == 1 { "matches" } else { "match" };
        print::line(&format!("{} {matches}", print::count(matching, location.network.record())))?;
    }
    if !is_confirmed {
        let hint = "to delete them, run it again with --yes";
        if json {
            print::line(&json!({ "matching": matching, "deleted": 0 }).to_string())?;
        } else if matching > 0 {
            print::line(hint)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    desk.ask(&ModerationRequest::Note {
        act: "purge".into(),
        subject: filters.join(" ").chars().take(2_000).collect(),
        after: json!({ "matching": matching }),
        by: actor("ban --purge"),
    })?;
    // The archive's lock is released first, because the deletion acquires it again.
    drop(desk);
    let filters = filters.to_vec();
    delete::run(&DeleteArgs { filters, yes: true, json }, &location)
}
