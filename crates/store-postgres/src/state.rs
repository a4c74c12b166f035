//! What the threads of a shelf share.

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

/// The state that the threads of a shelf share.
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
    /// The number up to which searches see puts.
    pub(crate) current: CurrentPosition,
    pub(crate) known: Mutex<RecentIds>,
    /// Records that searches have fetched lately.
    pub(crate) recent: RecentRecords,
    /// Permits for bytes of records that searches keep between slices, beyond what each may keep.
    pub(crate) room: Arc<Semaphore>,
    /// How densely records lie in time, as searches of distributed tables found lately.
    pub(crate) density: Mutex<Option<RecordDensity>>,
    /// Why the database cannot be reached, while that is so.
    pub(crate) away: Mutex<Option<String>>,
    /// Whether the last commit failed, and it was not looked since whether the database answers.
    pub(crate) has_failed: AtomicBool,
    /// The id of the database's process for the connection that commits.
    pub(crate) writer_process: AtomicI32,
    /// Whether other processes write too.
    pub(crate) others: OtherWriters,
}

/// Properties of a shelf's records that are known beforehand; see [`PostgresOptions`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShelfProperties {
    pub(crate) one_kind: bool,
    pub(crate) common_labels: &'static [u8],
    pub(crate) listed_labels: &'static [u8],
}

/// Hashes of ids stored recently, in two generations.
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

    /// Forgets the known ids, whose records other processes may have deleted.
    pub(crate) fn forget_known(&self) {
        *self.known.lock() = RecentIds::default();
    }

    /// Notes puts and the database's numbers of them, before `current` reaches these numbers.
    pub(crate) fn note_puts(
        &self,
        position: TimelinePosition,
        puts: impl Iterator<Item = (IndexKey, i64)>,
    ) {
        // Searches of distributed tables keep no records.
        if !self.pool.door().layout().is_distributed() {
            self.recent.put(position.era, puts);
        }
    }

    /// As [`note_puts`](Self::note_puts), for what other processes have put.
    pub(crate) fn note_news(&self, position: TimelinePosition, news: &[(i64, Box<[u8]>)]) {
        let put = |(seq, body): &(i64, Box<[u8]>)| {
            let record = Record::new(body).ok()?;
            Some((IndexKey::of(&record), *seq))
        };
        self.note_puts(position, news.iter().filter_map(put));
    }

    /// Returns the texts of this process, if the database has the words of these and no others.
    pub(crate) fn indexes(&self, texts: Option<i64>) -> Option<&Arc<dyn TextSource>> {
        let same = |own: &&Arc<dyn TextSource>| texts == Some(own.fingerprint().cast_signed());
        self.texts.as_ref().filter(same)
    }

    pub(crate) fn asked(&self, query: &Query, position: TimelinePosition) -> Vec<SqlQuery> {
        let mut all = SqlQuery::opened(query, &self.terms, self.nature, position.seen);
        // What is kept of records is as of the puts that this process has seen.
        let now = self.current.now();
        if now.era == position.era && now.seen >= position.seen {
            for asked in &mut all {
                asked.era = Some(position.era);
            }
        }
        all
    }
}
