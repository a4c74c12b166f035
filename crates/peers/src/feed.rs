//! Passes new events of this archive to the streams that send them to relays.
//!
//! An event is not sent back to the relay from which it came. Passing on an event never blocks. If
//! the queue of a stream is full, the event is dropped, and its time is noted for the stream's next
//! comparison.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use hark_archive::{Id, Query, Record};
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use crate::address::RelayAddress;
use crate::local::LocalEvent;
use crate::meter::SyncMeter;
use crate::withheld::Withheld;

/// Maximum number of ids in each of the two sets of a [`SeenIds`].
const SEEN_MAX: usize = 1 << 15;
/// Maximum number of events in a stream's queue, and maximum total size of these events.
const WAITING_MAX: usize = 2048;
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Maximum number of events that are remembered because they ended connections.
const ENDED_EVENTS_MAX: usize = 1_024;

/// The most recent ids of events that a relay has. When the first set is full, it replaces the
/// second set, and a new first set begins.
#[derive(Debug, Default)]
pub(crate) struct SeenIds(Mutex<(HashSet<Id>, HashSet<Id>)>);

impl SeenIds {
    pub(crate) fn insert(&self, id: Id) {
        let mut seen = self.0.lock();
        if seen.0.len() >= SEEN_MAX {
            seen.1 = std::mem::take(&mut seen.0);
        }
        seen.0.insert(id);
    }

    pub(crate) fn has(&self, id: &Id) -> bool {
        let seen = self.0.lock();
        seen.0.contains(id) || seen.1.contains(id)
    }
}

/// The events that a stream has missed since its last comparison. Only the earliest times of these
/// events are stored, and not their ids.
#[derive(Debug, Default)]
pub(crate) struct MissedEvents {
    times: Mutex<MissedTimes>,
    any: Notify,
    /// The ids of events that were alone in flight when a connection ended, with the number of
    /// these connections.
    ended: Mutex<HashMap<Id, u32>>,
}

/// The earliest times of events that were missed.
#[derive(Debug, Default)]
struct MissedTimes {
    /// Earliest time of the missed events that must be compared immediately.
    now: Option<u64>,
    /// Earliest time of the events that failed temporarily at the relay, and are retried later.
    later: Option<u64>,
}

impl MissedEvents {
    /// Notes that events from this time on may have been missed.
    pub(crate) fn add(&self, time: u64) {
        let now = &mut self.times.lock().now;
        *now = Some(now.map_or(time, |earlier| earlier.min(time)));
        self.any.notify_one();
    }

    /// Notes that an event of this time failed temporarily.
    pub(crate) fn add_failed(&self, time: u64) {
        let later = &mut self.times.lock().later;
        *later = Some(later.map_or(time, |earlier| earlier.min(time)));
    }

    /// Notes that a connection ended while only this event was in flight.
    fn note_ended(&self, id: Id) {
        let mut ended = self.ended.lock();
        if ended.len() < ENDED_EVENTS_MAX || ended.contains_key(&id) {
            *ended.entry(id).or_default() += 1;
        }
    }

    /// Returns the number of connections that ended while only this event was in flight.
    pub(crate) fn ended(&self, id: &Id) -> u32 {
        self.ended.lock().get(id).copied().unwrap_or_default()
    }

    /// Whether events wait for a retry.
    pub(crate) fn has_failed(&self) -> bool {
        self.times.lock().later.is_some()
    }

    /// Returns the earliest time of the events that were missed or have failed, and clears both
    /// times.
    pub(crate) fn take(&self) -> Option<u64> {
        let mut times = self.times.lock();
        times.now.take().into_iter().chain(times.later.take()).min()
    }

    /// Waits until missed events must be compared immediately.
    pub(crate) async fn any(&self) {
        while self.times.lock().now.is_none() {
            self.any.notified().await;
        }
    }
}

/// An event to be sent to a relay. If this value is dropped before the relay has answered, the
/// event counts as temporarily failed. So the event is not forgotten if the connection ends before
/// the answer arrives.
pub(crate) struct OwedEvent {
    pub(crate) event: LocalEvent,
    /// Notes a failure of this event; `None` if the event needs no retry.
    missed: Option<Arc<MissedEvents>>,
    /// Whether the event was sent and no other event is in flight.
    pub(crate) is_alone: bool,
}

impl OwedEvent {
    pub(crate) fn new(event: LocalEvent, missed: Option<Arc<MissedEvents>>) -> Self {
        Self { event, missed, is_alone: false }
    }

