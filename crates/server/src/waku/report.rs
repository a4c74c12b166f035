//! The report about the node for its operator: its identity, its reachability, and its peers.
//! `hark waku` prints the report.

#[cfg(feature = "libp2p")]
use hark_archive::meter::Counter;
use serde_json::{Value, json};

use super::node::WakuNode;
#[cfg(feature = "libp2p")]
use super::p2p::NetworkHandle;
#[cfg(feature = "libp2p")]
use super::peer_status::{PeerConnectivity, PeerStatus};
#[cfg(feature = "libp2p")]
use crate::metrics::MetricLabel as _;

/// Maximum number of peers in a report. A peer has some 700 bytes.
#[cfg(feature = "libp2p")]
const PEERS_MAX: usize = 1_000;
/// Maximum length of a text from a peer, in bytes.
#[cfg(feature = "libp2p")]
const TEXT_MAX: usize = 100;

/// The services in a report, and the protocol of each.
#[cfg(feature = "libp2p")]
const SERVICES: [(&str, &str); 6] = [
    ("relay", "/vac/waku/relay/2.0.0"),
    ("store", "/vac/waku/store-query/3.0.0"),
    ("filter", "/vac/waku/filter-subscribe/2.0.0-beta1"),
    ("lightpush", "/vac/waku/lightpush/3.0.0"),
    ("peer exchange", "/vac/waku/peer-exchange/2.0.0-alpha1"),
    ("sync", "/vac/waku/reconciliation/1.0.0"),
];

/// Returns the report. Blocks the thread until the network has listed its peers.
pub(super) fn report(waku: &WakuNode) -> Value {
    let config = &waku.config;
    let preset = config
        .preset
        .as_ref()
        .map(|preset| json!({ "name": preset.name, "overridden": preset.overridden }));
    #[cfg_attr(not(feature = "libp2p"), allow(unused_mut))] // the peers are added below
    let mut report = json!({
        "cluster": config.cluster,
        "shards": config.shards,
        "shards_in_cluster": config.shards_in_cluster,
        "message_bytes_max": config.message_bytes_max,
        "forward": config.forward,
        "preset": preset,
        "addresses": waku.addresses(),
        "record": waku.record(),
        "peer_id": null,
        "peers": [],
    });
    #[cfg(feature = "libp2p")]
    if let Some(network) = &waku.network {
        report["peer_id"] = json!(network.id.to_string());
        let peers = network.peers_blocking();
        report["connected"] = json!(peers.iter().filter(|peer| is_connected(peer)).count());
        report["known"] = json!(peers.len());
        let (connected, away): (Vec<_>, Vec<_>) =
            peers.iter().partition(|peer| peer.is_configured || !is_connected(peer));
        // Configured peers first, so that strangers cannot push them out of the report.
        let listed = connected.into_iter().chain(away).take(PEERS_MAX);
        let listed: Vec<Value> = listed.map(|peer| peer_json(network, peer)).collect();
        report["peers"] = listed.into();
        report["reach"] = reach(waku, network);
        report["web"] = web(waku, network);
        report["discovery"] = discovery(waku, network);
    }
    report
}

#[cfg(feature = "libp2p")]
fn is_connected(peer: &PeerStatus) -> bool {
    peer.connectivity == PeerConnectivity::Connected
}

#[cfg(feature = "libp2p")]
fn short(text: &str) -> String {
    let end = (0..=TEXT_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or(0)].to_owned()
}

#[cfg(feature = "libp2p")]
fn peer_json(network: &NetworkHandle, peer: &PeerStatus) -> Value {
    let offers = |protocol: &str| peer.protocols.iter().any(|offered| offered == protocol);
    let services = SERVICES.iter().filter(|(_, protocol)| offers(protocol));
    let services: Vec<&str> = services.map(|(name, _)| *name).collect();
    let id = peer.id.parse().ok();
    let source = id.and_then(|id| network.directory.book.lock().source(&id));
    let source = match source {
        _ if peer.is_configured => "configuration",
        Some(source) => source.name(),
        None if peer.is_dialled == Some(true) => "request",
        None => "dialled in",
    };
    json!({
        "id": peer.id,
        "address": peer.addr,
        "state": match peer.connectivity {
            PeerConnectivity::Connected => "connected",
            PeerConnectivity::NotConnected => "not connected",
            PeerConnectivity::CannotConnect => "cannot connect",
        },
        "direction": peer.is_dialled.map(|is_dialled| if is_dialled { "out" } else { "in" }),
        "source": source,
        "agent": short(&peer.agent),
        "shards": peer.shards.iter().take(128).collect::<Vec<_>>(),
        "mesh": peer.mesh,
        "services": services,
        "error": peer.fault.as_deref().map(short),
    })
}

