//! What stores tell each other to find out which messages the other lacks (Waku Store Sync,
//! `/vac/waku/reconciliation/1.0.0`, in the form that nwaku speaks since 0.37).
//!
//! Messages are (time, hash) in that order. A payload divides a span of time into ranges, one behind
//! the other; of each it says nothing, a fingerprint of what the sender has in it, or all of that.

use crate::record::{Id, put_varint};

/// A message's place: its time in ns and its hash.
pub type Place = (u64, Id);

/// What is said of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Nothing: it is settled.
    Skip,
    /// The hashes of all messages in it, XORed.
    Fingerprint(Id),
    /// All messages in it, and whether the other side has told its own.
    Items(Vec<Place>, bool),
}

/// A range up to, but not including, a place, from where the one before it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Where it ends.
    pub end: Place,
    /// What is said of it.
    pub said: Said,
}

/// A payload that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Pubsub topics of the sender's messages; none stands for all.
    pub pubsub_topics: Vec<String>,
    /// Content topics of the sender's messages; none stands for all.
    pub content_topics: Vec<String>,
    /// Time at which the first range begins.
    pub start: u64,
    /// The ranges.
    pub ranges: Vec<Range>,
}

/// Why bytes are no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// They end too early.
    #[error("the payload is cut short")]
    Short,
    /// A number of more than 64 bits, or a time beyond them.
    #[error("the payload has a number that is too large")]
    Number,
    /// A topic that is not UTF-8.
    #[error("the payload has a topic that is not UTF-8")]
    Topic,
    /// A kind of range, or a flag, that is none.
    #[error("the payload has a range of an unknown kind")]
    Kind,
    /// Messages that are not in order.
    #[error("the payload's messages are not in order")]
    Order,
}

impl Payload {
    /// Reads a payload; none where it says that there is nothing left to do.
    pub fn parse(mut bytes: &[u8]) -> Result<Option<Self>, SyncError> {
        if bytes.len() <= 1 {
            return Ok(None);
        }
        let from = &mut bytes;
        let (pubsub_topics, content_topics) = (topics(from)?, topics(from)?);
        let start = number(from)?;
        let (mut ranges, mut time) = (Vec::new(), start);
        while !from.is_empty() {
            let step = number(from)?;
            let mut hash = [0; 32];
            if step == 0 {
                let len = usize::from(take(from, 1)?[0]);
                let known = hash.get_mut(..len).ok_or(SyncError::Kind)?;
                known.copy_from_slice(take(from, len)?);
            }
            time = time.checked_add(step).ok_or(SyncError::Number)?;
            let said = match take(from, 1)?[0] {
                0 => Said::Skip,
                1 => Said::Fingerprint(id(from)?),
                2 => items(from)?,
                _ => return Err(SyncError::Kind),
            };
            ranges.push(Range { end: (time, hash), said });
        }
        Ok(Some(Self { pubsub_topics, content_topics, start, ranges }))
    }

    /// Appends the payload; a single byte if it has nothing to say.
    pub fn write(&self, out: &mut Vec<u8>) {
        if self.ranges.iter().all(|range| range.said == Said::Skip) {
            return out.push(0);
        }
        for topics in [&self.pubsub_topics, &self.content_topics] {
            put_varint(out, topics.len() as u64);
            for topic in topics {
                put_varint(out, topic.len() as u64);
                out.extend_from_slice(topic.as_bytes());
            }
        }
        put_varint(out, self.start);
        let mut time = self.start;
        for Range { end, said } in &self.ranges {
            put_varint(out, end.0 - time);
            if end.0 == time {
                // As much of it as is not zero.
                let len = end.1.iter().rposition(|byte| *byte != 0).map_or(1, |at| at + 1);
                out.push(len as u8);
                out.extend_from_slice(&end.1[..len]);
            }
            time = end.0;
            match said {
                Said::Skip => out.push(0),
                Said::Fingerprint(fingerprint) => {
                    out.push(1);
                    out.extend_from_slice(fingerprint);
                }
                Said::Items(items, told) => {
                    out.push(2);
                    put_varint(out, items.len() as u64);
                    let mut before = 0;
                    for (time, hash) in items {
                        put_varint(out, time - before);
                        out.extend_from_slice(hash);
                        before = *time;
                    }
                    out.push(u8::from(*told));
                }
            }
        }
    }
}

/// The fingerprint of messages.
pub fn fingerprint(items: &[Place]) -> Id {
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
    super::protobuf::varint(from).map_err(|error| match error {
        super::ProtobufError::Short => SyncError::Short,
        _ => SyncError::Number,
    })
}

fn topics(from: &mut &[u8]) -> Result<Vec<String>, SyncError> {
    let count = number(from)?;
    let mut topics = Vec::new();
    for _ in 0..count {
        let len = usize::try_from(number(from)?).map_err(|_| SyncError::Short)?;
        let topic = std::str::from_utf8(take(from, len)?).map_err(|_| SyncError::Topic)?;
        topics.push(topic.to_owned());
    }
    Ok(topics)
}

