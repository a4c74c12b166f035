//! The steps of a check in which layouts differ.

use std::collections::HashMap;
use std::sync::Arc;

use hark_archive::TextSource;
use tokio_postgres::Row;

use super::record::{ExpectedRecord, IndexedTexts, LabelRows, PageRows};
use super::report::{DatabaseCheck, DatabaseFault};
use crate::commit::fetch::SlotQuery;
use crate::error::StatementError;
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// The columns of a page of records, in the order of
/// [`RecordReader::read`](super::record::RecordReader::read). The layout's own columns follow. The
/// bytes of a long record are read by a separate statement, so that a page needs little memory.
pub(crate) const COLUMNS: &str = "r.seq, r.time, r.expires, r.kind, r.id, r.author, r.terms, \
     CASE WHEN octet_length(r.body) <= 65536 THEN r.body END";

/// The steps of a check in which layouts differ. One check calls them in this order.
pub(crate) trait CheckSteps: Send {
    /// Whether all steps see the same snapshot. Without a snapshot, records that seem faulty are
    /// read and compared again while no process can commit.
    fn is_snapshot(&self) -> bool;

    /// Begins the check. If there is a snapshot, it begins here.
    fn begin(&mut self, session: &mut DatabaseSession) -> Result<(), StatementError>;

    /// Returns the texts whose words are indexed. `own` are the texts whose words this process
    /// indexes.
    fn indexed_texts(
        &mut self,
        session: &mut DatabaseSession,
        own: Option<&Arc<dyn TextSource>>,
    ) -> Result<IndexedTexts, StatementError>;

    /// Adds the faults of the tables themselves.
    fn tables(
        &mut self,
        session: &mut DatabaseSession,
        report: &mut DatabaseCheck,
    ) -> Result<(), StatementError>;

    /// Reads at most `count` of the next records; `None` after the last.
    fn next_records(
        &mut self,
        session: &mut DatabaseSession,
        count: usize,
    ) -> Result<Option<Vec<Row>>, StatementError>;

    /// Reads the records with these numbers again.
    fn records_again(
        &mut self,
        session: &mut DatabaseSession,
        numbers: &[i64],
    ) -> Result<Vec<Row>, StatementError>;

    /// Compares the layout's own columns with the record.
    fn location_fault(&self, row: &Row, record: &ExpectedRecord) -> Option<DatabaseFault>;

    /// Returns the indices of those labels that do not have exactly one row, each with its number
    /// of rows.
    fn label_counts(
        &mut self,
        session: &mut DatabaseSession,
        labels: &LabelRows,
    ) -> Result<Vec<(usize, i64)>, StatementError>;

    /// Returns the records in slots, each with the index of its slot.
    fn slot_holders(
        &self,
        session: &mut DatabaseSession,
        slots: &[SlotQuery],
    ) -> Result<Vec<(usize, IndexKey)>, StatementError>;

    /// Returns the newest forbidding record of each key.
    fn forbidding(
        &self,
        session: &mut DatabaseSession,
        keys: &[i64],
    ) -> Result<HashMap<i64, Vec<u8>>, StatementError>;

    /// Compares the rows of records in the tables that only this layout has. Returns the faults,
    /// each with the index of its record.
    fn compare_more(
        &mut self,
        session: &mut DatabaseSession,
        records: &[ExpectedRecord],
    ) -> Result<Vec<(usize, DatabaseFault)>, StatementError>;

    /// Reports the rows that belong to no record. `found` has the numbers of rows that the records
    /// have.
    fn orphans(
        &mut self,
        session: &mut DatabaseSession,
        found: PageRows,
        report: &mut DatabaseCheck,
    ) -> Result<(), StatementError>;

    /// Returns the numbers by which the counters may exceed the stored records: a number for each
    /// listed value, and a number for all records. Parts that are being dropped may still be
    /// counted.
    fn counted_besides(
        &mut self,
        session: &mut DatabaseSession,
    ) -> Result<(HashMap<i64, i64>, i64), StatementError>;

    /// Ends the check.
    fn end(&mut self, session: &mut DatabaseSession) -> Result<(), StatementError>;
}
