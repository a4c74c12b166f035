//! Finds rows that belong to no record. The check has already counted the rows of all records. If a
//! table has more rows, the difference is the number of rows without a record, and only then are
//! these rows searched for.

use hark_archive::Record;
use tokio_postgres::Row;

use crate::check::{DatabaseCheck, DatabaseFault, FaultSort, PageRows};
use crate::error::StatementError;
use crate::plain::part_sql::MARK;
use crate::session::DatabaseSession;
use crate::time::IndexKey;
use crate::words::mark::ids_of;

/// Maximum number of rows that are read for each sort of fault.
const ROWS_MAX: i64 = 100;

/// The rows of labels that belong to no record.
pub(super) const LABELS: &str = "SELECT t.id, t.term, t.time, t.kind FROM tag t WHERE NOT EXISTS (SELECT \
    FROM record r WHERE r.time = t.time AND r.id = t.id AND r.kind = t.kind \
    AND t.term = ANY(r.terms))";
/// The rows of forbidding records that belong to no record.
pub(super) const FORBIDS: &str = "SELECT f.id, f.key FROM forbid f \
    WHERE NOT EXISTS (SELECT FROM record r WHERE r.id = f.id)";
/// The rows of words that are in no list of a record's words.
pub(super) const WORDS: &str = "SELECT w.mark, w.word, w.time, w.kind FROM word w WHERE NOT EXISTS (SELECT \
    FROM worded l WHERE l.time = w.time AND l.mark = w.mark - (w.mark & 3) AND l.kind = w.kind \
    AND w.word = ANY(l.words))";

/// Returns the text for the lists of words that belong to no record.
pub(super) fn lists() -> String {
    format!(
        "SELECT w.mark, w.time, w.kind FROM worded w WHERE NOT EXISTS (SELECT FROM record r \
         WHERE r.time = w.time AND r.kind = w.kind AND w.mark = {MARK})"
    )
}

/// Reports the rows that belong to no record. `found` and `words` are the numbers of the rows that
/// belong to records.
pub(super) fn add(
    session: &mut DatabaseSession,
    found: PageRows,
    (word, worded): (u64, u64),
    report: &mut DatabaseCheck,
) -> Result<(), StatementError> {
    // Whole tables are counted and compared, so PostgreSQL chooses the plans.
    session.batch(
        "SET LOCAL enable_seqscan = on; SET LOCAL enable_bitmapscan = on; \
         SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; \
         SET LOCAL enable_sort = on; SET LOCAL enable_material = on; \
         SET LOCAL plan_cache_mode = force_custom_plan",
    )?;
    let number = count_rows(session, "tag")?.saturating_sub(found.labels);
    labels(session, number, report)?;
    let number = count_rows(session, "forbid")?.saturating_sub(found.forbids);
    rows(session, (FaultSort::ForbidOrphan, number, FORBIDS), report, &|row| {
        let what =
            format!("the row that forbids by the key {} has no record", row.get::<_, i64>(1));
        DatabaseFault::of(FaultSort::ForbidOrphan, row.get(0), what)
    })?;
    let number = count_rows(session, "word")?.saturating_sub(word);
    rows(session, (FaultSort::WordOrphan, number, WORDS), report, &|row| {
        let word = String::from_utf8_lossy(row.get(1)).into_owned();
        let what = format!("the row of the word `{word}` has no record (the beginning of an id)");
        DatabaseFault::of(FaultSort::WordOrphan, &ids_of(row.get(0)).0[..8], what)
    })?;
    let number = count_rows(session, "worded")?.saturating_sub(worded);
    rows(session, (FaultSort::WordOrphan, number, &lists()), report, &|row| {
        let what = "a list of words has no record (the beginning of an id)";
        DatabaseFault::of(FaultSort::WordOrphan, &ids_of(row.get(0)).0[..8], what)
    })?;
    numbers(session, report)
}

/// Returns the number of a table's rows.
fn count_rows(session: &mut DatabaseSession, table: &str) -> Result<u64, StatementError> {
    let rows = session.query_once(&format!("SELECT count(*) FROM {table}"), &[])?;
    Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0)).max(0).cast_unsigned())
}

/// Reports `number` rows that have no record. The statement `text` finds the first of these rows.
fn rows(
    session: &mut DatabaseSession,
    (sort, number, text): (FaultSort, u64, &str),
    report: &mut DatabaseCheck,
    fault: &dyn Fn(&Row) -> DatabaseFault,
) -> Result<(), StatementError> {
    if number == 0 {
        return Ok(());
    }
    let found = session.query_once(&format!("{text} LIMIT $1"), &[&ROWS_MAX])?;
    report.add_counted(sort, number, found.iter().map(fault));
    Ok(())
}

/// Reports `number` rows of labels that belong to no record.
fn labels(
    session: &mut DatabaseSession,
    number: u64,
    report: &mut DatabaseCheck,
) -> Result<(), StatementError> {
    if number == 0 {
        return Ok(());
    }
    let mut faults = Vec::new();
    for row in session.query_once(&format!("{LABELS} LIMIT $1"), &[&ROWS_MAX])? {
        let (id, term): (&[u8], i64) = (row.get(0), row.get(1));
        let text = "SELECT body, $2 = ANY(terms) FROM record WHERE id = $1";
        let records = session.query_once(text, &[&id, &term])?;
        // Columns of the record may be wrong, so the record's bytes decide.
        let has_row = |record: &Row| {
            let Ok(whole) = Record::new(record.get(0)) else { return false };
            let (key, kind) = (IndexKey::of(&whole), whole.kind().cast_signed());
            let has_term = record.get::<_, Option<bool>>(1) == Some(true);
            has_term && key.time == row.get::<_, i64>(2) && kind == row.get::<_, i32>(3)
        };
        if records.iter().any(has_row) {
            continue;
        }
        let what = if records.is_empty() {
            format!("the row of the term {term} has no record")
        } else {
            format!("the row of the term {term} has another time, kind or label than its record")
        };
        faults.push(DatabaseFault::of(FaultSort::LabelOrphan, id, what));
    }
    report.add_counted(FaultSort::LabelOrphan, number, faults.into_iter());
    Ok(())
}

/// Adds a fault for each sequence number that several records have.
fn numbers(
    session: &mut DatabaseSession,
    report: &mut DatabaseCheck,
) -> Result<(), StatementError> {
    let text = "SELECT seq, count(*) FROM record GROUP BY seq HAVING count(*) > 1 LIMIT $1";
    for row in session.query_once(text, &[&ROWS_MAX])? {
        let (seq, records): (i64, i64) = (row.get(0), row.get(1));
        let what = format!("{records} records have the number {seq}");
        report.add(DatabaseFault::general(FaultSort::Number, what));
    }
    Ok(())
}
