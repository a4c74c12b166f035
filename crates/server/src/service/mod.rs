//! The service behind the doors of a network: `intake` stores records, and `questions` finds pages
//! of records. A door implements only its protocol. Bounds, rates, slow log and metrics are the
//! same for every door.
//!
//! - `intake`: bounded writes. The total size of the records that are not durable yet is bounded,
//!   and a new record waits until it fits. The record is durable before its sender gets an answer.
//! - `questions`: each question counts towards the rates of its source. Its search may visit a
//!   fixed number of rows at once; a search that needs more rows waits in a fair queue (`turns`).
//!   Slow questions are logged (`slow`).
//!
//! `answers.rs` bounds the pages that clients have not read yet, for all services together.
//!
//! The door of a network without rules of its own stores and queries records with `plain`, and
//! passes new records to its clients with `live`.
//!
//! The relay uses the slow log of the service. Its own intake verifies signatures, and its own
//! readers and outboxes serve many questions of one connection at a time.

mod intake;
mod live;
mod open;
mod plain;
mod plain_figures;
mod questions;
mod slow;
mod turns;

pub use intake::IntakeBounds;
pub(crate) use intake::{Archived, NotStored, SubmittedRecord};
pub use live::{LiveReceiver, LiveRecords};
pub use open::Service;
pub use plain::{RecordPage, ServiceRefusal};
pub(crate) use questions::TooManyQuestions;
pub(crate) use slow::{SearchCost, SlowLog};
pub(crate) use turns::NotAsked;
pub use turns::StoreLocation;
#[cfg(feature = "libp2p")]
pub(crate) use turns::TurnAnswer;
