//! `hark cluster standby`: shows whether the workers have standbys that could take their places.

use std::process::ExitCode;

use hark_store_postgres::cluster::{
    self, Coordinator, NodeRole, NodeStandbys, StandbySetup, StandbyState,
};
use serde_json::{Value, json};

use super::args::ClusterStandbyArgs;
use crate::print;

pub(super) fn run(
    args: &ClusterStandbyArgs,
    coordinator: &mut Coordinator,
) -> anyhow::Result<ExitCode> {
    let all = cluster::standbys(coordinator, args.node.as_ref())?;
    for one in &all {
        if args.json {
            print::line(&to_json(one).to_string())?;
        } else {
            show(one)?;
        }
    }
    // The coordinator's standbys decide the exit code only if the command line names a node.
    let counts = |one: &&NodeStandbys| args.node.is_some() || one.node.role == NodeRole::Worker;
    let safe = all.iter().filter(counts).all(NodeStandbys::has_streaming);
    Ok(if safe { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a standby as one line.
pub(super) fn standby_words(one: &StandbyState) -> String {
    let from = if one.address.is_empty() { "a socket" } else { &one.address };
    let lag = one.lag_s.map_or("nothing written lately".into(), |lag| format!("lag {lag:.3} s"));
    format!(
        "standby {} at {from}: {}, {}, {} behind, {} to replay, {lag}",
        one.name,
        one.state,
        one.sync,
        print::bytes(one.behind_bytes),
        print::bytes(one.replay_bytes),
    )
}

/// Returns a standby as JSON.
pub(super) fn standby_json(one: &StandbyState) -> Value {
    json!({
        "name": one.name,
        "address": one.address,
        "state": one.state,
        "sync": one.sync,
        "synchronous": one.is_synchronous(),
        "behind_bytes": one.behind_bytes,
        "replay_bytes": one.replay_bytes,
        "lag_seconds": one.lag_s,
    })
}

fn show(one: &NodeStandbys) -> anyhow::Result<()> {
    let name = format!("{} ({})", one.node.address, one.node.role.name());
    let found = match &one.found {
        Ok(found) => found,
        Err(why) => return print::line(&format!("{name}: could not be queried: {why}")),
    };
    let summary = match (one.has_streaming(), found.synchronous_names.is_empty()) {
        (false, _) => "no standby streams".into(),
        (true, true) => "has a standby; commits do not wait for it".into(),
        (true, false) => format!(
            "has a standby; commits wait for {:?} (synchronous_commit {})",
            found.synchronous_names, found.synchronous_commit
        ),
    };
    print::line(&format!("{name}: {summary}"))?;
    for standby in &found.standbys {
        print::line(&format!("  {}", standby_words(standby)))?;
    }
    for slot in &found.slots {
        let used = if slot.is_active { "in use" } else { "not in use" };
        let kept = print::bytes(slot.kept_bytes);
        print::line(&format!("  slot {}: {used}, {kept} of the log are kept for it", slot.name))?;
    }
    for advice in &one.advice {
        print::line(&format!("  to do: {advice}"))?;
    }
    Ok(())
}

fn to_json(one: &NodeStandbys) -> Value {
    let found = one.found.as_ref().ok();
    let of = |read: fn(&StandbySetup) -> Value| found.map(read);
    json!({
        "node": one.node.address.to_string(),
        "role": one.node.role.name(),
        "reachable": found.is_some(),
        "trouble": one.found.as_ref().err(),
        "has_streaming_standby": one.has_streaming(),
        "standbys": of(|found| found.standbys.iter().map(standby_json).collect()),
        "slots": of(|found| found.slots.iter().map(|slot| json!({
            "name": slot.name,
            "active": slot.is_active,
            "kept_bytes": slot.kept_bytes,
        })).collect()),
        "synchronous_standby_names": of(|found| json!(found.synchronous_names)),
        "synchronous_commit": of(|found| json!(found.synchronous_commit)),
        "advice": one.advice,
    })
}
