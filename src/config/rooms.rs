//! The networks that this program serves: what its settings say of each one's shelf, and the doors they
//! make. A new network is a section of settings, and its line in [`NETWORKS`].

use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use hark_archive::retention::Policy;
use hark_networks::Network;
use hark_server::door::Serve;
use hark_server::shelf;

use super::{Config, nostr, waku};

/// All of them, in the order in which they are served. The first is meant where none is named.
pub static NETWORKS: &[Room] = &[nostr::ROOM, waku::ROOM];

/// Those that this process knows.
static KNOWN: OnceLock<&'static [Room]> = OnceLock::new();

/// Has this process know these, from its start on.
pub(crate) fn serve_these(rooms: &'static [Room]) {
    // It is called once.
    let _ = KNOWN.set(rooms);
}

/// The networks that this process knows.
pub(crate) fn rooms() -> &'static [Room] {
    KNOWN.get().copied().unwrap_or(NETWORKS)
}

/// The room of a network.
pub(crate) fn room(network: &str) -> Option<&'static Room> {
    rooms().iter().find(|room| room.network.name() == network)
}

/// A network, as this program serves it.
#[derive(Clone, Copy)]
pub struct Room {
    /// What it is.
    pub network: &'static dyn Network,
    /// Settings of its shelf.
    pub shelf: fn(&Config) -> ShelfConfig,
    /// Whether `hark serve` opens its doors.
    pub is_served: fn(&Config) -> bool,
    /// Its doors.
    pub serve: fn(&Config, shelf::Options, &StoreIs<'_>) -> Served,
}

/// Settings of a network's shelf.
pub struct ShelfConfig {
    /// What is not kept for ever.
    pub retention: Policy,
    /// Days of a part of its tables.
    pub part_days: u64,
    /// Bytes of a record, at most.
    pub record_bytes_max: usize,
}

/// What doors have to know of where they are, beside the settings.
#[cfg_attr(not(feature = "libp2p"), allow(dead_code))] // peers alone ask for some of it
pub struct StoreIs<'a> {
    /// The archive's directory.
    pub data: &'a Path,
    /// Whether the database is on this machine; None if the archive is in files.
    pub database_is_near: Option<bool>,
    /// An address that wins over the settings.
    pub listen: Option<SocketAddr>,
    /// Rate limits are off.
    pub unlimited: bool,
}

/// A network that is to be served.
pub struct Served {
    /// Its shelf and its doors, to be opened.
    pub network: Box<dyn Serve>,
    /// Puts settings in force while it runs.
    pub reload: Reload,
}

/// Puts settings in force while a network is served.
pub type Reload = Box<dyn Fn(&Config) + Send + Sync>;
