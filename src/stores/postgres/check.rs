//! The check of a shelf in a database.

use std::collections::{BTreeMap, BTreeSet};

use hark_store_postgres::{DatabaseCheck, DatabaseOpenError, PostgresOptions, Remedy};
use serde_json::json;

use crate::print;
use crate::stores::{ArchiveCheck, CheckMeter, ShelfPlace};

/// Checks a shelf, and changes nothing.
pub(super) fn check(
    url: &str,
    place: &ShelfPlace<'_>,
    options: &PostgresOptions,
    steps: CheckMeter<'_>,
) -> Result<ArchiveCheck, DatabaseOpenError> {
    let (network, lines) = (place.network, place.network.lines());
    let mut message = lines.record_check();
    let report = hark_store_postgres::check(
        url,
        network.name(),
        network.rules(),
        options,
        &mut |record| message(record).err().map(|fault| fault.to_string()),
        &mut |progress| steps(progress.done, progress.total, progress.what),
    )?;
    Ok(archive_check(&report, place))
}

/// Returns the result of a check for commands.
pub(super) fn archive_check(report: &DatabaseCheck, place: &ShelfPlace<'_>) -> ArchiveCheck {
    let counts: BTreeMap<&str, u64> =
        report.counts.iter().map(|(sort, count)| (sort.name(), *count)).collect();
    let fields = json!({
        "records": report.records,
        "labels": report.labels,
        "words": report.words,
        "parts": report.parts,
        "counts": counts,
        "notes": report.notes,
    });
    let remedies: BTreeSet<Remedy> = report.counts.keys().map(|sort| sort.remedy()).collect();
    let advice: Vec<&str> = remedies.into_iter().map(advice).collect();
    ArchiveCheck {
        compared: vec![
            print::count(report.records, place.network.record()),
            format!("{} of labels", print::count(report.labels, "row")),
            format!("{} of words", print::count(report.words, "row")),
            print::count(report.parts, "part"),
        ],
        fields: fields.as_object().cloned().unwrap_or_default(),
        faults: report.fault_count(),
        sorts: report.counts.iter().map(|(sort, count)| (sort.title(), *count)).collect(),
        listed: report.faults.iter().map(ToString::to_string).collect(),
        notes: report.notes.clone(),
        advice: advice.join(". "),
    }
}

fn advice(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::Restore => {
            "Records are damaged: restore the database from a backup, or bring all undamaged ones \
             into a new archive with `hark export` and `hark import`"
        }
        Remedy::Rebuild => {
            "Tables differ from the records: `hark rebuild` repairs the rows while the servers run. \
             For faults that remain, and on a Citus cluster, `hark copy` to a new database makes all \
             tables again"
        }
        Remedy::EndTransaction => {
            "Transactions were not ended: run `SELECT recover_prepared_transactions()` on the \
             coordinator; what is left after a minute must be ended on its node, with ROLLBACK \
             PREPARED"
        }
    }
}
