//! Sessions with nodes. Their statements can be stopped, and the sessions report why a long
//! statement waits.
//!
//! A statement may wait without end: for a lock, for a standby that no longer exists, or for a
//! frozen machine. So every wait for a statement checks the flag `stop` several times a second. If
//! the flag is set, another session asks the server to cancel the statement. If the statement does
//! not end then, the session is abandoned, and the statement may still run.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::connector::Connector;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Interval at which a wait for a statement checks the flag.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time limit for the other session to connect, and again to answer.
const ASIDE: Duration = Duration::from_secs(1);
/// Maximum time from the request to cancel a statement to the statement's end.
const CANCEL_WAIT: Duration = Duration::from_secs(2);
/// Time until the first report of a waiting statement. The time between two reports doubles, up to
/// `NOTE_MAX`.
const NOTE_FIRST: Duration = Duration::from_secs(5);
const NOTE_MAX: Duration = Duration::from_mins(1);
/// Number of characters of a statement that a report contains.
const STATEMENT_CHARS: usize = 60;

/// Stops statements that wait, and receives the reports of their waits.
#[derive(Clone)]
pub struct StatementWatch {
    /// The caller sets this flag to stop the current statement.
    pub stop: Arc<AtomicBool>,
    /// Receives a line about a statement that waits. Several threads call this function.
    pub note: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for StatementWatch {
    /// Never stops a statement, and reports nothing.
    fn default() -> Self {
        Self { stop: Arc::default(), note: Arc::new(|_: &str| {}) }
    }
}

impl fmt::Debug for StatementWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatementWatch").field("stop", &self.stop).finish_non_exhaustive()
    }
}

/// A session on a node.
pub(crate) struct NodeSession {
    session: DatabaseSession,
    server: NodeProcess,
    /// The error of a statement that was abandoned. The session executes no other statement.
    given_up: Option<StatementError>,
}

/// The server process of a session, and the means to reach its server with another session.
struct NodeProcess {
    /// The name of the node.
    node: String,
    number: i32,
    aside: Connector,
    watch: StatementWatch,
}

impl NodeSession {
    /// Opens a session, or fails after `limit`.
    pub(crate) fn open(
        connector: &Connector,
        node: &str,
        limit: Duration,
        watch: &StatementWatch,
    ) -> Result<Self, StatementError> {
        let mut proceed = || !watch.stop.load(Ordering::Relaxed);
        let opened = connector.open_watched(limit, LOOK_EVERY, &mut proceed)?;
        let session = opened.ok_or(StatementError::Stopped(None))?;
        let aside = Connector::to_node(connector.address().clone(), ASIDE);
        let server = NodeProcess { node: node.into(), number: 0, aside, watch: watch.clone() };
        let mut found = Self { session, server, given_up: None };
        let rows = found.query_once("SELECT pg_backend_pid()", &[])?;
        found.server.number = rows.first().map_or(0, |row| row.get(0));
        Ok(found)
    }

    /// Sets the stop flag and the report function for later statements.
    pub(crate) fn watch(&mut self, watch: StatementWatch) {
        self.server.watch = watch;
    }

    pub(crate) fn watch_of(&self) -> &StatementWatch {
        &self.server.watch
    }

