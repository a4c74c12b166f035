//! The list of stores, and the choice of a store by an address.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use hark_store_postgres::shown;

use super::address::AddressForm;
use super::archive::{ArchiveStore, StoreSetup};
use super::embedded::{self, FileArchive};
use super::postgres;
use crate::wrong_use::WrongUse;

/// All stores. The first is the default.
pub static STORES: &[StoreSetup] = &[embedded::SETUP, postgres::SETUP];

/// The stores that this process knows; [`STORES`] if unset.
static KNOWN: OnceLock<&'static [StoreSetup]> = OnceLock::new();

/// Sets the stores that this process knows. Called once, when the process starts.
pub(crate) fn open_these(setups: &'static [StoreSetup]) {
    // Cannot fail, since this function is called once.
    let _ = KNOWN.set(setups);
}

fn setups() -> &'static [StoreSetup] {
    KNOWN.get().copied().unwrap_or(STORES)
}

/// Returns the forms of the addresses of all stores, the default first.
pub(crate) fn address_forms() -> Vec<AddressForm> {
    setups().iter().map(|setup| setup.form).collect()
}

/// Returns the archive of the store with this address. Fails if no store has addresses of this
/// form.
pub(crate) fn named_archive(address: &str, data: &Path) -> anyhow::Result<Arc<dyn ArchiveStore>> {
    if let Some(setup) = setups().iter().find(|setup| (setup.form.fits)(address)) {
        return Ok((setup.archive)(address, data));
    }
    let others: Vec<AddressForm> = address_forms().into_iter().skip(1).collect();
    Err(WrongUse(format!(
        "there is no store `{}`; leave --store out for files in the data directory, or give {}",
        shown(address),
        AddressForm::examples(&others)
    ))
    .into())
}

/// Returns the archive at the address of a store that is not in files; `None` if `address` is a
/// directory.
pub(crate) fn distant_archive(
    address: &str,
    data: &Path,
) -> anyhow::Result<Option<Arc<dyn ArchiveStore>>> {
    let others: Vec<AddressForm> = address_forms().into_iter().skip(1).collect();
    if address.contains("://") || AddressForm::of(&others, address).is_some() {
        return named_archive(address, data).map(Some);
    }
    Ok(None)
}

/// Returns the archive in the files of a directory.
pub(crate) fn archive_in(data: &Path) -> Arc<dyn ArchiveStore> {
    Arc::new(FileArchive::new(data))
}
