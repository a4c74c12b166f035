//! The repair of faults during a check. The repairs run on a separate session. Each repair is a
//! transaction that holds the lock of the shelf, like a commit, so other processes may read and
//! write between two repairs.

use std::collections::BTreeMap;

use hark_archive::Order;

use super::record::ExpectedRecord;
use super::repair_steps::RepairSteps;
use super::report::FaultSort;
use super::steps::CheckSteps;
use crate::commit::ShelfAdvance;
use crate::commit::fetch::SlotQuery;
use crate::error::StatementError;
use crate::layout::Layout;
use crate::properties::ShelfProperties;
use crate::session::DatabaseSession;
use crate::time::IndexKey;

/// Maximum number of records that one transaction repairs. Commits wait until the transaction ends.
pub(super) const STEP: usize = 100;
/// Maximum number of rows without a record, or with a wrong number, that one transaction repairs.
const ROWS: usize = 1_000;

/// A session that repairs faults.
pub(crate) struct Repairer<'a> {
    pub(crate) layout: &'static dyn Layout,
    pub(crate) session: &'a mut DatabaseSession,
    pub(crate) steps: Box<dyn RepairSteps>,
    /// The steps by which suspected records are compared again.
    pub(crate) check: Box<dyn CheckSteps>,
}

/// The repair of a page of records, within a transaction that holds the lock of the shelf.
pub(super) struct PageRepair<'a> {
    pub(super) steps: &'a dyn RepairSteps,
    pub(super) layout: &'static dyn Layout,
    pub(super) shelf: &'a ShelfProperties,
    pub(super) state: &'a mut ShelfAdvance,
    /// Records that the rules exclude.
    pub(super) excluded: Vec<ExcludedRecord>,
}

/// A record that another stored record excludes, by the rules.
#[derive(Clone, Copy)]
pub(super) struct ExcludedRecord {
    pub(super) key: IndexKey,
    /// The id of the record that excludes this record.
    pub(super) by: [u8; 32],
    /// The slot of both records if the other record is a newer version; `None` if the other record
    /// is a deletion.
    pub(super) slot: Option<SlotQuery>,
}

impl ExcludedRecord {
    /// Whether the bytes of the other record confirm the exclusion. The other record was found by
    /// its columns, which may be wrong.
    pub(super) fn is_excluded_by(&self, other: &ExpectedRecord) -> bool {
        let is_newer =
            || Order::NewestFirst.compare(&other.key.position(), &self.key.position()).is_lt();
        other.is_whole
            && other.key.id == self.by
            && self.slot.is_none_or(|slot| other.slot == Some(slot) && is_newer())
    }
}

impl PageRepair<'_> {
    /// Deletes the excluded records with all their rows, if their excluding record is in `others`
    /// and its bytes confirm the exclusion.
    pub(super) fn delete(
        &mut self,
        session: &mut DatabaseSession,
        others: &[ExpectedRecord],
    ) -> Result<(), StatementError> {
        let is_excluded =
            |record: &&ExcludedRecord| others.iter().any(|other| record.is_excluded_by(other));
        let mut keys: Vec<IndexKey> =
            self.excluded.iter().filter(is_excluded).map(|record| record.key).collect();
        if keys.is_empty() {
            return Ok(());
        }
        keys.sort_unstable_by_key(|key| key.id);
        keys.dedup();
        self.state.records -= self.layout.delete(session, self.shelf, &keys)?;
        self.state.has_deleted = true;
        Ok(())
    }
}

/// Runs `work` in a transaction that holds the lock of the shelf. `work` may change the state of
/// the shelf.
pub(super) fn locked<T>(
    layout: &dyn Layout,
    session: &mut DatabaseSession,
    work: impl FnOnce(&mut DatabaseSession, &mut ShelfAdvance) -> Result<T, StatementError>,
) -> Result<T, StatementError> {
    let not_whole = || StatementError::Refused("its table `state` is not whole".into());
    let done = session.whole(|session| {
        session.batch("BEGIN")?;
        layout.enter(session)?;
        let state = session.lock(layout.lock())?;
        let row = state.first().ok_or_else(not_whole)?;
        let (seq, records, words_seq) = (row.get(0), row.get(1), row.get(5));
        let before = ShelfAdvance { seq, records, has_deleted: false, words_seq };
        let mut after = before;
        let done = work(session, &mut after)?;
        if after.has_deleted && after.seq == before.seq {
            // A change that only deletes records also gets a number, as in a commit.
            after.words_seq += i64::from(after.words_seq == after.seq);
            after.seq += 1;
        }
        if after != before {
            layout.advance(session, after)?;
        }
        session.batch("COMMIT")?;
        Ok(Some(done))
    })?;
    done.ok_or_else(not_whole)
}

impl Repairer<'_> {
    /// Runs `work` in a transaction that holds the lock of the shelf.
    pub(super) fn locked<T>(
        &mut self,
        work: impl FnOnce(
            &dyn RepairSteps,
            &mut DatabaseSession,
            &mut ShelfAdvance,
        ) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let steps = &*self.steps;
        locked(self.layout, self.session, |session, state| work(steps, session, state))
    }

    /// Repairs the list of parts, and the tables of the parts.
    pub(crate) fn repair_tables(&mut self) -> Result<(), StatementError> {
        self.locked(|steps, session, _| steps.repair_tables(session))
    }

    /// Repairs rows that belong to no record and rows with a wrong number, if the check has found
    /// such rows. `reader` is the session of the check, and `counts` has the number of faults of
    /// each sort that the check has found.
    pub(super) fn repair_wrong_rows(
        &mut self,
        reader: &mut DatabaseSession,
        counts: &BTreeMap<FaultSort, u64>,
    ) -> Result<(), StatementError> {
        while let Some(wrong) = self.steps.next_wrong_rows(reader, counts, ROWS)? {
            self.locked(|steps, session, state| steps.repair_wrong_rows(session, &wrong, state))?;
        }
        Ok(())
    }
}
