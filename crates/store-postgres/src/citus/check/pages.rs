//! Reads all rows of a distributed table, a limited number at a time.

use tokio_postgres::Row;

use crate::check::steps::COLUMNS;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Reads records in the order of their numbers. Each statement reads a window of numbers, so that
/// shards return few rows beyond the page.
#[derive(Default)]
pub(super) struct NumberWindows {
    /// All records up to this number have been read.
    after: i64,
    last: i64,
    width: i64,
}

impl NumberWindows {
    /// Returns the windows for all records that are stored now.
    pub(super) fn of(session: &mut DatabaseSession) -> Result<Self, StatementError> {
        let rows = session.query_once("SELECT min(seq), max(seq) FROM record", &[])?;
        let bounds = rows
            .first()
            .and_then(|row| Some((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?)));
        let Some((first, last)) = bounds else { return Ok(Self::default()) };
        Ok(Self { after: first.saturating_sub(1), last, width: 1 })
    }

    /// Reads at most `count` records, and all other records with the same number as the last of
    /// these; `None` after the last record.
    pub(super) fn next(
        &mut self,
        session: &mut DatabaseSession,
        count: usize,
    ) -> Result<Option<Vec<Row>>, StatementError> {
        let select = format!("SELECT {COLUMNS}, r.place, r.id_head FROM record r WHERE");
        let window = format!("{select} r.seq > $1 AND r.seq <= $2 ORDER BY r.seq LIMIT $3");
        let same = format!("{select} r.seq = $1");
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        self.width = self.width.max(limit);
        while self.after < self.last {
            let to = self.after.saturating_add(self.width).min(self.last);
            let mut rows = session.query_once(&window, &[&self.after, &to, &limit])?;
            self.after = to;
            if rows.len() == count
                && let Some(last) = rows.last().map(|row| row.get::<_, i64>(0))
            {
                rows.retain(|row| row.get::<_, i64>(0) != last);
                rows.extend(session.query_once(&same, &[&last])?);
                self.after = last;
                self.width = (self.width / 2).max(1);
            } else if rows.len() < count / 2 {
                self.width = self.width.saturating_mul(2);
            }
            if !rows.is_empty() {
                return Ok(Some(rows));
            }
        }
        Ok(None)
    }
}

/// Reads the rows of labels in the order of the index. A range of terms is read from all shards;
/// the rows of one term are read from one shard.
pub(super) struct LabelPages {
    /// The next term; `None` after the last.
    next: Option<i64>,
    width: u64,
    /// The last row of a term whose rows are not all read: term, kind, time and id.
    inside: Option<(i64, i32, i64, Vec<u8>)>,
}

/// The columns of a row of a label.
const LABEL: &str = "SELECT t.term, t.kind, t.time, t.id, t.place FROM tag t WHERE";

impl LabelPages {
    pub(super) fn new() -> Self {
        Self { next: Some(i64::MIN), width: u64::MAX, inside: None }
    }

    /// Reads at most `count` rows; `None` after the last.
    pub(super) fn next(
        &mut self,
        session: &mut DatabaseSession,
        count: usize,
    ) -> Result<Option<Vec<Row>>, StatementError> {
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        loop {
            if let Some(inside) = self.inside.take() {
                let rows = rows_behind(session, &inside, count)?;
                if rows.len() == count {
                    self.inside = rows.last().map(label);
                }
                if !rows.is_empty() {
                    return Ok(Some(rows));
                }
            }
            let Some(first) = self.next else { return Ok(None) };
            let last = first.checked_add_unsigned(self.width).unwrap_or(i64::MAX);
            let text = format!(
                "{LABEL} t.term >= $1 AND t.term <= $2 ORDER BY t.term, t.kind, t.time DESC, t.id \
                 LIMIT $3"
            );
            let rows = session.query_once(&text, &[&first, &last, &limit])?;
            if rows.len() == count {
                self.width = (self.width / 2).max(1);
                self.inside = rows.last().map(label);
                let term = self.inside.as_ref().map_or(last, |(term, ..)| *term);
                self.next = term.checked_add(1);
            } else {
                self.next = last.checked_add(1);
                if rows.len() < count / 4 {
                    self.width = self.width.saturating_mul(2);
                }
            }
            if !rows.is_empty() {
                return Ok(Some(rows));
            }
        }
    }
}

fn label(row: &Row) -> (i64, i32, i64, Vec<u8>) {
    (row.get(0), row.get(1), row.get(2), row.get(3))
}

/// Reads at most `count` rows of a term that follow a row.
fn rows_behind(
    session: &mut DatabaseSession,
    (term, kind, time, id): &(i64, i32, i64, Vec<u8>),
    count: usize,
) -> Result<Vec<Row>, StatementError> {
    let mut rows: Vec<Row> = Vec::new();
    let left = |rows: &[Row]| i64::try_from(count - rows.len()).unwrap_or(i64::MAX);
    let text = format!(
        "{LABEL} t.term = $1 AND t.kind = $2 AND t.time = $3 AND t.id > $4 ORDER BY t.id LIMIT $5"
    );
    rows.extend(session.query_once(&text, &[term, kind, time, id, &left(&rows)])?);
    let text = format!(
        "{LABEL} t.term = $1 AND t.kind = $2 AND t.time < $3 ORDER BY t.time DESC, t.id LIMIT $4"
    );
    if rows.len() < count {
        rows.extend(session.query_once(&text, &[term, kind, time, &left(&rows)])?);
    }
    let text =
        format!("{LABEL} t.term = $1 AND t.kind > $2 ORDER BY t.kind, t.time DESC, t.id LIMIT $3");
    if rows.len() < count {
        rows.extend(session.query_once(&text, &[term, kind, &left(&rows)])?);
    }
    Ok(rows)
}
