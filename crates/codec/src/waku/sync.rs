//! The payloads that two stores exchange to find out which messages each of them lacks (Waku Store
//! Sync, `/vac/waku/reconciliation/1.0.0`, in the form that nwaku speaks since 0.37).
//!
//! A message is identified by (time, hash), and messages are sorted by these. A payload divides a
//! span of time into consecutive ranges. For each range, it holds nothing, a fingerprint of the
//! sender's messages in it, or the list of these messages.
//!
//! A range can take as little as two bytes. A payload is therefore read in place: it is checked as
//! a whole, and only its bytes are kept.

use super::protobuf;
use crate::record::{Id, put_varint};

/// Maximum number of topics in a payload, for each of the two sorts. A cluster has as many shards.
pub const TOPICS_MAX: u64 = 1_024;

/// A message's position in the order: its time in ns and its hash.
pub type MessagePosition = (u64, Id);

/// Content of a range in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeContent<'a> {
    /// Nothing: the range is not compared any further.
    Skip,
    /// The XOR of the hashes of all messages in the range.
    Fingerprint(Id),
    /// All messages in the range, and whether the other side has sent its own messages.
    Items(SyncItems<'a>, bool),
}

/// A range from the end of the previous range up to, but not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRange<'a> {
    /// End of the range.
    pub end: MessagePosition,
    /// Content of the range.
    pub said: RangeContent<'a>,
}

/// A payload that is not empty, as a view over the bytes it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPayload<'a> {
    /// Pubsub topics of the sender's messages; no topics means all.
    pub pubsub_topics: SyncTopics<'a>,
    /// Content topics of the sender's messages; no topics means all.
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
    /// A number, or a time, of more than 64 bits.
    #[error("the payload has a number that is too large")]
    Number,
    /// A topic that is not UTF-8.
    #[error("the payload has a topic that is not UTF-8")]
    Topic,
    /// See [`TOPICS_MAX`].
    #[error("the payload names more than {TOPICS_MAX} topics")]
    Topics,
    /// An unknown kind of range, or an unknown flag.
    #[error("the payload has a range of an unknown kind")]
    Kind,
    /// Messages, or ranges, that are not in order.
    #[error("the payload's messages are not in order")]
    Order,
}

impl<'a> SyncPayload<'a> {
    /// Reads a payload. Returns `None` if it is empty: then nothing is left to compare.
    pub fn parse(mut bytes: &'a [u8]) -> Result<Option<Self>, SyncError> {
        if bytes.len() <= 1 {
            return Ok(None);
        }
        let from = &mut bytes;
        let (pubsub_topics, content_topics) = (SyncTopics::take(from)?, SyncTopics::take(from)?);
        let start = number(from)?;
        let mut payload = Self { pubsub_topics, content_topics, start, end: start, ranges: bytes };
        let mut ranges = SyncRanges::of(&payload);
        while let Some(range) = ranges.take()? {
            payload.end = range.end.0;
        }
        Ok(Some(payload))
    }

    /// The ranges.
    pub fn ranges(&self) -> impl Iterator<Item = SyncRange<'a>> + use<'a> {
        let mut ranges = SyncRanges::of(self);
        // `parse` has checked all ranges.
        std::iter::from_fn(move || ranges.take().ok().flatten())
    }
}

/// Topics of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncTopics<'a> {
    count: u64,
    bytes: &'a [u8],
}

impl<'a> SyncTopics<'a> {
    fn take(from: &mut &'a [u8]) -> Result<Self, SyncError> {
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

    /// Whether no topic is named.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The topics.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut left = self.bytes;
        // `take` has checked all topics.
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
    fn take(from: &mut &'a [u8]) -> Result<Self, SyncError> {
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
        // `take` has checked all messages.
        (0..self.count).map_while(move |_| {
            let item = item(&mut left, time).ok()?;
            time = item.0;
            Some(item)
        })
    }
}

/// The ranges of a payload that are left to read.
struct SyncRanges<'a> {
    left: &'a [u8],
    end: MessagePosition,
}

impl<'a> SyncRanges<'a> {
    fn of(payload: &SyncPayload<'a>) -> Self {
        Self { left: payload.ranges, end: (payload.start, [0; 32]) }
    }

