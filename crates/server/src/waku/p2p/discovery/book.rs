//! The known nodes, with the record of each node, the source of the record, and the outcome of the
//! last attempt to dial. Records come from strangers, so the table is bounded in total and for each
//! network of addresses ([`AddressNetwork`]).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use super::record::NodeRecord;
use crate::waku::metrics::{NodeSource, RecordRefusal};
use crate::waku::p2p::shuffle::shuffled;

/// Maximum number of known nodes.
const NODES_MAX: usize = 1_000;
/// Maximum number of known nodes in one network of addresses, and of nodes that the peers in one
/// network have reported. Lists of nodes in the DNS are exempt, because owners sign
/// their lists.
const NODES_PER_NETWORK_MAX: usize = 8;
const NODES_PER_TELLER_MAX: usize = 128;
/// The pause after the first failure to reach a node, and the longest pause. Each failure doubles
/// the pause.
const RETRY_FIRST: Duration = Duration::from_mins(1);
const RETRY_MAX: Duration = Duration::from_hours(1);
/// Number of failures in a row after which a node is forgotten.
const FAILURES_MAX: u32 = 5;
/// How long a node counts as reachable after the last successful attempt to dial.
const PROVEN_FOR: Duration = Duration::from_hours(24);

/// A network of addresses that one operator may control: the first 24 bits of an IPv4 address, the
/// first 48 bits of an IPv6 address, or the last two parts of a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum AddressNetwork {
    Ip(IpAddr),
    Name(String),
}

impl AddressNetwork {
    pub(super) fn of_ip(ip: IpAddr) -> Self {
        Self::Ip(match ip.to_canonical() {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & (u32::MAX << 8)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 80)).into(),
        })
    }

    /// Returns the network of an address. `None` if the address begins with neither an IP address
    /// nor a name.
    pub(super) fn of(addr: &Multiaddr) -> Option<Self> {
        match addr.iter().next()? {
            Protocol::Ip4(ip) => Some(Self::of_ip(ip.into())),
            Protocol::Ip6(ip) => Some(Self::of_ip(ip.into())),
            Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => {
                let parts: Vec<&str> = name.rsplit('.').take(2).collect();
                Some(Self::Name(parts.join(".").to_ascii_lowercase()))
            }
            _ => None,
        }
    }
}

struct KnownNode {
    record: NodeRecord,
    source: NodeSource,
    network: AddressNetwork,
    /// The network of the peer that reported the record.
    teller: Option<AddressNetwork>,
    failures: u32,
    /// When the next attempt is due. `None` while an attempt is under way.
    next: Option<Instant>,
    /// When this node last reached the node at an address of the record.
    proven: Option<Instant>,
}

/// The known nodes; see the module.
#[derive(Default)]
pub(in crate::waku) struct AddressBook {
    nodes: HashMap<PeerId, KnownNode>,
}

/// A node to dial.
pub(super) struct DialCandidate {
    pub(super) peer: PeerId,
    pub(super) addrs: Vec<Multiaddr>,
    pub(super) source: NodeSource,
    pub(super) network: AddressNetwork,
}

impl AddressBook {
    /// Adds a record from a list, or from a peer in the network `teller`. Returns whether the node
    /// was unknown before.
    pub(super) fn add(
        &mut self,
        record: NodeRecord,
        source: NodeSource,
        teller: Option<AddressNetwork>,
        now: Instant,
    ) -> Result<bool, RecordRefusal> {
        let network = record.addrs.iter().find_map(AddressNetwork::of);
        let network = network.ok_or(RecordRefusal::Address)?;
        let is_full = source != NodeSource::Dns
            && self.reported(|node| node.network == network) >= NODES_PER_NETWORK_MAX;
        if let Some(known) = self.nodes.get_mut(&record.peer) {
            if record.seq() > known.record.seq() {
                if is_full && known.network != network {
                    return Err(RecordRefusal::Network);
                }
                if record.addrs != known.record.addrs {
                    // Failures at the old addresses do not count for the new addresses.
                    (known.failures, known.proven) = (0, None);
                    known.next = known.next.map(|_| now);
                }
                (known.record, known.network) = (record, network);
            }
            if source == NodeSource::Dns {
                known.source = source;
            }
            return Ok(false);
        }
        if is_full {
            return Err(RecordRefusal::Network);
        }
        if source != NodeSource::Dns {
            let of_teller = self.reported(|node| teller.is_some() && node.teller == teller);
            if of_teller >= NODES_PER_TELLER_MAX {
                return Err(RecordRefusal::Teller);
            }
        }
        if self.nodes.len() >= NODES_MAX && !self.make_room(source) {
            return Err(RecordRefusal::Full);
        }
        let known = KnownNode {
            source,
            network,
            teller,
            failures: 0,
            next: Some(now),
            proven: None,
            record: record.clone(),
        };
        self.nodes.insert(record.peer, known);
        Ok(true)
    }

