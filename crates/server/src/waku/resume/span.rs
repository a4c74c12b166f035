//! The fetch of the messages of one time span. A fault does not end the fetch: the position in the
//! pages of a store is kept, and the same page is requested again, or another store is asked.

use std::time::{Duration, Instant};

use libp2p::Multiaddr;

use super::pages::{FetchFault, StorePages, TimeSpan};
use crate::waku::metrics::{CatchUpMethod, SyncOutcome};
use crate::waku::node::WakuNode;

/// The pause after a fault, before the same store is asked again.
const PAUSE: Duration = Duration::from_secs(10);
/// The longest pause. Each answer of a busy store doubles the pause.
const PAUSE_MAX: Duration = Duration::from_mins(5);
/// Number of faults of a store in a row after which another store is asked.
const FAULTS_MAX: u32 = 3;

/// The fetch of a time span from one of several stores.
pub(super) struct SpanFetch {
    pub(super) span: TimeSpan,
    stores: Vec<AskedStore>,
    /// The store that is asked.
    at: usize,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchStep {
    /// A page was fetched, and another page follows.
    Page,
    /// No store may be asked now.
    Wait,
    /// One store has sent all its messages of the span.
    Done,
}

/// A store, with the position in its pages.
struct AskedStore {
    addr: Multiaddr,
    pages: StorePages,
    /// Number of faults in a row.
    faults: u32,
    /// When the next request may be sent.
    next: Instant,
}

impl AskedStore {
    fn new(addr: Multiaddr, now: Instant) -> Self {
        Self { addr, pages: StorePages::default(), faults: 0, next: now }
    }

    fn note(&mut self, fault: &FetchFault, now: Instant) {
        let mut pause = PAUSE;
        match fault {
            // The archive of this node is at fault.
            FetchFault::Store(_) => {}
            fault if fault.is_busy() => {
                pause = PAUSE_MAX.min(PAUSE * 2_u32.pow(self.faults.min(8)));
                self.faults += 1;
            }
            fault if fault.is_away() => self.faults = self.faults.max(FAULTS_MAX),
            fault if fault.is_passing() => self.faults += 1,
            _ => {
                self.pages = StorePages::default();
                self.faults = self.faults.max(FAULTS_MAX);
            }
        }
        self.next = now + pause;
    }
}

impl SpanFetch {
    /// Begins the fetch with the first store.
    pub(super) fn new(span: TimeSpan, stores: &[Multiaddr]) -> Self {
        let now = Instant::now();
        let stores = stores.iter().map(|addr| AskedStore::new(addr.clone(), now)).collect();
        Self { span, stores, at: 0 }
    }

    /// Requests one page.
    pub(super) async fn step(&mut self, waku: &WakuNode) -> FetchStep {
        let Some(store) = self.stores.get_mut(self.at) else { return FetchStep::Wait };
        if store.next > Instant::now() {
            return FetchStep::Wait;
        }
        let count = waku.metrics.caught_up.of(CatchUpMethod::Resume);
        match store.pages.fetch(waku, &store.addr, self.span).await {
            Ok(false) => {
                store.faults = 0;
                FetchStep::Page
            }
            Ok(true) => {
                count.of(SyncOutcome::Done).add(1);
                store.pages.report(&store.addr, self.span);
                FetchStep::Done
            }
            Err(fault) => {
                count.of(SyncOutcome::Failed).add(1);
                let (store, why) = (&store.addr, fault.to_string());
                tracing::warn!(%store, why, "history could not be fetched");
                self.fail(&fault, Instant::now());
                FetchStep::Wait
            }
        }
    }

    /// Notes a fault of the store that was asked. After too many faults, the store whose next
    /// request is due first is asked from then on.
    fn fail(&mut self, fault: &FetchFault, now: Instant) {
        let Some(store) = self.stores.get_mut(self.at) else { return };
        store.note(fault, now);
        if store.faults >= FAULTS_MAX {
            let due = self.stores.iter().enumerate().min_by_key(|(_, store)| store.next);
            self.at = due.map_or(0, |(at, _)| at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waku::intake::MessageRejection;
    use crate::waku::p2p::AskFault;

    /// Returns the store that is asked after each of these faults, and the pause before the store
    /// that had the fault may be asked again, in seconds.
    fn after(faults: &[fn() -> FetchFault]) -> Vec<(usize, u64)> {
        let stores = ["/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.2/tcp/1"];
        let stores = stores.map(|addr| addr.parse().unwrap());
        let mut fetch = SpanFetch::new(TimeSpan { from_ns: 0, until_ns: 9 }, &stores);
        let mut now = fetch.stores[0].next;
        let outcomes = faults.iter().map(|fault| {
            let at = fetch.at;
            now = now.max(fetch.stores[at].next);
            fetch.fail(&fault(), now);
            (fetch.at, fetch.stores[at].next.duration_since(now).as_secs())
        });
        outcomes.collect()
    }

    #[test]
    fn a_store_is_asked_again_before_another_store_is() {
        let slow: fn() -> FetchFault = || FetchFault::from(AskFault::Slow(20));
        assert_eq!(after(&[slow; 4]), [(0, 10), (0, 10), (1, 10), (1, 10)]);
        let busy: fn() -> FetchFault = || FetchFault::Status(429, String::new());
        let pauses = [(0, 10), (0, 20), (1, 40), (1, 10), (1, 20), (0, 40), (1, 80), (0, 80)];
        assert_eq!(after(&[busy; 8]), pauses);
        // The archive of this node is at fault, or a store that will not answer soon.
        let own: fn() -> FetchFault = || FetchFault::from(MessageRejection::Down);
        assert_eq!(after(&[own; 5]), [(0, 10); 5]);
        let wrong: fn() -> FetchFault = || FetchFault::Status(300, String::new());
        assert_eq!(after(&[wrong, wrong, wrong]), [(1, 10), (0, 10), (1, 10)]);
        let away: fn() -> FetchFault = || FetchFault::NoPeers;
        assert_eq!(
            after(&[away, slow, slow, slow, away]),
            [(1, 10), (1, 10), (1, 10), (0, 10), (0, 10)]
        );
    }
}
