//! The relay's own key, its members and the requests to join and to leave (NIP-43), over the binary:
//! on files, and with two servers on one database.

use std::os::unix::fs::PermissionsExt as _;

use hark_testkit::clock::now_s;
use hark_testkit::http::HttpRequest;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{event, pubkey};
use hark_testkit::postgres::Cluster;
use hark_testkit::server::Server;
use hark_testkit::wait::until;
use serde_json::{Value, json};

use crate::served::{Place, Relay};

fn information(address: &str) -> Value {
    let request = HttpRequest::new("GET", "/").header("Accept", "application/nostr+json");
    serde_json::from_slice(&request.send(address).body).expect("JSON")
}

/// Waits until the relay names its own key, and returns the key.
pub(crate) fn own_key(address: &str) -> String {
    until("the relay names its key", || information(address)["self"].is_string());
    information(address)["self"].as_str().expect("a key").to_owned()
}

const WITH_KEY: &str = "[self]\nkey_file = \"relay.key\"\n";

#[test]
fn the_relay_makes_its_key_once_and_names_it() {
    let mut relay = Relay::start("own-key", WITH_KEY);
    let key = own_key(relay.address());
    let file = relay.place.folder.join("relay.key");
    let mode = std::fs::metadata(&file).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    relay.server.kill();
    relay.server = relay.place.start();
    assert_eq!(own_key(relay.address()), key);
    relay.server.kill();
    // Another key needs the confirmation of the operator.
    std::fs::write(&file, format!("{}\n", "07".repeat(32))).expect("written");
    relay.server = relay.place.start();
    until("the log names both keys", || relay.server.log().contains("this server signs nothing"));
    assert!(information(relay.address())["self"].is_null());
    let other = "989c0b76cb563971fdc9bef31ec06c3560f3249d6ee9e5d83c57625596e05f6f";
    relay.place.folder.file("hark.toml", format!("[info]\nself = \"{other}\"\n{WITH_KEY}"));
    let reload = relay.place.command(&["reload"]).output().expect("the binary runs");
    assert!(reload.status.success(), "{reload:?}");
    assert_eq!(own_key(relay.address()), other);
    let noted = |log: String| log.matches("\"relaykey\"").count();
    until("the archive notes the key", || noted(run(&relay.place, &["log", "--json"])) == 2);
    relay.server.kill();
    relay.place.folder.file("hark.toml", WITH_KEY);
    relay.server = relay.place.start();
    assert_eq!(own_key(relay.address()), other);
}

#[test]
fn two_servers_of_a_database_sign_with_one_key() {
    let database = Cluster::shared().database("own-key");
    let start = |place: &Place| {
        Server::start(&mut place.serving(&["--unlimited", "--store", &database.url]))
    };
    let [one, two] = ["own-key-one", "own-key-two"].map(|name| Place::new(name, WITH_KEY));
    let first = start(&one);
    let key = own_key(&first.address);
    let second = start(&two);
    until("the second refuses its key", || second.log().contains("this server signs nothing"));
    assert!(information(&second.address)["self"].is_null());
    drop(second);
    std::fs::copy(one.folder.join("relay.key"), two.folder.join("relay.key")).expect("copied");
    let second = start(&two);
    assert_eq!(own_key(&second.address), key);
}

const WITH_MEMBERS: &str = "\
[self]
key_file = \"relay.key\"
members = true
[policy]
allow_keys = []
";

