//! Questions are sent to the shards. Answers are complete while shards move, while nodes are
//! replaced, and if the workers cannot be reached.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hark_archive::{Id, LabelSet, Order, Outcome, Query, RecordHeader, SearchError, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::citus::{CitusCluster, is_installed};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::encode;
use hark_testkit::wait::until;

const AUTHORS: u32 = 40;
/// The time limit of a question to a worker that hangs.
const LIMIT: Duration = Duration::from_secs(3);

fn open_with(database: &Database<'_>, shard_reads: bool, limit: Duration) -> PostgresStore {
    let options = PostgresOptions {
        shards: 6,
        shard_reads,
        statement_timeout: limit,
        ..PostgresOptions::default()
    };
    PostgresStore::open(&database.url, "nostr", Box::new(NostrRules), &options).expect("opens")
}

fn open(database: &Database<'_>) -> PostgresStore {
    // Machines that run tests are busy.
    open_with(database, true, Duration::from_mins(1))
}

fn id(number: u32) -> Id {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
    id[4..8].copy_from_slice(&number.to_be_bytes());
    id
}

fn author(number: u32) -> Id {
    [(number % AUTHORS) as u8 + 1; 32]
}

fn label(number: u32, which: u32) -> Vec<u8> {
    format!("label {}", (number * 3 + which) % 50).into_bytes()
}

/// A record with labels in several shards. Neighbours have the same time.
fn put(number: u32) -> Write {
    let time = 1_700_000_000 + u64::from(number / 3);
    let (id, author, kind) = (id(number), Some(author(number)), [1, 6, 7][number as usize % 3]);
    let head = RecordHeader { id, time, author, kind, expires: None };
    Write::Put(encode(&head, &[0, 1, 2].map(|which| (b't', label(number, which)))))
}

fn commit(store: &PostgresStore, numbers: std::ops::Range<u32>) {
    let done = store.commit(&numbers.map(put).collect::<Vec<_>>()).expect("is committed");
    let is_stored = |one: &Outcome| matches!(one, Outcome::Stored { .. });
    assert!(done.outcomes.iter().all(is_stored), "{:?}", done.outcomes);
}

