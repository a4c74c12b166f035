//! Fetches the messages that were published while this node was offline, from the stores of peers.
//!
//! A small file contains the time up to which no message was missed. After peers have connected
//! again, this node waits a short time for gossip to start. Then this node fetches the messages
//! since the time in the file from another store, page by page, but none older than `resume_max_s`
//! seconds. The age limit for new messages does not apply to these messages. Later messages come by
//! gossip.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hark_codec::record::Id;
use hark_codec::waku::{Message, ProtobufError, StoreResponse};
use hark_networks::waku::NS_PER_S;
use hark_networks::waku::history::MessageRequest;
use libp2p::Multiaddr;

use super::intake::{AcceptResult, MessageRejection};
use super::metrics::{CatchUpMethod, MessageFate, MessageOrigin, SyncOutcome};
use super::node::WakuNode;
use super::p2p::{AskFault, NetworkHandle};
use super::peer_status::{NO_PEERS, PeerConnectivity, PeerStatus};
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
/// Delay before the next attempt after all stores have failed.
const RETRY: Duration = Duration::from_secs(10);

/// The stores to fetch from, the maximum age of messages to fetch, and the file.
pub(super) struct HistoryFetch {
    stores: Vec<Multiaddr>,
    max_ns: u64,
    file: PathBuf,
}

/// The result of fetching from a store.
#[derive(Debug, Default)]
struct FetchTotals {
    pages: u64,
    messages: u64,
    stored: u64,
    refused: u64,
}

