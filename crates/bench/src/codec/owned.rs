//! Measures serde_json as most programs use the crate: with a struct that owns its strings.

use std::hint::black_box;

use anyhow::ensure;
use hark_codec::crypto::sha256;
use serde::{Deserialize, Serialize};

use super::operation::{CANONICAL, ID, JSON_TRIP, PARSE, REWRITE, WRITE};
use super::{CodecMeter, CodecSample, CodecSampleKind, Column, Library, consume_value};

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

fn measure(message: &CodecSample, meter: &mut CodecMeter) -> anyhow::Result<()> {
    if message.what != CodecSampleKind::Event {
        return Ok(());
    }
    let json = message.json.as_slice();
    let parse = |json| serde_json::from_slice::<OwnedEvent>(black_box(json));
    let (event, other, mut out) = (parse(json)?, parse(&message.respelled)?, Vec::new());

    meter.measure(PARSE, || consume_value(parse(json)));
    meter.measure(WRITE, || {
        black_box(&event).write(&mut out);
        black_box(&out);
    });
    ensure!(out == json, "{}: serde_json writes it otherwise", message.name);
    meter.measure(REWRITE, || {
        black_box(&other).write(&mut out);
        black_box(&out);
    });
    meter.measure(CANONICAL, || {
        black_box(&event).write_canonical(&mut out);
        black_box(&out);
    });
    meter.measure(ID, || {
        black_box(&event).write_canonical(&mut out);
        black_box(sha256(&out));
    });
    meter.measure(JSON_TRIP, || {
        if let Ok(event) = parse(json) {
            event.write(&mut out);
        }
        black_box(&out);
    });
    Ok(())
}
