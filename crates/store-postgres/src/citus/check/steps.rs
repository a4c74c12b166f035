//! The steps of a check on a Citus cluster. The nodes have no common snapshot, so each statement
//! sees the rows as they are when it runs.

use std::collections::HashMap;
use std::sync::Arc;

use hark_archive::TextSource;
use tokio_postgres::Row;

use super::orphans::Orphans;
use super::pages::NumberWindows;
use super::{prepared, shards};
use crate::check::steps::{COLUMNS, CheckSteps};
use crate::check::{
    DatabaseCheck, DatabaseFault, ExpectedRecord, FaultSort, IndexedTexts, LabelRows, PageRows,
};
use crate::citus::places::{bodies, id_head};
use crate::citus::statement::{CitusStatement, ValueCount};
use crate::commit::fetch::{SlotQuery, id, slot_columns};
use crate::error::StatementError;
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// Maximum number of labels that one statement looks up. Each shard receives all labels.
const LABELS_MAX: usize = 2_000;

/// The key of a label's row: term, kind, time and id.
type LabelKey = (i64, i32, i64, Vec<u8>);

/// The check of a shelf on a cluster.
#[derive(Default)]
pub(crate) struct CitusCheck {
    /// `None` before the first records are read.
    windows: Option<NumberWindows>,
}

impl CheckSteps for CitusCheck {
    fn is_snapshot(&self) -> bool {
        false
    }

    fn begin(&mut self, _: &mut DatabaseSession) -> Result<(), StatementError> {
        Ok(())
    }

    fn indexed_texts(
        &mut self,
        _: &mut DatabaseSession,
        _: Option<&Arc<dyn TextSource>>,
    ) -> Result<IndexedTexts, StatementError> {
        Ok(IndexedTexts::None)
    }

    fn tables(
        &mut self,
        session: &mut DatabaseSession,
        report: &mut DatabaseCheck,
    ) -> Result<(), StatementError> {
        let text = "SELECT p.seq, s.seq FROM published p JOIN state s ON s.line = p.line";
        if let Some(row) = session.query_once(text, &[])?.first() {
            let (published, newest): (i64, i64) = (row.get(0), row.get(1));
            if published > newest {
                let what = format!(
                    "the published number is {published}, and the newest number is {newest}"
                );
                report.add(DatabaseFault::general(FaultSort::Counter, what));
            }
        }
        prepared::add(session, report)?;
        shards::add(session, report)
    }

    fn next_records(
        &mut self,
        session: &mut DatabaseSession,
        count: usize,
    ) -> Result<Option<Vec<Row>>, StatementError> {
        if self.windows.is_none() {
            // The counters may include a commit that is not finished on all workers. This statement
            // waits for such a commit.
            session.query(CitusStatement::WholeState, &[])?;
            self.windows = Some(NumberWindows::of(session)?);
        }
        self.windows.as_mut().map_or(Ok(None), |windows| windows.next(session, count))
    }

    fn records_again(
        &mut self,
        session: &mut DatabaseSession,
        numbers: &[i64],
    ) -> Result<Vec<Row>, StatementError> {
        let text = format!(
            "SELECT {COLUMNS}, r.place, r.id_head FROM record r WHERE r.seq = ANY($1::bigint[])"
        );
        session.query_once(&text, &[&numbers])
    }

    fn location_fault(&self, row: &Row, record: &ExpectedRecord) -> Option<DatabaseFault> {
        let (place, head): (&[u8], i64) = (row.get(8), row.get(9));
        let is_right = place == record.place && head == id_head(&record.key.id);
        (!is_right).then(|| {
            let what = "differs from the record: place or id_head";
            DatabaseFault::of(FaultSort::Column, &record.key.id, what)
        })
    }

    fn label_counts(
        &mut self,
        session: &mut DatabaseSession,
        labels: &LabelRows,
    ) -> Result<Vec<(usize, i64)>, StatementError> {
        let text = "SELECT t.term, t.kind, t.time, t.id, t.place FROM tag t JOIN \
            unnest($1::bigint[], $2::int[], $3::bigint[], $4::bytea[]) AS v(term, kind, time, id) \
            ON t.term = v.term AND t.kind = v.kind AND t.time = v.time AND t.id = v.id \
            WHERE t.term = ANY($1)";
        let LabelRows { terms, kinds, times, ids, places } = labels;
        let mut found: HashMap<LabelKey, Vec<Vec<u8>>> = HashMap::new();
        for first in (0..terms.len()).step_by(LABELS_MAX) {
            let some = first..terms.len().min(first + LABELS_MAX);
            let (terms, kinds) = (&terms[some.clone()], &kinds[some.clone()]);
            let (times, ids) = (&times[some.clone()], &ids[some]);
            for row in session.query_once(text, &[&terms, &kinds, &times, &ids])? {
                let key = (row.get(0), row.get(1), row.get(2), row.get(3));
                found.entry(key).or_default().push(row.get(4));
            }
        }
        let count = |at: usize| {
            let key = (terms[at], kinds[at], times[at], ids[at].clone());
            // A row with a wrong place does not lead to the record, so it is not counted.
            let rows = found.get(&key).into_iter().flatten();
            i64::try_from(rows.filter(|place| **place == places[at]).count()).unwrap_or(i64::MAX)
        };
        let counts = (0..terms.len()).map(|at| (at, count(at)));
        Ok(counts.filter(|(_, count)| *count != 1).collect())
    }