    fn take(&mut self) -> Result<Option<SyncRange<'a>>, SyncError> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let from = &mut self.left;
        let step = number(from)?;
        let mut hash = [0; 32];
        if step == 0 {
            let len = usize::from(take(from, 1)?[0]);
            let known = hash.get_mut(..len).ok_or(SyncError::Kind)?;
            known.copy_from_slice(take(from, len)?);
        }
        let end = (self.end.0.checked_add(step).ok_or(SyncError::Number)?, hash);
        // Overlapping ranges could request the same message many times.
        if end < self.end {
            return Err(SyncError::Order);
        }
        self.end = end;
        let said = match take(from, 1)?[0] {
            0 => RangeContent::Skip,
            1 => RangeContent::Fingerprint(id(from)?),
            2 => {
                let items = SyncItems::take(from)?;
                match take(from, 1)?[0] {
                    was_sent @ (0 | 1) => RangeContent::Items(items, was_sent == 1),
                    _ => return Err(SyncError::Kind),
                }
            }
            _ => return Err(SyncError::Kind),
        };
        Ok(Some(SyncRange { end, said }))
    }
}

/// Writes a payload, range by range. Adjacent skipped ranges are merged.
#[derive(Debug)]
pub struct PayloadWriter {
    out: Vec<u8>,
    bytes_max: usize,
    /// Time at which the last written range ends.
    time: u64,
    /// End of the pending skipped ranges after the last written range.
    skipped: Option<MessagePosition>,
    /// Whether a range that is not skipped has been written.
    says: bool,
}

impl PayloadWriter {
    /// Begins a payload of at most `bytes_max` bytes.
    pub fn new(pubsub_topics: &[String], start: u64, bytes_max: usize) -> Self {
        let mut out = Vec::new();
        put_varint(&mut out, pubsub_topics.len() as u64);
        for topic in pubsub_topics {
            put_varint(&mut out, topic.len() as u64);
            out.extend_from_slice(topic.as_bytes());
        }
        // No content topics, which means all.
        put_varint(&mut out, 0);
        put_varint(&mut out, start);
        Self { out, bytes_max, time: start, skipped: None, says: false }
    }

    /// Skips the range up to `end`.
    pub fn skip(&mut self, end: MessagePosition) {
        self.make_way(end);
        self.skipped = Some(end);
    }

    /// Writes the skipped range first, if `end` has a hash. The hash of an end is written only if
    /// the previous end has the same time, so the previous end must have been written.
    fn make_way(&mut self, end: MessagePosition) {
        if end.1 != [0; 32] && end.0 != self.time {
            self.settle();
        }
    }

    /// Writes the pending skipped range, which follows the last written range.
    fn settle(&mut self) {
        if let Some(skipped) = self.skipped.take() {
            self.end(skipped);
            self.out.push(0);
        }
    }

    /// Writes the range up to `end` with the fingerprint of its messages.
    pub fn fingerprint(&mut self, end: MessagePosition, fingerprint: &Id) {
        self.say(end, |out| {
            out.push(1);
            out.extend_from_slice(fingerprint);
        });
    }

    /// Writes the range up to `end` with its messages. `was_sent` is true if the other side has
    /// sent its own messages.
    pub fn items(&mut self, end: MessagePosition, items: &[MessagePosition], was_sent: bool) {
        // Each message takes at least 33 bytes.
        if items.len().saturating_mul(33) > self.bytes_max {
            return self.skip(end);
        }
        self.say(end, |out| {
            out.push(2);
            put_varint(out, items.len() as u64);
            let mut before = 0;
            for (time, hash) in items {
                put_varint(out, time - before);
                out.extend_from_slice(hash);
                before = *time;
            }
            out.push(u8::from(was_sent));
        });
    }

    /// Writes the range up to `end`, and calls `what` to append the range's content. A range that
    /// does not fit is skipped: the next comparison continues there.
    fn say(&mut self, end: MessagePosition, what: impl FnOnce(&mut Vec<u8>)) {
        self.make_way(end);
        let (len, time) = (self.out.len(), self.time);
        self.settle();
        self.end(end);
        what(&mut self.out);
        if self.out.len() > self.bytes_max {
            self.out.truncate(len);
            (self.time, self.skipped) = (time, Some(end));
        } else {
            self.says = true;
        }
    }

