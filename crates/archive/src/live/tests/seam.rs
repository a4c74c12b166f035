//! Tests of the seam between stored and live records, in every order of publication.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::query::{HiddenRecords, HideRecords, Position};

#[test]
fn what_the_snapshot_saw_is_not_sent_again_and_what_it_did_not_see_follows() {
    let live = Arc::new(LiveIndex::default());
    let (handle, sink) = listen(&live, vec![kinds(&[1])]);
    publish(&live, Some(1), &record(1, 1, 1, &[]));
    handle.opened(0, 2);
    publish(&live, Some(2), &record(2, 1, 1, &[]));
    publish(&live, Some(3), &record(3, 1, 1, &[]));
    publish(&live, None, &record(9, 1, 1, &[]));
    assert_eq!(sink.received(), []);
    handle.release(Vec::new());
    assert_eq!(sink.received(), [3, 9]);
    publish(&live, Some(4), &record(4, 1, 1, &[]));
    assert_eq!(sink.received(), [4]);
}

#[test]
fn early_records_are_delivered_first_and_the_others_as_they_came() {
    let live = Arc::new(LiveIndex::default());
    let (handle, sink) = listen(&live, vec![Query::default()]);
    handle.opened(0, 0);
    let early = |id: u8| id.is_multiple_of(10);
    let publish_one = |id: u8| {
        let kind = if early(id) { EARLY_KIND } else { 1 };
        publish(&live, Some(id.into()), &record(id, 1, kind, &[]));
    };
    (1..=200).for_each(publish_one);
    handle.release_early(&[]);
    let (first, others): (Vec<u8>, Vec<u8>) = (1..=200).partition(|id| early(*id));
    assert_eq!(sink.received(), first);
    assert_eq!(sink.3.load(Ordering::Relaxed), others.len() * HELD_BYTES);
    // A record that comes between the two calls keeps its place.
    (201..=230).for_each(publish_one);
    handle.release(Vec::new());
    assert_eq!(sink.received(), others.into_iter().chain(201..=230).collect::<Vec<_>>());
    assert_eq!(sink.3.load(Ordering::Relaxed), 0);
    handle.release_early(&[]);
    assert_eq!(sink.received(), []);
}

/// Searches see a record before the writer's thread publishes the record. In between, a search can
/// be opened, its answer sent, and the subscription released.
#[test]
fn a_record_published_after_it_was_sent_is_not_sent_again() {
    let live = Arc::new(LiveIndex::default());
    let (handle, sink) = listen(&live, vec![kinds(&[1])]);
    handle.opened(0, 2);
    handle.release(Vec::new());
    publish(&live, Some(1), &record(1, 1, 1, &[]));
    publish(&live, Some(2), &record(2, 1, 1, &[]));
    publish(&live, Some(3), &record(3, 1, 1, &[]));
    assert_eq!(sink.received(), [3]);
}

#[test]
fn several_queries_with_different_snapshots_send_each_record_once() {
    let live = Arc::new(LiveIndex::default());
    let (handle, sink) = listen(&live, vec![kinds(&[1]), authors(&[1])]);
    handle.opened(0, 1);
    // Matches only the first query, whose search did not see the record.
    publish(&live, Some(2), &record(2, 2, 1, &[]));
    // Matches both queries; the second query's search saw and sent the record.
    publish(&live, Some(3), &record(3, 1, 1, &[]));
    // Matches both queries. The second query's search saw the record, but the limit ended the
    // answer before this record was sent.
    publish(&live, Some(4), &record(4, 1, 1, &[]));
    handle.opened(1, 5);
    let last = Position { time: 10, id: [3; 32] };
    handle.release(vec![AnswerReach::Nothing, AnswerReach::UpTo(last)]);
    assert_eq!(sink.received(), [2, 4]);
    // Matches both queries, was sent, and is published late.
    publish(&live, Some(5), &record(1, 1, 1, &[]));
    publish(&live, Some(6), &record(6, 1, 1, &[]));
    assert_eq!(sink.received(), [6]);
}

