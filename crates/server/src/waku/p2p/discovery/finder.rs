//! Finds nodes: reads lists in the DNS, asks connected peers for records, and dials known nodes.
//!
//! Records are never trusted. The number of records, attempts to dial and connections is bounded,
//! in total and for each network of addresses. Discovered nodes count as strangers, so they never
//! take the place of a peer that the configuration names.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libp2p::PeerId;
use tokio::task::JoinSet;

use super::add::add;
use super::book::{AddressNetwork, DialCandidate};
use super::config::DiscoveryConfig;
use super::directory::ListStatus;
use super::discv5;
use super::list::{ListFault, ListReader};
use super::record::NodeRecord;
use super::remembered::RememberedNodes;
use crate::stop::StopSignal;
use crate::waku::metrics::{DialOutcome, Direction, ExchangeStatus, NodeSource, RecordRefusal};
use crate::waku::node::WakuNode;
use crate::waku::p2p::exchange::{self, ExchangeFault};
use crate::waku::p2p::{NetworkHandle, addr, reach};
use crate::waku::peer_status::{PeerConnectivity, PeerStatus};

/// Interval between two rounds of dialling and asking.
const ROUND: Duration = Duration::from_secs(3);
/// Maximum number of concurrent attempts to dial discovered nodes, and of concurrent requests.
const DIALS_MAX: usize = 4;
const ASKS_MAX: usize = 4;
/// How long an attempt to dial a node may take.
const DIAL_MAX: Duration = Duration::from_secs(20);
/// Maximum number of addresses that are dialled for a node.
const ADDRESSES_MAX: usize = 8;
/// The pause after the first request to a peer, and the longest pause. The pause doubles after an
/// answer without new nodes.
const ASK_FIRST: Duration = Duration::from_secs(10);
const ASK_MAX: Duration = Duration::from_mins(10);
/// Maximum number of discovered nodes that this node dials in one network of addresses.
const PER_NETWORK_MAX: usize = 2;
/// Time after which a discovered node must have subscribed to one of this node's shards.
const USEFUL_AFTER: Duration = Duration::from_mins(1);
/// Interval between two readings of a list, and the pause after a reading without records.
const LIST_EVERY: Duration = Duration::from_mins(30);
const LIST_RETRY: Duration = Duration::from_mins(1);

/// Finds nodes until `stop`.
pub(in crate::waku) async fn run(waku: Arc<WakuNode>, mut stop: StopSignal) {
    let (Some(config), Some(_)) = (&waku.config.p2p, &waku.network) else { return };
    let discovery = config.discovery.clone();
    if discovery.nodes_max == 0 && !discovery.exchange && discovery.discv5.is_none() {
        return;
    }
    // A node that dials no discovered nodes remembers none.
    let file = config.nodes.clone();
    let mut remembered =
        (discovery.nodes_max > 0).then(|| RememberedNodes::read(&waku, file, discovery.private));
    let working = async {
        tokio::join!(
            read_lists(&waku, &discovery),
            discv5::query_table(&waku, &discovery),
            NodeFinder::new(&waku, &discovery, remembered.as_mut()).run()
        )
    };
    tokio::select! {
        () = stop.accepting() => {}
        _ = working => {}
    }
    if let Some(remembered) = &mut remembered {
        remembered.write(Instant::now());
    }
}

/// Reads the lists in the DNS again and again.
async fn read_lists(waku: &WakuNode, discovery: &DiscoveryConfig) {
    let Some(network) = waku.network.as_ref().filter(|_| discovery.nodes_max > 0) else { return };
    let lists = &network.directory.lists;
    let new = |url: String| ListStatus { url, records: 0, is_read: false, fault: None };
    *lists.lock() = discovery.lists.iter().map(|url| new(url.to_string())).collect();
    if discovery.lists.is_empty() {
        return;
    }
    let mut reader = match ListReader::new(&discovery.name_servers) {
        Ok(reader) => reader,
        Err(error) => {
            tracing::warn!(%error, "no list of nodes can be read: the DNS servers are unknown");
            for status in &mut *lists.lock() {
                status.fault = Some(ListFault::LookUp(error.to_string()));
            }
            return;
        }
    };
    loop {
        let mut is_empty = false;
        for (at, url) in discovery.lists.iter().enumerate() {
            let fetched = reader.fetch(url).await;
            let records = fetched.records.len();
            for record in fetched.records {
                add(waku, record, NodeSource::Dns, None);
            }
            is_empty |= records == 0;
            let mut lists = lists.lock();
            let status = &mut lists[at];
            if let Some(fault) = &fetched.fault {
                let (fault, before) = (fault.to_string(), status.fault.as_ref());
                // The same fault is logged once.
                if before.map(ToString::to_string).as_ref() != Some(&fault) {
                    tracing::warn!(list = %url, fault, records, "a list of nodes has a fault");
                }
            }
            (status.records, status.is_read, status.fault) = (records, true, fetched.fault);
        }
        tokio::time::sleep(if is_empty { LIST_RETRY } else { LIST_EVERY }).await;
    }
}

