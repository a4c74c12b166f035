//! `hark clients` and `hark kick` with real clients, the log lines about refused clients, and the
//! privacy of addresses.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use hark_testkit::clock::now_s;
use hark_testkit::http::HttpRequest;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{event, note, pubkey};
use hark_testkit::program::Finished;
use hark_testkit::server::Server;
use hark_testkit::skipped::skip;
use hark_testkit::wait::until;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::support::Place;

/// The code of the close frame for clients that the operator disconnects.
const POLICY: u16 = 1008;

/// A server that trusts a proxy on this machine, so that each client can have its own address.
pub(crate) struct Served {
    pub(crate) place: Place,
    pub(crate) server: Server,
    runtime: Runtime,
}

impl Served {
    pub(crate) fn start(name: &str, settings: &str, flags: &[&str]) -> Self {
        let place = Place::new(name);
        let text = format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{settings}");
        let config = place.file("hark.toml", text.as_bytes());
        let flags = [&["--config", &config], flags].concat();
        let has_peers = settings.contains("[waku]");
        let server = place.serve_with_doors(&flags, |doors| {
            !has_peers || !doors.waku_peers.is_empty() && !doors.waku_rest.is_empty()
        });
        let runtime = Runtime::new().expect("a runtime");
        Self { place, server, runtime }
    }

    /// Connects a client from this address, with this program.
    pub(crate) fn client(&self, address: &str, program: &str) -> Client {
        let headers = [("x-forwarded-for", address), ("user-agent", program)];
        self.connect(&headers)
    }

    fn connect(&self, headers: &[(&str, &str)]) -> Client {
        let url = format!("ws://{}", self.server.address);
        self.runtime.block_on(Client::with_headers(&url, now_s(), headers))
    }

    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    pub(crate) fn hark(&self, args: &[&str]) -> Finished {
        self.place.hark(args)
    }

    /// The rows of `hark clients --json`.
    pub(crate) fn rows(&self, args: &[&str]) -> Vec<Value> {
        let text = self.hark(&[&["clients", "--json"], args].concat()).text();
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The row of the only client at an address, once the row has this value.
    fn row_with(&self, address: &str, name: &str, value: u64) -> Value {
        let mut found = Value::Null;
        until(&format!("{address} has {name} {value}"), || {
            let mut rows = self.rows(&["--filter", address]);
            found = rows.pop().unwrap_or_default();
            rows.is_empty() && found[name] == value
        });
        found
    }

    fn wait_for_count(&self, count: usize) {
        until("the list has the connections", || self.rows(&[]).len() == count);
    }
}

fn addresses(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["address"].as_str().expect("an address")).collect()
}

#[test]
fn clients_are_listed_with_their_work_sorted_and_filtered() {
    let served = Served::start("clients-list", "", &[]);
    let mut writer = served.client("192.0.2.1", "writer/1.0");
    let mut reader = served.client("198.51.100.7", "reader/2.0");
    let mut member = served.connect(&[]);
    served.run(async {
        for n in 0..4 {
            writer.publish_new(&note(1, now_s() - n, "a")).await;
        }
        assert!(!writer.publish(&note(1, now_s() * 2, "from the future")).await.0);
        for sub in ["a", "b", "b", "c"] {
            assert_eq!(writer.ask(sub, &[json!({"ids": ["ab".repeat(32)]})]).await.len(), 0);
        }
        writer.send_text(json!(["CLOSE", "c"])).await;
        for n in 0..20 {
            assert_eq!(reader.ask("r", &[json!({"kinds": [1], "since": n})]).await.len(), 4);
        }
        reader.send_text("garbage").await;
        assert_eq!(reader.receive().await[0], "NOTICE");
        member.auth(7).await;
    });
    let row = served.row_with("192.0.2.1", "subscriptions", 2);
    for (name, value) in [("accepted", 4), ("refused", 1), ("questions", 4), ("unanswered", 0)] {
        assert_eq!(row[name], value, "{name}: {row}");
    }
    assert_eq!((&row["agent"], &row["network"]), (&json!("writer/1.0"), &json!("nostr")));
    assert_eq!(row["form"], "websocket");
    assert!(row["since"].as_u64().is_some_and(|since| since <= now_s() && since > now_s() - 600));
    let row = served.row_with("198.51.100.7", "unanswered", 1);
    assert_eq!((&row["questions"], &row["subscriptions"]), (&json!(20), &json!(1)));
    assert!(row["rows"].as_u64() >= Some(80), "{row}");
    assert!(row["sent_bytes"].as_u64() > Some(20 * 4 * 200), "{row}");
    assert!(row["received_bytes"].as_u64() > Some(20 * 40), "{row}");

    let rows = served.rows(&[]);
    assert_eq!(addresses(&rows), ["192.0.2.1", "198.51.100.7", "127.0.0.1"]);
    let key = rows[2]["keys"][0].as_str().expect("a key").to_owned();
    assert!(key.starts_with("npub1"), "{key}");
    let first = |sort: &str| {
        let rows = served.rows(&["--sort", sort, "--limit", "1"]);
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows[0]["address"].as_str().map(str::to_owned).expect("an address")
    };
    assert_eq!([first("rows"), first("bytes")], ["198.51.100.7", "198.51.100.7"]);
    assert_eq!([first("events"), first("since")], ["192.0.2.1", "192.0.2.1"]);
    for (filter, count) in
        [("192.", 1), ("192.0.2.0/24", 1), ("0.0.0.0/0", 3), (&key[..12], 1), ("203.", 0)]
    {
        assert_eq!(served.rows(&["--filter", filter]).len(), count, "{filter}");
    }

    let table = served.hark(&["clients", "--sort", "rows"]).text();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 5, "{table}");
    assert!(lines[0].trim_start().starts_with("number  address"), "{table}");
    let is_bounded = lines.iter().all(|line| line.chars().count() <= 200);
    assert!(lines[1].contains("198.51.100.7") && is_bounded, "{table}");
    let column = lines[0].find("network").expect("a column");
    assert!(lines[1..4].iter().all(|line| line[column..].starts_with("nostr")), "{table}");
    assert_eq!(lines[4], "3 open connections");
    let table = served.hark(&["clients", "--limit", "1"]).text();
    assert!(table.ends_with("3 open connections, the first 1 are shown (--limit)\n"), "{table}");
    drop(reader);
    served.wait_for_count(2);
    assert_eq!(served.server.terminate().0, 0);
    let gone = served.place.hark(&["clients"]);
    assert!(gone.code == 1 && gone.stderr.contains("no server answers"), "{gone:?}");
}

