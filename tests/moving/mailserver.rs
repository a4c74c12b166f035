//! `hark adopt mailserver`, from a directory that goleveldb has written (described in
//! goleveldb/README.md), and from a table in the format of status-go.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use hark_codec::whisper::{Envelope, HistoryCursor};
use hark_testkit::digits::digits;
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::wait::until;
use serde_json::{Value, json};

use crate::cli::support::Place;

/// The statements of status-go's migration that create the table.
const TABLE: &str = "CREATE TABLE envelopes (id BYTEA NOT NULL UNIQUE, data BYTEA NOT NULL, \
                     topic BYTEA NOT NULL, bloom BIT(512) NOT NULL);
                     CREATE INDEX id_bloom_idx ON envelopes (id DESC, bloom);
                     CREATE INDEX id_topic_idx ON envelopes (id DESC, topic);";

fn fixture() -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/moving/goleveldb");
    dir.to_string_lossy().into_owned()
}

/// Makes envelope `n` and calls `with`.
fn envelope<T>(n: u32, with: impl Fn(&Envelope<'_>) -> T) -> T {
    let data = vec![n as u8; 40 + n as usize % 200];
    let topic = [n as u8, (n % 7) as u8, 3, 4];
    let expiry = 1_554_076_850 + n * 10;
    with(&Envelope { expiry, ttl: 50, topic, data: &data, nonce: n.into() })
}

/// The hash of envelope `n`, in hex digits.
fn hash(n: u32) -> String {
    envelope(n, |envelope| digits(&envelope.hash()))
}

/// Envelope `n` in hex digits.
fn rlp(n: u32) -> String {
    envelope(n, |envelope| {
        let mut rlp = Vec::new();
        envelope.write(&mut rlp);
        digits(&rlp)
    })
}

/// An INSERT with rows of these envelopes. Every other key has no topic.
fn insert(envelopes: impl Iterator<Item = u32>) -> String {
    let mut sql = String::from("INSERT INTO envelopes VALUES ");
    for n in envelopes {
        let (key, topic) = envelope(n, |envelope| {
            let place = HistoryCursor { sent: envelope.sent(), hash: envelope.hash() };
            (digits(&place.bytes()), digits(&envelope.topic))
        });
        let longer = if n % 2 == 0 { &topic[..] } else { "" };
        let row = format!("'\\x{key}{longer}', '\\x{}', '\\x{topic}', 0::bit(512)", rlp(n));
        let comma = if sql.ends_with(')') { "," } else { "" };
        write!(sql, "{comma}({row})").unwrap();
    }
    sql
}

fn table(test: &str, count: u32) -> Database<'static> {
    let database = Cluster::shared().database(test);
    database.sql(TABLE);
    // Each INSERT has as many envelopes as fit into an argument of psql.
    for first in (0..count).step_by(130) {
        database.sql(&insert(first..count.min(first + 130)));
    }
    database
}

fn adopt(place: &Place, from: &str, flags: &[&str]) -> Value {
    let run = place.hark(&[&["adopt", "mailserver", from, "--json"], flags].concat());
    serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.stderr))
}

/// Returns the numbers of an archive's envelopes. Panics if an envelope has unexpected content.
fn kept(place: &Place, flags: &[&str]) -> Vec<u32> {
    let lines = place.hark(&[&["export", "--network", "whisper"], flags].concat()).text();
    let number = |line: &str| {
        let kept: Value = serde_json::from_str(line).unwrap();
        let n = kept["nonce"].as_u64().unwrap() as u32;
        assert_eq!(kept["hash"], format!("0x{}", hash(n)), "{line}");
        n
    };
    let mut kept: Vec<u32> = lines.lines().map(number).collect();
    kept.sort_unstable();
    kept
}

/// The envelopes of the directory.
fn of_directory() -> Vec<u32> {
    (0..100).filter(|n| ![0, 1, 2, 3, 7, 37, 50, 51, 65].contains(n)).collect()
}