/// Returns the ids of a query's records, in order.
fn ask(store: &PostgresStore, query: &Query) -> Result<Vec<Id>, SearchError> {
    let mut found = Vec::new();
    let mut search = store.search(query)?;
    search.slice(u64::MAX, &mut |record| {
        found.push(*record.id());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn of_author(number: u32) -> Query {
    let budget = 1_000_000;
    Query { authors: Some(vec![author(number)]), limit: 500, budget, ..Query::default() }
}

fn of_ids(numbers: std::ops::Range<u32>) -> Query {
    Query {
        ids: Some(numbers.map(id).collect()),
        limit: 500,
        budget: 1_000_000,
        ..Query::default()
    }
}

/// Queries of all forms.
fn queries() -> Vec<Query> {
    let authors = |numbers: &[u32]| Some(numbers.iter().map(|number| author(*number)).collect());
    let labels = |numbers: &[u32]| {
        let values = numbers.iter().map(|number| label(*number, 0).into_boxed_slice());
        vec![LabelSet { name: b't', values: values.collect() }]
    };
    let bases = [
        Query::default(),
        Query { authors: authors(&[3]), ..Query::default() },
        Query { authors: authors(&[3, 9, 14, 22, 39]), ..Query::default() },
        Query { labels: labels(&[5]), ..Query::default() },
        Query { labels: labels(&[1, 2, 3, 4, 5, 6, 7, 8]), ..Query::default() },
        Query { authors: authors(&[3, 9, 14]), labels: labels(&[3, 9, 14]), ..Query::default() },
        of_ids(0..150),
    ];
    let kinds = [None, Some(vec![1]), Some(vec![6, 7])];
    let mut all = Vec::new();
    for base in bases {
        for kinds in &kinds {
            for (limit, order) in
                [(500, Order::NewestFirst), (20, Order::NewestFirst), (20, Order::OldestFirst)]
            {
                all.push(Query { kinds: kinds.clone(), limit, order, ..base.clone() });
            }
        }
        all.push(Query { not_kinds: vec![6], limit: 30, ..base.clone() });
        let (from, to) = (1_700_000_020, 1_700_000_120);
        all.push(Query { from, to, limit: 40, ..base });
    }
    all
}

/// Whether a question is sent to the workers.
fn is_on_shards(store: &PostgresStore, query: &Query) -> bool {
    let explained = store.explain(query).expect("is explained");
    explained.steps.iter().any(|step| step.source.starts_with("shard"))
}

/// Returns the port of the worker that has an author's records.
fn worker_of(database: &Database<'_>, number: u32) -> u16 {
    let hex = format!("{:02x}", author(number)[0]).repeat(32);
    let text = format!(
        "SELECT nodeport FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid) WHERE shardid = \
         get_shard_id_for_distribution_column('hark_nostr.record', '\\x{hex}'::bytea)"
    );
    database.sql(&text).parse().expect("a port")
}

#[test]
fn shards_answer_like_the_coordinator() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("shards");
    let (direct, through) = (open(&database), open_with(&database, false, Duration::from_mins(1)));
    commit(&direct, 0..600);
    assert!(ask(&through, &of_ids(0..600)).unwrap().len() == 500);
    for query in queries() {
        let (found, expected) = (ask(&direct, &query).unwrap(), ask(&through, &query).unwrap());
        assert_eq!(found, expected, "{query:?}");
        assert!(!expected.is_empty(), "{query:?}");
        assert!(is_on_shards(&direct, &query) && !is_on_shards(&through, &query), "{query:?}");
    }
    let explained = direct.explain(&of_ids(0..3)).unwrap();
    let ports = CitusCluster::shared().workers.iter().map(hark_testkit::postgres::Cluster::port);
    let mut sources = explained.steps.iter().map(|step| step.source.as_str());
    let names: Vec<String> = ports.map(|port| format!("on 127.0.0.1:{port}")).collect();
    assert!(sources.all(|source| names.iter().any(|name| source.ends_with(name))), "{explained:?}");
}

/// Long records are read page by page, and not all at once.
#[test]
fn long_records_are_found_by_their_ids_and_by_their_label_in_order() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("long");
    let (direct, through) = (open(&database), open_with(&database, false, Duration::from_mins(1)));
    let long = |number: u32| {
        let (id, author) = (id(number), Some(author(number)));
        let time = 1_700_000_000 + u64::from(number / 3);
        let head = RecordHeader { id, time, author, kind: 1, expires: None };
        Write::Put(encode(&head, &[(b't', vec![7; 256 << 10])]))
    };
    let label = LabelSet { name: b't', values: vec![vec![7; 256 << 10].into_boxed_slice()] };
    let by_label = Query { labels: vec![label], ..Query::default() };
    for number in 0..60 {
        direct.commit(&[long(number)]).expect("is committed");
    }
    let mut expected: Vec<u32> = (0..60).collect();
    expected.sort_by_key(|number| (std::cmp::Reverse(number / 3), id(*number)));
    let expected: Vec<Id> = expected.into_iter().map(id).collect();
    for limit in [1, 20, 500] {
        for (name, query) in [("ids", of_ids(0..70)), ("label", by_label.clone())] {
            let query = Query { limit, ..query };
            for store in [&direct, &through] {
                let found = ask(store, &query).unwrap();
                assert!(found == expected[..limit.min(60)], "by {name}, {limit}");
            }
        }
    }
}

/// Moves all shards of one group of tables to another worker.
fn move_shard(database: &Database<'_>, at: usize, table: &str, mode: &str) {
    database.sql(&format!(
        "SELECT citus_move_shard_placement(p.shardid, n.nodename, n.nodeport, o.nodename, o.nodeport, \
         '{mode}') FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid) \
         JOIN LATERAL (SELECT * FROM pg_dist_node o WHERE o.groupid > 0 AND o.groupid <> n.groupid \
         ORDER BY (o.groupid + {at}) % 5 LIMIT 1) o ON true \
         WHERE shardid = (SELECT shardid FROM pg_dist_shard WHERE logicalrelid = \
         'hark_nostr.{table}'::regclass ORDER BY shardid OFFSET {} LIMIT 1)",
        at % 6
    ));
}

#[test]
fn no_answer_lacks_a_record_while_shards_move() {
    if !is_installed() {
        return;
    }
    let database = CitusCluster::shared().database("shards move");
    let (store, other) = (open(&database), open(&database));
    commit(&store, 0..100);
    let (stored, ended, asked) = (AtomicU32::new(100), AtomicBool::new(false), AtomicU32::new(0));
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let next = stored.load(Ordering::Relaxed);
                let writes: Vec<Write> = (next..next + 5).map(put).collect();
                match store.commit(&writes) {
                    Ok(_) => stored.store(next + 5, Ordering::SeqCst),
                    Err(error) => println!("a commit failed: {error}"),
                }
            }
        });
        for (number, asker) in [&store, &store, &other].into_iter().enumerate() {
            let (stored, ended, asked, wrong) = (&stored, &ended, &asked, &wrong);
            scope.spawn(move || {
                let mut turn = u32::try_from(number).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    turn += 1;
                    let last = stored.load(Ordering::SeqCst);
                    let wanted = LabelSet {
                        name: b't',
                        values: vec![label(turn % 50, 0).into_boxed_slice()],
                    };
                    let (query, is_of): (Query, Box<dyn Fn(u32) -> bool>) = match turn % 4 {
                        0 => (of_author(turn), Box::new(|one| author(one) == author(turn))),
                        1 => (of_ids(last - 60..last), Box::new(|one| one >= last - 60)),
                        2 => {
                            let query = Query { limit: 5_000, ..Query::default() };
                            (query, Box::new(|_| true))
                        }
                        _ => {
                            let query =
                                Query { labels: vec![wanted], limit: 5_000, ..Query::default() };
                            let value = label(turn % 50, 0);
                            let of = move |one| (0..3).any(|which| label(one, which) == value);
                            (query, Box::new(of))
                        }
                    };
                    match ask(asker, &query) {
                        Ok(found) => {
                            let found: BTreeSet<Id> = found.into_iter().collect();
                            let missing: Vec<u32> = (0..last)
                                .filter(|one| is_of(*one) && !found.contains(&id(*one)))
                                .collect();
                            asked.fetch_add(1, Ordering::Relaxed);
                            if !missing.is_empty() && query.limit > found.len() {
                                wrong.lock().unwrap().push((turn % 4, missing));
                            }
                        }
                        Err(error) => println!("a question failed: {error}"),
                    }
                }
            });
        }
        for at in 0..12 {
            let mode = if at % 3 == 0 { "force_logical" } else { "block_writes" };
            move_shard(&database, at, if at % 2 == 0 { "record" } else { "tag" }, mode);
            if at % 4 == 3 {
                // Without this call, an old copy of a shard would be removed a little later.
                database.sql("CALL citus_cleanup_orphaned_resources()");
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    let wrong = wrong.into_inner().unwrap();
    println!("{} questions, {} records", asked.into_inner(), stored.into_inner());
    assert!(wrong.is_empty(), "{} wrong, the first: {:?}", wrong.len(), wrong.first());
    assert!(is_on_shards(&store, &of_author(3)));
}

/// The old worker still runs, and answers all questions.
#[test]
fn a_worker_that_was_replaced_is_not_asked_any_more() {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::with(2, &["fsync=off"]);
    let database = cluster.database("replaced");
    let (store, other) = (open(&database), open(&database));
    commit(&store, 0..200);
    let worker = &cluster.workers[0];
    let old = worker.port();
    let on_it = (0..AUTHORS).find(|number| worker_of(&database, *number) == old);
    let on_it = on_it.expect("the worker has an author");
    for store in [&store, &other] {
        assert_eq!(ask(store, &of_author(on_it)).unwrap().len(), 5);
        assert!(is_on_shards(store, &of_author(on_it)));
    }
    let standby = worker.replica();
    let streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    until("the standby follows", || worker.sql("postgres", streams) == "1");
    standby.promote();
    database.sql(&format!(
        "SELECT citus_update_node(nodeid, '127.0.0.1', {}) FROM pg_dist_node WHERE nodeport = {old}",
        standby.port()
    ));
    let (next, end) = (200 + on_it, 201 + on_it);
    until("commits go on", || store.commit(&[put(next)]).is_ok());
    for store in [&store, &other] {
        assert_eq!(ask(store, &of_author(on_it)).unwrap().len(), 6);
        assert!(ask(store, &of_ids(next..end)).unwrap().contains(&id(next)));
        assert!(is_on_shards(store, &of_author(on_it)));
    }
}

#[test]
fn a_worker_that_hangs_delays_only_questions_that_need_it() {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::with(2, &["fsync=off"]);
    let database = cluster.database("hangs");
    let store = open_with(&database, true, LIMIT);
    commit(&store, 0..200);
    let hung: &Cluster = &cluster.workers[1];
    let (lost, kept): (Vec<u32>, Vec<u32>) =
        (0..AUTHORS).partition(|number| worker_of(&database, *number) == hung.port());
    for number in 0..AUTHORS {
        assert_eq!(ask(&store, &of_author(number)).unwrap().len(), 5);
    }
    hung.pause();
    std::thread::scope(|scope| {
        for number in &lost {
            let (store, number) = (&store, *number);
            scope.spawn(move || {
                let began = Instant::now();
                assert!(ask(store, &of_author(number)).is_err(), "of {number}");
                assert!(began.elapsed() < LIMIT * 4, "{:?}", began.elapsed());
            });
        }
        // Questions for other workers are not delayed, from the first moment on.
        for number in &kept {
            let (store, number) = (&store, *number);
            scope.spawn(move || {
                let began = Instant::now();
                assert_eq!(ask(store, &of_author(number)).unwrap().len(), 5);
                assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
            });
        }
    });
    for number in &kept {
        let began = Instant::now();
        assert_eq!(ask(&store, &of_author(*number)).unwrap().len(), 5);
        assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
    }
    hung.resume();
    for number in &lost {
        until("it is answered", || {
            ask(&store, &of_author(*number)).is_ok_and(|found| found.len() == 5)
        });
    }
}

#[test]
fn a_worker_that_hangs_does_not_hold_all_threads_until_the_end_of_their_questions() {
    if !is_installed() {
        return;
    }
    let limit = Duration::from_secs(40);
    let cluster = CitusCluster::with(2, &["fsync=off"]);
    let database = cluster.database("holds");
    let store = open_with(&database, true, limit);
    commit(&store, 0..200);
    let hung: &Cluster = &cluster.workers[1];
    let (lost, kept): (Vec<u32>, Vec<u32>) =
        (0..AUTHORS).partition(|number| worker_of(&database, *number) == hung.port());
    for number in 0..AUTHORS {
        assert_eq!(ask(&store, &of_author(number)).unwrap().len(), 5);
    }
    hung.pause();
    let began = Instant::now();
    // As many threads as a server has for searches, each with several questions.
    std::thread::scope(|scope| {
        for _ in 0..PostgresOptions::default().pool_max {
            scope.spawn(|| {
                for number in &lost[..5] {
                    assert!(ask(&store, &of_author(*number)).is_err(), "of {number}");
                }
            });
        }
    });
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());
    assert_eq!(ask(&store, &of_author(kept[0])).unwrap().len(), 5);
    hung.resume();
    until("it is answered", || ask(&store, &of_author(lost[0])).is_ok_and(|rows| rows.len() == 5));
}

