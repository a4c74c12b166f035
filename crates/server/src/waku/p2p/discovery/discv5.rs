//! Finds nodes by discv5 with Waku's protocol id (RFC 33/WAKU2-DISCV5). discv5 is a table of nodes,
//! distributed over all nodes and queried by UDP.
//!
//! Nodes of all clusters are in one table. A query returns only records of nodes in this node's
//! cluster. These records are treated like the records of the peer exchange.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use discv5::{ConfigBuilder, Discv5, Enr, ListenConfig, ProtocolIdentity};
use enr::{CombinedKey, NodeId};

use super::add::add;
use super::config::DiscoveryConfig;
use super::directory::NodeDirectory;
use super::record::{NodeRecord, shards};
use crate::waku::metrics::NodeSource;
use crate::waku::node::WakuNode;
use crate::waku::p2p::NetworkHandle;

/// The protocol id in each packet. Ethereum's is `discv5`.
const IDENTITY: ProtocolIdentity =
    ProtocolIdentity { protocol_id: *b"d5waku", protocol_version: [0, 1] };
/// Interval between two queries. The shorter interval applies while discv5 has found fewer than
/// `FEW` nodes, but not after `FEW` queries in a row without a new node.
const QUERY_EVERY: Duration = Duration::from_mins(1);
const QUERY_EVERY_IF_FEW: Duration = Duration::from_secs(5);
const FEW: usize = 16;
/// Maximum number of nodes that a query returns.
const FOUND_MAX: usize = 16;
/// Maximum number of known nodes that are added to the table before each query.
const BOOTSTRAP_MAX: usize = 16;
/// Pause before another attempt to bind the port, which an earlier process may hold.
const BIND_RETRY: Duration = Duration::from_secs(5);

/// Queries the table again and again.
pub(super) async fn query_table(waku: &WakuNode, discovery: &DiscoveryConfig) {
    let (Some(at), Some(network)) = (discovery.discv5, &waku.network) else { return };
    let socket = bind(at).await;
    network.directory.serve_udp(socket.local_addr().ok().map(|at| at.port()));
    let mut record = None;
    let mut table: Option<Discv5> = None;
    let mut rounds = 0_usize;
    loop {
        // The table is set up anew when the addresses of this node have changed.
        let own = network.own_record().map(|own| own.encode());
        if table.is_none() || own != record {
            drop(table.take());
            table = start(&network.directory, &socket, own.as_deref(), discovery.private).await;
            record = own;
        }
        if let Some(table) = &table {
            let is_new = find(waku, network, discovery, table).await;
            rounds = if is_new { 0 } else { rounds.saturating_add(1) };
        }
        let has_few = network.directory.book.lock().count(NodeSource::Discv5) < FEW && rounds < FEW;
        tokio::time::sleep(if has_few { QUERY_EVERY_IF_FEW } else { QUERY_EVERY }).await;
    }
}

/// Binds the port. After a takeover, the earlier process holds the port until it has ended.
async fn bind(at: SocketAddr) -> UdpSocket {
    let mut is_reported = false;
    loop {
        let bound = UdpSocket::bind(at).and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match bound {
            Ok(socket) => return socket,
            Err(error) if !is_reported => {
                is_reported = true;
                tracing::warn!(%at, %error, "discv5 cannot listen ([waku] discv5); trying again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(BIND_RETRY).await;
    }
}

/// Starts the table with this node's record.
async fn start(
    directory: &NodeDirectory,
    socket: &UdpSocket,
    own: Option<&[u8]>,
    private: bool,
) -> Option<Discv5> {
    let own = <Enr as alloy_rlp::Decodable>::decode(&mut own?).ok()?;
    let key = CombinedKey::secp256k1_from_bytes(&mut directory.secret_key()).ok()?;
    let is_ipv4 = socket.local_addr().is_ok_and(|at| at.is_ipv4());
    let shared = socket.try_clone().and_then(tokio::net::UdpSocket::from_std).ok().map(Arc::new)?;
    let (ipv4, ipv6) = if is_ipv4 { (Some(shared), None) } else { (None, Some(shared)) };
    let mut config = ConfigBuilder::new(ListenConfig::FromSockets { ipv4, ipv6 });
    config.protocol_identity(IDENTITY);
    if !private {
        config.ip_limit().enable_packet_filter();
    }
    if own.ip4().is_some() || own.ip6().is_some() {
        // discv5 must not change the record's addresses, because they are configured or confirmed.
        config.disable_enr_update();
    }
    let mut table = match Discv5::new(own, key, config.build()) {
        Ok(table) => table,
        Err(error) => {
            tracing::warn!(error, "discv5 does not start");
            return None;
        }
    };
    match table.start().await {
        Ok(()) => Some(table),
        Err(error) => {
            tracing::warn!(?error, "discv5 does not start");
            None
        }
    }
}

/// Makes one query. Returns whether any found node was unknown before.
async fn find(
    waku: &WakuNode,
    network: &NetworkHandle,
    discovery: &DiscoveryConfig,
    table: &Discv5,
) -> bool {
    let configured = discovery.records.iter().filter_map(|record| record.parse::<Enr>().ok());
    let known = network.directory.book.lock().random(BOOTSTRAP_MAX);
    let known = known.iter().filter_map(|record| {
        <Enr as alloy_rlp::Decodable>::decode(&mut record.encode().as_slice()).ok()
    });
    for record in configured.chain(known) {
        if record.udp4_socket().is_some() || record.udp6_socket().is_some() {
            // Fails if the table is full.
            let _ = table.add_enr(record);
        }
    }
    let cluster = waku.config.cluster;
    let is_of_cluster =
        move |record: &Enr| shards(record).is_some_and(|shards| shards.cluster == cluster);
    let query =
        table.find_node_predicate(NodeId::random(), Box::new(is_of_cluster), FOUND_MAX).await;
    let mut is_new = false;
    for found in query.unwrap_or_default() {
        let mut bytes = Vec::new();
        alloy_rlp::Encodable::encode(&found, &mut bytes);
        if let Ok(record) = NodeRecord::decode(&bytes) {
            is_new |= add(waku, record, NodeSource::Discv5, None);
        }
    }
    is_new
}
