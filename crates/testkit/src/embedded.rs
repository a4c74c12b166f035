//! An archive in files, for crates that know no store by name.

use std::path::Path;
use std::sync::Arc;

use hark_archive::Store;
use hark_archive::effects::Rules;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};

/// Opens the shelf of an archive in files, with the default options.
pub fn store(directory: &Path, rules: Box<dyn Rules>) -> Arc<dyn Store> {
    let store = EmbeddedStore::open(directory, rules, EmbeddedOptions::default());
    Arc::new(store.expect("an archive in files"))
}
