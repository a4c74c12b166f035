//! Writes a message, range by range.

use std::ops::Range;

use super::bound::{NegentropyItem, RangeBound};
use super::fingerprint::Fingerprint;
use super::number::number;
use super::set::NegentropySet;
use super::{FRAME_BYTES_MIN, VERSION};

/// Number of parts into which a range is divided.
pub(super) const PARTS: usize = 16;

/// Maximum length of a range without its ids, in bytes: a bound (a time, a length, an id), a mode,
/// and a count.
const RANGE_BYTES_MAX: usize = 10 + 1 + 32 + 1 + 10;

/// Number of bytes that are kept free for the end of a full message: a skipped range, and a
/// fingerprint of all items up to infinity.
const END_BYTES: usize = RANGE_BYTES_MAX + 1 + 1 + 1 + 16;

/// A message that is being written.
#[derive(Debug)]
pub(super) struct MessageWriter {
    out: Vec<u8>,
    bytes_max: usize,
    state: WriterState,
}

/// The state of a writer, which is restored if a range does not fit.
#[derive(Clone, Copy, Debug)]
struct WriterState {
    /// Time of the last written bound.
    time: u64,
    /// The end of the skipped ranges after the last written range; they are not written yet. `None`
    /// if there are no such ranges.
    skipped: Option<RangeBound>,
}

/// The error if a range does not fit into the message. The message is then unchanged.
pub(super) struct MessageFull;

impl MessageWriter {
    /// Begins a message of at most `bytes_max` bytes, or of at most [`FRAME_BYTES_MIN`] bytes if
    /// `bytes_max` is lower.
    pub(super) fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.max(FRAME_BYTES_MIN);
        Self { out: vec![VERSION], bytes_max, state: WriterState { time: 0, skipped: None } }
    }

    /// The message, and whether it has any ranges. Skipped ranges at the end are not written.
    pub(super) fn finish(self) -> (Vec<u8>, bool) {
        let says = self.out.len() > 1;
        (self.out, says)
    }

    /// Adds the range up to `bound` to the skipped ranges.
    pub(super) fn skip(&mut self, bound: RangeBound) {
        self.state.skipped = Some(bound);
    }

    /// Writes the items in `range`, which ends at `bound`: the fingerprints of sixteen parts or, if
    /// there are few items, their ids.
    pub(super) fn split(
        &mut self,
        set: &impl NegentropySet,
        range: Range<usize>,
        bound: RangeBound,
    ) -> Result<(), MessageFull> {
        let (len, state) = (self.out.len(), self.state);
        if range.len() < 2 * PARTS {
            self.ids(set, range, bound);
            return self.unless_full(len, state);
        }
        let (each, longer) = (range.len() / PARTS, range.len() % PARTS);
        let mut start = range.start;
        self.fingerprints((0..PARTS).map(|part| {
            let end = start + each + usize::from(part < longer);
            let bound = if end == range.end { bound } else { between(set, end) };
            let fingerprint = set.fingerprint(start..end);
            start = end;
            (bound, fingerprint)
        }))
    }

    /// Writes the fingerprints of consecutive ranges, each with its end.
    pub(super) fn fingerprints(
        &mut self,
        ranges: impl Iterator<Item = (RangeBound, Fingerprint)>,
    ) -> Result<(), MessageFull> {
        let (len, state) = (self.out.len(), self.state);
        for (bound, fingerprint) in ranges {
            self.fingerprint(bound, &fingerprint);
        }
        self.unless_full(len, state)
    }

    /// Checks that there is still space for the end of the message. If not, cuts the message back
    /// to `len` bytes and restores `state`.
    fn unless_full(&mut self, len: usize, state: WriterState) -> Result<(), MessageFull> {
        if self.out.len() + END_BYTES > self.bytes_max {
            self.out.truncate(len);
            self.state = state;
            return Err(MessageFull);
        }
        Ok(())
    }

    /// The number of ids that still fit.
    pub(super) fn ids_room(&self) -> Result<usize, MessageFull> {
        let taken = self.out.len() + 2 * RANGE_BYTES_MAX + END_BYTES;
        Ok(self.bytes_max.checked_sub(taken).ok_or(MessageFull)? / 32)
    }

    /// Writes the ids of as many of the first items in `range` as fit. `range` ends at `bound`.
    /// Returns the index after the last written item.
    pub(super) fn ids_that_fit(
        &mut self,
        set: &impl NegentropySet,
        range: Range<usize>,
        bound: RangeBound,
    ) -> Result<usize, MessageFull> {
        let fit = self.ids_room()?;
        let end = range.end.min(range.start + fit);
        if end == range.start && !range.is_empty() {
            return Err(MessageFull);
        }
        self.ids(set, range.start..end, if end == range.end { bound } else { between(set, end) });
        Ok(end)
    }

    /// Ends the message with the fingerprint of all items from `start` on.
    pub(super) fn end_with_fingerprint(&mut self, set: &impl NegentropySet, start: usize) {
        self.end(&set.fingerprint(start..set.size()));
    }

    /// Ends the message with a fingerprint of all items after the last range.
    pub(super) fn end(&mut self, fingerprint: &Fingerprint) {
        self.fingerprint(RangeBound::INFINITE, fingerprint);
    }

    fn ids(&mut self, set: &impl NegentropySet, range: Range<usize>, bound: RangeBound) {
        self.open(bound, 2);
        self.number(range.len() as u64);
        self.out.reserve(range.len() * 32);
        for item in range.filter_map(|index| set.item(index)) {
            self.out.extend_from_slice(&item.id);
        }
    }

    fn fingerprint(&mut self, bound: RangeBound, fingerprint: &Fingerprint) {
        self.open(bound, 1);
        self.out.extend_from_slice(fingerprint);
    }

    /// Writes the skipped ranges that are pending, and begins a range.
    fn open(&mut self, bound: RangeBound, mode: u64) {
        if let Some(skipped) = self.state.skipped.take() {
            self.bound(skipped);
            self.number(0);
        }
        self.bound(bound);
        self.number(mode);
    }

    fn bound(&mut self, bound: RangeBound) {
        let NegentropyItem { time, id } = bound.at;
        let step = if time == u64::MAX { 0 } else { 1 + time.saturating_sub(self.state.time) };
        self.state.time = time;
        self.number(step);
        self.number(u64::from(bound.len));
        self.out.extend_from_slice(&id[..usize::from(bound.len)]);
    }

    fn number(&mut self, value: u64) {
        let (digits, len) = number(value);
        self.out.extend_from_slice(&digits[digits.len() - len..]);
    }
}

/// Returns the shortest bound between the item at `index` and the item before this item. Returns
/// the infinite bound if one of the two items is missing.
fn between(set: &impl NegentropySet, index: usize) -> RangeBound {
    match (index.checked_sub(1).and_then(|before| set.item(before)), set.item(index)) {
        (Some(before), Some(next)) => RangeBound::between(before, next),
        _ => RangeBound::INFINITE,
    }
}
