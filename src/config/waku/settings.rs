//! The settings of the Waku node.

use std::net::{Ipv4Addr, SocketAddr};
#[cfg(feature = "libp2p")]
use std::path::Path;
#[cfg(feature = "libp2p")]
use std::time::Duration;

use hark_codec::waku::ProtectedShard;
use hark_networks::waku::NS_PER_S;
use hark_networks::waku::retention::Retention;
use hark_server::ListenAddress;
use hark_server::limits::Rate;
use hark_server::waku::{NodeConfig, NodeSettings, can_forward, shared};

use super::presets::NetworkPreset;
use crate::config::doors::DoorFacts;
use crate::config::setting_type::{SettingType, quoted, wanted};
use crate::config::value::TypedValue;

/// The node's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WakuSettings {
    /// Whether the node runs.
    pub(crate) serve: bool,
    /// The network whose values replace the defaults of some other settings.
    pub(crate) preset: Option<&'static NetworkPreset>,
    pub(crate) rest: Vec<ListenAddress>,
    pub(crate) access: hark_server::waku::RestAccess,
    pub(crate) listen: Vec<String>,
    pub(crate) announce: Vec<String>,
    pub(crate) entry_nodes: Vec<String>,
    pub(crate) discovered_max: usize,
    pub(crate) peer_exchange: bool,
    pub(crate) discv5: Option<SocketAddr>,
    pub(crate) discover_private: bool,
    pub(crate) dns_servers: Vec<SocketAddr>,
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
    pub(crate) filter_peers_max: usize,
    pub(crate) filter_requests: Option<Rate>,
    pub(crate) light_pushes: Option<Rate>,
    pub(crate) retention: Retention,
    pub(crate) part_days: u64,
}

impl Default for WakuSettings {
    fn default() -> Self {
        let (node, settings) = (NodeConfig::default(), NodeSettings::default());
        Self {
            serve: false,
            preset: None,
            rest: vec![ListenAddress::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, 8645)))],
            access: node.access,
            listen: vec!["/ip4/127.0.0.1/tcp/60000".into(), "/ip4/127.0.0.1/tcp/8000/ws".into()],
            announce: Vec::new(),
            entry_nodes: Vec::new(),
            discovered_max: 0,
            peer_exchange: true,
            discv5: None,
            discover_private: false,
            dns_servers: Vec::new(),
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
            filter_peers_max: settings.filter_peers_max,
            filter_requests: settings.filter_requests,
            light_pushes: settings.light_pushes,
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
        let read = |addrs: &[String]| -> Vec<_> {
            addrs.iter().flat_map(|addr| hark_server::waku::p2p::addresses(addr)).collect()
        };
        let all = [&self.listen, &self.entry_nodes, &self.peers, &self.stores];
        let none = all.iter().all(|addrs| addrs.is_empty());
        // A record may have several addresses. Each store is queried at one address, and the node
        // stays connected to the store at any of the addresses.
        let first = |store: &String| hark_server::waku::p2p::addresses(store).into_iter().next();
        let entry_nodes = read(&self.entry_nodes).into_iter().chain(read(&self.stores)).collect();
        (!none).then(|| hark_server::waku::p2p::P2pConfig {
            listen: read(&self.listen),
            announce: read(&self.announce),
            key: data.join("waku.key"),
            entry_nodes,
            peers: read(&self.peers),
            stores: self.stores.iter().filter_map(first).collect(),
            discovery: hark_server::waku::p2p::DiscoveryConfig {
                lists: self.entry_nodes.iter().filter_map(|url| url.parse().ok()).collect(),
                discv5: self.discv5,
                records: self
                    .entry_nodes
                    .iter()
                    .filter(|node| node.starts_with("enr:"))
                    .cloned()
                    .collect(),
                name_servers: self.dns_servers.clone(),
                nodes_max: self.discovered_max,
                exchange: self.peer_exchange,
                private: self.discover_private,
            },
            resume_max_s: self.resume_max_s,
            online: data.join("waku.online"),
            nodes: data.join("waku.nodes"),
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
    fn address_faults(&self) -> impl Iterator<Item = String> {
        let named = [
            ("listen", &self.listen, false),
            ("announce", &self.announce, false),
            ("entry_nodes", &self.entry_nodes, true),
            ("peers", &self.peers, true),
            ("stores", &self.stores, true),
        ];
        named.into_iter().flat_map(|(key, addrs, of_peers)| {
            addrs.iter().filter_map(move |addr| {
                let is_other =
                    || (key == "listen" && !addr.contains("/tcp/")).then(|| OTHER.into());
                let fault = if key == "entry_nodes" && hark_server::waku::p2p::is_list(addr) {
                    hark_server::waku::p2p::list_fault(addr)?
                } else {
                    hark_server::waku::p2p::fault(addr, of_peers).or_else(is_other)?
                };
                Some(format!("[waku] `{key}` has {addr:?}: {fault}"))
            })
        })
    }
}

/// The fault of an address on which the node cannot listen.
#[cfg(feature = "libp2p")]
const OTHER: &str = "the node listens on /ip4/…/tcp/PORT and, for browsers, /ip4/…/tcp/PORT/wss or, \
                     behind a proxy, /ip4/…/tcp/PORT/ws";

/// Whether the Waku node forwards messages to its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardMode {
    /// Forward in clusters in which the node knows which messages other nodes refuse.
    Auto,
    Always,
    Never,
}

