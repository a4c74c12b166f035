//! A server that starts without the shelf of the bans, and long lists.

use hark_testkit::clock::now_s;
use hark_testkit::http::get;
use hark_testkit::nostr::pubkey;
use hark_testkit::postgres::Cluster;
use hark_testkit::wait::until;
use tokio::runtime::Runtime;

use super::{MEMBER, Node, of_keys, publish, until_refused};
use crate::cli::support::Place;

/// A server whose database role may not make the tables of the bans serves without bans and reports
/// the lack. Once another role has made the tables, the server enforces the bans.
#[test]
fn a_server_without_the_shelf_of_the_bans_gets_it_without_a_restart() {
    let (runtime, cluster) = (Runtime::new().unwrap(), Cluster::with(&["fsync=off"]));
    let database = cluster.database("late");
    let on_database = |act: &str| {
        let text = format!("EXECUTE format('{act}', current_database())");
        database.sql(&format!("DO $$ BEGIN {text}; END $$"));
    };
    database.sql("CREATE ROLE guest LOGIN");
    on_database("GRANT CREATE ON DATABASE %I TO guest");
    let url = database.url.replace("postgres@", "guest@");
    let mut guest = Node::start("late-guest", "", &["--store", &url]);
    guest.server = None;
    on_database("REVOKE CREATE ON DATABASE %I FROM guest");
    database.sql("DROP SCHEMA hark_moderation CASCADE");
    guest.serve(&[]);
    let health = || get(&guest.server.as_ref().unwrap().address, "/healthz").ok();
    assert!(health().contains("ok\n") && health().contains("no shelf for bans"), "{}", health());
    runtime.block_on(async { assert!(publish(&guest, 11, "a").await.0) });
    let owner = Place::new("late-owner");
    let hark = |args: &[&str]| owner.hark(&[&["--store", &database.url], args].concat()).text();
    hark(&["ban", &pubkey(11), "--reason", "late"]);
    database.sql(
        "GRANT USAGE ON SCHEMA hark_moderation TO guest; \
         GRANT ALL ON ALL TABLES IN SCHEMA hark_moderation TO guest; \
         GRANT ALL ON ALL SEQUENCES IN SCHEMA hark_moderation TO guest;",
    );
    let reason = runtime.block_on(until_refused(&guest, 11));
    assert!(reason.ends_with("late"), "{reason}");
    until("the lack is over", || !health().contains("no shelf for bans"));
    hark(&["unban", &pubkey(11)]);
    runtime.block_on(async {
        while !publish(&guest, 11, "b").await.0 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
}

/// Rows are as long as their reasons, and an answer of the server stays within the bounds of its
/// socket.
#[test]
fn lists_of_long_rows_come_whole() {
    let node = Node::start("long-rows", "", &[]);
    let subjects: Vec<String> = (0..600).map(|kind| format!("kind:{kind}")).collect();
    let subjects = subjects.join("\n");
    for letter in ["\"", "\\"] {
        let banned =
            node.hark_fed(&["ban", "-", "--json", "--reason", &letter.repeat(1_000)], &subjects);
        assert_eq!(banned.text().lines().count(), 600);
    }
    assert_eq!(node.rows(&["list", "--json"]).len(), 600);
    assert_eq!(node.rows(&["log", "--json"]).len(), 1_200);
}

/// A stream beside a server reads the bans and allows once, and then follows the server.
#[test]
fn a_stream_beside_a_server_learns_of_an_allow_and_of_its_end() {
    for is_database in [false, true] {
        let cluster = Cluster::shared();
        let database = cluster.database("stream_allows");
        let store = ["--store", &database.url];
        let store = if is_database { &store[..] } else { &[] };
        let settings = format!("[policy]\nallow_keys = [\"{}\"]\n", pubkey(MEMBER));
        let node = Node::start(&format!("stream-allows-{is_database}"), &settings, store);
        let other = Node::start(&format!("stream-allowed-there-{is_database}"), "", &[]);
        let flags: Vec<&str> = node.flags.iter().map(String::as_str).collect();
        let args = ["stream", &other.url(), "--dir", "down", "--catch-up", "0"];
        let stream = node.place.start(&[&flags[..], &args].concat());
        let runtime = Runtime::new().unwrap();
        let mut n = 0;
        // Publishes at the other relay until an event of this key is here.
        let mut until_here = |who: u8| {
            let before = node.count(of_keys(&[who]));
            until("the events of a key are here", || {
                n += 1;
                let content = format!("note {n}");
                assert!(runtime.block_on(publish(&other, who, &content)).0);
                node.count(of_keys(&[who])) > before
            });
        };
        until_here(MEMBER);
        node.hark(&["allow", &pubkey(15)]).text();
        until_here(15);
        node.hark(&["unallow", &pubkey(15)]).text();
        // Some events of this key may have been on their way.
        until("the events of a key are refused", || {
            let before = node.count(of_keys(&[15]));
            assert!(runtime.block_on(publish(&other, 15, &format!("late {}", now_s()))).0);
            until_here(MEMBER);
            node.count(of_keys(&[15])) == before
        });
        stream.signal("TERM");
    }
}
