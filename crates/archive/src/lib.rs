//! The engine between the code for the protocols (the *doors*) and the stores. All networks share
//! one record format, one query type, one planner and one store interface. The crate uses threads
//! and channels, but no sockets, no protocol text and no async runtime.
//!
//! Read in this order: [`query`] (what a query can express), [`store`] (the interface of a store),
//! [`effects`] (the effects of a record on earlier records), [`writer`] (group commit).
#![doc = include_str!("../README.md")]

pub mod blocking;
pub mod clock;
pub mod copy;
pub mod effects;
pub mod limits;
pub mod live;
pub mod meter;
pub mod mirror;
pub mod query;
pub mod resumed;
pub mod retention;
pub mod store;
pub mod vital;
pub mod writer;

pub use hark_codec::record::{Id, Key, LabelPosition, Labels, Record, RecordError, RecordHeader};
pub use query::{Gate, LabelSet, Order, Position, Query, TextSource, WordCondition};
pub use store::{
    CommitError, CommitResult, Outcome, Search, SearchError, SearchProgress, Store, Write,
};
