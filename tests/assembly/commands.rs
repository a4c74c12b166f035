//! The commands: each command runs beside the servers of a test archive (a `World`), as from an
//! operator's shell.
//!
//! A command that does not apply to a store must fail with an explanation, and must not panic or
//! report success.

use hark_testkit::clock::now_s;
use hark_testkit::digits::digits;
use hark_testkit::folder;
use hark_testkit::http::get;
use hark_testkit::nostr::event_json;
use hark_testkit::wait::{PATIENCE, until};
use hark_testkit::websocket::Socket;
use serde_json::{Value, json};

use crate::adopted;
use crate::doors::Answer::{self, Own, Same};
use crate::doors::{Door, command};
use crate::fixture::{self, LAST_S, id};
use crate::moderation;
use crate::stores::StoreKind;
use crate::world::{Node, World, number, program};

/// For each network, a filter that matches the records of the fixture.
const OF_FIXTURE: [(&str, &str); 3] = [
    ("nostr", r#"{"until":1700000999}"#),
    ("waku", r#"{"endTime":1700000999000000000}"#),
    ("whisper", r#"{"from":1700000000,"to":1700000999}"#),
];

pub(crate) const COMMANDS: &[Door] = &[
    command("serve", serve),
    command("import", import),
    command("export", export),
    command("query", query),
    command("count", count),
    command("delete", delete),
    command("explain", explain),
    command("stats", stats),
    command("top", top),
    command("healthz", |world| Same(world.hark(&["healthz", "--at", &world.reads().relay]).text())),
    command("doctor", doctor),
    command("clients", clients),
    command("kick", |world| {
        // No client of a test has this address.
        let done = world.hark(&["kick", "203.0.113.255"]);
        assert_eq!((done.code, done.stdout.as_str()), (1, "0 connections closed\n"), "{done:?}");
        Own
    }),
    command("ban", moderation::ban),
    command("unban", moderation::unban),
    command("allow", moderation::allow),
    command("unallow", moderation::unallow),
    command("invite", moderation::invite),
    command("list", moderation::list),
    command("reports", moderation::reports),
    command("log", moderation::log),
    command("admin link", |world| {
        let link = world.hark(&["admin", "link", "--json"]).json();
        let url = link["url"].as_str().unwrap_or_default();
        assert!(
            url.contains(&world.writes().relay) && url.contains("/admin/login?link="),
            "{link}"
        );
        Own
    }),
    command("reload", |world| Same(world.hark(&["reload"]).text())),
    command("init", init),
    command("config", config),
    command("waku", |world| {
        let report = world.hark(&["waku", "--json"]).text();
        assert!(
            report.contains("\"peer_id\":\"16Uiu2") && report.contains("\"reach\""),
            "{report}"
        );
        Own
    }),
    command("whisper enode", enode),
    command("sync", sync),
    command("stream", stream),
    command("router", router),
    command("copy", copy_to_files),
    command("adopt nostream", adopted::nostream),
    command("adopt strfry", adopted::strfry),
    command("adopt nostr-rs-relay", adopted::nostr_rs_relay),
    command("adopt mailserver", adopted::mailserver),
    command("adopt nwaku", adopted::nwaku),
    command("migrate", migrate),
    command("backup", backup),
    command("restore", restore),
    command("compact", |world| only_files(world, &["compact"])),
    command("check", check),
    command("rebuild", rebuild),
    command("salvage", |world| {
        let to = world.root.join(format!("salvaged{}", number()));
        world.hark(&["salvage", "--to", &to.to_string_lossy()]).refused();
        Own
    }),
    command("cluster status", |world| on_cluster(world, &["status"], true)),
    command("cluster standby", standbys),
    command("cluster add", |world| on_cluster(world, &["add", "127.0.0.1:1", "--dry-run"], false)),
    command("cluster drain", |world| {
        on_cluster(world, &["drain", "127.0.0.1:1", "--dry-run"], false)
    }),
    command("cluster rebalance", |world| on_cluster(world, &["rebalance", "--dry-run"], true)),
    command("cluster replace", |world| {
        let args = ["replace", "127.0.0.1:1", "--with", "127.0.0.1:2", "--dry-run"];
        on_cluster(world, &args, false)
    }),
    command("completions", |world| Same(world.hark(&["completions", "bash"]).text())),
    command("man", |world| {
        let dir = world.root.join(format!("man{}", number()));
        world.hark(&["man", &dir.to_string_lossy()]).text();
        assert!(dir.join("hark-serve.1").is_file());
        Own
    }),
    command("help", |_| Same(program().args(["help", "serve"]).run_with(b"").text())),
];

/// Commands that are no doors to an archive, with the reason.
pub(crate) const NO_DOORS: [(&str, &str); 1] = [("bench", "it measures a server by its address")];

/// `hark doctor` checks every subject, and finds no fault while the servers run.
fn doctor(world: &World) -> Answer {
    let said = world.hark(&["doctor", "--json", "--at", &world.reads().relay]).text();
    let rows: Vec<Value> =
        said.lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    for subject in ["configuration", "archive", "server", "disk", "clock"] {
        // With a database, `doctor` reports no disk, since the disk belongs to another program.
        if subject != "disk" || !world.store.is_database() {
            let mut found = rows.iter().filter(|row| row["subject"] == subject);
            assert!(found.any(|row| row["verdict"] == "ok"), "{subject}: {said}");
        }
    }
    Own
}

/// Runs a command that is for archives in files.
fn only_files(world: &World, args: &[&str]) -> Answer {
    let done = world.hark(args);
    if world.store.is_database() {
        done.refused();
    } else {
        done.text();
    }
    Own
}

/// Checks that `hark check` finds no fault in any shelf, beside the servers.
fn check(world: &World) -> Answer {
    for (network, _) in OF_FIXTURE {
        let text = world.hark(&["check", "--network", network]).text();
        assert!(text.trim_end().ends_with(": no faults"), "{network}: {text}");
        let report = world.hark(&["check", "--json", "--network", network]).json();
        assert_eq!(report["faults"], json!([]), "{network}: {report}");
        assert!(report["records"].as_u64() >= Some(30), "{network}: {report}");
    }
    Own
}

/// Checks that `hark rebuild` works beside the servers of a single database. The command is refused
/// for files, because a server is running, and for a cluster.
fn rebuild(world: &World) -> Answer {
    let done = world.hark(&["rebuild"]);
    if world.store.is_database() && world.store != StoreKind::Citus {
        let text = done.text();
        assert!(text.trim_end().ends_with(": nothing to repair"), "{text}");
    } else {
        done.refused();
    }
    Own
}

/// Runs a command that is for Citus.
fn on_cluster(world: &World, args: &[&str], succeeds: bool) -> Answer {
    let done = world.hark(&[&["cluster"], args].concat());
    if world.store == StoreKind::Citus && succeeds {
        done.text();
    } else {
        done.refused();
    }
    Own
}

/// Checks that `hark cluster standby` fails, because the cluster of this world has no standby.
fn standbys(world: &World) -> Answer {
    let done = world.hark(&["cluster", "standby"]);
    if world.store == StoreKind::Citus {
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.stdout.contains("no standby streams"), "{done:?}");
    } else {
        done.refused();
    }
    Own
}

/// Checks that a second server starts on a database, and is refused on files.
fn serve(world: &World) -> Answer {
    let beside = world.command_at(9, &[]);
    if world.store.is_database() {
        let mut node = Node::start(beside, &[]);
        let found = get(&node.relay, "/healthz").ok();
        node.server.signal("TERM");
        let status = node.server.wait_for_end(PATIENCE).expect("it ends");
        let log = node.server.log();
        node.forget();
        assert!(status.success() && found.starts_with("ok\n"), "{status} {found}");
        hark_testkit::program::assert_no_panic(&log);
    } else {
        let done = world.hark(&["serve", "--listen", "127.0.0.1:0"]);
        assert!(done.refused().contains("holds the archive"));
    }
    Own
}

/// An event that no other call has made.
fn fresh() -> String {
    event_json(8, now_s(), 1, &[&["t", "command"]], &format!("by a command {}", number()))
}

fn import_event(world: &World) -> String {
    let note = fresh();
    let report = world.hark_fed(&["import", "--json"], note.as_bytes()).json();
    assert_eq!(report["stored"], 1, "{report}");
    id(&note)
}

fn import(world: &World) -> Answer {
    let id = import_event(world);
    let filter = json!({"ids": [id]}).to_string();
    assert_eq!(world.hark(&["count", &filter]).text(), "1\n");
    let message =
        fixture::kept("/import/1/a/proto", now_s() * 1_000_000_000, &number().to_string());
    let envelope = json!({
        "expiry": now_s() + 50, "ttl": 50, "topic": digits(&fixture::TOPICS[1]),
        "data": "00", "nonce": number(),
    });
    for (network, line) in [("waku", message), ("whisper", envelope)] {
        let file = world.file("line.jsonl", &line.to_string());
        let args = ["import", "--json", "--network", network, &file];
        let report = world.hark(&args).json();
        assert_eq!(report["stored"], 1, "{network}: {report}");
        assert_eq!(world.hark(&args).json()["stored"], 0, "{network}, again");
    }
    Own
}

fn export(world: &World) -> Answer {
    let mut out = String::new();
    for (network, _) in OF_FIXTURE {
        let until = LAST_S.to_string();
        out += &world.hark(&["export", "--network", network, "--until", &until]).text();
        let newest = ["export", "--network", network, "--newest-first", "--until", &until];
        out += &world.hark(&newest).text();
    }
    assert!(out.lines().count() > 200, "{out}");
    Same(out)
}

fn query(world: &World) -> Answer {
    let all = OF_FIXTURE.iter().map(|(network, filter)| {
        let said = world.hark(&["query", "--network", network, filter]).text();
        assert!(said.lines().count() >= 30, "{network}: {said}");
        said
    });
    Same(all.collect())
}

fn count(world: &World) -> Answer {
    let all = OF_FIXTURE
        .iter()
        .map(|(network, filter)| world.hark(&["count", "--network", network, filter]).text());
    Same(all.collect())
}

fn delete(world: &World) -> Answer {
    let filter = json!({"ids": [import_event(world)]}).to_string();
    let shown = world.hark(&["delete", &filter]).text();
    let done = world.hark(&["delete", "--yes", "--json", &filter]).json();
    assert_eq!(done["deleted"], 1, "{done}");
    assert_eq!(world.hark(&["count", &filter]).text(), "0\n");
    Same(shown.lines().next().unwrap_or_default().to_owned())
}

fn explain(world: &World) -> Answer {
    for (network, filter) in OF_FIXTURE {
        let said = world.hark(&["explain", "--run", "--network", network, filter]).text();
        assert!(said.contains("plan: "), "{network}: {said}");
        world.hark(&["explain", "--run", "--json", "--network", network, filter]).json();
    }
    Own
}

fn stats(world: &World) -> Answer {
    for (network, _) in OF_FIXTURE {
        let stats = world.hark(&["stats", "--json", "--network", network]).json();
        assert_eq!(stats["server_running"], true, "{network}: {stats}");
        assert!(stats["records"].as_u64() >= Some(30), "{network}: {stats}");
        let text = world.hark(&["stats", "--network", network]).text();
        assert!(text.contains("up since"), "{network}: {text}");
    }
    Own
}

/// Checks that the sums have all records, and those of the fixture's days the same numbers on all
/// stores.
fn top(world: &World) -> Answer {
    let mut days = Vec::new();
    for (network, _) in OF_FIXTURE {
        let top = world.hark(&["top", "--json", "--limit", "0", "--network", network]).json();
        let records = top["records"].as_u64();
        assert!(records >= Some(30), "{network}: {top}");
        for name in ["kind", "author", "day"] {
            let Some(groups) = top[name]["top"].as_array() else {
                assert!(network != "nostr" && name != "day", "{network}: {top}");
                continue;
            };
            let sum = |member: &str| groups.iter().filter_map(|one| one[member].as_u64()).sum();
            assert_eq!(
                (Some(sum("records")), Some(sum("bytes"))),
                (records, top["bytes"].as_u64())
            );
            days.extend(groups.iter().find(|one| one["day"] == "2023-11-14").cloned());
        }
        let text = world.hark(&["top", "--network", network]).text();
        assert!(text.contains("2023-11-14"), "{network}: {text}");
        assert_eq!(text.contains("have no authors"), network != "nostr", "{network}: {text}");
    }
    assert_eq!(days.len(), 3);
    Same(json!(days).to_string())
}

/// Checks that the configuration printed by `hark init` names the archive of this world.
fn init(world: &World) -> Answer {
    let printed = world.hark(&["init", "--networks", "waku,whisper", "--output", "-"]).text();
    let file = world.file("first.toml", &printed);
    program().args(["config", "--check", &file]).run_with(b"").text();
    let (_, filter) = OF_FIXTURE[0];
    let found = program().args(["--config", &file, "count", filter]).run_with(b"").text();
    assert_eq!(found, world.hark(&["count", filter]).text());
    Own
}

fn config(world: &World) -> Answer {
    let config = world.config();
    program().args(["config", "--check"]).arg(&config).run_with(b"").text();
    let shown = program().args(["config", "--show", "--config"]).arg(&config).run_with(b"").text();
    assert!(shown.contains("pow_min = 0"), "{shown}");
    Same(program().arg("config").run_with(b"").text())
}

fn enode(world: &World) -> Answer {
    // The settings do not fix the port, so the command needs `--at`.
    assert!(world.hark(&["whisper", "enode"]).refused().contains("--at"));
    let (_, at) = world.writes().enode.split_once('@').expect("an address");
    let enode = world.hark(&["whisper", "enode", "--at", at]).text();
    assert!(enode.contains(&world.writes().enode), "{enode}");
    Own
}

/// Publishes an event with a unique topic to the helper, a second server. Returns the event's id
/// and a filter that matches the event.
fn elsewhere(world: &World) -> (String, String) {
    let topic = format!("elsewhere{}", number());
    let note = event_json(7, now_s(), 1, &[&["t", &topic]], "from elsewhere");
    let mut socket = Socket::connect(world.helper().relay());
    socket.send_text(format!("[\"EVENT\",{note}]"));
    let ok = socket.json();
    assert_eq!(ok[2], true, "{ok}");
    (id(&note), json!({"#t": [topic]}).to_string())
}

/// Waits until the archive has an event.
fn wait_for_event(world: &World, id: &str) {
    let filter = json!({"ids": [id]}).to_string();
    until("the event came over", || world.hark(&["count", &filter]).text() == "1\n");
}

fn sync(world: &World) -> Answer {
    let (id, filter) = elsewhere(world);
    let url = format!("ws://{}", world.helper().relay());
    let report = world.hark(&["sync", &url, "--filter", &filter, "--dir", "both", "--json"]).json();
    assert_eq!(report["down"]["stored"], 1, "{report}");
    wait_for_event(world, &id);
    Own
}

/// Runs a command that does not end by itself, and interrupts the command once the archive has the
/// event.
fn until_there(world: &World, args: &[&str], id: &str) {
    let mut process = world.command(args).spawn().expect("the binary runs");
    wait_for_event(world, id);
    process.signal("INT");
    let status = process.wait_for_end(PATIENCE).expect("it ends");
    assert!(status.success(), "{status}: {}", process.log());
}

fn stream(world: &World) -> Answer {
    let (id, filter) = elsewhere(world);
    let url = format!("ws://{}", world.helper().relay());
    until_there(world, &["stream", &url, "--filter", &filter], &id);
    Own
}

fn router(world: &World) -> Answer {
    let (id, filter) = elsewhere(world);
    let filter: Value = serde_json::from_str(&filter).expect("JSON");
    let file = format!(
        "[streams.one]\ndir = \"down\"\nurls = [\"ws://{}\"]\nfilter = {{ \"#t\" = [{}] }}\n",
        world.helper().relay(),
        filter["#t"][0]
    );
    let file = world.file("router.toml", &file);
    world.hark(&["router", &file, "--check"]).text();
    until_there(world, &["router", &file], &id);
    Own
}

fn copy_to_files(world: &World) -> Answer {
    let to = world.root.join(format!("copy{}", number())).to_string_lossy().into_owned();
    let from = match &world.backing {
        Some(backing) => backing.url(&backing.name),
        None => world.data(0).to_string_lossy().into_owned(),
    };
    let mut out = String::new();
    for (network, filter) in OF_FIXTURE {
        let args = ["copy", "--json", "--network", network, "--from", &from, "--to", &to];
        program().args(args).run_with(b"").json();
        let args = ["query", "--network", network, filter, "--data", &to];
        out += &program().args(args).run_with(b"").text();
    }
    Same(out)
}

fn migrate(world: &World) -> Answer {
    for (network, _) in OF_FIXTURE {
        for action in ["status", "up"] {
            let done = world.hark(&["migrate", action, "--network", network]);
            if world.store.is_database() {
                done.text();
            } else {
                done.refused();
            }
        }
    }
    Own
}

/// Checks that `hark clients` lists the open connections of a server.
fn clients(world: &World) -> Answer {
    assert!(world.hark(&["clients"]).text().contains("open connection"));
    for line in world.hark(&["clients", "--json"]).text().lines() {
        let row: Value = serde_json::from_str(line).expect("JSON");
        assert!(row["number"].as_u64() >= Some(1) && row["address"].is_string(), "{row}");
    }
    Own
}

/// Checks that `hark backup` works beside the servers. A cluster has no common snapshot.
fn backup(world: &World) -> Answer {
    let to = world.root.join(format!("backup{}", number()));
    let done = world.hark(&["backup", &to.to_string_lossy()]);
    if world.store == StoreKind::Citus {
        done.refused();
    } else {
        done.text();
    }
    Own
}

fn restore(world: &World) -> Answer {
    if world.store == StoreKind::Citus {
        let nothing = world.root.join("no-backup");
        world.hark(&["restore", &nothing.to_string_lossy()]).refused();
        return Own;
    }
    let from = world.root.join(format!("backup{}", number()));
    world.hark(&["backup", &from.to_string_lossy()]).text();
    let moved = world.root.join(format!("moved{}", number()));
    folder::copy(&from, &moved);
    let data = world.root.join(format!("restored{}", number())).to_string_lossy().into_owned();
    program().args(["--data", &data, "restore", &moved.to_string_lossy()]).run_with(b"").text();
    let found = program().args(["--data", &data, "count", OF_FIXTURE[0].1]).run_with(b"").text();
    assert_eq!(found, world.hark(&["count", OF_FIXTURE[0].1]).text());
    Own
}
