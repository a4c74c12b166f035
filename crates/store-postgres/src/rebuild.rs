//! Rebuilds the rows of a shelf from its records (`hark rebuild`), while servers read and write.
//!
//! A rebuild is a check that also repairs the faults. One session reads the records and finds
//! faults, as in every check. Another session locks the shelf, as a commit does, compares the
//! suspected rows again, and writes the right rows in the same short transaction
//! ([`crate::check`]). A rebuild never changes the bytes of a record, and does not repair a damaged
//! record.
//!
//! A repair may reveal further faults. For example, once the missing row of a deletion is written,
//! the deleted records are forbidden again. So the check is repeated until it finds nothing that
//! can be repaired. If a rebuild is interrupted, the next rebuild continues with the remaining
//! faults.

use std::collections::BTreeMap;
use std::time::Duration;

use hark_archive::effects::Rules;

use crate::check::{
    CheckProgress, CheckedShelf, DatabaseCheck, FaultSort, MessageCheck, Remedy, Repairer,
    STATEMENT_TIMEOUT, run,
};
use crate::error::StatementError;
use crate::open::{DatabaseOpenError, open};
use crate::options::PostgresOptions;
use crate::session::DatabaseSession;
use crate::state::PostgresState;
use crate::{failover, others};

/// Maximum number of checks. Each check after the first finds only faults that were hidden until
/// the repairs of the previous check.
const CHECKS_MAX: usize = 6;
/// Maximum number of attempts to change the tables of parts, and the wait between two attempts.
const TRIES: u32 = 20;
const WAIT: Duration = Duration::from_secs(1);

/// The result of a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseRebuild {
    /// For each sort, its number of repaired faults; empty if there were no faults.
    pub repaired: BTreeMap<FaultSort, u64>,
    /// The last check, with all faults that remain.
    pub last: DatabaseCheck,
}

/// Why a rebuild failed.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The shelf could not be opened, or the database has ended the rebuild.
    #[error(transparent)]
    Database(#[from] DatabaseOpenError),
    /// The shelf is on a Citus cluster.
    #[error("the tables are distributed over a Citus cluster, whose rows are not rebuilt")]
    Cluster,
}

impl From<StatementError> for RebuildError {
    fn from(fault: StatementError) -> Self {
        Self::Database(fault.into())
    }
}

/// Rebuilds the rows of the shelf with this name in the database at `url`. Servers may use the
/// shelf meanwhile.
pub fn rebuild(
    url: &str,
    shelf: &str,
    rules: Box<dyn Rules>,
    options: &PostgresOptions,
    message: MessageCheck<'_>,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<DatabaseRebuild, RebuildError> {
    let statement_timeout = options.statement_timeout.max(STATEMENT_TIMEOUT);
    let options =
        PostgresOptions { migrate: false, read_url: None, statement_timeout, ..options.clone() };
    let (state, _) = open(url, shelf, rules, &options)?;
    if state.layout.repair_steps().is_none() {
        return Err(RebuildError::Cluster);
    }
    let (mut reader, mut writer) = (state.pool.door().open()?, writer(&state)?);
    let mut rebuilt = DatabaseRebuild::default();
    for _ in 0..CHECKS_MAX {
        let report = check(&state, (&mut reader, &mut writer), &mut *message, progress)?;
        rebuilt.add(&report);
        let before = std::mem::replace(&mut rebuilt.last, report);
        let last = &rebuilt.last;
        let is_same = (&before.counts, &before.faults) == (&last.counts, &last.faults);
        if is_same || !last.counts.keys().any(|sort| sort.remedy() == Remedy::Rebuild) {
            break;
        }
    }
    Ok(rebuilt)
}

impl DatabaseRebuild {
    /// Adds the result of a check. Faults of the previous check that this check does not find count
    /// as repaired.
    fn add(&mut self, check: &DatabaseCheck) {
        for (sort, count) in &self.last.counts {
            let left = check.counts.get(sort).copied().unwrap_or_default();
            if *count > left {
                *self.repaired.entry(*sort).or_default() += count - left;
            }
        }
    }
}

/// Opens a session that writes.
fn writer(state: &PostgresState) -> Result<DatabaseSession, StatementError> {
    let mut session = state.pool.door().open()?;
    state.layout.prepare_committer(&mut session)?;
    others::announce(&mut session)?;
    failover::renew_line(state, &mut session)?;
    Ok(session)
}

/// Checks the shelf, and repairs the faults.
fn check(
    state: &PostgresState,
    (reader, writer): (&mut DatabaseSession, &mut DatabaseSession),
    message: MessageCheck<'_>,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<DatabaseCheck, RebuildError> {
    let (layout, shelf, texts) = (state.layout, &state.shelf, state.texts.as_ref());
    let steps = layout.repair_steps().ok_or(RebuildError::Cluster)?;
    let mut repairer = Repairer { layout, session: writer, steps, check: layout.check_steps() };
    let mut report = DatabaseCheck::default();
    repair_tables(&mut repairer, &mut report)?;
    let checked = CheckedShelf { layout, shelf, texts, message };
    run(checked, reader, Some(repairer), progress, &mut report)?;
    Ok(report)
}

/// Finds and repairs faults of the tables of parts. The tables are locked during this work, so the
/// work is done before the snapshot of the check begins. The check itself finds the faults that
/// remain.
fn repair_tables(
    repairer: &mut Repairer<'_>,
    report: &mut DatabaseCheck,
) -> Result<(), StatementError> {
    let mut found = DatabaseCheck::default();
    repairer.check.tables(repairer.session, &mut found)?;
    if found.counts.is_empty() {
        return Ok(());
    }
    let mut tried = repairer.repair_tables();
    for _ in 1..TRIES {
        if !matches!(tried, Err(StatementError::Busy(_))) {
            break;
        }
        std::thread::sleep(WAIT);
        tried = repairer.repair_tables();
    }
    tried?;
    let mut left = DatabaseCheck::default();
    repairer.check.tables(repairer.session, &mut left)?;
    for (sort, count) in found.counts {
        let left = left.counts.get(&sort).copied().unwrap_or_default();
        report.add_counted(sort, count.saturating_sub(left), std::iter::empty());
    }
    Ok(())
}
