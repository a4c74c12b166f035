//! Tools for tests and benchmarks only: random records and queries, the contract of every store,
//! and a disk that loses unsynced changes. Also a PostgreSQL server and a Citus cluster for tests,
//! and an allocator that counts allocations.
//!
//! Tests of the binary share one harness: [`program`] runs Hark's binary and fails on panics in the
//! log, [`server`] starts the binary as a server, [`folder`] makes temporary directories, [`http`]
//! and [`websocket`] are clients, [`nostr`] makes events, and [`wait`] waits for conditions.

pub mod allocations;
pub mod citus;
pub mod clock;
pub mod contract;
pub mod deflate;
pub mod digits;
pub mod disk;
pub mod embedded;
pub mod events;
pub mod folder;
pub mod generator;
pub mod hidden;
pub mod http;
#[cfg(feature = "devp2p")]
pub mod mail;
#[cfg(feature = "manual")]
pub mod manual;
#[cfg(feature = "nodes")]
pub mod node_list;
pub mod nostr;
pub mod pooler;
pub mod postgres;
pub mod program;
pub mod random;
pub mod runs;
pub mod sentences;
pub mod server;
pub mod skipped;
pub mod tombstones;
#[cfg(feature = "toy")]
#[allow(missing_docs)] // the file shows how short a network can be
pub mod toy;
pub mod wait;
pub mod websocket;
