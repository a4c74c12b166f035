//! The configuration of a relay.

use std::path::PathBuf;
use std::sync::Arc;

use hark_archive::TextSource;
use hark_plugin::SharedPlugin;

use super::identity::SharedIdentity;
use super::manage::SharedManagers;
use super::names::NameClient;
use super::own::SharedOwnEvents;
use super::policy;
use super::trust::Trust;
use crate::service::StoreLocation;
use crate::{ListenAddress, shelf};

/// Default size from which a message is compressed, in bytes. Shorter messages are mostly ids, keys
/// and signatures, which hardly compress.
pub const DEFLATE_FROM_BYTES: usize = 1_024;

/// A relay that is to be served.
pub struct RelayService {
    /// The configuration of the relay.
    pub config: RelayConfig,
    /// The shelf that stores the relay's events.
    pub shelf: shelf::ShelfOptions,
}

/// The configuration of a relay.
#[derive(Clone)]
pub struct RelayConfig {
    /// The addresses to listen on.
    pub listen: Vec<ListenAddress>,
    /// Messages of at least this many bytes are compressed if the client offers compression. 0
    /// disables compression.
    pub deflate_from_bytes: usize,
    /// The policy for published events. Can change while the server runs.
    pub policy: policy::SharedPolicy,
    /// The rule about trusted keys. Can change while the server runs.
    pub trust: Arc<Trust>,
    /// The plugin that decides about published events. Can change while the server runs.
    pub plugin: SharedPlugin,
    /// The client that asks domains for the keys of names.
    pub name_client: NameClient,
    /// The keys that may manage the relay (NIP-86). Can change while the server runs.
    pub managers: SharedManagers,
    /// The relay's description of itself, and its private kinds. Can change while the server runs.
    pub identity: SharedIdentity,
    /// The file with the relay's own key. `None`: the relay signs nothing.
    pub own_key: Option<PathBuf>,
    /// The events that the relay signs with this key. Can change while the server runs.
    pub own_events: SharedOwnEvents,
    /// Numbers of threads for work that must not run on the runtime's threads.
    pub threads: ThreadCounts,
    /// Where the store runs its queries.
    pub store_at: StoreLocation,
    /// The texts that are searched (NIP-50). `None` means that searches are refused.
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
    pub fn new(listen: Vec<ListenAddress>) -> Self {
        Self {
            listen,
            deflate_from_bytes: DEFLATE_FROM_BYTES,
            policy: policy::SharedPolicy::default(),
            trust: Arc::default(),
            plugin: SharedPlugin::default(),
            name_client: NameClient::default(),
            managers: SharedManagers::default(),
            identity: SharedIdentity::default(),
            own_key: None,
            own_events: SharedOwnEvents::default(),
            threads: ThreadCounts::default(),
            store_at: StoreLocation::Process,
            texts: None,
        }
    }
}

/// Numbers of threads for work that must not run on the runtime's threads. 0 means one per core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadCounts {
    /// Number of threads that parse, hash and verify events.
    pub verify: usize,
    /// Number of threads that answer questions.
    pub read: usize,
}
