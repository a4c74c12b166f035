//! Opens a shelf in a database.

use std::sync::Arc;
use std::sync::atomic::AtomicI32;

use hark_archive::TextSource;
use hark_archive::effects::Rules;
use parking_lot::Mutex;

use crate::citus::{CitusLayout, has_workers};
use crate::connector::Connector;
use crate::error::StatementError;
use crate::layout::Layout;
use crate::line::{self, CurrentPosition};
use crate::migrate::{self, MigrateError, Migration};
use crate::options::PostgresOptions;
use crate::others::OtherWriters;
use crate::parts::{PartGrid, Parts};
use crate::plain::{PlainLayout, make_new_slim, make_slim, plain_layout};
use crate::pool::Pool;
use crate::properties::ShelfProperties;
use crate::replica::Replica;
use crate::search::SearchState;
use crate::session::DatabaseSession;
use crate::state::PostgresState;
use crate::terms::DatabaseTermHasher;
use crate::words::state::WordState;
use crate::{label_values, stats, words};

/// Why a shelf could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseOpenError {
    /// The URL cannot be used.
    #[error("the address of the database cannot be used: {0}")]
    Url(String),
    /// The database cannot be reached. Perhaps the server has not started yet.
    #[error("{0}")]
    Away(String),
    /// The database refused a statement.
    #[error("{0}")]
    Database(String),
    /// The database is older than the versions that Hark supports.
    #[error("the database is PostgreSQL {found}; Hark needs {needed} or newer")]
    Version {
        /// The version that the database reports.
        found: String,
        /// The oldest supported major version.
        needed: u32,
    },
    /// The schema of the database is not as this version of Hark expects.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
}

impl From<StatementError> for DatabaseOpenError {
    fn from(fault: StatementError) -> Self {
        match fault {
            StatementError::Away(_) | StatementError::Late(_) => Self::Away(fault.to_string()),
            StatementError::Worker(fault) => Self::from(*fault),
            _ => Self::Database(fault.to_string()),
        }
    }
}

/// The oldest supported major version of PostgreSQL.
const VERSION_MIN: u32 = 15;
/// A shelf that is being opened: its layout, a connector, and an open session.
struct EnteredShelf {
    /// Whether the database has the shelf's tables.
    exists: bool,
    layout: &'static dyn Layout,
    connector: Connector,
    session: DatabaseSession,
}

/// Opens the shelf with this name, and returns its state and the name of its schema.
pub(crate) fn open(
    url: &str,
    shelf: &str,
    rules: Box<dyn Rules>,
    options: &PostgresOptions,
) -> Result<(PostgresState, String), DatabaseOpenError> {
    let schema = schema(shelf)?;
    let EnteredShelf { layout, connector, mut session, .. } = enter(url, &schema, options)?;
    let session = &mut session;
    let facts = layout.facts();
    let layout = prepare_tables(session, layout, (shelf, &schema), options)?;
    let width = options.part_s.max(1).saturating_mul(options.units_per_s.max(1));
    let (secret, width) = stats::open_stats(session, width)?;
    let terms = DatabaseTermHasher::new(&secret);
    let texts = options.texts.clone().filter(|_| facts.has_words);
    if options.migrate {
        label_values::count_values(session, layout, &terms, options.listed_labels)?;
        // If no words were indexed before, there is no old index to replace.
        if let Some(texts) = &texts
            && WordState::read(session)?.texts.is_none()
        {
            let texts = texts.fingerprint().cast_signed();
            words::index::set_texts(session, Some(texts))?;
        }
    }
    let rows = session.query_once("SELECT parts FROM state", &[])?;
    let version = rows.first().map_or(0, |row| row.get(0));
    let parts = Parts::read(session, version)?;
    let replica = options.read_url.as_ref().map(|url| {
        let replica = self::connector(url, &schema, options, layout)?.noting_in(&connector);
        let pool = Pool::new(replica, options.pool_max);
        Ok::<_, DatabaseOpenError>(Replica::new(pool, &secret))
    });
    let grid = PartGrid {
        width,
        from: options.parts_from_s.saturating_mul(options.units_per_s),
        max: options.parts_max,
    };
    let shards = layout.shard_reads(&connector, options.pool_max);
    let shards = shards.filter(|_| options.shard_reads);
    let search = SearchState::new(parts, layout.record_cache(), shards);
    // The number is read before the timelines: a timeline that begins in between has the same puts
    // up to this number.
    let seq = layout.newest(session, &search)?.map_or(0, |(_, seq)| seq);
    let lines = line::read(session)?;
    let state = PostgresState {
        replica: replica.transpose()?,
        pool: Pool::new(connector, options.pool_max),
        layout,
        shelf: properties(rules, terms, options),
        grid: facts.has_parts.then_some(grid),
        texts,
        search,
        current: CurrentPosition::new(lines, seq),
        known: Mutex::default(),
        away: Mutex::default(),
        writer_process: AtomicI32::new(0),
        parts_rest: Mutex::default(),
        others: OtherWriters::default(),
        wake: Mutex::default(),
    };
    Ok((state, schema))
}

