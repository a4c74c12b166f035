//! Runs the commands that change a cluster, and prints their results.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use hark_store_postgres::cluster::{
    self, AddOptions, ClusterError, ClusterEvent, ClusterWork, Coordinator, MoveTotals,
    ReplaceOptions, StatementWatch,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::args::{
    ClusterAddArgs, ClusterDrainArgs, ClusterRebalanceArgs, ClusterReplaceArgs, ClusterWorkArgs,
};
use super::report::ClusterReport;
use crate::interrupt;
use crate::print;

pub(super) fn add(
    args: &ClusterAddArgs,
    coordinator: &mut Coordinator,
) -> anyhow::Result<ExitCode> {
    let options = AddOptions { rebalance: !args.no_rebalance, mode: args.moves.mode() };
    run("add", args.work, coordinator, |coordinator, work| {
        let done = cluster::add(coordinator, &args.node, options, work)?;
        let verb = if done.was_there { "is in the cluster" } else { "was added" };
        let text = format!("{} {verb}; {}", args.node, moved(done.totals));
        let mut json = totals(done.totals);
        json["node"] = json!(args.node.to_string());
        json["was_there"] = json!(done.was_there);
        Ok((text, json))
    })
}

pub(super) fn drain(
    args: &ClusterDrainArgs,
    coordinator: &mut Coordinator,
) -> anyhow::Result<ExitCode> {
    run("drain", args.work, coordinator, |coordinator, work| {
        let done = cluster::drain(coordinator, &args.node, args.moves.mode(), work)?;
        let text = format!(
            "{} is empty and removed; {}. It can be shut down",
            args.node,
            moved(done.totals)
        );
        let mut json = totals(done.totals);
        json["node"] = json!(args.node.to_string());
        json["removed"] = json!(done.is_removed);
        Ok((text, json))
    })
}

pub(super) fn rebalance(
    args: &ClusterRebalanceArgs,
    coordinator: &mut Coordinator,
) -> anyhow::Result<ExitCode> {
    run("rebalance", args.work, coordinator, |coordinator, work| {
        let done = cluster::rebalance(coordinator, args.moves.mode(), work)?;
        Ok((format!("the shards are spread evenly; {}", moved(done)), totals(done)))
    })
}

pub(super) fn replace(
    args: &ClusterReplaceArgs,
    coordinator: &mut Coordinator,
) -> anyhow::Result<ExitCode> {
    run("replace", args.work, coordinator, |coordinator, work| {
        let options =
            ReplaceOptions { force: args.force, unfenced: args.unfenced, alone: args.alone };
        let done = cluster::replace(coordinator, &args.dead, &args.standby, options, work)?;
        let mut text = format!(
            "{} has the place of {} after {:.1} s, with {} shards; {} transactions in doubt were \
             ended",
            args.standby, args.dead, done.seconds, done.shards, done.recovered
        );
        if let Some(seconds) = done.last_commit_s {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                ". When the standby was queried, its last received commit was {seconds:.1} s old"
            );
        }
        let json = json!({
            "node": args.standby.to_string(),
            "replaced": args.dead.to_string(),
            "was_done": done.was_done,
            "shards": done.shards,
            "recovered_transactions": done.recovered,
            "gap_seconds": done.seconds,
            "last_commit_age_seconds": done.last_commit_s,
        });
        Ok((text, json))
    })
}

/// Runs some work, and prints its events and its result.
fn run(
    name: &'static str,
    args: ClusterWorkArgs,
    coordinator: &mut Coordinator,
    work: impl FnOnce(&mut Coordinator, &mut ClusterWork<'_>) -> Result<(String, Value), ClusterError>,
) -> anyhow::Result<ExitCode> {
    let stop: Arc<AtomicBool> = interrupt::flag()?;
    let started = Instant::now();
    let report = Arc::new(Mutex::new(ClusterReport::new(args.json)));
    let notes = Arc::clone(&report);
    coordinator.watch(StatementWatch {
        stop: Arc::clone(&stop),
        note: Arc::new(move |words: &str| notes.lock().show(&ClusterEvent::Note(words.into()))),
    });
    let done = work(
        coordinator,
        &mut ClusterWork {
            dry_run: args.dry_run,
            stop: &stop,
            report: &mut |event: &ClusterEvent| report.lock().show(event),
        },
    );
    report.lock().finish()?;
    let (text, mut json) = done?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        json["event"] = json!("result");
        json["command"] = json!(name);
        json["dry_run"] = json!(args.dry_run);
        json["seconds"] = json!(seconds);
        print::line(&json.to_string())?;
    } else if args.dry_run {
        print::line("nothing was changed (--dry-run)")?;
    } else {
        print::line(&format!("{text} ({seconds:.1} s)"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn totals(totals: MoveTotals) -> Value {
    json!({ "moves": totals.moves, "bytes": totals.bytes })
}

fn moved(totals: MoveTotals) -> String {
    match totals.moves {
        0 => "no shard had to move".into(),
        1 => format!("1 group of shards was moved, {}", print::bytes(totals.bytes)),
        many => format!("{many} groups of shards were moved, {}", print::bytes(totals.bytes)),
    }
}