#[test]
fn clients_are_disconnected_by_address_network_key_and_number() {
    kick("clients-kick", &[]);
}

/// Disconnects clients of a server that is started with these flags.
pub(crate) fn kick(name: &str, flags: &[&str]) {
    let served = Served::start(name, "", flags);
    let mut flooders: Vec<_> = ["192.0.2.1", "192.0.2.1", "192.0.2.200", "2001:db8:7::1"]
        .map(|at| served.client(at, "f"))
        .into();
    let mut member = served.connect(&[]);
    let mut guest = served.client("198.51.100.7", "guest");
    served.run(member.auth(7));
    let key = served.rows(&["--filter", "npub1"])[0]["keys"][0].as_str().expect("a key").to_owned();
    let closed = |whom: &str, reason: &str, count: u64| {
        let run = served.hark(&["kick", whom, "--reason", reason, "--json"]);
        assert_eq!(run.json(), json!({ "closed": count }), "{whom}");
    };
    let reads_reason = |client: &mut Client, reason: &str| {
        served.run(async {
            assert_eq!(client.receive().await, json!(["NOTICE", format!("blocked: {reason}")]));
            assert_eq!(client.closed().await.map(u16::from), Some(POLICY));
        });
    };
    let long = "a \"long\" reason ".repeat(20);
    closed("192.0.2.1", &long, 2);
    flooders.drain(..2).for_each(|mut client| reads_reason(&mut client, &long));
    closed("192.0.2.0/24", "spam", 1);
    reads_reason(&mut flooders[0], "spam");
    closed("2001:db8:7::/48", "spam", 1);
    reads_reason(&mut flooders[1], "spam");
    closed(&key, "write to us", 1);
    reads_reason(&mut member, "write to us");
    // Each key of a connection is found, although the list shows only the first keys.
    let mut crowd = served.connect(&[]);
    served.run(async {
        for who in 20..36 {
            crowd.auth(who).await;
        }
    });
    closed(&pubkey(35), "one of many", 1);
    reads_reason(&mut crowd, "one of many");
    served.wait_for_count(1);
    // A client that sends and does not read is disconnected, too.
    let mut silent = TcpStream::connect(&served.server.address).expect("connects");
    silent.write_all(b"GET / HTTP/1.1\r\n").expect("is sent");
    served.wait_for_count(2);
    let number = served.rows(&["--filter", "127.0.0.1"])[0]["number"].to_string();
    let run = served.hark(&["kick", &number]);
    assert_eq!((run.code, run.stdout.as_str()), (0, "1 connection closed\n"), "{run:?}");
    assert_eq!(silent.read(&mut [0; 100]).expect("the connection ends"), 0);
    for absent in ["192.0.2.1", "999999", &key, "203.0.113.0/24"] {
        let run = served.hark(&["kick", absent]);
        assert_eq!((run.code, run.stdout.as_str()), (1, "0 connections closed\n"), "{run:?}");
    }
    for unclear in ["192.0.2.1/24", "somebody", &key[..40].replace('1', "-")] {
        let run = served.hark(&["kick", unclear]);
        assert!(run.code == 2 && run.stderr.contains("is no address"), "{run:?}");
    }
    // The other client was not disturbed, and the disconnected client may come again.
    served.run(async { guest.publish_new(&event(3, now_s(), 1, &[], "still here")).await });
    let mut again = served.client("192.0.2.1", "again");
    served.run(async { assert_eq!(again.ask("s", &[json!({"kinds": [1]})]).await.len(), 1) });
    let page = HttpRequest::new("GET", "/metrics").send(&served.server.address).ok();
    assert!(page.contains("hark_connections_ended_total{reason=\"kicked\"} 6"), "{page}");
    let (code, log) = served.server.terminate();
    assert!(code == 0 && log.contains("connections are closed, as the operator asked"), "{log}");
    assert!(!log.contains("192.0.2."), "{log}");
}

