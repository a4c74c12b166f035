//! Compares the list of parts with the tables of the parts.

use std::collections::{BTreeMap, HashMap};

use crate::check::{DatabaseCheck, DatabaseFault, FaultSort};
use crate::error::StatementError;
use crate::layout::SharedStatement;
use crate::parts::Parts;
use crate::session::DatabaseSession;

/// The tables of records, and the parts to which they belong.
#[derive(Default)]
pub(super) struct RecordTables {
    /// For the oid of each table, the number of its part; `None` for times outside all parts.
    numbers: HashMap<u32, Option<i64>>,
    parts: Parts,
}

/// A table that is attached as a part: its oid, and the bounds of its times.
type AttachedTable = (u32, Option<(i64, i64)>);

impl RecordTables {
    /// Reads the list of parts and the attached tables, and adds their differences.
    pub(super) fn read(
        session: &mut DatabaseSession,
        report: &mut DatabaseCheck,
    ) -> Result<Self, StatementError> {
        let rows = session.query(SharedStatement::Parts, &[])?;
        let listed: BTreeMap<i64, (i64, i64)> =
            rows.iter().map(|row| (row.get(2), (row.get(0), row.get(1)))).collect();
        report.parts = listed.len() as u64;
        let mut numbers = HashMap::new();
        for parent in ["record", "tag", "word", "worded"] {
            let attached = attached(session, parent)?;
            // A version of Hark without tables of words may have made a part.
            let is_needed = ["record", "tag"].contains(&parent);
            for (number, bounds) in &listed {
                let name = format!("{parent}_{number}");
                let what = match attached.get(&name) {
                    None if is_needed => {
                        format!("the table {name} of a listed part is not attached")
                    }
                    Some((_, found)) if *found != Some(*bounds) => {
                        format!("the table {name} has other times than its part in the list")
                    }
                    _ => continue,
                };
                report.add(DatabaseFault::general(FaultSort::PartTable, what));
            }
            for (name, (oid, bounds)) in attached {
                let number = name.strip_prefix(&format!("{parent}_"));
                let number = number.and_then(|number| number.parse().ok());
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

    /// Returns the fault of a record with this time in the table with this oid; `None` if the record
    /// is in the table of its part.
    pub(super) fn fault(&self, oid: u32, time: i64) -> Option<String> {
        let (found, expected) = (self.numbers.get(&oid).copied()?, self.parts.of_time(time));
        let name = |number: Option<i64>| number.map_or("no part".into(), |at| format!("part {at}"));
        (found != expected)
            .then(|| format!("is in the table of {}, not of {}", name(found), name(expected)))
    }
}

/// Reads the tables that are attached to a table.
fn attached(
    session: &mut DatabaseSession,
    parent: &str,
) -> Result<BTreeMap<String, AttachedTable>, StatementError> {
    let text = "SELECT c.relname::text, c.oid, pg_get_expr(c.relpartbound, c.oid) \
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
        WHERE i.inhparent = $1::text::regclass";
    let rows = session.query_once(text, &[&parent])?;
    let table = |row: &tokio_postgres::Row| {
        let bounds = row.get::<_, Option<&str>>(2).and_then(bounds);
        (row.get(0), (row.get(1), bounds))
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
