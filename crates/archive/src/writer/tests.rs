//! Tests of batches and of writes in steps, with the model store.

use std::sync::mpsc::channel;

use hark_codec::record::{RecordHeader, write};

use super::*;
use crate::effects::KeepAll;
use crate::query::Query;
use crate::store::memory::MemoryStore;

fn put(n: u16) -> Write {
    let mut id = [0; 32];
    id[..2].copy_from_slice(&n.to_be_bytes());
    let mut out = Vec::new();
    let head = RecordHeader { id, time: u64::from(n), author: None, kind: 1, expires: None };
    write(&mut out, &head, b"{}", std::iter::empty());
    Write::Put(out.into())
}

/// Sends the number of records in each batch.
struct CountingListener(std::sync::mpsc::Sender<usize>);

impl CommitListener for CountingListener {
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    ) {
        self.0.send(records.count()).unwrap();
        answer();
    }
}

#[test]
fn a_batch_waits_for_many_expected_writes_but_not_for_ever() {
    let (counts, batches) = channel();
    let store = Arc::new(MemoryStore::new(KeepAll));
    let listener = Box::new(CountingListener(counts));
    let writer = Arc::new(Writer::start(store as _, WriterOptions::default(), listener));
    let mut expected = writer.expect(20);
    for n in 0..20 {
        expected.left(19 - usize::from(n));
        assert!(writer.submit(put(n), Box::new(|_| {})).is_ok());
    }
    let mut came = 0;
    while came < 20 {
        came += batches.recv().unwrap();
    }
    // Announced writes that never come do not hold up other writes.
    expected.left(1_000);
    writer.write(put(20)).unwrap();
    assert_eq!(batches.recv().unwrap(), 1);
    drop(expected);
    assert_eq!(writer.expected.load(Ordering::Relaxed), 0);
}

#[test]
fn a_write_that_deletes_much_lets_others_by_between_its_steps() {
    let store = Arc::new(MemoryStore::new(KeepAll).with_erase_step(10));
    store.commit(&(0..95).map(put).collect::<Vec<_>>()).unwrap();
    let writer = Writer::start(Arc::clone(&store) as _, WriterOptions::default(), Box::new(()));
    // The job stops the writer until all writes below are queued.
    let (go, wait) = channel::<()>();
    let held = writer.between(Box::new(move |_| wait.recv().unwrap()));
    assert!(held.is_ok());
    let (sender, receiver) = channel();
    let submit = |name: &'static str, write| {
        let sender = sender.clone();
        let done = move |outcome: Result<_, _>| sender.send((name, outcome.unwrap())).unwrap();
        writer.submit(write, Box::new(done)).unwrap();
    };
    let erase =
        |from, limit| Write::Erase(Box::new(Query { from, to: 94, limit, ..Query::default() }));
    submit("all but", erase(0, 85));
    submit("one", put(1_000));
    submit("rest", erase(0, usize::MAX));
    submit("another", put(1_001));
    go.send(()).unwrap();
    let all: Vec<_> = (0..4).map(|_| receiver.recv().unwrap()).collect();
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    assert_eq!(names[..2], ["one", "another"]);
    // The two erases together deleted each record once, and each erase reports the number of its
    // own deletes.
    let erased = all[2..].iter().map(|(_, outcome)| match outcome {
        Outcome::Erased(count) => *count,
        other => panic!("{other:?}"),
    });
    assert_eq!(erased.sum::<u64>(), 95);
    // On close, an unfinished write is answered with an error.
    store.commit(&(0..95).map(put).collect::<Vec<_>>()).unwrap();
    let (go, wait) = channel::<()>();
    assert!(writer.between(Box::new(move |_| wait.recv().unwrap())).is_ok());
    let (sender, receiver) = channel();
    let done = move |outcome| sender.send(outcome).unwrap();
    writer.submit(erase(0, usize::MAX), Box::new(done)).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| writer.close());
        while !writer.closing.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
    });
    let outcome: Result<Outcome, Arc<CommitError>> = receiver.recv().unwrap();
    assert!(matches!(*outcome.unwrap_err(), CommitError::Unavailable(_)));
    assert!(writer.submit(put(1_002), Box::new(|_| {})).is_err(), "and nothing is taken");
    writer.close();
}
