//! The steps of a rebuild on one server. The repair of most faults is in the same file as the
//! search for these faults.

use std::collections::BTreeMap;

use tokio_postgres::types::ToSql;

use super::wrong_rows::{self, WrongRowCursor};
use super::{parts, words};
use crate::check::{ExpectedRecord, FaultSort, LabelRows, RepairSteps, WrongRows};
use crate::commit::ShelfAdvance;
use crate::error::StatementError;
use crate::layout::SharedStatement;
use crate::plain::statement::PlainStatement;
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// The repair of a shelf on one server.
#[derive(Default)]
pub(crate) struct PlainRepair {
    wrong_rows: WrongRowCursor,
}

impl RepairSteps for PlainRepair {
    fn repair_tables(&self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        parts::repair(session)
    }

    fn repair_columns(
        &self,
        session: &mut DatabaseSession,
        records: &[&ExpectedRecord],
    ) -> Result<i64, StatementError> {
        let mut deleted = 0;
        for record in records {
            match other_row(session, record)? {
                OtherRow::None => write_columns(session, record)?,
                OtherRow::Same => {
                    let (time, id) = &record.stored;
                    let text = "DELETE FROM record WHERE time = $1 AND id = $2";
                    session.query_once(text, &[time, id])?;
                    deleted += 1;
                }
                OtherRow::Different => {}
            }
        }
        Ok(deleted)
    }

    fn repair_labels(
        &self,
        session: &mut DatabaseSession,
        labels: &LabelRows,
        wrong: &[usize],
    ) -> Result<(), StatementError> {
        if wrong.is_empty() {
            return Ok(());
        }
        let terms: Vec<i64> = wrong.iter().map(|at| labels.terms[*at]).collect();
        let kinds: Vec<i32> = wrong.iter().map(|at| labels.kinds[*at]).collect();
        let times: Vec<i64> = wrong.iter().map(|at| labels.times[*at]).collect();
        let ids: Vec<&[u8]> = wrong.iter().map(|at| &labels.ids[*at][..]).collect();
        let values: [&(dyn ToSql + Sync); 4] = [&terms, &kinds, &times, &ids];
        let rows = "unnest($1::bigint[], $2::int[], $3::bigint[], $4::bytea[]) \
            AS v(term, kind, time, id)";
        let text = format!(
            "DELETE FROM tag t USING {rows} WHERE t.term = v.term AND t.kind = v.kind \
             AND t.time = v.time AND t.id = v.id"
        );
        session.query_once(&text, &values)?;
        let text = format!(
            "INSERT INTO tag (term, kind, time, id) SELECT term, kind, time, id FROM {rows}"
        );
        session.query_once(&text, &values).map(drop)
    }

    fn repair_forbids(
        &self,
        session: &mut DatabaseSession,
        records: &[&ExpectedRecord],
    ) -> Result<(), StatementError> {
        if records.is_empty() {
            return Ok(());
        }
        let ids: Vec<&[u8]> = records.iter().map(|record| &record.key.id[..]).collect();
        session.query(SharedStatement::DeleteForbids, &[&ids])?;
        let (mut keys, mut times, mut of_keys): (Vec<i64>, Vec<i64>, Vec<&[u8]>) =
            (vec![], vec![], vec![]);
        for record in records {
            for key in &record.forbids {
                keys.push(*key);
                times.push(record.key.time);
                of_keys.push(&record.key.id);
            }
        }
        session.query(PlainStatement::AddForbids, &[&keys, &times, &of_keys]).map(drop)
    }

    fn repair_more(
        &self,
        session: &mut DatabaseSession,
        records: &[&ExpectedRecord],
    ) -> Result<(), StatementError> {
        words::repair(session, records)
    }

    fn next_wrong_rows(
        &mut self,
        session: &mut DatabaseSession,
        counts: &BTreeMap<FaultSort, u64>,
        count: usize,
    ) -> Result<Option<WrongRows>, StatementError> {
        self.wrong_rows.next(session, counts, count)
    }

    fn repair_wrong_rows(
        &self,
        session: &mut DatabaseSession,
        wrong: &WrongRows,
        state: &mut ShelfAdvance,
    ) -> Result<(), StatementError> {
        wrong_rows::repair(session, wrong, state)
    }

    fn bodies_of_terms(
        &self,
        session: &mut DatabaseSession,
        terms: &[i64],
    ) -> Result<Vec<Vec<u8>>, StatementError> {
        let text = "SELECT r.body FROM unnest($1::bigint[]) AS v(term) CROSS JOIN LATERAL \
            (SELECT t.time, t.id FROM tag t WHERE t.term = v.term LIMIT 1) t CROSS JOIN LATERAL \
            (SELECT r.body FROM record r WHERE r.time = t.time AND r.id = t.id LIMIT 1) r";
        let rows = session.query_once(text, &[&terms])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// Another row that has the key of a record.
enum OtherRow {
    None,
    /// A row with the same bytes.
    Same,
    /// A row with other bytes. One of the two may be damaged, so both stay.
    Different,
}

/// Finds another row with the key of this record.
fn other_row(
    session: &mut DatabaseSession,
    record: &ExpectedRecord,
) -> Result<OtherRow, StatementError> {
    let IndexKey { time, id } = &record.key;
    let (stored_time, stored_id) = &record.stored;
    if time == stored_time && id[..] == stored_id[..] {
        return Ok(OtherRow::None);
    }
    let text = "SELECT o.body = r.body FROM record o CROSS JOIN record r \
        WHERE o.time = $1 AND o.id = $2 AND r.time = $3 AND r.id = $4";
    let rows = session.query_once(text, &[time, &&id[..], stored_time, stored_id])?;
    Ok(match rows.first().map(|row| row.get(0)) {
        None => OtherRow::None,
        Some(true) => OtherRow::Same,
        Some(false) => OtherRow::Different,
    })
}

/// Rewrites the columns of a record's row.
fn write_columns(
    session: &mut DatabaseSession,
    record: &ExpectedRecord,
) -> Result<(), StatementError> {
    let (stored_time, stored_id) = &record.stored;
    let IndexKey { time, id } = &record.key;
    let values: [&(dyn ToSql + Sync); 8] = [
        stored_time,
        stored_id,
        time,
        &record.expires,
        &record.kind,
        &&id[..],
        &record.author,
        &record.terms,
    ];
    session.query(PlainStatement::RepairColumns, &values).map(drop)
}
