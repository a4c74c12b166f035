//! The settings of the Waku node, and its construction.

use std::net::{Ipv4Addr, SocketAddr};
#[cfg(feature = "libp2p")]
use std::path::Path;
use std::sync::Arc;
#[cfg(feature = "libp2p")]
use std::time::Duration;

use hark_codec::waku::ProtectedShard;
use hark_networks::waku::NS_PER_S;
use hark_networks::waku::retention::Retention;
use hark_server::limits::Rate;
use hark_server::shelf;
use hark_server::waku::{NodeConfig, NodeService, NodeSettings, can_forward, shared};

use super::Config;
use super::networks::{DoorFacts, NetworkService, NetworkSetup, ShelfConfig};
use super::settings::{Setting, SettingType, SettingsSection, settings};

/// The configuration and setup of the network.
pub(super) const SETUP: NetworkSetup = NetworkSetup {
    network: &hark_networks::waku::Waku,
    shelf: |config| ShelfConfig {
        retention: config.retention(&config.waku.retention.policy),
        part_days: config.waku.part_days,
        record_bytes_max: config.waku.message_bytes_max,
        texts: None,
    },
    is_served: |config| config.waku.serve,
    serve,
};

/// The network's section of the configuration file.
pub(super) const SECTION: SettingsSection = SettingsSection {
    name: "waku",
    doc: "A store of Waku messages beside the relay, on a shelf of its own.",
    settings: settings! {
        "serve" waku.serve: "Whether the node runs.";
        "rest" waku.rest: "Address and port of nwaku's REST API; /openapi.json describes the API. Empty: no REST API. Anyone who reaches\nthe API may publish if the node forwards messages.";
        "rest_allow_origin" waku.access.web.allow_origin: "Origins of web pages that may use the REST API, as in nwaku's --rest-allow-origin: [\"http://localhost:*\",\n\"app.example\"]. \"*\": all. Requests of other pages are refused, because a browser lets any page send requests to\nany address.";
        "rest_hosts" waku.access.web.hosts: "Host names of the REST API, in addition to localhost and IP addresses, e.g. [\"waku.example\"]. A request to\nanother name is refused, because a web page can make its own name point to this address. \"*\": any name.";
        "rest_any_peer" waku.access.any_peer: "Whether peerAddr in a request may name any address. If not, peerAddr may name configured or connected peers and\npublic addresses.";
        "rest_admin" waku.access.admin: "Whether the REST API has /admin/v1, which lists peers and connects to others. Anyone who reaches the API may use\n/admin/v1.";
        "listen" waku.listen: "Addresses on which peers connect (libp2p): /ip4/0.0.0.0/tcp/60000 and, for browsers, /ip4/0.0.0.0/tcp/8000/ws.\nEmpty: none. The node's key, by which peers know the node, is in waku.key in the archive's directory.";
        "announce" waku.announce: "Further addresses of the node that are announced to peers, such as the address of a proxy for browsers, e.g.\n[\"/dns4/node.example/tcp/443/wss\"].";
        "peers" waku.peers: "Peers with which the node stays connected, e.g. [\"/dns4/node.example/tcp/60000/p2p/16Uiu2…\"].";
        "stores" waku.stores: "Peers with a store, from which the node fetches missed messages. The node stays connected with these peers, too.";
        "resume_max_s" waku.resume_max_s: "Maximum age of missed messages that are fetched, in seconds. Older messages are not fetched.";
        "sync_every_s" waku.sync_every_s: "Seconds between two comparisons with each of these stores (Waku Store Sync), in which both sides receive the\nmessages that they lack. 0: no comparisons.";
        "sync_range_s" waku.sync_range_s: "Length of the compared time span, in seconds.";
        "sync_jitter_s" waku.sync_jitter_s: "Seconds by which the compared time span ends before now, because younger messages may still be in transit.";
        "connections_max" waku.connections_max: "Maximum number of connections at a time with peers that the configuration does not name. Further connections are\nclosed. Connections with configured peers are always accepted.";
        "connections_per_address_max" waku.connections_per_address_max: "Maximum number of connections that peers at one address (of IPv6, of its first 64 bits) have opened. Further\nconnections are closed.";
        "cluster" waku.cluster: "Cluster whose messages are kept: 1 is The Waku Network, 16 is Status.";
        "shards_in_cluster" waku.shards_in_cluster: "Number of shards in the cluster. The number decides the shard of messages that name only a content topic.";
        "shards" waku.shards: "Shards of the cluster that are served. Some nodes (rust-libp2p, Hark up to 0.1) ignore a node that serves more\nthan 100 shards.";
        "forward" waku.forward: "Whether messages are relayed to peers and may be published: always, never or auto. auto is always, except on\ncluster 1, where each message needs a rate-limit proof (RLN). There Hark checks the form, epoch and nullifier of\nproofs, but neither verifies nor makes proofs. Peers disconnect a node that relays a message with a false proof.\nWith always, no message needs a proof.";
        "protected_shards" waku.protected_shards: "Shards on which only messages signed by the shard's key are accepted (nwaku's --protected-shard), e.g.\n[\"32:02…\"].";
        "message_bytes_max" waku.message_bytes_max: "Maximum size of a message in bytes. Larger messages are refused.";
        "window_s" waku.window_s: "Seconds that a message's time may lie before or after the current time when the message is published. 0: any\ntime.";
        "queries" waku.queries: "How fast peers and clients of the REST API at one address may send queries: [number a minute, number at once\nafter a pause]. Faster queries are answered with status 429. [0, 0]: no limit.";
        "query_rows_max" waku.query_rows_max: "Maximum number of rows that a query may visit. A query that would visit more rows is refused.";
        "retention" waku.retention: "Bounds on the kept messages, in nwaku's words: time:SECONDS, size:10GB or capacity:MESSAGES. Several bounds are\nseparated by ; and all of them apply. Empty: all messages are kept. [retention] sets how often messages are\ndeleted, and how many at once.";
        "part_days" waku.part_days: "Days that one part of the tables in PostgreSQL covers. The number is fixed when the tables are created.";
    },
};