    fn slot_holders(
        &self,
        session: &mut DatabaseSession,
        slots: &[SlotQuery],
    ) -> Result<Vec<(usize, IndexKey)>, StatementError> {
        let indices: HashMap<SlotQuery, usize> =
            slots.iter().enumerate().map(|(at, slot)| (*slot, at)).collect();
        let (termed, plain): (Vec<SlotQuery>, Vec<SlotQuery>) =
            slots.iter().partition(|slot| slot.term.is_some());
        let mut holders = Vec::new();
        if !plain.is_empty() {
            let (authors, kinds, _) = slot_columns(&plain);
            for row in session.query(CitusStatement::Slots, &[&authors, &kinds])? {
                let slot = SlotQuery { author: id(row.get(0)), kind: row.get(1), term: None };
                let key = IndexKey::read(&row, 2);
                holders.extend(indices.get(&slot).map(|at| (*at, key)));
            }
        }
        if termed.is_empty() {
            return Ok(holders);
        }
        let (_, kinds, terms) = slot_columns(&termed);
        let of_slot: HashMap<(i64, i32), usize> = termed
            .iter()
            .filter_map(|slot| Some(((slot.term?, slot.kind), *indices.get(slot)?)))
            .collect();
        let rows = session.query(CitusStatement::TermSlots, &[&terms, &kinds])?;
        let mut found: HashMap<usize, Vec<_>> = HashMap::new();
        for row in &rows {
            if let Some(at) = of_slot.get(&(row.get(0), row.get(1))) {
                let key = IndexKey { time: 0, id: id(row.get(2)) };
                found.entry(*at).or_default().push((key, id(row.get(3))));
            }
        }
        // The times are needed only for slots with several records.
        for (at, keys) in found.into_iter().filter(|(_, keys)| keys.len() > 1) {
            let records = bodies(session, &keys, i64::MAX, None)?;
            holders.extend(records.into_iter().map(|(key, _)| (at, key)));
        }
        Ok(holders)
    }

    fn forbidding(
        &self,
        session: &mut DatabaseSession,
        keys: &[i64],
    ) -> Result<HashMap<i64, Vec<u8>>, StatementError> {
        let rows = session.query(CitusStatement::Forbids, &[&keys])?;
        let mut placed: Vec<_> = rows
            .iter()
            .map(|row| (IndexKey { time: 0, id: id(row.get(1)) }, id(row.get(2))))
            .collect();
        placed.sort_unstable_by_key(|(key, _)| key.id);
        placed.dedup();
        let records = bodies(session, &placed, i64::MAX, None)?;
        let records: HashMap<[u8; 32], Box<[u8]>> =
            records.into_iter().map(|(key, body)| (key.id, body)).collect();
        let body = |row: &Row| Some((row.get(0), records.get(&id(row.get(1)))?.to_vec()));
        Ok(rows.iter().filter_map(body).collect())
    }

    fn compare_more(
        &mut self,
        session: &mut DatabaseSession,
        records: &[ExpectedRecord],
    ) -> Result<Vec<(usize, DatabaseFault)>, StatementError> {
        let ids: Vec<&[u8]> = records.iter().map(|record| &record.key.id[..]).collect();
        let rows = session.query(CitusStatement::Places(ValueCount::Many), &[&ids])?;
        let places: HashMap<&[u8], &[u8]> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let fault = |(at, record): (usize, &ExpectedRecord)| {
            let what = match places.get(&record.key.id[..]) {
                Some(place) if *place == record.place => return None,
                Some(_) => "the row of the id leads to another place",
                None => "the row of the id is missing",
            };
            Some((at, DatabaseFault::of(FaultSort::PlaceMissing, &record.key.id, what)))
        };
        Ok(records.iter().enumerate().filter_map(fault).collect())
    }

    fn orphans(
        &mut self,
        session: &mut DatabaseSession,
        _: PageRows,
        report: &mut DatabaseCheck,
    ) -> Result<(), StatementError> {
        let mut orphans = Orphans { session, report };
        orphans.labels()?;
        orphans.places()?;
        orphans.forbids()
    }

    fn counted_besides(
        &mut self,
        _: &mut DatabaseSession,
    ) -> Result<(HashMap<i64, i64>, i64), StatementError> {
        Ok((HashMap::new(), 0))
    }

    fn end(&mut self, _: &mut DatabaseSession) -> Result<(), StatementError> {
        Ok(())
    }
}
