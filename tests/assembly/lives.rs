//! The lives: the history of an archive before the requests, and the events during the requests.

use std::fmt::Write as _;
use std::path::Path;

use hark_codec::whisper::HistoryCursor;
use hark_testkit::digits::digits;
use hark_testkit::http::get;
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::wait::{PATIENCE, until};
use hark_testkit::websocket::Socket;

use crate::fixture;
use crate::stores::StoreKind;
use crate::world::{Node, World, number, program};

/// A life of an archive, for the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Created by this version, and served.
    Fresh,
    /// Imported from other servers' databases.
    Adopted,
    /// Created in an earlier version's format.
    Upgraded,
    /// A dependency of the archive was killed while the archive was served.
    FailedOver,
    /// Another process has replaced the server process.
    TakenOver,
    /// The servers of the archive end during the requests.
    ShutDown,
}

use Life::{Adopted, FailedOver, Fresh, ShutDown, TakenOver, Upgraded};

/// All lives.
pub(crate) const LIVES: [Life; 6] = [Fresh, Adopted, Upgraded, FailedOver, TakenOver, ShutDown];

impl Life {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fresh => "fresh",
            Adopted => "adopted",
            Upgraded => "upgraded",
            FailedOver => "failed over",
            TakenOver => "taken over",
            ShutDown => "at shutdown",
        }
    }

    /// The reason why archives in this store cannot have this life, if any.
    pub(crate) fn missing(self, store: StoreKind) -> Option<&'static str> {
        match (self, store) {
            (FailedOver, StoreKind::Citus) => Some("tests/cluster/lost.rs loses its nodes"),
            _ => None,
        }
    }

    /// Makes and serves an archive with this life.
    pub(crate) fn world(self, store: StoreKind) -> World {
        let mut world = World::empty(store, self == FailedOver);
        match self {
            Adopted => adopt(&world),
            _ => world.fill(),
        }
        if self == Upgraded {
            make_old(&world);
        }
        world.serve();
        match self {
            FailedOver => fail_over(&mut world),
            TakenOver => take_over(&mut world),
            _ => {}
        }
        world
    }
}

/// Fills a database with the fixture's events by `hark bench nostream`.
pub(crate) fn fill_nostream(root: &Path, database: &Database<'_>) {
    let file = root.join(format!("events{}.jsonl", number()));
    let lines = fixture::events().join("\n") + "\n";
    std::fs::write(&file, lines).expect("is written");
    let file = file.to_string_lossy();
    program().args(["bench", "nostream", &file, &database.url, "--replace"]).run_with(b"").text();
}

/// Fills a table in the format of status-go with the fixture's envelopes.
pub(crate) fn fill_envelopes_table(database: &Database<'_>) {
    let mut sql = String::from(
        "CREATE TABLE envelopes (id BYTEA NOT NULL UNIQUE, data BYTEA NOT NULL, topic BYTEA NOT NULL, \
         bloom BIT(512) NOT NULL);",
    );
    fixture::each_envelope(|of| {
        let place = HistoryCursor { sent: of.sent(), hash: of.hash() };
        let (key, topic) = (digits(&place.bytes()), digits(&of.topic));
        let mut rlp = Vec::new();
        of.write(&mut rlp);
        let rlp = digits(&rlp);
        let _ = write!(
            sql,
            "INSERT INTO envelopes VALUES ('\\x{key}', '\\x{rlp}', '\\x{topic}', 0::bit(512));"
        );
    });
    database.sql(&sql);
}

fn adopt(world: &World) {
    let nostream = Cluster::shared().database("adoptednostr");
    fill_nostream(&world.root, &nostream);
    world.hark(&["adopt", "nostream", &nostream.url]).text();
    let mail = Cluster::shared().database("adoptedmail");
    fill_envelopes_table(&mail);
    world.hark(&["adopt", "mailserver", &mail.url]).text();
    world.import("waku", &fixture::messages());
}

/// Converts an archive back to an earlier format.
fn make_old(world: &World) {
    let Some(backing) = &world.backing else { return old_segments(world) };
    // Reverts to the first migration. Later migrations only add to the schema.
    let reverts = if world.store == StoreKind::Citus {
        "DROP TABLE published"
    } else {
        "DROP TRIGGER refuse_earlier_versions ON state;
         DROP FUNCTION refuse_earlier_versions();
         DROP TABLE word, worded, label_value, listed_label, line, retired;
         ALTER TABLE state DROP COLUMN texts, DROP COLUMN words_seq, DROP COLUMN line"
    };
    for shelf in ["nostr", "waku", "whisper"] {
        backing.primary().sql(
            &backing.name,
            &format!(
                "SET search_path = hark_{shelf}; {reverts}; DELETE FROM migration WHERE number > 1"
            ),
        );
    }
}