#[test]
fn all_of_a_leveldb_comes_over_as_it_was() {
    let place = Place::new("adopt-leveldb");
    let done = adopt(&place, &fixture(), &["--verify"]);
    assert_eq!((&done["stored"], &done["complete"]), (&json!(91), &json!(true)), "{done}");
    let reasons =
        json!({ "malformed": 1, "bad_id": 1, "too_large": 0, "duplicate": 0, "foreign": 2 });
    let expected = json!({
        "source": 96, "here": 92, "late": 0, "refused": 4, "reasons": reasons, "faulty": 0,
        "compared": 92, "different": 0, "different_ids": [], "damaged": 0, "first_damage": "",
        "clean": true,
    });
    assert_eq!(done["ids"], expected);
    // The directory has one envelope under keys of both forms.
    assert_eq!(done["refused"]["duplicate"], 1, "{done}");
    assert_eq!(kept(&place, &[]), of_directory());
    // A second run has nothing to do, and reports the reasons of refusals.
    let again = place.hark(&["adopt", "mailserver", &fixture()]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert!(
        again.stderr.contains("continuing an earlier run, after 96 envelopes"),
        "{}",
        again.stderr
    );
    for words in
        ["not an envelope; first", "is not the envelope's hash; first", "no mail server makes"]
    {
        assert!(again.stdout.contains(words), "{words}: {}", again.stdout);
    }
    let source = place.hark(&["adopt", "mailserver", &fixture(), "--json"]).json();
    assert_eq!((&source["stored"], &source["ids"]["compared"]), (&json!(0), &Value::Null));
}

#[test]
fn a_table_comes_into_files_and_a_database_and_what_came_late_as_well() {
    let place = Place::new("adopt-envelopes");
    let (database, target) =
        (table("adoptenvelopes", 3000), Cluster::shared().database("envelopes"));
    database.sql(
        "CREATE TABLE late AS SELECT * FROM envelopes ORDER BY id LIMIT 40;
         DELETE FROM envelopes WHERE id IN (SELECT id FROM late)",
    );
    let done = adopt(&place, &database.url, &["--batch", "300"]);
    assert_eq!((&done["stored"], &done["ids"]["clean"]), (&json!(2960), &json!(true)), "{done}");
    database.sql("INSERT INTO envelopes SELECT * FROM late");
    database.sql("INSERT INTO envelopes VALUES ('\\x01', '\\xc0', '\\x', 0::bit(512))");
    let done = adopt(&place, &database.url, &["--verify"]);
    assert_eq!((&done["stored"], &done["ids"]["late"]), (&json!(40), &json!(40)), "{done}");
    assert_eq!((&done["ids"]["compared"], &done["ids"]["clean"]), (&json!(2960), &json!(true)));
    assert_eq!(done["ids"]["reasons"]["foreign"], 1, "{done}");
    assert_eq!(kept(&place, &[]), (0..3000).collect::<Vec<_>>());

    let other = Place::new("adopt-envelopes-to");
    let store = ["--store", &target.url];
    let done = adopt(&other, &database.url, &[&["--verify"][..], &store].concat());
    assert_eq!((&done["stored"], &done["ids"]["compared"]), (&json!(3000), &json!(3000)), "{done}");
    assert_eq!(kept(&other, &store), (0..3000).collect::<Vec<_>>());
}

#[test]
fn envelopes_that_differ_and_damaged_files_are_told_and_end_with_1() {
    let place = Place::new("adopt-differs");
    let database = table("adoptdiffers", 30);
    adopt(&place, &database.url, &[]);
    database
        .sql(&format!("UPDATE envelopes SET data = '\\x{}' WHERE topic = '\\x05050304'", rlp(6)));
    let run = place.hark(&["adopt", "mailserver", &database.url, "--verify"]);
    assert!(run.code == 1 && run.stdout.contains("1 DIFFER"), "{}", run.stdout);
    assert!(run.stdout.contains(&hash(5)), "{}", run.stdout);

    let dir = PathBuf::from(place.path("leveldb"));
    fs::create_dir(&dir).unwrap();
    for file in fs::read_dir(fixture()).unwrap() {
        let path = file.unwrap().path();
        fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
    }
    let table = dir.join("000005.ldb");
    let mut bytes = fs::read(&table).unwrap();
    bytes[100] ^= 1;
    fs::write(&table, bytes).unwrap();
    let place = Place::new("adopt-damaged");
    let run = place.hark(&["adopt", "mailserver", &dir.to_string_lossy()]);
    assert!(run.code == 1 && run.stdout.contains("DAMAGED"), "{}", run.stdout);
    assert!(run.stdout.contains("000005.ldb: a block is damaged"), "{}", run.stdout);
    let (kept, all) = (kept(&place, &[]), of_directory());
    assert!(kept.len() > 80 && kept.iter().all(|n| all.contains(n)), "{kept:?}");
}

/// Copies the directory without one of its files.
fn copy_without(place: &Place, name: &str) -> PathBuf {
    let dir = PathBuf::from(place.path("leveldb"));
    fs::create_dir(&dir).unwrap();
    for file in fs::read_dir(fixture()).unwrap() {
        let path = file.unwrap().path();
        if !path.file_name().unwrap().to_string_lossy().starts_with(name) {
            fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
        }
    }
    dir
}

#[test]
fn a_table_that_is_missing_costs_its_envelopes_and_no_others() {
    let place = Place::new("adopt-lost-table");
    let dir = copy_without(&place, "000005.ldb");
    for _ in 0..2 {
        let run = place.hark(&["adopt", "mailserver", &dir.to_string_lossy()]);
        assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
        assert!(run.stdout.contains("000005.ldb: it is missing"), "{}", run.stdout);
    }
    let (kept, all) = (kept(&place, &[]), of_directory());
    assert!(kept.len() > 10 && kept.iter().all(|n| all.contains(n)), "{kept:?}");
    println!("{} of {} envelopes are brought over", kept.len(), all.len());
}

#[test]
fn a_manifest_that_is_missing_is_told() {
    let place = Place::new("adopt-lost-manifest");
    let dir = copy_without(&place, "MANIFEST");
    let run = place.hark(&["adopt", "mailserver", &dir.to_string_lossy()]);
    let words = ["CURRENT names", "MANIFEST-", "which is not there", "RecoverFile"];
    assert!(run.code == 1 && words.iter().all(|it| run.stderr.contains(it)), "{}", run.stderr);
    assert!(!place.data().exists());
}

#[test]
fn an_adopted_archive_is_kept_until_a_person_decides() {
    kept_until_decided(&Place::new("adopt-kept"), &[]);
    let database = Cluster::shared().database("adoptkept");
    kept_until_decided(&Place::new("adopt-kept-database"), &["--store", &database.url]);
}

/// Twenty lines of envelopes that are sent now.
fn lines_of_now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let line = |n| {
        let (topic, expiry) = ("0x01020304", since.as_secs() + 40);
        json!({ "expiry": expiry, "ttl": 50, "topic": topic, "data": "0x01", "nonce": n })
    };
    (0..20).map(|n| line(n).to_string() + "\n").collect()
}

