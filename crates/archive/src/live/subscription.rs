//! A subscription: its queries, its sink, and its progress into or out of the index.

use parking_lot::Mutex;

use super::news::{HELD_BYTES, NewRecord};
use super::seam::{DeliveryAction, Seam};
use crate::query::Query;

/// The receiving end of a subscription, held by a door. All methods are called from other threads,
/// possibly the writer's: they must not block.
pub trait SubscriptionSink: Send + Sync {
    /// Delivers a record to the subscriber. Returns whether a call of `wake` must follow. No call
    /// is needed if the record already waits for another subscription of the same client.
    fn deliver(&self, news: &NewRecord) -> bool;

    /// Reports that records were delivered, to this sink and to others that need no call of their
    /// own. One call thus serves many subscriptions of a client at once.
    fn wake(&self);

    /// Charges the subscriber `bytes` of memory for records that are held back until the stored
    /// records are sent. The bytes of the records, which all subscribers share, are not included.
    /// Returns false if the subscriber uses too much memory.
    fn hold(&self, bytes: usize) -> bool {
        let _ = bytes;
        true
    }

    /// Releases memory that [`SubscriptionSink::hold`] charged.
    fn free(&self, bytes: usize) {
        let _ = bytes;
    }

    /// Reports that the held-back records exceed the bound, as the subscriber is too slow. Nothing
    /// is delivered after this call.
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

/// Progress of a subscription into or out of the index. The lock of this state is taken before the
/// lock of the index.
#[derive(Clone, Copy)]
pub(super) enum IndexingState {
    /// Among the newest, and in no list.
    Newest,
    Entering(IndexProgress),
    Entered,
    Leaving(IndexProgress),
    Left,
}

/// Progress of the insertion of a subscription into its lists, or of the removal.
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
        match seam.offer(news, &self.queries) {
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
