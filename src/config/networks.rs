//! The networks that this program serves: the settings of each network's shelf (its part of the
//! archive) and its doors (its listeners). A new network needs a section of settings and an entry
//! in [`NETWORKS`].

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use hark_archive::TextSource;
use hark_archive::retention::RetentionPolicy;
use hark_networks::Network;
use hark_server::door::ServableNetwork;
use hark_server::{StoreLocation, shelf};

use super::{Config, nostr, waku, whisper};

/// All networks, in the order in which they are served. The first is the default.
pub static NETWORKS: &[NetworkSetup] = &[nostr::SETUP, waku::SETUP, whisper::SETUP];

/// The networks that this process knows; [`NETWORKS`] if unset.
static KNOWN: OnceLock<&'static [NetworkSetup]> = OnceLock::new();

/// Sets the networks that this process knows. Called once, when the process starts.
pub(crate) fn serve_these(setups: &'static [NetworkSetup]) {
    // Cannot fail, since this function is called once.
    let _ = KNOWN.set(setups);
}

/// The networks that this process knows.
pub(crate) fn setups() -> &'static [NetworkSetup] {
    KNOWN.get().copied().unwrap_or(NETWORKS)
}

/// Returns the [`NetworkSetup`] of the network with this name.
pub(crate) fn setup(network: &str) -> Option<&'static NetworkSetup> {
    setups().iter().find(|setup| setup.network.name() == network)
}

/// Returns the settings of a network's shelf.
pub(crate) fn shelf_config(config: &Config, network: &dyn Network) -> ShelfConfig {
    let setup = setup(network.name()).unwrap_or(&setups()[0]);
    (setup.shelf)(config)
}

/// The configuration and setup of a network.
#[derive(Clone, Copy)]
pub struct NetworkSetup {
    /// The network itself.
    pub network: &'static dyn Network,
    /// Returns the settings of the network's shelf.
    pub shelf: fn(&Config) -> ShelfConfig,
    /// Whether `hark serve` serves the network.
    pub is_served: fn(&Config) -> bool,
    /// Builds the network's shelf and doors, which are opened later.
    pub serve: fn(&Config, shelf::ShelfOptions, &DoorFacts<'_>) -> NetworkService,
}

/// Settings of a network's shelf.
pub struct ShelfConfig {
    /// The rules for deleting records.
    pub retention: RetentionPolicy,
    /// Days that one partition of the database tables covers.
    pub part_days: u64,
    /// The maximum bytes of a record.
    pub record_bytes_max: usize,
    /// The indexed texts of records; `None` without search.
    pub texts: Option<Arc<dyn TextSource>>,
}

/// Facts that a network's doors need besides the settings.
#[cfg_attr(not(feature = "libp2p"), allow(dead_code))] // only peers use some of the fields
pub struct DoorFacts<'a> {
    /// The archive's directory.
    pub data: &'a Path,
    /// The name of the store in metrics.
    pub store: &'static str,
    /// The place where the store does its work.
    pub store_at: StoreLocation,
    /// An address to listen on that overrides the settings.
    pub listen: Option<SocketAddr>,
    /// Whether rate limits are off.
    pub unlimited: bool,
}

/// A network that is to be served.
pub struct NetworkService {
    /// The network's shelf and doors, not opened yet.
    pub network: Box<dyn ServableNetwork>,
    /// Applies changed settings while the network is served.
    pub reload: ReloadCallback,
}

/// A function that applies changed settings while a network is served.
pub type ReloadCallback = Box<dyn Fn(&Config) + Send + Sync>;
