//! The Nostr relay: it translates messages to questions and records, and back.
//!
//! `listen` accepts connections, `web` answers HTTP, and `session` serves one WebSocket.
//! `messages` turns the messages of a session into requests. Events go to `intake` (parse, hash,
//! verify, write), questions to `page` and `count`, and messages of NIP-77 to `comparison`. The
//! reader threads run `page`, `count` and `comparison`. `page` also sends live events.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::Guard;
use hark_archive::TextSource;
use hark_archive::live::LiveIndex;

use crate::budget::Budget;
use crate::connections::Connections;
use crate::rate::RateLimiter;
use crate::service::{SlowLog, StoreLocation};
use crate::settings::{Settings, SharedSettings};
use crate::shelf::{self, Shelf};
use crate::websocket::DeflateOptions;
pub use identity::SharedIdentity;
use metrics::RelayMetrics;
use outboxes::Outboxes;
use readers::Readers;

mod auth;
mod comparison;
mod cost;
mod count;
mod hll;
mod identity;
mod intake;
mod landing;
mod listen;
mod message_head;
mod messages;
pub mod metrics;
mod nip11;
mod open;
mod outbox;
mod outboxes;
mod page;
pub mod policy;
mod prometheus;
mod readers;
mod refusal;
mod report;
mod session;
mod vanish;
mod web;

/// Kinds that are private unless the configuration says otherwise: direct messages (NIP-04), gift
/// wraps and ephemeral gift wraps (NIP-59).
pub const PRIVATE_KINDS: [u32; 3] = [4, 1059, 21_059];

/// Default size from which a message is compressed, in bytes. Shorter messages are mostly ids, keys
/// and signatures, which hardly compress.
pub const DEFLATE_FROM_BYTES: usize = 1_024;

/// A relay that is to be served.
pub struct RelayService {
    /// How the relay is served.
    pub config: RelayConfig,
    /// The shelf of its events.
    pub shelf: shelf::ShelfOptions,
}

/// How a relay is served.
#[derive(Clone)]
pub struct RelayConfig {
    /// The address to listen on. Port 0 takes any free port.
    pub listen: SocketAddr,
    /// Messages of at least this many bytes are compressed if the client offers compression. 0
    /// disables compression.
    pub deflate_from_bytes: usize,
    /// The policy for published events. Can change while the server runs.
    pub policy: policy::SharedPolicy,
    /// The relay's description of itself, and its private kinds. Can change while the server runs.
    pub identity: SharedIdentity,
    /// Numbers of threads for work that must not run on the runtime's threads.
    pub threads: ThreadCounts,
    /// Where the store does its work.
    pub store_at: StoreLocation,
    /// The texts that are searched (NIP-50). `None`: searches are refused.
    pub texts: Option<Arc<dyn TextSource>>,
}

impl std::fmt::Debug for RelayConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayConfig")
            .field("listen", &self.listen)
            .field("deflate_from_bytes", &self.deflate_from_bytes)
            .field("identity", &self.identity)
            .field("threads", &self.threads)
            .field("store_at", &self.store_at)
            .field("searches", &self.texts.is_some())
            .finish_non_exhaustive()
    }
}

impl RelayConfig {
    /// The default configuration, listening on `listen`.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            deflate_from_bytes: DEFLATE_FROM_BYTES,
            policy: policy::SharedPolicy::default(),
            identity: SharedIdentity::default(),
            threads: ThreadCounts::default(),
            store_at: StoreLocation::Process,
            texts: None,
        }
    }
}

/// The relay's description of itself (NIP-11).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayInfo {
    /// The name of the relay.
    pub name: String,
    /// The purpose of the relay, in a sentence or two.
    pub description: String,
    /// The URL at which clients reach the relay: `wss://…`. Used by NIP-62 and NIP-42.
    pub url: Option<String>,
    /// Further URLs of this relay, such as an onion address. They name this relay as `url` does,
    /// and require that `url` is set.
    pub other_urls: Vec<String>,
    /// The operator's key, hex.
    pub pubkey: Option<String>,
    /// The relay's own key, hex. `None` if the relay has no key.
    pub self_key: Option<String>,
    /// How else to reach the operator.
    pub contact: Option<String>,
    /// URL of an icon.
    pub icon: Option<String>,
    /// URL of a banner.
    pub banner: Option<String>,
    /// URL of the terms of service.
    pub terms_of_service: Option<String>,
}

impl RelayInfo {
    /// All configured URLs of this relay.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.url.iter().chain(&self.other_urls).cloned()
    }
}

/// Numbers of threads for work that must not run on the runtime's threads. 0 means one per core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadCounts {
    /// Parse, hash and verify events.
    pub verify: usize,
    /// Answer questions.
    pub read: usize,
}

/// State shared by all sessions.
pub(crate) struct Relay {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) live: Arc<LiveIndex>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) auth: Arc<auth::AuthState>,
    pub(crate) intake: Arc<intake::Intake>,
    pub(crate) settings: SharedSettings,
    pub(crate) policy: policy::SharedPolicy,
    pub(crate) rates: RateLimiter,
    pub(crate) metrics: Arc<RelayMetrics>,
    pub(crate) slow: SlowLog,
    pub(crate) identity: SharedIdentity,
    pub(crate) connections: Arc<Connections>,
    pub(crate) outboxes: Arc<Outboxes>,
    /// Memory of questions.
    pub(crate) questions: Arc<Budget>,
    /// Memory of the sets of comparisons.
    pub(crate) comparisons: Arc<Budget>,
    /// Memory of messages that are incomplete, or wait for a permit of the intake.
    pub(crate) inbound: Arc<Budget>,
    pub(crate) deflate: DeflateOptions,
    /// The texts that are searched. `None`: searches are refused.
    pub(crate) texts: Option<Arc<dyn TextSource>>,
    /// Rate limits are off.
    pub(crate) unlimited: bool,
}

impl Relay {
    /// The settings in force now.
    pub(crate) fn settings(&self) -> Guard<Arc<Settings>> {
        self.settings.load()
    }
}
