//! Finds rows in another shard than the shard of their key. A query for the key reads only the
//! shard of the key, so such a query misses these rows.

use crate::check::{DatabaseCheck, DatabaseFault, FaultSort};
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// The distributed tables, each with the column that determines the shard.
const TABLES: [(&str, &str); 3] = [("record", "place"), ("id_place", "id"), ("tag", "term")];

/// Adds a fault to the report for each shard that has rows of other shards. The database hashes the
/// keys of all rows, shard by shard.
pub(super) fn add(
    session: &mut DatabaseSession,
    report: &mut DatabaseCheck,
) -> Result<(), StatementError> {
    let text = "SELECT r.shardid, r.success, r.result, s.shardminvalue, s.shardmaxvalue \
        FROM run_command_on_shards($1::text::regclass, $2::text) r \
        JOIN pg_dist_shard s ON s.shardid = r.shardid ORDER BY r.shardid";
    for (table, column) in TABLES {
        let hashes = format!(
            "SELECT coalesce(min(worker_hash({column})) || ' ' || max(worker_hash({column})), '') \
             FROM %s"
        );
        let rows = match session.query_once(text, &[&table, &hashes]) {
            Err(StatementError::Refused(reason) | StatementError::Cancelled(reason)) => {
                report.notes.push(format!("the shards of {table} were not compared: {reason}"));
                continue;
            }
            rows => rows?,
        };
        for row in &rows {
            let (shard, result): (i64, &str) =
                (row.get(0), row.get::<_, Option<_>>(2).unwrap_or(""));
            if row.get::<_, Option<bool>>(1) != Some(true) {
                let note = format!("the shard {shard} of {table} was not compared: {result}");
                report.notes.push(note);
                continue;
            }
            let bounds: (Option<&str>, Option<&str>) = (row.get(3), row.get(4));
            if is_outside(result, bounds) {
                let what = format!("the shard {shard} of {table} has rows of other shards");
                report.add(DatabaseFault::general(FaultSort::Shard, what));
            }
        }
    }
    Ok(())
}

/// Whether a hash is outside the bounds of a shard. `hashes` are the lowest and the highest hash of
/// the shard's rows, or empty.
fn is_outside(hashes: &str, bounds: (Option<&str>, Option<&str>)) -> bool {
    let number = |text: &str| text.parse::<i32>().ok();
    let Some((lowest, highest)) = hashes.split_once(' ') else { return false };
    let (lowest, highest) = (number(lowest), number(highest));
    let (first, last) = (bounds.0.and_then(number), bounds.1.and_then(number));
    match (lowest, highest, first, last) {
        (Some(lowest), Some(highest), Some(first), Some(last)) => lowest < first || highest > last,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_outside_the_bounds_of_a_shard_are_found() {
        let bounds = (Some("-100"), Some("99"));
        for (hashes, expected) in
            [("-100 99", false), ("", false), ("-101 5", true), ("0 100", true), ("7 7", false)]
        {
            assert_eq!(is_outside(hashes, bounds), expected, "{hashes}");
        }
    }
}
