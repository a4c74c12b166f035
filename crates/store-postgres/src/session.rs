//! One connection to the database, used by one thread at a time.
//!
//! The thread that waits for a result drives the socket on the session's own runtime. So a result
//! wakes no other thread, and the archive's code stays synchronous.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{SinkExt as _, TryStreamExt as _};
use hark_archive::meter::{Histogram, HistogramSnapshot};
use parking_lot::RwLock;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::address::{AddressError, ConnectError, DatabaseAddress, with_cause};
use crate::layout::{Layout, PlainLayout, StatementForm};
use crate::waiting::ConnectionRuntime;

/// Maximum number of statements that a session keeps prepared. Each part adds its own statements.
const STATEMENTS_MAX: usize = 256;

/// Time limit for a node of a cluster to accept a connection, and the idle time after which a
/// connection to a node is probed.
const NODE_ANSWERS: Duration = Duration::from_secs(5);
/// Time without an answer to a probe after which a node's connection counts as lost.
const NODE_LOST: Duration = Duration::from_mins(1);

/// Why a statement failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StatementError {
    /// The database is unreachable, or the connection was lost. A statement in progress may or may
    /// not have been executed.
    #[error("the database is away: {0}")]
    Away(String),
    /// The database refused a statement.
    #[error("the database refused: {0}")]
    Refused(String),
    /// The database refused a statement because the lock of a table was not free in time.
    #[error("the database refused, as others use what is to be changed: {0}; try again")]
    Busy(String),
    /// The connection is shared with other sessions, which change its settings.
    #[error(
        "a pooler gives this session's statements to connections of other sessions, as PgBouncer does \
         with pool_mode = transaction; Hark needs a connection for as long as a session lasts: set \
         pool_mode = session for its database, or name PostgreSQL itself"
    )]
    Shared,
    /// The database refused a statement because a table does not exist.
    #[error("the database refused: {0}")]
    Missing(String),
}

impl From<ConnectError> for StatementError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Database(error) => Self::new(&error),
            error @ (ConnectError::Certificate(_) | ConnectError::Password(_)) => {
                Self::Away(error.to_string())
            }
        }
    }
}

impl StatementError {
    pub(crate) fn new(error: &tokio_postgres::Error) -> Self {
        let Some(refused) = error.as_db_error() else {
            return Self::Away(with_cause(error));
        };
        let detail = refused.detail().map_or(String::new(), |detail| format!(" ({detail})"));
        let said = format!("{}{detail}", refused.message());
        // The server is shutting down, starting up, or out of connections.
        let code = refused.code().code();
        if code.starts_with("57P") || code.starts_with("08") || code == "53300" {
            Self::Away(said)
        } else if code == "42P01" {
            Self::Missing(said)
        } else if code == "55P03" {
            Self::Busy(said)
        } else {
            Self::Refused(said)
        }
    }

    pub(crate) fn is_away(&self) -> bool {
        matches!(self, Self::Away(_))
    }
}

