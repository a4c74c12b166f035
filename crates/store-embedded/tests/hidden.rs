//! Records that a gate hides from a reader affect neither the reader's answers nor their cost.

use std::path::Path;
use std::sync::Arc;

use hark_archive::effects::KeepAll;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{Gate, LabelSet, Query, RecordHeader, Store, Write};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::folder::Folder;
use hark_testkit::hidden::{HIDDEN, SEEN, Secrets, Seen, compare, put};
use hark_testkit::random::encode;
use hark_testkit::runs::seed_or;

fn open(path: &Path, seal_records: usize) -> EmbeddedStore {
    let options = EmbeddedOptions {
        seal_records: seal_records as u32,
        merge_fan_in: 3,
        background: false,
        ..EmbeddedOptions::default()
    };
    EmbeddedStore::open(path, Box::new(KeepAll), options).expect("the shelf opens")
}

/// Both stores seal a head after the same common records, so that their segments differ only in
/// hidden records.
#[test]
fn embedded_answers_and_charges_as_if_nothing_hidden_were_there() {
    let folders = [Folder::to_be_made("hidden-without"), Folder::to_be_made("hidden-with")];
    let without = open(&folders[0], SEEN);
    let with = open(&folders[1], SEEN + HIDDEN);
    let mut secrets = Secrets::new(seed_or(20_261_122));
    let mut answered = 0;
    for _ in 0..7 {
        let [seen, all] = secrets.stage();
        put(&without, &seen);
        put(&with, &all);
        answered += compare([&without, &with], &mut secrets, 400);
    }
    assert_eq!(with.stats().segments, without.stats().segments);
    assert!(answered > 10_000, "{answered}");
}

#[test]
fn the_model_answers_and_charges_as_if_nothing_hidden_were_there() {
    let (without, with) = (MemoryStore::new(KeepAll), MemoryStore::new(KeepAll));
    let mut secrets = Secrets::new(seed_or(20_261_122));
    for _ in 0..2 {
        let [seen, all] = secrets.stage();
        put(&without, &seen);
        put(&with, &all);
        compare([&without, &with], &mut secrets, 200);
    }
}

/// One of two keys receives 3,000 wraps, and the other receives none. No other reader can
/// distinguish the two keys, even after authentication with any other key. This also holds for a
/// reader that has sent itself many wraps to compare the lengths of lists.
#[test]
fn a_key_with_many_wraps_costs_others_as_much_as_one_with_none() {
    let (busy, idle, spy) = ([1; 32], [2; 32], [3; 32]);
    let hex = |key: &[u8; 32]| hark_codec::hex::encode_32(key).to_vec();
    let wrap = |n: u32, to: &[u8; 32], author| {
        let mut id = [9; 32];
        id[..4].copy_from_slice(&n.to_be_bytes());
        let head = RecordHeader {
            id,
            time: u64::from(n),
            author: Some(author),
            kind: 1_059,
            expires: None,
        };
        Write::Put(encode(&head, &[(b'p', hex(to))]))
    };
    let folder = Folder::to_be_made("hidden-keys");
    let store = open(&folder, 1_000);
    put(&store, &(0..3_000).map(|n| wrap(n, &busy, [8; 32])).collect::<Vec<_>>());
    put(&store, &(3_000..3_500).map(|n| wrap(n, &spy, spy)).collect::<Vec<_>>());
    for readers in [vec![], vec![spy]] {
        let values = readers.iter().map(|key| hex(key).into()).collect();
        let addressed = LabelSet { name: b'p', values };
        let gate = Arc::new(Gate { kinds: vec![4, 1_059], readers, addressed });
        let ask = |key: &[u8; 32], more: &[LabelSet]| {
            let labels = [&[LabelSet::one(b'p', &hex(key))], more].concat();
            let query = Query { labels, gate: Some(Arc::clone(&gate)), ..Query::default() };
            let seen = Seen::of(&store, &query, 2_000);
            println!("{} readers, key {}: {} rows", gate.readers.len(), key[0], seen.rows());
            seen
        };
        assert_eq!(ask(&busy, &[]), ask(&idle, &[]));
        let own = [LabelSet::one(b'p', &hex(&spy))];
        assert_eq!(ask(&busy, &own), ask(&idle, &own));
    }
}
