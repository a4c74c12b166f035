//! The web of trust (`[trust]`) over the binary: on files with commands and reloads, and with two
//! servers on one database.

use std::sync::atomic::{AtomicU64, Ordering};

use hark_testkit::clock::now_s;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{event, pubkey};
use hark_testkit::postgres::Cluster;
use hark_testkit::server::Server;
use hark_testkit::wait::until_async;
use serde_json::Value;

use crate::served::{Place, Relay};

const REFUSAL: &str =
    "restricted: this relay takes events of people whom its trusted people follow";

fn settings(roots: &str) -> String {
    format!("[trust]\nmode = \"require\"\nroots = {roots}\n")
}

/// A follow list.
fn follows(who: u8, followed: &[u8]) -> Value {
    let followed: Vec<String> = followed.iter().map(|key| pubkey(*key)).collect();
    let tags: Vec<[&str; 2]> = followed.iter().map(|key| ["p", key.as_str()]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    event(who, now_s(), 3, &tags, "")
}

async fn connect(address: &str) -> Client {
    Client::connect(&format!("ws://{address}"), now_s()).await
}

/// Publishes a new note of a key.
async fn says(client: &mut Client, who: u8) -> (bool, String) {
    static NOTES: AtomicU64 = AtomicU64::new(0);
    let number = NOTES.fetch_add(1, Ordering::Relaxed);
    client.publish(&event(who, now_s(), 1, &[], &format!("note {number}"))).await
}

async fn until_trusted(client: &mut Client, who: u8) {
    until_async("the key may publish", async || says(client, who).await.0).await;
}

async fn until_refused(client: &mut Client, who: u8) {
    until_async("the key may not publish", async || says(client, who).await.1.starts_with(REFUSAL))
        .await;
}

fn run(place: &Place, args: &[&str]) {
    let output = place.command(args).output().expect("the binary runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_reloads_and_restarts_change_the_trusted_keys() {
    let place = Place::new("trust", &settings("[\"@roots.txt\"]"));
    place.folder.file("roots.txt", format!("{}\n", pubkey(1)));
    let server = place.start();
    let mut relay = Relay { server, place };
    let mut client = connect(relay.server.address.as_str()).await;
    until_refused(&mut client, 2).await;
    client.publish_new(&follows(1, &[2])).await;
    until_trusted(&mut client, 2).await;
    client.publish_new(&follows(2, &[3])).await;
    until_trusted(&mut client, 3).await;
    relay.server.kill();
    relay.server = relay.place.start();
    let mut client = connect(relay.server.address.as_str()).await;
    until_trusted(&mut client, 3).await;
    run(&relay.place, &["ban", &pubkey(2), "--purge", "--yes"]);
    until_refused(&mut client, 3).await;
    run(&relay.place, &["unban", &pubkey(2)]);
    // The list was deleted, so its author alone is trusted again.
    until_trusted(&mut client, 2).await;
    assert!(says(&mut client, 3).await.1.starts_with(REFUSAL));
    relay.place.folder.file("roots.txt", format!("{}\n{}\n", pubkey(1), pubkey(3)));
    run(&relay.place, &["reload"]);
    until_trusted(&mut client, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_another_server_of_the_database_stores_counts() {
    let database = Cluster::shared().database("trust");
    let settings = settings(&format!("[\"{}\"]", pubkey(1)));
    let places = ["trust-one", "trust-two"].map(|name| Place::new(name, &settings));
    let servers = [0, 1].map(|at: usize| {
        let place: &Place = &places[at];
        Server::start(&mut place.serving(&["--unlimited", "--store", &database.url]))
    });
    let mut one = connect(&servers[0].address).await;
    let mut two = connect(&servers[1].address).await;
    until_refused(&mut two, 2).await;
    let list = follows(1, &[2]);
    one.publish_new(&list).await;
    until_trusted(&mut two, 2).await;
    let id = list["id"].as_str().expect("an id");
    one.publish_new(&event(1, now_s(), 5, &[&["e", id]], "")).await;
    until_refused(&mut two, 2).await;
}
