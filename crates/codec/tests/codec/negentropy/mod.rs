//! Comparisons of sets by NIP-77. Messages have the bytes of the protocol's reference
//! implementation, and a comparison finds all differences, for any sets and any limits of message
//! length.

use std::collections::BTreeSet;
use std::ops::Range;

use hark_codec::hex;
use hark_codec::id_sum::IdTally;
use hark_codec::nostr::negentropy::{
    FRAME_BYTES_MIN, NegentropyDifference, NegentropyError, NegentropyInitiator, NegentropyItem,
    NegentropyRanges, NegentropyResponder, NegentropySet, RangesResponder, SortedItems,
};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

/// Item `n` of the recorded exchanges. Each time belongs to 64 items, and every fifth id begins
/// with the same prefix.
fn item(n: u32) -> NegentropyItem {
    let mut id: [u8; 32] = Sha256::digest(n.to_be_bytes()).into();
    if n.is_multiple_of(5) {
        id[..8].fill(0xab);
    }
    NegentropyItem { time: 1_700_000_000 + u64::from(n / 64), id }
}

fn set(count: u32, without: &[u32]) -> SortedItems {
    let items: Vec<NegentropyItem> =
        (0..count).filter(|n| !without.contains(n)).map(item).collect();
    items.into()
}

fn items(set: &SortedItems) -> BTreeSet<NegentropyItem> {
    (0..set.size()).filter_map(|index| set.item(index)).copied().collect()
}

fn answer(message: Vec<u8>, set: &SortedItems, frame_bytes_max: usize) -> Vec<u8> {
    let mut responder = NegentropyResponder::new(message, frame_bytes_max).unwrap();
    while responder.step(set, 3) {}
    responder.finish()
}

/// A set that is queried by ranges. It divides ranges unevenly.
struct Ranges<'a>(&'a SortedItems);

impl Ranges<'_> {
    fn indices(&self, range: &Range<NegentropyItem>) -> Range<usize> {
        self.0.lower_bound(0, &range.start)..self.0.lower_bound(0, &range.end)
    }
}

impl NegentropyRanges for Ranges<'_> {
    fn before(&self, at: &NegentropyItem) -> IdTally {
        let count = self.0.lower_bound(0, at);
        IdTally { count: count as u64, sum: self.0.sum(0..count) }
    }

    fn items(&self, range: Range<NegentropyItem>, max: usize) -> Vec<NegentropyItem> {
        self.indices(&range).take(max).filter_map(|at| self.0.item(at)).copied().collect()
    }

    fn divide(&self, range: Range<NegentropyItem>, parts: usize) -> Vec<NegentropyItem> {
        let indices = self.indices(&range);
        let each = indices.len() / parts / 2 + 1;
        indices.step_by(each).take(parts).filter_map(|at| self.0.item(at)).copied().collect()
    }
}

fn answer_by_ranges(message: Vec<u8>, set: &SortedItems, frame_bytes_max: usize) -> Vec<u8> {
    let mut responder = RangesResponder::new(message, frame_bytes_max).unwrap();
    while responder.step(&Ranges(set), 3) {}
    responder.finish()
}

/// Compares two sets. Returns all messages, and then the differences, in the order in which they
/// were found.
fn compare(
    ours: &SortedItems,
    theirs: &SortedItems,
    frames: [usize; 2],
) -> (Vec<Vec<u8>>, Vec<NegentropyDifference>) {
    compare_with(ours, frames, |message| answer(message, theirs, frames[1]))
}

/// Does the same as [`compare`], with the given responder.
fn compare_with(
    ours: &SortedItems,
    frames: [usize; 2],
    mut answer: impl FnMut(Vec<u8>) -> Vec<u8>,
) -> (Vec<Vec<u8>>, Vec<NegentropyDifference>) {
    let (mut messages, mut found) = (Vec::new(), Vec::new());
    let mut initiator = NegentropyInitiator::new(ours, frames[0]);
    let mut next = Some(initiator.open());
    while let Some(message) = next {
        let answer = answer(message.clone());
        assert!(message.len() <= frames[0].max(FRAME_BYTES_MIN), "{}", message.len());
        assert!(answer.len() <= frames[1].max(FRAME_BYTES_MIN), "{}", answer.len());
        next = initiator.answer(&answer, &mut |difference| found.push(difference)).unwrap();
        messages.extend([message, answer]);
        assert!(messages.len() < 10_000, "it comes to an end");
    }
    (messages, found)
}

fn expected(ours: &SortedItems, theirs: &SortedItems) -> BTreeSet<NegentropyDifference> {
    let (ours, theirs) = (items(ours), items(theirs));
    let have = ours.difference(&theirs).map(|item| NegentropyDifference::Have(item.id));
    let need = theirs.difference(&ours).map(|item| NegentropyDifference::Need(item.id));
    have.chain(need).collect()
}