    /// Counts the nodes that are not from a list and for which `is_counted` returns true.
    fn reported(&self, is_counted: impl Fn(&KnownNode) -> bool) -> usize {
        let reported = self.nodes.values().filter(|node| node.source != NodeSource::Dns);
        reported.filter(|node| is_counted(node)).count()
    }

    /// Forgets the node that failed most often. For a record from a list, a node that is not from a
    /// list and was never reached may be forgotten, too. Returns whether a node was forgotten.
    fn make_room(&mut self, source: NodeSource) -> bool {
        let may_go = |node: &KnownNode| {
            node.failures > 0
                || source == NodeSource::Dns
                    && node.source != NodeSource::Dns
                    && node.proven.is_none()
        };
        let gone = self.nodes.iter().filter(|(_, node)| may_go(node));
        let Some(peer) = gone.max_by_key(|(_, node)| node.failures).map(|(peer, _)| *peer) else {
            return false;
        };
        self.nodes.remove(&peer).is_some()
    }

    /// Returns nodes to dial: first nodes from lists and nodes that were reached before a restart,
    /// then others, each group in random order.
    /// `may_dial` decides for each node. The caller reports the outcome of each attempt.
    pub(super) fn due(
        &mut self,
        now: Instant,
        max: usize,
        mut may_dial: impl FnMut(&PeerId, &NodeRecord, &AddressNetwork, NodeSource) -> bool,
    ) -> Vec<DialCandidate> {
        let due = self.nodes.iter_mut().filter(|(_, node)| node.next.is_some_and(|at| at <= now));
        let mut due = shuffled(due);
        due.sort_by_key(|(_, node)| !matches!(node.source, NodeSource::Dns | NodeSource::File));
        let mut picked = Vec::new();
        for (peer, node) in due {
            if picked.len() >= max {
                break;
            }
            if may_dial(peer, &node.record, &node.network, node.source) {
                node.next = None;
                let (addrs, source) = (node.record.addrs.clone(), node.source);
                let network = node.network.clone();
                picked.push(DialCandidate { peer: *peer, addrs, source, network });
            }
        }
        picked
    }

    /// Notes that this node has reached a node at an address of its record.
    pub(super) fn reached(&mut self, peer: &PeerId, now: Instant) {
        if let Some(node) = self.nodes.get_mut(peer) {
            node.failures = 0;
            node.proven = Some(now);
            node.next = Some(now + RETRY_FIRST);
        }
    }

    /// Notes a failure to reach a node, or that the node is of no use. A node that fails too often
    /// is forgotten.
    pub(super) fn failed(&mut self, peer: &PeerId, now: Instant) {
        let Some(node) = self.nodes.get_mut(peer) else { return };
        node.failures += 1;
        if node.failures >= FAILURES_MAX {
            self.nodes.remove(peer);
            return;
        }
        node.proven = None;
        let pause = RETRY_FIRST * 2_u32.pow(node.failures.saturating_sub(1));
        node.next = Some(now + pause.min(RETRY_MAX));
    }

    /// Notes that a connected peer has the IP address of its record. Such a peer counts as
    /// reachable, like a node that this node has reached.
    pub(super) fn connected_from(&mut self, peer: &PeerId, ip: IpAddr, now: Instant) {
        if let Some(node) = self.nodes.get_mut(peer)
            && node.record.addrs.iter().any(|addr| crate::waku::p2p::addr::ip(addr) == Some(ip))
        {
            node.proven = Some(now);
        }
    }

