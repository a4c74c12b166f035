//! Full-text search (NIP-50) with the binary: by REQ, COUNT and commands, live, among private
//! events, and after a kill -9.

use hark_testkit::clock::now_s;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{contents, event, note};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::Random;
use hark_testkit::sentences::{question, sentence};
use hark_testkit::wait::until;
use hark_words::{Part, RecordWords, SearchText};
use serde_json::{Value, json};

use super::kit::connect;
use crate::served::{Place, Relay};

const SEARCH: &str = "[search]\nenabled = true\n";

/// The time that one class of a word counts in the ranking: a week.
const CLASS_S: u64 = 7 * 86_400;

/// Settings of an archive in files, and of an archive in a database.
fn stores(database: &Database<'_>) -> [(&'static str, String); 2] {
    let url = &database.url;
    [
        ("files", format!("{SEARCH}[archive]\nseal_records = 60\n")),
        ("database", format!("{SEARCH}[archive]\nstore = \"{url}\"\n")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn nip50_the_best_matches_come_first_and_the_limit_is_after_the_ranking() {
    let database = Cluster::shared().database("search");
    for (store, settings) in stores(&database) {
        let relay = Relay::start(&format!("search-{store}"), &settings);
        the_best_come_first(&relay).await;
    }
}

async fn the_best_come_first(relay: &Relay) {
    let mut client = connect(relay).await;
    let latest = now_s() - 100;
    let long = format!("{} fox", "other words here ".repeat(60));
    client.publish_new(&note(1, latest, &long)).await;
    client.publish_new(&note(1, latest - 50, "a FÖX, at last")).await;
    client
        .publish_new(&event(1, latest - 60, 30_023, &[&["d", "x"], &["title", "Fox"]], "text"))
        .await;
    client.publish_new(&note(1, latest - 40 * 86_400, "old fox")).await;
    client.publish_new(&event(1, latest, 4, &[], "private fox")).await;
    let found = client.find_now(&[json!({"search": "fox"})]).await;
    assert_eq!(contents(&found), ["text", "a FÖX, at last", &long, "old fox"]);
    let found = client.find_now(&[json!({"search": "fox", "limit": 2})]).await;
    assert_eq!(contents(&found), ["text", "a FÖX, at last"]);
    let found =
        client.find_now(&[json!({"search": "fox", "kinds": [1], "until": latest - 1})]).await;
    assert_eq!(contents(&found), ["a FÖX, at last", "old fox"]);
    for (asked, count) in [
        ("fox", 4),
        ("fox -", 4),
        ("\"at last\"", 1),
        ("las*", 1),
        ("fox include:spam", 4),
        ("private", 0),
        ("!", 0),
    ] {
        assert_eq!(client.count(&[json!({"search": asked})]).await, count, "{asked}");
    }
    // An empty search text imposes no condition.
    assert_eq!(client.count(&[json!({"search": "", "kinds": [1]})]).await, 3);
    // Deleted events are not found.
    client
        .publish_new(&event(1, latest + 1, 5, &[&["e", found[0]["id"].as_str().unwrap()]], ""))
        .await;
    assert_eq!(client.count(&[json!({"search": "fox"})]).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn nip50_matches_come_as_they_are_published() {
    let database = Cluster::shared().database("search live");
    for (store, settings) in stores(&database) {
        let relay = Relay::start(&format!("search-live-{store}"), &settings);
        matches_come(&relay).await;
    }
}

async fn matches_come(relay: &Relay) {
    let (mut client, mut other) = (connect(relay).await, connect(relay).await);
    client.ask("s", &[json!({"search": "quick fox", "limit": 5})]).await;
    other.publish_new(&note(1, now_s(), "a slow fox")).await;
    let (first, second) = (note(1, now_s(), "a quick, quick fox"), note(2, now_s(), "Fox? Quick!"));
    other.publish_new(&first).await;
    other.publish_new(&second).await;
    assert_eq!(client.receive().await, json!(["EVENT", "s", first]));
    assert_eq!(client.receive().await, json!(["EVENT", "s", second]));
}

/// The results of a loop over all events, best first.
fn expected(events: &[Value], asked: &SearchText, limit: usize) -> Vec<Value> {
    let mut found = Vec::new();
    for event in events {
        let mut words = RecordWords::default();
        words.add(Part::Body, event["content"].as_str().unwrap());
        if let Some(points) = words.points(asked) {
            let time = event["created_at"].as_u64().unwrap();
            let score = time + CLASS_S * u64::from(points) / asked.term_count().max(1) as u64;
            found.push((!score, !time, event["id"].as_str().unwrap().to_owned(), event.clone()));
        }
    }
    found.sort_by(|a, b| (a.0, a.1, &a.2).cmp(&(b.0, b.1, &b.2)));
    found.into_iter().take(limit).map(|(.., event)| event).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nip50_results_are_those_of_a_loop_over_all_events() {
    let database = Cluster::shared().database("search loop");
    for (store, settings) in stores(&database) {
        let relay = Relay::start(&format!("search-loop-{store}"), &settings);
        results_are_those_of_a_loop(&relay).await;
    }
}

async fn results_are_those_of_a_loop(relay: &Relay) {
    let mut client = connect(relay).await;
    let (mut random, latest) = (Random::new(50), now_s() - 10);
    let events: Vec<Value> = (0..400)
        .map(|_| {
            let time = latest - random.below(60 * 86_400) as u64;
            note(1 + random.below(3) as u8, time, &sentence(&mut random))
        })
        .collect();
    for event in &events {
        client.publish_new(event).await;
    }
    let mut answers = 0;
    for _ in 0..200 {
        let text = question(&mut random);
        let Some(asked) = SearchText::parse(&text).unwrap() else { continue };
        let limit = 1 + random.below(40);
        let found = client.find_now(&[json!({"search": text, "limit": limit})]).await;
        let ours = if asked.is_void() { Vec::new() } else { expected(&events, &asked, limit) };
        assert_eq!(contents(&found), contents(&ours), "{text}");
        answers += found.len();
        let all = if asked.is_void() { 0 } else { expected(&events, &asked, usize::MAX).len() };
        assert_eq!(client.count(&[json!({"search": text})]).await, all as u64, "{text}");
    }
    assert!(answers > 500, "{answers}");
}

#[test]
fn nip50_every_acknowledged_event_is_found_by_its_words_after_kill_9() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let place = Place::new("nostr-search-kill", &format!("{SEARCH}[archive]\nseal_records = 50\n"));
    for round in 0..20_u64 {
        let mut server = place.start();
        let url = format!("ws://{}", server.address);
        let mut client = runtime.block_on(Client::connect(&url, now_s()));
        for before in 0..round * 12 {
            let asked = [json!({"search": format!("word{before}x")})];
            assert_eq!(runtime.block_on(client.count(&asked)), 1, "word{before}x, {round}");
        }
        for at in round * 12..(round + 1) * 12 {
            runtime.block_on(client.publish_new(&note(
                1,
                now_s() - 1_000 + at,
                &format!("a word{at}x"),
            )));
        }
        server.kill();
    }
    let run = place.command(&["query", "--search", "word17x", "{}"]).output().expect("runs");
    assert!(String::from_utf8_lossy(&run.stdout).contains("word17x"), "{run:?}");
    let run = place.command(&["count", "{\"search\":\"word1*\"}"]).output().expect("runs");
    assert_eq!(String::from_utf8_lossy(&run.stdout).trim(), "111");
    let run = place.command(&["explain", "{\"search\":\"word17x\"}"]).output().expect("runs");
    assert!(String::from_utf8_lossy(&run.stdout).contains("word word17x"), "{run:?}");
}

#[test]
fn nip50_a_database_that_was_not_searched_is_indexed_by_a_command() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let database = Cluster::shared().database("search command");
    let archive = format!("[archive]\nstore = \"{}\"\n", database.url);
    let plain = Place::new("nostr-search-database", &archive);
    // The same archive with another configuration.
    let mut searched = plain.clone();
    searched.settings = "searched.toml";
    plain.folder.file(searched.settings, format!("{SEARCH}{archive}"));
    let mut server = plain.start();
    let url = format!("ws://{}", server.address);
    let mut client = runtime.block_on(Client::connect(&url, now_s()));
    for at in 0..150 {
        let note = note(1, now_s() - 1_000 + at, &format!("a word{at}x"));
        runtime.block_on(client.publish_new(&note));
    }
    let run = |place: &Place, args: &[&str]| {
        let run = place.command(args).output().expect("runs");
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        (run.status.code(), said(&run.stdout), said(&run.stderr))
    };
    let (code, _, why) = run(&plain, &["migrate", "index-words"]);
    assert!(code == Some(1) && why.contains("set enabled = true in [search]"), "{why}");
    // Before the index exists, answers are still complete: the search reads the events.
    let count = ["count", "{\"search\":\"word1*\"}"];
    assert_eq!(run(&searched, &count).1, "61");
    // The server without search keeps accepting events, and the search finds these events as well.
    let (code, said, _) = run(&searched, &["migrate", "index-words", "--json"]);
    let said: Value = serde_json::from_str(&said).expect("is JSON");
    assert_eq!((code, &said["state"], &said["indexed"]), (Some(0), &json!("indexed"), &json!(150)));
    runtime.block_on(client.publish_new(&note(1, now_s(), "a word1999x")));
    assert_eq!(run(&searched, &count).1, "62");
    server.kill();
    let mut server = searched.start();
    let url = format!("ws://{}", server.address);
    let mut client = runtime.block_on(Client::connect(&url, now_s()));
    assert_eq!(runtime.block_on(client.count(&[json!({"search": "word17x"})])), 1);
    let rows = || {
        let rows = "SELECT count(*) FROM hark_nostr.worded";
        database.sql(rows).trim().to_owned()
    };
    until("the server indexes what was put", || rows() == "151");
    let (_, said, _) = run(&searched, &["query", "--search", "word17x", "{}"]);
    assert!(said.contains("word17x"), "{said}");
    let (_, said, _) = run(&searched, &["explain", "{\"search\":\"word17x\"}"]);
    assert!(said.contains("word word17x") && said.contains("word_keys"), "{said}");
    server.kill();
    let (code, _, why) = run(&searched, &["migrate", "drop-words"]);
    assert!(code == Some(1) && why.contains("enabled = true"), "{why}");
    assert_eq!(run(&plain, &["migrate", "drop-words"]).1, "deleted");
    assert_eq!(rows(), "0");
    assert_eq!(run(&plain, &["migrate", "drop-words"]).1, "nothing was indexed");
}
