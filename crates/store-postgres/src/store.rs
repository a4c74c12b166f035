//! A shelf in a database, as a store of the archive.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::effects::Rules;
use hark_archive::query::explain::Explanation;
use hark_archive::store::shares::{RecordShare, ShareBy, ShareKey};
use hark_archive::store::{NumberedRecord, RetentionNote, StoreStats, commit_whole};
use hark_archive::{CommitError, CommitResult, Id, Query, Search, SearchError, Store, Write};
use parking_lot::Mutex;

use crate::commit::CommitterState;
use crate::layout::SharedStatement;
use crate::open::{DatabaseOpenError, open};
use crate::options::PostgresOptions;
use crate::plain::{oldest_part, word_count};
use crate::query_sessions::QuerySessions;
use crate::session::DatabaseSession;
use crate::state::PostgresState;
use crate::time::to_db;
use crate::words::state::{WordProgress, WordState};
use crate::{count, explain, label_values, listen, search, shares, stats, words};

/// Maximum number of ids that are remembered as stored; see [`Store::knows`].
const KNOWN_MAX: usize = 1 << 16;

/// A shelf in a database.
pub struct PostgresStore {
    inner: Arc<PostgresState>,
    schema: String,
    writing: Mutex<CommitterState>,
}

impl PostgresStore {
    /// Opens the shelf with this name in the database at `url`. If the shelf does not exist and
    /// `options.migrate` is set, creates the shelf.
    pub fn open(
        url: &str,
        shelf: &str,
        rules: Box<dyn Rules>,
        options: &PostgresOptions,
    ) -> Result<Self, DatabaseOpenError> {
        let (state, schema) = open(url, shelf, rules, options)?;
        Ok(Self { inner: Arc::new(state), schema, writing: Mutex::default() })
    }

    /// Returns the database's name, without its password.
    pub fn database(&self) -> String {
        self.inner.pool.door().name()
    }

    /// Whether the tables are distributed over the workers of a Citus cluster. A cluster cannot
    /// search for words.
    pub fn is_cluster(&self) -> bool {
        self.inner.layout.facts().is_cluster
    }

    /// Fails if a query has words and the tables are in a cluster.
    fn must_be_answerable(&self, query: &Query) -> Result<(), SearchError> {
        if query.words.is_none() || self.inner.layout.facts().has_words {
            return Ok(());
        }
        Err(SearchError::Failed(NO_WORDS_IN_CLUSTER.into()))
    }

    /// Whether the addresses show that primary and replica both run on this machine.
    pub fn is_near(&self) -> bool {
        let replica = self.inner.replica.as_ref().map(|replica| &replica.pool);
        [Some(&self.inner.pool), replica]
            .into_iter()
            .flatten()
            .all(|pool| pool.door().address().is_near())
    }

    /// Indexes the words of all stored records. A server does the same by itself in the background.
    /// `progress` may stop the work, and the next call continues the work from there. Returns the
    /// progress; `None` if the options have no texts or the database is a cluster.
    pub fn index_words(
        &self,
        progress: &mut dyn FnMut(WordProgress) -> ControlFlow<()>,
    ) -> Result<Option<WordProgress>, SearchError> {
        let Some(texts) = &self.inner.texts else { return Ok(None) };
        let indexed = words::index::index_all(&self.inner, texts, progress);
        Ok(Some(indexed?))
    }

    /// Deletes the index of words, regardless of the texts that it covers. Returns whether there
    /// was an index of words.
    pub fn drop_words(&self) -> Result<bool, SearchError> {
        if !self.inner.layout.facts().has_words {
            return Ok(false);
        }
        Ok(words::index::set_texts_in_time(&self.inner, None)?.is_some())
    }

    /// Returns the progress of indexing the words of the options' texts; `None` if the database
    /// does not index these texts.
    pub fn word_progress(&self) -> Result<Option<WordProgress>, SearchError> {
        if self.inner.texts.is_none() {
            return Ok(None);
        }
        let state = self.inner.pool.with(WordState::read)?;
        Ok(self.inner.indexes(state.texts).map(|_| state.progress()))
    }
}

/// Why a search for words fails in a cluster.
const NO_WORDS_IN_CLUSTER: &str = "words are searched for in archives in files and on one PostgreSQL server, not on a Citus cluster";

