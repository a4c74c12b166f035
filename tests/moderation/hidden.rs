//! Stored events of banned keys and ids are in no answer, no count and no comparison, and are not
//! sent to other relays.

use std::collections::BTreeSet;
use std::time::Duration;

use hark_testkit::clock::now_s;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::compare::{compare, held, id};
use hark_testkit::nostr::{event, pubkey};
use hark_testkit::postgres::Cluster;
use hark_testkit::wait::PATIENCE;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{MEMBER, Node, of_keys};

const BANNED: u8 = 11;
const OTHER: u8 = 12;
/// With this limit, comparisons of many events are only possible for filters of times, which are
/// answered from the store's sums.
const SUMS: &str = "[limits]\nnegentropy_events_max = 20\n";

/// Interval between two questions to a server that has not learned of a change yet.
const PAUSE: Duration = Duration::from_millis(5);

/// 60 notes each of a key that is to be banned, of a member and of another key.
fn notes() -> Vec<Value> {
    let note = |n: u64| {
        let who = [BANNED, MEMBER, OTHER][n as usize % 3];
        event(who, now_s() - 1_000 + n / 2, 1, &[&["t", "bread"]], &format!("note {n}"))
    };
    (0..180).map(note).collect()
}

/// The notes as lines of an import.
fn lines(notes: &[Value]) -> String {
    notes.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
}

/// Asks for, counts and compares the events of filters. `seen` has the ids that may be found.
async fn agree(client: &mut Client, notes: &[Value], seen: &BTreeSet<String>, windows_only: bool) {
    let some = json!(notes.iter().take(40).map(id).collect::<Vec<_>>());
    let (from, to) = (&notes[30]["created_at"], &notes[150]["created_at"]);
    let filters = [
        (true, json!({})),
        (true, json!({ "since": from, "until": to })),
        (false, json!({ "kinds": [1] })),
        (false, json!({ "#t": ["bread"] })),
        (false, of_keys(&[BANNED])),
        (false, of_keys(&[BANNED, MEMBER])),
        (false, json!({ "ids": some })),
        (false, json!({ "ids": some, "authors": [pubkey(BANNED), pubkey(OTHER)] })),
    ];
    let half = held(notes.iter().step_by(2));
    let ours: BTreeSet<String> = notes.iter().step_by(2).map(id).collect();
    for (is_window, filter) in &filters {
        let found = client.find_now(std::slice::from_ref(filter)).await;
        let found: BTreeSet<String> = found.iter().map(id).collect();
        assert!(found.is_subset(seen), "{filter}");
        assert_eq!(
            client.count(std::slice::from_ref(filter)).await,
            found.len() as u64,
            "{filter}"
        );
        let both = [filter.clone(), json!({ "kinds": [1] })];
        assert_eq!(client.count(&both).await, seen.len() as u64, "{filter}");
        if *is_window || !windows_only {
            let compared = compare(client, filter, &half, 4_096).await.expect("a comparison");
            assert!(compared.need.iter().eq(found.difference(&ours)), "{filter}");
            assert!(compared.have.iter().eq(ours.difference(&found)), "{filter}");
        }
    }
    assert_eq!(client.find_now(&[json!({})]).await.len(), seen.len());
}

fn hide_and_show(name: &str, settings: &str, store: &[&str]) {
    let (runtime, node, notes) =
        (Runtime::new().unwrap(), Node::start(name, settings, store), notes());
    let lines = lines(&notes);
    node.hark_fed(&["import", "-"], &lines).text();
    let of = |who: u8| notes.iter().filter(move |note| note["pubkey"] == pubkey(who)).map(id);
    let (one, allowed) = (of(OTHER).next().unwrap(), of(BANNED).nth(7).unwrap());
    let mut seen: BTreeSet<String> = notes.iter().map(id).collect();
    let shown = |seen: &BTreeSet<String>| {
        runtime.block_on(async {
            let mut client = node.client().await;
            // The command changes a database itself, and the server learns of the change a moment
            // later. The command asks the server of files to make the change.
            let learned = async {
                while !store.is_empty() && client.find_now(&[json!({})]).await.len() != seen.len() {
                    tokio::time::sleep(PAUSE).await;
                }
            };
            tokio::time::timeout(PATIENCE, learned).await.expect("the server learns of the change");
            agree(&mut client, &notes, seen, settings == SUMS).await;
        });
    };
    shown(&seen);
    node.hark(&["ban", &pubkey(BANNED), &format!("id:{one}")]).text();
    seen.retain(|id| *id != one && of(BANNED).all(|banned| banned != *id));
    assert_eq!(seen.len(), 119);
    shown(&seen);
    // An event that is banned by its id, too, is subtracted once.
    node.hark(&["ban", &format!("id:{}", of(BANNED).next().unwrap())]).text();
    shown(&seen);
    node.hark(&["allow", &format!("id:{allowed}")]).text();
    seen.insert(allowed);
    shown(&seen);
    // The operator's commands count all events.
    assert_eq!(node.count(json!({})), 180);
    node.hark(&["unban", &pubkey(BANNED)]).text();
    seen.extend(of(BANNED).skip(1));
    shown(&seen);
}

