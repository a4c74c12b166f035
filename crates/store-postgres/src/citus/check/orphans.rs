//! Finds rows that belong to no record, in the distributed tables and in the table of forbidding
//! records. A row without a record is read again while no process can commit.

use std::collections::HashSet;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::pages::LabelPages;
use crate::check::{DatabaseCheck, DatabaseFault, FaultSort};
use crate::citus::places::id_head;
use crate::citus::statement::CitusStatement;
use crate::commit::fetch::id;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Maximum number of rows that are read at a time.
const PAGE: usize = 2_000;

/// The search for rows that belong to no record.
pub(super) struct Orphans<'a> {
    pub(super) session: &'a mut DatabaseSession,
    pub(super) report: &'a mut DatabaseCheck,
}

/// A row that must have a record: the id, the place, and for a label its term.
#[derive(Clone, PartialEq, Eq, Hash)]
struct DerivedRow {
    id: Vec<u8>,
    place: Vec<u8>,
    term: Option<i64>,
}

impl Orphans<'_> {
    /// Reports the rows of labels that belong to no record.
    pub(super) fn labels(&mut self) -> Result<(), StatementError> {
        let mut pages = LabelPages::new();
        while let Some(rows) = pages.next(self.session, PAGE)? {
            let of = |row: &Row| DerivedRow {
                id: row.get(3),
                place: row.get(4),
                term: Some(row.get(0)),
            };
            let rows = rows.iter().map(of).collect();
            let text = "SELECT t.id, t.place, t.term FROM tag t WHERE t.term = ANY($1::bigint[]) \
                AND t.id = ANY($2::bytea[])";
            self.compare(rows, FaultSort::LabelOrphan, text)?;
        }
        Ok(())
    }

    /// Reports the rows of ids that belong to no record.
    pub(super) fn places(&mut self) -> Result<(), StatementError> {
        self.of_ids(FaultSort::PlaceOrphan, "SELECT p.id, p.place, NULL::bigint FROM id_place p")
    }

    /// Reports the rows of forbidding records that belong to no record.
    pub(super) fn forbids(&mut self) -> Result<(), StatementError> {
        let select = "SELECT DISTINCT p.id, p.place, NULL::bigint FROM forbid p";
        self.of_ids(FaultSort::ForbidOrphan, select)
    }

    /// Reports the rows of a table that belong to no record, in the order of their ids. In
    /// `select`, the table has the alias `p`.
    fn of_ids(&mut self, sort: FaultSort, select: &str) -> Result<(), StatementError> {
        let text = format!("{select} WHERE p.id > $1::bytea ORDER BY p.id LIMIT $2");
        let again = format!("{select} WHERE p.id = ANY($1::bytea[])");
        let (mut after, limit) = (Vec::<u8>::new(), i64::try_from(PAGE).unwrap_or(i64::MAX));
        loop {
            let rows = self.session.query_once(&text, &[&after, &limit])?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = last.get(0);
            let rows = rows.iter().map(derived).collect();
            self.compare(rows, sort, &again)?;
        }
    }

    /// Reports those of the rows that have no record. The statement `again` reads the rows again.
    fn compare(
        &mut self,
        rows: Vec<DerivedRow>,
        sort: FaultSort,
        again: &str,
    ) -> Result<(), StatementError> {
        let suspected = self.without_record(rows)?;
        if suspected.is_empty() {
            return Ok(());
        }
        self.session.batch("BEGIN")?;
        self.session.query(CitusStatement::Enter, &[])?;
        let orphans = self.compare_again(&suspected, again)?;
        self.session.batch("COMMIT")?;
        for row in orphans {
            let what = match row.term {
                Some(term) => format!("the row of the term {term} has no record"),
                None => "the row has no record".into(),
            };
            self.report.add(DatabaseFault::of(sort, &row.id, what));
        }
        Ok(())
    }

    /// Returns those rows that are still there, and still without a record.
    fn compare_again(
        &mut self,
        suspected: &[DerivedRow],
        again: &str,
    ) -> Result<Vec<DerivedRow>, StatementError> {
        let ids: Vec<&[u8]> = suspected.iter().map(|row| &row.id[..]).collect();
        let terms: Vec<i64> = suspected.iter().filter_map(|row| row.term).collect();
        let of_terms: [&(dyn ToSql + Sync); 2] = [&terms, &ids];
        let values = if terms.is_empty() { &of_terms[1..] } else { &of_terms[..] };
        let rows = self.session.query_once(again, values)?;
        let wanted: HashSet<&DerivedRow> = suspected.iter().collect();
        let mut rows: Vec<DerivedRow> =
            rows.iter().map(derived).filter(|row| wanted.contains(row)).collect();
        rows.sort_unstable_by(|a, b| (&a.id, a.term).cmp(&(&b.id, b.term)));
        rows.dedup();
        self.without_record(rows)
    }

    /// Returns those rows that have no record.
    fn without_record(&mut self, rows: Vec<DerivedRow>) -> Result<Vec<DerivedRow>, StatementError> {
        let mut places: Vec<&[u8]> = rows.iter().map(|row| &row.place[..]).collect();
        places.sort_unstable();
        places.dedup();
        let mut heads: Vec<i64> = rows.iter().map(|row| id_head(&id(&row.id))).collect();
        heads.sort_unstable();
        heads.dedup();
        let text = "SELECT r.id, r.place, r.terms FROM record r \
            WHERE r.place = ANY($1::bytea[]) AND r.id_head = ANY($2::bigint[])";
        let found = self.session.query_once(text, &[&places, &heads])?;
        let mut records: HashSet<DerivedRow> = HashSet::new();
        for row in &found {
            let of = |term| DerivedRow { id: row.get(0), place: row.get(1), term };
            records.insert(of(None));
            let terms: Vec<i64> = row.try_get(2).unwrap_or_default();
            records.extend(terms.into_iter().map(|term| of(Some(term))));
        }
        Ok(rows.into_iter().filter(|row| !records.contains(row)).collect())
    }
}

fn derived(row: &Row) -> DerivedRow {
    DerivedRow { id: row.get(0), place: row.get(1), term: row.get(2) }
}
