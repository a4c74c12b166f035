//! Compares pages with a brute-force selection of the stored messages, and tests which requests are
//! refused.

use hark_archive::effects::KeepAll;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{Write, store::CommitResult};
use hark_codec::waku::{Message, MessageEncoder, StoreResponse};
use hark_testkit::random::Random;

use super::*;
use hark_archive::Record;
use hark_codec::waku::StoreRequest;
use hark_networks::search::AnswerWaiter;
use hark_networks::waku::history::{DAMAGED, PAGE_BYTES_MAX, answer};

const PUBSUB: [&str; 2] = ["/waku/2/rs/1/0", "/waku/2/rs/1/1"];
const CONTENT: [&str; 3] = ["/app/1/chat/proto", "/app/1/a\u{e4}/proto", ""];

/// A message that the test has stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    time: u64,
    hash: Id,
    pubsub: &'static str,
    content: &'static str,
}

struct World {
    /// The number of distinct times of messages.
    times: usize,
    /// Whether every second message lacks a payload, so that it is never sent.
    voids: bool,
    store: MemoryStore,
    positions: PositionCache,
    kept: Vec<Kept>,
    random: Random,
}

impl World {
    fn new(seed: u64) -> Self {
        let store = MemoryStore::new(KeepAll);
        Self {
            times: 12,
            voids: false,
            store,
            positions: PositionCache::default(),
            kept: Vec::new(),
            random: Random::new(seed),
        }
    }

    fn put(&mut self, count: usize) {
        for _ in 0..count {
            let time = 1_700_000_000_000_000_000 + self.random.below(self.times) as u64;
            let (pubsub, content) = (*self.random.pick(&PUBSUB), *self.random.pick(&CONTENT));
            let payload = self.random.below(1 << 30).to_le_bytes();
            if self.voids {
                self.put_void(time, pubsub, content);
            }
            let timestamp = Some(time.cast_signed());
            let message = Message {
                payload: &payload,
                content_topic: content,
                timestamp,
                ..Message::default()
            };
            let hash = message.hash(pubsub);
            let mut record = Vec::new();
            MessageEncoder::default().encode(&message, pubsub, &hash, &mut record);
            let CommitResult { .. } = self.store.commit(&[Write::Put(record.into())]).unwrap();
            let one = Kept { time, hash, pubsub, content };
            if !self.kept.contains(&one) {
                self.kept.push(one);
            }
        }
        self.kept.sort_unstable();
    }

    /// Stores a message without a payload. Archives of earlier versions may have such messages.
    fn put_void(&mut self, time: u64, pubsub: &str, content: &str) -> Id {
        let meta = self.random.below(1 << 30).to_le_bytes();
        let message = Message {
            content_topic: content,
            timestamp: Some(time.cast_signed()),
            meta: Some(&meta),
            ..Message::default()
        };
        let (hash, mut record) = (message.hash(pubsub), Vec::new());
        MessageEncoder::default().encode(&message, pubsub, &hash, &mut record);
        self.store.commit(&[Write::Put(record.into())]).unwrap();
        hash
    }

    fn ask(
        &self,
        request: &StoreRequest<'_>,
        topics: &[&str],
        hashes: &[Id],
    ) -> (Vec<Kept>, Option<Id>) {
        let mut bytes = Vec::new();
        request.write(topics.iter().copied(), hashes.iter().map(|hash| &hash[..]), &mut bytes);
        let out = answer(read_page(&self.store, &self.positions, &bytes).as_ref());
        let response = StoreResponse::parse(&out).unwrap();
        assert_eq!((response.status_code, response.status_desc), (Some(200), Some("OK")));
        assert_eq!(response.request_id, request.request_id);
        let messages = response.messages().map(|one| {
            let message = Message::parse(one.message.unwrap()).unwrap();
            let pubsub = PUBSUB.into_iter().find(|topic| Some(*topic) == one.pubsub_topic).unwrap();
            let content =
                CONTENT.into_iter().find(|topic| *topic == message.content_topic).unwrap();
            assert_eq!(one.message_hash, message.hash(pubsub));
            let time = message.timestamp.unwrap().cast_unsigned();
            Kept { time, hash: message.hash(pubsub), pubsub, content }
        });
        (messages.collect(), response.cursor.map(|cursor| cursor.try_into().unwrap()))
    }
}

/// Returns the page for a request that visits at most `rows_max` rows.
fn page_of(
    store: &dyn Store,
    positions: &PositionCache,
    request: MessageRequest,
    rows_max: u64,
) -> Result<HistoryPage, HistoryError> {
    let waiter = AnswerWaiter::default();
    page(&mut BoundedSearch::new(store, &waiter, rows_max), positions, &HistoryQuery::new(request)?)
}

