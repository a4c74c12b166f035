//! The setup of a network: the settings of its shelf (its part of the archive) and its doors (its
//! listeners).

use std::sync::Arc;

use hark_archive::TextSource;
use hark_archive::retention::RetentionPolicy;
use hark_networks::Network;
use hark_server::door::ServableNetwork;
use hark_server::shelf;

use super::doors::DoorFacts;
use super::values::Config;

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
    /// Number of days that one partition of the database tables covers.
    pub part_days: u64,
    /// The maximum bytes of a record.
    pub record_bytes_max: usize,
    /// The indexed texts of records; `None` without search.
    pub texts: Option<Arc<dyn TextSource>>,
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