/// The durations of statements, by form.
#[derive(Debug, Default)]
pub(crate) struct StatementTimes(RwLock<BTreeMap<&'static str, Histogram>>);

impl StatementTimes {
    fn note(&self, form: StatementForm, time: Duration) {
        let all = self.0.read();
        if let Some(histogram) = all.get(form.name()) {
            return histogram.note(time);
        }
        drop(all);
        let mut all = self.0.write();
        all.entry(form.name()).or_default().note(time);
    }

    pub(crate) fn read(&self) -> Vec<(&'static str, HistogramSnapshot)> {
        let all = self.0.read();
        all.iter().map(|(form, times)| (*form, times.read())).collect()
    }
}

/// Opens sessions.
#[derive(Clone)]
pub(crate) struct Connector {
    address: DatabaseAddress,
    /// The statements that set a session's settings.
    settings: String,
    /// The schema of names without a schema. `None`: the database's default.
    schema: Option<String>,
    timeout: Duration,
    layout: &'static dyn Layout,
    /// Shared by all sessions.
    pub(crate) statement_times: Arc<StatementTimes>,
}

impl Connector {
    /// Creates a connector to the tables of `schema`, with this layout, in the database at `url`.
    pub(crate) fn new(
        url: &str,
        schema: &str,
        statement_timeout: Duration,
        connect_timeout: Duration,
        layout: &'static dyn Layout,
    ) -> Result<Self, AddressError> {
        let mut address = DatabaseAddress::read(url)?;
        let config = &mut address.config;
        let path = std::iter::once(("search_path", schema));
        let settings = set(path.chain(layout.settings().iter().copied()), statement_timeout);
        config.connect_timeout(connect_timeout);
        config.keepalives_idle(Duration::from_secs(30));
        config.tcp_user_timeout(statement_timeout);
        if config.get_application_name().is_none() {
            config.application_name("hark");
        }
        let timeout = statement_timeout + Duration::from_secs(5);
        let schema = Some(schema.to_owned());
        Ok(Self { address, settings, schema, timeout, layout, statement_times: Arc::default() })
    }

    /// Creates a connector to a node of a cluster, for statements that need no schema and take at
    /// most `limit`. A lost node is noticed within a minute, even if a statement may take days.
    pub(crate) fn to_node(mut address: DatabaseAddress, limit: Duration) -> Self {
        let config = &mut address.config;
        let settings = set(std::iter::empty(), limit);
        config.connect_timeout(NODE_ANSWERS);
        config.keepalives_idle(NODE_ANSWERS);
        config.keepalives_interval(NODE_ANSWERS);
        config.tcp_user_timeout(NODE_LOST);
        if config.get_application_name().is_none() {
            config.application_name("hark");
        }
        let timeout = limit.saturating_add(Duration::from_secs(5));
        Self {
            address,
            settings,
            schema: None,
            timeout,
            layout: &PlainLayout,
            statement_times: Arc::default(),
        }
    }

    /// Opens a session.
    pub(crate) fn open(&self) -> Result<DatabaseSession, StatementError> {
        self.open_within(self.timeout)
    }

    /// Opens a session, or fails after `limit`. A suspended server accepts connections but does not
    /// answer.
    pub(crate) fn open_within(&self, limit: Duration) -> Result<DatabaseSession, StatementError> {
        let runtime = ConnectionRuntime::new()?;
        let opening = async {
            let (client, connection) = self.address.connect().await?;
            // The task ends with the session. Its errors are returned to the thread that waits for
            // a result.
            tokio::spawn(connection);
            let mark = self.prepare(&client).await?;
            Ok::<_, StatementError>((client, mark))
        };
        let opened = runtime.wait(async { tokio::time::timeout(limit, opening).await })?;
        let late = |_| StatementError::Away("no answer came".into());
        let (client, mark) = opened.map_err(late)??;
        Ok(DatabaseSession {
            client,
            mark,
            runtime,
            statements: HashMap::new(),
            timeout: self.timeout,
            layout: self.layout,
            statement_times: Arc::clone(&self.statement_times),
            trace: None,
        })
    }

    /// Sets a session's settings, and checks that they are in effect, before any other statement.
    /// Returns the session's mark: a random value, kept in a setting that serves only this purpose.
    ///
    /// Settings are not sent as startup parameters, which a pooler may refuse or ignore.
    pub(crate) async fn prepare(&self, client: &Client) -> Result<String, StatementError> {
        let failed = |error: tokio_postgres::Error| StatementError::new(&error);
        let mark = getrandom::u64().map_err(|error| StatementError::Refused(error.to_string()))?;
        let mark = format!("{mark:016x}");
        let settings = format!("{}SET {MARK} = '{mark}'", self.settings);
        client.batch_execute(&settings).await.map_err(failed)?;
        let text =
            format!("SELECT current_setting('{MARK}', true), current_setting('search_path')");
        let rows = client.query(&text, &[]).await.map_err(failed)?;
        let Some(row) = rows.first() else { return Err(StatementError::Shared) };
        let (found, path): (Option<&str>, &str) = (row.get(0), row.get(1));
        let has_schema = self.schema.as_ref().is_none_or(|schema| schema == path);
        if found == Some(mark.as_str()) && has_schema {
            Ok(mark)
        } else {
            Err(StatementError::Shared)
        }
    }

    /// Fails if `session` loses its settings when another session is opened. This happens behind a
    /// pooler that shares connections between transactions of different sessions.
    pub(crate) fn must_be_apart(
        &self,
        session: &mut DatabaseSession,
    ) -> Result<(), StatementError> {
        let other = self.open()?;
        session.must_be_itself()?;
        drop(other);
        Ok(())
    }

    /// Returns the same connector, but records the durations of statements with those of `other`.
    pub(crate) fn noting_in(self, other: &Self) -> Self {
        Self { statement_times: Arc::clone(&other.statement_times), ..self }
    }

    /// Returns the layout of the tables.
    pub(crate) fn layout(&self) -> &'static dyn Layout {
        self.layout
    }

    pub(crate) fn address(&self) -> &DatabaseAddress {
        &self.address
    }

    /// Returns the database's name, without its password.
    pub(crate) fn name(&self) -> String {
        let hosts: Vec<String> = self.address.hosts().collect();
        format!("{}/{}", hosts.join(","), self.address.config.get_dbname().unwrap_or_default())
    }
}

/// The setting that identifies a session.
const MARK: &str = "hark.session";

