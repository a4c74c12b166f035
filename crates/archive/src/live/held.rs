//! Records that are held back until the stored answer of their subscription is sent.

use std::collections::VecDeque;

use super::news::{HELD_BYTES, NewRecord};

/// The held-back records, in the order of their arrival. Records that are to be delivered early are
/// in a separate queue, so that their delivery does not go through all other records.
pub(super) struct HeldRecords {
    /// The records, with their numbers in the order of arrival.
    early: VecDeque<(u64, NewRecord)>,
    others: VecDeque<(u64, NewRecord)>,
    arrived: u64,
    bytes: usize,
    bytes_max: usize,
}

impl HeldRecords {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { early: VecDeque::new(), others: VecDeque::new(), arrived: 0, bytes: 0, bytes_max }
    }

    pub(super) fn len(&self) -> usize {
        self.early.len() + self.others.len()
    }

    /// Number of records that are to be delivered early.
    pub(super) fn early_len(&self) -> usize {
        self.early.len()
    }

    /// Adds a record. Returns false if the records would exceed their bound.
    pub(super) fn push(&mut self, news: &NewRecord, is_early: bool) -> bool {
        self.bytes += held_size(news);
        if self.bytes > self.bytes_max {
            return false;
        }
        self.arrived += 1;
        let queue = if is_early { &mut self.early } else { &mut self.others };
        queue.push_back((self.arrived, news.clone()));
        true
    }

    /// Number of bytes of memory that these records use. The bytes of a record are divided among
    /// all its holders.
    pub(super) fn bytes_by_holder(&self) -> usize {
        let both = self.early.iter().chain(&self.others);
        both.map(|(_, news)| HELD_BYTES + news.size() / news.holders()).sum()
    }

    /// Removes the record that arrived first.
    pub(super) fn pop(&mut self) -> Option<NewRecord> {
        let first =
            |queue: &VecDeque<(u64, NewRecord)>| queue.front().map_or(u64::MAX, |(at, _)| *at);
        if first(&self.early) < first(&self.others) {
            return self.pop_early();
        }
        let (_, news) = self.others.pop_front()?;
        self.bytes -= held_size(&news);
        Some(news)
    }

    /// Removes the record that arrived first of those that are to be delivered early.
    pub(super) fn pop_early(&mut self) -> Option<NewRecord> {
        let (_, news) = self.early.pop_front()?;
        self.bytes -= held_size(&news);
        Some(news)
    }
}

/// Returns the number of bytes that are charged for a held-back record.
fn held_size(news: &NewRecord) -> usize {
    news.size() + HELD_BYTES
}
