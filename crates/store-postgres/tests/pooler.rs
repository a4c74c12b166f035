//! Behind a pooler, Hark either gets the sessions that it needs, or refuses to start and states the
//! reason.

use hark_archive::{Outcome, Query, RecordHeader, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore, migrations};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::encode;

fn put(number: u8) -> Write {
    let head = RecordHeader {
        id: [number; 32],
        time: 1_700_000_000,
        author: Some([1; 32]),
        kind: 1,
        expires: None,
    };
    Write::Put(encode(&head, &[]))
}

fn open(url: &str) -> Result<PostgresStore, String> {
    let opened =
        PostgresStore::open(url, "nostr", Box::new(NostrRules), &PostgresOptions::default());
    opened.map_err(|error| error.to_string())
}

/// Opens a shelf whose questions run on a replica at `read_url`.
fn open_reading(url: &str, read_url: &str, shelf: &str) -> PostgresStore {
    let options = PostgresOptions { read_url: Some(read_url.into()), ..PostgresOptions::default() };
    PostgresStore::open(url, shelf, Box::new(NostrRules), &options).expect("opens")
}

/// Returns those of the schemas `public` and `hark_nostr` that have tables.
fn tables(database: &Database<'_>) -> String {
    database.sql(
        "SELECT coalesce(string_agg(DISTINCT schemaname::text, ','), '') FROM pg_tables \
         WHERE schemaname IN ('public', 'hark_nostr')",
    )
}

#[test]
fn a_pooler_that_gives_each_session_a_connection_does_whatever_it_knows_of_options() {
    let cluster = Cluster::new();
    for (at, more) in
        ["", "ignore_startup_parameters=options,extra_float_digits"].iter().enumerate()
    {
        let database = cluster.database("sessions");
        let Some(pooler) = cluster.pooler(&["pool_mode=session", more]) else { return };
        let url = pooler.url(&database.name);
        for number in 1..=3 {
            let store = open(&url).expect("opens");
            let done = store.commit(&[put(number)]).expect("commits");
            assert!(matches!(done.outcomes[..], [Outcome::Stored { .. }]), "{done:?}");
            assert_eq!(store.count(&Query::default()).unwrap(), Some(number.into()));
        }
        assert_eq!(tables(&database), "hark_nostr", "{at}");
        // Another session of the same pool has its own shelf.
        let options = PostgresOptions::default();
        PostgresStore::open(&url, "waku", Box::new(NostrRules), &options).expect("opens");
        assert_eq!(open(&url).expect("opens").count(&Query::default()).unwrap(), Some(3));
    }
}

#[test]
fn a_pooler_whose_connections_change_hands_is_refused_before_anything_is_written() {
    let cluster = Cluster::new();
    for more in ["", "server_round_robin=1"] {
        let database = cluster.database("transactions");
        let settings = ["pool_mode=transaction", "ignore_startup_parameters=options", more];
        let Some(pooler) = cluster.pooler(&settings) else { return };
        let url = pooler.url(&database.name);
        for _ in 0..3 {
            let refused = open(&url).map(drop).expect_err("is refused");
            assert!(refused.contains("pool_mode = session"), "{refused}");
            let listed = migrations(&url, "nostr", &PostgresOptions::default(), true);
            assert!(listed.expect_err("is refused").to_string().contains("pool_mode = session"));
        }
        assert_eq!(tables(&database), "");
    }
    let database = cluster.database("statements");
    let Some(pooler) = cluster.pooler(&["pool_mode=statement"]) else { return };
    let refused = open(&pooler.url(&database.name)).map(drop).expect_err("is refused");
    assert!(
        refused.contains("pool_mode = session") || refused.contains("statement pool"),
        "{refused}"
    );
    assert_eq!(tables(&database), "");
}

/// On a shared connection, a question would read the tables of the shelf that used the connection
/// last.
#[test]
fn a_replica_is_asked_only_if_its_pooler_gives_each_session_a_connection() {
    let cluster = Cluster::new();
    for (settings, is_asked) in [
        (["pool_mode=transaction", "default_pool_size=1"], false),
        (["pool_mode=session", "default_pool_size=20"], true),
    ] {
        let database = cluster.database("replica");
        let more = "ignore_startup_parameters=options";
        let Some(pooler) = cluster.pooler(&[settings[0], settings[1], more]) else { return };
        let read_url = pooler.url(&database.name);
        let nostr = open_reading(&database.url, &read_url, "nostr");
        nostr.commit(&[put(1)]).expect("commits");
        assert_eq!(nostr.count(&Query::default()).unwrap(), Some(1));
        let waku = open_reading(&database.url, &read_url, "waku");
        for _ in 0..2 {
            assert_eq!(waku.count(&Query::default()).unwrap(), Some(0), "{settings:?}");
            assert_eq!(nostr.count(&Query::default()).unwrap(), Some(1), "{settings:?}");
        }
        for store in [&nostr, &waku] {
            let (asked, passed) =
                store.stats().database.expect("is there").replica.expect("is set");
            assert_eq!((asked > 0, passed > 0), (is_asked, !is_asked), "{settings:?}");
        }
    }
}

#[test]
fn a_session_whose_connection_another_took_commits_nothing() {
    let cluster = Cluster::new();
    let database = cluster.database("taken");
    let Some(pooler) = cluster.pooler(&["pool_mode=session"]) else { return };
    let store = open(&pooler.url(&database.name)).expect("opens");
    store.commit(&[put(1)]).expect("commits");
    // Simulates a pooler that has since given the writer's connection to another session.
    database.sql(
        "CREATE FUNCTION hark_nostr.take() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             PERFORM set_config('hark.session', 'another', false); RETURN NEW; END $$; \
         CREATE TRIGGER take AFTER UPDATE ON hark_nostr.state FOR EACH ROW \
             EXECUTE FUNCTION hark_nostr.take()",
    );
    store.commit(&[put(2)]).expect("the connection is taken in this commit");
    let refused = store.commit(&[put(3)]).expect_err("is refused").to_string();
    assert!(refused.contains("pool_mode = session"), "{refused}");
    assert_eq!(database.sql("SELECT count(*) FROM hark_nostr.record"), "2");
}