/// Returns the statements that set these settings, each with its semicolon.
fn set<'a>(
    settings: impl Iterator<Item = (&'a str, &'a str)>,
    statement_timeout: Duration,
) -> String {
    let mut all = format!("SET statement_timeout = {};", statement_timeout.as_millis());
    for (name, value) in settings {
        // Writing to a string cannot fail.
        let _ = write!(all, "SET {name} = '{value}';");
    }
    all
}

/// An open connection.
pub(crate) struct DatabaseSession {
    client: Client,
    /// The value of the setting [`MARK`] in this session.
    mark: String,
    runtime: ConnectionRuntime,
    statements: HashMap<StatementForm, Statement>,
    timeout: Duration,
    layout: &'static dyn Layout,
    statement_times: Arc<StatementTimes>,
    /// The executed statements. `None` if they are not traced.
    trace: Option<Vec<TracedStatement>>,
}

/// An executed statement and its plan.
pub(crate) struct TracedStatement {
    pub(crate) form: StatementForm,
    pub(crate) text: String,
    pub(crate) rows: usize,
    /// PostgreSQL's output of EXPLAIN ANALYZE.
    pub(crate) plan: Vec<String>,
}

/// A statement and its values.
pub(crate) type StatementCall<'a> = (StatementForm, &'a [&'a (dyn ToSql + Sync)]);

impl DatabaseSession {
    /// Fails if the database's session no longer has this session's mark.
    fn must_be_itself(&mut self) -> Result<(), StatementError> {
        let rows = self.query_once(&format!("SELECT current_setting('{MARK}', true)"), &[])?;
        self.must_be_mark(rows.first().and_then(|row| row.get(0)))
    }

    fn must_be_mark(&self, found: Option<&str>) -> Result<(), StatementError> {
        if found == Some(&self.mark) { Ok(()) } else { Err(StatementError::Shared) }
    }

    /// Locks the shelf in the current transaction, and returns the shelf's state.
    pub(crate) fn lock(&mut self) -> Result<Vec<Row>, StatementError> {
        let state = self.query(StatementForm::Lock, &[])?;
        state.iter().try_for_each(|row| self.must_have_locked(row))?;
        Ok(state)
    }

    /// Fails if this row of [`StatementForm::Lock`] came from a connection of another session. So
    /// nothing is written with the settings of another session, such as the search path of another
    /// shelf.
    pub(crate) fn must_have_locked(&self, row: &Row) -> Result<(), StatementError> {
        self.must_be_mark(row.get(6))
    }

    /// Whether the connection is known to be lost.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Returns the layout of the tables.
    pub(crate) fn layout(&self) -> &'static dyn Layout {
        self.layout
    }

    fn wait<T: Send>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>> + Send,
    ) -> Result<T, StatementError> {
        let timed = async { tokio::time::timeout(self.timeout, answer).await };
        match self.runtime.wait(timed)? {
            Ok(answer) => answer.map_err(|error| StatementError::new(&error)),
            Err(_) => Err(StatementError::Away("no answer came".into())),
        }
    }

    /// Prepares a statement, unless it is prepared already.
    fn prepare(&mut self, form: StatementForm) -> Result<Statement, StatementError> {
        if let Some(statement) = self.statements.get(&form) {
            return Ok(statement.clone());
        }
        if self.statements.len() == STATEMENTS_MAX {
            self.statements.clear();
        }
        let text = self.layout.text(form);
        let statement = self.wait(self.client.prepare(&text))?;
        self.statements.insert(form, statement.clone());
        Ok(statement)
    }

    /// Executes a statement.
    pub(crate) fn query(
        &mut self,
        form: StatementForm,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StatementError> {
        let statement = self.prepare(form)?;
        let started = Instant::now();
        let rows = self.wait(self.client.query(&statement, values))?;
        self.statement_times.note(form, started.elapsed());
        self.trace(form, values, rows.len())?;
        Ok(rows)
    }

    /// Executes a statement and returns its first rows: as many as fit in `bytes_max`, but at least
    /// one row. Also returns whether there were more rows. Further rows are dropped on arrival.
    pub(crate) fn query_first(
        &mut self,
        form: StatementForm,
        values: &[&(dyn ToSql + Sync)],
        bytes_max: usize,
    ) -> Result<(Vec<Row>, bool), StatementError> {
        let statement = self.prepare(form)?;
        let started = Instant::now();
        let first = self.wait(async {
            let stream = self.client.query_raw(&statement, values.iter().copied()).await?;
            let mut stream = std::pin::pin!(stream);
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while let Some(row) = stream.try_next().await? {
                bytes += row.raw_size_bytes();
                if bytes > bytes_max && !rows.is_empty() {
                    return Ok((rows, true));
                }
                rows.push(row);
            }
            Ok((rows, false))
        })?;
        self.statement_times.note(form, started.elapsed());
        self.trace(form, values, first.0.len())?;
        Ok(first)
    }

    /// Executes a statement and returns the plan of the prepared statement, not a plan for these
    /// values alone.
    pub(crate) fn explain(
        &mut self,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<String>, StatementError> {
        let types = self.wait(self.client.prepare(text))?;
        // EXPLAIN EXECUTE takes no parameters, so the database writes the values out.
        let types = types.params().iter().enumerate();
        let literals: Vec<String> = types
            .map(|(at, of)| format!("quote_nullable(${}::\"{}\"::text)", at + 1, of.name()))
            .collect();
        let literals = self.query_once(&format!("SELECT {}", literals.join(", ")), values)?;
        let literals: Vec<String> = literals
            .first()
            .map_or(Vec::new(), |row| (0..row.len()).map(|at| row.get(at)).collect());
        let values =
            if literals.is_empty() { String::new() } else { format!("({})", literals.join(", ")) };
        self.batch(&format!("PREPARE explained AS {text}"))?;
        let lines =
            self.query_once(&format!("EXPLAIN (ANALYZE, BUFFERS) EXECUTE explained{values}"), &[]);
        self.batch("DEALLOCATE explained")?;
        Ok(lines?.iter().map(|line| line.get(0)).collect())
    }

    /// Runs `work`, and also returns the statements that it executed.
    pub(crate) fn traced<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, StatementError>,
    ) -> Result<(T, Vec<TracedStatement>), StatementError> {
        self.trace = Some(Vec::new());
        let done = work(self);
        let trace = self.trace.take().unwrap_or_default();
        Ok((done?, trace))
    }

    /// Executes several statements, in order, in one round trip.
    pub(crate) fn pipeline(
        &mut self,
        calls: &[StatementCall<'_>],
    ) -> Result<Vec<Vec<Row>>, StatementError> {
        let statements: Vec<Statement> =
            calls.iter().map(|(form, _)| self.prepare(*form)).collect::<Result<_, _>>()?;
        let client = &self.client;
        let answers = calls
            .iter()
            .zip(&statements)
            .map(|((_, values), statement)| client.query(statement, values));
        let started = Instant::now();
        let answers = self.wait(async { Ok(join_all(answers).await) })?;
        if let Some((form, _)) = calls.last() {
            // The statements share a round trip, which is recorded for the last statement.
            self.statement_times.note(*form, started.elapsed());
        }
        let answers =
            answers.into_iter().map(|rows| rows.map_err(|error| StatementError::new(&error)));
        let answers: Vec<Vec<Row>> = answers.collect::<Result<_, _>>()?;
        for ((form, values), rows) in calls.iter().zip(&answers) {
            self.trace(*form, values, rows.len())?;
        }
        Ok(answers)
    }

    /// Records an executed statement, if statements are traced.
    fn trace(
        &mut self,
        form: StatementForm,
        values: &[&(dyn ToSql + Sync)],
        rows: usize,
    ) -> Result<(), StatementError> {
        if self.trace.is_some() {
            let text = self.layout.text(form);
            let plan = self.explain(&text, values)?;
            if let Some(trace) = &mut self.trace {
                trace.push(TracedStatement { form, text, rows, plan });
            }
        }
        Ok(())
    }

    /// Executes a statement without keeping it prepared.
    pub(crate) fn query_once(
        &mut self,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StatementError> {
        self.wait(self.client.query(text, values))
    }

    /// Runs `work`, which begins a transaction. Rolls the transaction back if `work` fails or
    /// returns `None`.
    pub(crate) fn whole<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<Option<T>, StatementError>,
    ) -> Result<Option<T>, StatementError> {
        let done = work(self);
        match &done {
            Ok(Some(_)) => {}
            Err(fault) if fault.is_away() => {}
            _ => self.batch("ROLLBACK")?,
        }
        done
    }

    /// Executes statements without values.
    pub(crate) fn batch(&mut self, text: &str) -> Result<(), StatementError> {
        self.wait(self.client.batch_execute(text))
    }

    /// Inserts rows in COPY's binary format. Each piece of rows is encoded while the database
    /// inserts the previous pieces.
    pub(crate) fn copy(
        &mut self,
        form: StatementForm,
        pieces: impl Iterator<Item = Bytes> + Send,
    ) -> Result<u64, StatementError> {
        let statement = self.prepare(form)?;
        let started = Instant::now();
        let copied = self.wait(async {
            let sink = self.client.copy_in::<_, Bytes>(&statement).await?;
            let mut sink = std::pin::pin!(sink);
            for piece in pieces {
                sink.send(piece).await?;
            }
            sink.as_mut().finish().await
        });
        self.statement_times.note(form, started.elapsed());
        copied
    }
}
