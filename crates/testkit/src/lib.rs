//! For tests and benches only: random records and queries, the contract every store must keep, and a
//! disk that loses what was not synced.

pub mod contract;
pub mod disk;
pub mod events;
pub mod random;
