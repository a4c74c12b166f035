//! The doors: connections in, messages to questions, records out. All that is async lives here; the
//! archive behind it does not know it.
//!
//! Read in this order: `server` (a server's life), `shelf` and `door` (what every network gets, and what
//! each must bring), then a network's folder; `admin` is how the machine's own people and programs reach
//! a running server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use hark_archive::limits::Limits;
use ipnet::IpNet;

mod address;
mod admin;
mod bell;
mod budget;
mod clients;
mod connections;
pub mod door;
mod http;
pub mod listener;
pub mod metrics;
pub mod nostr;
mod patience;
mod permits;
pub mod ranges;
mod rate;
mod server;
mod settings;
pub mod shelf;
mod slow;
pub mod stop;
mod vital;
pub mod waku;
pub mod websocket;
pub mod words;

pub use address::Proxies;
pub use admin::control;
use admin::control::WriteLock;
pub use clients::{Addresses, Clients};
pub use server::{ServeError, Server};
pub use settings::{Reload, Settings};
pub use shelf::Shelf;
pub use vital::vital;

/// How a server runs, whatever it serves.
#[derive(Clone, Default)]
pub struct Config {
    /// Whose word about clients behind them is taken.
    pub proxies: Proxies,
    /// Where `control.sock` goes, if other processes may hand over writes.
    pub control: Option<PathBuf>,
    /// The archive's lock, where another process can take it over.
    pub lock: Option<Arc<dyn WriteLock>>,
    /// Who may read `/metrics`, and where else it is served.
    pub metrics: MetricsDoor,
    /// Every bound. Can change while the server runs.
    pub limits: Limits,
    /// Whose connections are taken. Can change while the server runs.
    pub addresses: Addresses,
    /// No rate limits, and no bound on the connections of an address: for tests and benches.
    pub unlimited: bool,
}

/// Who may read `/metrics`, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsDoor {
    /// An address of their own for `/metrics` and `/healthz`. No other door then has them.
    pub listen: Option<SocketAddr>,
    /// Addresses that may read `/metrics`.
    pub allow: Vec<IpNet>,
}

impl Default for MetricsDoor {
    fn default() -> Self {
        Self { listen: None, allow: ranges::LOOPBACK.to_vec() }
    }
}
