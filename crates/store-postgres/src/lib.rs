//! The archive on PostgreSQL: one schema per shelf, shared by any number of Hark processes.
//!
//! Read `migrations/0001_shelf.sql` first (the tables). Then read `commit` (makes a batch durable),
//! `search` (runs a query), `layout` (the SQL of all statements) and `state` (shared by the threads
//! of a shelf). `session` and `pool` manage connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use hark_archive::effects::Rules;
use hark_archive::query::explain::Explanation;
use hark_archive::store::{NumberedRecord, RetentionNote, StoreStats, commit_whole};
use hark_archive::{
    CommitError, CommitResult, Id, Query, Search, SearchError, Store, TextSource, Write,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

pub use address::{AddressError, ConnectError, DatabaseAddress};
use commit::CommitterState;
pub use distribute::{DistributeError, Distribution, distribute};
use layout::{CitusLayout, Layout, PlainLayout, StatementForm};
use line::{CurrentPosition, TimelinePosition};
pub use migrate::{MigrateError, Migration};
use others::OtherWriters;
use parts::{PartGrid, Parts};
use pool::Pool;
use replica::{QuerySessions, Replica};
use search::Sessions as _;
use search::recent::RecentRecords;
use session::{Connector, DatabaseSession, StatementError};
pub use shown::{is_database, shown};
use state::{PostgresState, ShelfProperties};
use terms::DatabaseTermHasher;
use time::to_db;
pub use words::state::WordProgress;
use words::state::WordState;

mod address;
pub mod cluster;
mod commit;
mod copy;
mod count;
mod distribute;
mod explain;
mod label_values;
mod layout;
mod line;
mod listen;
mod migrate;
mod others;
mod parts;
mod password;
mod pool;
mod replica;
mod retire;
mod search;
mod session;
mod shown;
mod state;
mod stats;
mod terms;
mod time;
mod waiting;
mod words;

/// Options for storing and querying a shelf. The options may contain a password, so they do not
/// implement `Debug`.
#[derive(Clone)]
pub struct PostgresOptions {
    /// URL of a replica, which runs queries while it is up to date.
    pub read_url: Option<String>,
    /// Maximum number of connections for queries, on the primary and again on the replica.
    pub pool_max: usize,
    /// Time limit of a statement. A query with a longer statement fails.
    pub statement_timeout: Duration,
    /// Time limit for the database to accept a connection.
    pub connect_timeout: Duration,
    /// The width of a new shelf's parts, in seconds.
    pub part_s: u64,
    /// Earliest time of a part, in seconds since 1970.
    pub parts_from_s: u64,
    /// Maximum number of parts of a shelf.
    pub parts_max: usize,
    /// Number of the network's units of time in a second.
    pub units_per_s: u64,
    /// Whether all records have kind 0, so that no kind has to be looked up.
    pub one_kind: bool,
    /// Names of common labels: large parts of all records share their values. A search with another
    /// condition is never driven by such a label.
    pub common_labels: &'static [u8],
    /// Names of labels whose values are listed, for
    /// [`Store::label_values`]. Private labels are never listed.
    pub listed_labels: &'static [u8],
    /// The texts whose words are indexed. With `None`, a search for words reads the records.
    pub texts: Option<Arc<dyn TextSource>>,
    /// Number of shards of a new shelf's tables, if the database is a Citus cluster.
    pub shards: u32,
    /// Whether missing migrations are applied.
    pub migrate: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            read_url: None,
            pool_max: 8,
            statement_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            part_s: 365 * 86_400,
            // 2015: the networks are not much older.
            parts_from_s: 1_420_070_400,
            parts_max: 1_000,
            units_per_s: 1,
            one_kind: false,
            common_labels: &[],
            listed_labels: &[],
            texts: None,
            shards: 12,
            migrate: true,
        }
    }
}

/// Why a shelf could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseOpenError {
    /// The URL cannot be used.
    #[error("the address of the database cannot be used: {0}")]
    Url(String),
    /// The database is unreachable. The server may not be up yet.
    #[error("{0}")]
    Away(String),
    /// The database refused a statement.
    #[error("{0}")]
    Database(String),
    /// The database is older than Hark supports.
    #[error("the database is PostgreSQL {found}; Hark needs {needed} or newer")]
    Version {
        /// The version that the database reports.
        found: String,
        /// The oldest supported major version.
        needed: u32,
    },
    /// The database's schema is not as expected.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
}

