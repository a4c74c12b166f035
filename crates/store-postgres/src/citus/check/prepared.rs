//! Finds transactions that were prepared on a node and never ended. Their rows stay locked, and no
//! other session sees their changes.

use crate::check::{DatabaseCheck, DatabaseFault, FaultSort};
use crate::error::StatementError;
use crate::session::DatabaseSession;

/// Age in seconds from which a prepared transaction is a fault. A younger transaction may be a
/// commit in progress, or the cluster itself may still end the transaction.
const OLD_S: i64 = 60;

/// Adds the old prepared transactions of all nodes.
pub(super) fn add(
    session: &mut DatabaseSession,
    report: &mut DatabaseCheck,
) -> Result<(), StatementError> {
    let prepared = format!(
        "SELECT coalesce(string_agg(gid || ' ' || \
         extract(epoch FROM now() - prepared)::bigint, '|'), '') FROM pg_prepared_xacts \
         WHERE database = current_database() AND prepared < now() - interval '{OLD_S} seconds'"
    );
    let text = "SELECT nodename || ':' || nodeport, success, result \
        FROM run_command_on_workers($1::text)";
    for row in session.query_once(text, &[&prepared])? {
        let (node, result): (&str, Option<&str>) = (row.get(0), row.get(2));
        if row.get::<_, Option<bool>>(1) != Some(true) {
            let reason = result.unwrap_or_default();
            report.notes.push(format!(
                "the prepared transactions of the worker {node} were not read: {reason}"
            ));
            continue;
        }
        let transactions = result.unwrap_or_default().split('|').filter(|one| !one.is_empty());
        for (gid, age) in transactions.filter_map(|one| one.rsplit_once(' ')) {
            let what = format!("the worker {node} has prepared {gid} for {age} seconds");
            report.add(DatabaseFault::general(FaultSort::Prepared, what));
        }
    }
    Ok(())
}