#[test]
fn connections_of_rest_and_of_nodes_are_listed_and_closed() {
    let settings = "[waku]\nserve = true\nrest = \"127.0.0.1:0\"\n\
                    listen = [\"/ip4/127.0.0.1/tcp/0\"]\nforward = \"always\"\n";
    let served = Served::start("clients-nodes", settings, &[]);
    let (at, waku) = (&served.server.doors.waku_peers[0], &served.server.doors.waku_rest);
    let other = Place::new("clients-nodes-other");
    let text = format!("[waku]\nserve = true\npeers = [\"{at}\"]\nforward = \"always\"\n");
    let config = other.file("hark.toml", text.as_bytes());
    let mut other = other.serve_with(&["--config", &config]);
    let is_peer = |row: &Value| row["form"] == "peer" && row["network"] == "waku";
    let peers =
        || served.rows(&["--filter", "waku"]).into_iter().filter(is_peer).collect::<Vec<_>>();
    until("the peer is listed with its program", || {
        peers().first().is_some_and(|row| row["agent"].as_str().is_some_and(|it| !it.is_empty()))
    });
    let id = peers()[0]["keys"][0].as_str().expect("an id").to_owned();
    assert!(id.starts_with("16Uiu2") || id.starts_with("12D3"), "{id}");
    let run = served.hark(&["kick", &id]);
    assert_eq!((run.code, run.stdout.as_str()), (0, "1 connection closed\n"), "{run:?}");
    other.wait_for_log("the connection has ended; trying again");

    let mut stream = TcpStream::connect(waku).expect("connects");
    let request = b"GET /store/v3/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: script/3\r\n\
                    X-Forwarded-For: 203.0.113.9\r\n\r\n";
    stream.write_all(request).expect("is sent");
    let mut answer = [0; 4_096];
    let read = stream.read(&mut answer).expect("answers");
    assert!(answer[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    let row = served.row_with("203.0.113.9", "questions", 1);
    assert_eq!((&row["agent"], &row["form"]), (&json!("script/3"), &json!("http")));
    assert!(row["sent_bytes"].as_u64() >= Some(read as u64), "{row}");
    assert_eq!(row["received_bytes"], request.len(), "{row}");
    assert_eq!(served.hark(&["kick", "203.0.113.9"]).code, 0);
    assert_eq!(stream.read(&mut answer).expect("the connection ends"), 0);
    assert_eq!(served.server.terminate().0, 0);
}

/// Sends messages that are refused, and waits until all of them are answered.
fn flood(served: &Served, address: &str, count: usize) {
    let mut client = served.client(address, "flood");
    served.run(async {
        for n in 0..count {
            let event = event(9, now_s(), 1, &[], &format!("{n}"));
            client.feed(json!(["EVENT", event])).await;
        }
        client.flush().await;
        for _ in 0..count {
            assert_eq!(client.receive().await[0], "OK");
        }
    });
}

/// The lines about refused clients.
fn refused(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("a client is refused")).collect()
}

#[test]
fn a_flood_is_one_line_per_address_that_fail2ban_reads() {
    let settings = "[rates]\nevents_per_key = [1, 1]\n[log]\nrefusals_from = 20\n";
    let mut lines = Vec::new();
    for format in ["text", "json"] {
        let name = format!("clients-flood-{format}");
        let mut served = Served::start(&name, settings, &["--log-format", format]);
        flood(&served, "203.0.113.1", 300);
        flood(&served, "2001:db8:1::5", 60);
        flood(&served, "203.0.113.2", 15);
        // The text of a client in the log is not taken for a line about another client.
        let mut liar = served.client("203.0.113.3", "x");
        let lie =
            "INFO hark_server::roster::refusals: a client is refused address=192.0.2.9 refused=9 ";
        served.run(async {
            for _ in 0..25 {
                liar.send_text(json!(["REQ", lie, {"kinds": [lie]}])).await;
                liar.receive().await;
            }
        });
        served.server.wait_for_log("203.0.113.3");
        let log = served.server.log();
        let found = refused(&log);
        assert_eq!(found.len(), 3, "{log}");
        for (line, address) in found.iter().zip(["203.0.113.1", "2001:db8:1::5", "203.0.113.3"]) {
            assert!(line.contains(address), "{address}: {line}");
        }
        assert!(found[0].contains("refused=20 ") || found[0].contains("\"refused\":20,"), "{log}");
        let says = |part: &str| assert!(found[0].contains(part), "{part}: {}", found[0]);
        ["EVENT", "rate-limited", "events a minute of this key"].into_iter().for_each(says);
        lines.extend(log.lines().map(str::to_owned));
    }
    matched_by_fail2ban(&lines);
}

/// Checks that the filter of fail2ban finds the three addresses in the lines of each format, and no
/// other address.
fn matched_by_fail2ban(lines: &[String]) {
    let script = r#"
import re, sys
text = open(sys.argv[1]).read().split("failregex =")[1].split("ignoreregex")[0]
rules = [line.strip() for line in text.strip().splitlines()]
# As fail2ban does: <ADDR> stands for an address, and the time of a line is cut out before.
address = r"(?:(?:::f{4,6}:)?(?P<ip4>(?:\d{1,3}\.){3}\d{1,3})|\[?(?P<ip6>(?:[0-9a-fA-F]{1,4}::?|::){1,7}(?:[0-9a-fA-F]{1,4}|(?<=:):))\]?)"
rules = [re.compile(rule.replace("<ADDR>", address)) for rule in rules]
time = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
for line in sys.stdin.read().splitlines():
    cut = time.sub("", line, count=1)
    journal = ["host hark[42]: " + line, line, cut]
    for each in journal:
        found = [m for m in (rule.search(each) for rule in rules) if m]
        print(len(found), found[0].group("ip4") or found[0].group("ip6") if found else "-")
"#;
    let filter = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/fail2ban/filter.d/hark.conf");
    let mut python = Command::new("python3");
    python.args(["-c", script, filter]);
    python.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let Ok(mut python) = python.spawn() else { return skip("there is no python3 here") };
    let mut input = python.stdin.take().expect("piped");
    input.write_all((lines.join("\n") + "\n").as_bytes()).expect("is read");
    drop(input);
    let output = python.wait_with_output().expect("ends");
    let found = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success() && found.lines().count() == 3 * lines.len(), "{found}");
    let found: Vec<&str> = found.lines().filter(|line| *line != "0 -").collect();
    let expected: Vec<String> = ["203.0.113.1", "2001:db8:1::5", "203.0.113.3"]
        .iter()
        .flat_map(|address| vec![format!("1 {address}"); 3])
        .collect();
    assert_eq!(found, [&expected[..], &expected].concat());
}

