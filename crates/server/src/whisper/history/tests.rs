//! Compares pages with a list of all envelopes.

use hark_archive::effects::KeepAll;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{Order, Write};
use hark_codec::whisper::record::encode;
use hark_codec::whisper::{Bloom, Envelope, HistoryCursor, HistoryRequest, Topic};
use hark_testkit::random::Random;

use hark_archive::{Query, Store};
use hark_networks::search::{AnswerWaiter, BoundedSearch};

use super::*;
use crate::whisper::topics::TopicIndex;

const SENT: u32 = 1_554_076_800;
const ALL: PageBounds = PageBounds { envelopes: usize::MAX, bytes: usize::MAX };

/// Returns the search for a request of a peer.
fn asked(
    request: &HistoryRequest<'_>,
    topics: &TopicIndex,
    now_s: u64,
    limit: usize,
) -> EnvelopeQuestion {
    EnvelopeQuestion::new(request.into(), |bloom| topics.condition(bloom), now_s, limit)
}

/// Returns the next page of a search.
fn page(
    store: &dyn Store,
    question: &EnvelopeQuestion,
    bounds: &PageBounds,
) -> Result<EnvelopePage, MailError> {
    let waiter = AnswerWaiter::default();
    question.page(&mut BoundedSearch::new(store, &waiter, u64::MAX), bounds)
}

/// Returns a topic. Some topics set several bits in the same byte of the bloom filter. For these
/// topics, the filters of existing programs differ from the filter of EIP-627.
fn topic(number: usize) -> Topic {
    let near = [8, 9, 10, 200, 17, 16, 3];
    [near[number % 7], near[number / 7 % 7], near[number / 49 % 7], (number % 8) as u8]
}

/// Envelopes in the order of a page: hash and time, topic, and RLP.
type Kept = Vec<(HistoryCursor, Topic, Vec<u8>)>;

fn store(random: &mut Random, count: u64, topics: &TopicIndex) -> (MemoryStore, Kept) {
    let (store, mut kept) = (MemoryStore::new(KeepAll), Vec::new());
    for nonce in 0..count {
        let of = topic(random.below(40));
        let sent = SENT + random.below(30) as u32;
        let data = vec![7; random.below(90)];
        let envelope = Envelope { expiry: sent + 50, ttl: 50, topic: of, data: &data, nonce };
        let (mut record, mut rlp) = (Vec::new(), Vec::new());
        encode(&envelope, &envelope.hash(), &mut record);
        envelope.write(&mut rlp);
        store.commit(&[Write::Put(record.into())]).unwrap();
        kept.push((HistoryCursor { sent, hash: envelope.hash() }, of, rlp));
    }
    kept.sort_by_key(|(cursor, ..)| (cursor.sent, cursor.hash));
    topics.fill(&store).unwrap();
    (store, kept)
}

/// Requests page by page, as clients do, and checks the bounds of each page.
fn whole(
    store: &MemoryStore,
    topics: &TopicIndex,
    request: &HistoryRequest<'_>,
    bytes: usize,
) -> Vec<Vec<u8>> {
    let (mut all, mut request) = (Vec::new(), *request);
    loop {
        let question = asked(&request, topics, u64::from(SENT), 1_000);
        let page = page(store, &question, &PageBounds { bytes, ..ALL }).unwrap();
        let limit = if request.limit == 0 { 1_000 } else { request.limit as usize };
        assert!(page.len() <= limit && (page.len() <= 1 || page.rlp().len() <= bytes));
        assert_eq!(page.envelopes().count(), page.len());
        all.extend(page.envelopes().map(<[u8]>::to_vec));
        assert_eq!(page.cursor().is_some(), page.more);
        match page.cursor() {
            Some(cursor) => request.cursor = Some(cursor),
            None => return all,
        }
    }
}

#[test]
fn pages_have_each_envelope_once_whichever_way_it_is_asked_for() {
    let mut random = Random::new(17);
    let topics = TopicIndex::default();
    let (store, kept) = store(&mut random, 400, &topics);
    for round in 0..300 {
        let wanted: Vec<Topic> = (0..random.below(6)).map(|_| topic(random.below(48))).collect();
        let (lower, upper) = (SENT + random.below(30) as u32, SENT + random.below(40) as u32);
        let (lower, upper) = (lower.min(upper), lower.max(upper));
        // Clients make the bloom filter in one of two forms.
        let of = if random.below(2) == 0 { Bloom::of_topic } else { Bloom::of_topic_or };
        let mut bloom = Bloom::default();
        for topic in &wanted {
            bloom.add(&of(*topic));
        }
        // Requests of old clients have a bloom filter, but no topics.
        let by_topics = random.below(2) == 0 && !wanted.is_empty();
        let mut payload = Vec::new();
        let limit = 1 + random.below(50) as u32;
        let bare = HistoryRequest { lower, upper, bloom: Some(bloom), limit, ..Default::default() };
        let named: &[Topic] = if by_topics { &wanted } else { &[] };
        bare.write(named.iter().copied(), &mut payload);
        let request = HistoryRequest::parse(&payload).unwrap();
        let found = whole(&store, &topics, &request, 1 + random.below(2_000));
        let matches = |(cursor, topic, _): &&(HistoryCursor, Topic, Vec<u8>)| {
            let is_named = wanted.contains(topic);
            let is_covered = bloom.covers(&Bloom::of_topic(*topic));
            (lower..=upper).contains(&cursor.sent) && if by_topics { is_named } else { is_covered }
        };
        let expected: Vec<_> = kept.iter().filter(matches).map(|(.., rlp)| rlp.clone()).collect();
        assert_eq!(found, expected, "round {round}: {request:?}");
        // Testing the filter on each envelope finds the same envelopes.
        let mut question = asked(&request, &topics, 0, 1_000);
        if !by_topics {
            question.query.labels.clear();
            question.filter = Some(bloom);
        }
        question.query.limit = usize::MAX;
        let each = page(&store, &question, &ALL).unwrap();
        assert_eq!(
            (each.envelopes().map(<[u8]>::to_vec).collect::<Vec<_>>(), each.more),
            (expected, false)
        );
    }
}

#[test]
fn the_newest_come_first_where_that_is_asked_for() {
    let topics = TopicIndex::default();
    let (store, kept) = store(&mut Random::new(3), 60, &topics);
    let mut question =
        EnvelopeQuestion { query: Query { limit: 25, ..Query::default() }, filter: None };
    let mut found = Vec::new();
    while question.query.limit > 0 {
        let page = page(&store, &question, &PageBounds { envelopes: 10, ..ALL }).unwrap();
        found.extend(page.envelopes().map(<[u8]>::to_vec));
        question.advance(&page);
    }
    let mut expected = kept;
    expected.sort_by_key(|(cursor, ..)| (std::cmp::Reverse(cursor.sent), cursor.hash));
    assert!(found.iter().eq(expected.iter().take(25).map(|(.., rlp)| rlp)));
}

#[test]
fn a_request_without_bounds_gets_those_of_the_server() {
    let topics = TopicIndex::default();
    let full = HistoryRequest { bloom: Some(Bloom::FULL), ..Default::default() };
    let question = asked(&full, &topics, 1_000, 77);
    let Query { from, to, order, limit, labels, .. } = question.query;
    assert_eq!((from, to, order, limit), (0, 1_060, Order::OldestFirst, 77));
    assert!(labels.is_empty() && question.filter.is_none());
    let nothing = HistoryRequest { bloom: Some(Bloom::default()), ..full };
    assert!(asked(&nothing, &topics, 0, 1).query.is_void());
}
