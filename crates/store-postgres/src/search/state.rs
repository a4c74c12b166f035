//! The state that the searches of a shelf share.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use super::recent::RecentRecords;
use crate::citus::RecordDensity;
use crate::parts::Parts;

/// Bytes of the records that all searches together may keep between slices, beyond each search's
/// own allowance.
const KEPT_ALL_BYTES: usize = 64 << 20;

/// The state that the searches of a shelf share.
pub(crate) struct SearchState {
    parts: RwLock<Arc<Parts>>,
    /// A cache of the records that searches have fetched recently. `None` if searches fetch records
    /// by place.
    pub(crate) recent: Option<RecentRecords>,
    /// Permits for the bytes of records that searches keep between slices.
    pub(crate) room: Arc<Semaphore>,
    /// The density of records in time, as recently found by searches of distributed tables.
    pub(crate) density: Mutex<Option<RecordDensity>>,
}

impl SearchState {
    /// Creates the state of a shelf with these parts.
    pub(crate) fn new(parts: Parts, recent: Option<RecentRecords>) -> Self {
        Self {
            parts: RwLock::new(Arc::new(parts)),
            recent,
            room: Arc::new(Semaphore::new(KEPT_ALL_BYTES)),
            density: Mutex::default(),
        }
    }

    pub(crate) fn parts(&self) -> Arc<Parts> {
        Arc::clone(&self.parts.read())
    }

    pub(crate) fn set_parts(&self, parts: Parts) -> Arc<Parts> {
        let parts = Arc::new(parts);
        *self.parts.write() = Arc::clone(&parts);
        parts
    }
}
