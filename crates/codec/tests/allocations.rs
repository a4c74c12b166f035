//! Tests that code with reused buffers allocates nothing. For an event, they cover parsing, id,
//! signature check, JSON, record and filter; for an envelope, proof of work, record and request.

use std::alloc::System;
use std::fmt::Write;

use hark_codec::crypto::{KeyPair, SignatureVerifier};
use hark_codec::nostr::negentropy::{
    NegentropyInitiator, NegentropyItem, NegentropyResponder, SortedItems,
};
use hark_codec::nostr::reply::{self, EoseHint};
use hark_codec::nostr::{
    ClientMessage, Event, EventArena, EventDraft, EventEncoder, EventRecord, Filter,
    MessageBuffers, VerifiedEvent, canonical,
};
use hark_codec::record::Record;
use hark_codec::whisper::record::encode;
use hark_codec::whisper::{Bloom, Completion, Envelope, EnvelopeRecord, HistoryRequest};
use hark_testkit::allocations::{Counting, of_this_thread};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

/// Returns the number of allocations of the second of two equal runs. The first run makes the
/// buffers grow.
fn allocations(mut run: impl FnMut()) -> usize {
    run();
    let before = of_this_thread();
    run();
    of_this_thread() - before
}

/// Returns a note, a note in a spelling that is not canonical, and a contact list.
fn events() -> Vec<(&'static str, Vec<u8>)> {
    let keys = KeyPair::from_secret([7; 32]).unwrap();
    let signed = |kind, tags: &[&[&str]], content: &str| {
        let mut out = Vec::new();
        EventDraft { created_at: 1_700_000_000, kind, tags, content }.sign(&keys, &mut out);
        out
    };
    let id = "0123456789abcdef".repeat(4);
    let people: Vec<String> = (0..500).map(|n| format!("{n:064x}")).collect();
    let tags: Vec<[&str; 2]> = people.iter().map(|person| ["p", person.as_str()]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    let reply: &[&[&str]] = &[&["e", &id, "", "reply"], &["t", "a\"b"], &["-"]];
    let note = signed(1, reply, "hello\n\"world\" 🤙\u{1}");
    let other = String::from_utf8(note.clone()).unwrap();
    let other = other.replace("🤙", "\\uD83E\\uDD19").replace(",\"", ", \"").into_bytes();
    vec![("note", note), ("respelled note", other), ("500 tags", signed(3, &tags, ""))]
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1u8; 10]))), 1);
}

#[test]
fn nothing_on_the_way_of_an_event() {
    for (name, json) in events() {
        let mut message = b"[\"EVENT\",".to_vec();
        message.extend_from_slice(&json);
        message.push(b']');
        let (mut arena, mut inbox) = (EventArena::new(), MessageBuffers::new(8));
        let (mut verifier, mut encoder) = (SignatureVerifier::new(16), EventEncoder::default());
        let mut out = Vec::new();
        let mut sum = 0;
        let count = allocations(|| {
            out.clear();
            let event = Event::parse(&json, &mut arena).unwrap();
            sum += event.tags().map(|tag| tag.iter().map(str::len).sum::<usize>()).sum::<usize>();
            sum += event.content().len() + event.d().len() + event.labels().count();
            let event = VerifiedEvent::check(event, &mut verifier).unwrap();
            canonical::write_canonical(&mut out, &event);
            event.write_json(&mut out);
            out.clear();
            encoder.encode(&event, &[(1, b"private")], &mut out);
            let record = EventRecord::new(Record::new(&out).unwrap()).unwrap();
            sum += record.json().len() + record.record().labels().count();
            let parsed = ClientMessage::parse(&message, &mut inbox).unwrap();
            assert!(matches!(parsed, ClientMessage::Event(_)));
        });
        assert_eq!(count, 0, "{name}");
        assert!(sum > 0);
    }
}

