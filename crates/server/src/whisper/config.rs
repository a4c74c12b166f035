//! The configuration of a mail server.

use std::sync::Arc;

use arc_swap::ArcSwap;
use hark_networks::whisper::admit::EnvelopeBounds;

#[cfg(feature = "devp2p")]
use super::peers::PeersConfig;
use crate::limits::Rate;
use crate::service::StoreLocation;
use crate::{ListenAddress, WebAccess};

/// The settings that can change while a mail server runs.
#[derive(Clone, Debug, PartialEq)]
pub struct MailSettings {
    /// The bounds for accepted envelopes.
    pub bounds: EnvelopeBounds,
    /// Requests allowed per client. `None` is unlimited.
    pub requests: Option<Rate>,
    /// Envelopes allowed per address. `None` is unlimited.
    pub envelopes: Option<Rate>,
    /// Envelopes of topics that are new to the archive, allowed per address. `None` is unlimited.
    pub new_topics: Option<Rate>,
    /// Maximum number of rows that a request may visit.
    pub query_rows_max: u64,
}

impl Default for MailSettings {
    fn default() -> Self {
        Self {
            bounds: EnvelopeBounds::default(),
            requests: None,
            // Status' network had 34 envelopes a minute in 2019, and a peer sends all its stored
            // envelopes at once.
            envelopes: Some(Rate { per_minute: 6_000, at_once: 60_000 }),
            // Status' network had 9,606 topics in a month.
            new_topics: Some(Rate { per_minute: 60, at_once: 20_000 }),
            query_rows_max: 5_000_000,
        }
    }
}

/// A shared handle of the current settings. Any holder can replace the settings while the mail
/// server runs.
pub type SharedMailSettings = Arc<ArcSwap<MailSettings>>;

/// Creates a shared handle to these settings.
pub fn shared(settings: MailSettings) -> SharedMailSettings {
    Arc::new(ArcSwap::from_pointee(settings))
}

/// The configuration of a mail server.
#[derive(Clone, Debug)]
pub struct MailConfig {
    /// Addresses of the REST API. An empty list disables the REST API.
    pub rest: Vec<ListenAddress>,
    /// The web pages that may use the REST API.
    pub access: WebAccess,
    /// Configuration of the devp2p interface. `None` disables the devp2p interface.
    #[cfg(feature = "devp2p")]
    pub peers: Option<PeersConfig>,
    /// The settings that can change while the mail server runs.
    pub settings: SharedMailSettings,
    /// Where the store runs its queries: in this process, or in a database.
    pub store_at: StoreLocation,
    /// The name of the store in metrics: `embedded` or `postgres`.
    pub database: &'static str,
}

impl Default for MailConfig {
    /// Returns the configuration of a mail server without any interface, with an archive in files.
    fn default() -> Self {
        Self {
            rest: Vec::new(),
            access: WebAccess::default(),
            #[cfg(feature = "devp2p")]
            peers: None,
            settings: SharedMailSettings::default(),
            store_at: StoreLocation::Process,
            database: "embedded",
        }
    }
}