    /// Returns the records of those of these peers that are reachable at an address of the record.
    pub(super) fn proven<'a>(&self, peers: impl Iterator<Item = &'a PeerId>) -> Vec<NodeRecord> {
        let nodes = peers.filter_map(|peer| self.nodes.get(peer));
        nodes.filter(|node| node.proven.is_some()).map(|node| node.record.clone()).collect()
    }

    /// Returns up to `max` records of reachable nodes in random order.
    pub(in crate::waku::p2p) fn reachable(&self, now: Instant, max: usize) -> Vec<NodeRecord> {
        let is_proven = |node: &&KnownNode| {
            node.proven.is_some_and(|proven| now.duration_since(proven) < PROVEN_FOR)
        };
        let reachable = shuffled(self.nodes.values().filter(is_proven));
        reachable.into_iter().take(max).map(|node| node.record.clone()).collect()
    }

    /// Returns up to `max` records in random order.
    pub(super) fn random(&self, max: usize) -> Vec<NodeRecord> {
        let nodes = shuffled(self.nodes.values());
        nodes.into_iter().take(max).map(|node| node.record.clone()).collect()
    }

    /// Returns where the record of a node came from.
    pub(in crate::waku) fn source(&self, peer: &PeerId) -> Option<NodeSource> {
        self.nodes.get(peer).map(|node| node.source)
    }

    /// Returns the number of known nodes from a source.
    pub(in crate::waku) fn count(&self, source: NodeSource) -> usize {
        self.nodes.values().filter(|node| node.source == source).count()
    }
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;

    use super::super::OwnRecord;
    use super::*;
    use crate::waku::NodeConfig;

    fn record(addr: &str) -> NodeRecord {
        let key = Keypair::generate_secp256k1();
        let mut own = OwnRecord::new(&key, &NodeConfig::default(), true).unwrap();
        own.sign(&[addr.parse().unwrap()]).unwrap()
    }

    #[test]
    fn strangers_fill_only_their_share_of_the_table() {
        let (mut book, now) = (AddressBook::default(), Instant::now());
        let mut add = |addr: &str, teller: &str| {
            let teller = AddressNetwork::of(&teller.parse().unwrap());
            book.add(record(addr), NodeSource::PeerExchange, teller, now)
        };
        let outcomes: Vec<_> =
            (0..9).map(|at| add(&format!("/ip4/8.8.8.{at}/tcp/1"), "/ip4/1.1.1.1/tcp/1")).collect();
        assert_eq!(outcomes[..8], [Ok(true); 8]);
        assert_eq!(outcomes[8], Err(RecordRefusal::Network));
        assert_eq!(add("/ip4/8.8.9.1/tcp/1", "/ip4/1.1.1.1/tcp/1"), Ok(true));
        // Peers in one network report nodes in many networks.
        let outcomes: Vec<_> = (0..130)
            .map(|at| add(&format!("/ip4/9.8.{at}.1/tcp/1"), "/ip4/1.1.1.200/tcp/1"))
            .collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 128 - 9);
        assert_eq!(outcomes.last(), Some(&Err(RecordRefusal::Teller)));
        assert_eq!(add("/ip4/7.7.7.7/tcp/1", "/ip4/1.1.2.1/tcp/1"), Ok(true));
        assert_eq!(book.count(NodeSource::PeerExchange), 129);
    }

    #[test]
    fn a_full_table_admits_lists_and_replaces_nodes_that_fail() {
        let (mut book, now) = (AddressBook::default(), Instant::now());
        let mut peers = Vec::new();
        for at in 0..NODES_MAX {
            let record = record(&format!("/ip4/8.{}.{}.1/tcp/1", at / 250, at % 250));
            let teller = Some(AddressNetwork::Name(format!("teller-{}", at / 100)));
            peers.push(record.peer);
            assert_eq!(book.add(record, NodeSource::PeerExchange, teller, now), Ok(true));
        }
        let one_more = |book: &mut AddressBook, source| {
            book.add(record("/ip4/9.9.9.9/tcp/1"), source, None, now)
        };
        assert_eq!(one_more(&mut book, NodeSource::PeerExchange), Err(RecordRefusal::Full));
        assert_eq!(one_more(&mut book, NodeSource::Dns), Ok(true));
        let failed = *peers.iter().find(|peer| book.source(peer).is_some()).unwrap();
        book.failed(&failed, now);
        assert_eq!(one_more(&mut book, NodeSource::PeerExchange), Ok(true));
        assert_eq!((book.source(&failed), book.nodes.len()), (None, NODES_MAX));
    }

    #[test]
    fn nodes_are_dialled_when_due_and_shared_once_reached() {
        let (mut book, now) = (AddressBook::default(), Instant::now());
        let record = record("/ip4/8.8.8.8/tcp/1");
        let peer = record.peer;
        book.add(record.clone(), NodeSource::PeerExchange, None, now).unwrap();
        let due = |book: &mut AddressBook, now| book.due(now, 9, |_, _, _, _| true).len();
        assert!(book.due(now, 9, |_, _, _, _| false).is_empty());
        assert_eq!((due(&mut book, now), due(&mut book, now)), (1, 0));
        assert!(book.reachable(now, 9).is_empty());
        book.reached(&peer, now);
        assert_eq!(book.reachable(now, 9).len(), 1);
        assert!(book.reachable(now + PROVEN_FOR, 9).is_empty());
        assert_eq!((due(&mut book, now), due(&mut book, now + RETRY_FIRST)), (0, 1));
        // Each failure doubles the pause. After `FAILURES_MAX` failures, the node is forgotten.
        let mut at = now;
        for failures in 1..FAILURES_MAX {
            book.failed(&peer, at);
            let pause = RETRY_FIRST * 2_u32.pow(failures - 1);
            assert_eq!(due(&mut book, at + (pause / 2)), 0);
            at += pause;
            assert_eq!(due(&mut book, at), 1);
        }
        assert!(book.reachable(at, 9).is_empty());
        book.failed(&peer, at);
        assert_eq!(book.source(&peer), None);
        // A peer that has dialled this node counts as reachable if it connects from its record's
        // address.
        book.add(record, NodeSource::PeerExchange, None, at).unwrap();
        book.connected_from(&peer, [9, 9, 9, 9].into(), at);
        assert!(book.reachable(at, 9).is_empty());
        book.connected_from(&peer, [8, 8, 8, 8].into(), at);
        assert_eq!(book.reachable(at, 9).len(), 1);
    }
}
