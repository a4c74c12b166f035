//! The doors: connections in, messages to questions, records out. All that is async lives here; the
//! archive behind it does not know it.
//!
//! Read in this order: `listen` (accept, drain), `web` (what HTTP answers), `session` (one
//! connection), `nostr` (its messages), `line` and `readers` (how answers come back without anyone
//! waiting for a slow client), `admin` (other processes).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hark_archive::clock::Clock;
use hark_archive::limits::Limits;
use hark_archive::retention::Policy;
use hark_archive::{Store, writer};
use network::Network;

mod address;
mod admin;
mod bell;
mod budget;
mod clients;
mod connections;
mod http;
mod listen;
pub mod metrics;
pub mod network;
pub mod nostr;
mod patience;
pub mod policy;
mod rate;
mod seats;
mod settings;
pub mod socket;
mod vital;
pub mod waku;
pub mod words;

pub use address::Proxies;
pub use admin::control;
use admin::control::Handover;
pub use clients::Clients;
pub use listen::{ServeError, Server};
pub use settings::{Reload, Settings};
pub use vital::vital;

/// What to serve, and how much of it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen. Port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Whose word about clients behind them is taken.
    pub proxies: Proxies,
    /// Messages of so many bytes and more are compressed for clients that offer it; 0 for nobody.
    pub deflate_from_bytes: usize,
    /// Where `control.sock` goes, if other processes may hand over writes.
    pub control: Option<PathBuf>,
    /// Who may read `/metrics`, and where else it is served.
    pub metrics: MetricsDoor,
    /// Every bound. Can change while the server runs.
    pub limits: Limits,
    /// Who may come and what may be published. Can change while the server runs.
    pub policy: policy::Policy,
    /// Time from which a question is logged as slow; none is if there is none.
    pub slow_question: Option<Duration>,
    /// Kinds that only their author and their recipients get.
    pub private_kinds: Vec<u32>,
    /// What the relay says about itself.
    pub relay: RelayInfo,
    /// What is not kept for ever.
    pub retention: Policy,
    /// Threads for what must not run on the runtime's.
    pub threads: Threads,
    /// No rate limits, and no bound on the connections of an address: for tests and benches.
    pub unlimited: bool,
}

/// Kinds that are private unless the configuration says otherwise: direct messages (NIP-04), gift
/// wraps and passing gift wraps (NIP-59).
pub const PRIVATE_KINDS: [u32; 3] = [4, 1059, 21_059];

/// Bytes of a message that are worth the time to compress them: below, most are ids, keys and
/// signatures, which hardly become shorter.
pub const DEFLATE_FROM_BYTES: usize = 1_024;

impl Config {
    /// Defaults, listening there.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            proxies: Proxies::default(),
            deflate_from_bytes: DEFLATE_FROM_BYTES,
            control: None,
            metrics: MetricsDoor::default(),
            limits: Limits::default(),
            policy: policy::Policy::default(),
            slow_question: Some(Duration::from_secs(1)),
            private_kinds: PRIVATE_KINDS.to_vec(),
            relay: RelayInfo::default(),
            retention: Policy::default(),
            threads: Threads::default(),
            unlimited: false,
        }
    }
}

/// Who may read `/metrics`, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsDoor {
    /// An address of their own for `/metrics` and `/healthz`. The relay's then has no `/metrics`.
    pub listen: Option<SocketAddr>,
    /// Addresses that may read `/metrics`.
    pub allow: Vec<Network>,
}

impl Default for MetricsDoor {
    fn default() -> Self {
        Self { listen: None, allow: network::LOOPBACK.to_vec() }
    }
}

/// What the relay says about itself (NIP-11).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayInfo {
    /// Its name.
    pub name: String,
    /// What it is for, in a sentence or two.
    pub description: String,
    /// The URL that clients reach it under: `wss://…`. Known to NIP-62 and NIP-42.
    pub url: Option<String>,
    /// Further URLs that lead here, an onion address for one. They mean this relay as `url` does, which
    /// must be set with them.
    pub other_urls: Vec<String>,
    /// The operator's key, hex.
    pub pubkey: Option<String>,
    /// How else to reach the operator.
    pub contact: Option<String>,
    /// URL of an icon.
    pub icon: Option<String>,
    /// URL of a banner.
    pub banner: Option<String>,
    /// URL of its terms.
    pub terms_of_service: Option<String>,
}

impl RelayInfo {
    /// All the URLs that are known to lead here.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.url.iter().chain(&self.other_urls).cloned()
    }
}

/// How many threads do what must not run on the runtime's. 0 takes the number of cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// Parse, hash and verify events.
    pub verify: usize,
    /// Answer questions.
    pub read: usize,
}

/// Compacts a store, online. Given lines of progress are passed on; the answer is a summary, or why
/// it failed.
pub type Compact = Arc<dyn Fn(&mut dyn FnMut(&str)) -> Result<String, String> + Send + Sync>;

/// The archive behind the doors.
#[derive(Clone)]
pub struct Shelf {
    /// The store.
    pub store: Arc<dyn Store>,
    /// How its writes are batched.
    pub writer: writer::Options,
    /// Its time.
    pub clock: Clock,
    /// How it is compacted, where that means something.
    pub compact: Option<Compact>,
    /// How another process takes it over, where that is possible.
    pub handover: Option<Arc<dyn Handover>>,
}