fn items(from: &mut &[u8]) -> Result<Said, SyncError> {
    let count = number(from)?;
    let (mut items, mut time) = (Vec::<Place>::new(), 0_u64);
    for _ in 0..count {
        time = time.checked_add(number(from)?).ok_or(SyncError::Number)?;
        let item = (time, id(from)?);
        if items.last().is_some_and(|last| *last >= item) {
            return Err(SyncError::Order);
        }
        items.push(item);
    }
    match take(from, 1)?[0] {
        told @ (0 | 1) => Ok(Said::Items(items, told == 1)),
        _ => Err(SyncError::Kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_700_000_000_000_000_000;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// The bytes of an exchange between two nodes with three messages.
    #[test]
    fn payloads_have_the_bytes_that_other_stores_send() {
        let head = "01 0e2f77616b752f322f72732f312f33 00 8080a8b1e39fe7cb17 80c0e285e368";
        let (one, two, four) = ("11".repeat(32), "22".repeat(32), "44".repeat(32));
        let a = (T + 1_000_000_000, [0x11; 32]);
        let payload = |said| Payload {
            pubsub_topics: vec!["/waku/2/rs/1/3".into()],
            content_topics: Vec::new(),
            start: T,
            ranges: vec![Range { end: (T + 3_600_000_000_000, [0; 32]), said }],
        };
        for (said, bytes) in [
            (Said::Fingerprint([0x33; 32]), format!("{head} 01 {}", "33".repeat(32))),
            (
                Said::Items(vec![a, (T + 2_000_000_005, [0x44; 32])], false),
                format!("{head} 02 02 8094938ee79fe7cb17 {one} 8594ebdc03 {four} 00"),
            ),
            (
                Said::Items(vec![a, (a.0, [0x22; 32])], true),
                format!("{head} 02 02 8094938ee79fe7cb17 {one} 00 {two} 01"),
            ),
        ] {
            let (payload, mut written) = (payload(said), Vec::new());
            payload.write(&mut written);
            assert_eq!(written, hex(&bytes));
            assert_eq!(Payload::parse(&written), Ok(Some(payload)));
        }
        let mut written = Vec::new();
        payload(Said::Skip).write(&mut written);
        assert_eq!(written, [0]);
        assert_eq!(Payload::parse(&written), Ok(None));
        let skip = hex(&format!("00 00 8080a8b1e39fe7cb17 e807 00 d00f 01 {}", "aa".repeat(32)));
        let read = Payload::parse(&skip).unwrap().unwrap();
        assert_eq!(read.ranges[0], Range { end: (T + 1_000, [0; 32]), said: Said::Skip });
        assert_eq!(read.ranges[1].end.0, T + 3_000);
        let same = hex(&format!("00 00 8080a8b1e39fe7cb17 00 03 000007 01 {}", "aa".repeat(32)));
        let read = Payload::parse(&same).unwrap().unwrap();
        assert_eq!((read.ranges[0].end.0, &read.ranges[0].end.1[..4]), (T, &[0, 0, 7, 0][..]));
        let mut again = Vec::new();
        read.write(&mut again);
        assert_eq!(again, same);
    }

    #[test]
    fn what_is_no_payload_is_refused_wherever_it_is_cut() {
        let payload = Payload {
            pubsub_topics: vec!["p".into()],
            content_topics: vec!["c".into()],
            start: T,
            ranges: vec![Range {
                end: (T + 5, [0; 32]),
                said: Said::Items(vec![(T, [1; 32]), (T + 1, [0; 32])], false),
            }],
        };
        let mut bytes = Vec::new();
        payload.write(&mut bytes);
        for cut in 2..bytes.len() {
            // Cut between two ranges it would be whole; there is only one.
            let read = Payload::parse(&bytes[..cut]);
            assert!(read.is_err() || read.unwrap().unwrap().ranges.is_empty(), "cut at {cut}");
        }
        let last = bytes.len() - 1;
        bytes[last] = 2;
        assert_eq!(Payload::parse(&bytes), Err(SyncError::Kind));
        let many = [0, 0, 0, 1, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(Payload::parse(&many), Err(SyncError::Short));
        let unsorted = Said::Items(vec![(T, [1; 32]), (T, [1; 32])], false);
        let range = Range { end: (T + 5, [0; 32]), said: unsorted };
        let (payload, mut bytes) = (Payload { ranges: vec![range], ..payload }, Vec::new());
        payload.write(&mut bytes);
        assert_eq!(Payload::parse(&bytes), Err(SyncError::Order));
    }

    #[test]
    fn fingerprints_are_xor() {
        assert_eq!(fingerprint(&[]), [0; 32]);
        assert_eq!(fingerprint(&[(1, [0x11; 32]), (2, [0x22; 32])]), [0x33; 32]);
    }
}
