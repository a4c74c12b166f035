//! The responder for a set that is too large for memory. The set is queried by ranges.

use std::ops::Range;

use super::VERSION;
use super::bound::{NegentropyItem, RangeBound};
use super::error::NegentropyError;
use super::fingerprint::fingerprint;
use super::read::{MessageReader, RangeWords, check_message};
use super::set::{NegentropySet as _, SortedItems};
use super::write::{MessageFull, MessageWriter, PARTS};
use crate::id_sum::IdTally;

/// Maximum number of items in a range that is fetched and divided exactly. A larger range is
/// divided at positions that the set proposes.
const FETCHED_MAX: u64 = 1024;

/// A sorted set of items that keeps sums and is queried by ranges. The set may change between two
/// calls. So the answer to a range is correct for one moment, but this moment may differ from range
/// to range.
pub trait NegentropyRanges {
    /// The tally of the items before a position. The result may include further items, if they are
    /// the same for every position, because only the difference between two results is used.
    fn before(&self, at: &NegentropyItem) -> IdTally;

    /// The first items of a range, in order, at most `max`.
    fn items(&self, range: Range<NegentropyItem>, max: usize) -> Vec<NegentropyItem>;

    /// Returns ascending positions that divide a range into about `parts` parts with about the same
    /// number of items.
    fn divide(&self, range: Range<NegentropyItem>, parts: usize) -> Vec<NegentropyItem>;
}

/// The answer to one message of an initiator, computed in steps.
#[derive(Debug)]
pub struct RangesResponder {
    message: Vec<u8>,
    reader: MessageReader,
    /// `None` if the message has another version.
    writer: Option<MessageWriter>,
    /// The start of the next range, and the tally of all items before it, if known.
    start: (NegentropyItem, Option<IdTally>),
}

impl RangesResponder {
    /// Begins an answer, as [`NegentropyResponder::new`](super::NegentropyResponder::new) does.
    pub fn new(message: Vec<u8>, frame_bytes_max: usize) -> Result<Self, NegentropyError> {
        let writer = check_message(&message)?.then(|| MessageWriter::new(frame_bytes_max));
        let (reader, start) = (MessageReader::new(), (NegentropyItem::default(), None));
        Ok(Self { message, reader, writer, start })
    }

    /// Answers the next `ranges_max` ranges. Returns whether more ranges are left.
    pub fn step(&mut self, set: &impl NegentropyRanges, ranges_max: usize) -> bool {
        (0..ranges_max).all(|_| self.answer_range(set))
    }

    /// Answers one range. Returns false at the end of the message, or when the answer is full.
    fn answer_range(&mut self, set: &impl NegentropyRanges) -> bool {
        let Some(writer) = &mut self.writer else { return false };
        // `new` has checked all ranges.
        let Ok(Some((bound, words))) = self.reader.next(&self.message) else { return false };
        let (start, known) = self.start;
        self.start = (bound.at, None);
        if words == RangeWords::Skip {
            writer.skip(bound);
            return true;
        }
        let before = known.unwrap_or_else(|| set.before(&start));
        let all = if bound.at == start { before } else { set.before(&bound.at) };
        self.start.1 = Some(all);
        let here = all.minus(before);
        let left = match words {
            RangeWords::Ids(_) => write_ids(writer, set, start..bound.at, bound),
            RangeWords::Fingerprint(theirs) if fingerprint(here.sum, here.count) != *theirs => {
                let said = if here.count <= FETCHED_MAX {
                    let items = set.items(start..bound.at, 2 * FETCHED_MAX as usize);
                    let items = SortedItems::from(items);
                    writer.split(&items, 0..items.size(), bound)
                } else {
                    divide(writer, set, (start, before)..(bound.at, all), bound)
                };
                said.map(|()| None)
            }
            RangeWords::Fingerprint(_) | RangeWords::Skip => {
                writer.skip(bound);
                Ok(None)
            }
        };
        let before = match left {
            Ok(None) => return true,
            Ok(Some(left)) => set.before(&left),
            Err(MessageFull) => before,
        };
        let rest = set.before(&RangeBound::INFINITE.at).minus(before);
        writer.end(&fingerprint(rest.sum, rest.count));
        false
    }

    /// The answer.
    pub fn finish(self) -> Vec<u8> {
        self.writer.map_or_else(|| vec![VERSION], |writer| writer.finish().0)
    }
}

/// Writes as many ids of a range as fit into the message. Returns the first item that does not fit,
/// if any.
fn write_ids(
    writer: &mut MessageWriter,
    set: &impl NegentropyRanges,
    range: Range<NegentropyItem>,
    bound: RangeBound,
) -> Result<Option<NegentropyItem>, MessageFull> {
    let room = writer.ids_room()?;
    let items = SortedItems::from(set.items(range, room + 1));
    let said = writer.ids_that_fit(&items, 0..items.size(), bound)?;
    Ok(items.item(said).copied())
}

/// Writes the fingerprints of the parts of a range.
fn divide(
    writer: &mut MessageWriter,
    set: &impl NegentropyRanges,
    range: Range<(NegentropyItem, IdTally)>,
    bound: RangeBound,
) -> Result<(), MessageFull> {
    let Range { start: (start, before), end: (end, all) } = range;
    let inside = |at: &NegentropyItem| start < *at && *at < end;
    let (mut last, mut before) = (start, before);
    let cuts = set.divide(start..end, PARTS).into_iter().filter(inside);
    let mut parts = Vec::with_capacity(PARTS);
    for cut in cuts {
        if cut <= last {
            continue;
        }
        let bound = RangeBound::between(&last, &cut);
        let tally = set.before(&bound.at);
        parts.push((bound, tally.minus(before)));
        (last, before) = (cut, tally);
    }
    parts.push((bound, all.minus(before)));
    let parts = parts.into_iter();
    writer.fingerprints(parts.map(|(bound, here)| (bound, fingerprint(here.sum, here.count))))
}