#[test]
fn hidden_events_are_in_no_count_and_no_comparison() {
    hide_and_show("hidden-files", "", &[]);
}

#[test]
fn hidden_events_are_in_no_sum_of_a_store() {
    hide_and_show("hidden-sums", SUMS, &[]);
}

#[test]
fn hidden_events_of_a_database_are_in_no_count_and_no_comparison() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("hidden");
    hide_and_show("hidden-database", "", &["--store", &database.url]);
}

#[test]
fn hidden_events_do_not_leave_the_archive() {
    let (mut node, other) =
        (Node::start("hidden-up", "", &[]), Node::start("hidden-there", "", &[]));
    let lines = lines(&notes());
    node.hark_fed(&["import", "-"], &lines).text();
    node.hark(&["ban", &pubkey(BANNED)]).text();
    let up = ["sync", &other.url(), "--dir", "up"];
    for pages in [&[][..], &["--pages"]] {
        node.hark(&[&up[..], pages].concat()).text();
        assert_eq!((other.count(of_keys(&[BANNED])), other.count(json!({}))), (0, 120));
    }
    // Without a server, the command knows the bans as well.
    node.server = None;
    node.hark(&up).text();
    assert_eq!(other.count(of_keys(&[BANNED])), 0);
    node.hark(&["unban", &pubkey(BANNED)]).text();
    node.hark(&up).text();
    assert_eq!(other.count(of_keys(&[BANNED])), 60);
}

#[test]
fn hidden_events_do_not_make_a_comparison_too_big() {
    let settings = "[limits]\nnegentropy_events_max = 10\n";
    let node = Node::start("hidden-bound", settings, &[]);
    let notes: Vec<Value> = (0..16)
        .map(|n| event([BANNED, OTHER][n % 2], now_s() - n as u64, 1, &[], &n.to_string()))
        .collect();
    node.hark_fed(&["import", "-"], &lines(&notes)).text();
    let compares = || {
        let compared = async {
            let mut client = node.client().await;
            compare(&mut client, &json!({ "kinds": [1] }), &held([]), 4_096).await
        };
        Runtime::new().unwrap().block_on(compared)
    };
    assert!(compares().is_err(), "16 events are too many");
    node.hark(&["ban", &pubkey(BANNED)]).text();
    assert_eq!(compares().expect("8 events are not too many").need.len(), 8);
}

/// The ids of hidden events look as if they were missing here.
#[test]
fn hidden_events_are_not_fetched_again() {
    let cluster = Cluster::shared();
    let database = cluster.database("hidden_down");
    let (there, lines) = (Node::start("hidden-again", "", &[]), lines(&notes()));
    there.hark_fed(&["import", "-"], &lines).text();
    for (name, store) in [("files", &[][..]), ("database", &["--store", &database.url])] {
        let node = Node::start(&format!("hidden-again-{name}"), "", store);
        node.hark_fed(&["import", "-"], &lines).text();
        node.hark(&["ban", &pubkey(BANNED)]).text();
        let down = &node.rows(&["sync", &there.url(), "--dir", "down", "--json"])[0]["down"];
        assert_eq!((&down["missing"], &down["received"]), (&json!(0), &json!(0)), "{name}: {down}");
    }
}