    fn end(&mut self, end: MessagePosition) {
        put_varint(&mut self.out, end.0 - self.time);
        if end.0 == self.time {
            // The hash without its trailing zeros.
            let len = end.1.iter().rposition(|byte| *byte != 0).map_or(1, |at| at + 1);
            self.out.push(len as u8);
            self.out.extend_from_slice(&end.1[..len]);
        }
        self.time = end.0;
    }

    /// Returns the payload's bytes, and whether any range is not skipped. If all ranges are
    /// skipped, the payload is a single byte.
    pub fn finish(mut self) -> (Vec<u8>, bool) {
        if !self.says {
            return (vec![0], false);
        }
        self.settle();
        (self.out, true)
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

fn take<'a>(from: &mut &'a [u8], len: usize) -> Result<&'a [u8], SyncError> {
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
    simdutf8::basic::from_utf8(take(from, len)?).map_err(|_| SyncError::Topic)
}

/// Reads a message, whose time is encoded relative to the time of the previous message.
fn item(from: &mut &[u8], before: u64) -> Result<MessagePosition, SyncError> {
    let time = before.checked_add(number(from)?).ok_or(SyncError::Number)?;
    Ok((time, id(from)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_700_000_000_000_000_000;
    const END: MessagePosition = (T + 3_600_000_000_000, [0; 32]);

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn writer() -> PayloadWriter {
        PayloadWriter::new(&["/waku/2/rs/1/3".into()], T, 1 << 20)
    }

    fn read(bytes: &[u8]) -> SyncPayload<'_> {
        SyncPayload::parse(bytes).unwrap().unwrap()
    }

    /// The content of a payload's only range.
    fn said(bytes: &[u8]) -> RangeContent<'_> {
        let payload = read(bytes);
        assert_eq!(payload.pubsub_topics.iter().collect::<Vec<_>>(), ["/waku/2/rs/1/3"]);
        assert!(payload.content_topics.is_empty());
        let ranges: Vec<SyncRange<'_>> = payload.ranges().collect();
        assert_eq!((payload.start, payload.end, ranges.len()), (T, END.0, 1));
        assert_eq!(ranges[0].end, END);
        ranges[0].said
    }

    /// The bytes of an exchange between two nodes with three messages.
    #[test]
    fn payloads_have_the_bytes_that_other_stores_send() {
        let head = "01 0e2f77616b752f322f72732f312f33 00 8080a8b1e39fe7cb17 80c0e285e368";
        let (one, two, four) = ("11".repeat(32), "22".repeat(32), "44".repeat(32));
        let a = (T + 1_000_000_000, [0x11; 32]);
        let mut writer_of_print = writer();
        writer_of_print.fingerprint(END, &[0x33; 32]);
        let bytes = hex(&format!("{head} 01 {}", "33".repeat(32)));
        assert_eq!(writer_of_print.finish(), (bytes.clone(), true));
        assert_eq!(said(&bytes), RangeContent::Fingerprint([0x33; 32]));
        for (items, was_sent, bytes) in [
            (
                [a, (T + 2_000_000_005, [0x44; 32])],
                false,
                format!("{head} 02 02 8094938ee79fe7cb17 {one} 8594ebdc03 {four} 00"),
            ),
            (
                [a, (a.0, [0x22; 32])],
                true,
                format!("{head} 02 02 8094938ee79fe7cb17 {one} 00 {two} 01"),
            ),
        ] {
            let mut writer = writer();
            writer.items(END, &items, was_sent);
            let bytes = hex(&bytes);
            assert_eq!(writer.finish(), (bytes.clone(), true));
            let RangeContent::Items(read, as_sent) = said(&bytes) else { panic!("are items") };
            assert_eq!((read.iter().collect::<Vec<_>>(), as_sent), (items.to_vec(), was_sent));
        }
        let mut nothing = writer();
        nothing.skip(END);
        assert_eq!(nothing.finish(), (vec![0], false));
        assert_eq!(SyncPayload::parse(&[0]), Ok(None));
    }

    #[test]
    fn ranges_that_are_skipped_one_after_the_other_become_one() {
        let skips =
            hex(&format!("00 00 8080a8b1e39fe7cb17 e807 00 d00f 00 01 01 {}", "aa".repeat(32)));
        let ends: Vec<u64> = read(&skips).ranges().map(|range| range.end.0 - T).collect();
        assert_eq!(ends, [1_000, 3_000, 3_001]);
        let mut writer = PayloadWriter::new(&[], T, 1 << 20);
        for range in read(&skips).ranges() {
            match range.said {
                RangeContent::Fingerprint(print) => writer.fingerprint(range.end, &print),
                _ => writer.skip(range.end),
            }
        }
        let merged = hex(&format!("00 00 8080a8b1e39fe7cb17 b817 00 01 01 {}", "aa".repeat(32)));
        assert_eq!(writer.finish(), (merged, true));
        // Ranges that end at the same time are distinguished by the hash.
        let same = hex(&format!("00 00 8080a8b1e39fe7cb17 00 03 000007 01 {}", "aa".repeat(32)));
        let range = read(&same).ranges().next().unwrap();
        assert_eq!((range.end.0, &range.end.1[..4]), (T, &[0, 0, 7, 0][..]));
        let mut writer = PayloadWriter::new(&[], T, 1 << 20);
        writer.fingerprint(range.end, &[0xaa; 32]);
        assert_eq!(writer.finish().0, same);
        // A skipped range is not merged into the next range if the end of that range has a hash.
        let apart =
            hex(&format!("00 00 8080a8b1e39fe7cb17 05 00 00 01 07 00 01 01 {}", "aa".repeat(32)));
        let mut writer = PayloadWriter::new(&[], T, 1 << 20);
        for range in read(&apart).ranges() {
            match range.said {
                RangeContent::Fingerprint(print) => writer.fingerprint(range.end, &print),
                _ => writer.skip(range.end),
            }
        }
        assert_eq!(writer.finish().0, apart);
    }

    #[test]
    fn what_does_not_fit_is_left_for_the_next_time() {
        let items: Vec<MessagePosition> = (0..100).map(|at| (T + at, [7; 32])).collect();
        let mut writer = PayloadWriter::new(&[], T, 4_000);
        writer.items((T + 100, [0; 32]), &items, false);
        writer.items((T + 200, [0; 32]), &items, false);
        writer.items((T + 300, [0; 32]), &vec![items[0]; 1_000], false);
        writer.fingerprint((T + 400, [0; 32]), &[1; 32]);
        let (bytes, _) = writer.finish();
        let said: Vec<_> = read(&bytes).ranges().map(|range| range.said).collect();
        let shape = matches!(
            said[..],
            [RangeContent::Items(..), RangeContent::Skip, RangeContent::Fingerprint(_)]
        );
        assert!(shape && bytes.len() <= 4_000, "{} bytes: {said:?}", bytes.len());
    }

    #[test]
    fn what_is_no_payload_is_refused_wherever_it_is_cut() {
        let end = (T + 5, [0; 32]);
        let mut writer = PayloadWriter::new(&["p".into()], T, 1 << 20);
        writer.items(end, &[(T, [1; 32]), (T + 1, [0; 32])], false);
        let mut bytes = writer.finish().0;
        for cut in 2..bytes.len() {
            // A payload cut between two ranges would be valid; this one has only one range.
            let read = SyncPayload::parse(&bytes[..cut]);
            assert!(read.is_err() || read.unwrap().unwrap().ranges().count() == 0, "cut at {cut}");
        }
        let last = bytes.len() - 1;
        bytes[last] = 2;
        assert_eq!(SyncPayload::parse(&bytes), Err(SyncError::Kind));
        let many = [0, 0, 0, 1, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(SyncPayload::parse(&many), Err(SyncError::Short));
        let mut writer = PayloadWriter::new(&[], T, 1 << 20);
        writer.items(end, &[(T, [1; 32]), (T, [1; 32])], false);
        assert_eq!(SyncPayload::parse(&writer.finish().0), Err(SyncError::Order));
        // A range that ends before it begins, and too many topics.
        assert_eq!(SyncPayload::parse(&[0, 0, 5, 0, 1, 9, 0, 0, 1, 7, 0]), Err(SyncError::Order));
        let mut topics = vec![0x81, 8];
        topics.resize(4_000, 0);
        assert_eq!(SyncPayload::parse(&topics), Err(SyncError::Topics));
    }

    #[test]
    fn fingerprints_are_xor() {
        assert_eq!(fingerprint(&[]), [0; 32]);
        assert_eq!(fingerprint(&[(1, [0x11; 32]), (2, [0x22; 32])]), [0x33; 32]);
    }
}