/// The outcome of a task of the finder.
enum FinderOutcome {
    Dialled(DialCandidate, bool),
    Asked(PeerId, Option<AddressNetwork>, Result<Vec<Vec<u8>>, ExchangeFault>),
}

/// A discovered node that this node has dialled and is connected to.
struct DialledNode {
    source: NodeSource,
    network: AddressNetwork,
    since: Instant,
}

/// Dials known nodes and asks peers; see the module.
struct NodeFinder<'a> {
    waku: &'a Arc<WakuNode>,
    discovery: &'a DiscoveryConfig,
    tasks: JoinSet<FinderOutcome>,
    dialling: usize,
    asking: usize,
    /// When each connected peer may be asked again, and the length of the pause before that time.
    asked: HashMap<PeerId, (Instant, Duration)>,
    dialled: HashMap<PeerId, DialledNode>,
    remembered: Option<&'a mut RememberedNodes>,
}

impl<'a> NodeFinder<'a> {
    fn new(
        waku: &'a Arc<WakuNode>,
        discovery: &'a DiscoveryConfig,
        remembered: Option<&'a mut RememberedNodes>,
    ) -> Self {
        Self {
            waku,
            discovery,
            tasks: JoinSet::new(),
            dialling: 0,
            asking: 0,
            asked: HashMap::new(),
            dialled: HashMap::new(),
            remembered,
        }
    }

    async fn run(mut self) {
        let Some(network) = &self.waku.network else { return };
        let mut round = tokio::time::interval(ROUND);
        loop {
            tokio::select! {
                _ = round.tick() => {
                    let peers = network.peers().await;
                    self.round(network, &peers).await;
                }
                Some(ended) = self.tasks.join_next() => {
                    if let Ok(outcome) = ended {
                        self.finish(outcome);
                    }
                }
            }
        }
    }

    /// Updates the table of known nodes, disconnects useless nodes, and begins requests and
    /// attempts to dial.
    async fn round(&mut self, network: &NetworkHandle, peers: &[PeerStatus]) {
        let now = Instant::now();
        let connected: HashMap<PeerId, &PeerStatus> = peers
            .iter()
            .filter(|peer| peer.connectivity == PeerConnectivity::Connected)
            .filter_map(|peer| Some((peer.id.parse().ok()?, peer)))
            .collect();
        let configured: HashSet<PeerId> = network.configured.iter().filter_map(addr::id).collect();
        self.asked.retain(|peer, _| connected.contains_key(peer));
        self.dialled.retain(|peer, _| connected.contains_key(peer));
        {
            let mut book = network.directory.book.lock();
            for (id, peer) in &connected {
                if let Some(ip) = peer.remote {
                    book.connected_from(id, ip, now);
                }
            }
        }
        self.remember(network, &connected, now);
        self.drop_useless(network, &connected, now).await;
        if self.discovery.exchange {
            self.ask_peers(network, &connected, now);
        }
        self.dial(network, |peer| connected.contains_key(peer) || configured.contains(peer), now);
    }

    /// Whether a connected peer has subscribed to a shard of this node.
    fn is_useful(&self, peer: &PeerStatus) -> bool {
        peer.shards.iter().any(|shard| self.waku.config.shards.contains(shard))
    }

    /// Remembers the connected peers that are reachable and useful.
    fn remember(
        &mut self,
        network: &NetworkHandle,
        connected: &HashMap<PeerId, &PeerStatus>,
        now: Instant,
    ) {
        let useful = connected.iter().filter(|(_, peer)| self.is_useful(peer)).map(|(id, _)| id);
        let reached = network.directory.book.lock().proven(useful);
        if let Some(remembered) = &mut self.remembered {
            remembered.note(&reached);
            remembered.write_if_due(now);
        }
    }

    /// Disconnects discovered nodes that have subscribed to no shard of this node.
    async fn drop_useless(
        &mut self,
        network: &NetworkHandle,
        connected: &HashMap<PeerId, &PeerStatus>,
        now: Instant,
    ) {
        let is_useless = |peer: &PeerId, node: &DialledNode| {
            now.duration_since(node.since) >= USEFUL_AFTER
                && connected.get(peer).is_some_and(|peer| !self.is_useful(peer))
        };
        let useless: Vec<PeerId> = self
            .dialled
            .iter()
            .filter(|(peer, node)| is_useless(peer, node))
            .map(|(peer, _)| *peer)
            .collect();
        for peer in useless {
            if let Some(node) = self.dialled.remove(&peer) {
                self.waku.metrics.dials.of(node.source).of(DialOutcome::Useless).add(1);
            }
            network.directory.book.lock().failed(&peer, now);
            network.disconnect(peer).await;
        }
    }

