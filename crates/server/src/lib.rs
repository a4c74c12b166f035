//! The doors: they accept connections, translate messages into questions, and send records. All
//! async code is in this crate; the archive is not async.
//!
//! Suggested reading order: `server` (a server's life cycle), `shelf` (a network's part of the
//! archive), `service` (the bounds and metrics of every door), `door` (the traits that each network
//! implements), then a network's folder. Operators and programs on the same machine reach a running
//! server through `admin`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

mod address;
mod admin;
mod answers;
mod blocking;
mod budget;
mod clients;
mod connections;
pub mod door;
mod error;
pub mod growth;
pub mod hosts;
mod http;
mod key_file;
mod last_answer;
pub mod limits;
mod listen_address;
pub mod listener;
pub mod metrics;
pub mod moderation;
pub mod nostr;
mod page_faults;
mod patience;
mod permits;
mod public_address;
pub mod ranges;
mod rate;
mod reload;
mod rest;
mod roster;
mod runtime;
mod server;
pub mod service;
mod settings;
pub mod shelf;
mod sockets;
pub mod stop;
mod stream;
pub mod tls;
pub mod unix_socket;
mod vital;
pub mod waku;
pub mod websocket;
pub mod whisper;
pub mod words;

pub use address::{AddressLists, Proxies};
pub use admin::http::MetricsDoor;
use admin::takeover_parties::TakeoverLock;
pub use clients::Clients;
pub use error::ServeError;
use limits::Limits;
pub use listen_address::{ListenAddress, ListenAddressFault};
pub use rate::{ListedClients, RateFactor, RateGroup, RateGroups, RateName, TrustedKeys};
pub use reload::{ReloadError, ReloadHandle, ReloadRequest};
pub use rest::WebAccess;
pub use roster::AddressPrivacy;
pub use server::Server;
pub use service::StoreLocation;
pub use settings::{LimitsConflict, Settings, SettingsHandle};
pub use shelf::Shelf;
use tls::TlsOptions;
pub use vital::vital;

/// The control socket, by which other processes write to a running server, and takeovers.
pub mod control {
    pub use crate::admin::control::*;
    pub use crate::admin::takeover::Takeover;
    pub use crate::admin::takeover_parties::{
        Handover, HandoverError, TakeoverLock, TakeoverState, WriteClaim,
    };
}

/// The configuration of a server, independent of its networks.
#[derive(Clone, Default)]
pub struct ServerConfig {
    /// The version of the program for `/metrics`; `None` for the version of this crate.
    pub version: Option<&'static str>,
    /// Proxies that are trusted to name their clients.
    pub proxies: Proxies,
    /// The path of `control.sock`, if other processes may send their writes.
    pub control: Option<PathBuf>,
    /// The archive's lock, if another process can take over the archive.
    pub lock: Option<Arc<dyn TakeoverLock>>,
    /// The addresses that may read `/metrics`, and the address that serves this page.
    pub metrics: MetricsDoor,
    /// The certificate of the doors. `None` if no door speaks TLS.
    pub tls: Option<TlsOptions>,
    /// All limits. Can change while the server runs.
    pub limits: Limits,
    /// The addresses whose connections are accepted. Can change while the server runs.
    pub addresses: AddressLists,
    /// The clients and kinds with rates of their own. Can change while the server runs.
    pub rate_groups: RateGroups,
    /// Questions slower than this are logged. Can change while the server runs.
    pub slow_question: Option<Duration>,
    /// A client is logged once this number of its messages and connections were refused within a
    /// minute. Can change while the server runs.
    pub refusals_from: Option<u64>,
    /// How logs and lists show the addresses of clients. Can change while the server runs.
    pub addresses_shown: AddressPrivacy,
    /// Time without progress after which `/healthz` reports that the mirror is stuck. Can change
    /// while the server runs.
    pub mirror_stuck_after: Option<Duration>,
    /// Disables the rate limits and the bound on connections per address, for tests and benchmarks.
    pub unlimited: bool,
}