impl From<StatementError> for DatabaseOpenError {
    fn from(fault: StatementError) -> Self {
        match fault {
            StatementError::Away(_) => Self::Away(fault.to_string()),
            _ => Self::Database(fault.to_string()),
        }
    }
}

/// The oldest supported major version of PostgreSQL.
const VERSION_MIN: u32 = 15;
/// Maximum number of ids remembered as stored; see [`Store::knows`].
const KNOWN_MAX: usize = 1 << 16;

/// A shelf in a database.
pub struct PostgresStore {
    inner: Arc<PostgresState>,
    schema: String,
    writing: Mutex<CommitterState>,
}

impl PostgresStore {
    /// Opens the shelf of this name in the database at `url`. Creates the shelf if it does not
    /// exist and `options.migrate` is set.
    pub fn open(
        url: &str,
        shelf: &str,
        rules: Box<dyn Rules>,
        options: &PostgresOptions,
    ) -> Result<Self, DatabaseOpenError> {
        let schema = schema(shelf)?;
        let (door, mut session) = enter(url, &schema, options)?;
        if options.migrate {
            for migration in migrate::up(&mut session, &schema, options.shards)? {
                tracing::info!(number = migration.number, name = migration.name, "migrated");
            }
        } else {
            let missing = migrate::status(&mut session, &schema)?;
            let mut missing = missing.iter().filter(|one| one.applied.is_none()).count();
            if missing == 0 && !label_values::is_settled(&mut session, options.listed_labels)? {
                missing = 1;
            }
            if missing > 0 {
                return Err(MigrateError::Missing { missing, shelf: shelf.into() }.into());
            }
        }
        let width = options.part_s.max(1).saturating_mul(options.units_per_s.max(1));
        let (secret, width) = stats::settled(&mut session, width)?;
        let terms = DatabaseTermHasher::new(&secret);
        if options.migrate {
            label_values::settle(&mut session, &terms, options.listed_labels)?;
            // If no process has indexed words before, no index is replaced.
            if let Some(texts) = options.texts.as_ref().filter(|_| !door.layout().is_distributed())
                && WordState::read(&mut session)?.texts.is_none()
            {
                let texts = texts.fingerprint().cast_signed();
                words::index::set_texts(&mut session, Some(texts))?;
            }
        }
        let lines = line::read(&mut session)?;
        let is_distributed = door.layout().is_distributed();
        let rows = session.query_once("SELECT seq, parts FROM state", &[])?;
        let (seq, version) = rows.first().map_or((0, 0), |row| (row.get(0), row.get(1)));
        let parts = Parts::read(&mut session, version)?;
        let replica = options.read_url.as_ref().map(|url| {
            let layout = door.layout();
            let replica = self::door(url, &schema, options, layout)?.noting_in(&door);
            let pool = Pool::new(replica, options.pool_max, options.statement_timeout);
            Ok::<_, DatabaseOpenError>(Replica::new(pool, &secret))
        });
        let replica = replica.transpose()?;
        let pool = Pool::new(door, options.pool_max, options.statement_timeout);
        let inner = PostgresState {
            pool,
            replica,
            rules,
            terms,
            grid: PartGrid {
                width,
                from: options.parts_from_s.saturating_mul(options.units_per_s),
                // Distributed tables have no parts.
                max: if is_distributed { 0 } else { options.parts_max },
            },
            units_per_s: options.units_per_s,
            nature: ShelfProperties {
                one_kind: options.one_kind,
                common_labels: options.common_labels,
                listed_labels: options.listed_labels,
            },
            texts: options.texts.clone().filter(|_| !is_distributed),
            parts: RwLock::new(Arc::new(parts)),
            current: CurrentPosition::new(lines, seq),
            room: Arc::new(Semaphore::new(search::KEPT_ALL_BYTES)),
            known: Mutex::default(),
            recent: RecentRecords::default(),
            density: Mutex::default(),
            away: Mutex::default(),
            has_failed: AtomicBool::new(false),
            writer_process: AtomicI32::new(0),
            others: OtherWriters::default(),
        };
        Ok(Self { inner: Arc::new(inner), schema, writing: Mutex::default() })
    }

    /// Returns the database's name, without its password.
    pub fn database(&self) -> String {
        self.inner.pool.door().name()
    }

    /// Whether the tables are distributed over the workers of a Citus cluster. A cluster has no
    /// search for words.
    pub fn is_cluster(&self) -> bool {
        self.inner.pool.door().layout().is_distributed()
    }

