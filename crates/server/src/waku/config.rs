//! The configuration of a Waku node.

use std::sync::Arc;

use arc_swap::ArcSwap;
use hark_codec::waku::{ProtectedShard, Shard};
use hark_networks::waku::admit;

#[cfg(feature = "libp2p")]
use super::p2p::P2pConfig;
use crate::limits::Rate;
use crate::service::StoreLocation;
use crate::{ListenAddress, WebAccess};

/// The web pages that may use the REST API, and the allowed functions of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestAccess {
    /// The web pages that may use the API.
    pub web: WebAccess,
    /// Whether `peerAddr` may name any address, including addresses of this machine or of private
    /// networks.
    pub any_peer: bool,
    /// Whether `/admin` is available.
    pub admin: bool,
}

/// The settings that can change while a node runs.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// How far a message's time may be from now, in nanoseconds. `None` is unlimited.
    pub window_ns: Option<u64>,
    /// Shards on which only signed messages are accepted.
    pub protected_shards: Vec<ProtectedShard>,
    /// Requests for history allowed per peer, and per client of the REST API. `None` is unlimited.
    pub queries: Option<Rate>,
    /// Maximum number of rows that a query may visit.
    pub query_rows_max: u64,
    /// Maximum number of peers with subscriptions (filter).
    pub filter_peers_max: usize,
    /// Requests to subscribe allowed per peer. `None` is unlimited.
    pub filter_requests: Option<Rate>,
    /// Messages that clients at one address may publish by light push. `None` is unlimited.
    pub light_pushes: Option<Rate>,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            window_ns: admit::MessageBounds::default().window_ns,
            protected_shards: Vec::new(),
            queries: None,
            query_rows_max: 5_000_000,
            // nwaku's bounds for subscribers.
            filter_peers_max: 100,
            filter_requests: Some(Rate { per_minute: 30, at_once: 30 }),
            light_pushes: Some(Rate { per_minute: 600, at_once: 600 }),
        }
    }
}

/// A shared handle of the current settings. Any holder can replace the settings while the node
/// runs.
pub type SharedNodeSettings = Arc<ArcSwap<NodeSettings>>;

/// Creates a shared handle to these settings.
pub fn shared(settings: NodeSettings) -> SharedNodeSettings {
    Arc::new(ArcSwap::from_pointee(settings))
}

/// The preset from which some values of a configuration come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedPreset {
    /// The name of the preset.
    pub name: &'static str,
    /// The settings that override a value of the preset.
    pub overridden: Vec<&'static str>,
}

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The preset of the node's network, for the node's operator. `None` without a preset.
    pub preset: Option<SelectedPreset>,
    /// Addresses of the REST API. An empty list disables the REST API.
    pub rest: Vec<ListenAddress>,
    /// The web pages that may use the REST API, and the allowed functions of the API.
    pub access: RestAccess,
    /// Configuration of the libp2p interface. `None` disables the libp2p interface.
    #[cfg(feature = "libp2p")]
    pub p2p: Option<P2pConfig>,
    /// The cluster whose messages are kept.
    pub cluster: u16,
    /// Number of shards in the cluster. It determines the shard of a message that names only its
    /// content topic.
    pub shards_in_cluster: u16,
    /// The shards of the cluster that are served.
    pub shards: Vec<u16>,
    /// Whether this node relays messages and lets clients publish. Peers disconnect a node that
    /// relays messages which they refuse as invalid: see [`can_forward`].
    pub forward: bool,
    /// Whether a message needs a rate-limit proof. The node checks the form, the epoch and the
    /// nullifier of the proof, but does not verify the proof.
    pub proofs: bool,
    /// Maximum size of a message, in bytes.
    pub message_bytes_max: usize,
    /// The settings that can change while the node runs.
    pub settings: SharedNodeSettings,
    /// Where the store runs its queries: in this process, or in a database.
    pub store_at: StoreLocation,
}

impl Default for NodeConfig {
    /// Returns the configuration for The Waku Network (RFC 64/WAKU2-NETWORK), without REST and
    /// libp2p.
    fn default() -> Self {
        Self {
            preset: None,
            rest: Vec::new(),
            access: RestAccess::default(),
            #[cfg(feature = "libp2p")]
            p2p: None,
            cluster: 1,
            shards_in_cluster: 8,
            shards: (0..8).collect(),
            forward: can_forward(1),
            proofs: !can_forward(1),
            message_bytes_max: admit::MessageBounds::default().message_bytes_max,
            settings: SharedNodeSettings::default(),
            store_at: StoreLocation::Process,
        }
    }
}

/// Whether this node can recognise the messages that the other nodes of a cluster refuse. Each
/// message on cluster 1, The Waku Network, needs a rate-limit proof (RFC 58/RLN-V2), which this
/// node neither verifies nor creates.
pub fn can_forward(cluster: u16) -> bool {
    cluster != 1
}

impl NodeConfig {
    /// Returns the served shards.
    pub(super) fn served(&self) -> impl Iterator<Item = Shard> {
        self.shards.iter().map(|&index| Shard { cluster: self.cluster, index })
    }
}