#[test]
fn nothing_on_the_way_of_a_question() {
    let mut list = String::new();
    for n in 0..300 {
        write!(list, "{}\"{n:064x}\"", if n == 0 { "" } else { "," }).unwrap();
    }
    let question = format!(
        r##"["REQ","s\"ub",{{"authors":[{list}],"kinds":[1,6]}},{{"#p":[{list}],"#t":["a\nb","c"]}}]"##
    );
    let (_, json) = events().remove(0);
    let mut arena = EventArena::new();
    let event = Event::parse(&json, &mut arena).unwrap();
    let mut inbox = MessageBuffers::new(8);
    let mut out = Vec::new();
    let count = allocations(|| {
        let ClientMessage::Req { sub, filters } =
            ClientMessage::parse(question.as_bytes(), &mut inbox).unwrap()
        else {
            panic!("not a REQ")
        };
        out.clear();
        for filter in filters {
            assert!(!filter.matches(&event) && !filter.matches_nothing());
            filter.write_json(&mut out);
        }
        reply::write_event(&mut out, sub, &json);
        reply::write_eose(&mut out, sub, Some(EoseHint::Finish));
        reply::write_ok(&mut out, event.id(), true, "");
        reply::write_ok(&mut out, event.id(), true, format_args!("{}: {}", "duplicate", "known"));
        reply::write_count(&mut out, sub, 7, true, Some(&[0; 256]));
        reply::write_closed(&mut out, sub, "error: \"x\"");
    });
    assert_eq!(count, 0);
    let mut filter = Filter::default();
    assert_eq!(allocations(|| filter.parse(b"{\"kinds\":[1]}").unwrap()), 0);
}

/// A payload of another store may have two million ranges and four million topics, but reading it
/// must not allocate.
#[test]
fn nothing_of_a_payload_of_another_store() {
    use hark_codec::waku::sync::{SyncError, SyncPayload};
    let mut ranges = vec![0, 0, 1];
    ranges.extend([1, 0].iter().cycle().take((4 << 20) - 4));
    let mut topics = vec![0x80, 0x80, 0x80, 1];
    topics.resize(4 << 20, 0);
    let count = allocations(|| {
        let payload = SyncPayload::parse(&ranges).unwrap().unwrap();
        assert_eq!(payload.ranges().count(), 2_097_150);
        assert_eq!(SyncPayload::parse(&topics), Err(SyncError::Topics));
    });
    assert_eq!(count, 0);
}

#[test]
fn nothing_on_the_way_of_an_envelope_and_its_request() {
    let data = vec![7; 284];
    let envelope =
        Envelope { expiry: 1_554_076_850, ttl: 50, topic: [1, 2, 3, 4], data: &data, nonce: 99 };
    let (mut rlp, mut packet) = (Vec::new(), Vec::new());
    envelope.write(&mut rlp);
    let request =
        HistoryRequest { bloom: Some(Bloom::FULL), limit: 10, ..HistoryRequest::default() };
    request.write([[1, 2, 3, 4]; 100].into_iter(), &mut packet);
    let mut out = Vec::new();
    let count = allocations(|| {
        let envelope = Envelope::parse(&rlp).unwrap();
        assert!(envelope.pow() > 0.0);
        out.clear();
        encode(&envelope, &envelope.hash(), &mut out);
        let cursor = EnvelopeRecord::new(Record::new(&out).unwrap()).cursor();
        let request = HistoryRequest::parse(&packet).unwrap();
        assert!(request.topics.iter().all(|topic| Bloom::FULL.covers(&Bloom::of_topic(topic))));
        out.clear();
        let done = Completion::Done { request: [1; 32], last: [2; 32], cursor: Some(cursor) };
        done.write(&mut out);
        assert_eq!(Completion::parse(&out), Ok(done));
    });
    assert_eq!(count, 0);
}

/// However many items there are, an answer allocates only one buffer, which grows by doubling.
#[test]
fn a_comparison_allocates_nothing_for_an_item() {
    let id = |n: u64| {
        let mut id = [7; 32];
        id[..8].copy_from_slice(&n.to_be_bytes());
        id
    };
    let set = |count: u64, each: u64| -> SortedItems {
        let items = (0..count).filter(|n| n % each > 0);
        items.map(|n| NegentropyItem { time: n / 100, id: id(n) }).collect::<Vec<_>>().into()
    };
    for (count, each) in [(100, 3), (50_000, 3), (50_000, 1_000)] {
        let (ours, theirs) = (set(count, each), set(count, 7));
        let message = NegentropyInitiator::new(&ours, 0).open();
        let before = of_this_thread();
        let mut responder = NegentropyResponder::new(message, 1 << 20).unwrap();
        while responder.step(&theirs, 1) {}
        let answer = responder.finish();
        let answered = of_this_thread() - before;
        assert!(answered <= 16, "{answered} allocations for {} bytes", answer.len());
        let mut initiator = NegentropyInitiator::new(&ours, 0);
        let before = of_this_thread();
        let next = initiator.answer(&answer, &mut |_| {}).unwrap();
        let read = of_this_thread() - before;
        assert!(read <= 32, "{read} allocations for {:?}", next.map(|next| next.len()));
    }
}
