//! Compares a page of records with the rows that these records have in other tables.

use std::collections::{HashMap, HashSet};

use hark_archive::{Order, Record};

use super::record::{ExpectedRecord, LabelRows, PageRows};
use super::report::{DatabaseFault, FaultSort, hex};
use super::steps::CheckSteps;
use crate::commit::fetch::SlotQuery;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Compares the other rows of these records, and adds the faults. Returns the numbers of rows.
pub(super) fn compare(
    steps: &mut dyn CheckSteps,
    session: &mut DatabaseSession,
    records: &[ExpectedRecord],
    faults: &mut Vec<DatabaseFault>,
) -> Result<PageRows, StatementError> {
    let labels = labels(steps, session, records, faults)?;
    let forbids = forbids(session, records, faults)?;
    slots(steps, session, records, faults)?;
    prohibitions(steps, session, records, faults)?;
    faults.extend(steps.compare_more(session, records)?);
    Ok(PageRows { labels, forbids })
}

/// Compares the rows of labels, and returns their number.
fn labels(
    steps: &mut dyn CheckSteps,
    session: &mut DatabaseSession,
    records: &[ExpectedRecord],
    faults: &mut Vec<DatabaseFault>,
) -> Result<u64, StatementError> {
    let rows = LabelRows::of(records);
    if rows.terms.is_empty() {
        return Ok(0);
    }
    let mut count = rows.terms.len() as u64;
    for (at, found) in steps.label_counts(session, &rows)? {
        let found = found.max(0).cast_unsigned();
        count = count - 1 + found;
        let term = rows.terms[at];
        let (sort, what) = if found == 0 {
            (FaultSort::LabelMissing, format!("the row of the term {term} is missing"))
        } else {
            (FaultSort::LabelDouble, format!("there are {found} rows of the term {term}"))
        };
        faults.push(DatabaseFault::of(sort, &rows.ids[at], what));
    }
    Ok(count)
}

/// Compares the rows of records that forbid other records, and returns their number.
fn forbids(
    session: &mut DatabaseSession,
    records: &[ExpectedRecord],
    faults: &mut Vec<DatabaseFault>,
) -> Result<u64, StatementError> {
    let ids: Vec<&[u8]> = records.iter().map(|record| &record.key.id[..]).collect();
    let text = "SELECT id, key, time FROM forbid WHERE id = ANY($1::bytea[])";
    let rows = session.query_once(text, &[&ids])?;
    let mut found: HashMap<&[u8], Vec<(i64, i64)>> = HashMap::new();
    for row in &rows {
        found.entry(row.get(0)).or_default().push((row.get(1), row.get(2)));
    }
    for record in records.iter().filter(|record| record.is_whole) {
        let id = &record.key.id;
        let rows = found.remove(&id[..]).unwrap_or_default();
        let is_right = |(key, time): &(i64, i64)| {
            *time == record.key.time && record.forbids.binary_search(key).is_ok()
        };
        let right: HashSet<i64> =
            rows.iter().filter(|row| is_right(row)).map(|(key, _)| *key).collect();
        for key in record.forbids.iter().filter(|key| !right.contains(key)) {
            let what = format!("the row that forbids by the key {key} is missing");
            faults.push(DatabaseFault::of(FaultSort::ForbidMissing, id, what));
        }
        for _ in right.len()..rows.len() {
            let what = "a row forbids by a key that the record does not have";
            faults.push(DatabaseFault::of(FaultSort::ForbidOrphan, id, what));
        }
    }
    Ok(rows.len() as u64)
}

/// Finds records with a newer version.
fn slots(
    steps: &dyn CheckSteps,
    session: &mut DatabaseSession,
    records: &[ExpectedRecord],
    faults: &mut Vec<DatabaseFault>,
) -> Result<(), StatementError> {
    let held: Vec<(&ExpectedRecord, SlotQuery)> =
        records.iter().filter_map(|record| Some((record, record.slot?))).collect();
    if held.is_empty() {
        return Ok(());
    }
    let mut slots: Vec<SlotQuery> = held.iter().map(|(_, slot)| *slot).collect();
    slots.sort_unstable_by_key(|slot| (slot.author, slot.kind, slot.term));
    slots.dedup();
    let mut holders: HashMap<SlotQuery, Vec<_>> = HashMap::new();
    for (at, key) in steps.slot_holders(session, &slots)? {
        holders.entry(slots[at]).or_default().push(key);
    }
    for (record, slot) in held {
        let own = record.key.position();
        let others = holders.get(&slot).into_iter().flatten();
        let mut others = others.filter(|key| key.id != record.key.id);
        let newer = others.find(|key| Order::NewestFirst.compare(&key.position(), &own).is_lt());
        if let Some(newer) = newer {
            let what = format!("{} is a newer version", hex(&newer.id));
            faults.push(DatabaseFault::of(FaultSort::OldVersion, &record.key.id, what));
        }
    }
    Ok(())
}

/// Finds records that a stored record forbids.
fn prohibitions(
    steps: &dyn CheckSteps,
    session: &mut DatabaseSession,
    records: &[ExpectedRecord],
    faults: &mut Vec<DatabaseFault>,
) -> Result<(), StatementError> {
    let all = records.iter().flat_map(|record| &record.prohibitions);
    let mut keys: Vec<i64> = all.map(|(key, _)| *key).collect();
    keys.sort_unstable();
    keys.dedup();
    if keys.is_empty() {
        return Ok(());
    }
    let newest = steps.forbidding(session, &keys)?;
    for record in records {
        let forbids = record.prohibitions.iter().find_map(|(key, query)| {
            let found = Record::new(newest.get(key)?).ok()?;
            (*found.id() != record.key.id && query.matches(&found)).then(|| hex(found.id()))
        });
        if let Some(by) = forbids {
            let what = format!("the stored record {by} forbids this record");
            faults.push(DatabaseFault::of(FaultSort::Forbidden, &record.key.id, what));
        }
    }
    Ok(())
}
