//! The engine between the doors and the disk: one record, one query, one planner, one store
//! interface. Synchronous: threads and channels, no sockets, no protocol text, no async runtime.
//!
//! Read in this order: [`query`] (what a query can express), [`store`] (the interface of a store),
//! [`admission`] (what a record does to the records before it), [`writer`] (group commit).

pub mod admission;
pub mod clock;
pub mod copy;
pub mod limits;
pub mod live;
pub mod meter;
pub mod mirror;
pub mod query;
pub mod retention;
pub mod store;
pub mod vital;
pub mod writer;

pub use hark_codec::record::{Head, Id, Key, Labels, Place, Record, RecordError};
pub use query::{Gate, LabelSet, Order, Position, Query};
pub use store::{CommitError, Committed, Outcome, Progress, Search, SearchError, Store, Write};
