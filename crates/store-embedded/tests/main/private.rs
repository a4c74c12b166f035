//! Permissions of an archive's files.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use hark_archive::{Store, Write};
use hark_networks::nostr::rules::NostrRules;
use hark_store_embedded::{DirectoryLock, EmbeddedOptions, EmbeddedStore};
use hark_testkit::folder::Folder;
use hark_testkit::random::{Flavour, World};

fn all(folder: &Path, found: &mut Vec<PathBuf>) {
    found.push(folder.into());
    for entry in fs::read_dir(folder).expect("is there") {
        let path = entry.expect("is there").path();
        if path.is_dir() { all(&path, found) } else { found.push(path) }
    }
}

#[test]
fn all_that_is_made_in_a_data_directory_is_for_its_owner_alone() {
    let data = Folder::to_be_made("private-shelf");
    let lock = DirectoryLock::acquire(&data).expect("is locked");
    let options = EmbeddedOptions {
        seal_records: 20,
        merge_fan_in: 3,
        rewrite_dead_share: 0.02,
        background: false,
        ..EmbeddedOptions::default()
    };
    let store =
        EmbeddedStore::open(&data.join("nostr"), Box::new(NostrRules), options).expect("opens");
    let mut world = World::new(1, Flavour::Nostr);
    for _ in 0..20 {
        let batch: Vec<Write> = (0..10).map(|_| Write::Put(world.record())).collect();
        store.commit(&batch).expect("commits");
    }
    store.run_due_maintenance().expect("settles");
    drop((store, lock));
    let mut found = Vec::new();
    all(&data, &mut found);
    for ending in ["LOCK", "MANIFEST", "log", "seg", "addr", "dead"] {
        assert!(found.iter().any(|path| path.to_string_lossy().ends_with(ending)), "no {ending}");
    }
    for path in &found {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        let mode = fs::metadata(path).expect("is there").mode() & 0o777;
        assert_eq!(mode, expected, "{} has mode {mode:o}", path.display());
    }
}
