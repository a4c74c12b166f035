//! The networks that this program serves: what its settings say of each one's shelf, and the doors they
//! make. A new network is a section of settings, and its line in [`ROOMS`].

use std::net::SocketAddr;
use std::path::Path;

use hark_archive::retention::Policy;
use hark_networks::Network;
use hark_server::door::Serve;
use hark_server::shelf;

use super::{Config, nostr, waku};

/// All of them, in the order in which they are served.
pub(crate) static ROOMS: &[Room] = &[nostr::ROOM, waku::ROOM];

/// A network, as this program serves it.
pub(crate) struct Room {
    pub(crate) network: &'static dyn Network,
    /// Settings of its shelf.
    pub(crate) shelf: fn(&Config) -> ShelfConfig,
    /// Whether `hark serve` opens its doors.
    pub(crate) is_served: fn(&Config) -> bool,
    /// Its doors.
    pub(crate) serve: fn(&Config, shelf::Options, &StoreIs<'_>) -> Served,
}

/// Settings of a network's shelf.
pub(crate) struct ShelfConfig {
    /// What is not kept for ever.
    pub(crate) retention: Policy,
    /// Days of a part of its tables.
    pub(crate) part_days: u64,
    /// Bytes of a record, at most.
    pub(crate) record_bytes_max: usize,
}

/// What doors have to know of where they are, beside the settings.
#[cfg_attr(not(feature = "libp2p"), allow(dead_code))] // peers alone ask for some of it
pub(crate) struct StoreIs<'a> {
    /// The archive's directory.
    pub(crate) data: &'a Path,
    /// Whether the database is on this machine; None if the archive is in files.
    pub(crate) database_is_near: Option<bool>,
    /// An address that wins over the settings.
    pub(crate) listen: Option<SocketAddr>,
    /// Rate limits are off.
    pub(crate) unlimited: bool,
}

/// A network that is to be served.
pub(crate) struct Served {
    pub(crate) network: Box<dyn Serve>,
    pub(crate) reload: Reload,
}

/// Puts settings in force while a network is served.
pub(crate) type Reload = Box<dyn Fn(&Config) + Send + Sync>;
