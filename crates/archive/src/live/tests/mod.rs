//! Compares the index with a loop over all subscriptions, and tests the seam with different orders
//! of publication.

use std::sync::atomic::AtomicUsize;

use hark_codec::record::{self, LabelPosition, RecordHeader};
use hark_words::{Part, SearchText};

use super::*;
use crate::query::{LabelSet, TextSource, WordCondition};

mod seam;

fn record(id: u8, author: u8, kind: u32, labels: &[(u8, &[u8])]) -> Vec<u8> {
    let head =
        RecordHeader { id: [id; 32], time: 10, author: Some([author; 32]), kind, expires: None };
    let mut bytes = Vec::new();
    let labels = labels.iter().map(|(name, value)| (*name, LabelPosition::Bytes(value)));
    record::write(&mut bytes, &head, &[id], labels);
    bytes
}

fn publish(live: &LiveIndex, seq: Option<u64>, bytes: &[u8]) {
    live.publish(seq, &Record::new(bytes).unwrap());
}

/// The kind whose records a sink wants early.
const EARLY_KIND: u32 = 7;
/// Number of bytes of held-back records that a sink allows.
const HOLD_MAX: usize = 1000 * HELD_BYTES;

/// A sink that records the delivered bytes, the number of overflows, the number of deliveries since
/// the last wake, and the held-back bytes.
#[derive(Clone, Default)]
struct RecordingSink(Arc<Mutex<Vec<u8>>>, Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>);

impl RecordingSink {
    fn received(&self) -> Vec<u8> {
        assert_eq!(self.2.load(Ordering::Relaxed), 0, "nobody woke it");
        std::mem::take(&mut self.0.lock())
    }
}

