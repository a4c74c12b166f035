//! `hark adopt nostream`, from a PostgreSQL that `hark bench nostream` has filled.

use std::fs;
use std::path::Path;
use std::time::Duration;

use hark_testkit::clock::now_s;
use hark_testkit::nostr::event_line;
use hark_testkit::postgres::{Cluster, Database};
use serde_json::{Value, json};

use crate::cli::support::{Place, field, hark, wait_for_events};

/// Writes a file of generated events, some of them with text that is hard for JSON and SQL.
pub(super) fn events(place: &Place, count: &str) -> String {
    let file = place.path("events.jsonl");
    hark(&["bench", "gen", &file, "--events", count]).text();
    let odd = ["\"", "\\", "a\"b\\c", "'; DROP TABLE events; --", "ü🦀\u{2028}", "\t\n", "\\u0041"];
    let mut lines = fs::read_to_string(&file).unwrap();
    for (n, value) in odd.iter().enumerate() {
        let time = 1_760_000_000 + n as u64;
        lines +=
            &event_line(3, time, 1, &[&["t", value], &["x", "", value]], &format!("odd {value}"));
        lines += &event_line(3, time, 30_023, &[&["d", value]], value);
    }
    fs::write(&file, lines).unwrap();
    file
}

/// Returns the export of an archive that imported the file.
fn expected(file: &str, name: &str) -> String {
    let place = Place::new(name);
    place.hark(&["import", "--trusted", file]).text();
    place.hark(&["export"]).text()
}

/// Puts the events of a file into a database, in nostream's format.
fn fill(database: &Database<'_>, file: &str, flags: &[&str]) {
    let args = ["bench", "nostream", file, &database.url, "--replace"];
    hark(&[&args[..], flags].concat()).text();
}

fn adopt(place: &Place, database: &Database<'_>, flags: &[&str]) -> Value {
    let args = ["adopt", "nostream", &database.url, "--json"];
    place.hark(&[&args[..], flags].concat()).json()
}

#[test]
fn all_of_nostreams_events_come_over_as_they_were() {
    let place = Place::new("adopt");
    let file = events(&place, "3000");
    let database = Cluster::shared().database("adopt");
    fill(&database, &file, &[]);
    let rows: u64 = database.sql("SELECT count(*) FROM events").parse().unwrap();
    // Some events arrive after the adoption has passed their time.
    database.sql(
        "CREATE TABLE late AS SELECT * FROM events ORDER BY event_id LIMIT 40;
         DELETE FROM events WHERE event_id IN (SELECT event_id FROM late)",
    );
    let done = adopt(&place, &database, &["--batch", "300"]);
    assert_eq!(done["stored"], rows - 40, "{done}");
    database.sql("INSERT INTO events SELECT * FROM late");
    let done = adopt(&place, &database, &["--verify", "400", "--verify-signatures"]);
    assert_eq!((&done["stored"], &done["ids"]["late"]), (&40.into(), &40.into()), "{done}");
    assert_eq!(done["ids"]["clean"], true);
    assert!(done["ids"]["sampled"].as_u64() > Some(350), "{done}");
    assert!(place.hark(&["export"]).text() == expected(&file, "adopt-expected"));
    // A third run has nothing to do.
    assert_eq!(adopt(&place, &database, &[])["stored"], 0);
}

