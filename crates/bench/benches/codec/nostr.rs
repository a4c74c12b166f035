//! Measures the `nostr` crate through its public functions, and the `negentropy` crate, with which
//! nostr-sdk compares sets of events.

use std::hint::black_box;

use anyhow::{Context, ensure};
use hark_bench::codec::operation::{
    CANONICAL, COMPARE, ID, JSON_TRIP, MATCH, PARSE, REWRITE, VERIFY, WRITE,
};
use hark_bench::codec::{
    CodecCase, CodecMeter, CodecSample, CodecSampleKind, FRAME_BYTES, Library, comparison_sides,
    consume_value, note,
};
use hark_bench::report::Column;
use negentropy::{Id, Negentropy, NegentropyStorageVector};
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

/// Makes the canonical form, as the crate's `EventId::new` does before hashing.
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
    if samples.len() > 1 {
        let item =
            |event: &Event| (event.created_at.as_secs(), Id::from_byte_array(event.id.to_bytes()));
        let items: Vec<_> = events.iter().map(item).collect();
        let (ours, theirs) = comparison_sides(&items);
        let expected = items.len() * 2 - ours.len() - theirs.len();
        let found = differences(&ours, &theirs)?;
        ensure!(found == expected, "negentropy found {found} differences, not {expected}");
        meter.measure(COMPARE, || {
            consume_value(differences(black_box(&ours), black_box(&theirs)));
        });
    }
    Ok(())
}

/// Compares two sets, and returns the number of their differences.
fn differences(ours: &[(u64, Id)], theirs: &[(u64, Id)]) -> anyhow::Result<usize> {
    let set = |items: &[(u64, Id)]| {
        let mut set = NegentropyStorageVector::with_capacity(items.len());
        for (time, id) in items {
            set.insert(*time, *id)?;
        }
        set.seal()?;
        Negentropy::owned(set, FRAME_BYTES as u64)
    };
    let (mut initiator, mut responder) = (set(ours)?, set(theirs)?);
    let (mut have, mut need) = (Vec::new(), Vec::new());
    let mut next = Some(initiator.initiate()?);
    while let Some(message) = next {
        let answer = responder.reconcile(&message)?;
        next = initiator.reconcile_with_ids(&answer, &mut have, &mut need)?;
    }
    for found in [&mut have, &mut need] {
        found.sort_unstable();
        found.dedup();
    }
    Ok(have.len() + need.len())
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