fn properties(
    rules: Box<dyn Rules>,
    terms: DatabaseTermHasher,
    options: &PostgresOptions,
) -> ShelfProperties {
    ShelfProperties {
        rules,
        terms,
        units_per_s: options.units_per_s,
        one_kind: options.one_kind,
        common_labels: options.common_labels,
        listed_labels: options.listed_labels,
    }
}

/// The tables of a shelf, and a session that only reads the tables.
pub(crate) struct EnteredTables {
    pub(crate) layout: &'static dyn Layout,
    pub(crate) session: DatabaseSession,
    pub(crate) shelf: ShelfProperties,
    /// The texts whose words this process indexes.
    pub(crate) texts: Option<Arc<dyn TextSource>>,
}

/// Opens a session on a shelf's tables. With `options.migrate` unset, fails if migrations are
/// missing, and writes nothing, so the database may be a replica.
pub(crate) fn enter_tables(
    url: &str,
    shelf: &str,
    rules: Box<dyn Rules>,
    options: &PostgresOptions,
) -> Result<EnteredTables, DatabaseOpenError> {
    let schema = schema(shelf)?;
    let EnteredShelf { layout, mut session, .. } = enter(url, &schema, options)?;
    let layout = prepare_tables(&mut session, layout, (shelf, &schema), options)?;
    let secret = stats::secret(&mut session)?;
    let terms = DatabaseTermHasher::new(&secret);
    let texts = options.texts.clone().filter(|_| layout.facts().has_words);
    let shelf = properties(rules, terms, options);
    Ok(EnteredTables { layout, session, shelf, texts })
}

/// Two sessions on a shelf's tables.
pub(crate) struct EnteredSessions {
    pub(crate) layout: &'static dyn Layout,
    pub(crate) first: DatabaseSession,
    pub(crate) second: DatabaseSession,
}

/// Opens two sessions on a shelf's tables, with `options.migrate` unset. Returns `None` if the
/// database has no such shelf.
pub(crate) fn enter_sessions(
    url: &str,
    shelf: &str,
    options: &PostgresOptions,
) -> Result<Option<EnteredSessions>, DatabaseOpenError> {
    let schema = schema(shelf)?;
    let EnteredShelf { exists, layout, connector, session: mut first } =
        enter(url, &schema, options)?;
    if !exists {
        return Ok(None);
    }
    prepare_tables(&mut first, layout, (shelf, &schema), options)?;
    Ok(Some(EnteredSessions { layout, first, second: connector.open()? }))
}

/// If `options.migrate` is set, applies the missing migrations; otherwise fails if migrations are
/// missing. Returns the layout that the tables have now.
fn prepare_tables(
    session: &mut DatabaseSession,
    layout: &'static dyn Layout,
    (shelf, schema): (&str, &str),
    options: &PostgresOptions,
) -> Result<&'static dyn Layout, DatabaseOpenError> {
    if options.migrate {
        for migration in migrate::up(session, layout, schema, options.shards)? {
            tracing::info!(number = migration.number, name = migration.name, "migrated");
        }
        if options.one_label && !layout.facts().is_cluster {
            make_new_slim(session)?;
        }
        return current_layout(session, layout);
    }
    let missing = migrate::status(session, layout, schema)?;
    let mut missing = missing.iter().filter(|one| one.applied.is_none()).count();
    if missing == 0 && !label_values::has_same_labels(session, options.listed_labels)? {
        missing = 1;
    }
    if missing > 0 {
        return Err(MigrateError::Missing { missing, shelf: shelf.into() }.into());
    }
    current_layout(session, layout)
}

