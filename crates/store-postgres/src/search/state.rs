//! The state that the searches of a shelf share.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use super::recent::RecentRecords;
use crate::citus::{RecordDensity, ShardReads};
use crate::parts::Parts;
use crate::plain::ListedSizes;

/// Number of bytes of fetched records that all searches together may keep from one slice to the
/// next, beyond the bytes that each search may always keep.
const KEPT_ALL_BYTES: usize = 64 << 20;

/// The state that the searches of a shelf share.
pub(crate) struct SearchState {
    parts: RwLock<Arc<Parts>>,
    /// A cache of records that searches have fetched recently; `None` if searches fetch records by
    /// place.
    pub(crate) recent: Option<RecentRecords>,
    /// Permits for the bytes of records that searches keep from one slice to the next.
    pub(crate) room: Arc<Semaphore>,
    /// The density of records in time that a search of distributed tables has measured last.
    pub(crate) density: Mutex<Option<RecordDensity>>,
    /// The numbers of records with listed values that searches have read last.
    pub(crate) listed_sizes: ListedSizes,
    /// Reads shards without the coordinator; `None` if the tables have no shards.
    pub(crate) shards: Option<ShardReads>,
}

impl SearchState {
    /// Creates the state of a shelf with these parts.
    pub(crate) fn new(
        parts: Parts,
        recent: Option<RecentRecords>,
        shards: Option<ShardReads>,
    ) -> Self {
        Self {
            parts: RwLock::new(Arc::new(parts)),
            recent,
            room: Arc::new(Semaphore::new(KEPT_ALL_BYTES)),
            density: Mutex::default(),
            listed_sizes: ListedSizes::default(),
            shards,
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
