//! The index against every subscription asked, and the seam against every order of events.

use std::sync::atomic::AtomicUsize;

use hark_codec::record::{self, Head, Place};

use super::*;
use crate::query::LabelSet;

fn record(id: u8, author: u8, kind: u32, labels: &[(u8, &[u8])]) -> Vec<u8> {
    let head = Head { id: [id; 32], time: 10, author: Some([author; 32]), kind, expires: None };
    let mut bytes = Vec::new();
    let labels = labels.iter().map(|(name, value)| (*name, Place::Bytes(value)));
    record::write(&mut bytes, &head, &[id], labels);
    bytes
}

fn publish(live: &Live, seq: Option<u64>, bytes: &[u8]) {
    live.publish(seq, &Record::new(bytes).unwrap());
}

/// What was delivered, how often it overflowed, and what was delivered since it was woken.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<u8>>>, Arc<AtomicUsize>, Arc<AtomicUsize>);

impl Ear {
    fn heard(&self) -> Vec<u8> {
        assert_eq!(self.2.load(Ordering::Relaxed), 0, "nobody woke it");
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Sink for Ear {
    fn deliver(&self, news: News) {
        self.0.lock().unwrap().extend_from_slice(news.wire());
        self.2.fetch_add(1, Ordering::Relaxed);
    }

    fn wake(&self) {
        self.2.store(0, Ordering::Relaxed);
    }

    fn overflow(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn listen(live: &Arc<Live>, queries: Vec<Query>) -> (Handle, Ear) {
    let ear = Ear::default();
    let handle = live.subscribe(queries, Box::new(ear.clone()), 1 << 20);
    while !handle.enter() {}
    (handle, ear)
}

fn authors(authors: &[u8]) -> Query {
    Query { authors: Some(authors.iter().map(|a| [*a; 32]).collect()), ..Query::default() }
}

fn kinds(kinds: &[u32]) -> Query {
    Query { kinds: Some(kinds.to_vec()), ..Query::default() }
}

#[test]
fn each_way_to_ask_finds_what_it_asked_for_once() {
    let live = Arc::new(Live::default());
    let label =
        |value: &[u8]| vec![LabelSet { name: b't', values: vec![value.into(), b"x"[..].into()] }];
    let questions = vec![
        vec![Query { ids: Some(vec![[1; 32], [2; 32]]), ..Query::default() }],
        vec![authors(&[9, 1])],
        vec![Query { labels: label(b"a"), ..Query::default() }],
        vec![Query { labels: label(b"a"), ..kinds(&[7]) }],
        vec![kinds(&[1, 7])],
        vec![Query::default()],
        vec![Query { from: 11, ..Query::default() }],
        vec![kinds(&[1]), authors(&[1]), Query::default()],
        vec![Query { limit: 0, ..kinds(&[1]) }],
        vec![Query { kinds: Some(vec![]), ..Query::default() }],
    ];
    let listeners: Vec<_> = questions.into_iter().map(|q| listen(&live, q)).collect();
    for (handle, _) in &listeners {
        handle.release(Told::new());
    }
    assert_eq!(live.len(), 10);
    publish(&live, Some(1), &record(1, 1, 1, &[(b't', b"a"), (b't', b"x")]));
    publish(&live, Some(2), &record(2, 2, 7, &[(b't', b"a"), (b'u', b"a")]));
    publish(&live, None, &record(3, 3, 3, &[]));
    let heard: Vec<_> = listeners.iter().map(|(_, ear)| ear.heard()).collect();
    let expected: [&[u8]; 10] =
        [&[1, 2], &[1], &[1, 2], &[2], &[1, 2], &[1, 2, 3], &[], &[1, 2, 3], &[1], &[]];
    assert_eq!(heard, expected);
    let ears: Vec<_> = listeners.into_iter().map(|(_, ear)| ear).collect();
    assert!(live.is_empty());
    publish(&live, Some(3), &record(4, 1, 1, &[(b't', b"a")]));
    assert!(ears.iter().all(|ear| ear.heard().is_empty()));
    assert!(live.index.read().unwrap().is_bare());
}

/// Two that share many values are put in and taken out bit by bit and in turns, and a third comes and
/// goes in between.
#[test]
fn what_asks_for_much_is_entered_and_left_bit_by_bit() {
    let live = Arc::new(Live::default());
    let many = |from: u16| {
        let author = |n: u16| std::array::from_fn(|at| n.to_be_bytes()[at % 2]);
        let all = (from..from + 1_000).map(author).collect();
        vec![kinds(&[9]), Query { authors: Some(all), ..Query::default() }]
    };
    let tell = |author: u8| publish(&live, None, &record(author, author, 1, &[]));
    let begin = |queries| {
        let ear = Ear::default();
        let handle = live.subscribe(queries, Box::new(ear.clone()), 1 << 20);
        handle.release(Told::new());
        (handle, ear)
    };
    // Author [1; 32] is number 257 of all, [3; 32] is number 771.
    let ((one, heard_by_one), (two, heard_by_two)) = (begin(many(0)), begin(many(0)));
    assert_eq!((one.enter(), two.enter(), two.enter(), two.enter()), (false, false, false, true));
    let (third, heard_by_third) = listen(&live, many(500));
    third.release(Told::new());
    tell(3);
    assert_eq!((heard_by_one.heard(), heard_by_two.heard()), (vec![], vec![3]));
    while !one.enter() {}
    tell(1);
    tell(3);
    assert_eq!((heard_by_one.heard(), heard_by_two.heard()), (vec![1, 3], vec![1, 3]));
    assert_eq!(heard_by_third.heard(), [3, 3]);
    drop(third);
    assert!(!two.leave());
    // Whoever leaves does not come back in.
    assert!(two.enter());
    drop(two);
    tell(1);
    tell(3);
    assert_eq!((heard_by_one.heard(), heard_by_two.heard()), (vec![1, 3], vec![]));
    while !one.leave() {}
    assert!(one.leave() && live.index.read().unwrap().is_bare());
    drop(one);
    assert!(live.is_empty());
}

#[test]
fn what_the_snapshot_saw_is_not_told_again_and_what_it_did_not_see_follows() {
    let live = Arc::new(Live::default());
    let (handle, ear) = listen(&live, vec![kinds(&[1])]);
    publish(&live, Some(1), &record(1, 1, 1, &[]));
    handle.opened(0, 2);
    publish(&live, Some(2), &record(2, 1, 1, &[]));
    publish(&live, Some(3), &record(3, 1, 1, &[]));
    publish(&live, None, &record(9, 1, 1, &[]));
    assert_eq!(ear.heard(), []);
    handle.release(Told::new());
    assert_eq!(ear.heard(), [3, 9]);
    publish(&live, Some(4), &record(4, 1, 1, &[]));
    assert_eq!(ear.heard(), [4]);
}

/// The store shows a record before the writer's thread gets round to publish it: a search can be
/// opened, told and released in between.
#[test]
fn a_record_published_after_it_was_told_is_not_told_again() {
    let live = Arc::new(Live::default());
    let (handle, ear) = listen(&live, vec![kinds(&[1])]);
    handle.opened(0, 2);
    handle.release(Told::new());
    publish(&live, Some(1), &record(1, 1, 1, &[]));
    publish(&live, Some(2), &record(2, 1, 1, &[]));
    publish(&live, Some(3), &record(3, 1, 1, &[]));
    assert_eq!(ear.heard(), [3]);
}

#[test]
fn several_queries_with_different_snapshots_tell_each_record_once() {
    let live = Arc::new(Live::default());
    let (handle, ear) = listen(&live, vec![kinds(&[1]), authors(&[1])]);
    handle.opened(0, 1);
    // Matches the first only, which did not see it.
    publish(&live, Some(2), &record(2, 2, 1, &[]));
    // Matches both; the second saw it and told it.
    publish(&live, Some(3), &record(3, 1, 1, &[]));
    // Matches both; the second saw it, but a limit kept it back.
    publish(&live, Some(4), &record(4, 1, 1, &[]));
    handle.opened(1, 5);
    handle.release(Told::from([[3; 32], [5; 32]]));
    assert_eq!(ear.heard(), [2, 4]);
    // Matches both, was told, and is published late.
    publish(&live, Some(5), &record(5, 1, 1, &[]));
    publish(&live, Some(6), &record(6, 1, 1, &[]));
    assert_eq!(ear.heard(), [6]);
}

#[test]
fn who_holds_back_too_much_is_told_once_and_hears_no_more() {
    let live = Arc::new(Live::default());
    let ear = Ear::default();
    let handle = live.subscribe(vec![Query::default()], Box::new(ear.clone()), 500);
    for n in 0..20 {
        publish(&live, Some(u64::from(n)), &record(n, 1, 1, &[]));
    }
    handle.release(Told::new());
    publish(&live, Some(21), &record(21, 1, 1, &[]));
    assert_eq!((ear.heard(), ear.1.load(Ordering::Relaxed)), (vec![], 1));
}
