//! Rules also apply between the records of one batch, although these records are in no file yet. A
//! batch needs only one sync, and has the same outcomes as its writes committed one at a time.

use hark_archive::{Outcome, Store, Write};
use hark_codec::hex::encode_32 as hex;
use hark_codec::record::{LabelPosition, RecordHeader, write};
use hark_networks::nostr::rules::{SLOT, VANISH};
use hark_store_embedded::EmbeddedStore;
use hark_testkit::disk::Trouble;

use crate::support::{Fixture, everything};

/// Makes events with different ids.
#[derive(Default)]
struct Events(u32);

impl Events {
    /// An event of `author`, with bytes as label values.
    fn one(&mut self, author: u8, kind: u32, time: u64, labels: &[(u8, Vec<u8>)]) -> Write {
        self.0 += 1;
        let mut id = [0xab; 32];
        id[..4].copy_from_slice(&self.0.to_be_bytes());
        let head = RecordHeader { id, time, author: Some([author; 32]), kind, expires: None };
        let labels = labels.iter().map(|(name, value)| (*name, LabelPosition::Bytes(value)));
        let mut bytes = Vec::new();
        write(&mut bytes, &head, b"{}", labels);
        Write::Put(bytes.into())
    }
}

fn id_of(write: &Write) -> Vec<u8> {
    let Write::Put(bytes) = write else { panic!("a put") };
    hex(bytes[..32].first_chunk().expect("an id")).to_vec()
}

fn syncs(store: &EmbeddedStore) -> u64 {
    store.stats().syncs.classes.iter().sum()
}

/// Commits a batch to a new store and to the model, asserts that both agree, and returns the number
/// of syncs.
fn syncs_of(batch: &[Write]) -> u64 {
    let fixture = Fixture::new(7);
    let store = fixture
        .open(hark_store_embedded::EmbeddedOptions { seal_records: 5_000, ..fixture.options() });
    let before = syncs(&store);
    let ours = store.commit(batch).expect("commits");
    let taken = syncs(&store) - before;
    let model = fixture.model.commit(batch).expect("commits");
    let stored = |outcome: &Outcome| match outcome {
        Outcome::Stored { .. } => Outcome::Stored { seq: 0 },
        other => *other,
    };
    let outcomes = |outcomes: &[Outcome]| outcomes.iter().map(stored).collect::<Vec<_>>();
    assert_eq!(outcomes(&ours.outcomes), outcomes(&model.outcomes));
    assert_eq!(ours.erased, model.erased);
    fixture.same_as_model(&store, "committed");
    drop(store);
    let again = fixture.open(fixture.options());
    fixture.same_as_model(&again, "opened again");
    drop(again);
    fixture.no_faults("opened again");
    taken
}

#[test]
fn versions_of_a_profile_take_as_many_syncs_as_notes() {
    let mut events = Events::default();
    let notes: Vec<Write> = (0..1_150).map(|n| events.one(n as u8 % 3, 1, n, &[])).collect();
    assert_eq!(syncs_of(&notes), 1);
    let profiles: Vec<Write> = (0..1_150).map(|n| events.one(n as u8 % 3, 0, n, &[])).collect();
    assert_eq!(syncs_of(&profiles), 1);
    // The oldest event comes last, so all events except the first of each key are too old.
    let backwards: Vec<Write> =
        (0..1_150).map(|n| events.one(n as u8 % 3, 0, 2_000 - n, &[])).collect();
    assert_eq!(syncs_of(&backwards), 1);
}

#[test]
fn addresses_deletions_vanishes_and_gift_wraps_of_one_batch_are_one_sync() {
    let mut events = Events::default();
    let mut batch = Vec::new();
    for n in 0..200u64 {
        let (author, time) = (n as u8 % 3, 1_000 + n);
        let (key, d) = (hex(&[author; 32]).to_vec(), format!("{}", n % 5).into_bytes());
        batch.push(events.one(author, 30_000, time, &[(SLOT, d.clone())]));
        let note = events.one(author, 1, time, &[]);
        let wrap = events.one(9, 1_059, time, &[(b'p', key.clone())]);
        let names = vec![(b'e', id_of(&note)), (b'e', id_of(&wrap))];
        batch.extend([note.clone(), wrap.clone(), events.one(author, 5, time, &names)]);
        // The deleted events arrive again.
        batch.extend([note, wrap]);
        if n % 20 == 0 {
            let address = [&b"30000:"[..], &key, b":", &d].concat();
            batch.push(events.one(author, 5, time, &[(b'a', address)]));
            batch.push(events.one(author, 30_000, time, &[(SLOT, d)]));
        }
        if n % 50 == 0 {
            batch.push(events.one(author, 62, time - 20, &[(VANISH, Vec::new())]));
            batch.push(events.one(author, 1, time - 30, &[]));
        }
    }
    assert_eq!(syncs_of(&batch), 1);
}

