//! Writes a payload.

use super::MessagePosition;
use crate::record::{Id, put_varint};

/// Writes a payload, range by range. Skipped ranges that follow each other are merged.
#[derive(Debug)]
pub struct PayloadWriter {
    out: Vec<u8>,
    bytes_max: usize,
    /// Time at which the last written range ends.
    time: u64,
    /// End of the skipped ranges after the last written range; they are not written yet.
    skipped: Option<MessagePosition>,
    /// Whether a range that is not skipped has been written.
    has_content: bool,
}

impl PayloadWriter {
    /// Begins a payload of at most `bytes_max` bytes whose first range begins at the time `start`.
    pub fn new(pubsub_topics: &[String], start: u64, bytes_max: usize) -> Self {
        let mut out = Vec::new();
        put_varint(&mut out, pubsub_topics.len() as u64);
        for topic in pubsub_topics {
            put_varint(&mut out, topic.len() as u64);
            out.extend_from_slice(topic.as_bytes());
        }
        // An empty list of content topics stands for all topics.
        put_varint(&mut out, 0);
        put_varint(&mut out, start);
        Self { out, bytes_max, time: start, skipped: None, has_content: false }
    }

    /// Adds the range up to `end` to the skipped ranges.
    pub fn skip(&mut self, end: MessagePosition) {
        self.write_skipped_before(end);
        self.skipped = Some(end);
    }

    /// Writes the pending skipped range if the hash of `end` would otherwise be lost: the end of a
    /// range is encoded with its hash only if the previous range ends at the same time.
    fn write_skipped_before(&mut self, end: MessagePosition) {
        if end.1 != [0; 32] && end.0 != self.time {
            self.write_skipped();
        }
    }

    /// Writes the pending skipped range.
    fn write_skipped(&mut self) {
        if let Some(skipped) = self.skipped.take() {
            self.write_end(skipped);
            self.out.push(0);
        }
    }

    /// Writes the range up to `end` with the fingerprint of its messages.
    pub fn fingerprint(&mut self, end: MessagePosition, fingerprint: &Id) {
        self.write_range(end, |out| {
            out.push(1);
            out.extend_from_slice(fingerprint);
        });
    }

    /// Writes the range up to `end` with its messages. `was_sent` is false if the receiver must
    /// answer with its own messages in the range.
    pub fn items(&mut self, end: MessagePosition, items: &[MessagePosition], was_sent: bool) {
        // Each message takes at least 33 bytes.
        if items.len().saturating_mul(33) > self.bytes_max {
            return self.skip(end);
        }
        self.write_range(end, |out| {
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

    /// Writes the range up to `end`; `what` appends the content of the range. A range that does not
    /// fit into the payload's maximum length is skipped; the next comparison will include this
    /// range.
    fn write_range(&mut self, end: MessagePosition, what: impl FnOnce(&mut Vec<u8>)) {
        self.write_skipped_before(end);
        let (len, time) = (self.out.len(), self.time);
        self.write_skipped();
        self.write_end(end);
        what(&mut self.out);
        if self.out.len() > self.bytes_max {
            self.out.truncate(len);
            (self.time, self.skipped) = (time, Some(end));
        } else {
            self.has_content = true;
        }
    }

    fn write_end(&mut self, end: MessagePosition) {
        put_varint(&mut self.out, end.0 - self.time);
        if end.0 == self.time {
            // The trailing zeros of the hash are not written.
            let len = end.1.iter().rposition(|byte| *byte != 0).map_or(1, |at| at + 1);
            self.out.push(len as u8);
            self.out.extend_from_slice(&end.1[..len]);
        }
        self.time = end.0;
    }

    /// Returns the bytes of the payload, and whether it has any range that is not skipped. If all
    /// ranges are skipped, the payload is a single byte.
    pub fn finish(mut self) -> (Vec<u8>, bool) {
        if !self.has_content {
            return (vec![0], false);
        }
        self.write_skipped();
        (self.out, true)
    }
}
