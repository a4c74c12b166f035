//! The subscriptions of a session.

use std::sync::Arc;

use hark_archive::live::{self, NewRecord, SubscriptionHandle};
use hark_archive::{Query, Record};
use hark_codec::nostr::reply;
use hark_networks::nostr::NostrRefusal;
use hark_networks::nostr::rules::{KindClass, class};
use parking_lot::Mutex;

use super::Relay;
use super::outbox::{EndFlag, Outbox, RequestKind, RequestPermit};
use super::outbox_item::OutboxItem;
use super::readers::{ReaderJob, Readers, SliceResult};
use crate::budget::BudgetShare;
use crate::rate::RatedConnection;
use crate::websocket::Framing;

/// A subscription of a session.
pub(super) struct SessionSubscription {
    id: Box<str>,
    /// Number of bytes of the REQ message that opened the subscription.
    bytes: usize,
    /// The memory of the subscription, counted until the live index drops the subscription.
    memory: Arc<BudgetShare>,
    /// The beginning of each event message: `["EVENT","id",`.
    open: Arc<[u8]>,
    pub(super) over: EndFlag,
    pub(super) outbox: Arc<Outbox>,
    pub(super) rated: RatedConnection,
    handle: Mutex<Option<SubscriptionHandle>>,
}

/// The sink of a subscription's live events.
struct LiveSink {
    open: Arc<[u8]>,
    over: EndFlag,
    outbox: Arc<Outbox>,
}

impl live::SubscriptionSink for LiveSink {
    fn deliver(&self, news: &NewRecord) -> bool {
        self.outbox.lay_live(&self.over, &self.open, news)
    }

    fn wake(&self) {
        self.outbox.wake();
    }

    fn hold(&self, bytes: usize) -> bool {
        self.outbox.hold(bytes)
    }

    fn free(&self, bytes: usize) {
        self.outbox.free(bytes);
    }

    /// A version that was replaced during the search is in no answer, so its successor comes before
    /// EOSE. Otherwise a client could take the author to have no version.
    fn is_early(&self, record: &Record<'_>) -> bool {
        matches!(class(record.kind()), KindClass::Replaceable | KindClass::Addressable)
    }

    fn overflow(&self) {
        // The overflow of an ended subscription is harmless: it is about to be removed from the
        // index.
        if !self.over.is() {
            self.outbox.mark_too_slow();
        }
    }
}

impl SessionSubscription {
    /// Subscribes to live events that match `queries`.
    pub(super) fn start(
        id: &str,
        (bytes, memory): (usize, BudgetShare),
        outbox: &Arc<Outbox>,
        relay: &Relay,
        rated: RatedConnection,
        queries: Vec<Query>,
    ) -> Arc<Self> {
        let mut open = Vec::new();
        reply::write_event_open(&mut open, id);
        let (open, over): (Arc<[u8]>, _) = (open.into(), EndFlag::default());
        let sink =
            LiveSink { open: Arc::clone(&open), over: over.clone(), outbox: Arc::clone(outbox) };
        let held_bytes_max = relay.settings().limits.held_bytes_max;
        let handle = relay.live.subscribe(queries, Box::new(sink), held_bytes_max);
        rated.listed().counts.subscriptions.add(1);
        Arc::new(Self {
            id: id.into(),
            bytes,
            memory: Arc::new(memory),
            open,
            over,
            outbox: Arc::clone(outbox),
            rated,
            handle: Mutex::new(Some(handle)),
        })
    }

    /// Ends the subscription: its events are no longer sent, and its search stops.
    pub(super) fn end(&self, readers: &Readers) {
        self.outbox.end(&self.over);
        let handle = self.handle.lock().take();
        if handle.is_some() {
            self.rated.listed().counts.subscriptions.sub(1);
        }
        // The lock is released before `leave`, because `leave` may wait for the index.
        if let Some(handle) = handle.filter(|handle| !handle.leave()) {
            readers.push(Box::new(SubscriptionRemoval {
                handle,
                _memory: Arc::clone(&self.memory),
                permit: self.outbox.permit(RequestKind::Search),
            }));
        }
    }

    /// Returns the reason why the subscription must end. `refusal_of` returns this reason for the
    /// subscription's queries.
    pub(super) fn refusal_by(
        &self,
        refusal_of: impl FnOnce(&[Query]) -> Option<NostrRefusal>,
    ) -> Option<NostrRefusal> {
        let handle = self.handle().filter(|_| !self.is_over())?;
        refusal_of(handle.queries())
    }

    /// Ends the subscription with a CLOSED that gives the reason.
    pub(super) fn refuse(&self, refusal: &NostrRefusal, readers: &Readers) {
        let mut out = Vec::new();
        refusal.write_closed(&mut out, &self.id);
        self.outbox.put_for(&self.over, OutboxItem::One(out));
        self.end(readers);
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The beginning of each event message: `["EVENT","id",`.
    pub(super) fn open(&self) -> &[u8] {
        &self.open
    }

    pub(super) fn framing(&self) -> &Framing {
        self.outbox.framing()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is()
    }

    pub(super) fn handle(&self) -> Option<SubscriptionHandle> {
        self.handle.lock().clone()
    }
}

/// Removes a large subscription from the live index after the subscription has ended. The removal
/// runs in slices on the reader threads, because the session's thread serves other sessions too.
/// The removal counts as a question under way: otherwise a client could close subscriptions faster
/// than they are removed.
struct SubscriptionRemoval {
    handle: SubscriptionHandle,
    _memory: Arc<BudgetShare>,
    permit: RequestPermit,
}

impl ReaderJob for SubscriptionRemoval {
    fn turn(&mut self, _: u64) -> SliceResult {
        if self.handle.leave() { SliceResult::Done } else { SliceResult::More }
    }

    fn fail(&mut self) {}

    fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(self.permit.outbox())
    }

    fn sends_records(&self) -> bool {
        false
    }
}
