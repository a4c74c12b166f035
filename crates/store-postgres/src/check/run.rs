//! Runs a check.

use std::sync::Arc;
use std::time::Duration;

use hark_archive::effects::{Effects, Rules};
use hark_archive::{Record, TextSource};
use hark_words::{RecordWords, WeighedWords};
use tokio_postgres::Row;

use super::page;
use super::record::{ExpectedRecord, IndexedTexts, PageRows, RecordReader};
use super::repair::{PageRepair, Repairer, STEP, locked};
use super::report::{DatabaseCheck, DatabaseFault, FaultSort};
use super::steps::{COLUMNS, CheckSteps};
use super::totals::{RecordTally, ShelfCounters};
use crate::error::StatementError;
use crate::layout::Layout;
use crate::open::{DatabaseOpenError, enter_tables};
use crate::options::PostgresOptions;
use crate::properties::ShelfProperties;
use crate::session::DatabaseSession;

/// Time limit of a statement of a check. Some statements count the rows of a whole table.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_hours(1);
/// Setting for the session that reads the snapshot in a rebuild. This session is idle while another
/// session repairs rows.
const IDLE: &str = "SET LOCAL idle_in_transaction_session_timeout = '1h'";
/// Minimum and maximum number of records that are read at a time.
const PAGE_MIN: usize = 20;
const PAGE_MAX: usize = 500;
/// Approximate number of bytes of the records that are read at a time.
const PAGE_BYTES: usize = 8 << 20;

/// A note about rows of words that a rebuild does not repair.
const OTHER_WORDS: &str = "missing rows of words were not repaired, because the words are those of \
    other settings in [search]; run the command with the settings of the servers";

/// Compares the message of a record with the record's id and other fixed fields. Returns the fault
/// of the message; `None` if there is none.
pub type MessageCheck<'a> = &'a mut dyn FnMut(&Record<'_>) -> Option<String>;

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckProgress {
    /// A description of the current work, for people.
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
    let (layout, texts) = (tables.layout, tables.texts.as_ref());
    let checked = CheckedShelf { layout, shelf: &tables.shelf, texts, message };
    let mut report = DatabaseCheck::default();
    run(checked, &mut tables.session, None, progress, &mut report)?;
    Ok(report)
}

/// A shelf to be checked.
pub(crate) struct CheckedShelf<'a> {
    pub(crate) layout: &'static dyn Layout,
    pub(crate) shelf: &'a ShelfProperties,
    /// The texts whose words this process indexes.
    pub(crate) texts: Option<&'a Arc<dyn TextSource>>,
    pub(crate) message: MessageCheck<'a>,
}

/// Checks a shelf, and repairs the faults if there is a repairer.
pub(crate) fn run(
    checked: CheckedShelf<'_>,
    session: &mut DatabaseSession,
    repairer: Option<Repairer<'_>>,
    progress: &mut dyn FnMut(CheckProgress),
    report: &mut DatabaseCheck,
) -> Result<(), StatementError> {
    let CheckedShelf { layout, shelf, texts: own, message } = checked;
    let mut steps = layout.check_steps();
    steps.begin(session)?;
    if repairer.is_some() {
        session.batch(IDLE)?;
    }
    let counters = ShelfCounters::read(session)?;
    let texts = steps.indexed_texts(session, own)?;
    steps.tables(session, report)?;
    let has_unknown_words = matches!(texts, IndexedTexts::Unknown);
    let reader = RecordReader {
        shelf,
        texts,
        message,
        effects: Effects::default(),
        words: RecordWords::default(),
        found: WeighedWords::default(),
    };
    let what = if repairer.is_some() { "comparing and repairing" } else { "comparing records" };
    let mut check = RecordComparison { layout, steps, session, reader, own, repairer };
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
        progress(CheckProgress { what, done, total: total.max(done) });
    }
    let done = report.records;
    progress(CheckProgress { what: "counting rows", done, total: total.max(done) });
    let RecordComparison { mut steps, session, mut repairer, .. } = check;
    steps.orphans(session, found, report)?;
    let besides = steps.counted_besides(session)?;
    if steps.is_snapshot() || ShelfCounters::read(session)? == counters {
        let differences = tally.compare(session, counters, besides, report)?;
        if let Some(repairer) = &mut repairer {
            repairer.repair_wrong_rows(session, &report.counts)?;
            differences.repair(repairer, shelf)?;
            if has_unknown_words && report.counts.contains_key(&FaultSort::WordMissing) {
                report.notes.push(OTHER_WORDS.into());
            }
        }
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
    /// The texts whose words this process indexes.
    own: Option<&'a Arc<dyn TextSource>>,
    repairer: Option<Repairer<'a>>,
}

