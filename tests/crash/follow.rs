//! A process releases a shelf to another process, and from then on reads the other process's
//! writes.

use std::ops::ControlFlow;

use hark_archive::effects::KeepAll;
use hark_archive::{Id, Query, RecordHeader, Store, Write};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::folder::Folder;
use hark_testkit::random::{Random, encode};
use hark_testkit::runs::is_long;

fn write(store: &EmbeddedStore, random: &mut Random, alive: &mut Vec<Id>) {
    let mut batch = Vec::new();
    for _ in 0..=random.below(12) {
        if random.below(100) < 40 && !alive.is_empty() {
            let ids = Some(vec![alive.swap_remove(random.below(alive.len()))]);
            batch.push(Write::Erase(Box::new(Query { ids, ..Query::default() })));
        } else {
            let time = 1_000 + random.below(500) as u64;
            let head =
                RecordHeader { id: random.bytes(), time, author: None, kind: 0, expires: None };
            batch.push(Write::Put(encode(&head, &[(b'c', b"topic".to_vec())])));
            alive.push(head.id);
        }
    }
    store.commit(&batch).expect("commits");
}

const HEAD: RecordHeader =
    RecordHeader { id: [9; 32], time: 1, author: None, kind: 0, expires: None };

/// A process that opens the shelf too slowly must not change data written by another process.
#[test]
fn who_comes_too_late_changes_nothing() {
    let (dir, mut random, mut alive) = (Folder::to_be_made("late"), Random::new(1), Vec::new());
    let options = EmbeddedOptions::default();
    let old = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    write(&old, &mut random, &mut alive);
    old.pause_maintenance(true);
    old.release().expect("writes");
    let late =
        EmbeddedStore::open_released(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    old.resume().expect("nothing has changed");
    write(&old, &mut random, &mut alive);
    assert!(late.begin_writing().is_err());
    drop(late);
    write(&old, &mut random, &mut alive);
    drop(old);
    let again = EmbeddedStore::open(&dir, Box::new(KeepAll), options).expect("opens");
    assert_eq!(all(&again).0.len(), alive.len());
}

/// Failed jobs also raise the number of the next segment.
#[test]
fn who_has_released_a_shelf_after_maintenance_failed_goes_on_with_it() {
    let (dir, mut random, mut alive) = (Folder::to_be_made("failed"), Random::new(2), Vec::new());
    let options =
        EmbeddedOptions { seal_records: 40, background: false, ..EmbeddedOptions::default() };
    let old = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    // Directories with the names of the next segments make sealing fail.
    let names: Vec<_> = (1..9).map(|n| dir.join(format!("seg/{n:08}.seg"))).collect();
    for name in &names {
        std::fs::create_dir(name).expect("is made");
    }
    while old.stats().heads_waiting == 0 {
        write(&old, &mut random, &mut alive);
    }
    old.pause_maintenance(true);
    old.release().expect("writes");
    old.resume().expect("nothing has changed");
    write(&old, &mut random, &mut alive);
    drop(old);
    for name in &names {
        std::fs::remove_dir(name).expect("is empty");
    }
    let again = EmbeddedStore::open(&dir, Box::new(KeepAll), options).expect("opens");
    assert_eq!(all(&again).0.len(), alive.len());
}

/// A process that has released the shelf must not overwrite writes of another process.
#[test]
fn who_has_released_a_shelf_that_another_has_written_does_not_go_on() {
    let (dir, mut random, mut alive) = (Folder::to_be_made("written"), Random::new(3), Vec::new());
    let options = EmbeddedOptions::default();
    let old = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    write(&old, &mut random, &mut alive);
    old.pause_maintenance(true);
    old.release().expect("writes");
    let new =
        EmbeddedStore::open_released(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    new.begin_writing().expect("nothing has changed");
    new.commit(&[Write::Put(encode(&HEAD, &[]))]).expect("commits");
    drop(new);
    assert!(old.resume().is_err());
    assert!(old.commit(&[Write::Put(encode(&HEAD, &[]))]).is_err());
    drop(old);
    let again = EmbeddedStore::open(&dir, Box::new(KeepAll), options).expect("opens");
    assert_eq!(all(&again).0.len(), alive.len() + 1);
}

/// Returns the ids of all records in order, and the highest sequence number that the search covers.
fn all(store: &EmbeddedStore) -> (Vec<Id>, u64) {
    let mut ids = Vec::new();
    let mut search = store.search(&Query::default()).expect("searches");
    let take = &mut |record: &hark_archive::Record<'_>| {
        ids.push(*record.id());
        ControlFlow::Continue(())
    };
    search.slice(u64::MAX, take).expect("answers");
    (ids, search.seq())
}

#[test]
fn who_follows_sees_what_the_writer_writes_and_numbers_it_without_a_gap() {
    for seed in 0..if is_long() { 200 } else { 12 } {
        let (dir, mut random, mut alive) =
            (Folder::to_be_made("follow"), Random::new(seed), Vec::new());
        let options = EmbeddedOptions {
            seal_records: 40,
            merge_fan_in: 3,
            rewrite_dead_share: 0.1,
            background: random.once_in(2),
            ..EmbeddedOptions::default()
        };
        let old = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).expect("opens");
        for _ in 0..random.below(40) {
            write(&old, &mut random, &mut alive);
        }
        old.pause_maintenance(true);
        let mark = old.release().expect("writes");
        assert!(old.commit(&[]).is_ok() && old.release().is_err());
        if random.once_in(3) {
            // The other process opens the shelf and ends.
            let options = options.clone();
            let new =
                EmbeddedStore::open_released(&dir, Box::new(KeepAll), options).expect("opens");
            if random.once_in(2) {
                new.begin_writing().expect("nothing has changed");
            }
            drop(new);
            old.resume().expect("nothing has changed");
            for _ in 0..random.below(40) {
                write(&old, &mut random, &mut alive);
            }
            old.pause_maintenance(true);
            old.release().expect("writes again");
        } else {
            assert_eq!(old.end(), mark);
        }
        let new =
            EmbeddedStore::open_released(&dir, Box::new(KeepAll), options.clone()).expect("opens");
        assert!(new.commit(&[Write::Put(encode(&HEAD, &[]))]).is_err());
        new.begin_writing().expect("nothing has changed");
        assert_eq!((new.end(), all(&new).0), (old.end(), all(&old).0), "seed {seed}");
        new.followed(Some(new.end()));
        new.pause_maintenance(false);
        let mut seq = all(&old).1;
        for _ in 0..random.below(60) {
            for _ in 0..random.below(5) {
                write(&new, &mut random, &mut alive);
            }
            if random.once_in(20) {
                new.compact(&mut |_| {}).expect("compacts");
            }
            let mut received = Vec::new();
            old.follow(new.end(), u64::MAX, &mut |n, record| received.push((n, *record.id())))
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            for (n, _) in received {
                seq += 1;
                assert_eq!(n, seq, "seed {seed}");
            }
            assert_eq!(all(&old), (all(&new).0, seq), "seed {seed}");
            for id in random.bytes().chunks(1).zip(&alive).map(|(_, id)| id) {
                assert!(old.knows(id).expect("answers"));
            }
        }
        assert!(old.compact(&mut |_| {}).is_err(), "only one maintains the archive");
        drop((old, new));
        let again = EmbeddedStore::open(&dir, Box::new(KeepAll), options).expect("opens");
        assert_eq!(all(&again).0.len(), alive.len(), "seed {seed}");
        drop(again);
    }
}