/// Returns the page for the bytes of a request.
fn read_page(
    store: &dyn Store,
    positions: &PositionCache,
    bytes: &[u8],
) -> Result<HistoryPage, HistoryError> {
    page_of(store, positions, MessageRequest::read(bytes)?, u64::MAX)
}

/// Returns the page for a request without topics and hashes.
fn asked_page(
    store: &dyn Store,
    positions: &PositionCache,
    request: &StoreRequest<'_>,
    rows_max: u64,
) -> Result<HistoryPage, HistoryError> {
    let mut bytes = Vec::new();
    request.write(std::iter::empty(), std::iter::empty(), &mut bytes);
    page_of(store, positions, MessageRequest::read(&bytes)?, rows_max)
}

fn request() -> StoreRequest<'static> {
    StoreRequest { request_id: "id", include_data: true, ..StoreRequest::default() }
}

#[test]
fn pages_leave_nothing_out_and_nothing_comes_twice() {
    for seed in 0..12 {
        let mut world = World::new(seed);
        // Either many messages share a time, or few.
        world.times = [12, 400][seed as usize % 2];
        world.voids = seed % 4 > 1;
        world.put(150);
        for _ in 0..12 {
            let times = world.times + 2;
            let time = |random: &mut Random| {
                1_700_000_000_000_000_000 + (random.below(times) as u64).cast_signed() - 1
            };
            let (a, b) = (time(&mut world.random), time(&mut world.random));
            let pubsub = (world.random.below(2) == 0).then(|| *world.random.pick(&PUBSUB));
            let topics: Vec<&str> = CONTENT[..world.random.below(4)].to_vec();
            let wanted = StoreRequest {
                pubsub_topic: pubsub,
                time_start: (world.random.below(2) == 0).then_some(a.min(b)),
                time_end: (world.random.below(2) == 0).then_some(a.max(b)),
                forward: world.random.below(2) == 0,
                limit: Some(1 + world.random.below(40) as u64),
                ..request()
            };
            let holds = |one: &Kept| {
                let time = one.time.cast_signed();
                wanted.pubsub_topic.is_none_or(|topic| topic == one.pubsub)
                    && (topics.is_empty() || topics.contains(&one.content))
                    && wanted.time_start.is_none_or(|start| start <= time)
                    && wanted.time_end.is_none_or(|end| time <= end)
            };
            let (mut returned, mut cursor): (Vec<Kept>, Option<Id>) = (Vec::new(), None);
            let expected = world.kept.clone();
            loop {
                let one = StoreRequest { cursor: cursor.as_ref().map(|id| &id[..]), ..wanted };
                let (page, next) = world.ask(&one, &topics, &[]);
                assert!(page.is_sorted(), "a page is sent oldest first");
                assert!(page.len() as u64 <= wanted.limit.unwrap());
                let first = if wanted.forward { page.last() } else { page.first() };
                assert!(next.is_none() || next == first.map(|one| one.hash));
                if wanted.forward {
                    returned.extend(page);
                } else {
                    returned.splice(0..0, page);
                }
                cursor = next;
                if cursor.is_none() {
                    break;
                }
                // Further messages arrive between the pages.
                world.put(3);
            }
            assert!(returned.is_sorted_by(|a, b| a < b), "in order, each once");
            assert!(
                returned.iter().all(holds) && returned.iter().all(|one| world.kept.contains(one))
            );
            for one in expected.iter().filter(|one| holds(one)) {
                assert!(returned.contains(one), "seed {seed}: left out {one:?}");
            }
        }
    }
}

#[test]
fn what_has_no_payload_is_left_out_and_pages_go_on_behind_it() {
    let mut world = World::new(11);
    world.times = 1;
    world.put(30);
    let (first, last) = (world.kept[0].time - 1, world.kept[0].time + 1);
    let voids: Vec<Id> =
        (0..500).map(|at| world.put_void([first, last][at % 2], PUBSUB[0], CONTENT[0])).collect();
    for forward in [true, false] {
        // Enough messages without a payload to fill a page come before the first message with a
        // payload.
        let one = StoreRequest { forward, limit: Some(20), ..request() };
        let (page, cursor) = world.ask(&one, &[], &[]);
        let half = if forward { &world.kept[..20] } else { &world.kept[10..] };
        assert_eq!(page, half);
        let one = StoreRequest { cursor: cursor.as_ref().map(|id| &id[..]), ..one };
        let rest = if forward { &world.kept[20..] } else { &world.kept[..10] };
        assert_eq!(world.ask(&one, &[], &[]), (rest.to_vec(), None));
        // Earlier versions could return a cursor that names a message without a payload.
        let (at, all) = (if forward { voids[0] } else { voids[1] }, Some(100));
        let one = StoreRequest { cursor: Some(&at), forward, limit: all, ..request() };
        assert_eq!(world.ask(&one, &[], &[]).0, world.kept);
    }
    assert_eq!(world.ask(&request(), &[], &voids[..100]), (Vec::new(), None));
}