/// Returns the layout of the tables. The tables for one server may have become slim.
fn current_layout(
    session: &mut DatabaseSession,
    layout: &'static dyn Layout,
) -> Result<&'static dyn Layout, DatabaseOpenError> {
    if layout.facts().is_cluster { Ok(layout) } else { Ok(plain_layout(session)?) }
}

/// Returns the migrations of a shelf. If `up` is set, applies the missing migrations first.
pub fn migrations(
    url: &str,
    shelf: &str,
    options: &PostgresOptions,
    up: bool,
) -> Result<Vec<Migration>, DatabaseOpenError> {
    let schema = schema(shelf)?;
    let EnteredShelf { layout, mut session, .. } = enter(url, &schema, options)?;
    if up {
        migrate::up(&mut session, layout, &schema, options.shards)?;
        let secret = stats::secret(&mut session)?;
        label_values::count_values(
            &mut session,
            layout,
            &DatabaseTermHasher::new(&secret),
            options.listed_labels,
        )?;
        if options.one_label && !layout.facts().is_cluster {
            make_slim(&mut session)?;
        }
    }
    let mut all = migrate::status(&mut session, layout, &schema)?;
    if let Some(last) = all.last_mut().filter(|last| last.applied.is_some())
        && !label_values::has_same_labels(&mut session, options.listed_labels)?
    {
        // The tables exist, but the values of the listed labels are not counted yet, so the last
        // migration counts as missing.
        last.applied = None;
    }
    Ok(all)
}

/// Returns the name of a shelf's schema.
pub(crate) fn schema(shelf: &str) -> Result<String, DatabaseOpenError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if shelf.is_empty() || shelf.len() > 40 || !shelf.bytes().all(plain) {
        return Err(DatabaseOpenError::Url(format!("`{shelf}` can not be a shelf's name")));
    }
    Ok(format!("hark_{shelf}"))
}

/// Returns a connector for the tables of a schema.
pub(crate) fn connector(
    url: &str,
    schema: &str,
    options: &PostgresOptions,
    layout: &dyn Layout,
) -> Result<Connector, DatabaseOpenError> {
    Connector::new(
        url,
        schema,
        options.statement_timeout,
        options.connect_timeout,
        layout.settings(),
    )
    .map_err(|error| DatabaseOpenError::Url(error.to_string()))
}

/// Opens a session, and finds out the layout of the shelf from its tables. A new shelf gets the
/// layout for a cluster if the database has Citus and workers.
fn enter(
    url: &str,
    schema: &str,
    options: &PostgresOptions,
) -> Result<EnteredShelf, DatabaseOpenError> {
    let plain = connector(url, schema, options, &PlainLayout::LABELLED)?;
    let mut session = plain.open()?;
    check_version(&mut session)?;
    plain.must_be_apart(&mut session)?;
    let text = "SELECT to_regclass($1::text) IS NOT NULL, to_regclass($2::text) IS NOT NULL";
    let (state, places) = (format!("{schema}.state"), format!("{schema}.id_place"));
    let rows = session.query_once(text, &[&state, &places])?;
    let (exists, has_places) = rows.first().map_or((false, false), |row| (row.get(0), row.get(1)));
    if !has_places && (exists || !has_workers(&mut session)?) {
        let layout = &PlainLayout::LABELLED;
        return Ok(EnteredShelf { exists, layout, connector: plain, session });
    }
    let connector = connector(url, schema, options, &CitusLayout)?;
    let session = connector.open()?;
    Ok(EnteredShelf { exists, layout: &CitusLayout, connector, session })
}

/// Fails if the database is older than the versions that Hark supports.
pub(crate) fn check_version(session: &mut DatabaseSession) -> Result<(), DatabaseOpenError> {
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
