//! `/health`, as in nwaku. Scripts wait for `Relay` and `Store` to be ready.

use serde_json::{Value, json};

use crate::rest::RestAnswer;
use crate::waku::node::WakuNode;
use crate::waku::peer_status::PeerStatus;

/// Protocols that this node lacks but lists, in nwaku's order: those after the store, and those
/// after the store client.
const BEHIND: [&str; 6] = [
    "Legacy Store",
    "Peer Exchange",
    "Rendezvous",
    "Mix",
    "Lightpush Client",
    "Legacy Lightpush Client",
];
const LAST: [&str; 2] = ["Legacy Store Client", "Filter Client"];

/// Returns the health of the node and of each protocol.
pub(super) async fn health(waku: &WakuNode) -> RestAnswer {
    let trouble = waku.service.shelf.trouble();
    let peers = waku.peers().await;
    let mut protocols = vec![relay(peers.as_deref()), json!({ "Rln Relay": "NOT_MOUNTED" })];
    let ready = |name: &str, is_mounted: bool| match &trouble {
        _ if !is_mounted => json!({ name: "NOT_MOUNTED" }),
        None => json!({ name: "READY" }),
        Some(why) => json!({ name: "NOT_READY", "desc": why }),
    };
    let has_peers = peers.is_some();
    for name in ["Lightpush", "Legacy Lightpush"] {
        // Light push works even while no peer is connected: a message is stored and sent to filter
        // clients.
        protocols.push(ready(name, has_peers && waku.config.forward));
    }
    protocols.push(ready("Filter", has_peers));
    protocols.push(ready("Store", true));
    let not_mounted = |name: &&str| json!({ *name: "NOT_MOUNTED" });
    protocols.extend(BEHIND.iter().map(not_mounted));
    protocols.push(json!({ "Store Client": "READY" }));
    protocols.extend(LAST.iter().map(not_mounted));
    let node = if trouble.is_none() { "READY" } else { "NOT_READY" };
    let health = json!({ "nodeHealth": node, "protocolsHealth": protocols });
    RestAnswer::json(health.to_string())
}

/// Encodes the health of gossip. Gossip is ready once a peer subscribes to a shard.
fn relay(peers: Option<&[PeerStatus]>) -> Value {
    match peers {
        None => json!({ "Relay": "NOT_MOUNTED" }),
        Some(peers) if peers.iter().any(|peer| !peer.shards.is_empty()) => {
            json!({ "Relay": "READY" })
        }
        Some(_) => json!({ "Relay": "NOT_READY", "desc": "No connected peers" }),
    }
}
