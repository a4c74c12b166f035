//! Bans and allows in the archive, with real clients, servers and commands: a flood is found, banned
//! on all servers at once, kept away from every source, and accepted again once the ban is lifted.

use hark_testkit::clock::now_s;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::compare::NOTHING;
use hark_testkit::nostr::{event, event_line, note, pubkey};
use hark_testkit::postgres::Cluster;
use hark_testkit::server::Server;
use hark_testkit::wait::{PATIENCE, until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cli::support::Place;

mod hidden;
mod late;

/// The code of the close frame for banned clients.
const POLICY: u16 = 1008;
/// The keys of the flood, and of members.
const FLOOD: [u8; 2] = [11, 12];
const MEMBER: u8 = 13;

/// A server of an archive.
struct Node {
    place: Place,
    flags: Vec<String>,
    server: Option<Server>,
}

impl Node {
    fn start(name: &str, settings: &str, store: &[&str]) -> Self {
        let place = Place::new(name);
        let text = format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{settings}");
        let config = place.file("hark.toml", text.as_bytes());
        let flags = [&["--config", config.as_str()][..], store].concat();
        let flags = flags.into_iter().map(str::to_owned).collect();
        let mut node = Self { place, flags, server: None };
        node.serve(&[]);
        node
    }

    fn serve(&mut self, more: &[&str]) {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        self.server = Some(self.place.serve_with(&[&flags[..], more].concat()));
    }

    fn url(&self) -> String {
        format!("ws://{}", self.server.as_ref().expect("a server").address)
    }

    async fn client(&self) -> Client {
        Client::connect(&self.url(), now_s()).await
    }

    async fn client_at(&self, address: &str) -> Client {
        Client::with_headers(&self.url(), now_s(), &[("x-forwarded-for", address)]).await
    }

    fn hark(&self, args: &[&str]) -> hark_testkit::program::Finished {
        self.hark_fed(args, "")
    }

    fn hark_fed(&self, args: &[&str], stdin: &str) -> hark_testkit::program::Finished {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        self.place.hark_fed(&[&flags[..], args].concat(), stdin.as_bytes())
    }

    /// The objects that a command prints, one per line.
    fn rows(&self, args: &[&str]) -> Vec<Value> {
        let text = self.hark(args).text();
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The acts of the audit log, oldest first.
    fn acts(&self) -> Vec<(String, String)> {
        let mut rows = self.rows(&["log", "--json"]);
        rows.reverse();
        let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
        rows.iter().map(|row| (text(row, "act"), text(row, "subject"))).collect()
    }

    fn count(&self, filter: impl Into<Value>) -> u64 {
        self.hark(&["count", &filter.into().to_string()]).text().trim().parse().expect("a number")
    }
}

fn of_keys(keys: &[u8]) -> Value {
    json!({ "authors": keys.iter().map(|who| pubkey(*who)).collect::<Vec<_>>() })
}

/// Publishes a new event on a new connection, and returns the answer.
async fn publish(node: &Node, who: u8, content: &str) -> (bool, String) {
    node.client().await.publish(&note(who, now_s(), content)).await
}

async fn until_refused(node: &Node, who: u8) -> String {
    loop {
        let (is_accepted, reason) = publish(node, who, "again").await;
        if !is_accepted {
            return reason;
        }
    }
}

/// Returns the authenticated keys of the `count` connections of a server with the most events.
fn busiest(node: &Node, count: usize) -> Vec<String> {
    let limit = count.to_string();
    let rows = node.rows(&["clients", "--sort", "events", "--limit", &limit, "--json"]);
    rows.iter().map(|row| row["keys"][0].as_str().expect("a key").to_owned()).collect()
}

/// The story of a flood, on one or several servers of one archive.
fn ban_a_flood(name: &str, nodes: &mut [Node]) {
    let runtime = Runtime::new().expect("a runtime");
    let mut writers = Vec::new();
    runtime.block_on(async {
        for (at, node) in nodes.iter().enumerate() {
            for who in FLOOD.into_iter().chain([MEMBER]) {
                let mut writer = node.client().await;
                writer.auth(who).await;
                for n in 0..if who == MEMBER { 2 } else { 20 } {
                    let content = format!("{n} of a flood at {at}");
                    writer.publish_new(&note(who, now_s() - n, &content)).await;
                }
                writers.push((who, writer));
            }
        }
    });
    let mut keys = busiest(&nodes[0], FLOOD.len());
    keys.sort();
    let first = &nodes[0];
    let ban: Vec<&str> = ["ban"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    let said = first.hark(&[&ban[..], &["--reason", "a flood"]].concat()).text();
    assert_eq!(said.lines().filter(|line| line.ends_with(" is banned")).count(), 2, "{said}");

    // Open connections of the banned keys end on all nodes, and others stay open.
    runtime.block_on(async {
        for (at, (who, writer)) in writers.iter_mut().enumerate() {
            if *who == MEMBER {
                let content = format!("still here at {at}");
                writer.publish_new(&note(*who, now_s(), &content)).await;
            } else {
                let closed = tokio::time::timeout(PATIENCE, writer.closed()).await;
                assert_eq!(closed.expect("it is closed").map(u16::from), Some(POLICY), "{who}");
            }
        }
        for node in &*nodes {
            let reason = until_refused(node, FLOOD[0]).await;
            assert_eq!(reason, "blocked: this relay does not take events of this key: a flood");
            // Stored events of the banned keys are hidden, and do not count towards the limit.
            let filter = json!({ "kinds": [1], "limit": 2 });
            let found = node.client().await.ask("a", &[filter]).await;
            let is_member = |event: &&Value| event["pubkey"] == pubkey(MEMBER);
            assert_eq!(found.iter().filter(is_member).count(), 2, "{found:?}");
        }
    });

    // The same keys are refused by every other source.
    let first = &nodes[0];
    let before = first.count(of_keys(&FLOOD));
    let lines: String = FLOOD
        .iter()
        .chain(&[14])
        .map(|who| event_line(*who, now_s() - 99, 1, &[], "imported"))
        .collect();
    let imported = first.hark_fed(&["import", "--json", "-"], &lines);
    let imported = imported.json_of_any();
    assert_eq!(imported["stored"], 1, "{imported}");
    let other = Node::start(&format!("{name}-other"), "", &[]);
    runtime.block_on(async {
        for who in [FLOOD[1], 15] {
            assert!(publish(&other, who, "from elsewhere").await.0);
        }
    });
    first.hark(&["sync", &other.url(), "--dir", "down"]);
    assert_eq!(first.count(of_keys(&[15])), 1);
    let stream = {
        let flags: Vec<&str> = first.flags.iter().map(String::as_str).collect();
        first.place.start(&[&flags[..], &["stream", &other.url(), "--dir", "down"]].concat())
    };
    runtime.block_on(async {
        let mut n = 0;
        while first.count(of_keys(&[16])) == 0 {
            for who in [FLOOD[0], 16] {
                assert!(publish(&other, who, &format!("streamed {n}")).await.0);
            }
            n += 1;
        }
    });
    stream.signal("TERM");
    drop(stream);
    assert_eq!(first.count(of_keys(&FLOOD)), before, "no event of a banned key was stored");

    // The ban outlives a crash.
    nodes[0].server.as_mut().expect("a server").kill();
    nodes[0].serve(&[]);
    let refused = runtime.block_on(publish(&nodes[0], FLOOD[0], "after the crash"));
    assert!(refused.1.starts_with("blocked: "), "{refused:?}");

    let unban: Vec<&str> = ["unban"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    nodes[0].hark(&unban).text();
    assert_eq!(nodes[0].hark(&unban).code, 1, "nothing is left to lift");
    runtime.block_on(async {
        for node in &*nodes {
            let mut client = node.client().await;
            loop {
                let (is_accepted, reason) = client.publish(&note(FLOOD[0], now_s(), "back")).await;
                if is_accepted || reason.starts_with("duplicate") {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            assert!(client.ask("b", &[of_keys(&[FLOOD[1]])]).await.len() >= 20, "shown again");
        }
    });
    let acts = nodes[0].acts();
    let names: Vec<&str> = acts.iter().map(|(act, _)| act.as_str()).collect();
    assert_eq!(names, ["ban", "ban", "unban", "unban"], "{acts:?}");
    let row = &nodes[0].rows(&["log", "--json", "--limit", "1"])[0];
    assert!(row["by"].as_str().is_some_and(|by| by.starts_with("hark unban (")), "{row}");
    assert_eq!((&row["before"]["reason"], &row["after"]), (&json!("a flood"), &Value::Null));
}

#[test]
fn a_flood_is_banned_in_an_archive_in_files() {
    let mut nodes = [Node::start("ban-files", "", &[])];
    ban_a_flood("ban-files", &mut nodes);
}

#[test]
fn a_flood_is_banned_on_two_servers_of_a_database() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("bans");
    let store = ["--store", &database.url];
    let mut nodes =
        [Node::start("ban-database-1", "", &store), Node::start("ban-database-2", "", &store)];
    ban_a_flood("ban-database", &mut nodes);
}

#[test]
fn a_takeover_keeps_the_bans_and_a_later_ban_reaches_the_old_process() {
    let runtime = Runtime::new().expect("a runtime");
    let mut node = Node::start("ban-takeover", "", &[]);
    node.hark(&["ban", &pubkey(11)]).text();
    let (mut old, mut silent) =
        runtime.block_on(async { (node.client().await, node.client().await) });
    let before = node.server.take();
    let flags: Vec<&str> = node.flags.iter().map(String::as_str).collect();
    let after = node.place.serve_with(&[&flags[..], &["--takeover"]].concat());
    node.server = Some(after);
    runtime.block_on(async {
        assert!(!publish(&node, 11, "at the new process").await.0);
        assert!(!old.publish(&note(11, now_s(), "at the old process")).await.0);
        old.publish_new(&note(12, now_s(), "not banned yet")).await;
        silent.auth(12).await;
    });
    node.hark(&["ban", &pubkey(12), "--reason", "late"]).text();
    runtime.block_on(async {
        assert!(!publish(&node, 12, "at the new process").await.0);
        assert_eq!(silent.closed().await.map(u16::from), Some(POLICY));
        loop {
            let (is_accepted, reason) = old.publish(&note(12, now_s(), "again")).await;
            if !is_accepted && reason.contains("late") {
                break;
            }
        }
    });
    drop(old);
    drop(before);
}

#[test]
fn an_address_is_banned_on_every_connection_until_its_time_is_over() {
    let runtime = Runtime::new().expect("a runtime");
    let node = Node::start("ban-address", "", &[]);
    let (mut banned, mut other) = runtime.block_on(async {
        (node.client_at("198.51.100.7").await, node.client_at("203.0.113.9").await)
    });
    let ban = |time: &str| {
        node.hark(&["ban", "198.51.100.0/24", "--for", time, "--reason", "go away"]).text()
    };
    let said = ban("10m");
    assert!(said.starts_with("198.51.100.0/24 is banned until "), "{said}");
    runtime.block_on(async {
        let notice = banned.receive().await;
        let words = "blocked: this server does not serve your address: go away";
        assert_eq!(notice, json!(["NOTICE", words]));
        assert_eq!(banned.closed().await.map(u16::from), Some(POLICY));
        other.publish_new(&note(1, now_s(), "served")).await;
    });
    ban("2s");
    until("the ban is over", || node.hark(&["list"]).text() == "0 entries\n");
    runtime.block_on(async {
        node.client_at("198.51.100.7").await.publish_new(&note(1, now_s(), "back")).await;
    });
}

#[test]
fn a_ban_ends_answers_subscriptions_and_comparisons_that_are_under_way() {
    ban_meanwhile(&Node::start("ban-under-way", "", &[]));
}

#[test]
fn a_ban_ends_answers_of_a_database_that_are_under_way() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("under_way");
    ban_meanwhile(&Node::start("ban-database-under-way", "", &["--store", &database.url]));
}

/// Bans a key and an event while clients receive their events.
fn ban_meanwhile(node: &Node) {
    let runtime = Runtime::new().expect("a runtime");
    let content = "x".repeat(4_000);
    let lines: String =
        (0..6_000).map(|n| event_line(11, now_s() - 20_000 + n, 1, &[], &content)).collect();
    node.hark_fed(&["import", "--trusted", "-"], &lines).text();
    let banned_id = event(12, now_s() - 5, 1, &[], "one event");
    runtime.block_on(async {
        node.client().await.publish_new(&banned_id).await;
        let mut reader = node.client().await;
        let mut live = node.client().await;
        let mut comparing = node.client().await;
        assert_eq!(live.ask("live", &[json!({ "kinds": [1], "limit": 1 })]).await.len(), 1);
        comparing
            .send_text(json!(["NEG-OPEN", "c", { "kinds": [1], "limit": 2_000 }, NOTHING]))
            .await;
        assert_eq!(comparing.receive().await[0], "NEG-MSG");
        // The reader reads only one event, so the answer waits after a few hundred events.
        reader.send_text(json!(["REQ", "long", { "kinds": [1], "limit": 5_000 }])).await;
        assert_eq!(reader.receive().await[0], "EVENT");
        let id = banned_id["id"].as_str().expect("an id").to_owned();
        let said = node.hark(&["ban", &pubkey(11), &format!("id:{id}")]).text();
        assert_eq!(said.lines().count(), 2, "{said}");
        let mut found = 1;
        loop {
            let message = reader.receive().await;
            if message[0] != "EVENT" {
                assert_eq!(message[0], "EOSE", "{message}");
                break;
            }
            found += 1;
        }
        assert!(found < 5_000, "{found}");
        assert!(!live.publish(&note(11, now_s(), "a")).await.0);
        let mut writer = node.client().await;
        writer.publish_new(&note(13, now_s(), "of a member")).await;
        let delivered = live.receive().await;
        assert_eq!(delivered[2]["content"], "of a member", "{delivered}");
        comparing.send_text(json!(["NEG-MSG", "c", NOTHING])).await;
        let ended = comparing.receive().await;
        assert_eq!(ended[0], "NEG-ERR", "{ended}");
        assert!(ended[2].as_str().is_some_and(|why| why.starts_with("closed: ")), "{ended}");
        let found = writer.ask("ids", &[json!({ "ids": [id] }), of_keys(&[11])]).await;
        assert!(found.is_empty(), "{found:?}");
        assert!(!writer.publish(&banned_id).await.0);
    });
}

#[test]
fn a_purge_shows_the_number_and_deletes_in_one_step() {
    let node = Node::start("ban-purge", "", &[]);
    let mut lines: String = (0..30).map(|n| event_line(11, now_s() - n, 1, &[], "spam")).collect();
    // A purge leaves deletions in force.
    lines += &event_line(11, now_s(), 5, &[&["e", &"ab".repeat(32)]], "");
    node.hark_fed(&["import", "-"], &lines).text();
    let said = node.hark(&["ban", &pubkey(11), "--purge"]).text();
    assert!(said.contains("30 events match\nto delete them, run it again with --yes"), "{said}");
    assert_eq!(node.count(of_keys(&[11])), 31);
    let said = node.hark(&["ban", &pubkey(11), "--purge", "--yes"]).text();
    assert!(said.contains("30 events match\n") && said.contains("30 events deleted"), "{said}");
    let said = node.hark(&["ban", &pubkey(11), "--purge"]).text();
    assert!(said.contains("0 events match"), "{said}");
    assert_eq!(node.count(json!({ "authors": [pubkey(11)], "kinds": [1] })), 0);
    let acts: Vec<_> = node.acts().into_iter().map(|(act, _)| act).collect();
    assert_eq!(acts, ["ban", "purge"]);
    for wrong in [
        &["ban", "word:x", "--purge"][..],
        &["ban", "somebody"],
        &["ban", "kind:1", "--for", "soon"],
    ] {
        assert_eq!(node.hark(wrong).code, 2, "{wrong:?}");
    }
}

#[test]
fn bans_are_made_and_hold_without_a_server_and_in_a_new_archive() {
    let place = Place::new("ban-alone");
    let said = place.hark(&["list"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "0 entries\n"), "{said:?}");
    let subjects = format!("# a list\n{}\n\nkind:1984\nword:casino\n203.0.113.0/24", pubkey(11));
    place.hark_fed(&["ban", "-", "--reason", "a list"], subjects.as_bytes()).text();
    place.hark(&["allow", "kind:7", "--for", "1d"]).text();
    let list = place.hark(&["list", "bans", "--json"]).text();
    assert_eq!(list.lines().count(), 4, "{list}");
    assert!(place.hark(&["list", "--of", "kind"]).text().ends_with("2 entries\n"));
    let lines: String = [
        event_line(11, now_s(), 1, &[], "by a banned key"),
        event_line(12, now_s(), 1984, &[], "of a banned kind"),
        event_line(12, now_s(), 1, &[], "Visit our Casino!"),
        event_line(12, now_s(), 1, &[], "bread"),
    ]
    .concat();
    let imported = place.hark_fed(&["import", "--json", "-"], lines.as_bytes()).json_of_any();
    assert_eq!(imported["stored"], 1, "{imported}");
    let server = place.serve();
    let again = place.hark_fed(&["import", "--json", "-"], lines.as_bytes()).json_of_any();
    assert_eq!(again["stored"], 0, "{again}");
    place.hark(&["unban", "word:casino"]).text();
    let again = place.hark_fed(&["import", "--json", "-"], lines.as_bytes()).json_of_any();
    assert_eq!(again["stored"], 1, "{again}");
    drop(server);
    let log = place.hark(&["log"]).text();
    assert_eq!(log.lines().count(), 6, "{log}");
    assert!(place.hark(&["check", "--network", "moderation"]).text().contains("no faults"));
}
