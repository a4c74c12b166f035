//! Tools for tests and benches only: random records and queries, the contract of every store, and a
//! disk that loses unsynced changes. Also a throwaway PostgreSQL and Citus, a runner for Hark's
//! binary that fails on panics in the log, and an allocator that counts.

pub mod allocations;
pub mod citus;
pub mod contract;
pub mod deflate;
pub mod disk;
pub mod events;
pub mod hidden;
#[cfg(feature = "devp2p")]
pub mod mail;
pub mod postgres;
pub mod program;
pub mod random;
pub mod sentences;
pub mod skipped;
pub mod tombstones;
#[cfg(feature = "toy")]
#[allow(missing_docs)] // the file is to show how short a network can be
pub mod toy;
