//! `/admin/v1`: the node's peers, for scripts and dashboards made for nwaku. Not available unless
//! the configuration allows these endpoints.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Map, Value, json};

use super::state::WakuState;
use crate::rest::RestAnswer;
use crate::waku::node::WakuNode;
use crate::waku::peer_status::{NoPeerAnswer, PeerConnectivity, PeerStatus};

/// The protocols in nwaku's statistics. A peer that offers any of these protocols is listed as a
/// service peer.
const PROTOCOLS: [&str; 9] = [
    "/vac/waku/relay/2.0.0",
    "/vac/waku/filter-subscribe/2.0.0-beta1",
    "/vac/waku/filter-push/2.0.0-beta1",
    "/vac/waku/store-query/3.0.0",
    "/vac/waku/store/2.0.0-beta4",
    "/vac/waku/lightpush/3.0.0",
    "/vac/waku/lightpush/2.0.0-beta1",
    "/vac/waku/peer-exchange/2.0.0-alpha1",
    "/vac/waku/reconciliation/1.0.0",
];

pub(super) fn routes(allowed: bool) -> Router<Arc<WakuNode>> {
    if !allowed {
        let away = async || {
            RestAnswer::words(
                StatusCode::NOT_FOUND,
                "/admin endpoints are not available; [waku] rest_admin = true opens them\n",
            )
        };
        return Router::new().route("/admin/{*rest}", axum::routing::any(away));
    }
    Router::new()
        .route(
            "/admin/v1/peers",
            get(async |waku: WakuState| list(&waku, |_| true).await).post(connect),
        )
        .route("/admin/v1/peer/{id}", get(one))
        .route(
            "/admin/v1/peers/service",
            get(async |waku: WakuState| list(&waku, |peer| offered(peer).next().is_some()).await),
        )
        .route(
            "/admin/v1/peers/connected",
            get(async |waku: WakuState| list(&waku, is_connected).await),
        )
        .route("/admin/v1/peers/connected/on/{shard}", get(connected_on))
        .route("/admin/v1/peers/relay", get(async |waku: WakuState| on_shards(&waku, relay).await))
        .route("/admin/v1/peers/relay/on/{shard}", get(relay_on))
        .route("/admin/v1/peers/mesh", get(async |waku: WakuState| on_shards(&waku, mesh).await))
        .route("/admin/v1/peers/mesh/on/{shard}", get(mesh_on))
        .route("/admin/v1/peers/stats", get(stats))
        .route(
            "/admin/v1/filter/subscriptions",
            get(async |State(waku): WakuState| subscriptions(&waku)),
        )
}

/// Lists the peers with subscriptions, in nwaku's format.
fn subscriptions(waku: &WakuNode) -> RestAnswer {
    let Some(all) = waku.subscriptions() else {
        return RestAnswer::refused("Error: Filter Protocol is not mounted to the node");
    };
    let criterion = |criterion: &(String, Arc<str>)| {
        let (pubsub, content) = criterion;
        json!({ "pubsubTopic": pubsub, "contentTopic": **content })
    };
    let peers = all.iter().map(|(peer, topics)| {
        let criteria: Vec<Value> = topics.iter().map(criterion).collect();
        json!({ "peerId": peer, "filterCriteria": criteria })
    });
    RestAnswer::json(Value::from(peers.collect::<Vec<_>>()).to_string())
}

/// Selects shards of a peer: its subscribed shards ([`relay`]), or the shards of its [`mesh`].
type PeerShards = fn(&PeerStatus) -> &[u16];

fn relay(peer: &PeerStatus) -> &[u16] {
    &peer.shards
}

fn mesh(peer: &PeerStatus) -> &[u16] {
    &peer.mesh
}

fn is_connected(peer: &PeerStatus) -> bool {
    peer.connectivity == PeerConnectivity::Connected
}

/// Returns the protocols among [`PROTOCOLS`] that a peer offers.
fn offered(peer: &PeerStatus) -> impl Iterator<Item = &'static str> {
    PROTOCOLS.into_iter().filter(|name| peer.protocols.iter().any(|offered| offered == name))
}

async fn peers(waku: &WakuNode) -> Vec<PeerStatus> {
    waku.peers().await.unwrap_or_default()
}

/// Encodes a peer in nwaku's format.
fn json_of(peer: &PeerStatus) -> Value {
    let connected = match peer.connectivity {
        PeerConnectivity::Connected => "Connected",
        PeerConnectivity::NotConnected => "NotConnected",
        PeerConnectivity::CannotConnect => "CannotConnect",
    };
    json!({
        "multiaddr": peer.addr,
        "protocols": peer.protocols,
        "shards": peer.shards,
        "connected": connected,
        "agent": peer.agent,
        "origin": if peer.is_configured { "Static" } else { "UnknownOrigin" },
    })
}