/// Makes segments, and rewrites each segment in the format of the last version without search,
/// which lacks the last two sections.
fn old_segments(world: &World) {
    world.hark(&["compact"]).text();
    for shelf in ["nostr", "waku", "whisper"] {
        world.hark(&["compact", "--network", shelf]).text();
        let files = std::fs::read_dir(world.data(0).join(shelf).join("seg")).expect("is there");
        let paths = files.map(|entry| entry.expect("is there").path());
        let segments = paths.filter(|path| path.extension().is_some_and(|of| of == "seg"));
        for path in segments.collect::<Vec<_>>() {
            let bytes = std::fs::read(&path).expect("is read");
            assert_eq!(
                &bytes[..8],
                b"HARKseg4",
                "another format: say here how the one before it is"
            );
            let magic = b"HARKseg3";
            let trailer = bytes.len() - (15 * 20 + 32);
            let end = trailer + 13 * 20;
            let table =
                [&bytes[trailer..end], &bytes[trailer + 15 * 20..bytes.len() - 12]].concat();
            let end = u64::from_le_bytes(bytes[end..end + 8].try_into().expect("8 bytes")) as usize;
            let sum = crc32c::crc32c(&table).to_le_bytes();
            let old = [&magic[..], &bytes[8..end], &table, &sum, magic].concat();
            std::fs::write(path, old).expect("is written");
        }
    }
}

/// Kills a dependency of the archive. Returns once the servers are healthy again.
fn fail_over(world: &mut World) {
    match &world.backing {
        // An archive in files depends on the server process alone.
        None => {
            let mut node = world.nodes.pop().expect("is served");
            node.server.kill();
            node.forget();
            world.start(0, &[]);
        }
        Some(backing) => {
            let primary = backing.primary();
            if let Some(replica) = backing.replica() {
                let there = "SELECT count(*) FROM hark_nostr.record";
                let all = primary.sql(&backing.name, there);
                until("the replica has all", || replica.sql(&backing.name, there) == all);
                primary.kill();
                replica.promote();
            } else {
                primary.kill();
                primary.start();
            }
        }
    }
    for node in &world.nodes {
        // A server notices the failure only at a write or a query.
        until("the server is well again", || {
            let mut socket = Socket::connect(&node.relay);
            socket.send_text(r#"["COUNT","well",{"kinds":[1]}]"#);
            socket.json()[0] == "COUNT" && get(&node.relay, "/healthz").status == 200
        });
    }
}

/// Replaces the first server with another server.
fn take_over(world: &mut World) {
    if world.store.is_database() {
        // Several servers may work on this archive, so a second server starts, and then the first
        // server ends.
        let done = world.hark(&["serve", "--takeover", "--listen", "127.0.0.1:0"]);
        assert!(done.refused().contains("several servers can work on one database"));
        world.first = world.nodes.len();
        for at in 0..world.nodes.len() {
            let new = Node::start(world.command_at(at, &[]), &[]);
            end(std::mem::replace(&mut world.nodes[at], new));
        }
    } else {
        // The new process can use the peers' keys once the old process has closed its doors for
        // peers.
        world.start(0, &["--takeover"]);
        end(world.nodes.remove(0));
        let node = &mut world.nodes[0];
        // The new process reports 0 for ports that the settings do not fix, and has other ports
        // than the old process.
        let open = || {
            let info = get(&node.waku, "/info").json();
            let list = info["listenAddresses"].as_array().cloned().unwrap_or_default();
            list.iter().filter_map(|at| at.as_str().map(str::to_owned)).collect::<Vec<_>>()
        };
        until("peers can connect", || {
            open().len() == 2 && !get(&node.waku, "/info").text().contains("/tcp/0/")
        });
        let mut peers = open();
        peers.sort_by_key(|at| at.contains("/ws"));
        node.peers = peers;
    }
}

/// Ends a server that another server has replaced.
fn end(mut node: Node) {
    if node.server.try_wait().expect("is ours").is_none() {
        node.server.signal("TERM");
    }
    let status = node.server.wait_for_end(PATIENCE).expect("it ends");
    let log = node.server.log();
    node.forget();
    assert!(status.success(), "it ends with {status}");
    hark_testkit::program::assert_no_panic(&log);
}