#[test]
fn a_write_that_finds_the_disk_full_is_undone_and_the_same_store_goes_on() {
    for seed in 0..20 {
        let mut fixture = Fixture::new(seed);
        let store = fixture.open(fixture.options());
        fixture.write(&store, 25);
        for _ in 0..6 {
            let batch: Vec<Write> = (0..12).map(|_| Write::Put(fixture.world.record())).collect();
            let before = everything(&store);
            // The first disk write of the commit writes the batch or the header of a log.
            fixture.disk.arm(Trouble::Full, 0);
            let refused = store.commit(&batch).expect_err("nothing fits").to_string();
            fixture.disk.end_faults();
            assert!(refused.contains("the disk is full"), "{refused}");
            assert!(everything(&store) == before, "no part of the batch is stored");
            store.commit(&batch).expect("there is space again");
            fixture.model.commit(&batch).expect("commits");
            fixture.same_as_model(&store, "after the disk was full");
        }
        assert_eq!(store.stats().damaged, 0);
        store.run_due_maintenance().expect("settles");
        fixture.same_as_model(&store, "settled");
        drop(store);
        let again = fixture.open(fixture.options());
        fixture.same_as_model(&again, "opened again");
        drop(again);
        fixture.no_faults("opened again");
    }
}

#[test]
fn too_many_open_files_put_off_what_needs_a_new_log_and_stop_nothing() {
    let mut fixture = Fixture::new(3);
    let store = fixture.open(fixture.options());
    let mut put_off = 0;
    for _ in 0..30 {
        let batch: Vec<Write> = (0..12).map(|_| Write::Put(fixture.world.record())).collect();
        fixture.disk.arm(Trouble::NoFiles, 0);
        let committed = store.commit(&batch);
        fixture.disk.end_faults();
        if let Err(error) = committed {
            assert!(matches!(error, hark_archive::CommitError::Unavailable(_)), "{error}");
            assert!(error.to_string().contains("a new log could not be begun"), "{error}");
            fixture.same_as_model(&store, "put off");
            store.commit(&batch).expect("files can be opened again");
            put_off += 1;
        }
        fixture.model.commit(&batch).expect("commits");
        fixture.same_as_model(&store, "committed");
    }
    assert!(put_off >= 5, "{put_off} logs were begun");
    store.run_due_maintenance().expect("settles");
    assert_eq!(fixture.unnamed(), Vec::<String>::new());
    drop(store);
    fixture.no_faults("settled");
}

#[test]
fn what_was_stored_before_the_disk_was_full_is_answered_as_stored() {
    let mut fixture = Fixture::new(11);
    // With so little memory, a batch is committed in several pieces.
    let options = hark_store_embedded::EmbeddedOptions {
        seal_records: 5_000,
        head_bytes_max: 40_000,
        ..fixture.options()
    };
    let store = fixture.open(options);
    let mut cut = 0;
    for _ in 0..8 {
        let batch: Vec<Write> = (0..120).map(|_| Write::Put(fixture.world.record())).collect();
        let syncs_before = syncs(&store);
        // The first write fits, and a later write does not.
        fixture.disk.arm(Trouble::Full, 4);
        let done = store.commit_some(&batch);
        fixture.disk.end_faults();
        let stored = done.as_ref().map_or(0, |done| done.outcomes.len());
        assert_eq!(stored > 0, syncs(&store) > syncs_before, "as many are answered as are stored");
        fixture.model.commit(&batch[..stored]).expect("commits");
        fixture.same_as_model(&store, "what is answered is there, and nothing else");
        if stored < batch.len() {
            cut += usize::from(stored > 0);
            store.commit(&batch[stored..]).expect("there is space again");
            fixture.model.commit(&batch[stored..]).expect("commits");
        }
        fixture.same_as_model(&store, "committed");
    }
    assert!(cut > 2, "{cut} batches were cut");
    drop(store);
    fixture.no_faults("after the disk was full");
}
