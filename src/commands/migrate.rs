//! `hark migrate`: updates the tables of an archive in a database, or shows which updates are
//! missing.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use crate::location::{ArchiveLocation, LOOK_AT_DATABASE};
use crate::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark migrate status --store postgres://hark@localhost/hark
  hark migrate up --store postgres://hark@localhost/hark

`hark serve` does the same when it starts, unless postgres.migrate is false.")]
pub(crate) struct MigrateArgs {
    /// What to do
    #[arg(value_enum)]
    pub(crate) action: MigrateAction,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MigrateAction {
    /// Apply the missing migrations
    Up,
    /// Only show which migrations are applied
    Status,
}

pub(crate) fn run(args: &MigrateArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let Some(url) = &location.database else {
        bail!(
            "files need no migration; name a database with --store postgres://user@host/database"
        );
    };
    let up = args.action == MigrateAction::Up;
    let all = hark_store_postgres::migrations(
        url,
        location.network.name(),
        &location.database_options(),
        up,
    )
    .with_context(|| format!("the tables were not changed; {LOOK_AT_DATABASE}"))?;
    let missing = all.iter().filter(|one| one.applied.is_none()).count();
    for one in &all {
        let applied = one.applied.as_deref();
        if args.json {
            let line = json!({ "number": one.number, "name": one.name, "applied": applied });
            print::line(&line.to_string())?;
        } else {
            let applied = applied.map_or("missing".into(), |at| format!("applied {at} UTC"));
            print::line(&format!("{:04} {}: {applied}", one.number, one.name))?;
        }
    }
    Ok(if missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