impl Store for PostgresStore {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        commit_whole(writes, |writes| self.commit_some(writes))
    }

    fn commit_some(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        let carried = self.writing.lock().commit(&self.inner, writes)?;
        let mut known = self.inner.known.lock();
        for key in &carried.deleted {
            let id = self.inner.shelf.terms.id(&key.id);
            known.young.remove(&id);
            known.old.remove(&id);
        }
        known.young.extend(carried.kept.iter().map(|(key, _)| self.inner.shelf.terms.id(&key.id)));
        if known.young.len() > KNOWN_MAX / 2 {
            known.old = std::mem::take(&mut known.young);
        }
        drop(known);
        if let Some(recent) = &self.inner.search.recent {
            recent.remove(&carried.deleted);
        }
        self.inner.note_puts(carried.position, carried.kept.iter().copied());
        self.inner.current.reached(carried.position, carried.seq);
        self.inner.current.caught_up();
        Ok(carried.committed)
    }

    /// Only ids that this process has stored recently are known. A query of the database would cost
    /// more than the signature check that the query could save, and a commit finds duplicates
    /// anyway.
    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        let id = self.inner.shelf.terms.id(id);
        let known = self.inner.known.lock();
        Ok(known.young.contains(&id) || known.old.contains(&id))
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        self.must_be_answerable(query)?;
        Ok(search::start(QuerySessions::ask(&self.inner, query)?, query))
    }

    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError> {
        self.must_be_answerable(query)?;
        let sessions = &mut QuerySessions::ask(&self.inner, query)?;
        let counted = if query.words.is_some() {
            word_count::worded(sessions, query)?
        } else {
            count::count(sessions, query)?
        };
        *visited += counted.visited;
        Ok(counted.matches)
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
        if !self.inner.shelf.listed_labels.contains(&name) {
            return Err(SearchError::not_listed(name));
        }
        let mut after = i64::MIN;
        let read = |session: &mut _| label_values::read(session, name, &mut after, each);
        Ok(self.inner.pool.with(read)?)
    }

    fn shares(
        &self,
        by: ShareBy,
        each: &mut dyn FnMut(ShareKey, RecordShare),
    ) -> Result<(), SearchError> {
        shares::shares(&self.inner, by, each)
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self
            .inner
            .pool
            .with(|session| session.query(SharedStatement::Expired, &[&to_db(now), &limit]));
        let id = |row: &tokio_postgres::Row| row.get::<_, &[u8]>(0).try_into().unwrap_or_default();
        Ok(rows?.iter().map(id).collect())
    }

    fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.must_be_answerable(query)?;
        Ok(explain::explain(&self.inner, query)?)
    }

    fn explain_count(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.must_be_answerable(query)?;
        Ok(explain::explain_count(&self.inner, query)?)
    }

    fn stats(&self) -> StoreStats {
        stats::stats(&self.inner, &self.schema)
    }

    fn note(&self, note: RetentionNote) -> Result<Option<u64>, SearchError> {
        let text = "SELECT value FROM meta WHERE name = $1";
        let read = |session: &mut DatabaseSession| session.query_once(text, &[&note.name()]);
        let rows = self.inner.pool.with(read)?;
        let number = rows.first().and_then(|row| row.get::<_, &[u8]>(0).try_into().ok());
        Ok(number.map(u64::from_be_bytes))
    }

    fn set_note(&self, note: RetentionNote, number: Option<u64>) -> Result<(), CommitError> {
        let name = note.name();
        let set = "INSERT INTO meta VALUES ($1, $2) \
                   ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value";
        let written = self.inner.pool.with(|session| match number {
            Some(number) => session.query_once(set, &[&name, &number.to_be_bytes().as_slice()]),
            None => session.query_once("DELETE FROM meta WHERE name = $1", &[&name]),
        });
        written.map(drop).map_err(|fault| CommitError::Unavailable(fault.to_string()))
    }

    fn drop_part(&self, to: u64, spared: &[u32]) -> Result<Option<u64>, SearchError> {
        if self.inner.grid.is_none() {
            return Ok(None);
        }
        Ok(self.inner.pool.with(|session| oldest_part(&self.inner, session, to, spared))?)
    }

    fn medium(&self) -> &'static str {
        "the database"
    }

    fn trouble(&self) -> Option<String> {
        self.inner.away.lock().clone().or_else(|| self.inner.current.trouble())
    }

    fn news(&self) -> Vec<NumberedRecord> {
        listen::news(&self.inner).unwrap_or_else(|fault| {
            tracing::debug!(%fault, "what others have put is delivered later");
            Vec::new()
        })
    }

    fn has_other_writers(&self) -> bool {
        self.inner.others.may_be()
    }

    fn on_news(&self, wake: Box<dyn Fn() + Send>) {
        *self.inner.wake.lock() = Some(wake);
        let (inner, schema) = (Arc::downgrade(&self.inner), self.schema.clone());
        let run = move || listen::run(&inner, &schema);
        let listening = hark_archive::vital::spawn("hark-listen", run);
        if let Err(error) = listening {
            tracing::error!(%error, "what other processes put is not delivered: no thread can be started");
        }
        if self.inner.texts.is_some() {
            let inner = Arc::downgrade(&self.inner);
            let run = move || words::index::run(&inner);
            if let Err(error) = hark_archive::vital::spawn("hark-words", run) {
                tracing::error!(%error, "stored records are not indexed: no thread can be started");
            }
        }
    }
}
