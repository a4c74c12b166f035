//! The shared state of a shelf's threads.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32};

use hark_archive::effects::Rules;
use hark_archive::{Query, Record, TextSource};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use crate::line::{CurrentPosition, TimelinePosition};
use crate::others::OtherWriters;
use crate::parts::{PartGrid, Parts};
use crate::pool::Pool;
use crate::replica::Replica;
use crate::search::SqlQuery;
use crate::search::recent::RecentRecords;
use crate::search::windows::RecordDensity;
use crate::terms::DatabaseTermHasher;
use crate::time::IndexKey;

/// The shared state of a shelf's threads.
pub(crate) struct PostgresState {
    pub(crate) pool: Pool,
    pub(crate) replica: Option<Replica>,
    pub(crate) rules: Box<dyn Rules>,
    pub(crate) terms: DatabaseTermHasher,
    pub(crate) grid: PartGrid,
    pub(crate) units_per_s: u64,
    pub(crate) nature: ShelfProperties,
    /// The texts whose words this process indexes.
    pub(crate) texts: Option<Arc<dyn TextSource>>,
    pub(crate) parts: RwLock<Arc<Parts>>,
    /// The position up to which puts are delivered and visible to searches.
    pub(crate) current: CurrentPosition,
    pub(crate) known: Mutex<RecentIds>,
    /// A cache of the records that searches have fetched recently.
    pub(crate) recent: RecentRecords,
    /// Permits for the bytes of records that searches keep between slices, beyond each search's own
    /// allowance.
    pub(crate) room: Arc<Semaphore>,
    /// The density of records in time, as recently found by searches of distributed tables.
    pub(crate) density: Mutex<Option<RecordDensity>>,
    /// The reason while the database is unreachable.
    pub(crate) away: Mutex<Option<String>>,
    /// Whether a commit has failed since the last check whether the database answers.
    pub(crate) has_failed: AtomicBool,
    /// The id of the database's process that serves the committing connection.
    pub(crate) writer_process: AtomicI32,
    /// Whether other processes write to the shelf.
    pub(crate) others: OtherWriters,
}

/// Known properties of a shelf's records; see [`PostgresOptions`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShelfProperties {
    pub(crate) one_kind: bool,
    pub(crate) common_labels: &'static [u8],
    pub(crate) listed_labels: &'static [u8],
}

/// Hashes of recently stored ids, in two generations.
#[derive(Default)]
pub(crate) struct RecentIds {
    pub(crate) young: HashSet<u64>,
    pub(crate) old: HashSet<u64>,
}

impl PostgresState {
    pub(crate) fn parts(&self) -> Arc<Parts> {
        Arc::clone(&self.parts.read())
    }

    pub(crate) fn set_parts(&self, parts: Parts) -> Arc<Parts> {
        let parts = Arc::new(parts);
        *self.parts.write() = Arc::clone(&parts);
        parts
    }

    /// Clears the set of known ids: other processes may have deleted their records.
    pub(crate) fn forget_known(&self) {
        *self.known.lock() = RecentIds::default();
    }

    /// Adds puts, with the database's numbers, to the cache of recent records. Must be called
    /// before `current` reaches these numbers.
    pub(crate) fn note_puts(
        &self,
        position: TimelinePosition,
        puts: impl Iterator<Item = (IndexKey, i64)>,
    ) {
        // Searches of distributed tables do not use the cache.
        if !self.pool.door().layout().is_distributed() {
            self.recent.put(position.era, puts);
        }
    }

    /// Like [`note_puts`](Self::note_puts), for the puts of other processes.
    pub(crate) fn note_news(&self, position: TimelinePosition, news: &[(i64, Box<[u8]>)]) {
        let put = |(seq, body): &(i64, Box<[u8]>)| {
            let record = Record::new(body).ok()?;
            Some((IndexKey::of(&record), *seq))
        };
        self.note_puts(position, news.iter().filter_map(put));
    }

    /// Returns the texts of this process if the database has the words of exactly these texts.
    pub(crate) fn indexes(&self, texts: Option<i64>) -> Option<&Arc<dyn TextSource>> {
        let same = |own: &&Arc<dyn TextSource>| texts == Some(own.fingerprint().cast_signed());
        self.texts.as_ref().filter(same)
    }

    pub(crate) fn asked(&self, query: &Query, position: TimelinePosition) -> Vec<SqlQuery> {
        let mut all = SqlQuery::opened(query, &self.terms, self.nature, position.seen);
        // The cache of records reflects the puts that this process has seen.
        let now = self.current.now();
        if now.era == position.era && now.seen >= position.seen {
            for asked in &mut all {
                asked.era = Some(position.era);
            }
        }
        all
    }
}
