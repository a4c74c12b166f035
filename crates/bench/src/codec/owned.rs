//! Measures serde_json as most programs use the crate: with a struct that owns its strings.

use std::hint::black_box;

use anyhow::ensure;
use hark_codec::crypto::sha256;
use serde::{Deserialize, Serialize};

use super::operation::{CANONICAL, ID, JSON_TRIP, PARSE, REWRITE, WRITE};
use super::{CodecCase, CodecMeter, CodecSampleKind, Column, Library, consume_value};

pub(super) const LIBRARY: Library = Library {
    ns: Column::plain("serde_json_ns", "serde_json", "ns"),
    allocations: Column::plain("serde_json_allocations", "allocs", ""),
    ratio: Column::plain("serde_json_ratio", "ratio", ""),
    measure,
};

#[derive(Deserialize, Serialize)]
struct OwnedEvent {
    id: String,
    pubkey: String,
    created_at: u64,
    kind: u16,
    tags: Vec<Vec<String>>,
    content: String,
    sig: String,
}

impl OwnedEvent {
    /// Writes the event as JSON. Writing to a vector cannot fail.
    fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        let _ = serde_json::to_writer(out, self);
    }

    fn write_canonical(&self, out: &mut Vec<u8>) {
        out.clear();
        let Self { pubkey, created_at, kind, tags, content, .. } = self;
        let _ = serde_json::to_writer(out, &(0, pubkey, created_at, kind, tags, content));
    }
}

fn measure(case: &CodecCase, meter: &mut CodecMeter) -> anyhow::Result<()> {
    if case.what != CodecSampleKind::Event {
        return Ok(());
    }
    let parse = |json| serde_json::from_slice::<OwnedEvent>(black_box(json));
    let (mut events, mut others, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for sample in &case.samples {
        let event = parse(&sample.json)?;
        event.write(&mut out);
        ensure!(out == sample.json, "{}: serde_json writes it otherwise", sample.name);
        events.push(event);
        others.push(parse(&sample.respelled)?);
    }

    meter.measure(PARSE, || {
        for sample in &case.samples {
            consume_value(parse(&sample.json));
        }
    });
    for (operation, events) in [(WRITE, &events), (REWRITE, &others)] {
        meter.measure(operation, || {
            for event in events {
                black_box(event).write(&mut out);
                black_box(&out);
            }
        });
    }
    meter.measure(CANONICAL, || {
        for event in &events {
            black_box(event).write_canonical(&mut out);
            black_box(&out);
        }
    });
    meter.measure(ID, || {
        for event in &events {
            black_box(event).write_canonical(&mut out);
            black_box(sha256(&out));
        }
    });
    meter.measure(JSON_TRIP, || {
        for sample in &case.samples {
            if let Ok(event) = parse(&sample.json) {
                event.write(&mut out);
            }
            black_box(&out);
        }
    });
    Ok(())
}
