//! The list of open connections, with the client of each connection and the client's work. An
//! operator reads the list with `hark clients`, and closes connections with `hark kick`.
//! Refused messages and slow questions are logged with the address of their client.
//!
//! A connection counts in its own atomic counters. Each page of the list is copied under a short
//! lock, so no connection waits for a reader of the list.

mod connection;
mod lines;
mod list;
mod pattern;
mod refusals;
mod serving;
mod shown;

pub(crate) use connection::{ConnectionForm, KEYS_MAX, KeyName, OpenConnection};
pub(crate) use lines::{AddressLines, LogBudget};
pub(crate) use list::{Roster, RosterEntry};
pub(crate) use pattern::{ConnectionPattern, UnclearPattern, is_listed};
pub(crate) use refusals::ClientRefusal;
#[cfg(feature = "libp2p")]
pub(crate) use serving::serve_now;
pub(crate) use serving::{
    CountedStream, charge_rows, count_accepted, count_question, count_refusal, find_rates, serving,
    while_serving,
};
pub use shown::AddressPrivacy;