    /// Returns the position at which a query is answered. A query that nothing can match does not
    /// query the database.
    fn position(&self, query: &Query) -> TimelinePosition {
        if query.is_void() { self.inner.current.now() } else { others::newest(&self.inner) }
    }

    /// Fails if a query has a condition of words, and the tables are in a cluster.
    fn must_be_answerable(&self, query: &Query) -> Result<(), SearchError> {
        if query.words.is_none() || !self.is_cluster() {
            return Ok(());
        }
        Err(SearchError::Failed(NO_WORDS_IN_CLUSTER.into()))
    }

    /// Whether the addresses of the primary and the replica are all on this machine.
    pub fn is_near(&self) -> bool {
        let replica = self.inner.replica.as_ref().map(|replica| &replica.pool);
        [Some(&self.inner.pool), replica]
            .into_iter()
            .flatten()
            .all(|pool| pool.door().address().is_near())
    }
}

/// Returns the migrations of a shelf, after applying the missing ones if `up` is set.
pub fn migrations(
    url: &str,
    shelf: &str,
    options: &PostgresOptions,
    up: bool,
) -> Result<Vec<Migration>, DatabaseOpenError> {
    let schema = schema(shelf)?;
    let (_, mut session) = enter(url, &schema, options)?;
    if up {
        migrate::up(&mut session, &schema, options.shards)?;
        let secret = stats::secret(&mut session)?;
        label_values::settle(
            &mut session,
            &DatabaseTermHasher::new(&secret),
            options.listed_labels,
        )?;
    }
    let mut all = migrate::status(&mut session, &schema)?;
    if let Some(last) = all.last_mut().filter(|last| last.applied.is_some())
        && !label_values::is_settled(&mut session, options.listed_labels)?
    {
        // The tables exist, but the values of the network's listed labels are not counted yet.
        last.applied = None;
    }
    Ok(all)
}

fn schema(shelf: &str) -> Result<String, DatabaseOpenError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if shelf.is_empty() || shelf.len() > 40 || !shelf.bytes().all(plain) {
        return Err(DatabaseOpenError::Url(format!("`{shelf}` can not be a shelf's name")));
    }
    Ok(format!("hark_{shelf}"))
}

fn door(
    url: &str,
    schema: &str,
    options: &PostgresOptions,
    layout: &'static dyn Layout,
) -> Result<Connector, DatabaseOpenError> {
    Connector::new(url, schema, options.statement_timeout, options.connect_timeout, layout)
        .map_err(|error| DatabaseOpenError::Url(error.to_string()))
}

/// Opens a session, and determines the shelf's layout from its tables. A new shelf has the layout
/// for a cluster if the database has Citus with workers.
fn enter(
    url: &str,
    schema: &str,
    options: &PostgresOptions,
) -> Result<(Connector, DatabaseSession), DatabaseOpenError> {
    let plain = door(url, schema, options, &PlainLayout)?;
    let mut session = plain.open()?;
    check_version(&mut session)?;
    plain.must_be_apart(&mut session)?;
    let text = "SELECT to_regclass($1::text) IS NOT NULL, to_regclass($2::text) IS NOT NULL";
    let (state, places) = (format!("{schema}.state"), format!("{schema}.id_place"));
    let rows = session.query_once(text, &[&state, &places])?;
    let is_distributed = match rows.first().map(|row| (row.get(0), row.get(1))) {
        Some((_, true)) => true,
        Some((false, false)) => distribute::has_workers(&mut session)?,
        _ => false,
    };
    if !is_distributed {
        return Ok((plain, session));
    }
    let door = door(url, schema, options, &CitusLayout)?;
    let session = door.open()?;
    Ok((door, session))
}

fn check_version(session: &mut DatabaseSession) -> Result<(), DatabaseOpenError> {
    let rows = session.query_once(
        "SELECT current_setting('server_version_num')::int / 10000, current_setting('server_version')",
        &[],
    )?;
    let found = rows.first().map_or((0, String::new()), |row| (row.get::<_, i32>(0), row.get(1)));
    if found.0 < VERSION_MIN.cast_signed() {
        return Err(DatabaseOpenError::Version { found: found.1, needed: VERSION_MIN });
    }
    Ok(())
}

/// The reason why a search for words fails in a cluster.
const NO_WORDS_IN_CLUSTER: &str = "words are searched for in archives in files and on one PostgreSQL server, not on a Citus cluster";

