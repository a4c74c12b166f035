//! A reader opens the shelf beside its writer, while the writer seals, merges and rewrites.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hark_archive::effects::KeepAll;
use hark_archive::{Id, Query, RecordHeader, Store, Write};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, check};
use hark_testkit::folder::Folder;
use hark_testkit::random::{Random, encode};
use hark_testkit::runs::is_long;

/// The writes sent to the writer, and the number of acknowledged writes.
#[derive(Default)]
struct Asked {
    put: Vec<Id>,
    put_done: usize,
    deleted: Vec<Id>,
    deleted_done: usize,
}

fn write(store: &EmbeddedStore, asked: &Mutex<Asked>, random: &mut Random, alive: &mut Vec<Id>) {
    let mut batch = Vec::new();
    let mut held = asked.lock().expect("no panic");
    for _ in 0..=random.below(12) {
        if random.below(100) < 45 && !alive.is_empty() {
            let id = alive.swap_remove(random.below(alive.len()));
            held.deleted.push(id);
            let query = Query { ids: Some(vec![id]), ..Query::default() };
            batch.push(Write::Erase(Box::new(query)));
        } else {
            let head = RecordHeader {
                id: random.bytes(),
                time: 1_000 + random.below(500) as u64,
                author: None,
                kind: 0,
                expires: None,
            };
            held.put.push(head.id);
            batch.push(Write::Put(encode(&head, &[(b'c', b"topic".to_vec())])));
            alive.push(head.id);
        }
    }
    drop(held);
    store.commit(&batch).expect("commits");
    let mut held = asked.lock().expect("no panic");
    (held.put_done, held.deleted_done) = (held.put.len(), held.deleted.len());
}

#[test]
fn a_reader_beside_the_writer_misses_nothing_and_shows_nothing_deleted() {
    let dir = Folder::to_be_made("beside");
    let options = EmbeddedOptions {
        seal_records: 40,
        merge_fan_in: 3,
        rewrite_dead_share: 0.1,
        background: true,
        ..EmbeddedOptions::default()
    };
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone()).expect("opens");
    let asked = Mutex::new(Asked::default());
    let over = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_secs(if is_long() { 60 } else { 3 });
    let mut opened = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut random, mut alive) = (Random::new(4), Vec::new());
            while !over.load(Ordering::Relaxed) {
                write(&store, &asked, &mut random, &mut alive);
                if random.once_in(200) {
                    store.compact(&mut |_| {}).expect("compacts");
                }
            }
        });
        let looks = || {
            while Instant::now() < until {
                let (put_before, deleted_before) = {
                    let held = asked.lock().expect("no panic");
                    (held.put_done, held.deleted_done)
                };
                let reader = match EmbeddedStore::open_read_only(&dir, options.clone()) {
                    Ok(reader) => reader,
                    Err(error) => return Err(error.to_string()),
                };
                let mut seen = HashSet::new();
                let mut search = reader.search(&Query::default()).expect("searches");
                let all = &mut |record: &hark_archive::Record<'_>| {
                    seen.insert(*record.id());
                    ControlFlow::Continue(())
                };
                search.slice(u64::MAX, all).expect("answers");
                let held = asked.lock().expect("no panic");
                let deleted: HashSet<&Id> = held.deleted.iter().collect();
                let missed = held.put[..put_before]
                    .iter()
                    .filter(|id| !deleted.contains(id) && !seen.contains(*id))
                    .count();
                let risen =
                    held.deleted[..deleted_before].iter().filter(|id| seen.contains(*id)).count();
                drop(held);
                if missed + risen > 0 {
                    return Err(format!("{missed} records missed, {risen} deleted ones shown"));
                }
                opened += 1;
                if opened % 20 == 0 {
                    let report = check(&dir, &options, &mut |_| {}).expect("can be checked");
                    if !report.faults.is_empty() {
                        return Err(format!("{:?}", report.faults));
                    }
                }
            }
            Ok(())
        };
        // A panic in the reader must not leave the writer running for ever.
        let mut looks = looks;
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut looks));
        over.store(true, Ordering::Relaxed);
        assert_eq!(looked.expect("no panic"), Ok(()));
    });
    println!("{opened} readers, {:?}", store.stats());
    drop(store);
}
