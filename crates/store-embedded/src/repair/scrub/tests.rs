//! Tests of the slow check's steps.

use std::path::PathBuf;

use hark_archive::effects::KeepAll;
use hark_archive::{Query, RecordHeader, Store as _, Write};
use hark_testkit::disk::scratch;

use super::read::STEP_BYTES;
use super::step::scrub_step;
use crate::engine::embedded_store::EmbeddedStore;
use crate::options::EmbeddedOptions;

/// A directory that is removed when this value is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the removal fails, only temporary files remain.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes a shelf with a head and one segment, which covers four logs with 20 records each.
fn shelf(name: &str) -> (Scratch, EmbeddedStore) {
    let dir = Scratch(scratch(name));
    let options = EmbeddedOptions {
        seal_records: 20,
        merge_fan_in: 4,
        rewrite_dead_share: 0.01,
        background: false,
        ..EmbeddedOptions::default()
    };
    let store = EmbeddedStore::open(&dir.0, Box::new(KeepAll), options).unwrap();
    for n in 0..81 {
        let head =
            RecordHeader { id: [n; 32], time: u64::from(n), author: None, kind: 1, expires: None };
        store.commit(&[Write::Put(hark_testkit::random::encode(&head, &[]))]).unwrap();
    }
    store.run_due_maintenance().unwrap();
    assert_eq!(store.stats().segments, 1);
    (dir, store)
}

#[test]
fn figures_are_told_while_a_step_reads() {
    let (_dir, store) = shelf("scrub-figures");
    let _reading = store.shelf.jobs.scrub().run();
    assert_eq!(store.stats().scrub.unwrap().passes, 0);
}

#[test]
fn a_pass_ends_although_a_log_of_its_segment_is_rewritten_before_each_step() {
    let (_dir, store) = shelf("scrub-rewritten");
    let rewritten = || store.stats().maintenance.rewriting.records;
    let mut deleted = 0u8;
    let has_ended = (0..40).any(|_| {
        let before = rewritten();
        let ids = Some(vec![[deleted; 32]]);
        // The next record to delete is in the next log.
        deleted = if deleted >= 60 { deleted - 59 } else { deleted + 20 };
        let delete = Write::Erase(Box::new(Query { limit: 1, ids, ..Query::default() }));
        store.commit(&[delete]).unwrap();
        store.run_due_maintenance().unwrap();
        assert!(rewritten() > before);
        scrub_step(&store.shelf).1
    });
    assert!(has_ended);
    let told = store.stats();
    assert_eq!(store.shelf.jobs.scrub().run().faults, 0);
    assert_eq!((told.damaged, told.damaged_files), (0, Vec::new()));
}

#[test]
fn what_a_step_cannot_read_is_read_by_questions_and_no_log_is_held_between_steps() {
    let dir = Scratch(scratch("scrub-pages"));
    let options = EmbeddedOptions { background: false, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(&dir.0, Box::new(KeepAll), options).unwrap();
    for n in 0..45 {
        let time = u64::from(n);
        let head = RecordHeader { id: [n; 32], time, author: None, kind: 1, expires: None };
        let mut out = Vec::new();
        hark_codec::record::write(&mut out, &head, &[b'x'; 10_000], std::iter::empty());
        store.commit(&[Write::Put(out.into())]).unwrap();
    }
    let path = crate::log::path(&dir.0, 1, 0);
    let whole = std::fs::read(&path).unwrap();
    assert!(scrub_step(&store.shelf).0 >= STEP_BYTES as u64);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_it = maps.lines().filter(|line| line.ends_with(path.to_str().unwrap())).count();
    assert_eq!(of_it, 1, "the map of questions");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(290_000).unwrap();
    scrub_step(&store.shelf);
    std::fs::write(&path, whole).unwrap();
    assert!(scrub_step(&store.shelf).1, "the rest is lost");
    let stats = store.stats();
    assert_eq!(stats.damaged_files, [path.display().to_string()]);
    let mut found = 0;
    let mut search = store.search(&Query::default()).unwrap();
    let sliced = search.slice(u64::MAX, &mut |_| {
        found += 1;
        std::ops::ControlFlow::Continue(())
    });
    assert!(sliced.is_ok());
    assert_eq!((found, store.stats().damaged), (45, 0));
}
