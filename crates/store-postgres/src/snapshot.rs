//! One state of a shelf for a backup: the stored records in the order of their puts.
//!
//! One session holds the snapshot. Another session reads each page in a short transaction of this
//! snapshot. To make the tables of a part, a commit locks the tables for times outside all parts and
//! the parents of all parts. A page locks these tables only briefly, so even a long backup does not
//! prevent commits from making parts.
//!
//! The tables of existing parts stay locked until the backup ends, so that retention cannot detach
//! and drop these tables: no snapshot sees the records of a detached table.

use hark_archive::store::NumberedRecord;
use tokio_postgres::Row;

use crate::check::STATEMENT_TIMEOUT;
use crate::error::StatementError;
use crate::layout::Layout;
use crate::line::{self, Timeline};
use crate::open::{DatabaseOpenError, EnteredSessions, enter_sessions};
use crate::options::PostgresOptions;
use crate::session::DatabaseSession;
use crate::stats;
use crate::terms::DatabaseTermHasher;

/// Maximum number of attempts to begin. An attempt fails if another process makes or drops a part
/// meanwhile.
const TRIES: u32 = 10;
/// Approximate number of bytes of the records of a page.
const PAGE_BYTES: usize = 8 << 20;
/// Smallest, first and greatest number of records of a page.
const PAGE_MIN: i64 = 20;
const PAGE_FIRST: i64 = 200;
const PAGE_MAX: i64 = 500;
/// Maximum number of puts whose numbers are read at a time.
const NUMBERS_MAX: u64 = 1 << 18;

/// Why a shelf has no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The shelf could not be opened.
    #[error(transparent)]
    Open(#[from] DatabaseOpenError),
    /// The tables are in a Citus cluster, whose nodes have no common snapshot.
    #[error("the nodes of a Citus cluster have no common snapshot")]
    Cluster,
}

impl From<StatementError> for SnapshotError {
    fn from(fault: StatementError) -> Self {
        Self::Open(fault.into())
    }
}

/// One state of a shelf in a database. Servers may write to the shelf meanwhile.
pub struct PutSnapshot {
    layout: &'static dyn Layout,
    /// Holds the snapshot. Never used again.
    _holder: DatabaseSession,
    reader: DatabaseSession,
    /// The statement that begins a transaction on the snapshot.
    begin: String,
    origin: String,
    lines: Vec<Timeline>,
    newest: i64,
    records: u64,
    /// Number of records of the next page.
    page: i64,
}