/// Describes whether others can reach this node, with the evidence.
#[cfg(feature = "libp2p")]
fn reach(waku: &WakuNode, network: &NetworkHandle) -> Value {
    let record = network.own_record();
    let (observed, dialled_in, dialled_in_public) = {
        let seen = network.directory.sightings.lock();
        (seen.observed(), seen.dialled_in, seen.dialled_in_public)
    };
    let config = waku.config.p2p.as_ref();
    let listen = config.map_or(&[][..], |config| &config.listen);
    let announces = config.is_some_and(|config| !config.announce.is_empty());
    let is_loopback = |addr: &&libp2p::Multiaddr| {
        let text = addr.to_string();
        text.starts_with("/ip4/127.") || text.starts_with("/ip6/::1/")
    };
    let mut reasons = Vec::new();
    if listen.is_empty() {
        reasons.push("the node listens on no address ([waku] listen)".to_owned());
    } else if listen.iter().all(|addr| is_loopback(&addr)) && !announces {
        reasons.push(
            "the node listens on loopback addresses only: set `listen` in [waku], for example to \
             /ip4/0.0.0.0/tcp/60000"
                .to_owned(),
        );
    }
    let has_address = record.is_some_and(|record| !record.addrs.is_empty());
    if !has_address && reasons.is_empty() {
        reasons.push(
            "no address of the node is public, and `announce` in [waku] is empty: other nodes do \
             not learn an address of this node"
                .to_owned(),
        );
    }
    if dialled_in_public == 0 {
        reasons.push("no node with a public address has connected yet".to_owned());
    }
    let state = if dialled_in_public > 0 {
        "reachable"
    } else if has_address {
        "unknown"
    } else {
        "unreachable"
    };
    let observed: Vec<Value> = observed
        .iter()
        .take(5)
        .map(|(ip, peers)| json!({ "address": ip.to_string(), "peers": peers }))
        .collect();
    json!({
        "state": state,
        "reasons": reasons,
        "observed": observed,
        "dialled_in": dialled_in,
        "dialled_in_public": dialled_in_public,
    })
}

/// Describes the addresses at which browsers reach this node, or why there are none.
#[cfg(feature = "libp2p")]
fn web(waku: &WakuNode, network: &NetworkHandle) -> Value {
    let listen = waku.config.p2p.as_ref().map_or(&[][..], |config| &config.listen);
    match network.web_addresses(listen) {
        Ok(addresses) => json!({ "addresses": addresses, "reason": null }),
        Err(fault) => json!({ "addresses": [], "reason": fault.to_string() }),
    }
}

#[cfg(feature = "libp2p")]
fn discovery(waku: &WakuNode, network: &NetworkHandle) -> Value {
    use super::metrics::NodeSource;
    let known = NodeSource::ALL.iter().map(|(source, name)| {
        let count = network.directory.book.lock().count(*source);
        ((*name).to_owned(), json!(count))
    });
    let lists = network.directory.lists.lock().clone();
    let lists: Vec<Value> = lists
        .iter()
        .map(|list| {
            let fault = list.fault.as_ref().map(ToString::to_string);
            let (is_read, records) = (list.is_read, list.records);
            json!({ "url": list.url, "is_read": is_read, "records": records, "error": fault })
        })
        .collect();
    let refused = waku
        .metrics
        .record_refusals
        .all()
        .map(|(_, by)| by.all().map(|(_, count): (_, &Counter)| count.get()).sum::<u64>());
    json!({
        "known": known.collect::<serde_json::Map<_, _>>(),
        "refused": refused.sum::<u64>(),
        "lists": lists,
    })
}
