//! The cases whose instructions are counted. Each is prepared once and then run many times.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Poll;

use anyhow::{Context as _, ensure};
use hark_archive::effects::KeepAll;
use hark_archive::live::{LiveIndex, NewRecord, SubscriptionSink};
use hark_archive::query::plan::{Set, SetSize, plan};
use hark_archive::query::prepared::PreparedQuery;
use hark_archive::{LabelSet, Query, Record, SearchProgress, Store, Write};
use hark_bench::codec::{CodecSample, follow_list, note};
use hark_codec::nostr::{Event, EventArena, EventEncoder, EventRecord, canonical};
use hark_codec::record::{self, Key, LabelPosition, RecordHeader};
use hark_store_embedded::term::TermHasher;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::folder::Folder;

/// Runs a prepared case once.
pub(crate) type Work = Box<dyn FnMut()>;

/// A case to count.
pub(crate) struct Case {
    pub(crate) name: String,
    /// Prepares the case. The instructions of the preparation are not counted.
    pub(crate) prepare: Box<dyn Fn() -> anyhow::Result<Work>>,
}

fn case(name: &str, prepare: impl Fn() -> anyhow::Result<Work> + 'static) -> Case {
    Case { name: name.into(), prepare: Box::new(prepare) }
}

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for message in [note, follow_list] {
        for (what, prepare) in OPERATIONS {
            let name = format!("{}: {what}", message().name);
            cases.push(case(&name, move || prepare(message())));
        }
    }
    cases.push(case("plan: an author and a kind", || Ok(planned(1, 0))));
    cases.push(case("plan: 200 authors and a kind", || Ok(planned(200, 0))));
    cases.push(case("plan: 75 values of a tag", || Ok(planned(0, 75))));
    cases.push(case("live match: 1,000 subscriptions", || live(1_000)));
    cases.push(case("live match: 100,000 subscriptions", || live(100_000)));
    cases.push(case("search: 256 topics, without kinds", searched));
    cases
}

type Operation = fn(CodecSample) -> anyhow::Result<Work>;

/// The operations on an event.
const OPERATIONS: [(&str, Operation); 6] = [
    ("parse", |message| {
        let mut arena = EventArena::new();
        Ok(Box::new(move || {
            // An error is ignored here, because the other cases parse the same message and report
            // the error.
            let _ = black_box(Event::parse(black_box(&message.json), &mut arena));
        }))
    }),
    ("JSON write", |message| {
        let (event, mut out) = (parsed(message)?, Vec::new());
        Ok(Box::new(move || {
            out.clear();
            black_box(&event).write_json(&mut out);
            black_box(&out);
        }))
    }),
    ("canonical", |message| {
        let (event, mut out) = (parsed(message)?, Vec::new());
        Ok(Box::new(move || {
            out.clear();
            canonical::write_canonical(&mut out, black_box(&event));
            black_box(&out);
        }))
    }),
    ("id", |message| {
        let event = parsed(message)?;
        Ok(Box::new(move || {
            black_box(black_box(&event).compute_id());
        }))
    }),
    ("binary encode", |message| {
        let (event, mut out) = (parsed(message)?, Vec::new());
        let mut encoder = EventEncoder::default();
        Ok(Box::new(move || {
            out.clear();
            encoder.encode(black_box(&event), &[], &mut out);
            black_box(&out);
        }))
    }),
    ("binary fields", |message| {
        let mut stored = Vec::new();
        EventEncoder::default().encode(&parsed(message)?, &[], &mut stored);
        EventRecord::new(Record::new(&stored)?).context("no event")?;
        Ok(Box::new(move || {
            let record = Record::new(black_box(&stored)).ok().and_then(EventRecord::new);
            if let Some(event) = record {
                black_box((*event.id(), *event.pubkey(), event.created_at()));
                black_box((event.kind(), event.expires(), event.json()));
            }
        }))
    }),
];

/// Parses an event that lives as long as the process.
fn parsed(message: CodecSample) -> anyhow::Result<Event<'static>> {
    let (json, arena) = (message.json.leak(), Box::leak(Box::new(EventArena::new())));
    Ok(Event::parse(json, arena)?)
}

fn key(n: u32) -> Key {
    hark_codec::crypto::sha256(&n.to_le_bytes())
}

