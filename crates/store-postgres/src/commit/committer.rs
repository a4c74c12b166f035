//! The thread that commits: its session, and the steps of a commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hark_archive::effects::Effects;
use hark_archive::store::NumberedRecord;
use hark_archive::{CommitError, CommitResult, Outcome, Query, Record, TextSource, Write};

use super::batch::{CommitAttempt, CommittedBatch, PreparedPut, ShelfAdvance};
use super::play::BatchReplay;
use crate::deadline::Deadline;
use crate::error::StatementError;
use crate::news::numbered;
use crate::parts::Parts;
use crate::plain::{PartMaking, make_parts};
use crate::session::{DatabaseSession, IDLE_MAX};
use crate::state::PostgresState;
use crate::time::IndexKey;
use crate::words::rows::WordRows;
use crate::{failover, others};

/// Maximum number of other processes' records that are delivered together with a batch.
const NEWS_MAX: i64 = 20_000;
/// A batch with at least this number of writes has twice the time limit of a small batch.
const LARGE_BATCH: usize = 1024;

/// Time limit for rolling a batch back. On a cluster, a rollback waits for a worker that hangs, and
/// the senders of the batch wait for the rollback.
const ROLLBACK_MAX: Duration = Duration::from_secs(1);

/// Pause before the next attempt to make a part, if an attempt took too long. Searches wait during
/// each attempt.
const PARTS_REST: Duration = Duration::from_mins(5);

/// Tests whether batches can be committed, without changing a record. Succeeds only if the user may
/// insert, every worker of a cluster answers, and the disk has space for the row of `state`.
const PROBE: &str = "INSERT INTO record SELECT * FROM record WHERE seq = -1; \
                     UPDATE state SET seq = seq";

/// The state of the thread that commits.
#[derive(Default)]
pub(crate) struct CommitterState {
    session: Option<DatabaseSession>,
    /// The id of the database's process that serves the session.
    process: i32,
    /// Whether workers of a cluster may not have ended a commit yet.
    is_in_doubt: bool,
}

impl CommitterState {
    /// Commits a batch. Opens a new session if the connection was lost while idle.
    pub(crate) fn commit(
        &mut self,
        inner: &PostgresState,
        writes: &[Write],
    ) -> Result<CommittedBatch, CommitError> {
        let puts = read(inner, writes)?;
        self.try_commit(inner, writes, &puts).map_err(|fault| {
            if self.session.is_none() {
                // The database may still commit the batch. Then this process reads the batch as if
                // another process had committed it, and does not know its deletions.
                inner.writer_process.store(0, Ordering::Relaxed);
            }
            // A worker may have been lost, and its standby may lack records whose ids are known
            // here.
            inner.forget_known();
            // The batch may have made parts that are rolled back now.
            inner.set_parts(inner.parts().outdated());
            inner.pool.note(&fault);
            CommitError::Unavailable(fault.to_string())
        })
    }

