//! Archives in files, in the archive's directory.

mod archive;
mod bounds;
mod check;
mod full;
mod lock;
mod making;
mod rebuild;
mod served;
mod shelf;

use std::sync::Arc;

pub(crate) use archive::FileArchive;
pub(crate) use bounds::space_bounds;
pub(crate) use making::{RESTORE, SALVAGE};
pub(crate) use served::summary;
pub(crate) use shelf::FileShelf;

use super::address::AddressForm;
use super::archive::StoreSetup;

/// The address of the files in the archive's directory.
pub(crate) const FILES: &str = "embedded";

/// The store in the list of stores.
pub(super) const SETUP: StoreSetup = StoreSetup {
    form: AddressForm { example: FILES, fits: |address| address == FILES, check: |_| Ok(()) },
    archive: |_, data| Arc::new(FileArchive::new(data)),
};