/// The records of a page, the numbers of their rows, and their faults.
type CheckedPage = (Vec<ExpectedRecord>, PageRows, Vec<DatabaseFault>);

impl RecordComparison<'_> {
    /// Compares a page of records. Without a snapshot, a page with faults is compared again while
    /// no process can commit, because a commit may have changed the rows between two statements. In
    /// a rebuild, the faults are those that were still there when they were repaired.
    fn page(&mut self, rows: &[Row]) -> Result<CheckedPage, StatementError> {
        let mut page = compare(&mut *self.steps, self.session, &mut self.reader, rows, None)?;
        if page.2.is_empty() {
            return Ok(page);
        }
        let numbers: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        if self.repairer.is_some() {
            page.2 = self.repair(numbers)?;
            return Ok(page);
        }
        if self.steps.is_snapshot() {
            return Ok(page);
        }
        self.session.batch("BEGIN")?;
        self.layout.enter(self.session)?;
        let rows = self.steps.records_again(self.session, &numbers)?;
        let again = compare(&mut *self.steps, self.session, &mut self.reader, &rows, None)?;
        self.session.batch("COMMIT")?;
        Ok(again)
    }

    /// Compares the records with these numbers again while no process can commit, and repairs their
    /// faults. Returns the faults.
    fn repair(&mut self, mut numbers: Vec<i64>) -> Result<Vec<DatabaseFault>, StatementError> {
        let Self { layout, reader, own, repairer: Some(repairer), .. } = self else {
            return Ok(Vec::new());
        };
        numbers.sort_unstable();
        numbers.dedup();
        let texts = reader.texts.clone();
        let mut faults = Vec::new();
        for numbers in numbers.chunks(STEP) {
            let Repairer { session, steps, check, .. } = repairer;
            faults.extend(locked(*layout, session, |session, state| {
                let rows = check.records_again(session, numbers)?;
                reader.texts = check.indexed_texts(session, *own)?;
                let mut repair = PageRepair {
                    steps: &**steps,
                    layout: *layout,
                    shelf: reader.shelf,
                    state,
                    excluded: Vec::new(),
                };
                let page = compare(&mut **check, session, reader, &rows, Some(&mut repair))?;
                let others = others(session, reader, &repair)?;
                repair.delete(session, &others)?;
                Ok(page.2)
            })?);
        }
        reader.texts = texts;
        Ok(faults)
    }
}

/// Compares a page of records. With `repair`, also repairs the faults.
fn compare(
    steps: &mut dyn CheckSteps,
    session: &mut DatabaseSession,
    reader: &mut RecordReader<'_>,
    rows: &[Row],
    repair: Option<&mut PageRepair<'_>>,
) -> Result<CheckedPage, StatementError> {
    let mut faults = Vec::new();
    let mut records = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(record) = read(session, reader, row, &mut faults)? {
            faults.extend(steps.location_fault(row, &record));
            records.push(record);
        }
    }
    let counts = page::compare(steps, session, &records, &mut faults, repair)?;
    Ok((records, counts, faults))
}

/// Reads the row of a record, and adds the faults of the row. Returns `None` if another process has
/// deleted the record meanwhile.
fn read(
    session: &mut DatabaseSession,
    reader: &mut RecordReader<'_>,
    row: &Row,
    faults: &mut Vec<DatabaseFault>,
) -> Result<Option<ExpectedRecord>, StatementError> {
    if let Some(body) = row.get::<_, Option<&[u8]>>(7) {
        return Ok(Some(reader.read(row, body, faults)));
    }
    Ok(long_body(session, row)?.map(|body| reader.read(row, &body, faults)))
}

/// Reads the records that exclude others.
fn others(
    session: &mut DatabaseSession,
    reader: &mut RecordReader<'_>,
    repair: &PageRepair<'_>,
) -> Result<Vec<ExpectedRecord>, StatementError> {
    if repair.excluded.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<&[u8]> = repair.excluded.iter().map(|record| &record.by[..]).collect();
    let text = format!("SELECT {COLUMNS} FROM record r WHERE r.id = ANY($1::bytea[])");
    let mut others = Vec::new();
    for row in session.query_once(&text, &[&ids])? {
        others.extend(read(session, reader, &row, &mut Vec::new())?);
    }
    Ok(others)
}

/// Reads the bytes of a long record.
fn long_body(session: &mut DatabaseSession, row: &Row) -> Result<Option<Vec<u8>>, StatementError> {
    let (seq, id): (i64, &[u8]) = (row.get(0), row.get(4));
    let text = "SELECT body FROM record WHERE seq = $1 AND id = $2";
    Ok(session.query_once(text, &[&seq, &id])?.first().map(|row| row.get(0)))
}