    /// Begins requests to connected peers.
    fn ask_peers(
        &mut self,
        network: &NetworkHandle,
        connected: &HashMap<PeerId, &PeerStatus>,
        now: Instant,
    ) {
        for (id, peer) in connected {
            let is_due = self.asked.get(id).is_none_or(|(next, _)| *next <= now);
            let serves = peer.protocols.iter().any(|name| name == exchange::PROTOCOL);
            if self.asking >= ASKS_MAX || !is_due || !serves {
                continue;
            }
            let (next, _) = self.asked.entry(*id).or_insert((now, ASK_FIRST / 2));
            // The answer sets an earlier time.
            *next = now + ASK_MAX;
            self.asking += 1;
            let (id, opener) = (*id, network.opener.clone());
            let teller = peer.remote.map(AddressNetwork::of_ip);
            self.tasks.spawn(async move {
                let answer = exchange::ask(&opener, id, exchange::RECORDS_MAX).await;
                FinderOutcome::Asked(id, teller, answer)
            });
        }
    }

    /// Begins attempts to dial known nodes.
    fn dial(&mut self, network: &NetworkHandle, is_known: impl Fn(&PeerId) -> bool, now: Instant) {
        let wanted = self.discovery.nodes_max.saturating_sub(self.dialled.len() + self.dialling);
        let max = wanted.min(DIALS_MAX.saturating_sub(self.dialling));
        let mut counts: HashMap<AddressNetwork, usize> = HashMap::new();
        for node in self.dialled.values().filter(|node| node.source != NodeSource::Dns) {
            *counts.entry(node.network.clone()).or_default() += 1;
        }
        let candidates = network.directory.book.lock().due(now, max, |peer, _, network, source| {
            if is_known(peer) {
                return false;
            }
            let count = counts.entry(network.clone()).or_default();
            let may_dial = source == NodeSource::Dns || *count < PER_NETWORK_MAX;
            *count += usize::from(may_dial);
            may_dial
        });
        for candidate in candidates {
            self.dialling += 1;
            let (waku, private) = (Arc::clone(self.waku), self.discovery.private);
            self.tasks.spawn(async move {
                let is_reached = reach_node(&waku, &candidate, private).await;
                FinderOutcome::Dialled(candidate, is_reached)
            });
        }
    }

    fn finish(&mut self, outcome: FinderOutcome) {
        let (waku, now) = (self.waku, Instant::now());
        let Some(network) = &waku.network else { return };
        match outcome {
            FinderOutcome::Dialled(node, is_reached) => {
                self.dialling -= 1;
                let outcome = if is_reached { DialOutcome::Reached } else { DialOutcome::Failed };
                waku.metrics.dials.of(node.source).of(outcome).add(1);
                let mut book = network.directory.book.lock();
                if is_reached {
                    book.reached(&node.peer, now);
                    let dialled =
                        DialledNode { source: node.source, network: node.network, since: now };
                    self.dialled.insert(node.peer, dialled);
                } else {
                    book.failed(&node.peer, now);
                }
            }
            FinderOutcome::Asked(peer, teller, answer) => {
                self.asking -= 1;
                let answers = waku.metrics.exchanges.of(Direction::Received);
                let has_new = match answer {
                    Ok(records) => {
                        answers.of(ExchangeStatus::Success).add(1);
                        self.add_records(&peer, teller.as_ref(), &records)
                    }
                    Err(ExchangeFault(status)) => {
                        answers.of(status).add(1);
                        false
                    }
                };
                if let Some((next, pause)) = self.asked.get_mut(&peer) {
                    *pause = if has_new { ASK_FIRST } else { (*pause * 2).min(ASK_MAX) };
                    *next = now + *pause;
                }
            }
        }
    }

    /// Adds the records of an answer. Returns whether any of the nodes was unknown before. If this
    /// node does not dial discovered nodes, only the peer's own record is added, to be sent to
    /// others.
    fn add_records(
        &self,
        peer: &PeerId,
        teller: Option<&AddressNetwork>,
        records: &[Vec<u8>],
    ) -> bool {
        let mut has_new = false;
        for bytes in records {
            match NodeRecord::decode(bytes) {
                Ok(record) if record.peer == *peer || self.discovery.nodes_max > 0 => {
                    has_new |= add(self.waku, record, NodeSource::PeerExchange, teller.cloned());
                }
                Ok(_) => {}
                Err(_) => {
                    let refusals = self.waku.metrics.record_refusals.of(NodeSource::PeerExchange);
                    refusals.of(RecordRefusal::Invalid).add(1);
                }
            }
        }
        has_new
    }
}

/// Dials a node at the addresses of its record. Unless `private` is set, only public addresses are
/// dialled, so that nobody can make this node connect to machines of its own network.
async fn reach_node(waku: &WakuNode, node: &DialCandidate, private: bool) -> bool {
    let Some(network) = &waku.network else { return false };
    let dialling = async {
        let mut addrs = Vec::new();
        for addr in &node.addrs {
            if private {
                addrs.push(addr.clone());
            } else {
                addrs.extend(reach::public(addr).await);
            }
        }
        addrs.truncate(ADDRESSES_MAX);
        !addrs.is_empty() && network.connect_to(node.peer, addrs).await.is_ok()
    };
    tokio::time::timeout(DIAL_MAX, dialling).await.unwrap_or(false)
}
