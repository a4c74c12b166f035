//! The configuration of the libp2p interface.

use std::path::PathBuf;
use std::time::Duration;

use libp2p::Multiaddr;

use super::addr;
use super::discovery::{
    DiscoveryConfig, LIST_PREFIX, NodeListUrl, NodeRecord, RECORD_PREFIX, RecordFault,
};
use super::secure_web::SecureForm;

/// The addresses that this node listens on, the peers that it dials, and the limits on its
/// connections.
#[derive(Clone, Debug)]
pub struct P2pConfig {
    /// Addresses to listen on, for example `/ip4/0.0.0.0/tcp/60000` or `/ip4/0.0.0.0/tcp/8000/ws`.
    /// Secure WebSockets, such as `/ip4/0.0.0.0/tcp/8000/wss`, need the server's certificate.
    pub listen: Vec<Multiaddr>,
    /// Further addresses of this node that are announced to peers, for example those of a proxy.
    pub announce: Vec<Multiaddr>,
    /// The file with the node's key. A missing file is created.
    pub key: PathBuf,
    /// Addresses of nodes through which this node joins the network. This node stays connected to
    /// these nodes.
    pub entry_nodes: Vec<Multiaddr>,
    /// Addresses of peers to stay connected to. Each address ends with `/p2p/` and the peer's id.
    pub peers: Vec<Multiaddr>,
    /// Addresses of peers with a store. History is fetched from these peers after this node was
    /// offline.
    pub stores: Vec<Multiaddr>,
    /// Maximum age of the history to fetch, in seconds.
    pub resume_max_s: u64,
    /// How this node finds others, and makes itself known.
    pub discovery: DiscoveryConfig,
    /// The file with the time up to which this node has missed no message.
    pub online: PathBuf,
    /// The file with the nodes that this node has reached lately.
    pub nodes: PathBuf,
    /// Interval and time span of the comparisons with `stores`.
    pub sync: SyncPlan,
    /// Maximum number of connections.
    pub connections_max: u32,
    /// Maximum number of incoming connections from one address.
    pub connections_per_address_max: usize,
}

/// The interval and the time span of this node's comparisons with other stores.
#[derive(Clone, Copy, Debug)]
pub struct SyncPlan {
    /// Interval between two comparisons with each store. `None` disables these comparisons.
    pub every: Option<Duration>,
    /// Length of the compared time span, in seconds.
    pub range_s: u64,
    /// Age at which the span ends, in seconds. Younger messages may still be in transit.
    pub jitter_s: u64,
}

impl Default for SyncPlan {
    /// The default values of nwaku.
    fn default() -> Self {
        Self { every: Some(Duration::from_mins(5)), range_s: 3_600, jitter_s: 20 }
    }
}

/// Returns the addresses in the text of a setting: a single address, or all addresses of a node's
/// record. Returns no address for an invalid text.
pub fn addresses(text: &str) -> Vec<Multiaddr> {
    if text.starts_with(RECORD_PREFIX) {
        return NodeRecord::parse(text).map(|record| record.addrs).unwrap_or_default();
    }
    text.parse().into_iter().collect()
}

/// Whether a text is meant as the URL of a list of nodes.
pub fn is_list(text: &str) -> bool {
    text.starts_with(LIST_PREFIX)
}

/// Whether an address names a secure WebSocket, which needs a certificate.
pub fn is_secure_web(addr: &str) -> bool {
    addr.parse().is_ok_and(|addr| SecureForm::of(&addr).is_some())
}

/// Returns why the URL of a list is invalid, or `None` if the URL is valid.
pub fn list_fault(text: &str) -> Option<String> {
    text.parse::<NodeListUrl>().err().map(|fault| fault.to_string())
}

/// Returns why an address is invalid, or `None` if the address is valid. A peer's address must end
/// with the peer's id, or be the record of the peer.
pub fn fault(addr: &str, of_peer: bool) -> Option<String> {
    if of_peer && addr.starts_with(RECORD_PREFIX) {
        return match NodeRecord::parse(addr) {
            Ok(record) if record.addrs.is_empty() => Some(RecordFault::NoAddress.to_string()),
            Ok(_) => None,
            Err(fault) => Some(fault.to_string()),
        };
    }
    match addr.parse::<Multiaddr>() {
        Ok(addr) if of_peer && addr::id(&addr).is_none() => {
            Some("the address of a peer ends with /p2p/ and its id".into())
        }
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}
