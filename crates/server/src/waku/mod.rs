//! The Waku node: REST and gossip accept messages; REST and `/vac/waku/store-query/3.0.0` serve
//! history.
//!
//! `config` is the configuration, `node` the state, and `door` opens and serves both interfaces:
//! `rest` by HTTP, and `p2p` by libp2p. Both pass messages to `WakuNode::accept_message` in
//! `intake`, and requests to `WakuNode::page` in `history`. `hark_networks::waku` decides which
//! messages are accepted, and turns requests into queries and pages.

mod arriving;
mod config;
mod door;
mod history;
mod intake;
pub mod metrics;
mod neighbours;
mod node;
mod notifier;
mod nullifiers;
#[cfg(feature = "libp2p")]
pub mod p2p;
mod peer_status;
mod poll;
mod prometheus;
mod publish;
mod report;
mod rest;
#[cfg(feature = "libp2p")]
mod resume;
mod value_histogram;

pub use config::{
    NodeConfig, NodeSettings, RestAccess, SelectedPreset, SharedNodeSettings, can_forward, shared,
};
pub use door::NodeService;
pub use poll::TOPICS_MAX as SHARDS_MAX;