    /// Executes a statement with values.
    pub(crate) fn query_once(
        &mut self,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StatementError> {
        let Self { session, server, given_up } = self;
        run(text, server, given_up, |wait| {
            session.query_watched(text, values, LOOK_EVERY, &mut || wait.proceed())
        })
    }

    /// Executes a statement with values, and calls `look` at intervals until the statement has
    /// ended. If `look` returns false, the session is abandoned.
    pub(crate) fn query_with(
        &mut self,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
        every: Duration,
        mut look: impl FnMut(&mut StatementWait<'_>) -> bool,
    ) -> Result<Vec<Row>, StatementError> {
        let Self { session, server, given_up } = self;
        run(text, server, given_up, |wait| {
            session.query_watched(text, values, every, &mut || look(wait))
        })
    }

    /// Executes statements without values.
    pub(crate) fn batch(&mut self, text: &str) -> Result<(), StatementError> {
        let Self { session, server, given_up } = self;
        run(text, server, given_up, |wait| {
            session.batch_watched(text, LOOK_EVERY, &mut || wait.proceed())
        })
    }
}

fn run<T>(
    text: &str,
    server: &NodeProcess,
    given_up: &mut Option<StatementError>,
    ask: impl FnOnce(&mut StatementWait<'_>) -> Result<Option<T>, StatementError>,
) -> Result<T, StatementError> {
    if let Some(fault) = given_up {
        return Err(fault.clone());
    }
    let (started, note_at) = (Instant::now(), NOTE_FIRST);
    let mut wait = StatementWait { server, text, started, note_at, cancelled: None };
    match ask(&mut wait) {
        Ok(Some(done)) => Ok(done),
        // The server has cancelled the statement, which has thus changed nothing.
        Err(fault) if wait.cancelled.is_some() && !fault.is_away() => {
            Err(StatementError::Stopped(None))
        }
        Err(fault) => Err(fault),
        Ok(None) => {
            let fault = StatementError::Stopped(Some(wait.may_run()));
            *given_up = Some(fault.clone());
            Err(fault)
        }
    }
}

/// A statement that waits for its answer.
pub(crate) struct StatementWait<'a> {
    server: &'a NodeProcess,
    text: &'a str,
    started: Instant,
    /// Time since the start after which the next report is due.
    note_at: Duration,
    /// When the server was asked to cancel the statement.
    cancelled: Option<Instant>,
}

impl StatementWait<'_> {
    /// Reports a long wait. If the caller asked to stop, cancels the statement. Returns false if
    /// the cancelled statement does not end in time.
    fn proceed(&mut self) -> bool {
        if !self.server.watch.stop.load(Ordering::Relaxed) {
            self.note_if_due();
            return true;
        }
        if let Some(at) = self.cancelled {
            return at.elapsed() < CANCEL_WAIT;
        }
        // If this request fails, the statement has the same time to end by itself.
        let _ = self.server.ask("SELECT pg_cancel_backend($1)");
        self.cancelled = Some(Instant::now());
        true
    }

    /// Reports the statement and the reason for its wait, if the next report is due.
    pub(crate) fn note_if_due(&mut self) {
        let waited = self.started.elapsed();
        if waited < self.note_at {
            return;
        }
        (self.server.watch.note)(&format!(
            "waiting for {} for {} s: `{}` ({})",
            self.server.node,
            waited.as_secs(),
            shorten(self.text),
            self.server.reason()
        ));
        let waited = self.started.elapsed();
        self.note_at = waited + waited.min(NOTE_MAX);
    }

    /// Notes progress: the time until the next report begins anew.
    pub(crate) fn is_moving(&mut self) {
        (self.started, self.note_at) = (Instant::now(), NOTE_FIRST);
    }

    /// Returns a message that the statement may still run, and how to end the statement.
    fn may_run(&self) -> String {
        let (node, process) = (&self.server.node, self.server.number);
        format!(
            "process {process} of {node} may still run `{}`: look at pg_stat_activity there, and end \
             it with SELECT pg_terminate_backend({process})",
            shorten(self.text)
        )
    }
}

impl NodeProcess {
    /// Executes a statement about this process in another session, within a short time limit.
    fn ask(&self, text: &str) -> Result<Option<Row>, StatementError> {
        let mut session = self.aside.open_within(ASIDE)?;
        let rows = session.query_watched(text, &[&self.number], ASIDE, &mut || false)?;
        let rows = rows.ok_or_else(|| StatementError::Away("no answer came".into()))?;
        Ok(rows.into_iter().next())
    }

    /// Returns a description of the process's wait.
    fn reason(&self) -> String {
        let row = self.ask(
            "SELECT coalesce(wait_event_type, ''), coalesce(wait_event, ''), pg_blocking_pids(pid) \
             FROM pg_stat_activity WHERE pid = $1",
        );
        let process = self.number;
        match row {
            Ok(Some(row)) => {
                let what = wait_words(row.get(0), row.get(1), &row.get::<_, Vec<i32>>(2));
                format!("process {process} there {what}")
            }
            Ok(None) => format!("process {process} there has ended"),
            Err(fault) => format!("the reason is unknown: {fault}"),
        }
    }
}

/// Describes the wait of a process, from PostgreSQL's report about the process.
fn wait_words(kind: &str, event: &str, blockers: &[i32]) -> String {
    let list: Vec<String> = blockers.iter().map(i32::to_string).collect();
    match (kind, event) {
        _ if !blockers.is_empty() => {
            format!("waits for a lock ({event}) of process {}", list.join(", "))
        }
        (_, "SyncRep") => "waits for a standby that synchronous_standby_names requires".into(),
        ("Extension", _) => "waits for another node".into(),
        ("", _) => "is at work".into(),
        _ => format!("waits for {kind} {event}"),
    }
}

/// Returns the beginning of a statement, on one line.
fn shorten(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(STATEMENT_CHARS) {
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_a_wait_name_its_reason() {
        for (kind, event, blockers, expected) in [
            ("Lock", "relation", &[7, 8][..], "waits for a lock (relation) of process 7, 8"),
            ("IPC", "SyncRep", &[], "waits for a standby that synchronous_standby_names requires"),
            ("Extension", "Extension", &[], "waits for another node"),
            ("IO", "DataFileRead", &[], "waits for IO DataFileRead"),
            ("", "", &[], "is at work"),
        ] {
            assert_eq!(wait_words(kind, event, blockers), expected);
        }
    }

    #[test]
    fn long_statements_are_cut_in_reports() {
        assert_eq!(shorten("SELECT  1\n  FROM t"), "SELECT 1 FROM t");
        let cut = shorten(&"SELECT é ".repeat(20));
        assert_eq!((cut.chars().count(), cut.ends_with('…')), (STATEMENT_CHARS + 1, true), "{cut}");
    }
}