#[test]
fn addresses_are_private_in_lists_and_in_the_log() {
    let settings = "[log]\nformat = \"json\"\nrefusals_from = 5\nslow_question_ms = 1\n\
                    addresses = \"prefix\"\n[rates]\nevents_per_key = [1, 1]\n";
    let mut served = Served::start("clients-privacy", settings, &[]);
    let client = served.client("203.0.113.77", "a");
    assert_eq!(addresses(&served.rows(&[])), ["203.0.113.0/24"]);
    flood(&served, "203.0.113.77", 10);
    let line = served.server.wait_for_log("a client is refused");
    assert!(line.contains("\"address\":\"203.0.113.0/24\""), "{line}");
    let text = settings.replace("prefix", "hash");
    let text = format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{text}");
    served.place.file("hark.toml", text.as_bytes());
    let run = served.hark(&["reload"]);
    assert!(run.stdout.contains("now log.addresses = \"hash\""), "{run:?}");
    served.wait_for_count(1);
    let hash = served.rows(&[])[0]["address"].as_str().expect("a hash").to_owned();
    assert!(hash.starts_with('#') && hash.len() == 17, "{hash}");
    flood(&served, "2001:db8::77", 10);
    let line = served.server.wait_for_log("\"address\":\"#");
    assert!(line.contains("a client is refused"), "{line}");
    // The operator knows an address from elsewhere, or takes the hash from the log.
    let mut other = served.client("203.0.113.78", "b");
    let run = served.hark(&["kick", &hash]);
    assert_eq!(run.stdout, "1 connection closed\n", "{run:?}");
    assert_eq!(served.hark(&["kick", "203.0.113.78"]).code, 0);
    served.run(async { assert_eq!(other.receive().await[0], "NOTICE") });
    drop((client, other));
    let log = served.server.log();
    let named = log.lines().find(|line| line.contains("203.0.113.7") || line.contains("db8::77"));
    assert_eq!(named, None);
}
