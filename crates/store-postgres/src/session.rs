//! A connection to the database. One thread at a time uses the connection.
//!
//! The thread that waits for a result drives the socket itself, on the runtime of the session. So a
//! result wakes no other thread, and the code of the archive stays synchronous.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt as _;
use futures_util::future::join_all;
use hark_archive::meter::{Histogram, HistogramSnapshot};
use parking_lot::RwLock;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::deadline::Deadline;
use crate::error::StatementError;
use crate::first_rows::{FirstRows, first_rows};
use crate::statement::StatementForm;
use crate::waiting::ConnectionRuntime;
use crate::warnings::SessionWarnings;

/// Maximum number of statements that stay prepared in a session. Each part or shard of a shelf has
/// its own statements.
const STATEMENTS_MAX: usize = 512;

/// The durations of statements, by the name of the statement.
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

/// The name of the setting that identifies a session.
pub(crate) const MARK: &str = "hark.session";

/// The setting for the time after which the database ends the transaction of a process that stops
/// while it has the lock of the shelf. Other processes wait longer for this lock, until
/// `statement_timeout_ms`.
pub(crate) const IDLE_MAX: &str = "idle_in_transaction_session_timeout = '8s'";

/// An open connection.
pub(crate) struct DatabaseSession {
    client: Client,
    /// The value of the setting [`MARK`] in this session.
    mark: String,
    runtime: ConnectionRuntime,
    statements: HashMap<StatementForm, Statement>,
    /// Time limit of a round trip.
    timeout: Duration,
    /// The deadline of the question or the batch that uses the session.
    pub(crate) deadline: Option<Deadline>,
    /// In a session of a replica: the replica's timeline, and the number up to which the replica
    /// has all puts of this timeline. `None` before the first check.
    pub(crate) reached: Option<(i64, i64)>,
    pub(crate) warnings: SessionWarnings,
    statement_times: Arc<StatementTimes>,
    /// The statements that were executed; `None` if they are not traced.
    trace: Option<Vec<TracedStatement>>,
}

/// An executed statement and its plan.
pub(crate) struct TracedStatement {
    pub(crate) form: StatementForm,
    /// The worker that has executed the statement; `None` if it is the database of the URL.
    pub(crate) worker: Option<String>,
    pub(crate) text: String,
    pub(crate) rows: usize,
    /// PostgreSQL's output of EXPLAIN ANALYZE.
    pub(crate) plan: Vec<String>,
}

