//! The commands that adopt the archives of other programs. Each fills an archive of its own.

use hark_testkit::postgres::Cluster;
use serde_json::Value;

use crate::doors::Answer::{self, Same};
use crate::fixture;
use crate::lives::{fill_envelopes_table, fill_nostream};
use crate::world::{World, number};

pub(crate) fn nostream(world: &World) -> Answer {
    let (database, aside) = (Cluster::shared().database("assemblynostream"), world.aside());
    fill_nostream(&world.root, &database);
    let run = |args: &[&str]| aside(args).run_with(b"");
    let done = run(&["adopt", "nostream", &database.url, "--verify", "--json"]).json();
    assert_eq!(done["ids"]["clean"], true, "{done}");
    Same(run(&["export"]).text())
}

pub(crate) fn strfry(world: &World) -> Answer {
    let aside = world.aside();
    let packed = include_bytes!("../moving/strfry/data.mdb.zst");
    let dir = world.root.join(format!("strfry{}", number()));
    std::fs::create_dir_all(&dir).expect("is made");
    let bytes = zstd::decode_all(&packed[..]).expect("is whole");
    std::fs::write(dir.join("data.mdb"), bytes).expect("is written");
    let dir = dir.to_string_lossy();
    let done = aside(&["adopt", "strfry", &dir, "--json"]).run_with(b"");
    // Some of the source's events are meant to be refused.
    assert!([0, 1].contains(&done.code), "{done:?}");
    let export = aside(&["export"]).run_with(b"").text();
    assert!(!export.is_empty());
    Same(export)
}

pub(crate) fn nostr_rs_relay(world: &World) -> Answer {
    let aside = world.aside();
    let file = world.root.join(format!("relay{}.db", number()));
    let database = rusqlite::Connection::open(&file).expect("opens");
    let table = "PRAGMA user_version = 18; CREATE TABLE event (id INTEGER PRIMARY KEY, event_hash BLOB \
                 NOT NULL, first_seen INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER, \
                 author BLOB NOT NULL, delegated_by BLOB, kind INTEGER NOT NULL, hidden INTEGER, content \
                 TEXT NOT NULL);";
    database.execute_batch(table).expect("is made");
    for line in fixture::events() {
        let event: Value = serde_json::from_str(&line).expect("JSON");
        let bytes = |name: &str| {
            let mut out = Vec::new();
            hark_codec::hex::decode_into(event[name].as_str().expect("text").as_bytes(), &mut out);
            out
        };
        let insert = "INSERT INTO event (event_hash, first_seen, created_at, author, kind, hidden, content) \
                      VALUES (?1, ?2, ?2, ?3, ?4, 0, ?5)";
        let (at, kind) = (event["created_at"].as_i64(), event["kind"].as_i64());
        let values = rusqlite::params![bytes("id"), at, bytes("pubkey"), kind, line];
        database.execute(insert, values).expect("is put");
    }
    drop(database);
    aside(&["adopt", "nostr-rs-relay", &file.to_string_lossy(), "--json"]).run_with(b"").json();
    Same(aside(&["export"]).run_with(b"").text())
}

pub(crate) fn mailserver(world: &World) -> Answer {
    let (database, aside) = (Cluster::shared().database("assemblymail"), world.aside());
    fill_envelopes_table(&database);
    let done = aside(&["adopt", "mailserver", &database.url, "--verify", "--json"]).run_with(b"");
    let done = done.json();
    assert_eq!(done["stored"], 30, "{done}");
    Same(aside(&["export", "--network", "whisper"]).run_with(b"").text())
}

pub(crate) fn nwaku(world: &World) -> Answer {
    let aside = world.aside();
    let file = world.root.join(format!("store{}.sqlite3", number()));
    let database = rusqlite::Connection::open(&file).expect("opens");
    let table = "PRAGMA user_version = 10; CREATE TABLE Message (messageHash BLOB NOT NULL PRIMARY KEY, \
                 pubsubTopic BLOB NOT NULL, contentTopic BLOB NOT NULL, payload BLOB, version INTEGER NOT \
                 NULL, timestamp INTEGER NOT NULL, meta BLOB) WITHOUT ROWID; \
                 CREATE INDEX i_ts ON Message (timestamp);";
    database.execute_batch(table).expect("is made");
    for n in 0..30_i64 {
        let at = 1_700_000_000_000_000_000 + n;
        let insert = "INSERT INTO Message VALUES (?1, ?2, ?3, ?4, 0, ?5, NULL)";
        let (pubsub, content) = (&b"/waku/2/rs/1/0"[..], &b"/a/1/b/c"[..]);
        let values = rusqlite::params![[n as u8; 32], pubsub, content, n.to_be_bytes(), at];
        database.execute(insert, values).expect("is put");
    }
    drop(database);
    let args = ["adopt", "nwaku", &file.to_string_lossy(), "--verify", "--json"];
    let done = aside(&args).run_with(b"").json();
    assert_eq!(
        (&done["stored"], &done["ids"]["hashes_differ"]),
        (&30.into(), &30.into()),
        "{done}"
    );
    Same(aside(&["export", "--network", "waku"]).run_with(b"").text())
}