fn serve(config: &Config, shelf: shelf::ShelfOptions, at: &DoorFacts<'_>) -> NetworkService {
    let node = config.waku.node(at);
    let settings = Arc::clone(&node.settings);
    NetworkService {
        network: Box::new(NodeService { config: node, shelf }),
        reload: Box::new(move |config| settings.store(Arc::new(config.waku.settings()))),
    }
}

/// The node's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WakuSettings {
    /// Whether the node runs.
    pub(crate) serve: bool,
    pub(crate) rest: Option<SocketAddr>,
    pub(crate) access: hark_server::waku::RestAccess,
    pub(crate) listen: Vec<String>,
    pub(crate) announce: Vec<String>,
    pub(crate) peers: Vec<String>,
    pub(crate) stores: Vec<String>,
    pub(crate) resume_max_s: u64,
    pub(crate) sync_every_s: Option<u64>,
    pub(crate) sync_range_s: u64,
    pub(crate) sync_jitter_s: u64,
    pub(crate) connections_max: u32,
    pub(crate) connections_per_address_max: usize,
    pub(crate) cluster: u16,
    pub(crate) shards_in_cluster: u16,
    pub(crate) shards: Vec<u16>,
    pub(crate) forward: ForwardMode,
    pub(crate) protected_shards: Vec<ProtectedShard>,
    pub(crate) message_bytes_max: usize,
    pub(crate) window_s: Option<u64>,
    pub(crate) queries: Option<Rate>,
    pub(crate) query_rows_max: u64,
    pub(crate) retention: Retention,
    pub(crate) part_days: u64,
}

impl Default for WakuSettings {
    fn default() -> Self {
        let (node, settings) = (NodeConfig::default(), NodeSettings::default());
        Self {
            serve: false,
            rest: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 8645))),
            access: node.access,
            listen: vec!["/ip4/127.0.0.1/tcp/60000".into(), "/ip4/127.0.0.1/tcp/8000/ws".into()],
            announce: Vec::new(),
            peers: Vec::new(),
            stores: Vec::new(),
            resume_max_s: 86_400,
            // nwaku's defaults for sync.
            sync_every_s: Some(300),
            sync_range_s: 3_600,
            sync_jitter_s: 20,
            connections_max: 2_000,
            connections_per_address_max: 100,
            cluster: node.cluster,
            shards_in_cluster: node.shards_in_cluster,
            shards: node.shards,
            forward: ForwardMode::Auto,
            protected_shards: settings.protected_shards,
            message_bytes_max: node.message_bytes_max,
            window_s: settings.window_ns.map(|ns| ns / NS_PER_S),
            queries: settings.queries,
            query_rows_max: settings.query_rows_max,
            retention: Retention::default(),
            part_days: 1,
        }
    }
}

