//! The steps of a check on one server. All steps are in one read-only transaction, so all of them
//! see the same snapshot. A cursor reads the records in the order of the disk.

use std::collections::HashMap;
use std::sync::Arc;

use hark_archive::TextSource;
use tokio_postgres::Row;

use super::orphans;
use super::parts::RecordTables;
use super::words::WordCheck;
use crate::check::steps::{COLUMNS, CheckSteps};
use crate::check::{
    DatabaseCheck, DatabaseFault, ExpectedRecord, FaultSort, IndexedTexts, LabelRows, PageRows,
};
use crate::commit::fetch::{SlotQuery, slot_columns};
use crate::error::StatementError;
use crate::plain::retire;
use crate::plain::statement::PlainStatement;
use crate::session::DatabaseSession;
use crate::time::IndexKey;
use crate::words::state::WordState;

/// Maximum number of attempts to begin. An attempt fails if another process drops a part meanwhile.
const TRIES: u32 = 5;

/// The check of a shelf on one server.
#[derive(Default)]
pub(crate) struct PlainCheck {
    tables: RecordTables,
    words: WordCheck,
    /// The parts that are being dropped, each with the number of records by which the counter was
    /// already reduced.
    retired: Vec<(i64, i64)>,
}

impl PlainCheck {
    /// Locks the tables before the snapshot begins, because a table that is emptied or detached
    /// after the start of a snapshot is empty for the snapshot, too.
    fn try_begin(&mut self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        session.batch(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
             LOCK TABLE record, tag, word, worded, forbid, label_value IN ACCESS SHARE MODE",
        )?;
        let rows =
            session.query_once("SELECT number, records FROM retired ORDER BY number", &[])?;
        self.retired = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        for (number, _) in &self.retired {
            session.batch(&format!("LOCK TABLE retired_record_{number} IN ACCESS SHARE MODE"))?;
        }
        session.batch(&format!(
            "SET LOCAL enable_seqscan = on; \
             DECLARE checked NO SCROLL CURSOR FOR SELECT {COLUMNS}, r.tableoid FROM record r; \
             SET LOCAL enable_seqscan = off"
        ))
    }
}

impl CheckSteps for PlainCheck {
    fn is_snapshot(&self) -> bool {
        true
    }

    fn begin(&mut self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        for _ in 1..TRIES {
            match self.try_begin(session) {
                Err(StatementError::Missing(_) | StatementError::Busy(_)) => {
                    session.batch("ROLLBACK")?;
                }
                begun => return begun,
            }
        }
        self.try_begin(session)
    }

    fn indexed_texts(
        &mut self,
        session: &mut DatabaseSession,
        own: Option<&Arc<dyn TextSource>>,
    ) -> Result<IndexedTexts, StatementError> {
        let state = WordState::read(session)?;
        let Some(texts) = state.texts else { return Ok(IndexedTexts::None) };
        let own = own.filter(|own| own.fingerprint().cast_signed() == texts);
        Ok(own.map_or(IndexedTexts::Unknown, |own| {
            IndexedTexts::Known(Arc::clone(own), state.words_seq)
        }))
    }

    fn tables(
        &mut self,
        session: &mut DatabaseSession,
        report: &mut DatabaseCheck,
    ) -> Result<(), StatementError> {
        self.tables = RecordTables::read(session, report)?;
        Ok(())
    }

    fn next_records(
        &mut self,
        session: &mut DatabaseSession,
        count: usize,
    ) -> Result<Option<Vec<Row>>, StatementError> {
        let rows = session.query_once(&format!("FETCH FORWARD {count} FROM checked"), &[])?;
        Ok((!rows.is_empty()).then_some(rows))
    }

    fn records_again(
        &mut self,
        session: &mut DatabaseSession,
        numbers: &[i64],
    ) -> Result<Vec<Row>, StatementError> {
        let text =
            format!("SELECT {COLUMNS}, r.tableoid FROM record r WHERE r.seq = ANY($1::bigint[])");
        session.query_once(&text, &[&numbers])
    }

    fn location_fault(&self, row: &Row, record: &ExpectedRecord) -> Option<DatabaseFault> {
        let what = self.tables.fault(row.get(8), row.get(1))?;
        Some(DatabaseFault::of(FaultSort::Part, &record.key.id, what))
    }

    fn label_counts(
        &mut self,
        session: &mut DatabaseSession,
        labels: &LabelRows,
    ) -> Result<Vec<(usize, i64)>, StatementError> {
        let LabelRows { terms, kinds, times, ids, .. } = labels;
        let rows = session.query(PlainStatement::LabelCounts, &[terms, kinds, times, ids])?;
        Ok(rows.iter().map(|row| (row.get::<_, i64>(0) as usize - 1, row.get(1))).collect())
    }

    fn slot_holders(
        &self,
        session: &mut DatabaseSession,
        slots: &[SlotQuery],
    ) -> Result<Vec<(usize, IndexKey)>, StatementError> {
        let (termed, plain): (Vec<usize>, Vec<usize>) =
            (0..slots.len()).partition(|at| slots[*at].term.is_some());
        let of = |indices: &[usize]| indices.iter().map(|at| slots[*at]).collect::<Vec<_>>();
        let mut holders = Vec::new();
        let mut add = |indices: &[usize], rows: &[Row]| {
            holders.extend(rows.iter().map(|row| {
                let at = indices[row.get::<_, i64>(0) as usize - 1];
                (at, IndexKey::read(row, 1))
            }));
        };
        if !plain.is_empty() {
            let slots = of(&plain);
            let (authors, kinds, _) = slot_columns(&slots);
            add(&plain, &session.query(PlainStatement::Slots, &[&authors, &kinds])?);
        }
        if !termed.is_empty() {
            let slots = of(&termed);
            let (authors, kinds, terms) = slot_columns(&slots);
            add(&termed, &session.query(PlainStatement::TermSlots, &[&terms, &kinds, &authors])?);
        }
        Ok(holders)
    }

    fn forbidding(
        &self,
        session: &mut DatabaseSession,
        keys: &[i64],
    ) -> Result<HashMap<i64, Vec<u8>>, StatementError> {
        let rows = session.query(PlainStatement::Forbids, &[&keys])?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    fn compare_more(
        &mut self,
        session: &mut DatabaseSession,
        records: &[ExpectedRecord],
    ) -> Result<Vec<(usize, DatabaseFault)>, StatementError> {
        self.words.compare(session, records)
    }

    fn orphans(
        &mut self,
        session: &mut DatabaseSession,
        found: PageRows,
        report: &mut DatabaseCheck,
    ) -> Result<(), StatementError> {
        orphans::add(session, found, self.words.rows(), report)
    }

    fn counted_besides(
        &mut self,
        session: &mut DatabaseSession,
    ) -> Result<(HashMap<i64, i64>, i64), StatementError> {
        let (mut values, mut records) = (HashMap::new(), 0);
        for (number, counted) in &self.retired {
            records += retire::count(session, *number, true)? - counted;
            for (term, count) in retire::count_values(session, *number)? {
                *values.entry(term).or_default() += count;
            }
        }
        Ok((values, records))
    }

    fn end(&mut self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        session.batch("COMMIT")
    }
}
