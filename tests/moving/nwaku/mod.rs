//! `hark adopt nwaku`, from databases with each schema version of nwaku.

mod source;

use std::collections::BTreeSet;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::wait::until;
use serde_json::{Value, json};

use self::source::{
    FILE_MIGRATIONS, HOUR_NS, MIGRATIONS, StoredMessage, insert, insert_into_file, nwaku_database,
    nwaku_file, partition,
};
use crate::cli::support::Place;

/// The stored hash of a message in most tests, which is the right hash.
fn right(_: u32, message: &StoredMessage) -> String {
    message.hash()
}

/// The right hashes of messages with meta.
fn hashes(numbers: impl Iterator<Item = u32>) -> BTreeSet<String> {
    numbers.map(|n| StoredMessage::new(n, true).hash()).collect()
}

fn adopt(place: &Place, from: &str, flags: &[&str]) -> Value {
    let run = place.hark(&[&["adopt", "nwaku", from, "--json"], flags].concat());
    serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.stderr))
}

/// The hashes of an archive's messages, without their prefix 0x.
fn kept(place: &Place, flags: &[&str]) -> BTreeSet<String> {
    let lines = place.hark(&[&["export", "--network", "waku"], flags].concat()).text();
    let hash = |line: &str| {
        let message: Value = serde_json::from_str(line).unwrap();
        message["messageHash"].as_str().unwrap()[2..].to_owned()
    };
    let hashes: Vec<String> = lines.lines().map(hash).collect();
    let unique: BTreeSet<String> = hashes.iter().cloned().collect();
    assert_eq!(unique.len(), hashes.len(), "no message is stored twice");
    unique
}

#[test]
fn messages_come_over_from_each_schema_of_postgresql() {
    for version in 1..=8 {
        let place = Place::new(&format!("adopt-nwaku-{version}"));
        let database = nwaku_database(&format!("adoptnwaku{version}"), version, 3);
        // Three of the stored hashes are wrong.
        let wrong = |n: u32, message: &StoredMessage| {
            if n % 200 == 7 { format!("{n:064x}") } else { message.hash() }
        };
        insert(&database, version, 0..600, wrong);
        let done = adopt(&place, &database.url, &["--verify", "--batch", "70"]);
        let ids = &done["ids"];
        assert_eq!((&done["stored"], &ids["clean"]), (&json!(600), &json!(true)), "{done}");
        assert_eq!((&ids["compared"], &ids["different"]), (&json!(600), &json!(0)), "{done}");
        let message = |n| StoredMessage::new(n, version >= 4);
        let listed: Vec<Value> = [7, 207, 407]
            .map(|n| json!({ "stored": format!("{n:064x}"), "computed": message(n).hash() }))
            .into();
        let same_order = |list: &Value| {
            let mut list = list.as_array().unwrap().clone();
            list.sort_by_key(Value::to_string);
            list
        };
        assert_eq!(ids["hashes_differ"], 3, "{done}");
        assert_eq!(same_order(&ids["hashes_differ_first"]), same_order(&json!(listed)));
        assert_eq!(kept(&place, &[]), (0..600).map(|n| message(n).hash()).collect());
    }
}

#[test]
fn messages_come_over_from_each_schema_of_sqlite_beside_the_node() {
    for version in 7..=10 {
        let place = Place::new(&format!("adopt-nwaku-file-{version}"));
        // The connection stays open, so the messages are in the WAL.
        let (database, path) = nwaku_file(&place, version);
        let message = |n| StoredMessage::new(n, version >= 9);
        for n in 0..300 {
            let hash = if n == 7 { format!("{n:064x}") } else { message(n).hash() };
            insert_into_file(&database, version, &message(n), &hash);
        }
        let done = adopt(&place, &path, &["--verify", "--batch", "70"]);
        let ids = &done["ids"];
        assert_eq!((&done["stored"], &ids["clean"]), (&json!(300), &json!(true)), "{done}");
        let listed = json!([{ "stored": format!("{:064x}", 7), "computed": message(7).hash() }]);
        let expected = if version == 7 { (json!(0), json!([])) } else { (json!(1), listed) };
        assert_eq!(
            (&ids["hashes_differ"], &ids["hashes_differ_first"]),
            (&expected.0, &expected.1)
        );
        assert_eq!(kept(&place, &[]), (0..300).map(|n| message(n).hash()).collect());

        // A copy of the file and its WAL, in another directory, is read as well.
        let other = Place::new(&format!("adopt-nwaku-copy-{version}"));
        for end in ["", "-wal"] {
            fs::copy(format!("{path}{end}"), other.path(&format!("store.sqlite3{end}"))).unwrap();
        }
        let done = adopt(&other, &format!("sqlite://{}", other.path("store.sqlite3")), &[]);
        assert_eq!((&done["stored"], &done["ids"]["clean"]), (&json!(300), &json!(true)), "{done}");
        assert_eq!(kept(&other, &[]), kept(&place, &[]));
    }
}

