//! New events of this archive, on their way to the relays that are to have them.
//!
//! An event does not go back to a relay that it came from. Nothing here waits: what a relay does not
//! take in time is dropped, its stream is told so, and compares itself with the relay again.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hark_archive::{Id, Query, Record};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::local::LocalEvent;
use crate::meter::SyncMeter;
use crate::upload::Withheld;

/// Ids that are remembered of a relay, in each of two generations.
const SEEN_MAX: usize = 1 << 15;
/// Events that wait for a relay.
const WAITING_MAX: usize = 2048;

/// The last ids that a relay is known to have.
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

/// The streams that new events of this archive go to.
#[derive(Default)]
pub struct LocalFeed {
    outlets: Mutex<Vec<Arc<FeedOutlet>>>,
    /// Ids of this archive that are newer than what was opened of it.
    stored: SeenIds,
}

/// What a stream takes of the feed.
pub(crate) struct FeedOutlet {
    pub(crate) query: Query,
    pub(crate) withheld: Withheld,
    pub(crate) seen: Arc<SeenIds>,
    pub(crate) meter: Arc<SyncMeter>,
    to: mpsc::Sender<Vec<LocalEvent>>,
    has_lagged: AtomicBool,
    lagged: Notify,
}

/// The receiving end of an outlet, which ends with it.
pub(crate) struct FeedReceiver {
    feed: Arc<LocalFeed>,
    outlet: Arc<FeedOutlet>,
    pub(crate) events: Option<mpsc::Receiver<Vec<LocalEvent>>>,
}

impl LocalFeed {
    /// Passes a new record on. Called in the order in which records are stored.
    pub fn publish(&self, record: &Record<'_>) {
        self.stored.insert(*record.id());
        for outlet in &*self.outlets.lock() {
            outlet.offer(record);
        }
    }

    /// Says that some records were not published.
    pub fn lagged(&self) {
        for outlet in &*self.outlets.lock() {
            outlet.set_lagged();
        }
    }

    /// Whether a record with this id was stored lately.
    pub(crate) fn has_stored(&self, id: &Id) -> bool {
        self.stored.has(id)
    }

    /// Adds a stream, which gets the records of `query` from now on.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        mut query: Query,
        withheld: Withheld,
        seen: Arc<SeenIds>,
        meter: Arc<SyncMeter>,
    ) -> FeedReceiver {
        query.normalise();
        let (to, events) = mpsc::channel(WAITING_MAX);
        let (has_lagged, lagged) = (AtomicBool::new(false), Notify::new());
        let outlet = Arc::new(FeedOutlet { query, withheld, seen, meter, to, has_lagged, lagged });
        self.outlets.lock().push(Arc::clone(&outlet));
        FeedReceiver { feed: Arc::clone(self), outlet, events: Some(events) }
    }
}

impl FeedOutlet {
    fn offer(&self, record: &Record<'_>) {
        if !self.query.matches(record) || self.seen.has(record.id()) {
            return;
        }
        let json = String::from_utf8_lossy(record.wire()).into_owned();
        if self.withheld.has(record.kind(), &json) {
            self.meter.add(|meter| &meter.withheld, 1);
            return;
        }
        let event = LocalEvent { id: *record.id(), kind: record.kind(), json };
        if let Err(mpsc::error::TrySendError::Full(_)) = self.to.try_send(vec![event]) {
            self.set_lagged();
        }
    }

    fn set_lagged(&self) {
        self.has_lagged.store(true, Ordering::Release);
        self.lagged.notify_one();
    }
}

impl FeedReceiver {
    /// Waits until events were dropped since the last call.
    pub(crate) async fn lagged(&self) {
        while !self.outlet.has_lagged.swap(false, Ordering::AcqRel) {
            self.outlet.lagged.notified().await;
        }
    }

    /// Events that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        WAITING_MAX - self.outlet.to.capacity()
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
        let mut outlet = feed.subscribe(query, withheld, Arc::clone(&seen), Arc::clone(&meter));
        let publish = |n, kind| feed.publish(&Record::new(&record(n, kind)).unwrap());
        let came_from_there = record(1, 1);
        seen.insert(*Record::new(&came_from_there).unwrap().id());
        for (n, kind) in [(1, 1), (2, 1), (3, 4), (4, 7)] {
            publish(n, kind);
        }
        let mut events = outlet.events.take().unwrap();
        assert_eq!(events.recv().await.unwrap()[0].id[..2], [0, 2]);
        assert_eq!((outlet.waiting(), meter.totals().withheld), (0, 1));
        assert!(feed.has_stored(&{
            let mut id = [0; 32];
            id[1] = 4;
            id
        }));
        for n in 0..=WAITING_MAX as u16 {
            publish(1_000 + n, 1);
        }
        assert_eq!(outlet.waiting(), WAITING_MAX);
        outlet.lagged().await;
        drop(outlet);
        assert!(feed.outlets.lock().is_empty());
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
