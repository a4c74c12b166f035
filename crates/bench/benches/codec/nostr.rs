//! Measures the `nostr` crate through its public functions.

use std::hint::black_box;

use anyhow::{Context, ensure};
use hark_bench::codec::operation::{
    CANONICAL, ID, JSON_TRIP, MATCH, PARSE, REWRITE, VERIFY, WRITE,
};
use hark_bench::codec::{CodecMeter, CodecSample, CodecSampleKind, Library, consume_value, note};
use hark_bench::report::Column;
use nostr::filter::MatchEventOptions;
use nostr::{Event, EventId, Filter, JsonUtil};

pub(super) const LIBRARY: Library = Library {
    ns: Column::plain("nostr_ns", "nostr", "ns"),
    allocations: Column::plain("nostr_allocations", "allocs", ""),
    ratio: Column::plain("nostr_ratio", "ratio", ""),
    measure,
};

fn measure(message: &CodecSample, meter: &mut CodecMeter) -> anyhow::Result<()> {
    match message.what {
        CodecSampleKind::Event => event(message, meter),
        CodecSampleKind::Filter => filter(message, meter),
    }
}

/// Makes the canonical form as the crate's `EventId::new` does before it hashes.
fn canonical(event: &Event) -> String {
    let Event { pubkey, created_at, kind, tags, content, .. } = event;
    serde_json::json!([0, pubkey, created_at, kind, tags, content]).to_string()
}

fn id(event: &Event) -> EventId {
    EventId::new(&event.pubkey, &event.created_at, &event.kind, &event.tags, &event.content)
}

fn event(message: &CodecSample, meter: &mut CodecMeter) -> anyhow::Result<()> {
    let json = message.json.as_slice();
    let (event, other) = (Event::from_json(json)?, Event::from_json(&message.respelled)?);
    ensure!(event.verify().is_ok(), "{}: the nostr crate refuses it", message.name);
    ensure!(event.as_json().as_bytes() == json, "{}: written otherwise", message.name);

    meter.measure(PARSE, || consume_value(Event::from_json(black_box(json))));
    meter.measure(WRITE, || consume_value(black_box(&event).as_json()));
    meter.measure(REWRITE, || consume_value(black_box(&other).as_json()));
    meter.measure(CANONICAL, || consume_value(canonical(black_box(&event))));
    meter.measure(ID, || consume_value(id(black_box(&event))));
    meter.measure(VERIFY, || consume_value(black_box(&event).verify_signature()));
    meter.measure(JSON_TRIP, || {
        let event = Event::from_json(black_box(json));
        consume_value(event.map(|event| event.as_json()));
    });
    Ok(())
}

fn filter(message: &CodecSample, meter: &mut CodecMeter) -> anyhow::Result<()> {
    let json = message.json.as_slice();
    let filter = Filter::from_json(json).context("a filter")?;
    let event = Event::from_json(&note().json)?;
    meter.measure(PARSE, || consume_value(Filter::from_json(black_box(json))));
    meter.measure(MATCH, || {
        consume_value(filter.match_event(black_box(&event), MatchEventOptions::new()));
    });
    Ok(())
}
