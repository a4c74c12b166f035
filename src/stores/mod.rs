//! The stores that this program opens: the interface between commands and stores, the list of
//! stores, and a folder or file for each store. A new store needs one entry in [`STORES`].

mod address;
mod archive;
mod check;
pub(crate) mod embedded;
mod held;
mod list;
pub(crate) mod postgres;

pub use address::AddressForm;
pub(crate) use address::StoreAddress;
pub use archive::{
    ArchiveStore, ServedShelf, ServedStore, ShelfOpener, ShelfPlace, StoreFacts, StoreLock,
    StoreSetup,
};
pub use check::{ArchiveCheck, ArchiveRebuild, CheckMeter};
pub(crate) use held::ArchiveHeld;
pub use list::STORES;
pub(crate) use list::{address_forms, archive_in, distant_archive, named_archive, open_these};
