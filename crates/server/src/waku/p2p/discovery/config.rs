//! The configuration of discovery.

use std::net::SocketAddr;

use super::tree::NodeListUrl;

/// How a node finds others, and makes itself known.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryConfig {
    /// Lists of nodes in the DNS.
    pub lists: Vec<NodeListUrl>,
    /// The address and port on which discv5 listens. `None` disables discv5.
    pub discv5: Option<SocketAddr>,
    /// The records, as text, of nodes that are always added to discv5's table.
    pub records: Vec<String>,
    /// The DNS servers. Empty: the system's servers.
    pub name_servers: Vec<SocketAddr>,
    /// Maximum number of discovered nodes that this node dials and stays connected to.
    pub nodes_max: usize,
    /// Whether this node takes part in the peer exchange.
    pub exchange: bool,
    /// Whether addresses of this machine and of private networks are used.
    pub private: bool,
}
