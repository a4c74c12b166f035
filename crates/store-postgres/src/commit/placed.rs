//! Steps of a commit that only distributed tables need.

use std::collections::HashMap;

use super::CommittedBatch;
use crate::layout::StatementForm;
use crate::search::windows::{id_head, places};
use crate::session::{DatabaseSession, StatementError};
use crate::state::PostgresState;
use crate::time::IndexKey;

/// Maximum number of tags that a statement deletes. Each shard searches for all of these tags.
const TAGS_MAX: usize = 2_000;

/// Prepares a session for commits. Transactions that an earlier coordinator left in doubt on the
/// workers are ended first, if the user has the privilege. Otherwise the cluster ends them by
/// itself a little later.
pub(super) fn begin(session: &mut DatabaseSession) -> Result<(), StatementError> {
    let allowed =
        "SELECT has_function_privilege('pg_catalog.recover_prepared_transactions()', 'execute')";
    if session.query_once(allowed, &[])?.first().is_some_and(|row| row.get(0)) {
        session.batch("SELECT pg_catalog.recover_prepared_transactions()")?;
    }
    Ok(())
}

/// Runs a commit while no other process commits, and then notifies other processes. The coordinator
/// frees the row in `state` before the workers have committed. This lock is held until they have.
pub(super) fn alone(
    session: &mut DatabaseSession,
    commit: impl FnOnce(&mut DatabaseSession) -> Result<Option<CommittedBatch>, StatementError>,
) -> Result<Option<CommittedBatch>, StatementError> {
    if !session.layout().is_distributed() {
        return commit(session);
    }
    session.query(StatementForm::Enter, &[])?;
    let committed = commit(session);
    match &committed {
        Ok(Some(batch)) if !batch.kept.is_empty() || !batch.deleted.is_empty() => {
            let has_deleted = i32::from(!batch.deleted.is_empty());
            let told = session.query(StatementForm::LeaveTelling, &[&has_deleted]);
            // The batch is durable. A lost session frees its lock, and other processes find the
            // batch by polling.
            if let Err(fault) = told {
                tracing::debug!(%fault, "others were not told of a commit");
            }
        }
        // The caller closes the session, which frees the lock.
        Ok(None) => {}
        Err(fault) if fault.is_away() => {}
        Err(_) => {
            session.batch("ROLLBACK")?;
            session.query(StatementForm::Leave, &[])?;
        }
        Ok(Some(_)) => {
            session.query(StatementForm::Leave, &[])?;
        }
    }
    committed
}

/// Runs `work` while no process commits.
pub(crate) fn quiet<T>(
    session: &mut DatabaseSession,
    work: impl FnOnce(&mut DatabaseSession) -> Result<T, StatementError>,
) -> Result<T, StatementError> {
    if !session.layout().is_distributed() {
        return work(session);
    }
    session.query(StatementForm::Enter, &[])?;
    let done = work(session);
    session.query(StatementForm::Leave, &[])?;
    done
}

/// Deletes records, their tags and their places. Returns the number of deleted records.
pub(super) fn delete(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    deleted: &[IndexKey],
) -> Result<i64, StatementError> {
    let ids: Vec<&[u8]> = deleted.iter().map(|key| &key.id[..]).collect();
    let found = places(session, ids.iter().copied())?;
    let mut places: Vec<&[u8]> = found.values().map(|place| &place[..]).collect();
    places.sort_unstable();
    places.dedup();
    let heads: Vec<i64> = deleted.iter().map(|key| id_head(&key.id)).collect();
    let gone = session.query(StatementForm::Delete, &[&places, &ids, &heads])?;
    let (mut terms, mut kinds, mut times, mut tagged) = (vec![], vec![], vec![], vec![]);
    for row in &gone {
        let (time, id, kind): (i64, &[u8], i32) = (row.get(0), row.get(1), row.get(2));
        for term in row.get::<_, Vec<i64>>(3) {
            terms.push(term);
            kinds.push(kind);
            times.push(time);
            tagged.push(id);
        }
    }
    for first in (0..terms.len()).step_by(TAGS_MAX) {
        let some = first..terms.len().min(first + TAGS_MAX);
        let (terms, kinds) = (&terms[some.clone()], &kinds[some.clone()]);
        let (times, ids) = (&times[some.clone()], &tagged[some]);
        session.query(StatementForm::DeleteTags, &[&terms, &kinds, &times, &ids])?;
    }
    if !inner.nature.listed_labels.is_empty() {
        let mut lost: HashMap<i64, i64> = HashMap::new();
        for term in terms {
            *lost.entry(term).or_default() += 1;
        }
        let (terms, records): (Vec<i64>, Vec<i64>) = lost.into_iter().unzip();
        session.query_once(&session.layout().lower_values(), &[&terms, &records])?;
    }
    session.query(StatementForm::DeletePlaces, &[&ids])?;
    session.query(StatementForm::DeleteForbids, &[&ids])?;
    Ok(i64::try_from(gone.len()).unwrap_or(i64::MAX))
}
