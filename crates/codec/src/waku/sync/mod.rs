//! The payloads by which two store nodes find out which messages each of them lacks (Waku Store
//! Sync, `/vac/waku/reconciliation/1.0.0`, in the form that nwaku has used since version 0.37).
//!
//! Time and hash together identify a message, and messages are sorted by time and then by hash. A
//! payload divides a span of time into consecutive ranges. For each range, the payload has a mark
//! that the range is skipped, a fingerprint of the sender's messages in the range, or the list of
//! these messages.
//!
//! A range may take only two bytes, so a payload can have millions of ranges. To save memory, the
//! ranges are not copied. The whole payload is checked first and then read in place.

use super::protobuf;
use crate::record::Id;

mod write;

pub use write::PayloadWriter;

/// Maximum number of pubsub topics in a payload, and maximum number of content topics. A cluster
/// has at most this many shards.
pub const TOPICS_MAX: u64 = 1_024;

/// A message's position in the order: time in ns, then hash.
pub type MessagePosition = (u64, Id);

/// Content of a range in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeContent<'a> {
    /// The range is not compared any further.
    Skip,
    /// The XOR of the hashes of all messages in the range.
    Fingerprint(Id),
    /// All of the sender's messages in the range. If the flag is false, the receiver must answer
    /// with its own messages in the range.
    Items(SyncItems<'a>, bool),
}

/// A range that begins at the end of the previous range and ends before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRange<'a> {
    /// End of the range.
    pub end: MessagePosition,
    /// Content of the range.
    pub said: RangeContent<'a>,
}

/// A payload that is not empty, as a view over the bytes from which it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPayload<'a> {
    /// The pubsub topics that the sender compares; an empty list means all topics.
    pub pubsub_topics: SyncTopics<'a>,
    /// The content topics that the sender compares; an empty list means all topics.
    pub content_topics: SyncTopics<'a>,
    /// Time at which the first range begins.
    pub start: u64,
    /// Time at which the last range ends.
    pub end: u64,
    ranges: &'a [u8],
}

/// Why bytes are not a valid payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The bytes end too early.
    #[error("the payload is cut short")]
    Short,
    /// A number or a time has more than 64 bits.
    #[error("the payload has a number that is too large")]
    Number,
    /// A topic that is not UTF-8.
    #[error("the payload has a topic that is not UTF-8")]
    Topic,
    /// See [`TOPICS_MAX`].
    #[error("the payload names more than {TOPICS_MAX} topics")]
    Topics,
    /// A range has an unknown kind or an unknown flag.
    #[error("the payload has a range of an unknown kind")]
    Kind,
    /// Messages or ranges are not in order.
    #[error("the payload's messages are not in order")]
    Order,
}

impl<'a> SyncPayload<'a> {
    /// Reads a payload. Returns `None` if it is empty, which means that nothing is left to compare.
    pub fn parse(mut bytes: &'a [u8]) -> Result<Option<Self>, SyncError> {
        if bytes.len() <= 1 {
            return Ok(None);
        }
        let from = &mut bytes;
        let (pubsub_topics, content_topics) = (SyncTopics::read(from)?, SyncTopics::read(from)?);
        let start = number(from)?;
        let mut payload = Self { pubsub_topics, content_topics, start, end: start, ranges: bytes };
        let mut ranges = SyncRanges::of(&payload);
        while let Some(range) = ranges.read_next()? {
            payload.end = range.end.0;
        }
        Ok(Some(payload))
    }

    /// The ranges.
    pub fn ranges(&self) -> impl Iterator<Item = SyncRange<'a>> + use<'a> {
        let mut ranges = SyncRanges::of(self);
        // `parse` has checked all ranges.
        std::iter::from_fn(move || ranges.read_next().ok().flatten())
    }
}

/// Topics of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncTopics<'a> {
    count: u64,
    bytes: &'a [u8],
}

impl<'a> SyncTopics<'a> {
    fn read(from: &mut &'a [u8]) -> Result<Self, SyncError> {
        let count = number(from)?;
        if count > TOPICS_MAX {
            return Err(SyncError::Topics);
        }
        let bytes = *from;
        for _ in 0..count {
            topic(from)?;
        }
        Ok(Self { count, bytes: &bytes[..bytes.len() - from.len()] })
    }

