//! The steps of a rebuild in which layouts differ. Each step repairs the faults that a step of the
//! check has found.

use std::collections::BTreeMap;

use tokio_postgres::Row;

use super::record::{ExpectedRecord, LabelRows};
use super::report::FaultSort;
use crate::commit::ShelfAdvance;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Rows that belong to no record or have a wrong number.
pub(crate) struct WrongRows {
    /// The sort of these rows, as an index into the layout's list of sorts.
    pub(crate) sort: usize,
    pub(crate) rows: Vec<Row>,
}

/// The steps of a rebuild in which layouts differ. Except for [`RepairSteps::next_wrong_rows`],
/// each step is part of a transaction that has locked the shelf.
pub(crate) trait RepairSteps: Send {
    /// Repairs the list of parts (the partitions by time), and the tables of the parts.
    fn repair_tables(&self, session: &mut DatabaseSession) -> Result<(), StatementError>;

    /// Rewrites the columns of these records' rows from the records' bytes. If another row already
    /// has the right columns and the same bytes, deletes the row with the wrong columns instead.
    /// Returns the number of deleted rows.
    fn repair_columns(
        &self,
        session: &mut DatabaseSession,
        records: &[&ExpectedRecord],
    ) -> Result<i64, StatementError>;

    /// Ensures that each label whose index is in `wrong` has exactly one row.
    fn repair_labels(
        &self,
        session: &mut DatabaseSession,
        labels: &LabelRows,
        wrong: &[usize],
    ) -> Result<(), StatementError>;

    /// Rewrites the rows by which these records forbid other records.
    fn repair_forbids(
        &self,
        session: &mut DatabaseSession,
        records: &[&ExpectedRecord],
    ) -> Result<(), StatementError>;

    /// Rewrites the rows of these records in the tables that only this layout has.
    fn repair_more(
        &self,
        session: &mut DatabaseSession,
        records: &[&ExpectedRecord],
    ) -> Result<(), StatementError>;

    /// Reads the next rows that belong to no record or have a wrong number, at most `count`, in the
    /// transaction of the check; `None` after the last. `counts` has the number of faults of each
    /// sort that the check has found.
    fn next_wrong_rows(
        &mut self,
        session: &mut DatabaseSession,
        counts: &BTreeMap<FaultSort, u64>,
        count: usize,
    ) -> Result<Option<WrongRows>, StatementError>;

    /// Repairs those of these rows that are still wrong.
    fn repair_wrong_rows(
        &self,
        session: &mut DatabaseSession,
        wrong: &WrongRows,
        state: &mut ShelfAdvance,
    ) -> Result<(), StatementError>;

    /// For each of these terms that some record has, returns the bytes of one such record.
    fn bodies_of_terms(
        &self,
        session: &mut DatabaseSession,
        terms: &[i64],
    ) -> Result<Vec<Vec<u8>>, StatementError>;
}
