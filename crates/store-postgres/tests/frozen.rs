//! A database that does not answer: its processes are suspended, or the network loses its packets.
//! Every question and every batch is answered in time, only one thread probes the database, and
//! service resumes by itself.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hark_archive::{CommitError, Outcome, Query, Record, RecordHeader, SearchError, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{DatabaseOpenError, PostgresOptions, PostgresStore};
use hark_testkit::postgres::Cluster;
use hark_testkit::random::encode;
use hark_testkit::wait::{until, until_ok};

/// The time limit of a question.
const LIMIT: Duration = Duration::from_secs(3);
/// The time limit of many questions together. It is far above [`LIMIT`], because machines that run
/// tests are busy, and far below the time that the questions would take one after another.
const ALL_MAX: Duration = Duration::from_secs(40);
const LATE: &str = "the database did not answer within ";

fn options() -> PostgresOptions {
    PostgresOptions {
        statement_timeout: LIMIT,
        pool_max: 4,
        listed_labels: b"t",
        ..PostgresOptions::default()
    }
}

fn open(url: &str) -> Result<PostgresStore, DatabaseOpenError> {
    PostgresStore::open(url, "nostr", Box::new(NostrRules), &options())
}

fn put(number: u32) -> Write {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let time = 1_700_000_000 + u64::from(number);
    let head = RecordHeader { id, time, author: Some([1; 32]), kind: 1, expires: None };
    Write::Put(encode(&head, &[(b't', b"a".to_vec())]))
}

/// Returns the number of records that a question of a client finds.
fn found(store: &PostgresStore) -> Result<u32, SearchError> {
    let mut search = store.search(&Query { budget: 1_000_000, ..Query::default() })?;
    let mut count = 0;
    let mut sink = |_: &Record<'_>| {
        count += 1;
        ControlFlow::Continue(())
    };
    search.slice(u64::MAX, &mut sink)?;
    Ok(count)
}

fn count(store: &PostgresStore) -> Result<Option<u64>, SearchError> {
    store.count(&Query { budget: 1_000_000, ..Query::default() })
}

fn listed(store: &PostgresStore) -> Result<u64, SearchError> {
    let mut records = 0;
    store.label_values(b't', &mut |_, count| records += count)?;
    Ok(records)
}

fn kept(store: &PostgresStore, number: u32) -> Result<Outcome, CommitError> {
    Ok(store.commit(&[put(number)])?.outcomes.remove(0))
}

fn must_be_late(error: &CommitError) {
    assert!(matches!(error, CommitError::Unavailable(why) if why.starts_with(LATE)), "{error}");
}

fn is_stored(outcome: &Result<Outcome, CommitError>) -> bool {
    matches!(outcome, Ok(Outcome::Stored { .. }))
}

/// Asks many questions at the same time, none of which is answered.
fn ask_in_vain(store: &PostgresStore) {
    let (asked, started) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while asked.fetch_add(1, Ordering::Relaxed) < 500 {
                    let error = found(store).unwrap_err();
                    let words = error.to_string();
                    // A question may have waited for a connection until its time limit.
                    assert!(words.contains(LATE) || words.contains("all connections"), "{words}");
                }
            });
        }
        scope.spawn(|| {
            for error in [count(store).unwrap_err(), listed(store).unwrap_err()] {
                let words = error.to_string();
                assert!(words.contains(LATE) || words.contains("all connections"), "{words}");
            }
        });
    });
    assert!(started.elapsed() < ALL_MAX, "{:?}", started.elapsed());
}

#[test]
fn a_frozen_database_delays_questions_and_writes_once_and_is_used_again_at_once() {
    let cluster = Cluster::new();
    let database = cluster.database("frozen");
    let store = open(&database.url).unwrap();
    assert!(is_stored(&kept(&store, 1)));
    for _ in 0..2 {
        let before = found(&store).unwrap();
        assert_eq!(count(&store).unwrap(), Some(u64::from(before)));
        assert_eq!(listed(&store).unwrap(), u64::from(before));
        cluster.pause();
        let started = Instant::now();
        std::thread::scope(|scope| {
            let write = scope.spawn(|| kept(&store, before + 1));
            ask_in_vain(&store);
            must_be_late(&write.join().unwrap().unwrap_err());
        });
        // Each of many further writes is refused without waiting for the whole time.
        for _ in 0..20 {
            must_be_late(&kept(&store, before + 1).unwrap_err());
        }
        assert!(started.elapsed() < ALL_MAX, "{:?}", started.elapsed());
        cluster.resume();
        let resumed = Instant::now();
        until_ok(|| found(&store));
        println!("answers again after {:?}", resumed.elapsed());
        // The outcome of the write is unknown. If the client sends the record again, the record is
        // stored once.
        until_ok(|| kept(&store, before + 1));
        assert_eq!(found(&store).unwrap(), before + 1);
    }
}

