//! `hark waku`: prints the Waku node of the running server, its peers, and its reachability.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use hark_networks::waku::Waku;
use serde_json::Value;

use super::clients::connect;
use crate::location::ArchiveLocation;
use crate::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark waku
  hark --data /var/lib/hark waku
  hark waku --json | jq .reach

The output shows the node's identity, whether other nodes can reach it and why, the addresses for
browsers or why there are none, and the peers that the node knows. A peer's row shows whether it is
connected and which side has dialled, the source of its address, its program, its shards (those in
the gossip mesh in brackets), its services, and the last error.

With --json, the output is one object with the same fields, and with at most 1,000 peers.")]
pub(crate) struct WakuArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &WakuArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let mut server = connect(&location.of(&Waku))?;
    let report = server.door_report().context("the server did not describe its Waku node")?;
    if args.json {
        print::line(&report.to_string())?;
    } else {
        for line in lines(&report) {
            print::line(&printable(&line))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the report as lines for people.
fn lines(report: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    lines.push(format!("node       {}", text(&report["peer_id"], "without peers")));
    for address in list(&report["addresses"]) {
        lines.push(format!("address    {}", text(address, "")));
    }
    lines.push(format!("record     {}", text(&report["record"], "none")));
    let mut network = format!(
        "network    cluster {}, shards {} of {}",
        report["cluster"],
        numbers(&report["shards"]),
        report["shards_in_cluster"]
    );
    if let Some(name) = report["preset"]["name"].as_str() {
        let _ = write!(network, ", preset {name}");
        let overridden: Vec<&str> =
            list(&report["preset"]["overridden"]).iter().filter_map(Value::as_str).collect();
        if !overridden.is_empty() {
            let _ = write!(network, " except {}", overridden.join(", "));
        }
    }
    lines.push(network);
    if report["forward"] == false {
        lines.push("           messages are stored, but not forwarded".into());
    }
    let reach = &report["reach"];
    if reach.is_object() {
        let dialled = print::count(number(&reach["dialled_in"]), "connection");
        let public = number(&reach["dialled_in_public"]);
        lines.push(format!(
            "reach      {}: {dialled} from others, {public} of these from public addresses",
            text(&reach["state"], "unknown")
        ));
        for reason in list(&reach["reasons"]) {
            lines.push(format!("           {}", text(reason, "")));
        }
        for seen in list(&reach["observed"]) {
            let peers = print::count(number(&seen["peers"]), "peer");
            lines.push(format!("           seen at {} by {peers}", text(&seen["address"], "")));
        }
    }
    for address in list(&report["web"]["addresses"]) {
        lines.push(format!("browsers   {}", text(address, "")));
    }
    if let Some(reason) = report["web"]["reason"].as_str() {
        lines.push(format!("browsers   none: {reason}"));
    }
    let discovery = &report["discovery"];
    if let Some(known) = discovery["known"].as_object() {
        let known: Vec<String> = known
            .iter()
            .map(|(source, count)| format!("{count} by {}", source.replace('_', " ")))
            .collect();
        let refused = number(&discovery["refused"]);
        lines.push(format!("discovered {}; {refused} records refused", known.join(", ")));
    }
    for found in list(&discovery["lists"]) {
        let state = if found["is_read"] == true {
            print::count(number(&found["records"]), "node")
        } else {
            "not read yet".into()
        };
        let fault = found["error"].as_str().map_or_else(String::new, |fault| format!("; {fault}"));
        lines.push(format!("list       {}: {state}{fault}", text(&found["url"], "")));
    }
    let peers = list(&report["peers"]);
    let (connected, known) = (number(&report["connected"]), number(&report["known"]));
    lines.push(format!("peers      {connected} connected, {known} known"));
    lines.extend(peers.iter().map(peer_line));
    let left_out = known.saturating_sub(peers.len() as u64);
    if left_out > 0 {
        lines.push(format!("           {left_out} further peers are not listed"));
    }
    lines
}

/// Describes a peer in one line.
fn peer_line(peer: &Value) -> String {
    let state = match (peer["state"].as_str(), peer["direction"].as_str()) {
        (_, Some(direction)) => direction,
        (Some(state), None) => state,
        _ => "",
    };
    let mut line = format!("  {state:<14}  {}", text(&peer["address"], ""));
    let source = text(&peer["source"], "").replace('_', " ");
    let agent = text(&peer["agent"], "");
    let mut parts = vec![source, agent.to_owned()];
    if !list(&peer["shards"]).is_empty() {
        let mesh = list(&peer["mesh"]);
        let shards = list(&peer["shards"]).iter().map(|shard| {
            if mesh.contains(shard) { format!("[{shard}]") } else { shard.to_string() }
        });
        parts.push(format!("shards {}", shards.collect::<Vec<_>>().join(" ")));
    }
    parts.push(
        list(&peer["services"]).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
    );
    parts.push(text(&peer["error"], "").to_owned());
    parts.retain(|part| !part.is_empty());
    let _ = write!(line, "  {}", parts.join("; "));
    line
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, missing: &'a str) -> &'a str {
    value.as_str().unwrap_or(missing)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn numbers(value: &Value) -> String {
    let numbers: Vec<String> = list(value).iter().map(Value::to_string).collect();
    numbers.join(" ")
}

/// Returns a text without characters that could change the terminal or the direction of the text.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_shown_in_lines() {
        let report = json!({
            "peer_id": "16Uiu2", "addresses": ["/ip4/127.0.0.1/tcp/1/p2p/16Uiu2"],
            "record": "enr:-x", "cluster": 16, "shards": [0, 32], "shards_in_cluster": 1,
            "forward": true, "preset": { "name": "status.prod", "overridden": ["shards"] },
            "connected": 1, "known": 3,
            "reach": {
                "state": "unreachable", "reasons": ["it listens on loopback"], "dialled_in": 1,
                "dialled_in_public": 0, "observed": [{ "address": "192.0.2.1", "peers": 2 }],
            },
            "web": { "addresses": ["/dns4/a.example/tcp/1/wss/p2p/16Uiu2"], "reason": null },
            "discovery": {
                "known": { "dns": 2, "peer_exchange": 0 }, "refused": 4,
                "lists": [{ "url": "enrtree://A@b", "is_read": true, "records": 1, "error": "e" }],
            },
            "peers": [
                {
                    "address": "/a", "state": "connected", "direction": "out", "source": "dns",
                    "agent": "x\u{1b}", "shards": [0, 32], "mesh": [32], "services": ["store"],
                },
                {
                    "address": "/b", "state": "cannot connect", "direction": null,
                    "source": "configuration", "agent": "", "error": "refused",
                },
            ],
        });
        let lines: Vec<String> = lines(&report).iter().map(|line| printable(line)).collect();
        assert_eq!(
            lines,
            [
                "node       16Uiu2",
                "address    /ip4/127.0.0.1/tcp/1/p2p/16Uiu2",
                "record     enr:-x",
                "network    cluster 16, shards 0 32 of 1, preset status.prod except shards",
                "reach      unreachable: 1 connection from others, 0 of these from public addresses",
                "           it listens on loopback",
                "           seen at 192.0.2.1 by 2 peers",
                "browsers   /dns4/a.example/tcp/1/wss/p2p/16Uiu2",
                "discovered 2 by dns, 0 by peer exchange; 4 records refused",
                "list       enrtree://A@b: 1 node; e",
                "peers      1 connected, 3 known",
                "  out             /a  dns; x?; shards 0 [32]; store",
                "  cannot connect  /b  configuration; refused",
                "           1 further peers are not listed",
            ]
        );
    }
}