#[test]
fn a_worker_that_is_lost_closes_no_session_with_the_coordinator() {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::with(2, &["fsync=off"]);
    let database = cluster.database("lost");
    for on_shards in [false, true] {
        let store = open_with(&database, on_shards, Duration::from_mins(1));
        if !on_shards {
            commit(&store, 0..200);
        }
        let dead: &Cluster = &cluster.workers[1];
        let lost = (0..AUTHORS).find(|number| worker_of(&database, *number) == dead.port());
        let (lost, all) = (of_author(lost.unwrap()), of_author(0));
        for query in [&lost, &all] {
            assert_eq!(ask(&store, query).unwrap().len(), 5);
        }
        let sessions = || {
            database.sql(
                "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity \
                 WHERE application_name = 'hark'",
            )
        };
        let before = sessions();
        dead.kill();
        for _ in 0..20 {
            let words = ask(&store, &lost).unwrap_err().to_string();
            assert!(words.contains("the database is away"), "{words}");
        }
        assert_eq!(sessions(), before);
        dead.start();
        until("it is answered", || ask(&store, &lost).is_ok_and(|rows| rows.len() == 5));
    }
}

#[test]
fn questions_go_through_the_coordinator_if_the_workers_lack_the_metadata() {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::with(2, &["fsync=off"]);
    let database = cluster.database("metadata");
    let store = open(&database);
    commit(&store, 0..200);
    assert!(is_on_shards(&store, &of_author(3)));
    let worker = &cluster.workers[0];
    database.sql(&format!("SELECT stop_metadata_sync_to_node('127.0.0.1', {})", worker.port()));
    for number in 0..AUTHORS {
        assert_eq!(ask(&store, &of_author(number)).unwrap().len(), 5);
    }
    assert_eq!(ask(&store, &of_ids(0..200)).unwrap().len(), 200);
    database.sql(&format!("SELECT start_metadata_sync_to_node('127.0.0.1', {})", worker.port()));
    until("the workers are asked again", || {
        (0..AUTHORS).all(|number| is_on_shards(&store, &of_author(number)))
    });
}

#[test]
fn questions_go_through_the_coordinator_if_the_workers_refuse_hark() {
    if !is_installed() {
        return;
    }
    let cluster = CitusCluster::with(2, &["fsync=off"]);
    let database = cluster.database("refused");
    let password = "*:*:*:postgres:secret\n";
    let rule = |method: &str| format!("local all all trust\nhost all all 127.0.0.1/32 {method}\n");
    cluster.coordinator.file("../.pgpass", password);
    for worker in &cluster.workers {
        worker.sql("postgres", "ALTER USER postgres PASSWORD 'secret'");
        worker.file("../.pgpass", password);
        worker.file("pg_hba.conf", &rule("scram-sha-256"));
    }
    let store = open(&database);
    commit(&store, 0..200);
    for number in 0..AUTHORS {
        assert_eq!(ask(&store, &of_author(number)).unwrap().len(), 5);
        assert!(!is_on_shards(&store, &of_author(number)));
    }
    assert_eq!(ask(&store, &of_ids(0..200)).unwrap().len(), 200);
    for worker in &cluster.workers {
        worker.file("pg_hba.conf", &rule("trust"));
    }
    until("the workers are asked", || {
        (0..AUTHORS).all(|number| is_on_shards(&store, &of_author(number)))
    });
}
