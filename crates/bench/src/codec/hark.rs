//! Measures Hark's codec with reused buffers, as in the server.

use std::hint::black_box;

use anyhow::{Context, ensure};
use hark_codec::crypto::SignatureVerifier;
use hark_codec::nostr::{Event, EventArena, EventEncoder, EventRecord, Filter, canonical};
use hark_codec::record::Record;

use super::messages::note;
use super::operation::{
    BINARY_TRIP, CANONICAL, ENCODE, FIELDS, ID, JSON_TRIP, LABELS, MATCH, PARSE, REWRITE, STORE,
    VERIFY, WRITE,
};
use super::{
    CodecCase, CodecMeter, CodecSample, CodecSampleKind, Column, Library, comparison, consume_value,
};

pub(super) const LIBRARY: Library = Library {
    ns: Column::plain("ns", "hark", "ns"),
    allocations: Column::plain("allocations", "allocs", ""),
    ratio: Column::plain("ratio", "ratio", ""),
    measure,
};

/// Number of parsed keys in the verifier's cache. The relay's cache has the same size.
const KEYS: usize = 4_096;

fn measure(case: &CodecCase, meter: &mut CodecMeter) -> anyhow::Result<()> {
    match case.what {
        CodecSampleKind::Event => {
            json(&case.samples, meter)?;
            events(&case.samples, meter)
        }
        CodecSampleKind::Filter => case.samples.iter().try_for_each(|sample| filter(sample, meter)),
    }
}

/// Measures the operations that begin with JSON.
fn json(samples: &[CodecSample], meter: &mut CodecMeter) -> anyhow::Result<()> {
    let (mut arena, mut encoder) = (EventArena::new(), EventEncoder::default());
    let (mut out, mut stored) = (Vec::new(), Vec::new());
    for sample in samples {
        Event::parse(&sample.json, &mut arena).with_context(|| sample.name.clone())?;
    }
    meter.measure(PARSE, || {
        for sample in samples {
            consume_value(Event::parse(black_box(&sample.json), &mut arena));
        }
    });
    meter.measure(STORE, || {
        for sample in samples {
            out.clear();
            if let Ok(event) = Event::parse(black_box(&sample.json), &mut arena) {
                encoder.encode(&event, &[], &mut out);
            }
            black_box(&out);
        }
    });
    meter.measure(JSON_TRIP, || {
        for sample in samples {
            out.clear();
            if let Ok(event) = Event::parse(black_box(&sample.json), &mut arena) {
                event.write_json(&mut out);
            }
            black_box(&out);
        }
    });
    meter.measure(BINARY_TRIP, || {
        for sample in samples {
            out.clear();
            stored.clear();
            if let Ok(event) = Event::parse(black_box(&sample.json), &mut arena) {
                encoder.encode(&event, &[], &mut stored);
            }
            if let Some(record) = read_fields(&stored) {
                out.extend_from_slice(record.json());
            }
            black_box(&out);
        }
    });
    Ok(())
}

/// Measures the operations that begin with a parsed event or a record.
fn events(samples: &[CodecSample], meter: &mut CodecMeter) -> anyhow::Result<()> {
    let (mut arenas, mut other_arenas) = (arenas(samples), arenas(samples));
    let events = parsed(samples.iter().map(|sample| &*sample.json), &mut arenas)?;
    let others = parsed(samples.iter().map(|sample| &*sample.respelled), &mut other_arenas)?;
    let (mut encoder, mut verifier) = (EventEncoder::default(), SignatureVerifier::new(KEYS));
    let mut out = Vec::new();
    let mut stored = vec![Vec::new(); samples.len()];
    for ((sample, event), stored) in samples.iter().zip(&events).zip(&mut stored) {
        let signed = verifier.verify(event.id(), event.pubkey(), event.signature());
        ensure!(event.has_valid_id() && signed.is_ok(), "{}: not signed", sample.name);
        out.clear();
        event.write_json(&mut out);
        ensure!(out == sample.json, "{}: written otherwise than read", sample.name);
        encoder.encode(event, &[], stored);
        let record = read_fields(stored).with_context(|| format!("{}: no record", sample.name))?;
        ensure!(record.json() == sample.json, "{}: stored otherwise than read", sample.name);
    }
    let records: Result<Vec<_>, _> = stored.iter().map(|bytes| Record::new(bytes)).collect();
    let records = records?;

    for (operation, events) in [(WRITE, &events), (REWRITE, &others)] {
        meter.measure(operation, || {
            for event in events {
                out.clear();
                black_box(event).write_json(&mut out);
                black_box(&out);
            }
        });
    }
    meter.measure(CANONICAL, || {
        for event in &events {
            out.clear();
            canonical::write_canonical(&mut out, black_box(event));
            black_box(&out);
        }
    });
    meter.measure(ID, || {
        for event in &events {
            consume_value(black_box(event).compute_id());
        }
    });
    meter.measure(VERIFY, || {
        for event in black_box(&events) {
            consume_value(verifier.verify(event.id(), event.pubkey(), event.signature()));
        }
    });
    meter.measure(ENCODE, || {
        for event in &events {
            out.clear();
            encoder.encode(black_box(event), &[], &mut out);
            black_box(&out);
        }
    });
    meter.measure(FIELDS, || {
        for bytes in &stored {
            consume_value(read_fields(black_box(bytes)));
        }
    });
    meter.measure(LABELS, || {
        for record in &records {
            for label in black_box(*record).labels() {
                black_box(label);
            }
        }
    });
    if samples.len() > 1 {
        comparison::measure(&events, meter)?;
    }
    Ok(())
}

fn arenas(samples: &[CodecSample]) -> Vec<EventArena> {
    samples.iter().map(|_| EventArena::new()).collect()
}

fn parsed<'a>(
    messages: impl Iterator<Item = &'a [u8]>,
    arenas: &'a mut [EventArena],
) -> anyhow::Result<Vec<Event<'a>>> {
    messages.zip(arenas).map(|(json, arena)| Ok(Event::parse(json, arena)?)).collect()
}

/// Reads and copies every fixed field.
fn read_fields(bytes: &[u8]) -> Option<EventRecord<'_>> {
    let record = EventRecord::new(Record::new(bytes).ok()?)?;
    black_box((*record.id(), *record.pubkey(), record.created_at()));
    black_box((record.kind(), record.expires(), record.json()));
    Some(record)
}

fn filter(sample: &CodecSample, meter: &mut CodecMeter) -> anyhow::Result<()> {
    let mut filter = Filter::default();
    meter.measure(PARSE, || consume_value(filter.parse(black_box(&sample.json))));
    let (note, mut arena) = (note(), EventArena::new());
    let event = Event::parse(&note.json, &mut arena)?;
    filter.parse(&sample.json)?;
    meter.measure(MATCH, || consume_value(filter.matches(black_box(&event))));
    Ok(())
}