/// Runs a command on the archive, and returns its output.
pub(crate) fn run(place: &Place, args: &[&str]) -> String {
    let output = place.command(args).output().expect("the binary runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// A request to join with a code.
pub(crate) fn join(who: u8, code: &str) -> Value {
    event(who, now_s(), 28_934, &[&["-"], &["claim", code]], "")
}

pub(crate) async fn connect(address: &str, who: u8) -> Client {
    let mut client = Client::connect(&format!("ws://{address}"), now_s()).await;
    client.auth(who).await;
    client
}

/// The keys in the relay's list of members.
async fn members(client: &mut Client, own: &str) -> Option<Vec<Value>> {
    let filter = json!({ "kinds": [13_534], "authors": [own] });
    let list = client.find_now(&[filter]).await.pop()?;
    let tags = list["tags"].as_array().expect("tags");
    assert_eq!(tags[0], json!(["-"]));
    Some(tags[1..].to_vec())
}

/// Waits until the list of members has these tags.
async fn wait_for_members(client: &mut Client, own: &str, wanted: &[Value]) {
    let mut sorted = wanted.to_vec();
    sorted.sort_by_key(|tag| tag[1].as_str().map(str::to_owned));
    hark_testkit::wait::until_async("the list has the members", async || {
        members(client, own).await.as_deref() == Some(&sorted[..])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_joins_with_a_code_is_listed_and_leaves() {
    let mut relay = Relay::start("members", WITH_MEMBERS);
    let own = own_key(relay.address());
    let nips = information(relay.address())["supported_nips"].clone();
    assert!(nips.as_array().expect("a list").contains(&json!(43)), "{nips}");
    let code = run(&relay.place, &["invite", "--for", "1h"]).trim().to_owned();
    let mut one = connect(relay.address(), 1).await;
    let note = event(1, now_s(), 1, &[], "hello");
    assert!(one.publish(&note).await.1.starts_with("blocked:"));
    wait_for_members(&mut one, &own, &[]).await;
    for (request, words) in [
        (join(1, "00"), "restricted: that is an invalid invite code."),
        (event(1, now_s(), 28_934, &[&["-"]], ""), "invalid:"),
        (event(1, now_s() - 700, 28_934, &[&["-"], &["claim", &code]], ""), "invalid:"),
        (event(1, now_s(), 28_936, &[], ""), "invalid:"),
    ] {
        let (is_done, said) = one.publish(&request).await;
        assert!(!is_done && said.starts_with(words), "{said}");
    }
    let stranger = event(1, now_s(), 28_936, &[&["-"]], "");
    let (is_done, said) = one.publish(&stranger).await;
    assert!(is_done && said.starts_with("duplicate: you are not"), "{said}");
    let (is_done, said) = one.publish(&join(1, &code)).await;
    assert!(is_done && said.starts_with("info: welcome"), "{said}");
    let (is_done, said) = one.publish(&join(1, &code)).await;
    assert!(is_done && said.starts_with("duplicate: you are already"), "{said}");
    one.publish_new(&note).await;
    let mut two = connect(relay.address(), 2).await;
    let used = two.publish(&join(2, &code)).await;
    assert_eq!(used, (false, "restricted: that invite code is used up.".into()));
    wait_for_members(&mut one, &own, &[json!(["member", pubkey(1)])]).await;
    let added = one.find_now(&[json!({ "kinds": [8_000], "#p": [pubkey(1)] })]).await;
    assert_eq!(added.len(), 1);
    assert_eq!((&added[0]["pubkey"], &added[0]["tags"][0]), (&json!(own), &json!(["-"])));
    let log = run(&relay.place, &["log", "--json"]);
    let joined = log.lines().find(|line| line.contains("joined by invite")).expect("a row");
    assert!(joined.contains(&code[..8]) && !log.contains(&code), "{log}");
    // Everything outlasts a crash, and the list is not signed anew.
    let list = one.find_now(&[json!({ "kinds": [13_534] })]).await;
    relay.server.kill();
    relay.server = relay.place.start();
    assert_eq!(own_key(relay.address()), own);
    let mut one = connect(relay.address(), 1).await;
    let (is_done, said) = one.publish(&event(1, now_s(), 28_936, &[&["-"]], "")).await;
    assert!(is_done && said.starts_with("info: you have left"), "{said}");
    wait_for_members(&mut one, &own, &[]).await;
    let removed = one.find_now(&[json!({ "kinds": [8_001], "#p": [pubkey(1)] })]).await;
    assert_eq!(removed.len(), 1);
    assert_ne!(one.find_now(&[json!({ "kinds": [13_534] })]).await, list);
    let refused = one.publish(&event(1, now_s(), 1, &[], "again")).await;
    assert!(refused.1.starts_with("blocked:"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_uses_of_a_code_are_exact_with_two_servers() {
    let database = Cluster::shared().database("members");
    let places = ["members-one", "members-two"].map(|name| Place::new(name, WITH_MEMBERS));
    places[1].folder.file("relay.key", "07".repeat(32));
    places[0].folder.file("relay.key", "07".repeat(32));
    let servers = [0, 1].map(|at| {
        let place: &Place = &places[at];
        Server::start(&mut place.serving(&["--unlimited", "--store", &database.url]))
    });
    let own = own_key(&servers[0].address);
    assert_eq!(own_key(&servers[1].address), own);
    // Notices tell the differences from the first list.
    let mut client = connect(&servers[0].address, 9).await;
    wait_for_members(&mut client, &own, &[]).await;
    let code = run(&places[0], &["--store", &database.url, "invite", "--uses", "3"]);
    let code = code.trim();
    let mut tasks = Vec::new();
    for who in 1..=8_u8 {
        let (address, code) = (servers[usize::from(who % 2)].address.clone(), code.to_owned());
        tasks.push(tokio::spawn(async move {
            let mut client = connect(&address, who).await;
            (who, client.publish(&join(who, &code)).await.0)
        }));
    }
    let mut joined = Vec::new();
    for task in tasks {
        let (who, is_done) = task.await.expect("no panic");
        joined.extend(is_done.then_some(json!(["member", pubkey(who)])));
    }
    assert_eq!(joined.len(), 3, "{joined:?}");
    for server in &servers {
        let mut client = connect(&server.address, 9).await;
        wait_for_members(&mut client, &own, &joined).await;
        let notices = client.find_now(&[json!({ "kinds": [8_000] })]).await;
        assert_eq!(notices.len(), 3, "each new member has one notice: {notices:?}");
    }
}