#[test]
fn hashes_and_topics_hold_together() {
    let mut world = World::new(7);
    world.put(300);
    let hashes: Vec<Id> = world.kept.iter().take(100).map(|one| one.hash).collect();
    // A list of exactly a hundred hashes is complete, without a cursor.
    let (all, cursor) =
        world.ask(&StoreRequest { forward: true, limit: Some(100), ..request() }, &[], &hashes);
    assert_eq!((&all[..], cursor), (&world.kept[..100], None));
    let forward = StoreRequest { forward: true, limit: Some(100), ..request() };
    let (some, _) = world.ask(&forward, &[CONTENT[0]], &hashes);
    let expected = world.kept[..100].iter().filter(|one| one.content == CONTENT[0]);
    assert_eq!(some, expected.cloned().collect::<Vec<_>>());
    assert!(world.ask(&forward, &[], &[[9; 32]]).0.is_empty());
}

#[test]
fn a_cursor_at_the_end_gives_an_empty_page() {
    let mut world = World::new(8);
    world.put(30);
    let (newest, oldest) = (world.kept.last().unwrap().hash, world.kept[0].hash);
    for (forward, cursor) in [(true, newest), (false, oldest)] {
        let one = StoreRequest { cursor: Some(&cursor), forward, ..request() };
        assert_eq!(world.ask(&one, &[], &[]), (Vec::new(), None));
    }
    // A page has twenty messages by default, and a hundred at most.
    for (limit, count) in [(None, 20), (Some(0), 20), (Some(7), 7)] {
        assert_eq!(world.ask(&StoreRequest { limit, ..request() }, &[], &[]).0.len(), count);
    }
    world.put(400);
    assert_eq!(world.ask(&StoreRequest { limit: Some(5_000), ..request() }, &[], &[]).0.len(), 100);
}

#[test]
fn a_page_goes_on_where_the_one_before_it_ended_also_if_that_message_has_gone() {
    for forward in [true, false] {
        let mut world = World::new(9);
        world.times = 1 << 40;
        world.put(60);
        let one = StoreRequest { forward, ..request() };
        let (_, cursor) = world.ask(&one, &[], &[]);
        let cursor = cursor.unwrap();
        let gone = Query { ids: Some(vec![cursor]), ..Query::default() };
        world.store.commit(&[Write::Erase(gone.into())]).unwrap();
        let one = StoreRequest { cursor: Some(&cursor), ..one };
        assert_eq!(world.ask(&one, &[], &[]).0, world.kept[20..40]);
        // Without the cached position, the cursor cannot be found.
        world.positions = PositionCache::default();
        let page = asked_page(&world.store, &world.positions, &one, u64::MAX);
        assert!(matches!(page, Err(HistoryError::Cursor)), "{page:?}");
    }
}

#[test]
fn a_page_visits_hardly_more_than_it_returns() {
    let mut world = World::new(10);
    world.times = 1 << 40;
    world.put(300);
    for forward in [true, false] {
        let one = StoreRequest { forward, limit: Some(100), ..request() };
        let first = asked_page(&world.store, &world.positions, &one, 110).unwrap();
        let cursor = first.cursor();
        let one = StoreRequest { cursor: cursor.as_ref().map(|id| &id[..]), ..one };
        let second = asked_page(&world.store, &world.positions, &one, 110).unwrap();
        assert_eq!((first.records.len(), second.records.len()), (100, 100));
    }
}

#[test]
fn long_messages_make_short_pages() {
    // All messages have times of their own, or some have the same time, or all have.
    for times in [60, 7, 1] {
        long_messages_at(times);
    }
}

