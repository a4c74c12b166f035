//! Comparisons of sets (NIP-77) with the binary, on every store, and with a widely used client
//! library.

use std::collections::BTreeSet;

use hark_testkit::citus::{self, CitusCluster};
use hark_testkit::clock::now_s;
use hark_testkit::nostr::compare::{Compared, compare, held, id};
use hark_testkit::nostr::{event, pubkey};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::Random;
use hark_testkit::wait::PATIENCE;
use nostr_sdk::prelude::{
    Client, EventId, Filter, Keys, MemoryDatabase, MemoryDatabaseOptions, NostrDatabase,
    SyncDirection, SyncOptions,
};
use serde_json::{Value, json};

use super::kit::connect;
use crate::served::Relay;

/// Notes, private events between three people, versions of profiles, and deletions.
fn archive(random: &mut Random, count: u64, latest: u64) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    for n in 0..count {
        let (who, to) = (1 + random.below(3) as u8, pubkey(1 + random.below(3) as u8));
        let (time, content) = (latest - random.below(20) as u64, n.to_string());
        let event = match random.below(8) {
            0 => event(who, time, 4, &[&["p", &to]], &content),
            1 => event(who + 4, time, 1059, &[&["p", &to]], &content),
            2 => event(who, time, 0, &[], &content),
            3 if !events.is_empty() => {
                event(who, time, 5, &[&["e", &id(random.pick(&events))]], &content)
            }
            _ => event(who, time, 1, &[&["t", "hark"]], &content),
        };
        events.push(event);
    }
    events
}

async fn publish(client: &mut hark_testkit::nostr::client::Client, events: &[Value]) {
    for event in events {
        client.feed(json!(["EVENT", event])).await;
    }
    client.flush().await;
    for _ in events {
        assert_eq!(client.receive().await[0], "OK");
    }
}

/// Asserts that a comparison finds the same ids as a REQ, for every reader.
async fn finds_what_a_question_finds(test: &str, store: &str) {
    let settings = format!(
        "[archive]\nseal_records = 40\n{store}\n[limits]\nlimit_default = 5000\nslice_rows = 20\n\
         negentropy_message_bytes_max = 9216\n"
    );
    let relay = Relay::start(test, &settings);
    let latest = now_s() - 10;
    let mut random = Random::new(77);
    let events = archive(&mut random, 500, latest);
    publish(&mut connect(&relay).await, &events).await;
    for reader in [None, Some(1)] {
        let mut client = connect(&relay).await;
        if let Some(who) = reader {
            client.auth(who).await;
        }
        for filter in [
            json!({}),
            json!({"kinds": [1, 1059], "since": latest - 15}),
            json!({"authors": [pubkey(2), pubkey(3)]}),
            json!({"#p": [pubkey(1)], "kinds": [4, 1059, 1]}),
            json!({"#t": ["hark"], "limit": 50}),
        ] {
            let theirs = client.find_now(std::slice::from_ref(&filter)).await;
            let theirs: BTreeSet<String> = theirs.iter().map(id).collect();
            for once_in in [2, 40] {
                let ours: Vec<&Value> =
                    events.iter().filter(|_| !random.once_in(once_in)).collect();
                let set = held(ours.iter().copied());
                let Compared { have, need, .. } =
                    compare(&mut client, &filter, &set, 4_096).await.expect("an answer");
                let ours: BTreeSet<String> = ours.into_iter().map(id).collect();
                assert!(have.iter().eq(ours.difference(&theirs)), "{reader:?} {filter}");
                assert!(need.iter().eq(theirs.difference(&ours)), "{reader:?} {filter}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_finds_what_a_question_finds_in_files() {
    finds_what_a_question_finds("compare-files", "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_finds_what_a_question_finds_in_postgres() {
    let database = Cluster::shared().database("compare");
    let store = format!("store = \"{}\"\nbatch_wait_ms = 0", database.url);
    finds_what_a_question_finds("compare-postgres", &store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_finds_what_a_question_finds_on_a_citus_cluster() {
    if !citus::is_installed() {
        return;
    }
    let database: Database<'_> = CitusCluster::shared().database("compare");
    finds_what_a_question_finds("compare-citus", &format!("store = \"{}\"", database.url)).await;
}

/// A client of nostr-sdk has half of the relay's notes, and some notes that the relay lacks. After
/// the synchronisation, both have all notes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nostr_sdk_synchronises_both_ways() {
    let relay = Relay::start("nostr-sdk-sync", "");
    let work = async {
        let keys = Keys::generate();
        let start = now_s() - 1_000;
        let notes: Vec<_> =
            (0..600).map(|n| super::note(&keys, start + n / 3, &n.to_string())).collect();
        let publisher = super::sdk(&relay).await;
        let database = MemoryDatabase::with_opts(MemoryDatabaseOptions {
            events: true,
            ..MemoryDatabaseOptions::default()
        });
        for (n, note) in notes.iter().enumerate() {
            if n % 10 != 0 {
                super::publish(&publisher, note).await;
            }
            if n % 10 < 8 {
                database.save_event(note).await.expect("saved");
            }
        }
        let client = Client::builder().database(database.clone()).build();
        client.automatic_authentication(false);
        let client = super::connected(&relay, client).await;
        let filter = Filter::new().author(keys.public_key());
        let options = SyncOptions::new().direction(SyncDirection::Both);
        let synced = client.sync(filter.clone(), &options).await.expect("an answer");
        assert!(synced.failed.is_empty(), "{:?}", synced.failed);
        assert_eq!((synced.local.len(), synced.remote.len()), (60, 120));
        assert_eq!((synced.sent.len(), synced.received.len()), (60, 120));
        let all: BTreeSet<EventId> = notes.iter().map(|note| note.id).collect();
        let kept = database.query(filter.clone()).await.expect("events");
        assert!(kept.into_iter().map(|event| event.id).collect::<BTreeSet<_>>() == all);
        assert_eq!(super::count(&publisher, filter.clone()).await, 600);
        // Nothing is left to send.
        let again = client.sync(filter, &options).await.expect("an answer");
        assert_eq!((again.local.len(), again.remote.len()), (0, 0));
        publisher.shutdown().await;
        client.shutdown().await;
    };
    tokio::time::timeout(PATIENCE, work).await.expect("it takes some seconds");
}