#[test]
fn a_frozen_database_is_not_opened_and_the_error_says_so() {
    let cluster = Cluster::new();
    let database = cluster.database("frozen");
    drop(open(&database.url).unwrap());
    cluster.pause();
    let error = open(&database.url).err().unwrap();
    let is_late = matches!(&error, DatabaseOpenError::Away(why) if *why == format!("{LATE}3 s"));
    assert!(is_late, "{error}");
    cluster.resume();
    assert!(is_stored(&kept(&open(&database.url).unwrap(), 1)));
}

#[test]
fn a_frozen_replica_leaves_the_primary_time_to_answer() {
    let primary = Cluster::with(&["fsync=off"]);
    let database = primary.database("frozen");
    let standby = primary.replica();
    let read_url = Some(standby.url(&database.name));
    let options = PostgresOptions { read_url, ..options() };
    let store = PostgresStore::open(&database.url, "nostr", Box::new(NostrRules), &options);
    let store = store.unwrap();
    assert!(is_stored(&kept(&store, 1)));
    let asked = || store.stats().database.and_then(|stats| stats.replica).unwrap().0;
    until("the replica is asked", || found(&store).unwrap() == 1 && asked() > 0);
    standby.pause();
    for _ in 0..20 {
        assert_eq!(found(&store).unwrap(), 1);
    }
    standby.resume();
    let before = asked();
    until("the replica is asked", || found(&store).unwrap() == 1 && asked() > before);
}

#[test]
fn a_standby_takes_the_place_of_a_primary_that_stays_frozen() {
    let primary = Cluster::with(&["fsync=off"]);
    let database = primary.database("frozen");
    let standby = primary.replica();
    // The frozen server is the first host, and still accepts connections.
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{}?target_session_attrs=read-write",
        primary.port(),
        standby.port(),
        database.name
    );
    let store = open(&url).unwrap();
    assert!(is_stored(&kept(&store, 1)));
    let records = "SELECT count(*) FROM hark_nostr.record";
    until("the standby has the record", || standby.sql(&database.name, records) == "1");
    primary.pause();
    must_be_late(&kept(&store, 2).unwrap_err());
    standby.promote();
    until_ok(|| kept(&store, 2));
    assert_eq!(until_ok(|| found(&store)), 2);
    assert_eq!(found(&open(&url).unwrap()).unwrap(), 2, "a server that starts now");
    primary.resume();
}

#[test]
fn a_slow_statement_is_no_reason_to_refuse_other_questions() {
    let database = Cluster::shared().database("slow");
    let store = open(&database.url).unwrap();
    assert!(is_stored(&kept(&store, 1)));
    std::thread::scope(|scope| {
        let locked = scope.spawn(|| {
            database.sql(&format!(
                "BEGIN; LOCK TABLE hark_nostr.record; SELECT pg_sleep({}); ROLLBACK",
                2 * LIMIT.as_secs()
            ))
        });
        let locks = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' \
                     AND relation = 'hark_nostr.record'::regclass";
        until("the table is locked", || database.sql(locks) == "1");
        let slow = [scope.spawn(|| found(&store)), scope.spawn(|| found(&store))];
        while !slow.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert_eq!(listed(&store).unwrap(), 1);
        }
        for slow in slow {
            let words = slow.join().unwrap().unwrap_err().to_string();
            assert!(words.contains("statement timeout") || words.contains(LATE), "{words}");
        }
        assert_eq!(listed(&store).unwrap(), 1);
        locked.join().unwrap();
    });
    assert_eq!(found(&store).unwrap(), 1);
}

/// A network between Hark and the database, which may lose what is sent.
struct Network {
    port: u16,
    losses: Arc<Losses>,
}