#[test]
fn a_file_without_an_index_of_times_is_read_in_the_order_of_hashes() {
    let place = Place::new("adopt-nwaku-no-index");
    let (database, path) = nwaku_file(&place, 10);
    database.execute_batch("DROP INDEX i_ts").unwrap();
    for n in 0..200 {
        let message = StoredMessage::new(n, true);
        insert_into_file(&database, 10, &message, &message.hash());
    }
    let done = adopt(&place, &path, &["--verify", "--batch", "30"]);
    assert_eq!((&done["stored"], &done["ids"]["clean"]), (&json!(200), &json!(true)), "{done}");
    assert_eq!(kept(&place, &[]), hashes(0..200));
}

#[test]
fn rows_that_nwaku_has_migrated_are_stored_under_their_own_hashes() {
    // nwaku's schema version 8 of SQLite fills in random hashes.
    let place = Place::new("adopt-nwaku-migrated");
    let (database, path) = nwaku_file(&place, 7);
    let message = |n| StoredMessage::new(n, false);
    for n in 0..50 {
        insert_into_file(&database, 7, &message(n), &message(n).hash());
    }
    database.execute_batch(FILE_MIGRATIONS[1]).unwrap();
    let done = adopt(&place, &path, &["--verify"]);
    assert_eq!((&done["stored"], &done["ids"]["hashes_differ"]), (&json!(50), &json!(50)));
    assert_eq!(done["ids"]["hashes_differ_first"].as_array().unwrap().len(), 10, "{done}");
    assert_eq!(kept(&place, &[]), (0..50).map(|n| message(n).hash()).collect());

    // nwaku's schema version 6 of PostgreSQL drops the time that was hashed.
    let place = Place::new("adopt-nwaku-migrated-database");
    let database = nwaku_database("adoptnwakumigrated", 5, 1);
    insert(&database, 5, 0..50, right);
    for sql in &MIGRATIONS[5..7] {
        database.sql(sql);
    }
    let done = adopt(&place, &database.url, &["--verify"]);
    assert_eq!((&done["stored"], &done["ids"]["hashes_differ"]), (&json!(50), &json!(50)));
    let moved = |n| {
        let message = StoredMessage::new(n, true);
        StoredMessage { timestamp: message.timestamp + 5_000_000, ..message }.hash()
    };
    assert_eq!(kept(&place, &[]), (0..50).map(moved).collect());
    let told = place.hark(&["adopt", "nwaku", &database.url]);
    assert!(told.code == 0 && told.stdout.contains("other hashes"), "{}", told.stdout);
}

#[test]
fn messages_that_the_archive_refuses_are_counted_by_reason() {
    let place = Place::new("adopt-nwaku-refused");
    let database = nwaku_database("adoptnwakurefused", 7, 1);
    insert(&database, 7, 0..20, right);
    let row = |hash: &str, content: &str, payload: &str, timestamp: &str| {
        database.sql(&format!(
            "INSERT INTO messages (id, messageHash, pubsubTopic, contentTopic, payload, version, \
             timestamp) VALUES ('0', '{hash}', '/waku/2/rs/16/32', '{content}', {payload}, 0, \
             {timestamp})"
        ));
    };
    database.sql("CREATE TABLE messages_old PARTITION OF messages FOR VALUES FROM (-9) TO (9)");
    let time = "1700002800000000001";
    row("a1", "/a/1/b/c", "''", time);
    row("a2", "/a/1/b/c", "NULL", time);
    row("a3", "", "'01'", time);
    row("a4", "/a/1/b/c", "'0g'", time);
    row("a5", "/a/1/b/c", "repeat('01', 153601)", time);
    row("a6", "/a/1/b/c", "'01'", "0");
    row("a7", "/a/1/b/c", "'01'", "-1");
    let done = adopt(&place, &database.url, &["--verify"]);
    let ids = &done["ids"];
    assert_eq!((&done["stored"], &ids["clean"]), (&json!(20), &json!(true)), "{done}");
    let expected = json!({
        "no_payload": 2, "bad_topic": 1, "bad_time": 2, "too_large": 1, "malformed": 1,
        "duplicate": 0,
    });
    assert_eq!(ids["reasons"], expected);
    // This topic is of another cluster than the node's.
    assert_eq!(
        (&ids["unserved"], &ids["unserved_topics"]["/waku/2/rs/16/32"]),
        (&json!(7), &json!(7))
    );
    let told = place.hark(&["adopt", "nwaku", &database.url]);
    assert!(told.stdout.contains("NOT SERVED"), "{}", told.stdout);
}

