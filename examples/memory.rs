//! A binary with one more store than `hark`: the model store, with which tests compare every other
//! store. The archive exists only until the process ends:
//!
//! ```text
//! cargo run --example memory -- serve --store memory:
//! ```

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use hark::{
    AddressForm, ArchiveStore, NETWORKS, STORES, ServedShelf, ServedStore, ShelfPlace, StoreFacts,
    StoreSetup,
};
use hark_archive::Store;
use hark_archive::store::memory::MemoryStore;
use hark_server::StoreLocation;
use parking_lot::Mutex;

/// The store's entry in the list of stores.
const SETUP: StoreSetup = StoreSetup {
    form: AddressForm {
        example: "memory:",
        fits: |address| address == "memory:",
        check: |_| Ok(()),
    },
    archive: |_, _| Arc::new(Memory::default()),
};

/// An archive in the memory of this process, with one store for each network.
#[derive(Default)]
struct Memory(Mutex<BTreeMap<&'static str, Arc<MemoryStore>>>);

impl ArchiveStore for Memory {
    fn facts(&self) -> StoreFacts {
        StoreFacts {
            name: "memory",
            is_in_directory: false,
            is_remote: false,
            batch_records: 1_024,
        }
    }

    fn shown(&self, _: &ShelfPlace<'_>) -> String {
        "memory:".into()
    }

    fn open(&self, shelf: &ShelfPlace<'_>) -> anyhow::Result<Arc<dyn Store>> {
        let mut shelves = self.0.lock();
        let new = || Arc::new(MemoryStore::new(shelf.network.rules()));
        Ok(Arc::clone(shelves.entry(shelf.network.name()).or_insert_with(new)) as _)
    }

    fn open_read_only(&self, shelf: &ShelfPlace<'_>) -> anyhow::Result<Arc<dyn Store>> {
        self.open(shelf)
    }

    fn serve(self: Arc<Self>, _: Option<&[&str]>) -> anyhow::Result<ServedStore> {
        let open = Box::new(move |shelf: &ShelfPlace<'_>| {
            Ok(ServedShelf {
                store: self.open(shelf)?,
                at: StoreLocation::Process,
                refuses_writes: false,
                compact: None,
                handover: None,
            })
        });
        Ok(ServedStore { lock: None, taking: None, open })
    }
}

/// The program.
pub fn main() -> ExitCode {
    let setups: Vec<StoreSetup> = STORES.iter().copied().chain([SETUP]).collect();
    hark::run(NETWORKS, setups.leak())
}
