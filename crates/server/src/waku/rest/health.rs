//! `/health`, as in nwaku. Scripts wait for `Relay` and `Store` to be ready.

use serde_json::{Value, json};

use crate::rest::RestAnswer;
use crate::waku::node::WakuNode;
use crate::waku::peer_status::PeerStatus;

/// Protocols that this node lacks but lists, in nwaku's order: before the store, after the store,
/// and after the store client.
const BEFORE: [&str; 4] = ["Rln Relay", "Lightpush", "Legacy Lightpush", "Filter"];
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
    let mut protocols = vec![relay(waku.peers().await.as_deref())];
    let not_mounted = |name: &&str| json!({ *name: "NOT_MOUNTED" });
    protocols.extend(BEFORE.iter().map(not_mounted));
    protocols.push(match &trouble {
        None => json!({ "Store": "READY" }),
        Some(why) => json!({ "Store": "NOT_READY", "desc": why }),
    });
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