    fn try_commit(
        &mut self,
        inner: &PostgresState,
        writes: &[Write],
        puts: &[Option<PreparedPut<'_>>],
    ) -> Result<CommittedBatch, StatementError> {
        let deadline = Deadline::after(batch_limit(inner.pool.door().timeout(), writes, puts));
        if inner.pool.is_late() {
            // The open session may wait for an answer in vain.
            self.session = None;
        }
        let (mut fresh, mut sweep) = (false, false);
        loop {
            if self.session.as_ref().is_none_or(DatabaseSession::is_closed) {
                self.session = None;
                let (session, process) = open(inner, deadline)?;
                (self.session, self.process) = (Some(session), process);
                fresh = true;
            }
            // The listener forgets the process when it loses its own connection.
            inner.writer_process.store(self.process, Ordering::Relaxed);
            let Some(session) = self.session.as_mut() else { continue };
            session.deadline = Some(deadline);
            if self.is_in_doubt {
                if !fresh {
                    inner.layout.prepare_committer(session)?;
                }
                // With a warning, the doubt remains: a worker could not be reached.
                self.is_in_doubt = session.warnings.take().is_some();
            }
            let mut begun = false;
            let attempted = attempt(inner, session, writes, puts, sweep, &mut begun);
            let published = attempted.and_then(|batch| match batch {
                Some(batch) => {
                    inner.layout.publish(session, &batch, &inner.search).map(|()| Some(batch))
                }
                None => Ok(None),
            });
            match published {
                Ok(Some(mut batch)) => match news(inner, session, &batch) {
                    Ok(before) => {
                        batch.committed.before = before;
                        return Ok(batch);
                    }
                    // The batch is durable, but its puts come after puts that cannot be delivered
                    // now. Later, the listener finds all of these puts.
                    Err(fault) => {
                        if fault.is_away() {
                            self.session = None;
                        }
                        return Err(fault);
                    }
                },
                // A new session finds out on which timeline the database is now.
                Ok(None) if !fresh => self.session = None,
                Ok(None) => {
                    self.session = None;
                    return Err(StatementError::Away("it lacks records that it had before".into()));
                }
                Err(fault) => {
                    self.is_in_doubt |= matches!(fault, StatementError::NotEnded(_));
                    if fault.is_away() {
                        self.session = None;
                    } else if let Err(fault) = session.batch_within(ROLLBACK_MAX, "ROLLBACK") {
                        tracing::debug!(%fault, "a transaction was given up with its connection");
                        self.session = None;
                    }
                    // The session may have had a connection to a worker that was lost while idle.
                    let lost = match &fault {
                        StatementError::Worker(fault) => &**fault,
                        fault => fault,
                    };
                    if lost.is_away() && !lost.is_late() && !begun && !fresh {
                        self.session = None;
                        continue;
                    }
                    if matches!(fault, StatementError::Exists(_)) && !sweep {
                        sweep = true;
                        continue;
                    }
                    return Err(fault);
                }
            }
        }
    }
}

/// Returns the time limit of a batch. If the database hangs, the senders of a small batch are refused
/// within the time limit of one statement. A large batch, or a batch that may delete many records,
/// takes longer even if the database has no fault.
fn batch_limit(
    statement_limit: Duration,
    writes: &[Write],
    puts: &[Option<PreparedPut<'_>>],
) -> Duration {
    let is_wide = |query: &Query| query.ids.is_none() && query.labels.is_empty();
    let erases = puts.iter().flatten().flat_map(|put| &put.effects.erases);
    let deletes_many = writes.iter().any(|write| matches!(write, Write::Erase(_)))
        || erases.into_iter().any(is_wide);
    let size = if deletes_many { LARGE_BATCH } else { writes.len().min(LARGE_BATCH) };
    limit_of_size(statement_limit, size)
}

/// Returns the time limit of a batch of `size` writes, at most [`LARGE_BATCH`].
fn limit_of_size(statement_limit: Duration, size: usize) -> Duration {
    let small = statement_limit.saturating_sub(ROLLBACK_MAX).max(statement_limit / 2);
    small + statement_limit * size as u32 / LARGE_BATCH as u32
}

/// Opens a session for commits. Returns the session, and the id of the database's process that
/// serves the session.
fn open(
    inner: &PostgresState,
    deadline: Deadline,
) -> Result<(DatabaseSession, i32), StatementError> {
    let mut session = inner.pool.open(deadline)?;
    session.deadline = Some(deadline);
    let rows = session.query_once("SELECT pg_backend_pid()", &[])?;
    let process = rows.first().map_or(0, |row| row.get(0));
    inner.writer_process.store(process, Ordering::Relaxed);
    inner.layout.prepare_committer(&mut session)?;
    others::announce(&mut session)?;
    session.batch(&format!("SET {IDLE_MAX}"))?;
    failover::renew_line(inner, &mut session)?;
    Ok((session, process))
}

/// Decodes the records of puts, and determines their effects according to the rules.
fn read<'a>(
    inner: &PostgresState,
    writes: &'a [Write],
) -> Result<Vec<Option<PreparedPut<'a>>>, CommitError> {
    let put = |(index, write): (usize, &'a Write)| {
        let Write::Put(bytes) = write else { return Ok(None) };
        let record = Record::new(bytes)
            .and_then(|record| record.check().map(|()| record))
            .map_err(|source| CommitError::Record { index, source })?;
        let mut effects = Effects::default();
        inner.shelf.rules.effects(&record, &mut effects);
        effects.normalise();
        let key = IndexKey::of(&record);
        Ok(Some(PreparedPut { record, key, effects }))
    };
    writes.iter().enumerate().map(put).collect()
}

