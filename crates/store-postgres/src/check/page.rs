//! Compares a page of records with the rows that these records have in other tables. In a rebuild,
//! each comparison also repairs the faults that it has found.

use std::collections::{HashMap, HashSet};

use hark_archive::{Order, Record};

use super::record::{ExpectedRecord, LabelRows, PageRows};
use super::repair::{ExcludedRecord, PageRepair};
use super::report::{DatabaseFault, FaultSort, hex};
use super::steps::CheckSteps;
use crate::commit::fetch::SlotQuery;
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Compares the other rows of these records, and adds the faults. With `repair`, also repairs the
/// faults. Returns the numbers of rows that were found.
pub(super) fn compare(
    steps: &mut dyn CheckSteps,
    session: &mut DatabaseSession,
    records: &[ExpectedRecord],
    faults: &mut Vec<DatabaseFault>,
    mut repair: Option<&mut PageRepair<'_>>,
) -> Result<PageRows, StatementError> {
    if let Some(repair) = &mut repair {
        let wrong: Vec<&ExpectedRecord> =
            records.iter().filter(|record| record.has_wrong_columns).collect();
        let deleted = repair.steps.repair_columns(session, &wrong)?;
        repair.state.records -= deleted;
        repair.state.has_deleted |= deleted > 0;
    }
    let labels = labels(steps, session, records, faults, repair.as_deref())?;
    let forbids = forbids(session, records, faults, repair.as_deref())?;
    let mut excluded = slots(steps, session, records, faults)?;
    excluded.extend(prohibitions(steps, session, records, faults)?);
    let more = steps.compare_more(session, records)?;
    if let Some(repair) = repair {
        let mut wrong: Vec<usize> = more.iter().map(|(at, _)| *at).collect();
        wrong.sort_unstable();
        wrong.dedup();
        let wrong: Vec<&ExpectedRecord> = wrong.into_iter().map(|at| &records[at]).collect();
        repair.steps.repair_more(session, &wrong)?;
        repair.excluded = excluded;
    }
    faults.extend(more.into_iter().map(|(_, fault)| fault));
    Ok(PageRows { labels, forbids })
}

/// Compares the rows of labels, and returns their number.
fn labels(
    steps: &mut dyn CheckSteps,
    session: &mut DatabaseSession,
    records: &[ExpectedRecord],
    faults: &mut Vec<DatabaseFault>,
    repair: Option<&PageRepair<'_>>,
) -> Result<u64, StatementError> {
    let rows = LabelRows::of(records);
    if rows.terms.is_empty() {
        return Ok(0);
    }
    let mut count = rows.terms.len() as u64;
    let counts = steps.label_counts(session, &rows)?;
    if let Some(repair) = repair {
        let wrong: Vec<usize> = counts.iter().map(|(at, _)| *at).collect();
        repair.steps.repair_labels(session, &rows, &wrong)?;
    }
    for (at, found) in counts {
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
    repair: Option<&PageRepair<'_>>,
) -> Result<u64, StatementError> {
    let ids: Vec<&[u8]> = records.iter().map(|record| &record.key.id[..]).collect();
    let text = "SELECT id, key, time FROM forbid WHERE id = ANY($1::bytea[])";
    let rows = session.query_once(text, &[&ids])?;
    let mut found: HashMap<&[u8], Vec<(i64, i64)>> = HashMap::new();
    for row in &rows {
        found.entry(row.get(0)).or_default().push((row.get(1), row.get(2)));
    }
    let mut wrong = Vec::new();
    for record in records.iter().filter(|record| record.is_whole) {
        let (id, before) = (&record.key.id, faults.len());
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
        if faults.len() > before {
            wrong.push(record);
        }
    }
    if let Some(repair) = repair {
        repair.steps.repair_forbids(session, &wrong)?;
    }
    Ok(rows.len() as u64)
}

/// Finds records with a newer version, and returns these records.
fn slots(
    steps: &dyn CheckSteps,
    session: &mut DatabaseSession,
    records: &[ExpectedRecord],
    faults: &mut Vec<DatabaseFault>,
) -> Result<Vec<ExcludedRecord>, StatementError> {
    let held: Vec<(&ExpectedRecord, SlotQuery)> =
        records.iter().filter_map(|record| Some((record, record.slot?))).collect();
    let mut excluded = Vec::new();
    if held.is_empty() {
        return Ok(excluded);
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
            let (key, by) = (record.key, newer.id);
            excluded.push(ExcludedRecord { key, by, slot: Some(slot) });
        }
    }
    Ok(excluded)
}

/// Finds records that a stored record forbids, and returns these records.
fn prohibitions(
    steps: &dyn CheckSteps,
    session: &mut DatabaseSession,
    records: &[ExpectedRecord],
    faults: &mut Vec<DatabaseFault>,
) -> Result<Vec<ExcludedRecord>, StatementError> {
    let all = records.iter().flat_map(|record| &record.prohibitions);
    let mut keys: Vec<i64> = all.map(|(key, _)| *key).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut excluded = Vec::new();
    if keys.is_empty() {
        return Ok(excluded);
    }
    let newest = steps.forbidding(session, &keys)?;
    for record in records {
        let forbids = record.prohibitions.iter().find_map(|(key, query)| {
            let found = Record::new(newest.get(key)?).ok()?;
            (*found.id() != record.key.id && query.matches(&found)).then(|| *found.id())
        });
        if let Some(by) = forbids {
            let what = format!("the stored record {} forbids this record", hex(&by));
            faults.push(DatabaseFault::of(FaultSort::Forbidden, &record.key.id, what));
            excluded.push(ExcludedRecord { key: record.key, by, slot: None });
        }
    }
    Ok(excluded)
}
