//! Repairs rows that belong to no record, and wrong numbers of records. A cursor finds the rows in
//! the snapshot of the check. Transactions that hold the lock of the shelf repair some rows each,
//! if these rows are still wrong.

use std::collections::BTreeMap;

use tokio_postgres::Row;

use super::orphans::{FORBIDS, LABELS, WORDS, lists};
use super::words::delete_of;
use crate::check::{FaultSort, WrongRows};
use crate::commit::ShelfAdvance;
use crate::commit::fetch::id;
use crate::error::StatementError;
use crate::plain::part_sql::MARK;
use crate::plain::word_sql::DELETE_WORDS;
use crate::session::DatabaseSession;
use crate::words::mark::mark;

/// The numbers of records that are above the newest number, or that several records have.
const NUMBERS: &str = "SELECT r.seq FROM record r GROUP BY r.seq HAVING count(*) > 1 \
    OR r.seq > (SELECT s.seq FROM state s) \
    ORDER BY r.seq > (SELECT s.seq FROM state s) DESC, r.seq";

/// A sort of wrong rows.
struct RowRepair {
    sort: FaultSort,
    /// Returns the text that finds the rows.
    find: fn() -> String,
    /// Repairs those of these rows that are still wrong.
    repair: fn(&mut DatabaseSession, &[Row], &mut ShelfAdvance) -> Result<(), StatementError>,
}

/// The sorts of wrong rows, in the order of their repair.
const REPAIRS: [RowRepair; 5] = [
    RowRepair { sort: FaultSort::LabelOrphan, find: || LABELS.into(), repair: delete_labels },
    RowRepair { sort: FaultSort::ForbidOrphan, find: || FORBIDS.into(), repair: delete_forbids },
    RowRepair { sort: FaultSort::WordOrphan, find: lists, repair: delete_lists },
    RowRepair { sort: FaultSort::WordOrphan, find: || WORDS.into(), repair: delete_words },
    RowRepair { sort: FaultSort::Number, find: || NUMBERS.into(), repair: repair_numbers },
];

/// Reads wrong rows, one sort after the other.
#[derive(Default)]
pub(super) struct WrongRowCursor {
    /// The index of the sort.
    at: usize,
    is_open: bool,
}

impl WrongRowCursor {
    /// Reads at most `count` rows of the sorts in `counts`; `None` after the last row.
    pub(super) fn next(
        &mut self,
        session: &mut DatabaseSession,
        counts: &BTreeMap<FaultSort, u64>,
        count: usize,
    ) -> Result<Option<WrongRows>, StatementError> {
        while let Some(RowRepair { sort, find, .. }) = REPAIRS.get(self.at) {
            if counts.contains_key(sort) {
                if !self.is_open {
                    let text = find();
                    session.batch(&format!("DECLARE wrong NO SCROLL CURSOR FOR {text}"))?;
                    self.is_open = true;
                }
                let fetch = format!("FETCH FORWARD {count} FROM wrong");
                let rows = session.query_once(&fetch, &[])?;
                if !rows.is_empty() {
                    return Ok(Some(WrongRows { sort: self.at, rows }));
                }
                session.batch("CLOSE wrong")?;
            }
            (self.at, self.is_open) = (self.at + 1, false);
        }
        Ok(None)
    }
}

/// Repairs those of these rows that are still wrong.
pub(super) fn repair(
    session: &mut DatabaseSession,
    wrong: &WrongRows,
    state: &mut ShelfAdvance,
) -> Result<(), StatementError> {
    let repair = REPAIRS.get(wrong.sort);
    repair.map_or(Ok(()), |repair| (repair.repair)(session, &wrong.rows, state))
}

fn delete_labels(
    session: &mut DatabaseSession,
    rows: &[Row],
    _: &mut ShelfAdvance,
) -> Result<(), StatementError> {
    let ids: Vec<&[u8]> = rows.iter().map(|row| row.get(0)).collect();
    let terms: Vec<i64> = rows.iter().map(|row| row.get(1)).collect();
    let times: Vec<i64> = rows.iter().map(|row| row.get(2)).collect();
    let kinds: Vec<i32> = rows.iter().map(|row| row.get(3)).collect();
    let text = "DELETE FROM tag t USING \
        unnest($1::bigint[], $2::int[], $3::bigint[], $4::bytea[]) AS v(term, kind, time, id) \
        WHERE t.term = v.term AND t.kind = v.kind AND t.time = v.time AND t.id = v.id \
        AND NOT EXISTS (SELECT FROM record r WHERE r.time = v.time AND r.id = v.id \
        AND r.kind = v.kind AND v.term = ANY(r.terms))";
    session.query_once(text, &[&terms, &kinds, &times, &ids]).map(drop)
}

