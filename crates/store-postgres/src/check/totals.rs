//! The counters that commits maintain: the number of records, the numbers of puts, and the number
//! of records for each listed value of a label.

use std::collections::HashMap;

use hark_codec::record::Record;

use super::record::ExpectedRecord;
use super::repair::Repairer;
use super::report::{DatabaseCheck, DatabaseFault, FaultSort};
use crate::error::StatementError;
use crate::label_values::{self, ValueTally};
use crate::layout::lower_values;
use crate::properties::ShelfProperties;
use crate::session::DatabaseSession;

/// Maximum number of listed values that are counted one by one, and maximum number of labels of
/// damaged records. If there are more values, only the sum of all numbers is compared; if there are
/// more labels of damaged records, the numbers are not compared.
const VALUES_MAX: usize = 1 << 21;
/// Number of values that one statement reads or changes.
const PAGE: usize = 10_000;
/// Number of values whose rows one transaction inserts.
const VALUES: usize = 500;

/// The state of a shelf, from the table `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShelfCounters {
    pub(super) seq: i64,
    pub(super) records: i64,
}

impl ShelfCounters {
    pub(super) fn read(session: &mut DatabaseSession) -> Result<Self, StatementError> {
        let rows = session.query_once("SELECT seq, records FROM state", &[])?;
        let [row] = &rows[..] else {
            return Err(StatementError::Refused(format!(
                "its table `state` has {} rows instead of one",
                rows.len()
            )));
        };
        Ok(Self { seq: row.get(0), records: row.get(1) })
    }
}

/// The records that a check has read, counted.
#[derive(Default)]
pub(super) struct RecordTally {
    pub(super) records: i64,
    /// The highest number of a put.
    last: i64,
    /// For each listed value, its number of records; empty if there are too many values.
    values: HashMap<i64, i64>,
    /// For each label of a damaged record, its number of damaged records, because its value may be
    /// listed; empty if there are too many labels.
    damaged: HashMap<i64, i64>,
    /// The sum of the numbers of `values`.
    sum: i64,
    has_too_many_values: bool,
    has_too_many_damaged: bool,
}

impl RecordTally {
    pub(super) fn add(&mut self, record: &ExpectedRecord) {
        self.records += 1;
        self.last = self.last.max(record.seq);
        if !record.is_whole {
            if !self.has_too_many_damaged {
                for term in &record.terms {
                    *self.damaged.entry(*term).or_default() += 1;
                }
            }
            if self.damaged.len() > VALUES_MAX {
                (self.damaged, self.has_too_many_damaged) = (HashMap::new(), true);
            }
            return;
        }
        for term in &record.listed {
            self.sum += 1;
            if !self.has_too_many_values {
                *self.values.entry(*term).or_default() += 1;
            }
        }
        if self.values.len() > VALUES_MAX {
            (self.values, self.has_too_many_values) = (HashMap::new(), true);
        }
    }

    /// Compares the tally with the counters in the database, and returns the differences. `besides`
    /// are the numbers by which the counters may exceed the stored records.
    pub(super) fn compare(
        mut self,
        session: &mut DatabaseSession,
        counters: ShelfCounters,
        besides: (HashMap<i64, i64>, i64),
        report: &mut DatabaseCheck,
    ) -> Result<CounterDifferences, StatementError> {
        let (values, records) = besides;
        let expected = self.records + records;
        if counters.records != expected {
            let kept = counters.records;
            let what = format!("the number of records is {kept} instead of {expected}");
            report.add(DatabaseFault::general(FaultSort::Counter, what));
        }
        if self.last > counters.seq {
            let what = format!(
                "a record has the number {}, and the newest number is {}",
                self.last, counters.seq
            );
            report.add(DatabaseFault::general(FaultSort::Number, what));
        }
        for (term, records) in values {
            self.sum += records;
            *self.values.entry(term).or_default() += records;
        }
        let records = expected - counters.records;
        let mut differences = CounterDifferences { records, ..CounterDifferences::default() };
        self.compare_values(session, &mut differences, report)?;
        Ok(differences)
    }

