//! The search work of one writer step is bounded for any write and for any number of records with
//! the same labels. A search that takes several steps misses no record that is put between two
//! steps.

use std::sync::Arc;
use std::sync::mpsc::channel;

use hark_archive::effects::Refusal;
use hark_archive::limits::{SEARCH_BATCH, SEARCH_STEP};
use hark_archive::writer::{Writer, WriterOptions};
use hark_archive::{LabelSet, Outcome, Query, RecordHeader, Store, Write};
use hark_codec::hex::encode_32 as hex;
use hark_networks::nostr::rules::{NostrRules, SLOT};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::folder::Folder;
use hark_testkit::random::encode;

const NOW: u64 = 1_700_000_000;
/// The author with many events, and the number of other authors' events that have the same label.
const AUTHOR: u32 = 1_000_000;
const MANY: u32 = 6_000;
/// The kind of these events.
const KIND: u32 = 30_000;

/// A store in its own directory.
struct Shelf {
    store: Option<Arc<EmbeddedStore>>,
    /// The directory, which is removed after the store is closed.
    _folder: Folder,
}

impl Shelf {
    fn new(name: &str) -> Self {
        Self::with(name, EmbeddedOptions::default())
    }

    fn with(name: &str, options: EmbeddedOptions) -> Self {
        let folder = Folder::on_disk(&format!("searches-{name}"));
        let options = EmbeddedOptions { background: false, ..options };
        let store = EmbeddedStore::open(&folder, Box::new(NostrRules), options).expect("opens");
        Self { _folder: folder, store: Some(Arc::new(store)) }
    }

    fn store(&self) -> &Arc<EmbeddedStore> {
        self.store.as_ref().expect("is open")
    }
}

fn key(number: u32) -> [u8; 32] {
    let mut key = [9; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    key
}

fn event(number: u32, author: u32, kind: u32, labels: &[(u8, Vec<u8>)]) -> Write {
    let time = NOW + u64::from(number);
    let author = Some(key(author));
    Write::Put(encode(&RecordHeader { id: key(number), time, author, kind, expires: None }, labels))
}

fn addressed(number: u32, author: u32, d: &str) -> Write {
    event(number, author, KIND, &[(SLOT, d.into())])
}

fn deletion(number: u32, author: u32, names: &[&str]) -> Write {
    let address = |d: &&str| {
        let start = [format!("{KIND}:").as_bytes(), &hex(&key(author))].concat();
        (b'a', [&start, &b":"[..], d.as_bytes()].concat())
    };
    event(number, author, 5, &names.iter().map(address).collect::<Vec<_>>())
}

fn of(author: u32, d: &str) -> Query {
    Query {
        authors: Some(vec![key(author)]),
        kinds: Some(vec![KIND]),
        labels: vec![LabelSet::one(SLOT, d.as_bytes())],
        ..Query::default()
    }
}

/// Puts `own` events of `AUTHOR` with unique labels, and one event with the label "same" for each
/// of [`MANY`] other authors.
fn fill(store: &dyn Store, own: u32) {
    let own = (0..own).map(|n| addressed(n, AUTHOR, &format!("own {n}")));
    let others = (0..MANY).map(|n| addressed(MANY + n, n, "same"));
    let all: Vec<Write> = own.chain(others).collect();
    for part in all.chunks(1_000) {
        store.commit(part).expect("commits");
    }
}

#[test]
fn a_deletion_that_searches_much_goes_on_in_steps_and_misses_nothing_that_comes_between() {
    let shelf = Shelf::new("steps");
    let store = shelf.store();
    fill(&**store, MANY);
    let delete = deletion(90_000, AUTHOR, &["same", "own 7", "new", "later"]);
    let first = store.commit_some(std::slice::from_ref(&delete)).expect("commits");
    assert_eq!((&first.outcomes[..], first.unfinished), (&[Outcome::Erased(0)][..], true));
    assert!(first.searched <= SEARCH_STEP, "{}", first.searched);
    assert_eq!(store.count(&of(AUTHOR, "own 7")).unwrap(), Some(1), "nothing is done yet");
    // The deletion names the first and the second event, but the second is newer than the deletion.
    // The third event has no label.
    let between = [
        addressed(80_000, AUTHOR, "new"),
        addressed(95_000, AUTHOR, "later"),
        event(80_001, AUTHOR, 1, &[]),
        deletion(90_000, AUTHOR, &["same", "own 7", "new", "later"]),
    ];
    let last = store.commit_some(&between).expect("commits");
    assert!(!last.unfinished && last.outcomes.len() == 4, "{:?}", last.outcomes);
    assert!(last.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Stored { .. })));
    // The second step continued at the last position of the first, so the two steps together
    // visited each row once.
    let searched = first.searched + last.searched;
    assert!(searched < u64::from(MANY) + 100, "{searched} rows");
    let mut deleted: Vec<_> = last.erased.iter().filter(|(by, _)| *by == 3).collect();
    deleted.sort();
    assert_eq!(deleted, [&(3, key(7)), &(3, key(80_000))]);
    for (d, left) in [("own 7", 0), ("new", 0), ("later", 1)] {
        assert_eq!(store.count(&of(AUTHOR, d)).unwrap(), Some(left), "{d}");
    }
}

