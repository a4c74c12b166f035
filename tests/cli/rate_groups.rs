//! Groups with rates of their own: of clients by key and by address, and of kinds, on the relay and
//! on the REST API of another network.

use hark_testkit::clock::now_s;
use hark_testkit::http::{HttpRequest, get};
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{event, note, pubkey};
use hark_testkit::wait::until;
use serde_json::{Value, json};

use super::clients::Served;

const RATES: &str = "\
[info]
url = \"wss://relay.example\"
[waku]
serve = true
rest = \"127.0.0.1:0\"
listen = [\"/ip4/127.0.0.1/tcp/0\"]
queries = [1, 1]
[rates]
events_per_address = [1, 2]
spared_addresses = [\"203.0.113.9\"]
";

const GROUPS: &str = "\
[[rates.groups]]
name = \"members\"
keys = [\"@members.txt\"]
times = 3
[[rates.groups]]
name = \"exits\"
addresses = [\"192.0.2.0/24\"]
times = 4
events_per_address = [1, 1]
connections_per_address_max = 1
[[rates.groups]]
name = \"wraps\"
kinds = [1059]
events_per_address = [1, 1]
";

/// Proves a key to the relay, which knows its URL behind the proxy.
fn prove(served: &Served, client: &mut Client, who: u8) {
    let proof = client.proof(who);
    let challenge = proof["tags"][1][1].as_str().expect("a challenge");
    let tags: [&[&str]; 2] = [&["relay", "wss://relay.example"], &["challenge", challenge]];
    let proof = event(who, now_s(), 22_242, &tags, "");
    assert_eq!(served.run(client.auth_with(&proof)), (true, String::new()));
}

/// Publishes events, and returns the reasons of the answers.
fn publish(served: &Served, client: &mut Client, events: &[Value]) -> Vec<String> {
    let answers = events.iter().map(|event| served.run(client.publish(event)).1);
    answers.collect()
}

fn notes(from: u64, count: u64) -> Vec<Value> {
    (from..from + count).map(|n| note(1, now_s() - 9, &n.to_string())).collect()
}

fn proxied<'a>(served: &'a Served, path: &'a str, from: &'a str) -> HttpRequest<'a> {
    assert!(!served.server.doors.waku_rest.is_empty());
    HttpRequest::new("GET", path).header("X-Forwarded-For", from)
}

#[test]
fn groups_have_their_own_rates_on_every_door_and_change_while_the_server_runs() {
    let served = Served::start("rate-groups", RATES, &[]);
    let members = served.place.file("members.txt", format!("{}  # alice\n", pubkey(7)).as_bytes());
    let write = |groups: &str| {
        let text = format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{RATES}{groups}");
        served.place.file("hark.toml", text.as_bytes());
        served.hark(&["reload"])
    };
    let told = write(GROUPS).text();
    assert!(told.contains("now rates.groups = [{ name = \"members\""), "{told}");

    // A member and a stranger share an address.
    let mut member = served.client("198.51.100.1", "member");
    let mut stranger = served.client("198.51.100.1", "stranger");
    prove(&served, &mut member, 7);
    let said = publish(&served, &mut stranger, &notes(0, 2));
    assert_eq!(said[0], "");
    assert!(
        said[1].starts_with("rate-limited: more than 1 events a minute of your address; wait "),
        "{said:?}"
    );
    let said = publish(&served, &mut member, &notes(10, 7));
    assert!(said[..6].iter().all(String::is_empty), "{said:?}");
    let words = "rate-limited: more than 3 events a minute of your address (group members); wait ";
    assert!(said[6].starts_with(words), "{said:?}");

    let mut exit = served.client("192.0.2.5", "exit");
    let said = publish(&served, &mut exit, &notes(20, 2));
    assert!(said[0].is_empty() && said[1].contains("(group exits)"), "{said:?}");
    let upgrade = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let second = proxied(&served, "/", "192.0.2.5").headers(&upgrade);
    assert_eq!(second.send(&served.server.address).status, 429);

    let mut other = served.client("198.51.100.2", "other");
    let wraps: Vec<Value> =
        ["a", "b"].map(|text| event(1, now_s(), 1059, &[&["p", &pubkey(2)]], text)).into();
    let said = publish(&served, &mut other, &wraps);
    assert!(said[0].is_empty() && said[1].contains("(group wraps)"), "{said:?}");

    // Waku's own rate is 1 at once, of which exits have 4 times as much.
    let rest = &served.server.doors.waku_rest;
    let ask = |from: &str| proxied(&served, "/store/v3/messages", from).send(rest).status;
    for (from, taken) in [("198.51.100.3", 1), ("192.0.2.6", 4), ("203.0.113.9", 6)] {
        let answered = (0..6).filter(|_| ask(from) == 200).count();
        assert_eq!(answered, taken, "{from}");
    }

    let group = |program: &str| {
        let rows = served.rows(&[]);
        let row = rows.iter().find(|row| row["agent"] == program).expect("a row");
        row["group"].clone()
    };
    let shown = ["member", "stranger", "exit", "other"].map(group);
    assert_eq!(shown, [json!("members"), Value::Null, json!("exits"), Value::Null]);
    let table = served.hark(&["clients"]).text();
    assert!(table.lines().next().is_some_and(|line| line.contains("  group ")), "{table}");
    let page = get(&served.server.address, "/metrics").ok();
    for line in ["members\"} 1", "wraps\"} 1"] {
        let line = format!("hark_rate_group_refusals_total{{group=\"{line}");
        assert!(page.contains(&line), "{line}: {page}");
    }

    // A list that has lost its last entry is refused, and the earlier list stays in force.
    std::fs::write(&members, "# nobody\n").expect("is written");
    assert_eq!(served.hark(&["reload"]).code, 1);
    assert_eq!(group("member"), "members");
    std::fs::write(&members, format!("{}\n", pubkey(8))).expect("is written");
    assert_eq!(served.hark(&["reload"]).code, 0);
    until("the member is no member any more", || group("member").is_null());
    let said = publish(&served, &mut member, &notes(30, 1));
    assert!(said[0].contains("more than 1 events a minute of your address; wait"), "{said:?}");
    let told = write("").text();
    assert!(told.contains("now rates.groups = []"), "{told}");
    let wrong = write("[[rates.groups]]\nname = \"members\"\nkeys = []\n");
    assert!(wrong.code == 1 && wrong.stderr.contains("changes nothing"), "{wrong:?}");
    assert_eq!(served.server.terminate().0, 0);
}
