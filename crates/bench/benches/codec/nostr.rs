//! Measures the `nostr` crate through its public functions.

use std::hint::black_box;

use anyhow::{Context, ensure};
use hark_bench::codec::operation::{
    CANONICAL, ID, JSON_TRIP, MATCH, PARSE, REWRITE, VERIFY, WRITE,
};
use hark_bench::codec::{
    CodecCase, CodecMeter, CodecSample, CodecSampleKind, Library, consume_value, note,
};
use hark_bench::report::Column;
use nostr::filter::MatchEventOptions;
use nostr::{Event, EventId, Filter, JsonUtil};

pub(super) const LIBRARY: Library = Library {
    ns: Column::plain("nostr_ns", "nostr", "ns"),
    allocations: Column::plain("nostr_allocations", "allocs", ""),
    ratio: Column::plain("nostr_ratio", "ratio", ""),
    measure,
};

fn measure(case: &CodecCase, meter: &mut CodecMeter) -> anyhow::Result<()> {
    match case.what {
        CodecSampleKind::Event => events(&case.samples, meter),
        CodecSampleKind::Filter => case.samples.iter().try_for_each(|sample| filter(sample, meter)),
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

fn events(samples: &[CodecSample], meter: &mut CodecMeter) -> anyhow::Result<()> {
    let (mut events, mut others) = (Vec::new(), Vec::new());
    for sample in samples {
        let parse = |json| {
            Event::from_json(json).with_context(|| format!("{}: no event for nostr", sample.name))
        };
        let event = parse(&sample.json)?;
        ensure!(event.verify().is_ok(), "{}: the nostr crate refuses it", sample.name);
        let is_same = event.as_json().as_bytes() == sample.json;
        ensure!(is_same, "{}: the nostr crate writes it otherwise", sample.name);
        events.push(event);
        others.push(parse(&sample.respelled)?);
    }

    meter.measure(PARSE, || {
        for sample in samples {
            consume_value(Event::from_json(black_box(&sample.json)));
        }
    });
    for (operation, events) in [(WRITE, &events), (REWRITE, &others)] {
        meter.measure(operation, || {
            for event in events {
                consume_value(black_box(event).as_json());
            }
        });
    }
    meter.measure(CANONICAL, || {
        for event in &events {
            consume_value(canonical(black_box(event)));
        }
    });
    meter.measure(ID, || {
        for event in &events {
            consume_value(id(black_box(event)));
        }
    });
    meter.measure(VERIFY, || {
        for event in &events {
            consume_value(black_box(event).verify_signature());
        }
    });
    meter.measure(JSON_TRIP, || {
        for sample in samples {
            let event = Event::from_json(black_box(&sample.json));
            consume_value(event.map(|event| event.as_json()));
        }
    });
    Ok(())
}

fn filter(sample: &CodecSample, meter: &mut CodecMeter) -> anyhow::Result<()> {
    let json = sample.json.as_slice();
    let filter = Filter::from_json(json).context("a filter")?;
    let event = Event::from_json(&note().json)?;
    meter.measure(PARSE, || consume_value(Filter::from_json(black_box(json))));
    meter.measure(MATCH, || {
        consume_value(filter.match_event(black_box(&event), MatchEventOptions::new()));
    });
    Ok(())
}