    /// Whether the list is empty, which stands for all topics.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The topics.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut left = self.bytes;
        // `read` has checked all topics.
        (0..self.count).map_while(move |_| topic(&mut left).ok())
    }
}

/// Messages of a range, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncItems<'a> {
    count: u64,
    bytes: &'a [u8],
}

impl<'a> SyncItems<'a> {
    fn read(from: &mut &'a [u8]) -> Result<Self, SyncError> {
        let count = number(from)?;
        let (bytes, mut last) = (*from, None);
        for _ in 0..count {
            let item = item(from, last.map_or(0, |(time, _)| time))?;
            if last.is_some_and(|last| last >= item) {
                return Err(SyncError::Order);
            }
            last = Some(item);
        }
        Ok(Self { count, bytes: &bytes[..bytes.len() - from.len()] })
    }

    /// The messages.
    pub fn iter(&self) -> impl Iterator<Item = MessagePosition> + use<'a> {
        let (mut left, mut time) = (self.bytes, 0);
        // `read` has checked all messages.
        (0..self.count).map_while(move |_| {
            let item = item(&mut left, time).ok()?;
            time = item.0;
            Some(item)
        })
    }
}

/// The ranges of a payload that have not been read yet.
struct SyncRanges<'a> {
    left: &'a [u8],
    end: MessagePosition,
}

impl<'a> SyncRanges<'a> {
    fn of(payload: &SyncPayload<'a>) -> Self {
        Self { left: payload.ranges, end: (payload.start, [0; 32]) }
    }

    fn read_next(&mut self) -> Result<Option<SyncRange<'a>>, SyncError> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let from = &mut self.left;
        let step = number(from)?;
        let mut hash = [0; 32];
        if step == 0 {
            let len = usize::from(read_bytes(from, 1)?[0]);
            let known = hash.get_mut(..len).ok_or(SyncError::Kind)?;
            known.copy_from_slice(read_bytes(from, len)?);
        }
        let end = (self.end.0.checked_add(step).ok_or(SyncError::Number)?, hash);
        // A range that ends before its start is refused: if ranges overlapped, the same message
        // could be requested many times.
        if end < self.end {
            return Err(SyncError::Order);
        }
        self.end = end;
        let said = match read_bytes(from, 1)?[0] {
            0 => RangeContent::Skip,
            1 => RangeContent::Fingerprint(id(from)?),
            2 => {
                let items = SyncItems::read(from)?;
                match read_bytes(from, 1)?[0] {
                    was_sent @ (0 | 1) => RangeContent::Items(items, was_sent == 1),
                    _ => return Err(SyncError::Kind),
                }
            }
            _ => return Err(SyncError::Kind),
        };
        Ok(Some(SyncRange { end, said }))
    }
}

/// The fingerprint of messages: the XOR of their hashes.
pub fn fingerprint(items: &[MessagePosition]) -> Id {
    let mut all = [0; 32];
    for (_, hash) in items {
        for (all, byte) in all.iter_mut().zip(hash) {
            *all ^= byte;
        }
    }
    all
}

fn read_bytes<'a>(from: &mut &'a [u8], len: usize) -> Result<&'a [u8], SyncError> {
    let (taken, rest) = from.split_at_checked(len).ok_or(SyncError::Short)?;
    *from = rest;
    Ok(taken)
}

fn id(from: &mut &[u8]) -> Result<Id, SyncError> {
    let (id, rest) = from.split_first_chunk().ok_or(SyncError::Short)?;
    *from = rest;
    Ok(*id)
}

fn number(from: &mut &[u8]) -> Result<u64, SyncError> {
    protobuf::varint(from).map_err(|error| match error {
        protobuf::ProtobufError::Short => SyncError::Short,
        _ => SyncError::Number,
    })
}

fn topic<'a>(from: &mut &'a [u8]) -> Result<&'a str, SyncError> {
    let len = usize::try_from(number(from)?).map_err(|_| SyncError::Short)?;
    simdutf8::basic::from_utf8(read_bytes(from, len)?).map_err(|_| SyncError::Topic)
}

/// Reads the time and the hash of a message. The time is encoded as the difference from the time of
/// the previous message.
fn item(from: &mut &[u8], before: u64) -> Result<MessagePosition, SyncError> {
    let time = before.checked_add(number(from)?).ok_or(SyncError::Number)?;
    Ok((time, id(from)?))
}

#[cfg(test)]
mod tests;
