//! `hark migrate`: updates the tables of an archive in a database, shows which updates are missing, or
//! divides the tables over the workers of a cluster.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_store_postgres::Distribution;
use serde_json::json;

use crate::interrupt;
use crate::location::{ArchiveLocation, LOOK_AT_DATABASE};
use crate::print::{self, CommandProgress, CountedUnit};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark migrate status --store postgres://hark@localhost/hark
  hark migrate up --store postgres://hark@localhost/hark
  hark migrate distribute --store postgres://hark@coordinator/hark

`hark serve` applies missing migrations when it starts, unless postgres.migrate is false. `distribute` is for
an archive that was made before its server became the coordinator of a Citus cluster: stop its servers
first. It can be interrupted at any time, and goes on when it is run again; until its end the archive has
its old tables.")]
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
    /// Divide the tables of an archive over the workers of a Citus cluster
    Distribute,
}

pub(crate) fn run(args: &MigrateArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let Some(url) = &location.database else {
        bail!(
            "files need no migration; name a database with --store postgres://user@host/database"
        );
    };
    if args.action == MigrateAction::Distribute {
        return distribute(url, args, location);
    }
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

fn distribute(
    url: &str,
    args: &MigrateArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let shelf = location.network.name();
    let stop = interrupt::flag()?;
    let started = Instant::now();
    let mut meter = CommandProgress::start("distribute", 0, CountedUnit::Records);
    let mut reached = 0;
    let done = hark_store_postgres::distribute(
        url,
        shelf,
        &location.database_options(),
        &mut |done, total| {
            reached = done;
            meter.at(done, total, location.network.records());
            if stop.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    meter.finish();
    let done = done.context("the tables were not divided")?;
    let (state, records) = match done {
        Distribution::Done(records) => ("distributed", Some(records)),
        Distribution::Already => ("already distributed", None),
        Distribution::Stopped => ("stopped", Some(reached)),
    };
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        let line = json!({ "state": state, "records": records, "seconds": seconds });
        print::line(&line.to_string())?;
    } else {
        let records = records.map_or(String::new(), |records| {
            format!(": {} in {seconds:.1} s", print::count(records, location.network.record()))
        });
        print::line(&format!("{state}{records}"))?;
    }
    if done == Distribution::Stopped {
        eprintln!("hark: what is divided stays so; run the command again to go on");
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}
