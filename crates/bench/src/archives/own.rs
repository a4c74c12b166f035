//! Opens a store as the only process that writes to the store.

use hark::{ArchiveLocation, OwnedStore};
use hark_networks::Network;

use crate::openers::CONNECTIONS;

/// Opens a store for writing, as a server does. A store in a database then learns whether other
/// processes write; without this knowledge, each question would first read the newest number.
pub(super) fn own_alone(
    address: &str,
    network: &'static dyn Network,
) -> anyhow::Result<OwnedStore> {
    let owned = ArchiveLocation::at(address, network, CONNECTIONS)?.own()?;
    // The bench delivers no records, so nothing has to be woken.
    owned.store.on_news(Box::new(|| {}));
    Ok(owned)
}
