//! Rebuilding a shelf in a database.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use hark_store_postgres::{DatabaseRebuild, FaultSort, PostgresOptions, RebuildError};
use serde_json::json;

use super::check::archive_check;
use crate::interrupt;
use crate::print;
use crate::stores::{ArchiveRebuild, CheckMeter, ShelfPlace};

/// The state of an archive whose rebuild has ended early.
const ENDED: &str = "everything repaired so far stays repaired. Run the command again";

/// Rebuilds the rows of a shelf from its records. Servers may run meanwhile.
pub(super) fn rebuild(
    url: &str,
    place: &ShelfPlace<'_>,
    options: &PostgresOptions,
    steps: CheckMeter<'_>,
) -> anyhow::Result<ArchiveRebuild> {
    interrupt::end_at_signal(ENDED.into())?;
    let (network, lines) = (place.network, place.network.lines());
    let mut message = lines.record_check();
    let rebuilt = hark_store_postgres::rebuild(
        url,
        network.name(),
        network.rules(),
        options,
        &mut |record| message(record).err().map(|fault| fault.to_string()),
        &mut |progress| steps(progress.done, progress.total, progress.what),
    );
    match rebuilt {
        Ok(rebuilt) => Ok(of(&rebuilt, place)),
        Err(RebuildError::Cluster) => bail!(
            "`hark rebuild` works on archives in files and on one PostgreSQL server, and the database \
             is a Citus cluster. `hark check` compares all tables with the records, and `hark copy` to \
             a new database makes all tables again"
        ),
        Err(error) => Err(error).context(format!("rebuilding ended early; {ENDED}")),
    }
}

fn of(rebuilt: &DatabaseRebuild, place: &ShelfPlace<'_>) -> ArchiveRebuild {
    let names = |counts: &BTreeMap<FaultSort, u64>| -> BTreeMap<&str, u64> {
        counts.iter().map(|(sort, count)| (sort.name(), *count)).collect()
    };
    let last = archive_check(&rebuilt.last, place);
    let repaired: u64 = rebuilt.repaired.values().sum();
    let mut fields = last.fields.clone();
    fields.insert("repaired".into(), json!(names(&rebuilt.repaired)));
    fields.insert("faults".into(), json!(last.listed));
    let summary = match repaired {
        0 => format!("{}: nothing to repair", last.compared.join(", ")),
        _ => format!("{}: {} repaired", last.compared.join(", "), print::count(repaired, "fault")),
    };
    ArchiveRebuild {
        fields,
        summary,
        repaired: rebuilt.repaired.iter().map(|(sort, count)| (sort.title(), *count)).collect(),
        last,
    }
}
