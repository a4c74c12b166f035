//! How operators and programs on the same machine reach a running server.

mod clients;
pub mod control;
mod control_error;
mod exchange;
mod fds;
mod feed;
pub(crate) mod handover;
mod hold;
pub(crate) mod http;
pub(crate) mod process;
pub(crate) mod prometheus;
mod protocol;
pub(crate) mod reload;
mod request_error;
pub(crate) mod served;
mod shelf_stats;
mod socket;
pub(crate) mod subscribed;
mod successor;
pub(crate) mod takeover;
pub(crate) mod takeover_parties;
