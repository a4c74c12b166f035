//! A new record on its way to subscribers.

use std::sync::Arc;

use hark_codec::record::Record;

use crate::meter::Counter;

/// A new record, whose bytes all recipients share.
#[derive(Clone, Debug)]
pub struct NewRecord {
    /// The record's sequence number. `None` if the record is never stored.
    pub seq: Option<u64>,
    shared: Arc<SharedBytes>,
    wire: (u32, u32),
}

/// The bytes of a record. All recipients share the bytes, and `held` counts them until the last
/// recipient drops the record.
#[derive(Debug)]
struct SharedBytes {
    bytes: Box<[u8]>,
    held: Arc<Counter>,
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        self.held.sub(self.bytes.len() as u64);
    }
}

impl NewRecord {
    pub(super) fn new(seq: Option<u64>, record: &Record<'_>, held: &Arc<Counter>) -> Self {
        let bytes: Box<[u8]> = record.bytes().into();
        held.add(bytes.len() as u64);
        let start = record.wire().as_ptr() as usize - record.bytes().as_ptr() as usize;
        let shared = Arc::new(SharedBytes { bytes, held: Arc::clone(held) });
        Self { seq, shared, wire: (start as u32, (start + record.wire().len()) as u32) }
    }

    /// Returns the message in its wire format.
    pub fn wire(&self) -> &[u8] {
        &self.shared.bytes[self.wire.0 as usize..self.wire.1 as usize]
    }

    /// Returns the size of the record in bytes. All recipients share these bytes.
    pub fn size(&self) -> usize {
        self.shared.bytes.len()
    }

    /// Returns the number of queues that hold the record, at least 1.
    pub(super) fn holders(&self) -> usize {
        Arc::strong_count(&self.shared)
    }

    /// Returns whether both values come from the same call of `publish`.
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(super) fn record(&self) -> Option<Record<'_>> {
        Record::new(&self.shared.bytes).ok()
    }
}

/// Number of bytes that a held-back record uses in a subscription's queue. The queue grows by
/// doubling, so half of it may be empty.
pub(super) const HELD_BYTES: usize = 2 * size_of::<(u64, NewRecord)>();