#[test]
fn they_come_into_a_database_as_well() {
    let place = Place::new("adopt-database");
    let file = events(&place, "3000");
    let (database, target) =
        (Cluster::shared().database("adoptfrom"), Cluster::shared().database("adoptto"));
    fill(&database, &file, &[]);
    let store = ["--store", &target.url];
    let mut child = place.start(
        &[&["adopt", "nostream", &database.url, "--rate", "2000", "--batch", "100"][..], &store]
            .concat(),
    );
    child.until("a quarter is remembered", || remembered(&place) >= 1_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let done = adopt(&place, &database, &[&["--verify"][..], &store].concat());
    assert!(done["ids"]["clean"] == true && done["stored"].as_u64() < Some(2_500), "{done}");
    let export = place.hark(&[&["export"][..], &store].concat()).text();
    assert!(export == expected(&file, "adopt-database-expected"));
}

#[test]
fn what_stays_behind_is_told_by_its_reason() {
    let place = Place::new("adopt-refused");
    let deleted = event_line(1, 1_700_000_001, 1, &[], "deleted there");
    let changed = event_line(1, 1_700_000_002, 1, &[], "changed");
    let forged = event_line(1, 1_700_000_003, 1, &[], "forged");
    let brief = event_line(1, 1_700_000_004, 20_001, &[], "brief");
    let past = event_line(1, 1_700_000_005, 1, &[&["expiration", "1700000006"]], "past");
    let old = event_line(1, 1_700_000_007, 0, &[], "old profile");
    let lines = [&deleted, &changed, &forged, &brief, &past, &old].map(String::as_str).concat();
    let file = place.file("events.jsonl", lines.as_bytes());
    let database = Cluster::shared().database("adoptrefused");
    fill(&database, &file, &["--without-event-tags"]);
    let update = |event: &str, set: &str| {
        let id = field(event, "id");
        database.sql(&format!("UPDATE events SET {set} WHERE event_id = '\\x{id}'"));
    };
    update(&deleted, "deleted_at = now()");
    update(&changed, "event_content = 'else'");
    update(&forged, "event_signature = decode(repeat('11', 64), 'hex')");
    let newer = event_line(1, 1_700_000_008, 0, &[], "new profile");
    place.hark_fed(&["import"], newer.as_bytes()).text();
    let told = |flags: &[&str], faulty: u64| {
        let args = ["adopt", "nostream", &database.url, "--json"];
        let run = place.hark(&[&args[..], flags].concat());
        let said = format!("not those that their ids name: {faulty}. They were not brought over");
        assert!(run.code == 1 && run.stderr.contains(&said), "{run:?}");
        serde_json::from_str::<Value>(&run.stdout).unwrap()
    };
    let done = told(&["--verify-signatures"], 2);
    let reasons = &done["ids"]["reasons"];
    for reason in ["deleted_there", "bad_id", "bad_signature", "ephemeral", "expired", "superseded"]
    {
        assert_eq!(reasons[reason], 1, "{reason}: {done}");
    }
    assert_eq!((&done["stored"], &done["ids"]["clean"]), (&0.into(), &json!(false)));
    assert_eq!(done["ids"]["faulty"], 2, "{done}");
    // This run does not check signatures, so it stores the forged event, whose id the archive
    // lacks.
    assert_eq!(told(&[], 1)["ids"]["late"], 1);
    update(&changed, "event_content = 'changed'");
    let clean = adopt(&place, &database, &[]);
    assert_eq!((&clean["ids"]["late"], &clean["ids"]["clean"]), (&1.into(), &json!(true)));

    let empty = Cluster::shared().database("adoptempty");
    let run = place.hark(&["adopt", "nostream", &empty.url]);
    assert!(run.code == 1 && run.stderr.contains("no database of nostream"), "{}", run.stderr);
}

/// Returns the number of events in the saved position of the adoption.
fn remembered(place: &Place) -> u64 {
    let text = fs::read(place.data().join("adopt.json")).unwrap_or_default();
    let json: Value = serde_json::from_slice(&text).unwrap_or_default();
    json["events"].as_u64().unwrap_or(0)
}

#[test]
fn killed_with_the_database_it_goes_on_and_nothing_is_lost_or_doubled() {
    let place = Place::new("adopt-killed");
    let file = events(&place, "4000");
    let cluster = Cluster::new();
    let database = cluster.database("adoptkilled");
    fill(&database, &file, &[]);
    let url = database.url.clone();
    let args = ["adopt", "nostream", &url, "--rate", "1500", "--batch", "100"];
    let mut seen = 0;
    for round in 0..3 {
        let mut child = place.start(&args);
        child.until("500 more are remembered", || remembered(&place) >= seen + 500);
        if round == 1 {
            cluster.kill();
            assert_eq!(child.wait().unwrap().code(), Some(1), "it says so and ends");
            cluster.start();
        } else {
            child.kill().unwrap();
            child.wait().unwrap();
            cluster.kill();
            cluster.start();
        }
        seen = remembered(&place);
    }
    let done = adopt(&place, &database, &["--verify"]);
    assert!(done["ids"]["clean"] == true && done["stored"].as_u64() < Some(4_000 - seen + 100));
    assert!(place.hark(&["export"]).text() == expected(&file, "adopt-killed-expected"));
    assert_eq!(place.hark(&["check", "--json"]).json()["faults"], json!([]));
}

#[test]
fn a_server_takes_in_what_nostream_publishes_until_it_is_cut_over() {
    let place = Place::new("adopt-follow");
    let file = events(&place, "1000");
    let database = Cluster::shared().database("adoptfollow");
    fill(&database, &file, &[]);
    database.sql(
        "CREATE TABLE later AS SELECT * FROM events ORDER BY event_created_at DESC LIMIT 200;
         DELETE FROM events WHERE event_id IN (SELECT event_id FROM later)",
    );
    let server = place.serve();
    let child = place.start(&["adopt", "nostream", &database.url, "--follow", "--json"]);
    let rows: u64 = database.sql("SELECT count(*) FROM events").parse().unwrap();
    wait_for_events(&place, rows);
    for _ in 0..4 {
        database.sql(
            "WITH taken AS (DELETE FROM later WHERE event_id IN (
                 SELECT event_id FROM later ORDER BY event_created_at, event_id LIMIT 50
             ) RETURNING *)
             INSERT INTO events SELECT * FROM taken",
        );
        std::thread::sleep(Duration::from_millis(300));
    }
    wait_for_events(&place, rows + 200);
    child.signal("INT");
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(done["ids"]["clean"] == true && done["stored"] == rows + 200, "{done}");
    assert_eq!(server.terminate().0, 0);
    assert!(Path::new(&place.data().join("adopt.json")).exists());
    assert!(place.hark(&["export"]).text() == expected(&file, "adopt-follow-expected"));
}

