//! The networks that this program serves. A new network needs a section of settings and an entry in
//! [`NETWORKS`].

use std::sync::OnceLock;

use hark_networks::Network;
use hark_server::moderation::ModerationNetwork;

use super::network_setup::{NetworkSetup, ShelfConfig};
use super::values::Config;
use super::{moderation, nostr, waku, whisper};

/// All networks, in the order in which they are served. The first is the default.
pub static NETWORKS: &[NetworkSetup] =
    &[nostr::SETUP, waku::SETUP, whisper::SETUP, moderation::SETUP];

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

/// The networks with clients of their own. The shelf of the bans has none.
pub(crate) fn client_setups() -> impl Iterator<Item = &'static NetworkSetup> {
    setups().iter().filter(|setup| setup.network.name() != ModerationNetwork.name())
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
