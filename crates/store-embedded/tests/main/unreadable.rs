//! Files that are shortened while they are mapped: operations that need a missing page return an
//! error, and the process survives.

use std::fs::OpenOptions;
use std::path::PathBuf;

use hark_archive::copy::ComparisonWalk;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{CommitError, Query, SearchError, Store, Write};
use hark_networks::nostr::rules::NostrRules;

use crate::support::{Fixture, everything};

/// Truncates all files with this extension that are longer than `len` to `len` bytes, and returns
/// their paths.
fn cut(fixture: &Fixture, folder: &str, ending: &str, len: u64) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixture.dir().join(folder)).expect("is there");
    let paths = entries.map(|entry| entry.expect("is there").path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|is| is == ending)).collect();
    paths.sort();
    if folder == "log" {
        // The last log is being written.
        paths.pop();
    }
    paths.retain(|path| std::fs::metadata(path).expect("is there").len() > len);
    for path in &paths {
        OpenOptions::new().write(true).open(path).expect("opens").set_len(len).expect("is cut");
    }
    paths
}

fn ask(store: &dyn Store) -> Result<usize, SearchError> {
    let mut records = 0;
    let mut search = store.search(&Query::default())?;
    search.slice(u64::MAX, &mut |_| {
        records += 1;
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(records)
}

#[test]
fn segments_that_lose_their_pages_are_asked_in_vain_until_they_are_made_anew() {
    for ending in ["seg", "addr"] {
        let mut fixture = Fixture::with_all_maintenance_due(3);
        let store = fixture.open(fixture.options());
        store.run_due_maintenance().expect("settles");
        let expected = everything(&store);
        let known = *hark_archive::Record::new(&expected[expected.len() / 2]).unwrap().id();
        cut(&fixture, "seg", ending, 0);
        let refused = ask(&store).expect_err("no answer without the missing page");
        assert!(refused.to_string().contains("could not be read"), "{refused}");
        assert!(ask(&store).is_err(), "the second attempt fails, too");
        assert!(store.count(&Query::default()).is_err());
        assert!(store.knows(&known).is_err(), "the ids are unreadable");
        let write = Write::Put(fixture.world.record());
        let refused = store.commit(&[write]).expect_err("the replaced record is unknown");
        assert!(matches!(refused, CommitError::Unavailable(_)), "{refused}");
        let named = store.stats().damaged_files;
        assert!(!named.is_empty() && named[0].contains(".seg"), "{named:?}");

        // Maintenance rebuilds both files from the logs.
        store.run_due_maintenance().expect("settles");
        assert_eq!(store.stats().damaged_files, Vec::<String>::new());
        assert!(everything(&store) == expected, "{ending}");
        fixture.write(&store, 20);
        drop(store);
        fixture.no_faults(ending);
    }
}

#[test]
fn records_whose_log_loses_its_pages_are_left_out_and_the_log_is_named() {
    let mut fixture = Fixture::with_all_maintenance_due(4);
    let store = fixture.open(fixture.options());
    store.run_due_maintenance().expect("settles");
    let all = ask(&store).expect("answers");
    let logs = cut(&fixture, "log", "log", 4096);
    assert!(ask(&store).is_err(), "the caller gets the error");
    let left = ask(&store).expect("answers with what is there");
    assert!(left > 0 && left < all, "{left} of {all}");
    let stats = store.stats();
    assert!(stats.damaged > 0);
    let named: Vec<PathBuf> = stats.damaged_files.iter().map(PathBuf::from).collect();
    assert!(!named.is_empty() && named.iter().all(|path| logs.contains(path)), "{named:?}");
    fixture.write(&store, 20);
}

#[test]
fn a_walk_that_meets_lost_pages_gives_all_other_records() {
    let fixture = Fixture::with_all_maintenance_due(4);
    let store = fixture.open(fixture.options());
    store.run_due_maintenance().expect("settles");
    let all = ask(&store).expect("answers");
    cut(&fixture, "log", "log", 4096);
    let empty = MemoryStore::new(NostrRules);
    let mut walk = ComparisonWalk::new(&store, &empty).expect("begins");
    let mut found = 0;
    while walk.next_difference().expect("goes on").is_some() {
        found += 1;
    }
    assert!(found > 0 && found < all, "{found} of {all}");
    assert_eq!(found, ask(&store).expect("answers with what is there"));
    assert!(walk.damaged() > 0);
}

#[test]
fn the_slow_check_finds_logs_that_were_cut_short() {
    for len in [0, 4096] {
        let fixture = Fixture::with_all_maintenance_due(4);
        let store = fixture.open(fixture.options());
        store.run_due_maintenance().expect("settles");
        let logs = cut(&fixture, "log", "log", len);
        let scrubbed = store.scrub().expect("scrubs");
        assert_eq!(scrubbed.last_faults, logs.len() as u64);
        let named = logs.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let stats = store.stats();
        assert_eq!(stats.damaged_files, named);
        let known = stats.damaged;
        assert!(ask(&store).is_err(), "the map that questions read from meets it now");
        let left = ask(&store).expect("answers with what is there");
        assert_eq!((left as u64 + known, store.stats().damaged), (stats.records, known));
    }
}
