//! The libp2p interface: gossip receives and sends messages, and streams send history.
//!
//! One task drives all connections (`task`). Each gossip message and each stream is handled by a
//! task of its own. The number of these tasks is bounded.
//!
//! `swarm` sets up the connections, `secure_web` and `secure_dial` those of secure WebSockets, and
//! `admission` decides which connections are admitted. `web` bounds the messages of WebSockets, and
//! `yamux` and `mplex` divide a connection into streams. `own_addresses` has the addresses that
//! others learn.
//!
//! `relayed` handles gossip messages. `incoming` accepts streams, `outgoing` opens streams, and
//! `frame` reads and writes their frames. `store`, `metadata`, `filter`, `light_push`, `sync`,
//! `transfer` and `exchange` are the served protocols. `subscribers` holds the subscriptions of
//! filter clients, and `push` sends new messages to these clients. `peers` holds the peers to dial,
//! `discovery` finds further nodes, and `served` holds the topics whose gossip is read. `handle` is
//! the interface for the rest of the node.

mod addr;
mod admission;
mod ask;
mod behaviour;
mod config;
mod criteria;
mod discovery;
mod error;
mod exchange;
mod filter;
mod frame;
mod gossip;
mod handle;
mod incoming;
mod key;
mod known;
mod light_push;
mod metadata;
mod mplex;
mod outgoing;
mod own_addresses;
mod own_messages;
mod patience;
mod peers;
mod push;
mod reach;
mod reconcile;
mod relayed;
mod requests;
mod secure_dial;
mod secure_web;
mod sent;
mod served;
mod shuffle;
mod store;
mod subscribers;
mod swarm;
pub(super) mod sync;
mod sync_fault;
mod task;
mod tls_peer_stream;
mod transfer;
mod watched;
mod web;
mod yamux;

pub(super) use addr::id as peer_id;
pub use config::{P2pConfig, SyncPlan, addresses, fault, is_list, is_secure_web, list_fault};
pub(super) use discovery::run as find_nodes;
pub use discovery::{DiscoveryConfig, NodeListUrl, RecordFault, TreeFault};
pub(super) use error::AskFault;
pub use error::NetworkError;
pub(super) use handle::NetworkHandle;
pub use key::KeyError;
pub(super) use subscribers::FilterSubscribers;
pub(super) use task::NetworkTask;

#[cfg(test)]
mod tests;