/// Commits a batch once. With `sweep`, first deletes the remaining rows of those records that lost
/// commits have left incomplete.
fn attempt(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    writes: &[Write],
    puts: &[Option<PreparedPut<'_>>],
    sweep: bool,
    begun: &mut bool,
) -> CommitAttempt {
    // Writes from index `fit` on wait for the next step, because the look-ups of one step are
    // bounded.
    let fit = inner.layout.rule_lookups().fit(puts, &inner.shelf.terms);
    let fetched = inner.layout.fetch(session, &puts[..fit], &inner.shelf.terms)?;
    *begun = true;
    let (seq, records) = (fetched.seq, fetched.records);
    let sweep = sweep || fetched.has_leftovers;
    if fetched.line != inner.current.now().line {
        failover::follow(inner, session)?;
    }
    let position = inner.current.now();
    if fetched.line != position.line || seq < position.seen {
        return Ok(None);
    }
    let mut parts = inner.parts();
    if parts.version != fetched.parts {
        parts = inner.set_parts(Parts::read(session, fetched.parts)?);
    }
    if seq - position.seen > NEWS_MAX {
        let words = "too much was written by others meanwhile; it is sent to subscribers first";
        return Err(StatementError::Refused(words.into()));
    }
    let (texts, mut words_seq) = (inner.indexes(fetched.texts), fetched.words_seq);
    // Words are indexed in the order of puts, so this batch is not indexed if an earlier put is not
    // indexed yet.
    let texts = texts.filter(|_| words_seq == seq);
    let mut play = BatchReplay::new(inner, session, fetched, position);
    let mut committed =
        CommitResult { outcomes: Vec::with_capacity(writes.len()), ..CommitResult::default() };
    replay(&mut play, writes, puts, fit, &mut committed)?;
    let (kept, deleted, last) = play.end();
    if kept.is_empty() && deleted.is_empty() {
        if writes.is_empty() {
            session.batch(PROBE)?;
        }
        session.batch("COMMIT")?;
        let (seq_before, kept) = (seq, Vec::new());
        return Ok(Some(CommittedBatch { committed, position, seq_before, seq, kept, deleted }));
    }
    // A batch that only deletes records also gets a number. Otherwise a replica without these
    // deletions would have the newest number, and could answer queries.
    let last = last.max(seq + 1);
    make_missing_parts(inner, session, &parts, &kept)?;
    let mut gone = 0;
    if sweep && !kept.is_empty() {
        gone += inner.layout.sweep(session, &inner.shelf, &kept)?;
    }
    if !deleted.is_empty() {
        gone += inner.layout.delete(session, &inner.shelf, &deleted)?;
    }
    if !kept.is_empty() {
        committed.bytes = inner.layout.insert(session, &inner.shelf, &kept)?;
    }
    if let Some(texts) = texts {
        committed.bytes += insert_words(inner, session, texts, &kept)?;
        words_seq = last;
    }
    let records = records.saturating_add_unsigned(kept.len() as u64) - gone;
    let has_deleted = !deleted.is_empty();
    inner.layout.advance(session, ShelfAdvance { seq: last, records, has_deleted, words_seq })?;
    session.warnings.take();
    session.batch("COMMIT")?;
    if let Some(warning) = session.warnings.take() {
        return Err(StatementError::NotEnded(warning));
    }
    let kept = kept.iter().map(|(seq, put)| (put.key, *seq)).collect();
    Ok(Some(CommittedBatch { committed, position, seq_before: seq, seq: last, kept, deleted }))
}

/// Applies the writes in order, until the write at index `fit`, or until a write can be done only
/// in part.
fn replay<'p>(
    play: &mut BatchReplay<'_, 'p>,
    writes: &[Write],
    puts: &'p [Option<PreparedPut<'p>>],
    fit: usize,
    committed: &mut CommitResult,
) -> Result<(), StatementError> {
    for (at, (write, put)) in writes.iter().zip(puts).enumerate() {
        if at == fit {
            // The next step begins with this write, which has deleted nothing yet.
            committed.outcomes.push(Outcome::Erased(0));
            committed.unfinished = true;
            break;
        }
        committed.outcomes.push(match (write, put) {
            (Write::Erase(query), _) => Outcome::Erased(play.erase(query)?),
            (_, Some(put)) => play.put(put)?,
            (Write::Put(_), None) => Outcome::Duplicate,
        });
        committed.erased.extend(play.erased().map(|id| (at, id)));
        if play.is_unfinished() {
            committed.unfinished = true;
            break;
        }
    }
    Ok(())
}

