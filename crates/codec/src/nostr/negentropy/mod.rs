//! Negentropy, protocol version 1 (NIP-77, appendix). Two sides, the initiator and the responder,
//! compare their sets of events, and the initiator learns which events each side lacks. The
//! messages have little more than the ids of these events.
//!
//! Each side has a set of items, sorted by time and id. A message divides all times and ids into
//! consecutive ranges. A range has one of three contents: a mark that the range is finished (fully
//! compared), the fingerprint of the sender's items in the range, or the ids of these items:
//!
//! ```text
//! message      0x61, ranges
//! range        bound, mode (number), content
//! bound        time (number), length (number), that many leading bytes of an id
//! content      of mode 0 (skip) nothing, of mode 1 a fingerprint (16 bytes),
//!              of mode 2 a count (number) and as many ids (32 bytes each)
//! number       digits to the base 128, the most significant first; 0x80 is set in all but the last
//! ```
//!
//! A range ends before its bound, and begins where the previous range ends. An infinite time is
//! written as 0. Any other time is written as the difference from the time of the previous bound,
//! plus 1. No range after the last one is compared any further.
//!
//! The initiator begins with its whole set. Then each side in turn answers the ranges in the
//! message of the other side. If the fingerprints of a range are equal, the answer marks the range
//! as finished. Otherwise the answer has the fingerprints of sixteen parts of the range or, if the
//! range has few items, their ids. Between two messages, the responder keeps only its set. A set in
//! memory must not change during a comparison ([`NegentropyResponder`]). If a set is too large for
//! memory, each range is read only when it is answered ([`RangesResponder`]). Items that are added
//! or removed in the meantime are found as differences, or by the next comparison.
//!
//! ```
//! use hark_codec::nostr::negentropy::{
//!     NegentropyDifference, NegentropyInitiator, NegentropyItem, NegentropyResponder, SortedItems,
//! };
//!
//! let set = |ids: &[u8]| {
//!     let items = ids.iter().map(|id| NegentropyItem { time: 7, id: [*id; 32] });
//!     SortedItems::from(items.collect::<Vec<_>>())
//! };
//! let (ours, theirs) = (set(&[1, 2]), set(&[2, 3]));
//! let mut initiator = NegentropyInitiator::new(&ours, 4096);
//! let (mut next, mut found) = (Some(initiator.open()), Vec::new());
//! while let Some(message) = next {
//!     // The responder, on the other side.
//!     let mut responder = NegentropyResponder::new(message, 4096)?;
//!     while responder.step(&theirs, 16) {}
//!     let answer = responder.finish();
//!     next = initiator.answer(&answer, &mut |difference| found.push(difference))?;
//! }
//! found.sort_unstable();
//! let expected = [NegentropyDifference::Have([1; 32]), NegentropyDifference::Need([3; 32])];
//! assert_eq!(found, expected);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An answer has a maximum length. An answer that would be longer ends early, with one fingerprint
//! of all remaining items. The initiator's next message continues with these items.

mod bound;
mod error;
mod fingerprint;
mod initiator;
mod number;
mod pass;
mod ranges;
mod read;
mod responder;
mod set;
mod write;

pub use bound::NegentropyItem;
pub use error::NegentropyError;
pub use fingerprint::{Fingerprint, fingerprint};
pub use initiator::{NegentropyDifference, NegentropyInitiator};
pub use ranges::{NegentropyRanges, RangesResponder};
pub use read::check_message;
pub use responder::NegentropyResponder;
pub use set::{NegentropySet, SortedItems, SummedItems};

/// The first byte of a message of this version.
pub const VERSION: u8 = 0x61;

/// The lowest value for the maximum length of a message, in bytes. The answer to one range always
/// fits into a message of this length.
pub const FRAME_BYTES_MIN: usize = 4096;
