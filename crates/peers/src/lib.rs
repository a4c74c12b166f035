//! The client of other relays, used by `hark sync`, `hark stream` and `hark router`.
//!
//! Read the modules in this order: `address`, `connection` and `frames` (a WebSocket to a relay),
//! `message` (a relay's messages), `route` (passing answers to their requests), `link` and `tasks`
//! (the state and the two tasks of a connection), `request` and `client`. Next come the users of
//! requests: `window` and `compare` (NIP-77), `page` (for relays that do not compare), `fetch`,
//! `upload`. `intake` checks events on all cores and passes them to a writer. `sync` exchanges
//! events once, and `stream` continuously.
//!
//! Relays are not trusted: everything that a relay sends is bounded, checked and counted, and no
//! relay can make a command wait forever.

mod address;
mod client;
mod clock;
mod compare;
mod connection;
mod error;
mod feed;
mod fetch;
mod frames;
mod intake;
mod link;
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
mod tasks;
mod tls;
mod upload;
mod window;
mod withheld;

pub use address::RelayAddress;
pub use client::PeerClient;
pub use error::PeerError;
pub use feed::LocalFeed;
pub use intake::{
    EventIntake, EventRules, EventWriter, IntakeOptions, IntakeQueue, RequestRule, RuleRefusal,
    StoredListener, WriteOutcome,
};
pub use link::ClientOptions;
pub use local::LocalEnd;
pub use meter::{ReasonCounts, SyncMeter, SyncTotals};
pub use plugin::{EventPlugin, PluginSource};
pub use status::StreamStatus;
pub use stream::{RelayStream, SnapshotOpener, StreamEnds, StreamOptions};
pub use sync::{Direction, SyncOptions, SyncReport, sync};