#[test]
fn other_schemas_and_other_databases_are_refused_by_name() {
    let place = Place::new("adopt-nwaku-others");
    let database = nwaku_database("adoptnwakuothers", 8, 0);
    let refused = |from: &str, words: &str| {
        let run = place.hark(&["adopt", "nwaku", from]);
        assert!(run.code == 1 && run.stderr.contains(words), "{words}: {}", run.stderr);
    };
    database.sql("UPDATE version SET version = 9");
    refused(&database.url, "schema version 9 of nwaku, and 1 to 8 are read");
    database.sql("UPDATE version SET version = 5");
    refused(&database.url, "`messages` has no storedat");
    database.sql("DROP TABLE version");
    refused(&database.url, "it has no table `version`");
    refused("http://127.0.0.1/", "is no database; name a file");
    refused(&place.path("none"), "cannot be read; nothing was done");
    let (file, path) = nwaku_file(&place, 10);
    file.execute_batch("PRAGMA user_version = 11").unwrap();
    refused(&path, "schema version 11 of nwaku, and 7 to 10 are read");
    file.execute_batch("PRAGMA user_version = 6").unwrap();
    refused(&path, "Start a newer nwaku on it once");
    file.execute_batch("DROP TABLE message").unwrap();
    refused(&path, "it has no table `message`");
    assert!(!place.data().exists());
}

/// The number of messages in the saved position.
fn remembered(place: &Place) -> u64 {
    let text = fs::read(place.data().join("adopt-nwaku.json")).unwrap_or_default();
    let json: Value = serde_json::from_slice(&text).unwrap_or_default();
    json["messages"].as_u64().unwrap_or(0)
}

/// Starts an adoption, and kills the process once its saved position has passed this number of
/// messages.
fn killed(place: &Place, from: &str, flags: &[&str], messages: u64) -> u64 {
    let flags = [&["adopt", "nwaku", from, "--rate", "1500", "--batch", "50"], flags].concat();
    let mut child = place.start(&flags);
    child.until("enough are remembered", || remembered(place) >= messages);
    child.kill().unwrap();
    child.wait().unwrap();
    remembered(place)
}

/// The stored hashes of the source.
fn hashes_of(database: &Database<'_>) -> BTreeSet<String> {
    database.sql("SELECT messagehash FROM messages").lines().map(str::to_owned).collect()
}

#[test]
fn killed_beside_inserts_and_deletes_it_goes_on_and_all_hashes_are_equal() {
    let target = Cluster::shared().database("adoptnwakutarget");
    for (name, store) in [("files", &[][..]), ("database", &["--store", &target.url])] {
        let place = Place::new(&format!("adopt-nwaku-killed-{name}"));
        let database = nwaku_database(&format!("adoptnwakukilled{name}"), 7, 13);
        insert(&database, 7, (0..3000).filter(|n| n % 10 != 0), right);
        killed(&place, &database.url, store, 500);
        // Messages that sync brought late, and partitions that retention dropped: one that was
        // copied, and one that was not.
        insert(&database, 7, (0..3000).filter(|n| n % 20 == 0), right);
        database.sql(&format!("ALTER TABLE messages DETACH PARTITION {}", partition(0)));
        database.sql(&format!("DROP TABLE {}", partition(11)));
        let seen = killed(&place, &database.url, store, 1200);
        insert(&database, 7, (240..2640).filter(|n| n % 20 == 10), right);
        let flags = [store, &["--verify"]].concat();
        let done = adopt(&place, &database.url, &flags);
        assert_eq!(
            (&done["ids"]["clean"], &done["ids"]["hashes_differ"]),
            (&json!(true), &json!(0))
        );
        let (kept, there) = (kept(&place, store), hashes_of(&database));
        assert!(there.is_subset(&kept), "{} of {}", kept.len(), there.len());
        assert!(kept.is_subset(&hashes(0..3000)));
        assert!(done["stored"].as_u64().unwrap() + seen <= kept.len() as u64 + 50, "{done}");
        // A second run finds nothing to do, and names the partition that is detached.
        let again = place.hark(&[&["adopt", "nwaku", &database.url][..], &flags].concat());
        assert!(again.code == 0 && again.stderr.contains(&partition(0)), "{}", again.stderr);
        let check = [&["check", "--network", "waku", "--json"], store].concat();
        assert_eq!(place.hark(&check).json()["faults"], json!([]));
    }
}

