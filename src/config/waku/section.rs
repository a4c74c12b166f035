//! The network's section of the configuration file, and the construction of the Waku node.

use std::sync::Arc;

use hark_server::shelf;
use hark_server::waku::NodeService;

use crate::config::bounds::{ANY, DAYS, MESSAGE, SECONDS};
use crate::config::doors::DoorFacts;
use crate::config::network_setup::{NetworkService, NetworkSetup, ShelfConfig};
use crate::config::setting::{Setting, SettingsSection, settings};
use crate::config::setting_type::SettingType;
use crate::config::values::Config;

/// The configuration and setup of the network.
pub(in crate::config) const SETUP: NetworkSetup = NetworkSetup {
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
pub(in crate::config) const SECTION: SettingsSection = SettingsSection {
    name: "waku",
    doc: "A store of Waku messages in the same process as the relay, with a separate shelf.",
    settings: settings! {
        "serve" waku.serve: "Whether the node runs.";
        "preset" waku.preset: "Network to join: status.prod, logos.test, logos.dev or twn. A preset replaces the defaults of cluster,\nshards_in_cluster, shards, message_bytes_max, entry_nodes and discovered_max. If you set one of these settings,\nyour value overrides the preset's value. Empty: no preset.";
        "rest" waku.rest: "Address and port of nwaku's REST API, or a list; /openapi.json describes the API. Empty: no REST API. Anyone who\nreaches the API may publish if the node forwards messages.";
        "rest_allow_origin" waku.access.web.allow_origin: "Origins of web pages that may use the REST API, as in nwaku's --rest-allow-origin: [\"http://localhost:*\",\n\"app.example\"]. \"*\": all. Requests of other pages are refused, because a browser lets any page send requests to\nany address.";
        "rest_hosts" waku.access.web.hosts: "Host names of the REST API, in addition to localhost and IP addresses, e.g. [\"waku.example\"]. A request to\nanother name is refused, because a web page can make its own name point to this address. \"*\": any name.";
        "rest_any_peer" waku.access.any_peer: "Whether peerAddr in a request may name any address. If false, peerAddr may name only configured or connected peers\nand public addresses.";
        "rest_admin" waku.access.admin: "Whether the REST API has /admin/v1, which lists peers and connects to others. Anyone who reaches the API may use\n/admin/v1.";
        "listen" waku.listen: "Addresses on which peers connect (libp2p): /ip4/0.0.0.0/tcp/60000 and, for browsers, /ip4/0.0.0.0/tcp/8000/wss\n(or /tls/ws) with the certificate in [tls], or /ip4/127.0.0.1/tcp/8000/ws for a proxy with a certificate. Empty: none. The node's key, by which peers know the node, is in waku.key in the archive's directory.";
        "announce" waku.announce: "Further addresses of the node that are announced to peers, such as the address of a proxy for browsers, e.g.\n[\"/dns4/node.example/tcp/443/wss\"]. If this list has no secure WebSocket, the node announces the secure WebSockets\nin listen by the names of the certificate.";
        "entry_nodes" waku.entry_nodes: "Nodes through which the node joins its network; a preset sets this list. An entry is an address, a node record\n(enr:…) or a list of nodes in the DNS (enrtree://KEY@DOMAIN). The node stays connected with nodes that are listed\nby address or record. It accepts missed messages from peers and stores, but not from entry nodes.";
        "discovered_max" waku.discovered_max [0, 1_000]: "Maximum number of discovered nodes to which the node connects and stays connected. Nodes are discovered by lists in\nthe DNS, by the peer exchange and by discv5. 0: the node connects only to configured nodes. A preset sets 12, and\ntwn 0.";
        "peer_exchange" waku.peer_exchange: "Whether the node takes part in the peer exchange, by which nodes and browsers find further nodes. The node sends the\nrecords of nodes that it has reached, and its own record.";
        "discv5" waku.discv5: "Address and UDP port of discv5, a table of nodes by which nodes of all networks of Waku find each other, e.g.\n\"0.0.0.0:9000\". The records (enr:…) in entry_nodes are the first known nodes of the table. Empty: no discv5.";
        "discover_private" waku.discover_private: "Whether discovered nodes may have addresses of this machine and of private networks, for a network without public\naddresses. The node's own record then has such addresses as well.";
        "dns_servers" waku.dns_servers: "DNS servers for lists of nodes, e.g. [\"9.9.9.9\", \"127.0.0.1:5353\"]. Empty: the system's servers.";
        "peers" waku.peers: "Peers with which the node stays connected, by address or node record, e.g.\n[\"/dns4/node.example/tcp/60000/p2p/16Uiu2…\", \"enr:-QE…\"].";
        "stores" waku.stores: "Peers with a store, from which the node fetches missed messages. The node stays connected with these peers, too.";
        "resume_max_s" waku.resume_max_s [0, SECONDS]: "Maximum age of missed messages that are fetched, in seconds.";
        "sync_every_s" waku.sync_every_s [0, SECONDS]: "Seconds between two comparisons with each of the stores (Waku Store Sync), in which both sides receive the messages\nthat they lack. 0: no comparisons.";
        "sync_range_s" waku.sync_range_s [0, SECONDS]: "Length of the compared time span, in seconds.";
        "sync_jitter_s" waku.sync_jitter_s [0, SECONDS]: "Seconds by which the compared time span ends before now, because younger messages may still be in transit.";
        "connections_max" waku.connections_max [0, u32::MAX as u64]: "Maximum number of connections at a time with peers that the configuration does not name. Further connections are\nclosed. Connections with configured peers are always accepted.";
        "connections_per_address_max" waku.connections_per_address_max [0, ANY]: "Maximum number of connections that peers at one address (of IPv6, of its first 64 bits) have opened. Further\nconnections are closed.";
        "cluster" waku.cluster [0, u16::MAX as u64]: "Cluster whose messages are stored: 1 is The Waku Network, 16 is Status.";
        "shards_in_cluster" waku.shards_in_cluster [1, u16::MAX as u64]: "Number of shards in the cluster. The shard of a message that names only a content topic depends on this number.";
        "shards" waku.shards: "Shards of the cluster that are served. Some nodes (rust-libp2p, Hark up to 0.1) ignore a node that serves more\nthan 100 shards.";
        "forward" waku.forward: "Whether messages are relayed to peers and may be published: always, never or auto. auto means always, except on\ncluster 1, where each message needs a rate-limit proof (RLN) and Hark relays no messages. There Hark checks the\nform, epoch and nullifier of proofs, but neither verifies nor makes proofs. Peers disconnect a node that relays a\nmessage with a false proof. With always, no message needs a proof.";
        "protected_shards" waku.protected_shards live: "Shards on which only messages signed by the shard's key are accepted (nwaku's --protected-shard), e.g.\n[\"32:02…\"].";
        "message_bytes_max" waku.message_bytes_max [1, MESSAGE]: "Maximum size of a message in bytes. Larger messages are refused.";
        "window_s" waku.window_s [0, SECONDS] live: "Seconds by which the time of a published message may differ from the current time. 0: any time.";
        "queries" waku.queries [0, ANY] live: "How fast peers and clients of the REST API at one address may send queries: [number a minute, number at once\nafter a pause]. Faster queries are answered with status 429. [0, 0]: no limit.";
        "query_rows_max" waku.query_rows_max [1, ANY] live: "Maximum number of rows that a query may visit. A query that would visit more rows is refused.";
        "filter_peers_max" waku.filter_peers_max [0, ANY] live: "Maximum number of peers that subscribe to new messages (filter). Further peers are answered with status 503.";
        "filter_requests" waku.filter_requests [0, ANY] live: "How fast a peer may send requests to subscribe: [number a minute, number at once after a pause]. Faster requests\nare answered with status 429. [0, 0]: no limit.";
        "light_pushes" waku.light_pushes [0, ANY] live: "How fast peers and clients of the REST API at one address may publish by light push: [number a minute, number at\nonce after a pause]. Faster messages are answered with status 429. [0, 0]: no limit.";
        "retention" waku.retention live: "Limits on the stored messages, in nwaku's format: time:SECONDS, size:10GB or capacity:MESSAGES. Several limits are\nseparated by ; and all of them apply. Empty: all messages are kept. [retention] sets how often messages are\ndeleted, and how many at once.";
        "part_days" waku.part_days [1, DAYS]: "Days that one part of the tables in PostgreSQL covers. The number is fixed when the tables are created.";
    },
};

fn serve(config: &Config, shelf: shelf::ShelfOptions, at: &DoorFacts<'_>) -> NetworkService {
    let mut node = config.waku.node(at);
    node.preset = config.selected_preset();
    let settings = Arc::clone(&node.settings);
    NetworkService {
        network: Box::new(NodeService { config: node, shelf }),
        reload: Box::new(move |config| settings.store(Arc::new(config.waku.settings()))),
    }
}
