//! Tests of the slow check's steps.

use std::path::PathBuf;

use hark_archive::effects::KeepAll;
use hark_archive::{Query, RecordHeader, Store as _, Write};
use hark_testkit::disk::scratch;

use super::*;
use crate::options::EmbeddedOptions;

/// A directory that is removed with this.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left behind in the temporary directory harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A shelf with one segment of four logs with 20 records each, and a head.
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
    store.settle().unwrap();
    assert_eq!(store.stats().segments, 1);
    (dir, store)
}

#[test]
fn figures_are_told_while_a_step_reads() {
    let (_dir, store) = shelf("scrub-figures");
    let _reading = store.shelf.scrub.run.lock();
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
        // One of each log in turn.
        deleted = if deleted >= 60 { deleted - 59 } else { deleted + 20 };
        let delete = Write::Erase(Box::new(Query { limit: 1, ids, ..Query::default() }));
        store.commit(&[delete]).unwrap();
        store.settle().unwrap();
        assert!(rewritten() > before);
        store.shelf.scrub_step().1
    });
    assert!(has_ended);
    let told = store.stats();
    assert_eq!(store.shelf.scrub.run.lock().faults, 0);
    assert_eq!((told.damaged, told.damaged_files), (0, Vec::new()));
}