/// Between two steps, the record moves to another segment and is deleted there. The search has the
/// old segment, in which the record is not dead.
#[test]
fn a_search_of_several_steps_does_not_find_what_was_deleted_meanwhile() {
    let options =
        EmbeddedOptions { seal_records: 2_000, merge_fan_in: 1_000, ..EmbeddedOptions::default() };
    let shelf = Shelf::with("deleted", options);
    let store = shelf.store();
    // The search finds the oldest record last.
    store.commit(&[addressed(0, AUTHOR, "same")]).expect("commits");
    let all: Vec<Write> = (1..MANY)
        .flat_map(|n| [addressed(n, AUTHOR, &format!("own {n}")), addressed(MANY + n, n, "same")])
        .collect();
    all.chunks(1_000).for_each(|part| drop(store.commit(part).expect("commits")));
    assert!(store.stats().segments > 2);
    let erase = Write::Erase(Box::new(of(AUTHOR, "same")));
    let first = store.commit_some(std::slice::from_ref(&erase)).expect("commits");
    assert_eq!((&first.outcomes[..], first.unfinished), (&[Outcome::Erased(0)][..], true));
    store.compact(&mut |_| {}).expect("merges");
    assert_eq!(store.stats().segments, 1);
    let oldest = Query { ids: Some(vec![key(0)]), ..Query::default() };
    let between = [Write::Erase(Box::new(oldest)), erase];
    let last = store.commit_some(&between).expect("commits");
    assert_eq!(last.outcomes, [Outcome::Erased(1), Outcome::Erased(0)]);
}

#[test]
fn a_search_that_is_not_last_in_its_batch_begins_again_and_others_do_not_wait_for_it() {
    let shelf = Shelf::new("order");
    let store = shelf.store();
    fill(&**store, MANY);
    let heavy = |number| deletion(number, AUTHOR, &["same", "own 8"]);
    let done = store.commit_some(&[heavy(90_000), event(80_000, 2, 1, &[])]).expect("commits");
    assert_eq!((&done.outcomes[..], done.unfinished), (&[Outcome::Erased(0)][..], true));
    let writer = Writer::start(Arc::clone(store) as _, WriterOptions::default(), Box::new(()));
    // Block the writer until all writes below are queued.
    let (go, wait) = channel::<()>();
    assert!(writer.between(Box::new(move |_| wait.recv().unwrap())).is_ok());
    let (sender, receiver) = channel();
    let submit = |name: u32, write| {
        let sender = sender.clone();
        let done = move |outcome: Result<_, _>| sender.send((name, outcome.unwrap())).unwrap();
        writer.submit(write, Box::new(done)).unwrap();
    };
    for number in 0..3 {
        submit(90_000 + number, heavy(90_000 + number));
        submit(80_000 + number, event(80_000 + number, 2, 1, &[]));
    }
    go.send(()).unwrap();
    let answered: Vec<(u32, Outcome)> = (0..6).map(|_| receiver.recv().unwrap()).collect();
    let order: Vec<u32> = answered.iter().map(|(name, _)| *name).collect();
    assert_eq!(order, [80_000, 80_001, 80_002, 90_000, 90_001, 90_002]);
    assert!(answered.iter().all(|(_, outcome)| matches!(outcome, Outcome::Stored { .. })));
    assert_eq!(store.count(&of(AUTHOR, "own 8")).unwrap(), Some(0));
    writer.close();
}

