//! Compares the list of parts with the tables of the parts.

use std::collections::{BTreeMap, HashMap};

use crate::check::{DatabaseCheck, DatabaseFault, FaultSort};
use crate::error::StatementError;
use crate::layout::SharedStatement;
use crate::parts::Parts;
use crate::plain::label_storage::{LabelStorage, label_storage};
use crate::plain::part_sql::{make_label_view, make_table};
use crate::plain::parts::lock_outside;
use crate::session::DatabaseSession;

/// The tables that are divided into parts.
const PARENTS: [&str; 4] = ["record", "tag", "word", "worded"];
/// The tables that each part must have. A part that an old version of Hark has made may lack the
/// tables of words.
const NEEDED: [&str; 2] = ["record", "tag"];

/// Whether the parts of the table `parent` are separate tables. The labels of slim tables are a
/// view.
fn has_tables(parent: &str, labels: LabelStorage) -> bool {
    parent != "tag" || labels == LabelStorage::Rows
}

/// The tables of records, and the parts to which they belong.
#[derive(Default)]
pub(super) struct RecordTables {
    /// For the oid of each table, the number of its part; `None` for times outside all parts.
    numbers: HashMap<u32, Option<i64>>,
    parts: Parts,
}

/// A table that is attached as a part.
struct AttachedTable {
    oid: u32,
    /// The number in the table's name.
    number: Option<i64>,
    /// The bounds of the table's times; `None` for the table of all other times.
    bounds: Option<(i64, i64)>,
}

impl RecordTables {
    /// Reads the list of parts and the attached tables, and reports their differences.
    pub(super) fn read(
        session: &mut DatabaseSession,
        report: &mut DatabaseCheck,
    ) -> Result<Self, StatementError> {
        let rows = session.query(SharedStatement::Parts, &[])?;
        let listed: BTreeMap<i64, (i64, i64)> =
            rows.iter().map(|row| (row.get(2), (row.get(0), row.get(1)))).collect();
        report.parts = listed.len() as u64;
        let mut numbers = HashMap::new();
        let labels = label_storage(session)?;
        for parent in PARENTS.into_iter().filter(|parent| has_tables(parent, labels)) {
            let attached = attached(session, parent)?;
            let is_needed = NEEDED.contains(&parent);
            for (number, bounds) in &listed {
                let name = format!("{parent}_{number}");
                let what = match attached.get(&name) {
                    None if is_needed => {
                        format!("the table {name} of a listed part is not attached")
                    }
                    Some(table) if table.bounds != Some(*bounds) => {
                        format!("the table {name} has other times than its part in the list")
                    }
                    _ => continue,
                };
                report.add(DatabaseFault::general(FaultSort::PartTable, what));
            }
            for (name, AttachedTable { oid, number, bounds }) in attached {
                let number = number.filter(|number| listed.contains_key(number));
                if number.is_none() && bounds.is_some() {
                    let what = format!("the table {name} is attached, and no listed part has it");
                    report.add(DatabaseFault::general(FaultSort::PartTable, what));
                }
                if parent == "record" {
                    numbers.insert(oid, number);
                }
            }
        }
        Ok(Self { numbers, parts: Parts::of(&rows, 0) })
    }

    /// Returns the fault of a record with this time in the table with this oid; `None` if the
    /// record is in the table of its part.
    pub(super) fn fault(&self, oid: u32, time: i64) -> Option<String> {
        let (found, expected) = (self.numbers.get(&oid).copied()?, self.parts.of_time(time));
        let name = |number: Option<i64>| number.map_or("no part".into(), |at| format!("part {at}"));
        (found != expected)
            .then(|| format!("is in the table of {}, not of {}", name(found), name(expected)))
    }
}

