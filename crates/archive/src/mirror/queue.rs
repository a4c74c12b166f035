//! The queue of writes that wait for the second store.

use std::collections::VecDeque;
use std::time::Instant;

use crate::store::{NumberedRecord, Write};

/// The writes that wait for the second store.
pub(super) struct MirrorQueue {
    pub(super) writes: VecDeque<QueuedWrite>,
    pub(super) bytes: usize,
    /// Whether the second store is still committing the last batch that was removed from the queue.
    pub(super) is_writing: bool,
    /// Whether the queue lacks writes, which only a walk through both stores finds.
    pub(super) gap: bool,
    /// The time at which the second store began to lack writes that are not in the queue. `None`
    /// once a walk has copied these writes.
    pub(super) behind_since: Option<Instant>,
    pub(super) trouble: Option<String>,
    /// The time at which the remaining writes are discarded.
    pub(super) ends_at: Option<Instant>,
}

/// A write that waits for the second store.
pub(super) struct QueuedWrite {
    pub(super) since: Instant,
    pub(super) write: Write,
    /// Number of records that the first store deleted with this write.
    pub(super) deleted: usize,
}

/// Estimates the bytes that a write uses in the queue. For an erase, the estimate counts only the
/// lists of the query.
pub(super) fn size(write: &Write) -> usize {
    match write {
        Write::Put(record) => record.len() + 64,
        Write::Erase(query) => query.values() * 32 + 256,
    }
}

impl MirrorQueue {
    /// Makes an empty queue, from which all earlier writes are missing.
    pub(super) fn new() -> Self {
        Self {
            writes: VecDeque::new(),
            bytes: 0,
            is_writing: false,
            gap: true,
            behind_since: Some(Instant::now()),
            trouble: None,
            ends_at: None,
        }
    }

    pub(super) fn push(&mut self, write: Write, deleted: usize) {
        self.bytes += size(&write);
        self.writes.push_back(QueuedWrite { since: Instant::now(), write, deleted });
    }

    /// Queues the records that other processes have put into the first store.
    pub(super) fn push_news(&mut self, news: &[NumberedRecord]) {
        // It is unknown how many records the first store deleted because of these records. The
        // mirror assumes that the second store deletes the same number.
        for (_, record) in news {
            self.push(Write::Put(record.clone()), usize::MAX);
        }
    }

    /// Discards all queued writes.
    pub(super) fn discard(&mut self) {
        self.writes = VecDeque::new();
        self.bytes = 0;
        self.gap = true;
        self.behind_since.get_or_insert_with(Instant::now);
    }
}
