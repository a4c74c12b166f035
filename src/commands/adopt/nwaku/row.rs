//! The rows of nwaku's table of messages, and their order.

use crate::commands::adopt::events::EventRowFault;
use crate::commands::adopt::rows::text;
use crate::commands::refusal::RefusalReason;

/// A batch ends once its rows have at least this number of bytes.
pub(super) const BATCH_BYTES_MAX: usize = 32 << 20;
/// The noun for the source's program in error messages.
pub(super) const SERVER: &str = "nwaku";

/// A position in the order of rows: by time and key, or by the key alone if the source has no
/// index of times.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NwakuCursor {
    /// Rows with an earlier time are not read.
    pub(super) time: i64,
    /// The stored hash as the source writes it, or the id of old schemas. Empty: before all rows.
    pub(super) key: Vec<u8>,
    /// The second part of the key in an old schema; otherwise empty.
    pub(super) topic: Vec<u8>,
}

impl NwakuCursor {
    /// The position before all rows of this time and of later times.
    pub(super) fn since(time: i64) -> Self {
        Self { time, key: Vec::new(), topic: Vec::new() }
    }

    /// The position before all rows.
    pub(super) fn start() -> Self {
        Self::since(i64::MIN)
    }
}

/// A row of nwaku's table of messages.
#[derive(Clone, Debug)]
pub(super) struct NwakuRow {
    pub(super) at: NwakuCursor,
    /// The stored hash, in hex digits; empty in schemas without hashes.
    pub(super) hash: String,
    pub(super) pubsub_topic: Vec<u8>,
    pub(super) content_topic: Vec<u8>,
    pub(super) version: i64,
    /// The time that is part of the message and its hash, in ns.
    pub(super) timestamp: i64,
    /// The payload, or the reason why the row has none.
    pub(super) payload: Result<Vec<u8>, EventRowFault>,
    pub(super) meta: Vec<u8>,
}

impl NwakuRow {
    /// Returns the row's name in reports.
    pub(super) fn name(&self) -> String {
        if self.hash.is_empty() { text(&self.at.key) } else { self.hash.clone() }
    }

    /// The number of bytes in memory, approximately.
    pub(super) fn bytes(&self) -> usize {
        let payload = self.payload.as_ref().map_or(0, Vec::len);
        payload + self.pubsub_topic.len() + self.content_topic.len() + self.meta.len() + 200
    }
}

/// The fault of a row whose payload is longer than the setting allows, so that it is not read.
pub(super) fn too_large(bytes: u64, bytes_max: usize) -> EventRowFault {
    let words = format!("{bytes} bytes; waku.message_bytes_max is {bytes_max}");
    (RefusalReason::TooLarge, words)
}
