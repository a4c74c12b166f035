//! Measures a comparison (NIP-77) of two sets of events that differ little.

use std::hint::black_box;

use anyhow::ensure;
use hark_codec::nostr::Event;
use hark_codec::nostr::negentropy::{
    NegentropyInitiator, NegentropyItem, NegentropyResponder, SummedItems,
};

use super::operation::COMPARE;
use super::{CodecMeter, consume_value};

/// Maximum length of a comparison's messages, in bytes.
pub const FRAME_BYTES: usize = 60_000;
/// Number of ranges that the responder answers in a step.
const RANGES: usize = 64;

/// Divides the items of many events between the two sides of a comparison. Each side lacks one item
/// in a hundred, and the other side has this item.
pub fn comparison_sides<T: Clone>(items: &[T]) -> (Vec<T>, Vec<T>) {
    let without = |lacking: usize| {
        let items = items.iter().enumerate().filter(|(at, _)| at % 100 != lacking);
        items.map(|(_, item)| item.clone()).collect()
    };
    (without(33), without(66))
}

/// Measures how long it takes to find the differences, on both sides together.
pub(super) fn measure(events: &[Event<'_>], meter: &mut CodecMeter) -> anyhow::Result<()> {
    let item = |event: &Event<'_>| NegentropyItem { time: event.created_at(), id: *event.id() };
    let items: Vec<_> = events.iter().map(item).collect();
    let (ours, theirs) = comparison_sides(&items);
    let expected = items.len() * 2 - ours.len() - theirs.len();
    let found = differences(ours.clone(), theirs.clone())?;
    ensure!(found == expected, "a comparison found {found} differences, not {expected}");
    meter.measure(COMPARE, || {
        consume_value(differences(black_box(&ours).clone(), black_box(&theirs).clone()));
    });
    Ok(())
}

/// Compares two sets, and returns the number of their differences. A difference may be found twice.
fn differences(ours: Vec<NegentropyItem>, theirs: Vec<NegentropyItem>) -> anyhow::Result<usize> {
    let (ours, theirs) = (SummedItems::from(ours), SummedItems::from(theirs));
    let mut initiator = NegentropyInitiator::new(&ours, FRAME_BYTES);
    let (mut next, mut found) = (Some(initiator.open()), Vec::new());
    while let Some(message) = next {
        let mut responder = NegentropyResponder::new(message, FRAME_BYTES)?;
        while responder.step(&theirs, RANGES) {}
        next = initiator.answer(&responder.finish(), &mut |difference| found.push(difference))?;
    }
    found.sort_unstable();
    found.dedup();
    Ok(found.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_lacks_one_item_of_a_hundred_and_all_are_found() {
        let item = |n: u64| {
            let id = hark_codec::crypto::sha256(&n.to_le_bytes());
            NegentropyItem { time: n / 3, id }
        };
        let items: Vec<_> = (0..20_000).map(item).collect();
        let (ours, theirs) = comparison_sides(&items);
        assert_eq!((ours.len(), theirs.len()), (19_800, 19_800));
        assert_eq!(differences(ours, theirs).unwrap(), 400);
    }
}
