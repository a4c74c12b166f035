//! A comparison message (NIP-77, negentropy). The answer has at most the permitted length and only
//! ids of the set. Many small steps make the same answer as one large step, and the initiator can
//! read the answer.

use hark_codec::nostr::negentropy::{
    FRAME_BYTES_MIN, NegentropyDifference, NegentropyInitiator, NegentropyItem,
    NegentropyResponder, NegentropySet, SortedItems, VERSION,
};

/// Number of items in the compared set. Several items have the same time, and several ids the same
/// prefix.
const ITEMS: u64 = 300;

fn item(n: u64) -> NegentropyItem {
    let mut id = [0x5a; 32];
    id[(n % 32) as usize] = n as u8;
    id[31] = (n / 7) as u8;
    NegentropyItem { time: n / 20, id }
}

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    let theirs: SortedItems = (0..ITEMS).map(item).collect::<Vec<_>>().into();
    let ours: SortedItems = (ITEMS / 2..ITEMS).map(item).collect::<Vec<_>>().into();
    let Ok(mut responder) = NegentropyResponder::new(bytes.to_vec(), FRAME_BYTES_MIN) else {
        // The responder cannot read this message. An initiator must not accept it as complete,
        // either.
        let read = NegentropyInitiator::new(&ours, 0).answer(bytes, &mut |_| {});
        return assert!(read.is_err() || read.is_ok_and(|next| next.is_some()));
    };
    while responder.step(&theirs, 1) {}
    let answer = responder.finish();
    assert!(answer.len() <= FRAME_BYTES_MIN && (bytes[0] == VERSION || answer.len() == 1));
    let mut at_once = NegentropyResponder::new(bytes.to_vec(), 0).expect("it was read before");
    while at_once.step(&theirs, usize::MAX) {}
    assert_eq!(at_once.finish(), answer);
    let has: Vec<[u8; 32]> =
        (0..theirs.size()).filter_map(|at| theirs.item(at)).map(|item| item.id).collect();
    let mut initiator = NegentropyInitiator::new(&ours, 0);
    let next = initiator.answer(&answer, &mut |difference| {
        if let NegentropyDifference::Need(id) = difference {
            assert!(has.contains(&id), "an id that the responder has not");
        }
    });
    if let Some(next) = next.expect("an answer is a message") {
        assert!(next.len() <= FRAME_BYTES_MIN);
        NegentropyResponder::new(next, 0).expect("so is the next one");
    }
}
