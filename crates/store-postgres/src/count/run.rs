//! Runs the statements that count a query's matches, or reads and counts the records.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::{Query, Record, SearchProgress};
use tokio_postgres::Row;

use super::text::CountStatements;
use crate::error::StatementError;
use crate::line::TimelinePosition;
use crate::query_sessions::QuerySessions;
use crate::search::{Finders, Sessions as _, SqlQuery};
use crate::session::DatabaseSession;
use crate::state::PostgresState;

/// Returns the queries for all matches of a query, without the query's limit and cursor. The result
/// is empty if nothing can match, and has several queries if a gate divides the query.
pub(crate) fn all_matches(
    inner: &PostgresState,
    query: &Query,
    position: TimelinePosition,
) -> Vec<SqlQuery> {
    let query = &Query { after: None, limit: usize::MAX, ..query.clone() };
    let mut asked = inner.open_queries(query, position);
    asked.retain(|asked| !asked.query.is_void());
    asked
}

/// The result of a count.
pub(crate) struct CountedRows {
    /// The number of matches; `None` if the count would exceed the query's budget of rows.
    pub(crate) matches: Option<u64>,
    /// Number of rows that the count has visited.
    pub(crate) visited: u64,
}

impl CountedRows {
    /// Makes the result of a count that has visited `visited` rows with a budget of `budget`.
    pub(crate) fn within(budget: u64, matches: u64, visited: u64) -> Self {
        Self { matches: (visited <= budget).then_some(matches), visited }
    }
}

/// Returns the number in a column of a result that has one row.
pub(crate) fn number(rows: &[Row], column: usize) -> u64 {
    rows.first().map_or(0, |row| row.get::<_, i64>(column)).max(0).cast_unsigned()
}

/// Counts the matches of a query that has no words.
pub(crate) fn count(
    sessions: &mut QuerySessions,
    query: &Query,
) -> Result<CountedRows, StatementError> {
    let inner = sessions.inner();
    let asked = all_matches(inner, query, sessions.position());
    let counting = inner.layout.count_statements(&asked, &inner.shelf.terms, query.budget);
    let Some(counting) = counting else { return read(asked, sessions) };
    sessions.with(|session| run(&counting, query.budget, session))
}

/// Counts the matching records. Stops when the budget of rows is exceeded.
fn run(
    counting: &CountStatements,
    budget: u64,
    session: &mut DatabaseSession,
) -> Result<CountedRows, StatementError> {
    let (mut matches, mut visited) = (0, 0_u64);
    for (sql, text) in &counting.statements {
        let rows = session.query_once(sql, &text.values())?;
        matches += number(&rows, 0);
        visited = visited.saturating_add(number(&rows, counting.visited_column));
        if visited > budget {
            break;
        }
    }
    Ok(CountedRows::within(budget, matches, visited))
}

/// Returns the statements that count the matches of a query, each with the output of EXPLAIN
/// ANALYZE. `None` if Hark would read the records instead.
pub(crate) fn explain(
    inner: &Arc<PostgresState>,
    query: &Query,
) -> Result<Option<Vec<String>>, StatementError> {
    let position = inner.current.now();
    let asked = all_matches(inner, query, position);
    let counting = inner.layout.count_statements(&asked, &inner.shelf.terms, query.budget);
    let Some(counting) = counting else { return Ok(None) };
    QuerySessions::new(Arc::clone(inner), position).with(|session| {
        let mut lines = Vec::new();
        for (sql, text) in &counting.statements {
            lines.push(sql.clone());
            lines.extend(session.explain(sql, &text.values())?);
        }
        Ok(Some(lines))
    })
}

/// Counts matches by reading the records.
pub(crate) fn read(
    asked: Vec<SqlQuery>,
    sessions: &mut QuerySessions,
) -> Result<CountedRows, StatementError> {
    let inner = Arc::clone(sessions.inner());
    let (mut finders, mut count) = (Finders::new(asked, inner.layout), 0);
    let mut each = |_: &Record<'_>| {
        count += 1;
        ControlFlow::Continue(())
    };
    let progress = finders.slice(&inner.search, u64::MAX, sessions, &mut each)?;
    let matches = (progress != SearchProgress::Exhausted).then_some(count);
    Ok(CountedRows { matches, visited: finders.visited() })
}