/// Answers end at varying records, and searches are opened after varying numbers of puts. No record
/// is sent twice, and no record that is put after the opening of the first search is lost.
#[test]
fn what_one_query_sent_no_other_sends_and_no_event_falls_between_them() {
    let queries = [kinds(&[1]), authors(&[1]), Query::default()];
    let bytes: Vec<_> = (1..=6).map(|id| record(id, 1, 1, &[])).collect();
    let records: Vec<_> = bytes.iter().map(|bytes| Record::new(bytes).unwrap()).collect();
    let mut worlds = 0;
    // How far each answer goes, in the order of ids; and after how many puts each search is opened.
    for (reach, opened) in (0..343).flat_map(|a| (0..343).map(move |b| (a, b))) {
        let digits = |n: usize| [n % 7, n / 7 % 7, n / 49];
        let (reach, opened) = (digits(reach), digits(opened));
        if !opened.is_sorted() || (worlds % 7 != 0 && reach != [2, 4, 6]) {
            worlds += 1;
            continue;
        }
        worlds += 1;
        let live = Arc::new(LiveIndex::default());
        let (handle, sink) = listen(&live, queries.to_vec());
        // Records are put from the highest id to the lowest, so that late records come first in the
        // order.
        let seq = |record: &Record<'_>| 7 - u64::from(record.id()[0]);
        let (mut delivered, mut reached, mut put) = (Vec::new(), Vec::new(), 0);
        for (at, query) in queries.iter().enumerate() {
            while put < opened[at] {
                put += 1;
                publish(&live, Some(put as u64), &bytes[6 - put]);
            }
            handle.opened(at, put as u64);
            let seen = records.iter().filter(|record| seq(record) <= put as u64);
            let mut last = AnswerReach::Nothing;
            for record in seen.take(reach[at]) {
                assert!(query.matches(record));
                if !AnswerReach::any(&reached, &queries, record) {
                    delivered.push(record.id()[0]);
                }
                last = AnswerReach::UpTo(Position::of(record));
            }
            reached.push(last);
        }
        handle.release(reached);
        delivered.extend(sink.received());
        while put < 6 {
            put += 1;
            publish(&live, Some(put as u64), &bytes[6 - put]);
        }
        delivered.extend(sink.received());
        let mut once = delivered.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(
            once.len(),
            delivered.len(),
            "reach {reach:?}, opened {opened:?}: {delivered:?}"
        );
        // Every record put after the first search was opened is in an answer or delivered later.
        for record in records.iter().filter(|record| seq(record) > opened[0] as u64) {
            let id = record.id()[0];
            assert!(delivered.contains(&id), "reach {reach:?}, opened {opened:?}: {id} is lost");
        }
    }
}

/// Sequence numbers also count records that were put before the process began.
#[test]
fn a_subscription_is_live_at_once_where_nothing_was_published_since_the_start() {
    let live = Arc::new(LiveIndex::since(100));
    let (handle, _) = listen(&live, vec![kinds(&[1]), authors(&[1])]);
    handle.opened(0, 100);
    handle.opened(1, 100);
    handle.release(vec![AnswerReach::All, AnswerReach::All]);
    assert!(handle.0.subscription.seam.lock().is_live());
}

/// Held-back records are bounded, and counted until they are released or the subscription has
/// ended.
#[test]
fn what_is_held_back_is_counted_and_released_in_steps() {
    let live = Arc::new(LiveIndex::default());
    let put = |from: u64, to: u64| {
        (from..to).for_each(|seq| publish(&live, Some(seq), &record(seq as u8, 1, 1, &[])));
    };
    let held = |sink: &RecordingSink| sink.3.load(Ordering::Relaxed) / HELD_BYTES;
    let (handle, sink) = listen(&live, vec![kinds(&[1]), authors(&[1])]);
    let (ended, other) = listen(&live, vec![kinds(&[1])]);
    put(1, 101);
    assert_eq!((held(&sink), held(&other)), (100, 100));
    handle.release(vec![AnswerReach::Nothing; 2]);
    assert_eq!(sink.received(), (1..101).collect::<Vec<u8>>());
    put(101, 103);
    assert_eq!(sink.received(), [101, 102]);
    drop(ended);
    assert_eq!((held(&sink), held(&other)), (0, 0));
    let (_slow, sink) = listen(&live, vec![kinds(&[1])]);
    put(103, 103 + 1000);
    assert_eq!((held(&sink), sink.1.load(Ordering::Relaxed)), (1000, 0));
    put(1103, 1105);
    assert_eq!((held(&sink), sink.1.load(Ordering::Relaxed)), (0, 1), "too much, said once");
}

#[test]
fn who_holds_back_too_much_is_notified_once_and_receives_no_more() {
    let live = Arc::new(LiveIndex::default());
    let sink = RecordingSink::default();
    let handle = live.subscribe(vec![Query::default()], Box::new(sink.clone()), 500);
    for n in 0..20 {
        publish(&live, Some(u64::from(n)), &record(n, 1, 1, &[]));
    }
    handle.release(Vec::new());
    publish(&live, Some(21), &record(21, 1, 1, &[]));
    assert_eq!((sink.received(), sink.1.load(Ordering::Relaxed)), (vec![], 1));
}

/// Hides the records of author 1 once the flag is set.
#[derive(Default)]
struct HiddenAuthor(AtomicBool);

impl HideRecords for HiddenAuthor {
    fn hides(&self, record: &Record<'_>) -> bool {
        self.0.load(Ordering::Relaxed) && record.author() == Some(&[1; 32])
    }
}

#[test]
fn what_is_hidden_while_it_is_held_back_is_not_delivered() {
    for filters in [1, 2] {
        let (live, hidden) = (Arc::new(LiveIndex::default()), Arc::new(HiddenAuthor::default()));
        let query =
            Query { hidden: Some(HiddenRecords::new(Arc::clone(&hidden) as _)), ..kinds(&[1]) };
        let (handle, sink) = listen(&live, vec![query; filters]);
        publish(&live, Some(1), &record(1, 1, 1, &[]));
        publish(&live, Some(2), &record(2, 2, 1, &[]));
        hidden.0.store(true, Ordering::Relaxed);
        handle.release(vec![AnswerReach::Nothing; filters]);
        assert_eq!(sink.received(), [2]);
    }
}