    fn compare_values(
        mut self,
        session: &mut DatabaseSession,
        differences: &mut CounterDifferences,
        report: &mut DatabaseCheck,
    ) -> Result<(), StatementError> {
        if self.has_too_many_damaged {
            report.notes.push(
                "the numbers of listed values were not compared, because too many records are damaged"
                    .into(),
            );
            return Ok(());
        }
        let text = "SELECT term, records FROM label_value WHERE term > $1 ORDER BY term LIMIT $2";
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let (mut after, mut sum) = (i64::MIN, 0);
        loop {
            let rows = session.query_once(text, &[&after, &limit])?;
            for row in &rows {
                let (term, kept): (i64, i64) = (row.get(0), row.get(1));
                let damaged = self.damaged.get(&term).copied().unwrap_or_default();
                let expected = self.values.remove(&term).unwrap_or_default() + damaged;
                (after, sum) = (term, sum + kept - damaged);
                if kept != expected && !self.has_too_many_values {
                    let what = format!(
                        "the value with the term {term} has {kept} records instead of {expected}"
                    );
                    report.add(DatabaseFault::general(FaultSort::Counter, what));
                    differences.values.push((term, expected - kept));
                }
            }
            if rows.len() < PAGE {
                break;
            }
        }
        if self.has_too_many_values {
            if sum != self.sum {
                let what = format!(
                    "the listed values have {sum} records together instead of {}",
                    self.sum
                );
                report.add(DatabaseFault::general(FaultSort::Counter, what));
                differences.has_wrong_sum = true;
            }
            return Ok(());
        }
        let mut missing: Vec<(i64, i64)> = self.values.into_iter().collect();
        missing.sort_unstable();
        for (term, expected) in &missing {
            let what = format!("the value with the term {term} is missing, for {expected} records");
            report.add(DatabaseFault::general(FaultSort::Counter, what));
        }
        differences.missing = missing;
        Ok(())
    }
}

/// The differences between the tally of a check and the counters that commits maintain. Commits
/// change the counters, but not a difference.
#[derive(Default)]
pub(super) struct CounterDifferences {
    records: i64,
    /// Terms of listed values, each with the number of records that its row lacks.
    values: Vec<(i64, i64)>,
    /// Terms of listed values without a row, each with its number of records.
    missing: Vec<(i64, i64)>,
    /// Whether the sum of the numbers of too many values is wrong.
    has_wrong_sum: bool,
}

impl CounterDifferences {
    /// Adds the differences to the counters.
    pub(super) fn repair(
        self,
        repairer: &mut Repairer<'_>,
        shelf: &ShelfProperties,
    ) -> Result<(), StatementError> {
        if self.records != 0 {
            repairer.locked(|_, _, state| {
                state.records += self.records;
                Ok(())
            })?;
        }
        if self.has_wrong_sum {
            let (layout, listed) = (repairer.layout, shelf.listed_labels);
            return label_values::count_all(repairer.session, layout, &shelf.terms, listed);
        }
        for page in self.values.chunks(PAGE) {
            let (terms, lost): (Vec<i64>, Vec<i64>) =
                page.iter().map(|(term, records)| (*term, -records)).unzip();
            repairer.locked(|_, session, _| {
                session.query_once(&lower_values(), &[&terms, &lost]).map(drop)
            })?;
        }
        for page in self.missing.chunks(VALUES) {
            let expected: HashMap<i64, i64> = page.iter().copied().collect();
            let terms: Vec<i64> = page.iter().map(|(term, _)| *term).collect();
            repairer.locked(|steps, session, _| {
                let mut values = ValueTally::default();
                for body in steps.bodies_of_terms(session, &terms)? {
                    let Ok(record) = Record::new(&body) else { continue };
                    values.add_numbers(&record, shelf.listed_labels, &shelf.terms, &expected);
                }
                values.write(session)
            })?;
        }
        Ok(())
    }
}