#[test]
fn a_file_is_adopted_whole_by_a_run_that_was_killed_and_another() {
    let place = Place::new("adopt-nwaku-file-killed");
    let (mut database, path) = nwaku_file(&place, 10);
    let put = |database: &mut rusqlite::Connection, numbers: &mut dyn Iterator<Item = u32>| {
        let transaction = database.transaction().unwrap();
        for n in numbers {
            let message = StoredMessage::new(n, true);
            insert_into_file(&transaction, 10, &message, &message.hash());
        }
        transaction.commit().unwrap();
    };
    put(&mut database, &mut (0..3000).filter(|n| n % 10 != 0));
    killed(&place, &path, &[], 500);
    put(&mut database, &mut (0..3000).filter(|n| n % 10 == 0));
    database.execute("DELETE FROM message WHERE timestamp >= ?1", [late_time(2900)]).unwrap();
    killed(&place, &path, &[], 1200);
    let done = adopt(&place, &path, &["--verify"]);
    assert_eq!(
        (&done["ids"]["clean"], &done["ids"]["compared"]),
        (&json!(true), &done["ids"]["here"])
    );
    assert_eq!(kept(&place, &[]), hashes(0..2900));
}

fn late_time(n: u32) -> i64 {
    StoredMessage::new(n, true).timestamp
}

#[test]
fn new_messages_are_followed_and_late_ones_are_found() {
    let place = Place::new("adopt-nwaku-follow");
    let database = nwaku_database("adoptnwakufollow", 7, 8);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64;
    database.sql(&format!(
        "CREATE TABLE messages_now PARTITION OF messages FOR VALUES FROM ({}) TO ({})",
        since - 7 * HOUR_NS,
        since + HOUR_NS
    ));
    insert(&database, 7, 0..500, right);
    let config = place.file("hark.toml", b"[waku]\nserve = true\nlisten = []\nrest = \"\"\n");
    let server = place.serve_with(&["--config", &config]);
    let count = || {
        let run = place.hark(&["count", "{}", "--network", "waku", "--config", &config]);
        run.text().trim().parse::<u64>().unwrap()
    };
    let flags = ["adopt", "nwaku", &database.url, "--follow", "--json", "--config", &config];
    let child = place.start(&flags);
    until("all are copied", || count() == 500);
    let new = |age: i64, text: &str| {
        let message = StoredMessage {
            timestamp: since - age,
            payload: text.as_bytes().to_vec(),
            ..StoredMessage::new(0, true)
        };
        let (hash, payload) = (message.hash(), hark_testkit::digits::digits(&message.payload));
        let meta = hark_testkit::digits::digits(&message.meta);
        database.sql(&format!(
            "INSERT INTO messages (id, messageHash, pubsubTopic, contentTopic, payload, version, \
             timestamp, meta) VALUES ('0', '{hash}', '{}', '{}', '{payload}', 0, {}, '{meta}')",
            message.pubsub_topic, message.content_topic, message.timestamp
        ));
        hash
    };
    let mut expected = hashes(0..500);
    expected.insert(new(0, "now"));
    until("the new message is copied", || count() == 501);
    expected.insert(new(60_000_000_000, "a minute old"));
    until("a message that came a little late is copied", || count() == 502);
    // The comparison at the end finds the following messages, and reports the dropped partition.
    expected.insert(new(5 * HOUR_NS, "hours old"));
    insert(&database, 7, 500..510, right);
    expected.extend(hashes(500..510));
    database.sql(&format!("DROP TABLE {}", partition(0)));
    child.signal("INT");
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&done["ids"]["clean"], &done["stored"]), (&json!(true), &json!(513)), "{done}");
    assert_eq!(done["ids"]["partitions_gone"], json!([partition(0)]));
    assert!(stderr.contains("older than retention allows"), "{stderr}");
    assert_eq!(server.terminate().0, 0);
    assert_eq!(kept(&place, &["--config", &config]), expected);
}

#[test]
fn a_capacity_below_the_source_is_reported_before_the_copy() {
    let place = Place::new("adopt-nwaku-capacity");
    let (database, path) = nwaku_file(&place, 10);
    for n in 0..30 {
        let message = StoredMessage::new(n, true);
        insert_into_file(&database, 10, &message, &message.hash());
    }
    let config = place.file("hark.toml", b"[waku]\nretention = \"capacity:20;size:1GB\"\n");
    let run = place.hark(&["adopt", "nwaku", &path, "--config", &config]);
    for words in ["keeps 20 (capacity)", "a bound in bytes"] {
        assert!(run.code == 0 && run.stderr.contains(words), "{words}: {}", run.stderr);
    }
}