impl SubscriptionSink for RecordingSink {
    fn deliver(&self, news: &NewRecord) -> bool {
        self.0.lock().extend_from_slice(news.wire());
        self.2.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn wake(&self) {
        self.2.store(0, Ordering::Relaxed);
    }

    fn hold(&self, bytes: usize) -> bool {
        self.3.fetch_add(bytes, Ordering::Relaxed) + bytes <= HOLD_MAX
    }

    fn free(&self, bytes: usize) {
        self.3.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn is_early(&self, record: &Record<'_>) -> bool {
        record.kind() == EARLY_KIND
    }

    fn overflow(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn listen(live: &Arc<LiveIndex>, queries: Vec<Query>) -> (SubscriptionHandle, RecordingSink) {
    let sink = RecordingSink::default();
    let handle = live.subscribe(queries, Box::new(sink.clone()), 1 << 20);
    while !handle.enter() {}
    (handle, sink)
}

fn authors(authors: &[u8]) -> Query {
    Query { authors: Some(authors.iter().map(|a| [*a; 32]).collect()), ..Query::default() }
}

fn kinds(kinds: &[u32]) -> Query {
    Query { kinds: Some(kinds.to_vec()), ..Query::default() }
}

#[test]
fn each_way_to_ask_finds_what_it_asked_for_once() {
    for is_listed in [false, true] {
        ask_in_each_way(is_listed);
    }
}

fn ask_in_each_way(is_listed: bool) {
    let live = Arc::new(LiveIndex::default());
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
    while is_listed && !live.list_oldest(0) {}
    for (handle, _) in &listeners {
        handle.release(Vec::new());
    }
    assert_eq!(live.len(), 10);
    publish(&live, Some(1), &record(1, 1, 1, &[(b't', b"a"), (b't', b"x")]));
    publish(&live, Some(2), &record(2, 2, 7, &[(b't', b"a"), (b'u', b"a")]));
    publish(&live, None, &record(3, 3, 3, &[]));
    let received: Vec<_> = listeners.iter().map(|(_, sink)| sink.received()).collect();
    let expected: [&[u8]; 10] =
        [&[1, 2], &[1], &[1, 2], &[2], &[1, 2], &[1, 2, 3], &[], &[1, 2, 3], &[1], &[]];
    assert_eq!(received, expected);
    let ears: Vec<_> = listeners.into_iter().map(|(_, sink)| sink).collect();
    assert!(live.is_empty());
    publish(&live, Some(3), &record(4, 1, 1, &[(b't', b"a")]));
    assert!(ears.iter().all(|sink| sink.received().is_empty()));
    assert!(live.index.read().is_bare());
}

/// Subscriptions that are closed while they are among the newest get no entry in a list.
#[test]
fn the_newest_subscriptions_are_in_no_list_and_miss_nothing() {
    let live = Arc::new(LiveIndex::default());
    let few = |kind: u32| vec![authors(&[1]), kinds(&[kind, 9]), Query { to: 3, ..kinds(&[1]) }];
    let mut all = std::collections::VecDeque::new();
    for n in 0..100 {
        let (handle, sink) = listen(&live, few(100 + n % 3));
        handle.release(Vec::new());
        all.push_back((handle, sink));
        let index = live.index.read();
        let listed = all.len() * 3 - index.newest.len();
        assert!(index.newest.len() <= NEWEST_MAX, "{}", index.newest.len());
        assert!(listed > 0 || index.authors_len() == 0);
    }
    // Some of the subscriptions are in lists, the others are not.
    publish(&live, None, &record(1, 1, 1, &[]));
    publish(&live, None, &record(2, 2, 101, &[]));
    publish(&live, None, &record(3, 2, 1, &[]));
    for (n, (_, sink)) in all.iter().enumerate() {
        assert_eq!(sink.received(), if n % 3 == 1 { &[1, 2][..] } else { &[1] }, "{n}");
    }
    let (newest, sink) = all.pop_back().unwrap();
    assert!(newest.leave() && newest.enter());
    let (oldest, _) = all.pop_front().unwrap();
    assert!(oldest.leave());
    publish(&live, None, &record(4, 1, 1, &[]));
    assert_eq!(sink.received(), []);
    assert_eq!(all.iter().map(|(_, sink)| sink.received().len()).sum::<usize>(), 98);
    drop(all);
    drop((newest, oldest));
    assert!(live.is_empty() && live.index.read().is_bare());
}

/// Two subscriptions that share many values enter and leave in overlapping steps, and a third one
/// begins and ends in between.
#[test]
fn what_asks_for_much_is_entered_and_left_bit_by_bit() {
    let live = Arc::new(LiveIndex::default());
    let many = |from: u16| {
        let author = |n: u16| std::array::from_fn(|at| n.to_be_bytes()[at % 2]);
        let all = (from..from + 1_000).map(author).collect();
        vec![kinds(&[9]), Query { authors: Some(all), ..Query::default() }]
    };
    let newest = |live: &LiveIndex| live.index.read().newest.len();
    let is_listed = |queries| {
        let live = Arc::new(LiveIndex::default());
        let (_handle, _) = listen(&live, queries);
        newest(&live) == 0
    };
    let values = || (0..300_u16).map(|n| n.to_be_bytes()[..].into()).collect();
    assert!(is_listed(vec![Query { kinds: Some((0..300).collect()), ..Query::default() }]));
    assert!(is_listed(vec![Query {
        labels: vec![LabelSet { name: b'p', values: values() }, LabelSet::one(b't', b"x")],
        ..Query::default()
    }]));
    assert!(is_listed((0..5).map(|n| kinds(&[n])).collect()));
    assert!(!is_listed((0..4).map(|n| kinds(&[n])).collect()));
    let publish_from = |author: u8| publish(&live, None, &record(author, author, 1, &[]));
    let begin = |queries| {
        let sink = RecordingSink::default();
        let handle = live.subscribe(queries, Box::new(sink.clone()), 1 << 20);
        handle.release(Vec::new());
        (handle, sink)
    };
    // Author [1; 32] is number 257 of all, [3; 32] is number 771.
    let ((one, received_by_one), (two, received_by_two)) = (begin(many(0)), begin(many(0)));
    assert_eq!((one.enter(), two.enter(), two.enter(), two.enter()), (false, false, false, true));
    let (third, received_by_third) = listen(&live, many(500));
    third.release(Vec::new());
    publish_from(3);
    assert_eq!((received_by_one.received(), received_by_two.received()), (vec![], vec![3]));
    while !one.enter() {}
    publish_from(1);
    publish_from(3);
    assert_eq!((received_by_one.received(), received_by_two.received()), (vec![1, 3], vec![1, 3]));
    assert_eq!(received_by_third.received(), [3, 3]);
    drop(third);
    assert!(!two.leave());
    // A subscription that leaves does not enter again.
    assert!(two.enter());
    drop(two);
    publish_from(1);
    publish_from(3);
    assert_eq!((received_by_one.received(), received_by_two.received()), (vec![1, 3], vec![]));
    while !one.leave() {}
    assert!(one.leave() && live.index.read().is_bare());
    drop(one);
    assert!(live.is_empty());
}

/// Moves all subscriptions into their lists. Returns how many filters are compared with a record,
/// and how many of these filters match.
fn compared(live: &LiveIndex, bytes: &[u8]) -> (usize, usize) {
    while !live.list_oldest(0) {}
    let mut found = Vec::new();
    let index = live.index.read();
    let compared = index.find(&Record::new(bytes).unwrap(), &mut found);
    (compared, found.len())
}

/// A record is looked up in the list of each of its labels, and may repeat a label many times.
#[test]
fn a_record_of_many_labels_is_compared_with_each_filter_once() {
    let live = Arc::new(LiveIndex::default());
    let values: Vec<Box<[u8]>> = (0..60_u8).map(|n| [n].into()).collect();
    let tags = LabelSet { name: b't', values: values.clone() };
    let others = LabelSet { name: b'u', values: (0..80).map(|n| [b'x', n].into()).collect() };
    let query = Query { labels: vec![tags, others], ..Query::default() };
    let _handles: Vec<_> = (0..40).map(|_| listen(&live, vec![query.clone()]).0).collect();
    let mut labels: Vec<_> = values.iter().chain(&values).map(|value| (b't', &**value)).collect();
    assert_eq!(compared(&live, &record(1, 1, 1, &labels)), (40, 0));
    labels.push((b'u', &[b'x', 7]));
    assert_eq!(compared(&live, &record(1, 1, 1, &labels)), (40, 40));
}

#[test]
fn filters_that_cannot_match_now_are_not_compared_with_a_record() {
    // The record's time is 10.
    let label = |value: &[u8]| vec![LabelSet::one(b't', value)];
    let bases = [
        Query::default(),
        kinds(&[1]),
        Query { labels: label(b"a"), ..kinds(&[1]) },
        Query { authors: Some(vec![[1; 32]]), ..kinds(&[1]) },
        Query { ids: Some(vec![[1; 32]]), ..Query::default() },
    ];
    for base in bases {
        let live = Arc::new(LiveIndex::default());
        let other = |n: u64| match n % 4 {
            0 => Query { from: 11 + n, ..base.clone() },
            1 => Query { to: n % 10, ..base.clone() },
            2 => Query { from: 11 + n, to: 12 + 2 * n, ..base.clone() },
            _ => Query { from: n % 5, to: 5 + n % 5, ..base.clone() },
        };
        let few = |of: u64| (0..100).map(|n| other(of * 100 + n)).collect();
        let others: Vec<_> = (0..200).map(|of| listen(&live, few(of)).0).collect();
        let bytes = record(1, 1, 1, &[(b't', b"a")]);
        assert_eq!(compared(&live, &bytes), (0, 0), "{base:?}");
        let now = Query { from: 10, to: 10, ..base.clone() };
        let matching: Vec<_> = [now, base].map(|query| listen(&live, vec![query]).0).into();
        assert_eq!(compared(&live, &bytes), (2, 2));
        drop((others, matching));
        assert!(live.index.read().is_bare());
    }
}

/// The text of a record of kind 1 is in its labels `w`.
struct LabelTexts;

impl TextSource for LabelTexts {
    fn texts(&self, record: &Record<'_>, each: &mut dyn FnMut(Part, &str)) {
        for (_, value) in record.labels().filter(|(name, _)| *name == b'w') {
            each(Part::Body, str::from_utf8(value).unwrap());
        }
    }

    fn kinds(&self) -> &[u32] {
        &[1]
    }

    fn fingerprint(&self) -> u64 {
        1
    }

    fn class_time(&self) -> u64 {
        1
    }
}

fn search(text: &str) -> Query {
    let asked = SearchText::parse(text).unwrap().unwrap();
    let words = WordCondition::new(asked, Arc::new(LabelTexts));
    Query { words: Some(Arc::new(words)), ..Query::default() }
}

#[test]
fn a_record_is_compared_only_with_searches_for_its_words() {
    let live = Arc::new(LiveIndex::default());
    let mut others = Vec::new();
    for n in 10..510 {
        for asked in [format!("zz{n}"), format!("zz{n}*"), format!("\"fox zz{n}\" dog")] {
            others.push(listen(&live, vec![search(&asked)]));
        }
    }
    let words: &[u8] = "The quick fox, the foxes and 東京都".as_bytes();
    let bytes = record(1, 1, 1, &[(b'w', words)]);
    assert_eq!(compared(&live, &bytes), (0, 0));
    let asked = ["fox", "qu*", "f*", "\"quick fox\"", "東", "language:zh", "foxes quick"];
    let matching: Vec<_> = asked.map(|text| listen(&live, vec![search(text)])).into();
    let (found, hits) = compared(&live, &bytes);
    assert!(hits == asked.len() && found <= hits + 1, "{found} filters compared, {hits} match");
    // A record of a kind without texts has no words.
    assert_eq!(compared(&live, &record(2, 1, 7, &[(b'w', words)])), (0, 0));
    drop((others, matching));
    assert!(live.index.read().is_bare());
}

#[test]
fn searches_find_live_what_a_loop_finds() {
    let live = Arc::new(LiveIndex::default());
    let texts =
        ["a fox", "the lazy dog", "fox dog fox", "東京都", "привет fox", "do foxes dig", ""];
    let asked =
        ["fox", "fo*", "d* fox", "\"fox dog\"", "dog", "京都", "language:ru", "do*", "lazy fox"];
    let more = |text: &str| {
        let named = Query { labels: vec![LabelSet::one(b't', b"x")], ..search(text) };
        [search(text), named, Query { authors: Some(vec![[1; 32]]), ..search(text) }]
    };
    let queries: Vec<Query> = asked.iter().flat_map(|text| more(text)).collect();
    let handles: Vec<_> = queries.iter().map(|one| listen(&live, vec![one.clone()])).collect();
    // Each record is matched while the subscriptions are among the newest, and again when they are
    // in their lists.
    for (at, (text, author)) in
        texts.iter().chain(&texts).flat_map(|text| [(text, 1), (text, 2)]).enumerate()
    {
        while at >= 2 * texts.len() && !live.list_oldest(0) {}
        let labels: &[(u8, &[u8])] = &[(b'w', text.as_bytes()), (b't', b"x")];
        let bytes = record(1, author, 1, &labels[..usize::from(author)]);
        let (record, mut found) = (Record::new(&bytes).unwrap(), Vec::new());
        live.index.read().find(&record, &mut found);
        let mut found: Vec<u64> = found.iter().map(|found| found.number).collect();
        found.sort_unstable();
        let subscriptions = handles.iter().map(|(handle, _)| &handle.0.subscription);
        let all =
            subscriptions.filter(|one| one.queries.iter().any(|query| query.matches(&record)));
        let expected: Vec<u64> = all.map(|one| one.number).collect();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn filters_for_other_kinds_of_an_author_are_hardly_ever_compared() {
    let live = Arc::new(LiveIndex::default());
    let other = |kind| Query { authors: Some(vec![[1; 32]]), ..kinds(&[kind, kind + 1]) };
    let handles: Vec<_> = (0..2_000).map(|n| listen(&live, vec![other(10 + n)]).0).collect();
    let (compared, found) = compared(&live, &record(1, 1, 1, &[]));
    assert!(compared < handles.len() / 10 && found == 0, "{compared}");
}

#[test]
fn long_lists_find_what_a_loop_finds_whatever_times_are_asked_for() {
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let live = Arc::new(LiveIndex::default());
    let time = |random: &mut dyn FnMut(u64) -> u64| match random(6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << random(64),
        3 => (1 << random(64)) - 1,
        _ => random(40),
    };
    let mut handles = Vec::new();
    for round in 0..600 {
        let (from, to) = (time(&mut random), time(&mut random));
        let mut query = Query { from, to, ..Query::default() };
        if random(3) == 0 {
            query.kinds = Some(vec![random(3) as u32]);
        }
        if random(2) == 0 {
            query.authors = Some(vec![[random(2) as u8; 32]]);
        }
        handles.push(listen(&live, vec![query.clone(), query]).0);
        if round > 300 {
            handles.swap_remove(random(handles.len() as u64) as usize);
            handles.swap_remove(random(handles.len() as u64) as usize);
        }
        let head = RecordHeader {
            id: [1; 32],
            time: time(&mut random),
            author: Some([random(2) as u8; 32]),
            kind: random(3) as u32,
            expires: None,
        };
        let mut bytes = Vec::new();
        record::write(&mut bytes, &head, b"", std::iter::empty());
        let (record, mut found) = (Record::new(&bytes).unwrap(), Vec::new());
        live.index.read().find(&record, &mut found);
        let mut found: Vec<u64> = found.iter().map(|found| found.number).collect();
        found.sort_unstable();
        found.dedup();
        let subscriptions = handles.iter().map(|handle| &handle.0.subscription);
        let asks = |query: &Query| !query.is_void() && query.matches(&record);
        let all = subscriptions.filter(|subscription| subscription.queries.iter().any(asks));
        let mut expected: Vec<u64> = all.map(|subscription| subscription.number).collect();
        expected.sort_unstable();
        assert_eq!(found, expected, "round {round}");
    }
    drop(handles);
    assert!(live.index.read().is_bare());
}
