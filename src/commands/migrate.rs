//! `hark migrate`: manages the tables of an archive in a database. It applies or lists missing
//! migrations, indexes words or deletes the word index, and distributes the tables over the workers
//! of a cluster.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_store_postgres::Distribution;
use serde_json::json;

use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::stores::postgres::{DatabaseArchive, LOOK_AT_DATABASE};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark migrate status --store postgres://hark@localhost/hark
  hark migrate up --store postgres://hark@localhost/hark
  hark migrate index-words --config hark.toml --store postgres://hark@localhost/hark
  hark migrate distribute --store postgres://hark@coordinator/hark

`hark serve` applies missing migrations at its start, unless postgres.migrate is false. In the
background, it also indexes the words that [search] selects; `index-words` indexes all words at
once, with or without running servers. Both continue after an interruption. After you have disabled
[search] for good, `drop-words` frees the space of the index.

`distribute` is for an archive that was created before its database server became the coordinator of
a Citus cluster; stop Hark's servers first. You can interrupt it at any time, and run it again to
continue. Until it has finished, the archive has its old tables.")]
pub(crate) struct MigrateArgs {
    /// The action
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
    /// Only show the applied and the missing migrations
    Status,
    /// Index the words of all events that are not indexed yet, with the settings in [search]
    IndexWords,
    /// Delete the index of words
    DropWords,
    /// Divide the tables of an archive over the workers of a Citus cluster
    Distribute,
}

pub(crate) fn run(args: &MigrateArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let Some(archive) = location.store_as::<DatabaseArchive>() else {
        bail!(
            "files need no migration; name a database with --store postgres://user@host/database"
        );
    };
    match args.action {
        MigrateAction::Distribute => return distribute(archive, args, location),
        MigrateAction::IndexWords => return index_words(archive, args, location),
        MigrateAction::DropWords => return drop_words(archive, args, location),
        MigrateAction::Up | MigrateAction::Status => {}
    }
    let up = args.action == MigrateAction::Up;
    let all = hark_store_postgres::migrations(
        &archive.url,
        location.network.name(),
        &DatabaseArchive::options(&location.place()),
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

/// Indexes the words of stored records, with a progress bar.
fn index_words(
    archive: &DatabaseArchive,
    args: &MigrateArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    if location.texts().is_none() {
        bail!(
            "no words of {} are indexed; set enabled = true in [search], and name that \
             configuration with --config",
            location.network.records()
        );
    }
    let store = archive.connect(&location.place(), true)?;
    let stop = interrupt::flag()?;
    let started = Instant::now();
    let all = store.word_progress()?.map_or(1, |at| at.newest.max(1));
    let mut meter = CommandProgress::start("index words", all, CountedUnit::Records);
    let done = store.index_words(&mut |at| {
        meter.at(at.indexed, at.newest, location.network.records());
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    meter.finish();
    let Some(at) = done.context("not all words were indexed; run the command again to continue")?
    else {
        bail!("words are indexed on one PostgreSQL server, and this database is a Citus cluster");
    };
    let is_done = at.indexed >= at.newest;
    let state = if is_done { "indexed" } else { "stopped" };
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        let (indexed, newest) = (at.indexed, at.newest);
        let line =
            json!({ "state": state, "indexed": indexed, "newest": newest, "seconds": seconds });
        print::line(&line.to_string())?;
    } else {
        print::line(&format!(
            "{state}: up to number {} of {} in {seconds:.1} s",
            at.indexed, at.newest
        ))?;
    }
    if !is_done {
        print::note!(
            "hark: words indexed so far stay indexed; to continue, run the command again, or a server"
        );
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}

/// Deletes the word index. Fails if the configuration enables search.
fn drop_words(
    archive: &DatabaseArchive,
    args: &MigrateArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    if location.texts().is_some() {
        bail!("[search] has enabled = true; set it to false first, here and for all servers");
    }
    let dropped = archive.connect(&location.place(), true)?.drop_words();
    let dropped = dropped.context("the index of words was not deleted")?;
    let state = if dropped { "deleted" } else { "nothing was indexed" };
    print::line(&if args.json { json!({ "state": state }).to_string() } else { state.into() })?;
    Ok(ExitCode::SUCCESS)
}

fn distribute(
    archive: &DatabaseArchive,
    args: &MigrateArgs,
    location: &ArchiveLocation,
) -> anyhow::Result<ExitCode> {
    let shelf = location.network.name();
    let stop = interrupt::flag()?;
    let started = Instant::now();
    let mut meter = CommandProgress::start("distribute", 0, CountedUnit::Records);
    let mut reached = 0;
    let done = hark_store_postgres::distribute(
        &archive.url,
        shelf,
        &DatabaseArchive::options(&location.place()),
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
        print::note!("hark: tables divided so far stay divided; run the command again to continue");
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}
