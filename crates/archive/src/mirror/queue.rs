//! The queue of writes that wait for the second store.

use std::collections::VecDeque;
use std::time::Instant;

use crate::store::{NumberedRecord, Write};

/// The writes that wait for the second store.
pub(super) struct MirrorQueue {
    pub(super) writes: VecDeque<QueuedWrite>,
    pub(super) bytes: usize,
    /// Whether the second store has not yet answered the batch that was taken last.
    pub(super) is_writing: bool,
    /// Whether writes are missing in the queue. Only a walk finds such writes.
    pub(super) gap: bool,
    /// Since when there has been a gap that no walk has closed yet.
    pub(super) behind_since: Option<Instant>,
    pub(super) trouble: Option<String>,
    /// When to give up the remaining writes.
    pub(super) ends_at: Option<Instant>,
}

/// A write that waits for the second store.
pub(super) struct QueuedWrite {
    pub(super) since: Instant,
    pub(super) write: Write,
    /// Number of records that the first store deleted with this write.
    pub(super) deleted: usize,
}

/// Estimates the bytes that a write takes in the queue. For a query, the size of its lists is close
/// enough for a bound.
pub(super) fn size(write: &Write) -> usize {
    match write {
        Write::Put(record) => record.len() + 64,
        Write::Erase(query) => query.values() * 32 + 256,
    }
}

impl MirrorQueue {
    /// Makes an empty queue that lacks all earlier writes.
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
        // The number of records that these records deleted in the first store is unknown. It is
        // assumed to be as many as they delete in the second store.
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