/// Prepares a case that plans a query once, for a segment of a million rows.
fn planned(authors: u32, values: u32) -> Work {
    let label = |n| Box::from(hark_codec::hex::encode_32(&key(n)).as_slice());
    let named = |count: u32| LabelSet { name: b'e', values: (0..count).map(label).collect() };
    let query = Query {
        authors: (authors > 0).then(|| (0..authors).map(key).collect()),
        kinds: (authors > 0).then(|| vec![1]),
        labels: if values > 0 { vec![named(values)] } else { Vec::new() },
        limit: 100,
        ..Query::default()
    };
    let terms = TermHasher::new(&[7; 16], &EmbeddedOptions::default());
    let of = |rows, lists| Poll::Ready(Some(SetSize { rows, lists, terms: lists }));
    let mut size = move |set| match set {
        Set::Ids => of(1, 1),
        Set::Authors => of(20 * u64::from(authors), authors as usize),
        Set::Label(_) => of(3 * u64::from(values), values as usize),
        Set::Word(_) => of(10_000, 4),
        Set::Kinds => of(500_000, 1),
        Set::Time => of(1_000_000, 1),
    };
    Box::new(move || {
        let query = PreparedQuery::new(black_box(&query).clone(), &terms);
        let _ = black_box(plan(&query, &query.conditions, 1_000_000, &mut size));
    })
}

/// A sink that discards all deliveries.
struct Deaf;

impl SubscriptionSink for Deaf {
    fn deliver(&self, news: &NewRecord) -> bool {
        black_box(news.clone());
        true
    }

    fn wake(&self) {}

    fn overflow(&self) {}
}

/// Prepares a case that delivers events, each of which matches exactly one of the `subscriptions`.
fn live(subscriptions: u32) -> anyhow::Result<Work> {
    let live = Arc::new(LiveIndex::default());
    let mut handles = Vec::new();
    for n in 0..subscriptions {
        let query = Query { authors: Some(vec![key(n)]), ..Query::default() };
        let handle = live.subscribe(vec![query], Box::new(Deaf), 1 << 20);
        handle.release(Vec::new());
        handles.push(handle);
    }
    // About a thousand records, which match subscriptions from the whole index. Each round delivers
    // the next record.
    let wire = note().json;
    let mut records = Vec::new();
    for n in (0..subscriptions).step_by(subscriptions as usize / 1_000) {
        let head =
            RecordHeader { id: key(!n), time: 1, author: Some(key(n)), kind: 1, expires: None };
        let (root, person) = (key(n + 1), key(n + 2));
        let labels = [(b'e', LabelPosition::Bytes(&root)), (b'p', LabelPosition::Bytes(&person))];
        let mut bytes = Vec::new();
        record::write(&mut bytes, &head, &wire, labels.into_iter());
        Record::new(&bytes)?;
        records.push(bytes);
    }
    let mut seq = 0;
    Ok(Box::new(move || {
        black_box(&handles);
        seq += 1;
        if let Ok(record) = Record::new(&records[seq % records.len()]) {
            live.publish(Some(seq as u64), &record);
        }
    }))
}

/// Number of records of the segment that a case searches.
const SEGMENT_RECORDS: u32 = 16_384;

/// Prepares a case that finds the newest 100 records of 256 topics in a segment, in a network whose
/// records have no kind.
fn searched() -> anyhow::Result<Work> {
    let topics: Vec<[u8; 4]> = (0..1_024_u32).map(u32::to_be_bytes).collect();
    let dir = Folder::new("instructions");
    let options = EmbeddedOptions {
        seal_records: SEGMENT_RECORDS,
        background: false,
        ..EmbeddedOptions::default()
    };
    let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options)?;
    let mut writes = Vec::new();
    for n in 0..=SEGMENT_RECORDS {
        let head = RecordHeader {
            id: key(n),
            time: 1_000_000 + u64::from(n),
            author: None,
            kind: 0,
            expires: None,
        };
        let mut bytes = Vec::new();
        record::write(
            &mut bytes,
            &head,
            &[0; 64],
            [(b't', LabelPosition::Bytes(&topics[n as usize % 1_024]))].into_iter(),
        );
        writes.push(Write::Put(bytes.into()));
    }
    // The last record is in the next head. Before this record is written, the full head is sealed.
    let (sealed, further) = writes.split_at(SEGMENT_RECORDS as usize);
    store.commit(sealed)?;
    store.commit(further)?;
    ensure!(store.stats().segments == 1, "the records are not in one segment");
    let values = topics.iter().step_by(4).map(|topic| Box::from(topic.as_slice())).collect();
    let labels = vec![LabelSet { name: b't', values }];
    let query = Query { labels, limit: 100, ..Query::default() };
    Ok(Box::new(move || {
        black_box(&dir);
        let mut found = 0;
        let mut sink = |_: &Record<'_>| {
            found += 1;
            ControlFlow::Continue(())
        };
        if let Ok(mut search) = store.search(black_box(&query)) {
            while let Ok(SearchProgress::Paused) = search.slice(u64::MAX, &mut sink) {}
        }
        assert_eq!(found, 100);
    }))
}