#[derive(Default)]
struct Losses {
    /// Whether everything is lost. A connection that has lost a byte loses all further bytes.
    all: AtomicBool,
    /// Whether the next COMMIT is lost.
    commit: AtomicBool,
    /// Whether the answer to the next COMMIT is lost.
    answer: AtomicBool,
}

impl Network {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (own, losses) = (listener.local_addr().unwrap().port(), Arc::<Losses>::default());
        let shared = Arc::clone(&losses);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                let is_lost = Arc::<AtomicBool>::default();
                let to = (client.try_clone().unwrap(), server.try_clone().unwrap());
                for (from, to, is_client) in [(to.0, to.1, true), (server, client, false)] {
                    let (losses, is_lost) = (Arc::clone(&shared), Arc::clone(&is_lost));
                    std::thread::spawn(move || losses.carry((from, to), is_client, &is_lost));
                }
            }
        });
        Self { port: own, losses }
    }
}

impl Losses {
    /// Carries bytes in one direction until the end.
    fn carry(
        &self,
        (mut from, mut to): (TcpStream, TcpStream),
        is_client: bool,
        is_lost: &AtomicBool,
    ) {
        let mut buffer = [0; 8 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let bytes = &buffer[..count];
            let commits = is_client && bytes.windows(6).any(|word| word == b"COMMIT");
            if self.all.load(Ordering::SeqCst)
                || (commits && self.commit.swap(false, Ordering::SeqCst))
            {
                is_lost.store(true, Ordering::SeqCst);
            }
            if is_lost.load(Ordering::SeqCst) {
                continue;
            }
            if commits && self.answer.swap(false, Ordering::SeqCst) {
                is_lost.store(true, Ordering::SeqCst);
            }
            if to.write_all(bytes).is_err() {
                break;
            }
        }
        // An error means that the connection has already ended.
        let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    }
}

#[test]
fn a_network_that_loses_everything_delays_questions_once() {
    let database = Cluster::shared().database("lost");
    let network = Network::to(database.cluster.port());
    let old = format!(":{}/", database.cluster.port());
    let store = open(&database.url.replace(&old, &format!(":{}/", network.port))).unwrap();
    assert!(is_stored(&kept(&store, 1)));
    assert_eq!(found(&store).unwrap(), 1);
    network.losses.all.store(true, Ordering::SeqCst);
    ask_in_vain(&store);
    network.losses.all.store(false, Ordering::SeqCst);
    let restored = Instant::now();
    assert_eq!(until_ok(|| found(&store)), 1);
    println!("answers again after {:?}", restored.elapsed());
    // The session for commits was idle during the loss, so its connection still works.
    assert!(is_stored(&kept(&store, 2)));
    assert_eq!(found(&store).unwrap(), 2);
}

#[test]
fn a_commit_without_an_answer_is_not_acknowledged_and_is_stored_once_when_it_is_sent_again() {
    let database = Cluster::shared().database("doubt");
    let network = Network::to(database.cluster.port());
    let old = format!(":{}/", database.cluster.port());
    let store = open(&database.url.replace(&old, &format!(":{}/", network.port))).unwrap();
    assert!(is_stored(&kept(&store, 1)));
    let rows = |number: u32| {
        let time = 1_700_000_000 + i64::from(number);
        let time = (time.cast_unsigned() ^ (1 << 63)).cast_signed();
        database.sql(&format!("SELECT count(*) FROM hark_nostr.record WHERE time = {time}"))
    };
    let in_doubt = |number| must_be_late(&kept(&store, number).unwrap_err());
    network.losses.answer.store(true, Ordering::SeqCst);
    in_doubt(2);
    assert_eq!(rows(2), "1");
    // This process reads the record again like a record of another process, so that subscribers
    // receive the record.
    assert_eq!(until_ok(|| kept(&store, 2)), Outcome::Duplicate);
    assert_eq!(found(&store).unwrap(), 2);

    network.losses.commit.store(true, Ordering::SeqCst);
    in_doubt(3);
    let again = until_ok(|| kept(&store, 3));
    assert!(matches!(again, Outcome::Stored { .. }), "{again:?}");
    assert_eq!((rows(2), rows(3)), ("1".into(), "1".into()));
    assert_eq!(found(&store).unwrap(), 3);
}