impl PutSnapshot {
    /// Opens the present state of a shelf. Returns `None` if the database has no such shelf.
    pub fn open(
        url: &str,
        shelf: &str,
        options: &PostgresOptions,
    ) -> Result<Option<Self>, SnapshotError> {
        let statement_timeout = options.statement_timeout.max(STATEMENT_TIMEOUT);
        let options = PostgresOptions { migrate: false, statement_timeout, ..options.clone() };
        let Some(entered) = enter_sessions(url, shelf, &options)? else { return Ok(None) };
        let EnteredSessions { layout, first: mut holder, second: reader } = entered;
        if layout.facts().is_cluster {
            return Err(SnapshotError::Cluster);
        }
        begin_with_parts(&mut holder)?;
        let text = "SELECT pg_export_snapshot(), seq, records FROM state";
        let rows = holder.query_once(text, &[])?;
        let row = rows.first().ok_or_else(stats::not_whole)?;
        let (snapshot, newest): (String, i64) = (row.get(0), row.get(1));
        let records = row.get::<_, i64>(2).max(0).cast_unsigned();
        let lines = line::read(&mut holder)?;
        let terms = DatabaseTermHasher::new(&stats::secret(&mut holder)?);
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{snapshot}'"
        );
        let origin = format!("postgres-{:016x}", terms.id(&[0; 32]));
        let page = PAGE_FIRST;
        Ok(Some(Self {
            layout,
            _holder: holder,
            reader,
            begin,
            origin,
            lines,
            newest,
            records,
            page,
        }))
    }

    /// Returns a name of the shelf, which is different for each shelf of each database.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns the number of stored records.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns a text that contains the timelines of this state and the number of a put; `None`
    /// stands for the newest put.
    pub fn position(&self, number: Option<u64>) -> String {
        let newest = number.unwrap_or_else(|| self.newest.max(0).cast_unsigned());
        let lines = self.lines.iter().map(|(id, since)| format!(" {id}:{since}"));
        std::iter::once(newest.to_string()).chain(lines).collect()
    }

    /// Returns the number up to which this state has the same puts as an earlier state, whose text
    /// is `position`. `None` if the text cannot be read.
    pub fn common(&self, position: &str) -> Option<u64> {
        let (newest, lines) = parse(position)?;
        let parted = line::parted_at(&self.lines, &lines).unwrap_or(i64::MAX);
        let common = parted.min(newest).min(self.newest);
        Some(common.max(0).cast_unsigned())
    }

    /// Returns the next records with numbers above `after`, ascending; none at the end.
    pub fn puts(&mut self, after: u64) -> Result<Vec<NumberedRecord>, DatabaseOpenError> {
        let (layout, newest, page) = (self.layout, self.newest, self.page);
        let puts = self.within(|session| layout.puts(session, number(after), newest, page))?;
        let bytes = puts.iter().map(|(_, body)| body.len()).sum::<usize>();
        if let Some(average) = bytes.checked_div(puts.len()) {
            let next = PAGE_BYTES / average.max(1);
            self.page = i64::try_from(next).unwrap_or(PAGE_MAX).clamp(PAGE_MIN, PAGE_MAX);
        }
        Ok(puts.into_iter().map(|(seq, body)| (seq.max(0).cast_unsigned(), body)).collect())
    }

    /// Returns the numbers of the stored records above `after` and up to `to`, ascending.
    pub fn numbers(&mut self, after: u64, to: u64) -> Result<Vec<u64>, DatabaseOpenError> {
        let text = "SELECT array_agg(r.seq) FROM record r WHERE r.seq > $1 AND r.seq <= $2";
        let (mut from, mut numbers) = (after, Vec::new());
        while from < to {
            let last = to.min(from.saturating_add(NUMBERS_MAX));
            let values = (number(from), number(last));
            let rows = self.within(|session| session.query_once(text, &[&values.0, &values.1]))?;
            let found = rows.first().and_then(|row: &Row| row.get::<_, Option<Vec<i64>>>(0));
            numbers.extend(found.into_iter().flatten().map(|seq| seq.max(0).cast_unsigned()));
            from = last;
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Runs `work` in a transaction of the snapshot.
    fn within<T>(
        &mut self,
        work: impl FnOnce(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let begin = &self.begin;
        let done = self.reader.whole(|session| {
            session.batch(begin)?;
            let done = work(session)?;
            session.batch("COMMIT")?;
            Ok(Some(done))
        })?;
        done.ok_or_else(stats::not_whole)
    }
}

/// Begins the transaction that holds the snapshot, and locks all parts before the snapshot begins.
fn begin_with_parts(session: &mut DatabaseSession) -> Result<(), StatementError> {
    for _ in 1..TRIES {
        match try_begin(session) {
            Ok(true) => return Ok(()),
            Ok(false) | Err(StatementError::Missing(_) | StatementError::Busy(_)) => {
                session.batch("ROLLBACK")?;
            }
            Err(fault) => return Err(fault),
        }
    }
    Err(StatementError::Busy("parts of the archive are being made or dropped".into()))
}

/// Makes one attempt of [`begin_with_parts`]. Returns false if the parts have changed meanwhile.
fn try_begin(session: &mut DatabaseSession) -> Result<bool, StatementError> {
    let parts = "SELECT number FROM part ORDER BY number";
    let numbers = |rows: Vec<Row>| rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>();
    let before = numbers(session.query_once(parts, &[])?);
    let locks: Vec<String> = before
        .iter()
        .map(|number| format!("; LOCK TABLE record_{number} IN ACCESS SHARE MODE"))
        .collect();
    session.batch(&format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
         SET LOCAL idle_in_transaction_session_timeout = 0{}",
        locks.concat()
    ))?;
    Ok(numbers(session.query_once(parts, &[])?) == before)
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Reads a text of [`PutSnapshot::position`].
fn parse(position: &str) -> Option<(i64, Vec<Timeline>)> {
    let mut words = position.split(' ');
    let newest = words.next()?.parse().ok()?;
    let line = |word: &str| {
        let (id, since) = word.split_once(':')?;
        Some((id.parse().ok()?, since.parse().ok()?))
    };
    Some((newest, words.map(line).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_written() {
        assert_eq!(parse("12 0:0 -7:10"), Some((12, vec![(0, 0), (-7, 10)])));
        for wrong in ["", "x 0:0", "12 0", "12 0:0 "] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
