//! The relay's own key, over the binary: on files, and with two servers on one database.

use std::os::unix::fs::PermissionsExt as _;

use hark_testkit::http::HttpRequest;
use hark_testkit::postgres::Cluster;
use hark_testkit::server::Server;
use hark_testkit::wait::until;
use serde_json::Value;

use crate::served::{Place, Relay};

fn information(address: &str) -> Value {
    let request = HttpRequest::new("GET", "/").header("Accept", "application/nostr+json");
    serde_json::from_slice(&request.send(address).body).expect("JSON")
}

/// The relay's own key, once the relay uses it.
fn own_key(address: &str) -> String {
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
    // Another key is used only once the operator confirms it.
    std::fs::write(&file, format!("{}\n", "07".repeat(32))).expect("written");
    relay.server = relay.place.start();
    until("the log names both keys", || relay.server.log().contains("this server signs nothing"));
    assert!(information(relay.address())["self"].is_null());
    let other = "989c0b76cb563971fdc9bef31ec06c3560f3249d6ee9e5d83c57625596e05f6f";
    relay.place.folder.file("hark.toml", format!("[info]\nself = \"{other}\"\n{WITH_KEY}"));
    let reload = relay.place.command(&["reload"]).output().expect("the binary runs");
    assert!(reload.status.success(), "{reload:?}");
    assert_eq!(own_key(relay.address()), other);
    relay.server.kill();
    relay.place.folder.file("hark.toml", WITH_KEY);
    relay.server = relay.place.start();
    until("the archive has noted the key", || information(relay.address())["self"] == other);
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