/// A statement and its values.
pub(crate) type StatementCall<'a> = (StatementForm, &'a [&'a (dyn ToSql + Sync)]);

impl DatabaseSession {
    /// Makes a session of a connection that already has its settings.
    pub(crate) fn new(
        client: Client,
        mark: String,
        runtime: ConnectionRuntime,
        timeout: Duration,
        statement_times: Arc<StatementTimes>,
    ) -> Self {
        Self {
            client,
            mark,
            runtime,
            statements: HashMap::new(),
            timeout,
            deadline: None,
            reached: None,
            warnings: SessionWarnings::default(),
            statement_times,
            trace: None,
        }
    }

    /// Fails if the connection no longer has the mark of this session.
    pub(crate) fn must_be_itself(&mut self) -> Result<(), StatementError> {
        let rows = self.query_once(&format!("SELECT current_setting('{MARK}', true)"), &[])?;
        self.must_be_mark(rows.first().and_then(|row| row.get(0)))
    }

    fn must_be_mark(&self, found: Option<&str>) -> Result<(), StatementError> {
        if found == Some(&self.mark) { Ok(()) } else { Err(StatementError::Shared) }
    }

    /// Locks the shelf within the current transaction, by the layout's statement, and returns the
    /// shelf's state. The database ends the transaction after [`IDLE_MAX`].
    pub(crate) fn lock(
        &mut self,
        lock: impl Into<StatementForm>,
    ) -> Result<Vec<Row>, StatementError> {
        self.batch(&format!("SET LOCAL {IDLE_MAX}"))?;
        let state = self.query(lock, &[])?;
        state.iter().try_for_each(|row| self.must_have_locked(row))?;
        Ok(state)
    }

    /// Fails if the connection that has returned this row of the statement `Lock` belongs to
    /// another session. So nothing is written with the settings of another session, for example in
    /// the schema of another shelf.
    pub(crate) fn must_have_locked(&self, row: &Row) -> Result<(), StatementError> {
        self.must_be_mark(row.get(6))
    }

    /// Whether the connection is known to be lost.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Waits for an answer, but not beyond the deadline.
    fn wait<T: Send>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>> + Send,
    ) -> Result<T, StatementError> {
        let (limit, missed) = self.limit();
        self.wait_within(limit, answer)?.ok_or(missed)
    }

    /// The time that is left for an answer, and the fault if none comes in this time.
    fn limit(&self) -> (Duration, StatementError) {
        let first = self.deadline.filter(|deadline| deadline.left() < self.timeout);
        let missed = first.map_or(StatementError::Late(self.timeout), Deadline::missed);
        (first.map_or(self.timeout, Deadline::left), missed)
    }

    /// Waits for an answer, and returns `None` if there is no answer within `limit`.
    fn wait_within<T: Send>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>> + Send,
    ) -> Result<Option<T>, StatementError> {
        let timed = async { tokio::time::timeout(limit, answer).await };
        let answer = self.runtime.wait(timed)?.ok();
        answer.transpose().map_err(|error| StatementError::new(&error))
    }

    /// Prepares a statement, unless it is already prepared.
    fn prepare(&mut self, form: StatementForm) -> Result<Statement, StatementError> {
        if let Some(statement) = self.statements.get(&form) {
            return Ok(statement.clone());
        }
        if self.statements.len() == STATEMENTS_MAX {
            self.statements.clear();
        }
        let text = form.text();
        let statement = self.wait(self.client.prepare(&text))?;
        self.statements.insert(form, statement.clone());
        Ok(statement)
    }

    /// Executes a statement.
    pub(crate) fn query(
        &mut self,
        form: impl Into<StatementForm>,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StatementError> {
        let form = form.into();
        let statement = self.prepare(form)?;
        let started = Instant::now();
        let rows = self.wait(self.client.query(&statement, values))?;
        self.statement_times.note(form, started.elapsed());
        self.trace(form, values, rows.len())?;
        Ok(rows)
    }

    /// Executes a statement and returns its first rows: as many rows as fit into `bytes_max`, but
    /// at least one. Also returns whether there were more rows. Further rows are dropped when they
    /// arrive.
    pub(crate) fn query_first(
        &mut self,
        form: impl Into<StatementForm>,
        values: &[&(dyn ToSql + Sync)],
        bytes_max: usize,
    ) -> Result<(Vec<Row>, bool), StatementError> {
        let form = form.into();
        let statement = self.prepare(form)?;
        let started = Instant::now();
        let first = self.wait(first_rows(&self.client, &statement, values, bytes_max))?;
        self.statement_times.note(form, started.elapsed());
        self.trace(form, values, first.0.len())?;
        Ok(first)
    }

    /// Executes a statement, and returns the plan of the prepared statement instead of a plan for
    /// these values alone.
    pub(crate) fn explain(
        &mut self,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<String>, StatementError> {
        let types = self.wait(self.client.prepare(text))?;
        // EXPLAIN EXECUTE takes no parameters, so the text must contain the values. The database
        // itself writes them as text.
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

    /// Runs `work`, and returns its result and the statements that it has executed.
    pub(crate) fn traced<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, StatementError>,
    ) -> Result<(T, Vec<TracedStatement>), StatementError> {
        self.trace = Some(Vec::new());
        let done = work(self);
        let trace = self.trace.take().unwrap_or_default();
        Ok((done?, trace))
    }

    /// Executes several statements in order, in one round trip.
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
            // The duration of the round trip is noted once, for the last statement.
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

    /// Sends several statements, without waiting for their answers. Of each statement, the first
    /// rows are returned, as by [`query_first`](Self::query_first).
    pub(crate) fn begin<'a>(
        &'a mut self,
        calls: &'a [StatementCall<'a>],
        bytes_max: usize,
    ) -> Result<RunningCalls<'a>, StatementError> {
        let statements: Vec<Statement> =
            calls.iter().map(|(form, _)| self.prepare(*form)).collect::<Result<_, _>>()?;
        let session = &*self;
        let answers = Box::pin(async move {
            let answers = calls.iter().zip(&statements).map(|((_, values), statement)| {
                first_rows(&session.client, statement, values, bytes_max)
            });
            join_all(answers).await.into_iter().collect()
        });
        let form = calls.last().map(|(form, _)| *form);
        let mut running =
            RunningCalls { session, form, started: Instant::now(), answers, done: None };
        running.send()?;
        Ok(running)
    }

    /// Whether executed statements are traced.
    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// Adds a statement that another session has executed.
    pub(crate) fn add_trace(&mut self, traced: TracedStatement) {
        self.trace.get_or_insert_default().push(traced);
    }

    /// Notes an executed statement, if statements are traced.
    fn trace(
        &mut self,
        form: StatementForm,
        values: &[&(dyn ToSql + Sync)],
        rows: usize,
    ) -> Result<(), StatementError> {
        if self.trace.is_some() {
            let text = form.text();
            let plan = self.explain(&text, values)?;
            if let Some(trace) = &mut self.trace {
                trace.push(TracedStatement { form, worker: None, text, rows, plan });
            }
        }
        Ok(())
    }

    /// Executes a statement that does not stay prepared.
    pub(crate) fn query_once(
        &mut self,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StatementError> {
        self.wait(self.client.query(text, values))
    }

    /// Executes a statement that does not stay prepared, and calls `look` at intervals until the
    /// statement has ended. Returns `None` if `look` returns false: then the statement may still
    /// run, and the caller must drop the session.
    pub(crate) fn query_watched(
        &mut self,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
        every: Duration,
        look: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Vec<Row>>, StatementError> {
        self.watch(self.client.query(text, values), every, look)
    }

    /// Executes statements without values, and calls `look` like [`Self::query_watched`].
    pub(crate) fn batch_watched(
        &mut self,
        text: &str,
        every: Duration,
        look: &mut dyn FnMut() -> bool,
    ) -> Result<Option<()>, StatementError> {
        self.watch(self.client.batch_execute(text), every, look)
    }

    fn watch<T: Send>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>> + Send,
        every: Duration,
        look: &mut dyn FnMut() -> bool,
    ) -> Result<Option<T>, StatementError> {
        let timed = async { tokio::time::timeout(self.timeout, answer).await };
        match self.runtime.watch(timed, every, look)? {
            Some(Ok(answer)) => answer.map(Some).map_err(|error| StatementError::new(&error)),
            Some(Err(_)) => Err(StatementError::Away("no answer came".into())),
            None => Ok(None),
        }
    }

    /// Runs `work`, which begins a transaction. If `work` fails or returns `None`, rolls the
    /// transaction back.
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

    /// Executes statements without values that may take up to `limit`.
    pub(crate) fn batch_within(
        &mut self,
        limit: Duration,
        text: &str,
    ) -> Result<(), StatementError> {
        self.wait_within(limit, self.client.batch_execute(text))?.ok_or(StatementError::Late(limit))
    }

    /// Inserts rows in the binary format of COPY. A piece of rows is encoded while the database
    /// inserts the previous piece.
    pub(crate) fn copy(
        &mut self,
        form: impl Into<StatementForm>,
        pieces: impl Iterator<Item = Bytes> + Send,
    ) -> Result<u64, StatementError> {
        let form = form.into();
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

/// Minimum time to read an answer. An answer that has arrived is read even if another session has
/// used up the time of the question. So a session with an answer is not mistaken for a session that
/// hangs.
const ARRIVED: Duration = Duration::from_millis(200);

type PendingRows<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<FirstRows>, tokio_postgres::Error>> + Send + 'a>>;

/// Statements that a session has sent, and that the database is executing.
pub(crate) struct RunningCalls<'a> {
    session: &'a DatabaseSession,
    /// The last of the statements. The duration of all of them is noted under its name.
    form: Option<StatementForm>,
    started: Instant,
    answers: PendingRows<'a>,
    /// The answers, if they came at once.
    done: Option<Result<Vec<FirstRows>, tokio_postgres::Error>>,
}

impl RunningCalls<'_> {
    /// Writes the statements to the socket.
    fn send(&mut self) -> Result<(), StatementError> {
        let answers = &mut self.answers;
        self.done = self.session.wait(async {
            let polled = poll_fn(|context| Poll::Ready(answers.as_mut().poll(context))).await;
            // Here the task of the connection runs, and writes the statements.
            tokio::task::yield_now().await;
            Ok(match polled {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            })
        })?;
        Ok(())
    }

    /// Waits for the answers, and calls `look` at intervals. If `look` returns false, fails as if
    /// the time were over.
    pub(crate) fn wait(
        self,
        every: Duration,
        look: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<FirstRows>, StatementError> {
        let (limit, missed) = self.session.limit();
        let timed = async { tokio::time::timeout(limit.max(ARRIVED), self.answers).await.ok() };
        let answered = match self.done {
            Some(done) => Some(done),
            None => self.session.runtime.watch(timed, every, look)?.flatten(),
        };
        let failed = |error: tokio_postgres::Error| StatementError::new(&error);
        let answered = answered.map_or(Err(missed), |done| done.map_err(failed));
        if let Some(form) = self.form {
            self.session.statement_times.note(form, self.started.elapsed());
        }
        answered
    }
}