    /// Marks the event as not needing a retry.
    pub(crate) fn finish(mut self) {
        self.missed = None;
    }
}

impl Drop for OwedEvent {
    fn drop(&mut self) {
        if let Some(missed) = &self.missed {
            missed.add_failed(self.event.time);
            if self.is_alone {
                missed.note_ended(self.event.id);
            }
        }
    }
}

/// The start time of a comparison. If this value is dropped before the comparison is complete, all
/// events from this time on count as missed.
pub(crate) struct OwedComparison<'a> {
    missed: &'a MissedEvents,
    pub(crate) from: Option<u64>,
}

impl<'a> OwedComparison<'a> {
    pub(crate) fn new(missed: &'a MissedEvents, from: Option<u64>) -> Self {
        Self { missed, from }
    }
}

impl Drop for OwedComparison<'_> {
    fn drop(&mut self) {
        if let Some(from) = self.from {
            self.missed.add(from);
        }
    }
}

/// Passes new events of this archive to the streams, each of which has an outlet.
#[derive(Default)]
pub struct LocalFeed {
    outlets: Mutex<Vec<Arc<FeedOutlet>>>,
    /// Ids of recently stored events. A snapshot of the archive may lack these events.
    stored: SeenIds,
    /// The ids of events that each relay has, shared by all streams to the same relay.
    seen: Mutex<BTreeMap<RelayAddress, Weak<SeenIds>>>,
}

/// The feed's filter and queue for one stream.
pub(crate) struct FeedOutlet {
    pub(crate) query: Query,
    pub(crate) withheld: Withheld,
    pub(crate) seen: Arc<SeenIds>,
    pub(crate) meter: Arc<SyncMeter>,
    missed: Arc<MissedEvents>,
    to: mpsc::Sender<OwedEvent>,
    /// Total size of the queued events, in bytes.
    bytes: AtomicUsize,
}

/// The receiving end of an outlet. Dropping this value removes the outlet.
pub(crate) struct FeedReceiver {
    feed: Arc<LocalFeed>,
    outlet: Arc<FeedOutlet>,
    events: mpsc::Receiver<OwedEvent>,
}

impl LocalFeed {
    /// Passes on a new record. Must be called in the order in which records are stored.
    pub fn publish(&self, record: &Record<'_>) {
        self.stored.insert(*record.id());
        let mut json = None;
        for outlet in &*self.outlets.lock() {
            outlet.offer(record, &mut json);
        }
    }

    /// Notes that some records were not published, so that all streams compare again.
    pub fn lagged(&self) {
        for outlet in &*self.outlets.lock() {
            outlet.missed.add(0);
        }
    }

    /// The ids of events that a relay has, shared by all streams to this relay.
    pub(crate) fn seen_of(&self, relay: &RelayAddress) -> Arc<SeenIds> {
        let mut all = self.seen.lock();
        if let Some(seen) = all.get(relay).and_then(Weak::upgrade) {
            return seen;
        }
        all.retain(|_, seen| seen.strong_count() > 0);
        let seen = Arc::<SeenIds>::default();
        all.insert(relay.clone(), Arc::downgrade(&seen));
        seen
    }

    /// Whether a record with this id was stored recently.
    pub(crate) fn has_stored(&self, id: &Id) -> bool {
        self.stored.has(id)
    }

    /// Adds a stream, which receives all new records that match `query`.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        mut query: Query,
        withheld: Withheld,
        seen: Arc<SeenIds>,
        meter: Arc<SyncMeter>,
        missed: Arc<MissedEvents>,
    ) -> FeedReceiver {
        query.normalise();
        let (to, events) = mpsc::channel(WAITING_MAX);
        let bytes = AtomicUsize::new(0);
        let outlet = Arc::new(FeedOutlet { query, withheld, seen, meter, missed, to, bytes });
        self.outlets.lock().push(Arc::clone(&outlet));
        FeedReceiver { feed: Arc::clone(self), outlet, events }
    }
}