async fn list(waku: &WakuNode, wanted: impl Fn(&PeerStatus) -> bool) -> RestAnswer {
    let peers = peers(waku).await;
    let list: Vec<Value> = peers.iter().filter(|peer| wanted(peer)).map(json_of).collect();
    RestAnswer::json(Value::from(list).to_string())
}

async fn one(State(waku): WakuState, Path(id): Path<String>) -> RestAnswer {
    match peers(&waku).await.iter().find(|peer| peer.id == id) {
        Some(peer) => RestAnswer::json(json_of(peer).to_string()),
        None => RestAnswer::words(StatusCode::NOT_FOUND, "no peer with this id is known"),
    }
}

/// Encodes a shard with its peers. The peers' scores are 0, because this node does not score peers.
fn on_shard(peers: &[PeerStatus], shard: u16, of: PeerShards) -> Value {
    let there = peers.iter().filter(|peer| of(peer).contains(&shard)).map(|peer| {
        let mut json = json_of(peer);
        json["score"] = json!(0.0);
        json
    });
    json!({ "shard": shard, "peers": there.collect::<Vec<_>>() })
}

async fn on_shards(waku: &WakuNode, of: PeerShards) -> RestAnswer {
    let peers = peers(waku).await;
    let all = waku.config.shards.iter().map(|shard| on_shard(&peers, *shard, of));
    RestAnswer::json(Value::from(all.collect::<Vec<_>>()).to_string())
}

fn shard(text: &str) -> Result<u16, RestAnswer> {
    text.parse().map_err(|_| RestAnswer::refused("Invalid shardId: it is a number below 65536"))
}

async fn connected_on(State(waku): WakuState, Path(text): Path<String>) -> RestAnswer {
    match shard(&text) {
        Ok(shard) => list(&waku, |peer| is_connected(peer) && peer.shards.contains(&shard)).await,
        Err(refused) => refused,
    }
}

async fn relay_on(State(waku): WakuState, Path(text): Path<String>) -> RestAnswer {
    one_shard(&waku, &text, relay).await
}

async fn mesh_on(State(waku): WakuState, Path(text): Path<String>) -> RestAnswer {
    one_shard(&waku, &text, mesh).await
}

async fn one_shard(waku: &WakuNode, text: &str, of: PeerShards) -> RestAnswer {
    match shard(text) {
        Ok(shard) => RestAnswer::json(on_shard(&peers(waku).await, shard, of).to_string()),
        Err(refused) => refused,
    }
}

/// Returns statistics under nwaku's names.
async fn stats(State(waku): WakuState) -> RestAnswer {
    let peers = peers(&waku).await;
    let count = |of: &dyn Fn(&PeerStatus) -> bool| peers.iter().filter(|peer| of(peer)).count();
    let connectivity = |wanted: PeerConnectivity| count(&|peer| peer.connectivity == wanted);
    let by_shard = |of: PeerShards, total: &str| {
        let shards = &waku.config.shards;
        let counted = |shard: &u16| (shard.to_string(), json!(count(&|p| of(p).contains(shard))));
        let mut all: Map<String, Value> = shards.iter().map(counted).collect();
        // nwaku also uses this name for the number of shards.
        all.insert(total.into(), json!(shards.len()));
        all
    };
    let by_protocol: Map<String, Value> = PROTOCOLS
        .iter()
        .map(|name| {
            let has = |peer: &PeerStatus| peer.protocols.iter().any(|offered| offered == name);
            ((*name).to_owned(), json!(count(&has)))
        })
        .collect();
    let stats = json!({
        "Sum": { "Total peers": peers.len() },
        "By Connectedness": {
            "Connected": connectivity(PeerConnectivity::Connected),
            "NotConnected": connectivity(PeerConnectivity::NotConnected),
            "CannotConnect": connectivity(PeerConnectivity::CannotConnect),
            "CanConnect": 0,
        },
        "Relay peers": by_shard(relay, "Total relay peers"),
        "Mesh peers": by_shard(mesh, "Total mesh peers"),
        "By Protocols": by_protocol,
    });
    RestAnswer::json(stats.to_string())
}

/// Connects to peers, one after another, up to the first failure. Peers that disconnect later are
/// not dialled again.
async fn connect(State(waku): WakuState, body: Bytes) -> RestAnswer {
    let addrs: Vec<String> = match serde_json::from_slice(&body) {
        Ok(addrs) => addrs,
        Err(error) => return RestAnswer::refused(format!("Failed to decode request: {error}")),
    };
    for (at, addr) in addrs.iter().enumerate() {
        match waku.connect(addr).await {
            Ok(()) => {}
            Err(NoPeerAnswer::Address(fault)) => {
                return RestAnswer::refused(format!("Couldn't parse remote peer info: {fault}"));
            }
            Err(_) => {
                return RestAnswer::refused(format!(
                    "Failed to connect to peer at index: {at} - {addr}"
                ));
            }
        }
    }
    RestAnswer::ok()
}