/// The recorded exchanges are between two instances of the reference implementation
/// (hoytech/negentropy, in JavaScript).
#[test]
fn messages_have_the_bytes_of_the_reference_implementation() {
    let sets = [
        ("nothing", set(0, &[]), set(0, &[])),
        ("first", set(0, &[]), set(3, &[])),
        ("last", set(3, &[]), set(0, &[])),
        ("few", set(31, &[4, 8]), set(31, &[5, 30])),
        ("same", set(500, &[]), set(500, &[])),
        ("many", set(1_000, &[100, 555, 556]), set(1_000, &[7, 980])),
    ];
    let exchanges = include_str!("exchanges.txt").split("# ").skip(1);
    for (exchange, (name, ours, theirs)) in exchanges.zip(&sets) {
        let (messages, found) = compare(ours, theirs, [usize::MAX; 2]);
        let mut said = format!("{name}\n").into_bytes();
        for message in messages {
            hex::encode_into(&message, &mut said);
            said.push(b'\n');
        }
        assert_eq!(String::from_utf8(said).unwrap(), exchange);
        assert_eq!(found.len(), expected(ours, theirs).len());
        assert_eq!(BTreeSet::from_iter(found), expected(ours, theirs), "{name}");
    }
}

fn bytes(hex_text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(hex::decode_into(hex_text.as_bytes(), &mut bytes), "{hex_text}");
    bytes
}

#[test]
fn every_refusal_and_what_is_accepted() {
    let print = "00".repeat(16);
    let long = format!("61010121{}", "00".repeat(33));
    for (message, result) in [
        ("", Err(NegentropyError::Short)),
        ("50", Err(NegentropyError::NoVersion(0x50))),
        ("70", Err(NegentropyError::NoVersion(0x70))),
        // The answer to another version is our version.
        ("60", Ok("61")),
        ("62ffff", Ok("61")),
        // No range, or one skipped range.
        ("61", Ok("61")),
        ("61000000", Ok("61")),
        // Two infinite bounds, as some implementations write them when a message is full.
        ("610000000000020000", Err(NegentropyError::Short)),
        ("61000000000000", Ok("61")),
        ("6101", Err(NegentropyError::Short)),
        ("610100", Err(NegentropyError::Short)),
        ("61010103", Err(NegentropyError::Short)),
        ("610100020100", Err(NegentropyError::Short)),
        ("61010001ff", Err(NegentropyError::Short)),
        ("61000002ff7f", Err(NegentropyError::Short)),
        // A count of ids so large that their total length in bytes exceeds 64 bits.
        ("6100000281ffffffffffffffff7f", Err(NegentropyError::Short)),
        ("61800000", Err(NegentropyError::Number)),
        ("61ffffffffffffffffffffff", Err(NegentropyError::Number)),
        // A time after infinity.
        ("6100000002000000", Err(NegentropyError::Number)),
        (&long, Err(NegentropyError::Short)),
        (&format!("610121{}00", "00".repeat(33)), Err(NegentropyError::Prefix)),
        ("61010003", Err(NegentropyError::Mode(3))),
        ("610101050001010400", Err(NegentropyError::Order)),
        ("610101050001010500", Ok("61")),
    ] {
        let said = NegentropyResponder::new(bytes(message), 0).map(|mut responder| {
            while responder.step(&SortedItems::default(), usize::MAX) {}
            responder.finish()
        });
        assert_eq!(said, result.map(bytes), "{message}");
        let said = RangesResponder::new(bytes(message), 0).map(|mut responder| {
            while responder.step(&Ranges(&SortedItems::default()), usize::MAX) {}
            responder.finish()
        });
        assert_eq!(said, result.map(bytes), "{message}");
    }
    let all = bytes(&format!("61000001{print}"));
    let (ours, mut found) = (set(3, &[]), Vec::new());
    let mut initiator = NegentropyInitiator::new(&ours, 0);
    let mut note = |difference| found.push(difference);
    assert_eq!(initiator.answer(&[], &mut note), Err(NegentropyError::Short));
    assert_eq!(initiator.answer(&[0x60], &mut note), Err(NegentropyError::Version(0x60)));
    assert_eq!(initiator.answer(&[0x61, 0], &mut note), Err(NegentropyError::Short));
    assert!(initiator.answer(&all, &mut note).unwrap().is_some());
    assert!(found.is_empty());
}

