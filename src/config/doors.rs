//! The properties of a server that a network's doors need besides the settings.

use std::path::Path;

use hark_server::{ListenAddress, StoreLocation};

/// The properties of a server that a network's doors need besides the settings.
#[cfg_attr(not(feature = "libp2p"), allow(dead_code))] // only peers use some of the fields
pub struct DoorFacts<'a> {
    /// The archive's directory.
    pub data: &'a Path,
    /// The name of the store in metrics.
    pub store: &'static str,
    /// Where the store does its work: in this process, or in a database.
    pub store_at: StoreLocation,
    /// Addresses of the relay that override the settings. Empty: the settings apply.
    pub listen: &'a [ListenAddress],
    /// Whether rate limits are off.
    pub unlimited: bool,
}
