//! The values of listed labels (labels whose values have stored counts, such as the topic of an
//! envelope), and for each value its number of records. Commits update these numbers in the table
//! `label_value`. If the network's list of labels changes, all values are counted again.

use std::collections::HashMap;

use hark_codec::record::{PRIVATE_LABELS, Record};

use crate::error::StatementError;
use crate::layout::{Layout, SharedStatement, lower_values};
use crate::session::DatabaseSession;
use crate::terms::DatabaseTermHasher;

/// Maximum number of values that one statement reads or writes.
const PAGE: usize = 10_000;
/// Maximum number of records that one statement reads.
const RECORDS: i64 = 5_000;

/// For each value, the number of records that are not yet added to the table.
#[derive(Default)]
pub(crate) struct ValueTally {
    values: HashMap<i64, (u8, Vec<u8>, i64)>,
    /// The terms of the current record's labels. A record that has the same label twice counts
    /// once.
    terms: Vec<i64>,
}

impl ValueTally {
    /// Counts a record once for each of its values of listed labels.
    pub(crate) fn add(&mut self, record: &Record<'_>, listed: &[u8], terms: &DatabaseTermHasher) {
        if listed.is_empty() {
            return;
        }
        self.terms.clear();
        for (name, value) in record.labels().filter(|(name, _)| listed.contains(name)) {
            let term = terms.label(name, value, None).filter(|term| !self.terms.contains(term));
            let Some(term) = term else { continue };
            self.terms.push(term);
            let counted = self.values.entry(term);
            counted.or_insert_with(|| (name, value.to_vec(), 0)).2 += 1;
        }
    }

    /// Adds those values of a record whose terms are in `numbers`, each with its number there.
    pub(crate) fn add_numbers(
        &mut self,
        record: &Record<'_>,
        listed: &[u8],
        terms: &DatabaseTermHasher,
        numbers: &HashMap<i64, i64>,
    ) {
        for (name, value) in record.labels().filter(|(name, _)| listed.contains(name)) {
            let Some(term) = terms.label(name, value, None) else { continue };
            if let Some(records) = numbers.get(&term) {
                self.values.insert(term, (name, value.to_vec(), *records));
            }
        }
    }

    /// Adds the numbers to the table, and clears the tally.
    pub(crate) fn write(&mut self, session: &mut DatabaseSession) -> Result<(), StatementError> {
        let all: Vec<_> = self.values.drain().collect();
        for page in all.chunks(PAGE) {
            let terms: Vec<i64> = page.iter().map(|(term, _)| *term).collect();
            let names: Vec<i16> = page.iter().map(|(_, (name, ..))| i16::from(*name)).collect();
            let values: Vec<&[u8]> = page.iter().map(|(_, (_, value, _))| &value[..]).collect();
            let records: Vec<i64> = page.iter().map(|(.., (_, _, records))| *records).collect();
            session.query(SharedStatement::AddValues, &[&terms, &names, &values, &records])?;
        }
        Ok(())
    }
}

/// Passes those values of a label whose terms are above `after` to `each`, with their numbers of
/// records.
pub(crate) fn read(
    session: &mut DatabaseSession,
    name: u8,
    after: &mut i64,
    each: &mut dyn FnMut(&[u8], u64),
) -> Result<(), StatementError> {
    loop {
        let page = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let rows = session.query(SharedStatement::Values, &[&i16::from(name), after, &page])?;
        for row in &rows {
            *after = row.get(0);
            each(row.get(1), row.get::<_, i64>(2).max(0).cast_unsigned());
        }
        if rows.len() < PAGE {
            return Ok(());
        }
    }
}

/// Whether the table has the values of exactly these labels.
pub(crate) fn has_same_labels(
    session: &mut DatabaseSession,
    listed: &[u8],
) -> Result<bool, StatementError> {
    let rows = session.query_once("SELECT name FROM listed_label ORDER BY name", &[])?;
    Ok(rows.iter().map(|row| row.get::<_, i16>(0)).eq(names(listed)))
}

/// Returns the names of labels in the database's type, ascending, without private labels.
fn names(listed: &[u8]) -> Vec<i16> {
    let mut names: Vec<i16> =
        listed.iter().filter(|&&name| name >= PRIVATE_LABELS).map(|name| (*name).into()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Counts the values of these labels in all records, unless the table already has these values.
/// Other processes cannot commit during the count.
pub(crate) fn count_values(
    session: &mut DatabaseSession,
    layout: &dyn Layout,
    terms: &DatabaseTermHasher,
    listed: &[u8],
) -> Result<(), StatementError> {
    if has_same_labels(session, listed)? {
        return Ok(());
    }
    count_all(session, layout, terms, listed)
}

/// Counts the values of these labels in all records. Other processes cannot commit during the
/// count.
pub(crate) fn count_all(
    session: &mut DatabaseSession,
    layout: &dyn Layout,
    terms: &DatabaseTermHasher,
    listed: &[u8],
) -> Result<(), StatementError> {
    session.whole(|session| {
        session.batch("BEGIN")?;
        layout.enter(session)?;
        let state = session.lock(layout.lock())?;
        let last: i64 = state.first().map_or(0, |row| row.get(0));
        session.batch("DELETE FROM label_value; DELETE FROM listed_label")?;
        let (mut tally, mut seq) = (ValueTally::default(), 0_i64);
        let mut records = if listed.is_empty() { 0 } else { RECORDS };
        while records == RECORDS {
            let puts = layout.puts(session, seq, last, RECORDS)?;
            records = i64::try_from(puts.len()).unwrap_or(i64::MAX);
            for (at, body) in &puts {
                seq = *at;
                if let Ok(record) = Record::new(body) {
                    tally.add(&record, listed, terms);
                }
            }
            if tally.values.len() > PAGE {
                tally.write(session)?;
            }
        }
        tally.write(session)?;
        for values in layout.retired_values(session)? {
            let (terms, lost): (Vec<i64>, Vec<i64>) =
                values.into_iter().map(|(term, records)| (term, -records)).unzip();
            session.query_once(&lower_values(), &[&terms, &lost])?;
        }
        let text = "INSERT INTO listed_label SELECT * FROM unnest($1::smallint[])";
        session.query_once(text, &[&names(listed)])?;
        session.batch("COMMIT")?;
        Ok(Some(()))
    })?;
    Ok(())
}
