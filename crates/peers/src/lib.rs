//! The client of other relays: what `hark sync`, `hark stream` and `hark router` are made of.
//!
//! Read in this order: `address`, `connection` and `frames` (a WebSocket to a relay), `message` (what a relay
//! says), `client`, `request` and `route` (requests, and which answer belongs to which), then what is done with them:
//! `compare` (NIP-77), `page` (what is done where a relay does not compare), `fetch`, `upload`.
//! `intake` checks events on all cores and has them written. `sync` puts these together once,
//! `stream` keeps doing it.
//!
//! A relay is a stranger: whatever it sends is bounded, checked and counted, and none of it can make
//! a command wait for ever.

mod address;
mod client;
mod compare;
mod connection;
mod error;
mod feed;
mod fetch;
mod frames;
mod intake;
mod local;
mod message;
mod meter;
mod page;
mod plugin;
mod request;
mod route;
mod status;
mod stream;
mod sync;
mod tls;
mod upload;

pub use address::RelayAddress;
pub use client::{ClientOptions, PeerClient};
pub use error::PeerError;
pub use feed::LocalFeed;
pub use intake::{
    EventIntake, EventRules, EventWriter, IntakeOptions, IntakeQueue, StoredListener, WriteOutcome,
};
pub use meter::{ReasonCounts, SyncMeter, SyncTotals};
pub use plugin::EventPlugin;
pub use status::StreamStatus;
pub use stream::{RelayStream, SnapshotOpener, StreamEnds, StreamOptions};
pub use sync::{Direction, LocalEnd, SyncOptions, SyncReport, sync};
