//! A subscription: its queries, its sink, and its state in the index.

use hark_codec::record::Record;
use parking_lot::Mutex;

use super::news::{HELD_BYTES, NewRecord};
use super::seam::{DeliveryAction, Seam};
use crate::query::Query;

/// The receiving end of a subscription. A door, that is, the server's code for a protocol,
/// implements this trait. Any thread may call the methods, including the writer's thread, so the
/// methods must not block.
pub trait SubscriptionSink: Send + Sync {
    /// Delivers a record to the subscriber. Returns whether a call of `wake` must follow. The call
    /// is not needed if the same record already waits for this client because of another
    /// subscription.
    fn deliver(&self, news: &NewRecord) -> bool;

    /// Announces that records were delivered to this sink. One call also covers the other sinks of
    /// the same client for which `deliver` returned false.
    fn wake(&self);

    /// Charges the subscriber `bytes` of memory for records that are held back until the stored
    /// records have been sent. `bytes` does not include the records' own bytes, which all
    /// subscribers share. Returns false if the subscriber uses too much memory.
    fn hold(&self, bytes: usize) -> bool {
        let _ = bytes;
        true
    }

    /// Releases memory that [`SubscriptionSink::hold`] charged.
    fn free(&self, bytes: usize) {
        let _ = bytes;
    }

    /// Whether a record that is held back is to be delivered by
    /// [`SubscriptionHandle::release_early`](super::SubscriptionHandle::release_early).
    fn is_early(&self, record: &Record<'_>) -> bool {
        let _ = record;
        false
    }

    /// Reports that the held-back records exceed their bound because the subscriber is too slow.
    /// Nothing is delivered after this call.
    fn overflow(&self);
}

/// A subscription's state, shared by the index and the code that evaluates its queries.
pub(super) struct Subscription {
    pub(super) number: u64,
    pub(super) queries: Vec<Query>,
    pub(super) sink: Box<dyn SubscriptionSink>,
    pub(super) seam: Mutex<Seam>,
    pub(super) state: Mutex<IndexingState>,
}

/// How far a subscription has been inserted into the index, or removed from the index. The lock of
/// this state is acquired before the lock of the index.
#[derive(Clone, Copy)]
pub(super) enum IndexingState {
    /// The subscription is one of the newest, and is in no list.
    Newest,
    Entering(IndexProgress),
    Entered,
    Leaving(IndexProgress),
    Left,
}

/// The number of lists into which a subscription was inserted, or from which it was removed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IndexProgress {
    pub(super) query: usize,
    pub(super) value: usize,
}

impl Subscription {
    /// Offers a record to the subscription, and returns whether its sink must be woken.
    #[inline]
    pub(super) fn offer(&self, news: &NewRecord) -> bool {
        let mut seam = self.seam.lock();
        match seam.offer(news, &self.queries, |record| self.sink.is_early(record)) {
            DeliveryAction::Deliver => self.sink.deliver(news),
            DeliveryAction::Nothing => false,
            DeliveryAction::Held if self.sink.hold(HELD_BYTES) => false,
            DeliveryAction::Held | DeliveryAction::Overflow => {
                self.sink.free(seam.end() * HELD_BYTES);
                self.sink.overflow();
                false
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.sink.free(self.seam.get_mut().end() * HELD_BYTES);
    }
}