/// Why history cannot be fetched from a store. The texts are for operators.
#[derive(Debug, thiserror::Error)]
enum FetchFault {
    /// The node has no peers.
    #[error("{NO_PEERS}")]
    NoPeers,
    /// See [`AskFault`].
    #[error(transparent)]
    Ask(#[from] AskFault),
    /// The bytes are not an answer.
    #[error(transparent)]
    Malformed(#[from] ProtobufError),
    /// The store refuses the request: status and description.
    #[error("{0} {1}")]
    Status(u32, String),
    /// This node could not store a message.
    #[error(transparent)]
    Store(#[from] MessageRejection),
    /// The store sent an empty page with a cursor, so the pages might never end.
    #[error("it sent an empty page that is not the last")]
    EmptyPage,
    /// A cursor led back to an earlier page, so the pages would never end.
    #[error("its pages lead back to an earlier one")]
    Circle,
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
        let (mut complete, mut noted) = (false, Instant::now());
        let (mut unkept, mut silent) = (unkept_messages(waku), silent_peers(waku));
        let mut relayed = false;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // Messages are also missed if they could not be stored, while no peer relays any, and
            // while a peer that relays them does not answer. Such a peer may be connected again
            // before this loop sees that it was gone.
            let (unkept_now, silent_now) = (unkept_messages(waku), silent_peers(waku));
            let relayed_now = is_relayed(waku).await;
            complete &= (unkept_now, silent_now, relayed_now) == (unkept, silent, relayed);
            (unkept, silent, relayed) = (unkept_now, silent_now, relayed_now);
            if waku.metrics.peers.get() == 0 {
                complete = false;
            } else if complete {
                if relayed
                    && noted.elapsed() >= NOTE_EVERY
                    && waku.service.shelf.trouble().is_none()
                {
                    self.note(waku.now_ns());
                    noted = Instant::now();
                }
            } else {
                tokio::time::sleep(GOSSIP_WAIT).await;
                let until = waku.now_ns();
                complete = self.fetch(waku, until).await;
                if complete {
                    self.note(until);
                } else {
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Reads from the file the time up to which no message was missed.
    fn online(&self) -> Option<u64> {
        std::fs::read_to_string(&self.file).ok()?.trim().parse().ok()
    }

    fn note(&self, time: u64) {
        let unfinished = self.file.with_extension("online.unfinished");
        let written = crate::key_file::create(&unfinished)
            .and_then(|mut file| writeln!(file, "{time}"))
            .and_then(|()| std::fs::rename(&unfinished, &self.file));
        if let Err(error) = written {
            tracing::warn!(%error, file = %self.file.display(), "could not be written");
        }
    }

    /// Fetches history from one store: tries the stores in order until a fetch succeeds. Returns
    /// false if all fetches fail.
    async fn fetch(&self, waku: &WakuNode, until: u64) -> bool {
        let earliest = until.saturating_sub(self.max_ns);
        // A time in the future was noted while the clock was ahead.
        let online = self.online().filter(|online| *online <= until).unwrap_or(0);
        let from = online.saturating_sub(OVERLAP_NS).max(earliest);
        let count = waku.metrics.caught_up.of(CatchUpMethod::Resume);
        for store in &self.stores {
            match pages(waku, store, from, until).await {
                Ok(fetched) => {
                    count.of(SyncOutcome::Done).add(1);
                    tracing::info!(
                        %store,
                        back_s = (until - from) / NS_PER_S,
                        pages = fetched.pages,
                        messages = fetched.messages,
                        new = fetched.stored,
                        refused = fetched.refused,
                        "fetched the missed messages"
                    );
                    return true;
                }
                Err(fault) => {
                    count.of(SyncOutcome::Failed).add(1);
                    let why = fault.to_string();
                    tracing::warn!(%store, why, "history could not be fetched");
                }
            }
        }
        false
    }
}

/// Returns the number of messages of peers that this node could not store since its start.
fn unkept_messages(waku: &WakuNode) -> u64 {
    let of = |origin| waku.metrics.messages.of(origin).of(MessageFate::Insert).get();
    of(MessageOrigin::Relay) + of(MessageOrigin::Store)
}

/// Returns how often a peer that relays messages fell silent since the start of this node.
fn silent_peers(waku: &WakuNode) -> u64 {
    waku.network.as_ref().map_or(0, NetworkHandle::silent_peers)
}

/// Whether a connected peer relays messages of this node's shards. Light clients relay none.
async fn is_relayed(waku: &WakuNode) -> bool {
    let peers = waku.peers().await.unwrap_or_default();
    let relays = |peer: &PeerStatus| {
        peer.connectivity == PeerConnectivity::Connected && !peer.shards.is_empty()
    };
    peers.iter().any(relays)
}

/// Fetches all messages of a time span from a store.
async fn pages(
    waku: &WakuNode,
    store: &Multiaddr,
    from: u64,
    until: u64,
) -> Result<FetchTotals, FetchFault> {
    let network = waku.network.as_ref().ok_or(FetchFault::NoPeers)?;
    let mut fetched = FetchTotals::default();
    let (mut cursor, mut trail) = (None::<Id>, PageTrail::default());
    loop {
        let request = MessageRequest {
            id: "resume".into(),
            include_data: true,
            time_start: i64::try_from(from).ok(),
            time_end: i64::try_from(until).ok(),
            cursor,
            forward: true,
            limit: Some(network.page_max()),
            ..MessageRequest::default()
        };
        let answer = network.ask(store.clone(), &request).await?;
        let answer = StoreResponse::parse(&answer)?;
        if answer.status_code != Some(200) {
            let words = answer.status_desc.unwrap_or_default().to_owned();
            return Err(FetchFault::Status(answer.status_code.unwrap_or_default(), words));
        }
        fetched.pages += 1;
        // Messages are stored concurrently, so that a page becomes one batch.
        let taken = join_all(answer.messages().map(|one| async move {
            let message = one.message.and_then(|bytes| Message::parse(bytes).ok().zip(Some(bytes)));
            let ((message, bytes), topic) = message.zip(one.pubsub_topic)?;
            if !waku.serves(topic) || message.hash(topic)[..] != *one.message_hash {
                return None;
            }
            Some(waku.accept_message(MessageOrigin::Store, &message, bytes.len(), topic).await)
        }));
        for taken in taken.await {
            fetched.messages += 1;
            match taken {
                Some(Ok(AcceptResult::Stored)) => fetched.stored += 1,
                Some(Ok(_)) => {}
                None | Some(Err(MessageRejection::Refused(_))) => fetched.refused += 1,
                Some(Err(error)) => return Err(error.into()),
            }
        }
        let next = answer.cursor.and_then(|next| <Id>::try_from(next).ok());
        if next.is_none() || next == cursor {
            return Ok(fetched);
        }
        trail.follow(next, answer.messages().next().is_none())?;
        cursor = next;
    }
}

/// Detects pages of a store that lead in a circle, with one cursor in memory (Brent's algorithm).
#[derive(Default)]
struct PageTrail {
    pages: u64,
    seen: Option<Id>,
}

impl PageTrail {
    /// Records the cursor of the next page. Fails if the pages would never end.
    fn follow(&mut self, next: Option<Id>, is_empty: bool) -> Result<(), FetchFault> {
        if is_empty {
            return Err(FetchFault::EmptyPage);
        }
        if next == self.seen {
            return Err(FetchFault::Circle);
        }
        self.pages += 1;
        if self.pages.is_power_of_two() {
            self.seen = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_lead_in_a_circle_or_nowhere_end_the_fetch() {
        let mut long = PageTrail::default();
        for page in 0..1_000_u32 {
            let mut cursor = [0; 32];
            cursor[..4].copy_from_slice(&page.to_le_bytes());
            assert!(long.follow(Some(cursor), false).is_ok());
        }
        assert!(long.follow(Some([1; 32]), true).is_err());
        // Some pages, and then a circle of seven.
        let mut circle = PageTrail::default();
        let mut cursors = (0..5).chain((0..).map(|at| 10 + at % 7));
        let asked = cursors.position(|at| circle.follow(Some([at; 32]), false).is_err());
        assert!(asked.expect("the circle is found") < 30);
    }
}