impl SettingType for ForwardMode {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match String::read(value).as_deref() {
            Ok("auto") => Ok(Self::Auto),
            Ok("always") => Ok(Self::Always),
            Ok("never") => Ok(Self::Never),
            _ => wanted("\"auto\", \"always\" or \"never\"", value),
        }
    }

    fn show(&self) -> String {
        quoted(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

impl WakuSettings {
    /// Replaces the settings in `PRESET_KEYS` by the values of the selected preset, or by the
    /// defaults if no preset is selected.
    pub(in crate::config) fn apply_preset(&mut self) {
        let default = Self::default();
        let Some(preset) = self.preset else {
            self.cluster = default.cluster;
            self.shards_in_cluster = default.shards_in_cluster;
            self.shards = default.shards;
            self.message_bytes_max = default.message_bytes_max;
            self.entry_nodes = default.entry_nodes;
            self.discovered_max = default.discovered_max;
            return;
        };
        self.cluster = preset.cluster;
        self.shards_in_cluster = preset.shards_in_cluster;
        self.shards = (0..preset.shards_in_cluster).collect();
        self.message_bytes_max = preset.message_bytes_max;
        self.discovered_max = preset.discovered_max;
        self.entry_nodes = preset.entry_nodes.iter().map(ToString::to_string).collect();
    }

    /// Returns one line for each fault in the addresses and shards of the node.
    pub(in crate::config) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        #[cfg(feature = "libp2p")]
        faults.extend(self.address_faults());
        let (shards, shards_max) = (self.shards.len(), hark_server::waku::SHARDS_MAX);
        if shards > shards_max {
            faults.push(format!(
                "[waku] `shards` has {shards} shards, at most {shards_max} are served"
            ));
        }
        for protected in &self.protected_shards {
            if !self.shards.contains(&protected.shard) {
                let shard = protected.shard;
                faults.push(format!("[waku] `protected_shards` has {shard}, `shards` does not"));
            }
        }
        faults
    }

    /// Returns the addresses in `listen` of secure WebSockets, which need a certificate.
    pub(in crate::config) fn secure_listeners(&self) -> impl Iterator<Item = &String> {
        #[cfg(feature = "libp2p")]
        let is_secure = |addr: &&String| hark_server::waku::p2p::is_secure_web(addr);
        #[cfg(not(feature = "libp2p"))]
        let is_secure = |_: &&String| false;
        self.listen.iter().filter(is_secure)
    }

    /// Returns the settings that can change while the node runs.
    pub(super) fn settings(&self) -> NodeSettings {
        NodeSettings {
            window_ns: self.window_s.map(|s| s.saturating_mul(NS_PER_S)),
            protected_shards: self.protected_shards.clone(),
            queries: self.queries,
            query_rows_max: self.query_rows_max,
            filter_peers_max: self.filter_peers_max,
            filter_requests: self.filter_requests,
            light_pushes: self.light_pushes,
        }
    }

    pub(super) fn node(&self, at: &DoorFacts<'_>) -> NodeConfig {
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
            preset: None,
            rest: self.rest.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::waku::presets::PRESETS;

    #[test]
    fn every_entry_node_of_a_preset_has_a_valid_address() {
        for preset in &PRESETS {
            let mut settings = WakuSettings { preset: Some(preset), ..WakuSettings::default() };
            settings.apply_preset();
            assert_eq!(settings.faults(), [""; 0], "{}", preset.name());
            assert_eq!(settings.cluster, preset.cluster);
            assert_eq!(settings.shards.len(), usize::from(preset.shards_in_cluster));
            settings.preset = None;
            settings.apply_preset();
            assert_eq!(settings, WakuSettings::default());
        }
    }
}