/// Adopts into a store, with the default retention of 30 days.
fn kept_until_decided(place: &Place, store: &[&str]) {
    let config = |more: &str| {
        let text = format!(
            "[retention]\nevery_s = 1\n{more}\n\
             [whisper]\nserve = true\nrest = \"\"\nlisten = \"\"\n"
        );
        place.file("hark.toml", text.as_bytes())
    };
    let path = config("");
    let flags = [&["--config", &path, "--network", "whisper"], store].concat();
    let run =
        place.hark(&[&["adopt", "mailserver", &fixture(), "--config", &path], store].concat());
    for words in ["91 of the envelopes are older than retention allows", "retention.delete_brought"]
    {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
    // An import of current envelopes does not count as the operator's decision.
    let file = place.file("now.jsonl", lines_of_now().as_bytes());
    let run = place.hark(&[&["import", &file], &flags[..]].concat());
    assert!(run.code == 0 && !run.stderr.contains("older than"), "{}", run.stderr);
    let server = place.serve_with(&[&["--config", &path], store].concat());
    let count = || {
        let counted = place.hark(&[&["count", "{}"], &flags[..]].concat());
        counted.text().trim().parse::<u64>().unwrap()
    };
    let healthz = || place.hark(&["healthz", "--at", &server.address]);
    until("the report names the setting", || healthz().stdout.contains("retention.delete_brought"));
    assert_eq!((healthz().code, count()), (0, 111));
    config("delete_brought = true");
    assert_eq!(place.hark(&["reload"]).code, 0);
    until("20 are left", || count() == 20);
    let (_, log) = server.terminate();
    assert!(log.contains("records that were brought are older than retention allows"), "{log}");
}

/// The number of envelopes in the saved position.
fn remembered(place: &Place) -> u64 {
    let text = fs::read(place.data().join("adopt-mailserver.json")).unwrap_or_default();
    let json: Value = serde_json::from_slice(&text).unwrap_or_default();
    json["envelopes"].as_u64().unwrap_or(0)
}

/// Starts an adoption, kills the process once its saved position has passed this number of
/// envelopes, and returns the position.
fn killed(place: &Place, from: &str, flags: &[&str], envelopes: u64) -> u64 {
    let mut child = place.start(&[&["adopt", "mailserver", from], flags].concat());
    child.until("enough are remembered", || remembered(place) >= envelopes);
    child.kill().unwrap();
    child.wait().unwrap();
    remembered(place)
}

#[test]
fn killed_it_goes_on_and_nothing_is_lost_or_doubled() {
    let place = Place::new("adopt-envelopes-killed");
    let database = table("adoptenvelopeskilled", 3000);
    let flags = ["--rate", "2000", "--batch", "100"];
    killed(&place, &database.url, &flags, 500);
    let seen = killed(&place, &database.url, &flags, 1200);
    let done = adopt(&place, &database.url, &["--verify"]);
    // The batch in progress may have been stored before the kill.
    let stored = done["stored"].as_u64().unwrap();
    assert!((2900 - seen..=3000 - seen).contains(&stored), "{stored} after {seen}: {done}");
    assert_eq!(done["ids"]["clean"], true);
    assert_eq!(kept(&place, &[]), (0..3000).collect::<Vec<_>>());
    assert_eq!(
        place.hark(&["check", "--network", "whisper", "--json"]).json()["faults"],
        json!([])
    );

    let place = Place::new("adopt-leveldb-killed");
    let seen = killed(&place, &fixture(), &["--rate", "50", "--batch", "5"], 30);
    let done = adopt(&place, &fixture(), &[]);
    assert!(done["stored"].as_u64() <= Some(96 - seen), "{done}");
    assert_eq!((kept(&place, &[]), &done["ids"]["clean"]), (of_directory(), &json!(true)));
}

#[test]
fn a_running_server_takes_them_in() {
    let place = Place::new("adopt-leveldb-served");
    let config =
        place.file("hark.toml", b"[whisper]\nserve = true\nrest = \"\"\nretention_days = 0\n");
    let server = place.serve_with(&["--config", &config]);
    let done = adopt(&place, &fixture(), &["--verify", "--config", &config]);
    assert_eq!((&done["stored"], &done["ids"]["compared"]), (&json!(91), &json!(92)), "{done}");
    assert_eq!(server.terminate().0, 0);
    assert_eq!(kept(&place, &[]), of_directory());
}

#[test]
fn what_is_no_mail_servers_is_refused_and_nothing_is_made() {
    let place = Place::new("adopt-none");
    let empty = Cluster::shared().database("adoptnone");
    let dir = place.path("empty");
    fs::create_dir(&dir).unwrap();
    for (from, words) in [
        (
            &empty.url[..],
            "no database of a mail server: its table `envelopes` has no id, data, topic",
        ),
        (&dir, "no LevelDB directory: there is no file CURRENT"),
        ("/nowhere/at/all", "the directory /nowhere/at/all cannot be read; nothing was done"),
        ("http://127.0.0.1", "is no database; name a directory, or postgres://"),
    ] {
        let run = place.hark(&["adopt", "mailserver", from]);
        assert!(run.code == 1 && run.stderr.contains(words), "{}", run.stderr);
        assert!(!place.data().exists(), "{from}");
    }
}