#[cfg(feature = "libp2p")]
impl WakuSettings {
    /// Returns the libp2p settings; `None` if the node has no addresses. The addresses were checked
    /// with the configuration.
    fn p2p(&self, data: &Path) -> Option<hark_server::waku::p2p::P2pConfig> {
        let read = |addrs: &[String]| addrs.iter().filter_map(|addr| addr.parse().ok()).collect();
        let none = [&self.listen, &self.peers, &self.stores].iter().all(|addrs| addrs.is_empty());
        (!none).then(|| hark_server::waku::p2p::P2pConfig {
            listen: read(&self.listen),
            announce: read(&self.announce),
            key: data.join("waku.key"),
            peers: read(&self.peers),
            stores: read(&self.stores),
            resume_max_s: self.resume_max_s,
            online: data.join("waku.online"),
            sync: hark_server::waku::p2p::SyncPlan {
                every: self.sync_every_s.map(Duration::from_secs),
                range_s: self.sync_range_s,
                jitter_s: self.sync_jitter_s,
            },
            connections_max: self.connections_max,
            connections_per_address_max: self.connections_per_address_max,
        })
    }

    /// Returns one line for each invalid address.
    pub(super) fn faults(&self) -> impl Iterator<Item = String> {
        let named = [
            ("listen", &self.listen, false),
            ("announce", &self.announce, false),
            ("peers", &self.peers, true),
            ("stores", &self.stores, true),
        ];
        named.into_iter().flat_map(|(key, addrs, of_peers)| {
            addrs.iter().filter_map(move |addr| {
                let is_other =
                    || (key == "listen" && !addr.contains("/tcp/")).then(|| OTHER.into());
                let fault = hark_server::waku::p2p::fault(addr, of_peers).or_else(is_other)?;
                Some(format!("[waku] `{key}` has {addr:?}: {fault}"))
            })
        })
    }
}

/// The fault of an address on which the node cannot listen.
#[cfg(feature = "libp2p")]
const OTHER: &str = "the node listens on /ip4/…/tcp/PORT and, for browsers, /ip4/…/tcp/PORT/ws";

/// Whether the Waku node forwards messages to its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardMode {
    /// Forward in clusters in which the node knows which messages other nodes refuse.
    Auto,
    Always,
    Never,
}

impl WakuSettings {
    /// Returns the settings that can change while the node runs.
    fn settings(&self) -> NodeSettings {
        NodeSettings {
            window_ns: self.window_s.map(|s| s.saturating_mul(NS_PER_S)),
            protected_shards: self.protected_shards.clone(),
            queries: self.queries,
            query_rows_max: self.query_rows_max,
        }
    }

    fn node(&self, at: &DoorFacts<'_>) -> NodeConfig {
        #[cfg(feature = "libp2p")]
        let p2p = self.p2p(at.data).map(|p2p| hark_server::waku::p2p::P2pConfig {
            connections_per_address_max: if at.unlimited {
                usize::MAX
            } else {
                p2p.connections_per_address_max
            },
            ..p2p
        });
        NodeConfig {
            rest: self.rest,
            access: self.access.clone(),
            #[cfg(feature = "libp2p")]
            p2p,
            cluster: self.cluster,
            shards_in_cluster: self.shards_in_cluster,
            shards: self.shards.clone(),
            forward: match self.forward {
                ForwardMode::Auto => can_forward(self.cluster),
                ForwardMode::Always => true,
                ForwardMode::Never => false,
            },
            proofs: self.forward != ForwardMode::Always && !can_forward(self.cluster),
            message_bytes_max: self.message_bytes_max,
            settings: shared(self.settings()),
            store_at: at.store_at,
        }
    }
}
