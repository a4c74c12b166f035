//! Archives in a PostgreSQL database, which may be a Citus cluster.

mod address;
mod archive;
mod backup;
mod check;
mod rebuild;

use std::sync::Arc;

pub(crate) use address::FORM;
pub(crate) use archive::{DatabaseArchive, LOOK_AT_DATABASE};

use super::archive::StoreSetup;

/// The store in the list of stores.
pub(super) const SETUP: StoreSetup = StoreSetup {
    form: FORM,
    archive: |address, _| Arc::new(DatabaseArchive { url: address.into() }),
};
