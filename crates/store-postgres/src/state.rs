//! The state that the threads of a shelf share.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::time::Instant;

use hark_archive::{Query, Record, TextSource};
use parking_lot::Mutex;

use crate::layout::Layout;
use crate::line::{CurrentPosition, TimelinePosition};
use crate::news::NumberedPut;
use crate::others::OtherWriters;
use crate::parts::{PartGrid, Parts};
use crate::pool::Pool;
use crate::properties::ShelfProperties;
use crate::replica::Replica;
use crate::search::{SearchState, SqlQuery};
use crate::time::IndexKey;

/// The state that the threads of a shelf share.
pub(crate) struct PostgresState {
    pub(crate) pool: Pool,
    pub(crate) replica: Option<Replica>,
    /// The layout of the tables.
    pub(crate) layout: &'static dyn Layout,
    pub(crate) shelf: ShelfProperties,
    /// The parts that the shelf can have; `None` if the layout has no parts.
    pub(crate) grid: Option<PartGrid>,
    /// The texts whose words this process indexes.
    pub(crate) texts: Option<Arc<dyn TextSource>>,
    pub(crate) search: SearchState,
    /// The position up to which puts are delivered and visible to searches.
    pub(crate) current: CurrentPosition,
    pub(crate) known: Mutex<RecentIds>,
    /// While the database cannot be reached, the reason.
    pub(crate) away: Mutex<Option<String>>,
    /// The id of the database's process that serves the session for commits; 0 if it is not known.
    pub(crate) writer_process: AtomicI32,
    /// The time before which no part is made, because it took too long.
    pub(crate) parts_rest: Mutex<Option<Instant>>,
    /// Whether other processes write to the shelf.
    pub(crate) others: OtherWriters,
    /// Wakes the thread that delivers the puts of other processes; `None` if this process does not
    /// deliver these puts.
    pub(crate) wake: Mutex<Option<Box<dyn Fn() + Send>>>,
}

/// Hashes of ids that were stored recently, in two generations.
#[derive(Default)]
pub(crate) struct RecentIds {
    pub(crate) young: HashSet<u64>,
    pub(crate) old: HashSet<u64>,
}

impl PostgresState {
    pub(crate) fn parts(&self) -> Arc<Parts> {
        self.search.parts()
    }

    pub(crate) fn set_parts(&self, parts: Parts) -> Arc<Parts> {
        self.search.set_parts(parts)
    }

    /// Wakes the thread that delivers the puts of other processes. Returns false if this process
    /// has no such thread.
    pub(crate) fn wake(&self) -> bool {
        let wake = self.wake.lock();
        wake.as_ref().inspect(|wake| wake()).is_some()
    }

    /// Forgets the known ids, because other processes may have deleted their records.
    pub(crate) fn forget_known(&self) {
        *self.known.lock() = RecentIds::default();
    }

    /// Adds puts to the cache of recent records. The numbers are those of the database. The caller
    /// must do this before `current` reaches these numbers.
    pub(crate) fn note_puts(
        &self,
        position: TimelinePosition,
        puts: impl Iterator<Item = (IndexKey, i64)>,
    ) {
        if let Some(recent) = &self.search.recent {
            recent.put(position.era, puts);
        }
    }

    /// Does the same as [`note_puts`](Self::note_puts), for puts of other processes.
    pub(crate) fn note_news(&self, position: TimelinePosition, news: &[NumberedPut]) {
        let put = |(seq, body): &NumberedPut| {
            let record = Record::new(body).ok()?;
            Some((IndexKey::of(&record), *seq))
        };
        self.note_puts(position, news.iter().filter_map(put));
    }

    /// Returns the texts of this process, if the database has indexed exactly the words of these
    /// texts.
    pub(crate) fn indexes(&self, texts: Option<i64>) -> Option<&Arc<dyn TextSource>> {
        let same = |own: &&Arc<dyn TextSource>| texts == Some(own.fingerprint().cast_signed());
        self.texts.as_ref().filter(same)
    }

    pub(crate) fn open_queries(&self, query: &Query, position: TimelinePosition) -> Vec<SqlQuery> {
        let mut all = SqlQuery::opened(query, &self.shelf, position.seen);
        for asked in &mut all {
            asked.on_shards = true;
        }
        // The cache of records belongs to the puts that this process has seen.
        let now = self.current.now();
        if now.era == position.era && now.seen >= position.seen {
            for asked in &mut all {
                asked.era = Some(position.era);
            }
        }
        all
    }
}