fn failed(fault: &StatementError) -> SearchError {
    SearchError::Failed(fault.to_string())
}

impl Store for PostgresStore {
    fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        commit_whole(writes, |writes| self.commit_some(writes))
    }

    fn commit_some(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        let carried = self.writing.lock().commit(&self.inner, writes).inspect_err(|_| {
            self.inner.has_failed.store(true, Ordering::Relaxed);
        })?;
        let mut known = self.inner.known.lock();
        for key in &carried.deleted {
            let id = self.inner.terms.id(&key.id);
            known.young.remove(&id);
            known.old.remove(&id);
        }
        known.young.extend(carried.kept.iter().map(|(key, _)| self.inner.terms.id(&key.id)));
        if known.young.len() > KNOWN_MAX / 2 {
            known.old = std::mem::take(&mut known.young);
        }
        drop(known);
        self.inner.recent.remove(&carried.deleted);
        self.inner.note_puts(carried.position, carried.kept.iter().copied());
        self.inner.current.reached(carried.position, carried.seq);
        self.inner.current.caught_up();
        Ok(carried.committed)
    }

    /// Knows only the ids that this process stored recently. A query of the database would cost
    /// more than the check of a signature that a known id saves, and a commit finds duplicates
    /// anyway.
    fn knows(&self, id: &Id) -> Result<bool, SearchError> {
        let id = self.inner.terms.id(id);
        let known = self.inner.known.lock();
        Ok(known.young.contains(&id) || known.old.contains(&id))
    }

    fn search(&self, query: &Query) -> Result<Box<dyn Search>, SearchError> {
        self.must_be_answerable(query)?;
        Ok(search::start(&self.inner, query, self.position(query)))
    }

    fn count_visiting(&self, query: &Query, visited: &mut u64) -> Result<Option<u64>, SearchError> {
        self.must_be_answerable(query)?;
        let counted = if query.words.is_some() {
            count::worded(&self.inner, query, self.position(query))
        } else if self.inner.pool.door().layout().is_distributed() {
            count::placed(&self.inner, query)
        } else {
            let position = self.position(query);
            let counting = count::CountQuery::new(&self.inner, query, position);
            let mut reading = QuerySessions::new(Arc::clone(&self.inner), position);
            reading.with(|session| counting.count(session))
        };
        let counted = counted.map_err(|fault| failed(&fault))?;
        *visited += counted.visited;
        Ok(counted.matches)
    }

    fn label_values(&self, name: u8, each: &mut dyn FnMut(&[u8], u64)) -> Result<(), SearchError> {
        if !self.inner.nature.listed_labels.contains(&name) {
            return Err(SearchError::not_listed(name));
        }
        let mut after = i64::MIN;
        let read = |session: &mut _| label_values::read(session, name, &mut after, each);
        self.inner.pool.with(read).map_err(|fault| failed(&fault))
    }

    fn expired(&self, now: u64, limit: usize) -> Result<Vec<Id>, SearchError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self
            .inner
            .pool
            .with(|session| session.query(StatementForm::Expired, &[&to_db(now), &limit]));
        let id = |row: &tokio_postgres::Row| row.get::<_, &[u8]>(0).try_into().unwrap_or_default();
        Ok(rows.map_err(|fault| failed(&fault))?.iter().map(id).collect())
    }

    fn explain(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.must_be_answerable(query)?;
        explain::explain(&self.inner, query).map_err(|fault| failed(&fault))
    }

    fn explain_count(&self, query: &Query) -> Result<Explanation, SearchError> {
        self.must_be_answerable(query)?;
        explain::explain_count(&self.inner, query).map_err(|fault| failed(&fault))
    }

    fn stats(&self) -> StoreStats {
        stats::stats(&self.inner, &self.schema)
    }

    fn note(&self, note: RetentionNote) -> Result<Option<u64>, SearchError> {
        let text = "SELECT value FROM meta WHERE name = $1";
        let read = |session: &mut DatabaseSession| session.query_once(text, &[&note.name()]);
        let rows = self.inner.pool.with(read).map_err(|fault| failed(&fault))?;
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
        let dropped =
            self.inner.pool.with(|session| retire::oldest_part(&self.inner, session, to, spared));
        dropped.map_err(|fault| failed(&fault))
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

    fn on_news(&self, mut wake: Box<dyn Fn() + Send>) {
        let (inner, schema) = (Arc::downgrade(&self.inner), self.schema.clone());
        let run = move || listen::run(&inner, &schema, &mut *wake);
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
