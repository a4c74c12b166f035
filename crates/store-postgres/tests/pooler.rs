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
