//! Measures Hark's codec with reused buffers, as in the server.

use std::hint::black_box;

use anyhow::{Context, ensure};
use hark_codec::crypto::SignatureVerifier;
use hark_codec::nostr::{Event, EventArena, EventEncoder, EventRecord, Filter, canonical};
use hark_codec::record::Record;

use super::messages::note;
use super::operation::{
    BINARY_TRIP, CANONICAL, ENCODE, FIELDS, ID, JSON_TRIP, LABELS, MATCH, PARSE, REWRITE, VERIFY,
    WRITE,
};
use super::{CodecMeter, CodecSample, CodecSampleKind, Column, Library, consume_value};

pub(super) const LIBRARY: Library = Library {
    ns: Column::plain("ns", "hark", "ns"),
    allocations: Column::plain("allocations", "allocs", ""),
    ratio: Column::plain("ratio", "ratio", ""),
    measure,
};

fn measure(message: &CodecSample, meter: &mut CodecMeter) -> anyhow::Result<()> {
    match message.what {
        CodecSampleKind::Event => event(message, meter),
        CodecSampleKind::Filter => filter(message, meter),
    }
}

fn event(message: &CodecSample, meter: &mut CodecMeter) -> anyhow::Result<()> {
    let json = message.json.as_slice();
    let (mut arena, mut other_arena, mut spare) =
        (EventArena::new(), EventArena::new(), EventArena::new());
    let (mut encoder, mut verifier) = (EventEncoder::default(), SignatureVerifier::new(16));
    let (mut out, mut stored) = (Vec::new(), Vec::new());

    meter.measure(PARSE, || consume_value(Event::parse(black_box(json), &mut spare)));
    let event = Event::parse(json, &mut arena)?;
    let other = Event::parse(&message.respelled, &mut other_arena)?;
    meter.measure(WRITE, || {
        out.clear();
        black_box(&event).write_json(&mut out);
        black_box(&out);
    });
    meter.measure(REWRITE, || {
        out.clear();
        black_box(&other).write_json(&mut out);
        black_box(&out);
    });
    meter.measure(CANONICAL, || {
        out.clear();
        canonical::write_canonical(&mut out, black_box(&event));
        black_box(&out);
    });
    meter.measure(ID, || consume_value(black_box(&event).compute_id()));
    let signed = verifier.verify(event.id(), event.pubkey(), event.signature());
    ensure!(event.has_valid_id() && signed.is_ok(), "{}: not signed", message.name);
    meter.measure(VERIFY, || {
        let event = black_box(&event);
        consume_value(verifier.verify(event.id(), event.pubkey(), event.signature()));
    });
    meter.measure(ENCODE, || {
        out.clear();
        encoder.encode(black_box(&event), &[], &mut out);
        black_box(&out);
    });
    stored.clone_from(&out);
    read_fields(&stored).context("not a record")?;
    meter.measure(FIELDS, || consume_value(read_fields(black_box(&stored))));
    let record = Record::new(&stored)?;
    meter.measure(LABELS, || {
        for label in black_box(record).labels() {
            black_box(label);
        }
    });
    meter.measure(JSON_TRIP, || {
        out.clear();
        if let Ok(event) = Event::parse(black_box(json), &mut spare) {
            event.write_json(&mut out);
        }
        black_box(&out);
    });
    ensure!(out == json, "{}: written otherwise than read", message.name);
    meter.measure(BINARY_TRIP, || {
        out.clear();
        stored.clear();
        if let Ok(event) = Event::parse(black_box(json), &mut spare) {
            encoder.encode(&event, &[], &mut stored);
        }
        if let Some(record) = read_fields(&stored) {
            out.extend_from_slice(record.json());
        }
        black_box(&out);
    });
    ensure!(out == json, "{}: stored otherwise than read", message.name);
    Ok(())
}

/// Reads and copies every fixed field.
fn read_fields(bytes: &[u8]) -> Option<EventRecord<'_>> {
    let record = EventRecord::new(Record::new(bytes).ok()?)?;
    black_box((*record.id(), *record.pubkey(), record.created_at()));
    black_box((record.kind(), record.expires(), record.json()));
    Some(record)
}

fn filter(message: &CodecSample, meter: &mut CodecMeter) -> anyhow::Result<()> {
    let mut filter = Filter::default();
    meter.measure(PARSE, || consume_value(filter.parse(black_box(&message.json))));
    let (note, mut arena) = (note(), EventArena::new());
    let event = Event::parse(&note.json, &mut arena)?;
    filter.parse(&message.json)?;
    meter.measure(MATCH, || consume_value(filter.matches(black_box(&event))));
    Ok(())
}