/// An answer ends at its maximum length, and the remaining items follow in the next round.
#[test]
fn large_differences_need_rounds_and_no_large_messages() {
    let all: Vec<u32> = (0..5_000).collect();
    let (ours, theirs) = (set(5_000, &all[1_000..]), set(5_000, &all[..100]));
    for frames in [[0, 0], [0, 60_000], [60_000, 0], [5_000, 4_500]] {
        let (messages, found) = compare(&ours, &theirs, frames);
        assert_eq!(BTreeSet::from_iter(found), expected(&ours, &theirs), "{frames:?}");
        let sent: usize = messages.iter().map(Vec::len).sum();
        // At least two thirds of all bytes sent are the 4,100 ids that one side lacks.
        assert!(sent < 3 * 32 * 4_100 / 2, "{sent} bytes, {frames:?}");
    }
}

/// A responder that is queried by ranges finds the same differences as a responder with the whole
/// set, with few additional rounds and bytes.
#[test]
fn a_set_that_is_not_held_is_compared_like_one_that_is() {
    let (ours, theirs) = (set(40_000, &[100, 555, 20_556]), set(40_000, &[7, 980, 39_999]));
    for frames in [[usize::MAX; 2], [60_000, 5_000], [0, 0]] {
        let (held, _) = compare(&ours, &theirs, frames);
        let (messages, found) =
            compare_with(&ours, frames, |message| answer_by_ranges(message, &theirs, frames[1]));
        assert_eq!(BTreeSet::from_iter(found), expected(&ours, &theirs), "{frames:?}");
        let bytes = |messages: &[Vec<u8>]| messages.iter().map(Vec::len).sum::<usize>();
        assert!(messages.len() <= held.len() + 4, "{} and {}", messages.len(), held.len());
        assert!(bytes(&messages) <= bytes(&held) * 3 / 2);
    }
}

/// Generates two sets. Many of their items have the same time, or ids with the same prefix.
fn sets() -> impl Strategy<Value = (SortedItems, SortedItems)> {
    let id = (prop::sample::select(vec![0_usize, 1, 2, 16, 31]), any::<[u8; 32]>());
    let time = prop_oneof![0..4_u64, 1_700_000_000..1_700_000_100_u64, Just(u64::MAX - 1)];
    let item = (time, id).prop_map(|(time, (shared, mut id))| {
        id[..shared].fill(0x5a);
        // Sets are compared by sums of ids. If ids differ in one byte only, sums could be equal by
        // chance, as in 1 + 4 = 2 + 3. So this byte is a power of two: no two sets of distinct
        // powers of two have the same sum.
        if shared == 31 {
            id[31] = 1 << (id[31] % 8);
        }
        NegentropyItem { time, id }
    });
    // On average, `apart` of eight items are in only one of the sets.
    let sizes = prop::sample::select(vec![0_usize, 1, 31, 32, 33, 400, 1_500]);
    (sizes, 0..=8_u8)
        .prop_flat_map(move |(size, apart)| {
            let item = (item.clone(), 0..8_u8, any::<bool>());
            (prop::collection::vec(item, size), Just(apart))
        })
        .prop_map(|(mut items, apart)| {
            // Ids are unique in a set.
            items.sort_unstable_by_key(|(item, ..)| item.id);
            items.dedup_by_key(|(item, ..)| item.id);
            let of = |side: bool| -> Vec<NegentropyItem> {
                let held = items.iter().filter(|(_, n, of)| *n >= apart || *of == side);
                held.map(|(item, ..)| *item).collect()
            };
            (of(true).into(), of(false).into())
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn both_sides_are_equal_afterwards(
        (ours, theirs) in sets(),
        frames in prop::array::uniform2(prop::sample::select(vec![0, 4_767, 10_000, usize::MAX])),
    ) {
        let (messages, found) = compare(&ours, &theirs, frames);
        let expected = expected(&ours, &theirs);
        if frames == [usize::MAX; 2] {
            prop_assert_eq!(found.len(), expected.len(), "each difference is found once");
        }
        prop_assert!(BTreeSet::from_iter(found) == expected);
        let by_ranges = |message| answer_by_ranges(message, &theirs, frames[1]);
        let (_, found) = compare_with(&ours, frames, by_ranges);
        prop_assert!(BTreeSet::from_iter(found) == expected);
        prop_assert!(messages.len() <= 2 * (3 + (ours.size() + theirs.size()) / 30));
    }

    /// For any message, the answer contains only ids of the responder's set.
    #[test]
    fn the_responder_says_no_id_that_it_has_not(
        (ours, theirs) in sets(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut initiator = NegentropyInitiator::new(&ours, 0);
        let mut message = initiator.open();
        let at = at.index(message.len());
        message[at] = byte;
        let Ok(mut responder) = NegentropyResponder::new(message, 0) else { return Ok(()) };
        while responder.step(&theirs, 1) {}
        let has: BTreeSet<[u8; 32]> = items(&theirs).iter().map(|item| item.id).collect();
        let read = initiator.answer(&responder.finish(), &mut |difference| {
            if let NegentropyDifference::Need(id) = difference {
                assert!(has.contains(&id));
            }
        });
        prop_assert!(read.is_ok());
    }
}