/// Adapts the list of parts to the attached tables, and makes missing tables of parts. A part is
/// not changed if its tables have different times, or if a table with the name of a missing table
/// exists but is not attached. A listed part without any table is removed from the list.
pub(super) fn repair(session: &mut DatabaseSession) -> Result<(), StatementError> {
    let rows = session.query(SharedStatement::Parts, &[])?;
    let listed: BTreeMap<i64, (i64, i64)> =
        rows.iter().map(|row| (row.get(2), (row.get(0), row.get(1)))).collect();
    let mut tables: BTreeMap<i64, BTreeMap<&str, (i64, i64)>> =
        listed.keys().map(|number| (*number, BTreeMap::new())).collect();
    let labels = label_storage(session)?;
    for parent in PARENTS.into_iter().filter(|parent| has_tables(parent, labels)) {
        for table in attached(session, parent)?.into_values() {
            if let (Some(number), Some(bounds)) = (table.number, table.bounds) {
                tables.entry(number).or_default().insert(parent, bounds);
            }
        }
    }
    let mut is_changed = false;
    for (number, attached) in tables {
        is_changed |= repair_part(session, (number, labels), listed.get(&number), &attached)?;
    }
    if is_changed {
        session.batch(
            "UPDATE state SET parts = parts + 1; SELECT pg_notify(current_schema(), \
             seq || ' 1 ' || parts || ' ' || line) FROM state",
        )?;
    }
    Ok(())
}

/// Repairs the entry of a part in the list, and the tables of the part. `attached` are the times of
/// its attached tables. Returns whether something was changed.
fn repair_part(
    session: &mut DatabaseSession,
    (number, labels): (i64, LabelStorage),
    listed: Option<&(i64, i64)>,
    attached: &BTreeMap<&str, (i64, i64)>,
) -> Result<bool, StatementError> {
    let is_missing = |parent: &&str| has_tables(parent, labels) && !attached.contains_key(parent);
    let missing: Vec<&str> = NEEDED.into_iter().filter(is_missing).collect();
    if attached.values().next() == listed && listed.is_some() && missing.is_empty() {
        return Ok(false);
    }
    let names: Vec<String> = missing.iter().map(|parent| format!("{parent}_{number}")).collect();
    let text = "SELECT FROM unnest($1::text[]) AS v(name) WHERE to_regclass(v.name) IS NOT NULL";
    if !session.query_once(text, &[&names])?.is_empty() {
        return Ok(false);
    }
    let mut times: Vec<(i64, i64)> = attached.values().copied().collect();
    times.dedup();
    match (&times[..], u64::try_from(number)) {
        ([], _) => {
            session.query_once("DELETE FROM part WHERE number = $1", &[&number])?;
        }
        (&[(start, stop)], Ok(number)) => {
            if !missing.is_empty() && !lock_outside(session, labels)? {
                return Err(StatementError::Busy("the tables for times outside all parts".into()));
            }
            for parent in missing {
                session.batch(&make_table(parent, number, start, stop))?;
            }
            if labels == LabelStorage::Records {
                session.batch(&make_label_view(number))?;
            }
            let text = "INSERT INTO part (number, start, stop) VALUES ($1, $2, $3) \
                ON CONFLICT (number) DO UPDATE SET start = excluded.start, stop = excluded.stop";
            session.query_once(text, &[&number.cast_signed(), &start, &stop])?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Reads the tables that are attached to a table, by their names.
fn attached(
    session: &mut DatabaseSession,
    parent: &str,
) -> Result<BTreeMap<String, AttachedTable>, StatementError> {
    let text = "SELECT c.relname::text, c.oid, pg_get_expr(c.relpartbound, c.oid) \
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
        WHERE i.inhparent = $1::text::regclass";
    let rows = session.query_once(text, &[&parent])?;
    let table = |row: &tokio_postgres::Row| {
        let name: String = row.get(0);
        let number = name.strip_prefix(parent).and_then(|rest| rest.strip_prefix('_'));
        let number = number.and_then(|number| number.parse().ok());
        let bounds = row.get::<_, Option<&str>>(2).and_then(bounds);
        (name, AttachedTable { oid: row.get(1), number, bounds })
    };
    Ok(rows.iter().map(table).collect())
}

/// Reads the bounds of a table from `FOR VALUES FROM ('1') TO ('2')`; `None` for the table of all
/// other times.
fn bounds(text: &str) -> Option<(i64, i64)> {
    let is_number = |c: char| c.is_ascii_digit() || c == '-';
    let mut numbers = text.split(|c| !is_number(c)).filter_map(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_tables_are_read() {
        let text = "FOR VALUES FROM ('-9223372036854775808') TO ('12')";
        assert_eq!(bounds(text), Some((i64::MIN, 12)));
        assert_eq!(bounds("FOR VALUES FROM (-1) TO (2)"), Some((-1, 2)));
        assert_eq!(bounds("DEFAULT"), None);
    }
}
