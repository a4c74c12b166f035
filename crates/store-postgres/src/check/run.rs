//! Running a check.

use std::time::Duration;

use hark_archive::Record;
use hark_archive::effects::{Effects, Rules};
use hark_words::{RecordWords, WeighedWords};
use tokio_postgres::Row;

use super::page;
use super::record::{ExpectedRecord, PageRows, RecordReader};
use super::report::{DatabaseCheck, DatabaseFault};
use super::steps::CheckSteps;
use super::totals::{RecordTally, ShelfCounters};
use crate::error::StatementError;
use crate::layout::Layout;
use crate::open::{DatabaseOpenError, EnteredTables, enter_tables};
use crate::options::PostgresOptions;
use crate::session::DatabaseSession;

/// Time limit of a statement of a check. Some statements count the rows of a whole table.
const STATEMENT_TIMEOUT: Duration = Duration::from_hours(1);
/// Smallest and greatest number of records that are read at a time.
const PAGE_MIN: usize = 20;
const PAGE_MAX: usize = 500;
/// Approximate number of bytes of the records that are read at a time.
const PAGE_BYTES: usize = 8 << 20;

/// Compares the message of a record with the record's id and other fixed fields. Returns the fault
/// of the message; `None` if there is none.
pub type MessageCheck<'a> = &'a mut dyn FnMut(&Record<'_>) -> Option<String>;

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckProgress {
    /// The current work, for people.
    pub what: &'static str,
    /// Number of records that are compared.
    pub done: u64,
    /// Number of all records.
    pub total: u64,
}

/// Checks the shelf with this name in the database at `url`, and changes nothing. Servers may write
/// to the shelf meanwhile, and the database may be a replica.
pub fn check(
    url: &str,
    shelf: &str,
    rules: Box<dyn Rules>,
    options: &PostgresOptions,
    message: MessageCheck<'_>,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<DatabaseCheck, DatabaseOpenError> {
    let statement_timeout = options.statement_timeout.max(STATEMENT_TIMEOUT);
    let options = PostgresOptions { migrate: false, statement_timeout, ..options.clone() };
    let mut tables = enter_tables(url, shelf, rules, &options)?;
    let mut report = DatabaseCheck::default();
    run(&mut tables, message, progress, &mut report)?;
    Ok(report)
}

fn run(
    tables: &mut EnteredTables,
    message: MessageCheck<'_>,
    progress: &mut dyn FnMut(CheckProgress),
    report: &mut DatabaseCheck,
) -> Result<(), StatementError> {
    let EnteredTables { layout, session, shelf, texts, .. } = tables;
    let mut steps = layout.check_steps();
    steps.begin(session)?;
    let counters = ShelfCounters::read(session)?;
    let texts = steps.indexed_texts(session, texts.as_ref())?;
    steps.tables(session, report)?;
    let reader = RecordReader {
        shelf,
        texts,
        message,
        effects: Effects::default(),
        words: RecordWords::default(),
        found: WeighedWords::default(),
    };
    let mut check = RecordComparison { layout: *layout, steps, session, reader };
    let total = counters.records.max(0).cast_unsigned();
    let (mut tally, mut found) = (RecordTally::default(), PageRows::default());
    let mut page_len = PAGE_MIN;
    while let Some(rows) = check.steps.next_records(check.session, page_len)? {
        let bytes: usize = rows.iter().map(Row::raw_size_bytes).sum();
        if !rows.is_empty() {
            page_len = (PAGE_BYTES * rows.len() / bytes.max(1)).clamp(PAGE_MIN, PAGE_MAX);
        }
        let (records, page, faults) = check.page(&rows)?;
        for record in &records {
            tally.add(record);
        }
        found.labels += page.labels;
        found.forbids += page.forbids;
        report.records += records.len() as u64;
        report.labels += records.iter().map(|record| record.terms.len() as u64).sum::<u64>();
        let words = records.iter().filter_map(|record| record.words.as_ref());
        report.words += words.map(|words| words.len() as u64).sum::<u64>();
        for fault in faults {
            report.add(fault);
        }
        let done = report.records;
        progress(CheckProgress { what: "comparing records", done, total: total.max(done) });
    }
    let done = report.records;
    progress(CheckProgress { what: "counting rows", done, total: total.max(done) });
    let RecordComparison { mut steps, session, .. } = check;
    steps.orphans(session, found, report)?;
    let besides = steps.counted_besides(session)?;
    if steps.is_snapshot() || ShelfCounters::read(session)? == counters {
        tally.compare(session, counters, besides, report)?;
    } else {
        report.notes.push(
            "the counters were not compared, because records were stored or deleted meanwhile"
                .into(),
        );
    }
    steps.end(session)
}

/// The check of the records of a shelf.
struct RecordComparison<'a> {
    layout: &'static dyn Layout,
    steps: Box<dyn CheckSteps>,
    session: &'a mut DatabaseSession,
    reader: RecordReader<'a>,
}

/// The records of a page, the numbers of their rows, and their faults.
type CheckedPage = (Vec<ExpectedRecord>, PageRows, Vec<DatabaseFault>);

impl RecordComparison<'_> {
    /// Compares a page of records. Without a snapshot, a page with faults is compared again while
    /// no process can commit, because a commit may have changed the rows between two statements.
    fn page(&mut self, rows: &[Row]) -> Result<CheckedPage, StatementError> {
        let page = self.compare(rows)?;
        if page.2.is_empty() || self.steps.is_snapshot() {
            return Ok(page);
        }
        let numbers: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        self.session.batch("BEGIN")?;
        self.layout.enter(self.session)?;
        let rows = self.steps.records_again(self.session, &numbers)?;
        let again = self.compare(&rows)?;
        self.session.batch("COMMIT")?;
        Ok(again)
    }

    fn compare(&mut self, rows: &[Row]) -> Result<CheckedPage, StatementError> {
        let (mut records, mut faults) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in rows {
            let long;
            let body = match row.get::<_, Option<&[u8]>>(7) {
                Some(body) => body,
                None => match long_body(self.session, row)? {
                    Some(body) => {
                        long = body;
                        &long
                    }
                    // Another process has deleted the record meanwhile.
                    None => continue,
                },
            };
            let record = self.reader.read(row, body, &mut faults);
            faults.extend(self.steps.location_fault(row, &record));
            records.push(record);
        }
        let counts = page::compare(&mut *self.steps, self.session, &records, &mut faults)?;
        Ok((records, counts, faults))
    }
}

/// Reads the bytes of a long record.
fn long_body(session: &mut DatabaseSession, row: &Row) -> Result<Option<Vec<u8>>, StatementError> {
    let (seq, id): (i64, &[u8]) = (row.get(0), row.get(4));
    let text = "SELECT body FROM record WHERE seq = $1 AND id = $2";
    Ok(session.query_once(text, &[&seq, &id])?.first().map(|row| row.get(0)))
}
