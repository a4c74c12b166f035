//! Several servers on one database, used by clients: every event is stored once and delivered by
//! every server, and no acknowledged event is lost when the database becomes unavailable.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hark_archive::{Id, Query, Record, Store};
use hark_codec::crypto::KeyPair;
use hark_codec::hex;
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::clock::now_s;
use hark_testkit::nostr::{keys, publication, publish};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::runs::is_long;
use hark_testkit::server::Server;
use hark_testkit::wait::{PATIENCE, holds_within};
use hark_testkit::websocket::Socket;

use crate::cli::support::Place;

fn node(place: &Place, database: &Database<'_>) -> Server {
    place.serve_with(&["--unlimited", "--store", &database.url, "--log-level", "warn"])
}

fn ids(database: &Database<'_>) -> Vec<Id> {
    let store = PostgresStore::open(
        &database.url,
        "nostr",
        Box::new(NostrRules),
        &PostgresOptions::default(),
    );
    let store = store.expect("opens");
    let mut search = store.search(&Query::default()).expect("begins");
    let mut ids = Vec::new();
    let mut sink = |record: &Record<'_>| {
        ids.push(*record.id());
        ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut sink).expect("answers");
    ids
}

/// Publishes messages on one connection, with at most `window` unacknowledged messages. Returns the
/// answers by id.
fn send(address: &str, window: usize, messages: &[Vec<u8>]) -> HashMap<Id, Vec<u8>> {
    let (mut verdicts, mut next) = (HashMap::new(), messages.iter());
    let answered = |id, verdict: &[u8]| {
        verdicts.insert(id, verdict.to_vec());
    };
    publish(Socket::connect(address), window, || next.next().cloned(), answered);
    verdicts
}

#[test]
fn what_three_servers_are_sent_at_once_is_kept_once_and_delivered_on_all() {
    let cluster = Cluster::with(&["fsync=off"]);
    let database = cluster.database("fleet");
    let places: Vec<Place> = (0..3).map(|n| Place::new(&format!("fleet-{n}"))).collect();
    let nodes: Vec<Server> = places.iter().map(|place| node(place, &database)).collect();
    let events = if is_long() { 20_000 } else { 2_000 };
    let (keys, now) = (keys(3), now_s());
    let mut all: Vec<(Vec<u8>, Id)> = (0..events)
        .map(|n| publication(&keys, now - n, 1, &[&["t", "fleet"]], &format!("note {n}")))
        .collect();
    // Each address keeps its newest version. If times are equal, the version with the lowest id is
    // kept.
    let versions: Vec<(Vec<u8>, Id)> = (0..200)
        .map(|n| {
            let address = format!("a{}", n % 10);
            publication(&keys, now - n / 20, 30_023, &[&["d", &address]], &format!("text {n}"))
        })
        .collect();
    let mut expected: HashSet<Id> = all.iter().map(|(_, id)| *id).collect();
    let newest = |address: usize| {
        let of_it = versions.iter().skip(address).step_by(10).take(2);
        of_it.map(|(_, id)| *id).min()
    };
    expected.extend((0..10).filter_map(newest));
    all.extend(versions.iter().cloned());
    let messages: Vec<Vec<u8>> = all.into_iter().map(|(message, _)| message).collect();

    let started = Instant::now();
    std::thread::scope(|scope| {
        for connection in 0..12 {
            let (address, messages) = (&nodes[connection % 3].address, &messages);
            scope.spawn(move || {
                let mut mine = messages.clone();
                mine.rotate_left(connection / 3 * 97);
                let verdicts = send(address, 64, &mine);
                assert_eq!(verdicts.len(), messages.len());
                for verdict in verdicts.values() {
                    let said = String::from_utf8_lossy(verdict);
                    let is_kept = said.starts_with("\",true") || said.contains("duplicate:");
                    assert!(is_kept || said.contains("replaced:"), "{said}");
                }
            });
        }
    });
    let sent = messages.len() * 12;
    println!("{sent} events, each sent twelve times, in {:?}", started.elapsed());
    let kept = ids(&database);
    assert_eq!(kept.len(), expected.len());
    assert_eq!(kept.into_iter().collect::<HashSet<Id>>(), expected);

    received_elsewhere(&nodes, &keys);
    for node in nodes {
        let (code, logged) = node.terminate();
        assert_eq!((code, logged.contains("ERROR")), (0, false), "{logged}");
    }
    assert!(!cluster.log().contains("ERROR:"), "{}", cluster.log());
}

