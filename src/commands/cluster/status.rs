//! `hark cluster status`: shows the nodes, running moves and problems.

use std::fmt::Write as _;
use std::process::ExitCode;

use hark_store_postgres::cluster::{
    self, ClusterStatus, Coordinator, NodeDetails, NodeDisk, NodeFacts, NodeStatus, RunningMove,
    StandbyState,
};
use serde_json::{Value, json};

use super::args::ClusterStatusArgs;
use super::standby::{standby_json, standby_words};
use crate::print;

pub(super) fn run(
    args: &ClusterStatusArgs,
    coordinator: &mut Coordinator,
) -> anyhow::Result<ExitCode> {
    let status = cluster::status(coordinator)?;
    if args.json {
        print::line(&to_json(&status).to_string())?;
    } else {
        show(&status)?;
    }
    let all_answer = status.nodes.iter().all(|one| one.details.is_ok());
    Ok(if all_answer { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn total(status: &ClusterStatus) -> u64 {
    status.nodes.iter().filter_map(|one| one.bytes).sum()
}

/// Returns a node's share of all bytes, in percent; `None` if it is unknown.
fn share(one: &NodeStatus, total: u64) -> Option<f64> {
    let bytes = one.bytes?;
    Some(if total == 0 { 0.0 } else { bytes as f64 * 100.0 / total as f64 })
}

fn disk(one: &NodeStatus) -> Option<&NodeDisk> {
    one.details.as_ref().ok()?.disk.as_ref()
}

fn show(status: &ClusterStatus) -> anyhow::Result<()> {
    let total = total(status);
    let header =
        ["node", "role", "shards", "size", "share", "free", "PostgreSQL", "Citus", "state"];
    let mut rows = vec![header.map(str::to_owned)];
    for one in &status.nodes {
        let facts = one.details.as_ref().ok().map(|details| &details.facts);
        let unknown = || "-".to_owned();
        rows.push([
            one.node.address.to_string(),
            one.node.role.name().into(),
            print::number(one.shards),
            one.bytes.map_or_else(unknown, print::bytes),
            share(one, total).map_or_else(unknown, |share| format!("{share:.1} %")),
            disk(one).map_or_else(unknown, |disk| print::bytes(disk.free)),
            facts.map_or_else(unknown, |facts| facts.short_version().into()),
            facts.and_then(|facts| facts.citus.clone()).unwrap_or_else(unknown),
            state(one),
        ]);
    }
    print::line(&columns(&rows))?;
    for one in &status.nodes {
        let Ok(details) = &one.details else { continue };
        for standby in details.standbys.iter().flatten() {
            print::line(&format!("{}: {}", one.node.address, standby_words(standby)))?;
        }
        if details.prepared > 0 {
            print::line(&format!(
                "{}: {} prepared transactions, the oldest for {:.1} s",
                one.node.address, details.prepared, details.prepared_oldest_s
            ))?;
        }
    }
    let late = |one: &&NodeStatus| {
        let facts = one.details.as_ref().ok().map(|details| &details.facts);
        facts.and_then(NodeFacts::tcp_user_timeout_ms) == Some(0)
    };
    let late: Vec<String> =
        status.nodes.iter().filter(late).map(|one| one.node.address.to_string()).collect();
    if !late.is_empty() {
        print::line(&format!(
            "citus.node_conninfo has no tcp_user_timeout on {}, so commits may wait for a vanished \
             machine for many minutes",
            late.join(", ")
        ))?;
    }
    print::line(&match &status.moves_needed {
        _ if !status.has_workers() => {
            "the cluster has no workers; add one with hark cluster add HOST".into()
        }
        Ok(0) => "the shards are spread evenly".into(),
        Ok(1) => "1 group of shards would have to move for an even spread (hark cluster rebalance)"
            .into(),
        Ok(moves) => format!(
            "{moves} groups of shards would have to move for an even spread (hark cluster rebalance)"
        ),
        Err(why) => format!("whether the shards are spread evenly is not known: {why}"),
    })?;
    for one in &status.moves {
        print::line(&moving(one))?;
    }
    for job in &status.failed_jobs {
        let errors = job.errors.join("; ");
        print::line(&format!(
            "job {} failed {}: {}: {errors}",
            job.id, job.ended, job.description
        ))?;
    }
    Ok(())
}

fn state(one: &NodeStatus) -> String {
    let mut words = Vec::new();
    match &one.details {
        Err(why) => words.push(format!("does not answer: {why}")),
        Ok(details) => {
            words.push(format!("answers in {:.0} ms", details.answer_ms));
            if details.facts.in_recovery && one.node.is_primary() {
                words.push("but is a standby that was not promoted".into());
            }
            if one.node.is_primary() && details.standbys.is_none() {
                words.push("this user may not see its standbys".into());
            }
            if details.facts.waits_for_none && one.node.is_primary() {
                words.push("every commit waits for a standby that does not stream".into());
            }
            if disk(one).is_some_and(NodeDisk::is_full) {
                words.push("its disk is full".into());
            }
        }
    }
    if !one.node.is_active {
        words.push("not used (SELECT citus_activate_node)".into());
    }
    if !one.node.may_have_shards {
        words.push("gets no shards".into());
    }
    if !one.node.is_synced && one.node.is_primary() {
        words.push("its copy of the cluster's tables is being updated".into());
    }
    words.join(", ")
}

fn moving(one: &RunningMove) -> String {
    let mut line = format!("moving for {:.0} s", one.seconds);
    if let (Some(from), Some(to)) = (&one.from, &one.to) {
        // Writing to a string does not fail.
        let _ = write!(
            line,
            ": {} {from} -> {to}, {} of {}, {}",
            one.tables.join(", "),
            print::bytes(one.bytes_arrived),
            print::bytes(one.bytes),
            one.phase
        );
    }
    line
}

/// Returns the rows as aligned columns of minimal width. The last column is not padded.
fn columns(rows: &[[String; 9]]) -> String {
    let widths: [usize; 9] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(widths).enumerate().map(|(at, (cell, width))| match at {
            // Numbers are flush right.
            2..=5 => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn to_json(status: &ClusterStatus) -> Value {
    let total = total(status);
    json!({
        "nodes": status.nodes.iter().map(|one| node_json(one, total)).collect::<Vec<_>>(),
        "moves_needed": status.moves_needed.as_ref().ok(),
        "moves": status.moves.iter().map(|one| json!({
            "process": one.process,
            "seconds": one.seconds,
            "tables": one.tables,
            "from": one.from.as_ref().map(ToString::to_string),
            "to": one.to.as_ref().map(ToString::to_string),
            "bytes": one.bytes,
            "bytes_arrived": one.bytes_arrived,
            "phase": one.phase,
        })).collect::<Vec<_>>(),
        "failed_jobs": status.failed_jobs.iter().map(|job| json!({
            "id": job.id,
            "description": job.description,
            "ended": job.ended,
            "errors": job.errors,
        })).collect::<Vec<_>>(),
    })
}

fn node_json(one: &NodeStatus, total: u64) -> Value {
    let details = one.details.as_ref().ok();
    let facts = details.map(|details| &details.facts);
    let standbys = details.and_then(|details: &NodeDetails| details.standbys.as_ref());
    json!({
        "id": one.node.id,
        "group": one.node.group,
        "node": one.node.address.to_string(),
        "role": one.node.role.name(),
        "active": one.node.is_active,
        "may_have_shards": one.node.may_have_shards,
        "synced": one.node.is_synced,
        "shards": one.shards,
        "bytes": one.bytes,
        "share_percent": share(one, total),
        "reachable": details.is_some(),
        "trouble": one.details.as_ref().err(),
        "answer_ms": details.map(|details| details.answer_ms),
        "postgres": facts.map(NodeFacts::short_version),
        "citus": facts.and_then(|facts| facts.citus.as_ref()),
        "in_recovery": facts.map(|facts| facts.in_recovery),
        "wal_level": facts.map(|facts| &facts.wal_level),
        "prepared_transactions": details.map(|details| details.prepared),
        "prepared_oldest_seconds": details.map(|details| details.prepared_oldest_s),
        "disk_free_bytes": disk(one).map(|disk| disk.free),
        "disk_bytes": disk(one).map(|disk| disk.size),
        "commits_wait_for_missing_standby": facts.map(|facts| facts.waits_for_none),
        "tcp_user_timeout_ms": facts.and_then(NodeFacts::tcp_user_timeout_ms),
        "standbys": standbys.map(|all| all.iter().map(standby_json).collect::<Vec<Value>>()),
        "has_streaming_standby":
            standbys.map(|all| all.iter().any(StandbyState::is_streaming)),
    })
}