#[test]
fn what_comes_with_an_old_date_is_followed_as_well() {
    let place = Place::new("adopt-late");
    let file = events(&place, "1000");
    let ahead = event_line(1, now_s() + 600, 1, &[], "from the future");
    let present = event_line(2, now_s(), 1, &[], "from the present");
    let lines = fs::read_to_string(&file).unwrap() + &ahead + &present;
    fs::write(&file, lines).unwrap();
    let database = Cluster::shared().database("adoptlate");
    fill(&database, &file, &[]);
    let (ahead, present) = (field(&ahead, "id"), field(&present, "id"));
    database.sql(&format!(
        "CREATE TABLE present AS SELECT * FROM events WHERE event_id = '\\x{present}';
         CREATE TABLE late AS SELECT * FROM events WHERE event_kind = 1
             AND event_id <> '\\x{ahead}' AND event_id <> '\\x{present}'
             ORDER BY event_created_at LIMIT 20;
         DELETE FROM events WHERE event_id IN (
             SELECT event_id FROM late UNION SELECT event_id FROM present)"
    ));
    let server = place.serve();
    let child = place.start(&["adopt", "nostream", &database.url, "--follow", "--json"]);
    let rows: u64 = database.sql("SELECT count(*) FROM events").parse().unwrap();
    wait_for_events(&place, rows);
    database.sql("INSERT INTO events SELECT * FROM present");
    database.sql("INSERT INTO events SELECT * FROM late ORDER BY event_id LIMIT 19");
    // nostream stores a newer version of a replaceable event in the row of the previous version.
    database.sql(
        "UPDATE events AS row SET event_id = new.event_id, event_pubkey = new.event_pubkey,
             event_created_at = new.event_created_at, event_content = new.event_content,
             event_tags = new.event_tags, event_signature = new.event_signature
         FROM (SELECT * FROM late ORDER BY event_id DESC LIMIT 1) AS new
         WHERE row.event_id = (SELECT event_id FROM events WHERE event_kind = 1
             AND event_id NOT IN (SELECT event_id FROM late) ORDER BY event_created_at LIMIT 1)",
    );
    wait_for_events(&place, rows + 21);
    child.signal("INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(done["ids"]["clean"] == true && done["ids"]["late"] == 0, "{done}");
    assert_eq!(server.terminate().0, 0);
    assert!(place.hark(&["export"]).text() == expected(&file, "adopt-late-expected"));
}