#[test]
fn a_batch_of_many_searches_is_cut_into_steps_and_all_of_it_is_stored() {
    let shelf = Shelf::new("batch");
    let store = shelf.store();
    let own = 2_000;
    fill(&**store, own);
    let batch: Vec<Write> =
        (0..18).map(|n| deletion(90_000 + n, AUTHOR, &["same", &format!("own {n}")])).collect();
    let (mut rest, mut steps, mut searched) = (&batch[..], 0, 0);
    while !rest.is_empty() {
        let done = store.commit_some(rest).expect("commits");
        assert!(!done.unfinished && !done.outcomes.is_empty());
        assert!(done.searched < SEARCH_BATCH + SEARCH_STEP, "{} rows", done.searched);
        assert!(done.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Stored { .. })));
        rest = &rest[done.outcomes.len()..];
        (steps, searched) = (steps + 1, searched + done.searched);
    }
    // Each search visits the author's events.
    assert!(searched >= 18 * u64::from(own), "{searched} rows");
    assert_eq!(steps, 2);
    assert_eq!(store.count(&of(AUTHOR, "own 17")).unwrap(), Some(0));
}

#[test]
fn versions_of_one_event_search_no_more_than_their_number() {
    let shelf = Shelf::new("versions");
    let store = shelf.store();
    let versions: Vec<Write> = (0..5_000).map(|n| event(n, AUTHOR, 0, &[])).collect();
    let done = store.commit(&versions).expect("commits");
    assert!(done.searched < 100, "{} rows", done.searched);
    // The same holds for older events, and for an event whose predecessor was deleted.
    let older: Vec<Write> = (0..1_000).map(|n| event(6_000 + n, AUTHOR, 0, &[])).rev().collect();
    let done = store.commit(&older).expect("commits");
    assert!(done.searched < 100, "{} rows", done.searched);
    assert!(done.outcomes[1..].iter().all(|outcome| *outcome == Outcome::Superseded));
    let newest = Query { ids: Some(vec![key(6_999)]), ..Query::default() };
    store.commit(&[Write::Erase(Box::new(newest))]).expect("commits");
    let done = store.commit(&[event(3, AUTHOR, 0, &[])]).expect("commits");
    assert!(matches!(done.outcomes[..], [Outcome::Stored { .. }]), "{:?}", done.outcomes);
}

#[test]
fn outcomes_of_what_is_committed_in_steps_are_those_of_its_order() {
    let shelf = Shelf::new("outcomes");
    let store = shelf.store();
    fill(&**store, MANY);
    let all = Query { authors: Some(vec![key(AUTHOR)]), ..Query::default() };
    let batch = [
        addressed(50_000, AUTHOR, "same"),
        deletion(50_010, AUTHOR, &["same", "own 5", "own 6"]),
        addressed(50_005, AUTHOR, "same"),
        addressed(50_020, AUTHOR, "same"),
        Write::Erase(Box::new(Query { limit: 1_500, ..all.clone() })),
    ];
    let done = store.commit(&batch).expect("commits");
    assert!(
        matches!(
            done.outcomes[..],
            [
                Outcome::Stored { .. },
                Outcome::Stored { .. },
                Outcome::Refused(Refusal::Deleted),
                Outcome::Stored { .. },
                Outcome::Erased(1_500)
            ]
        ),
        "{:?}",
        done.outcomes
    );
    let mut by_deletion: Vec<_> = done.erased.iter().filter(|(by, _)| *by == 1).collect();
    by_deletion.sort();
    assert_eq!(by_deletion, [&(1, key(5)), &(1, key(6)), &(1, key(50_000))]);
    // The last version and the deletion were added; two deleted older events and 1,500 erased
    // events are gone.
    assert_eq!(store.count(&all).unwrap(), Some(u64::from(MANY) + 2 - 2 - 1_500));
}
