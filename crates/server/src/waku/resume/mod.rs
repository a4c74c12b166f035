//! Fetches the messages that were published while this node was offline, from the stores of peers.
//!
//! A small file (`online`) contains the time up to which no message was missed. After peers have
//! connected again, this node waits a short time for gossip to start. Then this node fetches the
//! messages since the time in the file from another store, page by page (`span` and `pages`), but
//! none older than `resume_max_s` seconds. The age limit for new messages does not apply to these
//! messages. Later messages come by gossip: the time in the file advances while gossip brings all
//! messages (`gossip`).

mod gossip;
mod online;
mod pages;
mod span;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_networks::waku::NS_PER_S;
use libp2p::Multiaddr;

use self::gossip::{GossipState, GossipWatch};
use self::online::OnlineNote;
use self::pages::TimeSpan;
use self::span::{FetchStep, SpanFetch};
use super::node::WakuNode;
use crate::stop::StopSignal;

/// Poll interval for connected peers.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Interval between two writes of the file; much shorter than [`OVERLAP_NS`].
const NOTE_EVERY: Duration = Duration::from_secs(20);
/// How long gossip may take to find the peers that relay messages.
const GOSSIP_WAIT: Duration = Duration::from_secs(5);
/// Fetching begins this long before the time in the file, because clocks differ and messages take
/// time to arrive, and because a peer that falls silent is noticed late: two pings must fail, each
/// after a pause of 15 s and within 20 s, and closing the connection takes up to 10 s.
const OVERLAP_NS: u64 = 120 * NS_PER_S;

/// The stores to fetch from, the maximum age of messages to fetch, and the file.
pub(super) struct HistoryFetch {
    stores: Vec<Multiaddr>,
    max_ns: u64,
    file: PathBuf,
}

impl HistoryFetch {
    /// Creates the fetch of history. Returns `None` if the configuration names no stores.
    pub(super) fn new(waku: &WakuNode) -> Option<Self> {
        let config = waku.config.p2p.as_ref().filter(|config| !config.stores.is_empty())?;
        Some(Self {
            stores: config.stores.clone(),
            max_ns: config.resume_max_s.saturating_mul(NS_PER_S),
            file: config.online.clone(),
        })
    }

    /// Fetches history whenever this node may have missed messages, until `stop`.
    pub(super) async fn run(self, waku: Arc<WakuNode>, mut stop: StopSignal) {
        tokio::select! {
            () = stop.accepting() => {}
            () = self.watch_connections(&waku) => {}
        }
    }

    async fn watch_connections(&self, waku: &WakuNode) {
        let mut expected = OnlineNote::read(&self.file).shards;
        expected.retain(|shard| waku.config.shards.contains(shard));
        let mut gossip = GossipWatch::new(GossipState::of(waku).await, expected);
        // Whether messages may have been missed since the fetch that is under way has begun.
        let (mut has_missed, mut fetch, mut noted) = (true, None, Instant::now());
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            has_missed |= gossip.compare(GossipState::of(waku).await);
            if waku.metrics.peers.get() == 0 {
                has_missed = true;
                continue;
            }
            if has_missed && fetch.is_none() {
                tokio::time::sleep(GOSSIP_WAIT).await;
                // Messages that were missed until now are fetched.
                gossip.compare(GossipState::of(waku).await);
                has_missed = false;
                fetch = Some(SpanFetch::new(self.missed(waku.now_ns()), &self.stores));
            }
            if let Some(fetching) = &mut fetch {
                let mut step = fetching.step(waku).await;
                while step == FetchStep::Page {
                    has_missed |= gossip.compare(GossipState::of(waku).await);
                    step = fetching.step(waku).await;
                }
                if step == FetchStep::Done {
                    self.note(fetching.span.until_ns, &gossip);
                    (fetch, noted) = (None, Instant::now());
                }
            } else if noted.elapsed() >= NOTE_EVERY
                && gossip.is_whole()
                && waku.service.shelf.trouble().is_none()
            {
                self.note(waku.now_ns(), &gossip);
                noted = Instant::now();
            }
        }
    }

    /// Returns the time span that ends at `until_ns`, and of which messages may be missing.
    fn missed(&self, until_ns: u64) -> TimeSpan {
        let earliest = until_ns.saturating_sub(self.max_ns);
        // A time in the future was noted while the clock was ahead.
        let online = Some(OnlineNote::read(&self.file).time_ns);
        let online = online.filter(|online| *online <= until_ns).unwrap_or_default();
        TimeSpan { from_ns: online.saturating_sub(OVERLAP_NS).max(earliest), until_ns }
    }

    /// Writes the time up to which no message was missed.
    fn note(&self, time_ns: u64, gossip: &GossipWatch) {
        let note = OnlineNote { time_ns, shards: gossip.expected().clone() };
        if let Err(error) = note.write(&self.file) {
            tracing::warn!(%error, file = %self.file.display(), "could not be written");
        }
    }
}