impl FeedOutlet {
    /// The number of events that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        WAITING_MAX - self.to.capacity()
    }

    /// Queues the event of a record if this stream must send the event. `json` caches the record's
    /// JSON for all outlets.
    fn offer(&self, record: &Record<'_>, json: &mut Option<Arc<str>>) {
        if !self.query.matches(record) || self.seen.has(record.id()) {
            return;
        }
        let json = json.get_or_insert_with(|| String::from_utf8_lossy(record.wire()).into());
        if self.withheld.has(record.kind(), json) {
            self.meter.add(|meter| &meter.withheld, 1);
            return;
        }
        let (id, time, kind) = (*record.id(), record.time(), record.kind());
        let event = LocalEvent { id, time, kind, json: Arc::clone(json) };
        let is_full = self.bytes.load(Ordering::Relaxed) + json.len() > WAITING_BYTES_MAX;
        self.bytes.fetch_add(json.len(), Ordering::Relaxed);
        let owed = OwedEvent::new(event, Some(Arc::clone(&self.missed)));
        let left = if is_full { Some(owed) } else { self.to.try_send(owed).err().map(left) };
        if let Some(left) = left {
            left.finish();
            self.bytes.fetch_sub(json.len(), Ordering::Relaxed);
            self.missed.add(time);
        }
    }
}

/// Returns the event that a queue has refused.
fn left(refused: TrySendError<OwedEvent>) -> OwedEvent {
    match refused {
        TrySendError::Full(owed) | TrySendError::Closed(owed) => owed,
    }
}

impl FeedReceiver {
    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> Option<OwedEvent> {
        let owed = self.events.recv().await?;
        self.outlet.bytes.fetch_sub(owed.event.json.len(), Ordering::Relaxed);
        Some(owed)
    }

    /// The outlet, from which the number of queued events can be read.
    pub(crate) fn outlet(&self) -> Arc<FeedOutlet> {
        Arc::clone(&self.outlet)
    }
}

impl Drop for FeedReceiver {
    fn drop(&mut self) {
        self.feed.outlets.lock().retain(|outlet| !Arc::ptr_eq(outlet, &self.outlet));
    }
}

#[cfg(test)]
mod tests {
    use hark_codec::record::{RecordHeader, write};

    use super::*;

    fn record(n: u16, kind: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut id = [0; 32];
        id[..2].copy_from_slice(&n.to_be_bytes());
        let head = RecordHeader { id, time: 1, kind, author: None, expires: None };
        write(&mut bytes, &head, b"{}", std::iter::empty());
        bytes
    }

    #[tokio::test]
    async fn events_go_where_they_are_wanted_and_never_back() {
        let feed = Arc::new(LocalFeed::default());
        let (seen, meter) = (Arc::new(SeenIds::default()), Arc::new(SyncMeter::default()));
        let withheld = Withheld { kinds: vec![4], protected: true };
        let query = Query { kinds: Some(vec![4, 1]), ..Query::default() };
        let missed = Arc::<MissedEvents>::default();
        let (known, counts) = (Arc::clone(&seen), Arc::clone(&meter));
        let mut events = feed.subscribe(query, withheld, known, counts, Arc::clone(&missed));
        let publish = |n, kind| feed.publish(&Record::new(&record(n, kind)).unwrap());
        let came_from_there = record(1, 1);
        seen.insert(*Record::new(&came_from_there).unwrap().id());
        for (n, kind) in [(1, 1), (2, 1), (3, 4), (4, 7)] {
            publish(n, kind);
        }
        let owed = events.next().await.unwrap();
        assert_eq!(owed.event.id[..2], [0, 2]);
        owed.finish();
        assert_eq!((events.outlet.waiting(), meter.totals().withheld), (0, 1));
        assert!(feed.has_stored(&{
            let mut id = [0; 32];
            id[1] = 4;
            id
        }));
        for n in 0..=WAITING_MAX as u16 {
            publish(1_000 + n, 1);
        }
        assert_eq!(events.outlet.waiting(), WAITING_MAX);
        missed.any().await;
        // The time of the dropped event.
        assert_eq!((missed.take(), missed.take()), (Some(1), None));
        // Events in the queue of a stream that ends are not forgotten, and finished events need no
        // retry.
        for _ in 0..WAITING_MAX - 1 {
            events.next().await.unwrap().finish();
        }
        assert!(!missed.has_failed());
        drop(events);
        assert!(missed.has_failed() && missed.take() == Some(1));
        assert!(feed.outlets.lock().is_empty());
        for (is_done, left) in [(false, Some(7)), (true, None)] {
            let mut owed = OwedComparison::new(&missed, Some(7));
            if is_done {
                owed.from = None;
            }
            drop(owed);
            assert_eq!(missed.take(), left);
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let seen = SeenIds::default();
        let id = |n: u32| {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&n.to_be_bytes());
            id
        };
        (0..3 * SEEN_MAX as u32).for_each(|n| seen.insert(id(n)));
        assert!(seen.has(&id(3 * SEEN_MAX as u32 - 1)) && seen.has(&id(SEEN_MAX as u32 + 1)));
        assert!(!seen.has(&id(0)));
    }
}
