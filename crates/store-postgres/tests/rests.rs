//! Searches that pause between pages keep the records that they have read, within a memory limit.
//! Records beyond the limit are read again.

use std::ops::ControlFlow;

use hark_archive::{Query, Record, RecordHeader, Search, SearchProgress, Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_postgres::{PostgresOptions, PostgresStore};
use hark_testkit::postgres::Cluster;
use hark_testkit::random::encode;

const NEWEST: u64 = 1_700_000_499;

/// Opens a store with 500 records of 1 KB, one a second.
fn store(database: &str) -> PostgresStore {
    let options = PostgresOptions::default();
    let store = PostgresStore::open(database, "nostr", Box::new(NostrRules), &options);
    let store = store.expect("opens");
    let put = |n: u64| {
        let mut id = [7; 32];
        id[..8].copy_from_slice(&n.to_be_bytes());
        let head =
            RecordHeader { id, time: NEWEST - n, author: Some([1; 32]), kind: 1, expires: None };
        Write::Put(encode(&head, &[(b't', vec![b'a'; 1_000])]))
    };
    store.commit(&(0..500).map(put).collect::<Vec<_>>()).expect("is kept");
    store
}

/// Reads a page of 60 records. Returns whether more records may follow.
fn page(search: &mut dyn Search, times: &mut Vec<u64>) -> bool {
    let until = times.len() + 60;
    let mut sink = |record: &Record<'_>| {
        times.push(record.time());
        if times.len() < until { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    search.slice(u64::MAX, &mut sink).expect("is answered") == SearchProgress::Paused
}

#[test]
fn records_are_read_once_as_long_as_there_is_room_for_them() {
    let database = Cluster::shared().database("rests");
    let store = store(&database.url);
    let by_author =
        Query { authors: Some(vec![[1; 32]]), kinds: Some(vec![1]), ..Query::default() };
    let search = || (store.search(&by_author).expect("begins"), Vec::new());
    let expected: Vec<u64> = (0..500).map(|n| NEWEST - n).collect();
    let fetched = || {
        let statements = store.stats().database.expect("is a database").statements;
        statements.iter().any(|(name, _)| name.contains("bodies"))
    };
    let (mut alone, mut times) = search();
    while page(&mut *alone, &mut times) {}
    assert_eq!(times, expected);
    assert!(!fetched(), "it was read again");

    // Each search would keep 0.44 MB, but all searches together may keep at most 64 MB.
    let mut many: Vec<_> = (0..180).map(|_| search()).collect();
    for (search, times) in &mut many {
        assert!(page(&mut **search, times));
    }
    for (search, times) in &mut many {
        while page(&mut **search, times) {}
        assert_eq!(*times, expected);
    }
    assert!(fetched(), "there was room for all");
    drop(many);
}