/// Puts 60 long messages with `times` different times, and reads them all.
fn long_messages_at(times: i64) {
    let world = World::new(10);
    let put = |at: u8| {
        let time = 7 + i64::from(at) * times / 60;
        let message = Message {
            payload: &vec![at; 150 << 10],
            content_topic: CONTENT[0],
            timestamp: Some(time),
            ..Message::default()
        };
        let (hash, mut record) = (message.hash(PUBSUB[0]), Vec::new());
        MessageEncoder::default().encode(&message, PUBSUB[0], &hash, &mut record);
        world.store.commit(&[Write::Put(record.into())]).unwrap();
        (time, hash)
    };
    let mut puts: Vec<(i64, Id)> = (0..60).map(put).collect();
    puts.sort_unstable();
    let hashes: Vec<Id> = puts.into_iter().map(|(_, hash)| hash).collect();
    for forward in [true, false] {
        let (mut returned, mut cursor, mut pages) = (Vec::new(), None, 0);
        loop {
            let after = cursor.as_ref().map(|id: &Id| &id[..]);
            let request = StoreRequest { forward, limit: Some(100), cursor: after, ..request() };
            // 27 messages fit on a page, and no further messages are copied.
            let rows_max = if times == 60 { 30 } else { u64::MAX };
            let page = asked_page(&world.store, &world.positions, &request, rows_max).unwrap();
            assert!(page.bytes <= PAGE_BYTES_MAX);
            let page_hashes = page.records.iter().map(|bytes| *Record::new(bytes).unwrap().id());
            let at = if forward { returned.len() } else { 0 };
            returned.splice(at..at, page_hashes);
            pages += 1;
            cursor = page.cursor();
            if cursor.is_none() {
                break;
            }
        }
        assert!(returned == hashes && pages == 3, "{pages} pages");
    }
    // A page of hashes alone is bounded only by the limit.
    let request = StoreRequest { include_data: false, limit: Some(100), ..request() };
    let page = asked_page(&world.store, &world.positions, &request, u64::MAX).unwrap();
    assert_eq!((page.records.len(), page.bytes), (60, 0));
    // Such a page does not contain the messages themselves.
    assert!(page.records.iter().all(|record| record.len() < 100));
}

/// Sends a request that must be refused. Returns the status and its description.
fn refused(store: &dyn Store, request: &StoreRequest<'_>, hashes: &[&[u8]]) -> (u32, String) {
    let mut bytes = Vec::new();
    request.write(std::iter::empty(), hashes.iter().copied(), &mut bytes);
    let out = answer(read_page(store, &PositionCache::default(), &bytes).as_ref());
    let response = StoreResponse::parse(&out).unwrap();
    assert_eq!((response.request_id, response.messages().count()), ("", 0));
    (response.status_code.unwrap(), response.status_desc.unwrap().into())
}

#[test]
fn what_cannot_be_answered_is_refused_in_the_protocols_terms() {
    let mut world = World::new(9);
    world.put(200);
    let store = &world.store;
    let unknown = [5; 32];
    for (request, hashes, code, said) in [
        (StoreRequest { request_id: "", ..request() }, &[][..], 400, "request_id"),
        (StoreRequest { cursor: Some(&[1, 2]), ..request() }, &[], 300, "INVALID_QUERY"),
        (StoreRequest { cursor: Some(&[0; 32]), ..request() }, &[], 300, "INVALID_QUERY"),
        (StoreRequest { cursor: Some(&unknown), ..request() }, &[], 300, "cursor not found"),
        (request(), &[&[1][..]], 300, "32 bytes"),
        (request(), &[&unknown[..]; 1_001], 300, "more than 1000 message hashes"),
    ] {
        let (status, words) = refused(store, &request, hashes);
        assert_eq!(status, code, "{words}");
        assert!(words.contains(said), "{words}");
    }
    // A time span whose end is before its start matches nothing.
    let nothing = StoreRequest { time_start: Some(2), time_end: Some(1), ..request() };
    let page = asked_page(store, &PositionCache::default(), &nothing, u64::MAX).unwrap();
    assert!(page.records.is_empty() && page.cursor().is_none());
    let out = answer(read_page(store, &PositionCache::default(), &[0x0a, 9]).as_ref());
    assert_eq!(StoreResponse::parse(&out).unwrap().status_code, Some(400));
}

#[test]
fn a_page_that_lacks_a_damaged_message_says_so_with_the_status_of_success() {
    for (damaged, said) in [(false, "OK"), (true, DAMAGED)] {
        let page = HistoryPage { request_id: "a".into(), damaged, ..HistoryPage::default() };
        let answer = answer(Ok(&page));
        let parsed = StoreResponse::parse(&answer).unwrap();
        assert_eq!((parsed.status_code, parsed.status_desc), (Some(200), Some(said)));
    }
}
