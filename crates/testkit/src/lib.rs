//! For tests and benches only: random records and queries, the contract every store must keep, a
//! disk that loses what was not synced, a throwaway PostgreSQL and Citus, Hark's binary whose log is
//! watched for panics, and an allocator that counts.

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