fn delete_forbids(
    session: &mut DatabaseSession,
    rows: &[Row],
    _: &mut ShelfAdvance,
) -> Result<(), StatementError> {
    let ids: Vec<&[u8]> = rows.iter().map(|row| row.get(0)).collect();
    let text = "DELETE FROM forbid f WHERE f.id = ANY($1::bytea[]) \
        AND NOT EXISTS (SELECT FROM record r WHERE r.id = f.id)";
    session.query_once(text, &[&ids]).map(drop)
}

/// Deletes lists of words, together with the rows of these words.
fn delete_lists(
    session: &mut DatabaseSession,
    rows: &[Row],
    _: &mut ShelfAdvance,
) -> Result<(), StatementError> {
    let marks: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let times: Vec<i64> = rows.iter().map(|row| row.get(1)).collect();
    let kinds: Vec<i32> = rows.iter().map(|row| row.get(2)).collect();
    let text = format!(
        "WITH gone AS (SELECT v.time, v.mark, v.kind \
         FROM unnest($1::bigint[], $2::bigint[], $3::int[]) AS v(time, mark, kind) \
         WHERE NOT EXISTS (SELECT FROM record r WHERE r.time = v.time AND r.kind = v.kind \
         AND v.mark = {MARK})), {DELETE_WORDS} SELECT 1"
    );
    session.query_once(&text, &[&times, &marks, &kinds]).map(drop)
}

fn delete_words(
    session: &mut DatabaseSession,
    rows: &[Row],
    _: &mut ShelfAdvance,
) -> Result<(), StatementError> {
    let marks: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let words: Vec<&[u8]> = rows.iter().map(|row| row.get(1)).collect();
    let times: Vec<i64> = rows.iter().map(|row| row.get(2)).collect();
    let kinds: Vec<i32> = rows.iter().map(|row| row.get(3)).collect();
    let text = "DELETE FROM word w USING \
        unnest($1::bytea[], $2::int[], $3::bigint[], $4::bigint[]) AS v(word, kind, time, mark) \
        WHERE w.word = v.word AND w.kind = v.kind AND w.time = v.time AND w.mark = v.mark \
        AND NOT EXISTS (SELECT FROM worded l WHERE l.time = v.time \
        AND l.mark = v.mark - (v.mark & 3) AND l.kind = v.kind AND v.word = ANY(l.words))";
    session.query_once(text, &[&words, &kinds, &times, &marks]).map(drop)
}

/// Gives new numbers to records with a number above the newest number, and to all but one of
/// several records with the same number.
fn repair_numbers(
    session: &mut DatabaseSession,
    rows: &[Row],
    state: &mut ShelfAdvance,
) -> Result<(), StatementError> {
    let numbers: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let text = "SELECT r.seq, r.time, r.id, r.kind FROM record r WHERE r.seq = ANY($1::bigint[])";
    let mut rows = session.query_once(text, &[&numbers])?;
    let before = state.seq;
    let key = |row: &Row| (row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, Vec<u8>>(2));
    rows.sort_by_cached_key(|row| (row.get::<_, i64>(0) <= before, key(row)));
    let (mut times, mut ids, mut seqs) = (Vec::new(), Vec::new(), Vec::<i64>::new());
    let (mut words, mut last) = ((Vec::new(), Vec::new(), Vec::new()), None);
    for row in &rows {
        let (seq, time, record): (i64, i64, &[u8]) = (row.get(0), row.get(1), row.get(2));
        if seq > before || last == Some(seq) {
            state.seq += 1;
            times.push(time);
            ids.push(record);
            seqs.push(state.seq);
            if seq <= state.words_seq {
                words.0.push(time);
                words.1.push(mark(&id(record)));
                words.2.push(row.get::<_, i32>(3));
            }
        }
        last = Some(seq);
    }
    let text = "UPDATE record r SET seq = v.seq FROM \
        unnest($1::bigint[], $2::bytea[], $3::bigint[]) AS v(time, id, seq) \
        WHERE r.time = v.time AND r.id = v.id";
    session.query_once(text, &[&times, &ids, &seqs])?;
    // `words_seq` is the number up to which the words of all records are indexed.
    if state.words_seq >= before {
        state.words_seq = state.seq;
        return Ok(());
    }
    delete_of(session, &words.0, &words.1, &words.2)
}