/// Measures how long an event takes from one server to a subscriber of another server.
fn received_elsewhere(nodes: &[Server], keys: &KeyPair) {
    let mut subscriber = Socket::connect(&nodes[1].address);
    subscriber.send_text(r##"["REQ","live",{"#t":["far"],"limit":0}]"##);
    while subscriber.json()[0] != "EOSE" {}
    let mut publisher = Socket::connect(&nodes[0].address);
    let mut writer = publisher.writer();
    let mut times: Vec<Duration> = (0..if is_long() { 1_000 } else { 100 })
        .map(|n| {
            let (message, id) =
                publication(keys, now_s(), 1, &[&["t", "far"]], &format!("far {n}"));
            let sent = Instant::now();
            writer.send_text(&message).expect("is sent");
            let received = subscriber.json();
            let time = sent.elapsed();
            assert_eq!(received[2]["id"], hex::text_32(&id));
            publisher.json();
            time
        })
        .collect();
    times.sort_unstable();
    let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("published on one server, received on another: p50 {p50:?}, p99 {p99:?}");
}

/// A way to make a database unavailable and available again.
type Trouble = fn(&Cluster, Duration, &dyn Fn());

/// Stops the database for at least `time`, until clients have been refused, and starts the database
/// again.
fn stopped(cluster: &Cluster, time: Duration, until_refused: &dyn Fn()) {
    cluster.stop();
    std::thread::sleep(time);
    until_refused();
    cluster.start();
}

fn killed(cluster: &Cluster, _: Duration, _: &dyn Fn()) {
    cluster.kill();
    cluster.start();
}

#[test]
fn nothing_acknowledged_is_lost_when_the_database_goes_away() {
    let cluster = Cluster::with(&[]);
    let database = cluster.database("away");
    let place = Place::new("fleet-away");
    let server = node(&place, &database);
    let (over, acknowledged, refused) =
        (AtomicBool::new(false), Mutex::new(HashSet::new()), AtomicUsize::new(0));
    let keys = keys(4);
    let (time, now) = (Duration::from_secs(if is_long() { 20 } else { 3 }), now_s());
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (over, acknowledged, refused, keys) = (&over, &acknowledged, &refused, &keys);
            let address = &server.address;
            scope.spawn(move || {
                let mut numbers = 0u64..;
                let next = || {
                    let n = numbers.next().filter(|_| !over.load(Ordering::Relaxed))?;
                    // The rate is about that of a busy relay: the database may fall behind, but the
                    // test may not.
                    std::thread::sleep(Duration::from_micros(500));
                    let text = format!("client {client}, note {n}");
                    Some(publication(keys, now - n % 5_000, 1, &[&["t", "away"]], &text).0)
                };
                publish(Socket::connect(address), 200, next, |id, verdict| {
                    let said = String::from_utf8_lossy(verdict);
                    if said.starts_with("\",true") {
                        acknowledged.lock().expect("no panic").insert(id);
                    } else {
                        assert!(said.contains("\"error: "), "{said}");
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
        let (over, acknowledged, refused, cluster) = (&over, &acknowledged, &refused, &cluster);
        scope.spawn(move || {
            let all = || acknowledged.lock().expect("no panic").len();
            let wait = |what: &str, done: &dyn Fn() -> bool| {
                let held = holds_within(PATIENCE, done);
                // The other threads end even after a failure, so that the test ends.
                over.fetch_or(!held, Ordering::Relaxed);
                assert!(held, "{what}");
            };
            wait("service begins", &|| all() >= 500);
            for (name, trouble) in [("stopped", stopped as Trouble), ("killed", killed as Trouble)]
            {
                let (before, refusals) = (all(), refused.load(Ordering::Relaxed));
                let began = Instant::now();
                trouble(cluster, time, &|| {
                    wait("clients are refused", &|| refused.load(Ordering::Relaxed) > refusals);
                });
                let back = Instant::now();
                let since = all();
                wait("service goes on", &|| all() >= since + 500);
                println!(
                    "{name} for {:?}: {before} acknowledged before, {} refused with error:, 500 \
                     more within {:?}",
                    back - began,
                    refused.load(Ordering::Relaxed) - refusals,
                    back.elapsed()
                );
            }
            over.store(true, Ordering::Relaxed);
        });
    });
    let acknowledged = acknowledged.into_inner().expect("no panic");
    let kept: HashSet<Id> = ids(&database).into_iter().collect();
    let lost = acknowledged.difference(&kept).count();
    println!("{} acknowledged, {lost} lost, {} kept", acknowledged.len(), kept.len());
    assert_eq!(lost, 0);
    assert!(refused.load(Ordering::Relaxed) > 0, "nobody noticed");
    assert_eq!(server.terminate().0, 0);
}