/// Makes the parts (ranges of time) that the batch's records need and that do not exist.
fn make_missing_parts(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    parts: &Parts,
    kept: &[(i64, &PreparedPut<'_>)],
) -> Result<(), StatementError> {
    let Some(grid) = &inner.grid else { return Ok(()) };
    let times = kept.iter().map(|(_, put)| put.record.time());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = now.as_nanos() / (1_000_000_000 / u128::from(inner.shelf.units_per_s.max(1)));
    let missing = parts.missing(times, u64::try_from(now).unwrap_or(u64::MAX), grid);
    // If a part cannot be made now, its records go to the tables for times outside all parts. A
    // later commit makes the part and moves these records.
    let rests = || inner.parts_rest.lock().is_some_and(|until| Instant::now() < until);
    if missing.is_empty() || rests() {
        return Ok(());
    }
    // The batch gets the time of a large batch from now on, because records may have to be moved to
    // the part.
    let limit = limit_of_size(inner.pool.door().timeout(), LARGE_BATCH);
    session.deadline = Some(Deadline::after(limit));
    match make_parts(session, &missing, grid)? {
        PartMaking::Made => {
            inner.set_parts(Parts::read(session, parts.version + 1)?);
        }
        PartMaking::InUse => {}
        PartMaking::TooLong => {
            tracing::warn!(
                "a part could not be made quickly, because the tables for times outside all parts \
                 have many records; this is tried again in some minutes, and the records stay in \
                 these tables until then"
            );
            *inner.parts_rest.lock() = Some(Instant::now() + PARTS_REST);
        }
    }
    Ok(())
}

/// Reads the puts that come before a batch and that this process has not delivered yet. The batch
/// is already committed, so other processes need not wait for this read.
fn news(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    batch: &CommittedBatch,
) -> Result<Vec<NumberedRecord>, StatementError> {
    let (position, to) = (batch.position, batch.seq_before);
    if position.seen >= to {
        return Ok(Vec::new());
    }
    let puts = inner.layout.puts(session, position.seen, to, NEWS_MAX)?;
    inner.note_news(position, &puts);
    Ok(numbered(position, puts))
}

/// Inserts the rows of records' words, and returns their bytes.
fn insert_words(
    inner: &PostgresState,
    session: &mut DatabaseSession,
    texts: &Arc<dyn TextSource>,
    kept: &[(i64, &PreparedPut<'_>)],
) -> Result<u64, StatementError> {
    let mut rows = WordRows::new(texts, &inner.shelf.terms);
    for (_, put) in kept {
        rows.add(&put.record, &put.key);
        if rows.are_many() {
            rows.write(session)?;
        }
    }
    rows.write(session)?;
    Ok(rows.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_batch_is_refused_within_the_limit_of_one_statement() {
        let put = || Write::Put(Box::default());
        let limit = Duration::from_secs(10);
        for small in [vec![], vec![put()], std::iter::repeat_with(put).take(50).collect()] {
            assert!(batch_limit(limit, &small, &[]) + ROLLBACK_MAX <= limit + limit / 20);
        }
        // Many writes and deletions take long even if the database has no fault.
        let many: Vec<_> = std::iter::repeat_with(put).take(5_000).collect();
        for large in [many, vec![Write::Erase(Box::default())]] {
            assert_eq!(batch_limit(limit, &large, &[]) + ROLLBACK_MAX, limit * 2);
        }
        // A short limit is not used up by the time for the rollback.
        assert!(batch_limit(Duration::from_secs(1), &[], &[]) >= Duration::from_millis(500));
    }
}
