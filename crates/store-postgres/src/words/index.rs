//! Keeps the index of words in step with the stored records and with the settings.
//!
//! `state.words_seq` is the number of a put: the words of all stored records up to this number are
//! indexed, and no words of later records. A commit indexes its own records and advances the number
//! if all earlier puts are indexed and `state.texts` names the texts of this process. Otherwise
//! [`step`] advances the number later, by some records at a time, while it holds the lock of
//! commits. So the index stays correct, regardless of which processes have written in the meantime
//! and of their settings. If a step is interrupted, it is repeated. A search uses the index only if
//! the index includes all records that the search can see. Deleting a record needs no texts,
//! because the table `worded` has the words of each record.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hark_archive::TextSource;

use super::rows::WordRows;
use super::state::{WordProgress, WordState};
use crate::error::StatementError;
use crate::layout::LOCK_TIMEOUT_MS;
use crate::plain::PlainStatement;
use crate::session::DatabaseSession;
use crate::state::PostgresState;

/// Maximum number of records that one step indexes. Commits wait while the step writes the rows,
/// for some hundredths of a second.
const STEP: i64 = 100;
/// Number of rows of words after which a step adds no further record.
const STEP_ROWS: usize = 10_000;
/// Interval at which Hark checks for records that are not indexed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Wait after a fault.
const RETRY: Duration = Duration::from_secs(5);
/// Number of attempts of a command to delete the words while the tables are in use, one attempt per
/// `LOOK_EVERY`.
const TRIES: u32 = 20;
/// Time without progress after which a process that indexes other texts is assumed to have ended.
const STALLED: Duration = Duration::from_mins(5);

/// Sets the texts whose words the database indexes. With `None`, the database indexes no words. If
/// the previous texts were different, deletes their words and returns these texts. Fails with
/// [`StatementError::Busy`] if searches do not release the tables of words in time: commits and
/// other searches wait behind the deletion, so its wait is short.
pub(crate) fn set_texts(
    session: &mut DatabaseSession,
    texts: Option<i64>,
) -> Result<Option<i64>, StatementError> {
    if WordState::read(session)?.texts == texts {
        return Ok(None);
    }
    let before = session.whole(|session| {
        session.batch("BEGIN")?;
        let state = session.lock(PlainStatement::Lock)?;
        let before: Option<i64> = state.first().and_then(|row| row.get(4));
        if before == texts {
            return Ok(None);
        }
        if before.is_some() {
            session.batch(&format!(
                "SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; TRUNCATE word, worded"
            ))?;
        }
        session.query_once("UPDATE state SET texts = $1, words_seq = 0", &[&texts])?;
        session.batch("COMMIT")?;
        Ok(Some(before))
    })?;
    Ok(before.flatten())
}

/// Calls [`set_texts`]. While searches use the tables, repeats the call, up to [`TRIES`] times in
/// total.
pub(crate) fn set_texts_in_time(
    inner: &PostgresState,
    texts: Option<i64>,
) -> Result<Option<i64>, StatementError> {
    let set = || inner.pool.with(|session| set_texts(session, texts));
    for _ in 1..TRIES {
        match set() {
            Err(StatementError::Busy(_)) => std::thread::sleep(LOOK_EVERY),
            done => return done,
        }
    }
    set()
}

/// The result of [`step`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum StepResult {
    /// More records may have to be indexed.
    More(WordProgress),
    /// All stored records are indexed.
    Done(WordProgress),
    /// The database indexes the words of other texts.
    Others(WordProgress),
    /// The database indexes no words.
    None,
}

/// Indexes the words of the next records.
pub(crate) fn step(
    inner: &PostgresState,
    texts: &Arc<dyn TextSource>,
    session: &mut DatabaseSession,
) -> Result<StepResult, StatementError> {
    let before = WordState::read(session)?;
    if inner.indexes(before.texts).is_none() {
        let others = StepResult::Others(before.progress());
        return Ok(before.texts.map_or(StepResult::None, |_| others));
    }
    if before.words_seq >= before.seq {
        return Ok(StepResult::Done(before.progress()));
    }
    // The records are read and divided into words before the step acquires the lock of commits.
    let mut puts = inner.layout.puts(session, before.words_seq, before.seq, STEP)?;
    let mut is_last = (puts.len() as u64) < STEP.unsigned_abs();
    let mut all = WordRows::new(texts, &inner.shelf.terms);
    for at in 0..puts.len() {
        all.add_stored(&puts[at].1);
        if all.len() > STEP_ROWS && at + 1 < puts.len() {
            puts.truncate(at + 1);
            is_last = false;
            break;
        }
    }
    let last = puts.last().filter(|_| !is_last).map_or(before.seq, |(seq, _)| *seq);
    let numbers: Vec<i64> = puts.iter().map(|(seq, _)| *seq).collect();
    let moved = session.whole(|session| {
        session.batch("BEGIN")?;
        let state = session.lock(PlainStatement::Lock)?;
        let now = state.first().map(|row| (row.get::<_, Option<i64>>(4), row.get::<_, i64>(5)));
        if now != Some((before.texts, before.words_seq)) {
            return Ok(None);
        }
        // Some of these records may have been deleted in the meantime.
        let there = session.query(PlainStatement::StillThere, &[&numbers])?;
        if there.len() < puts.len() {
            let mut there: Vec<i64> = there.iter().map(|row| row.get(0)).collect();
            there.sort_unstable();
            all = WordRows::new(texts, &inner.shelf.terms);
            for (_, body) in puts.iter().filter(|(seq, _)| there.binary_search(seq).is_ok()) {
                all.add_stored(body);
            }
        }
        all.write(session)?;
        session.query(PlainStatement::AdvanceWords, &[&last])?;
        session.batch("COMMIT")?;
        Ok(Some(()))
    })?;
    let words_seq = if moved.is_some() { last } else { before.words_seq };
    Ok(StepResult::More(WordState { words_seq, ..before }.progress()))
}

/// Indexes the words of all stored records. `progress` may stop the work between two steps. Returns
/// the progress.
pub(crate) fn index_all(
    inner: &PostgresState,
    texts: &Arc<dyn TextSource>,
    progress: &mut dyn FnMut(WordProgress) -> ControlFlow<()>,
) -> Result<WordProgress, StatementError> {
    let own = Some(texts.fingerprint().cast_signed());
    set_texts_in_time(inner, own)?;
    loop {
        match inner.pool.with(|session| step(inner, texts, session))? {
            StepResult::Done(at) => return Ok(at),
            StepResult::More(at) => {
                if progress(at).is_break() {
                    return Ok(at);
                }
            }
            StepResult::Others(_) | StepResult::None => {
                let words = "another process has other settings in [search], and has the words of \
                             all records indexed anew; give all processes the same settings";
                return Err(StatementError::Refused(words.into()));
            }
        }
    }
}

/// Indexes words in the background until the store is dropped.
pub(crate) fn run(inner: &Weak<PostgresState>) {
    let mut work = BackgroundIndexing::default();
    while let Some(strong) = inner.upgrade() {
        let Some(texts) = strong.texts.clone() else { return };
        let pause = work.step(&strong, &texts);
        drop(strong);
        std::thread::sleep(pause);
    }
}

/// The state of the background thread: its progress, and the messages that it has logged.
#[derive(Default)]
struct BackgroundIndexing {
    /// Whether this process has already set its texts in the database.
    has_begun: bool,
    /// Whether a backlog of records was logged, and its end is not logged yet.
    is_behind: bool,
    /// Whether it is logged that another process has other texts.
    has_warned: bool,
    /// The last reason for a failure that was logged.
    failure: Option<String>,
    /// The number up to which another process has indexed its texts, and the time of this number's
    /// last change.
    others: Option<(u64, Instant)>,
}

impl BackgroundIndexing {
    /// Makes one step, and returns the pause before the next step.
    fn step(&mut self, inner: &PostgresState, texts: &Arc<dyn TextSource>) -> Duration {
        let started = Instant::now();
        let result = inner.pool.with(|session| {
            if !self.has_begun {
                let own = Some(texts.fingerprint().cast_signed());
                if set_texts(session, own)?.is_some() {
                    tracing::info!(
                        "the words of all records are indexed again, because [search] has changed"
                    );
                }
                self.has_begun = true;
            }
            step(inner, texts, session)
        });
        if result.is_ok() {
            self.failure = None;
        }
        match result {
            Ok(StepResult::Done(_)) => {
                if std::mem::take(&mut self.is_behind) {
                    tracing::info!("the words of all records are indexed");
                }
                (self.has_warned, self.others) = (false, None);
                LOOK_EVERY
            }
            Ok(StepResult::More(at)) => {
                self.others = None;
                if !self.is_behind && at.newest - at.indexed > STEP.unsigned_abs() {
                    self.is_behind = true;
                    let WordProgress { indexed, newest } = at;
                    tracing::info!(
                        indexed,
                        newest,
                        "words are being indexed; until that is done searches read records"
                    );
                }
                // The pause lets other processes commit.
                started.elapsed().min(LOOK_EVERY)
            }
            Ok(StepResult::None) => {
                self.has_begun = false;
                LOOK_EVERY
            }
            Ok(StepResult::Others(at)) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(
                        "another process that uses this database has other settings in [search], and \
                         its words are indexed; searches of this one read records. Give all processes \
                         the same settings. If that process ends, this one has its own words indexed \
                         once none were for {} minutes, though records came",
                        STALLED.as_secs() / 60
                    );
                }
                if self.is_left(at, started) {
                    self.has_begun = false;
                }
                RETRY
            }
            Err(fault) => {
                let reason = fault.to_string();
                if self.failure.as_ref() != Some(&reason) {
                    tracing::warn!(
                        %fault,
                        "words are not indexed; this is tried again every {} seconds",
                        RETRY.as_secs()
                    );
                    self.failure = Some(reason);
                }
                RETRY
            }
        }
    }

    /// Whether the process with other texts has probably ended: there are records to index, but
    /// there was no progress for [`STALLED`].
    fn is_left(&mut self, at: WordProgress, now: Instant) -> bool {
        let before = self.others.filter(|(indexed, _)| *indexed == at.indexed);
        if at.indexed >= at.newest {
            self.others = None;
            return false;
        }
        let (_, since) = *self.others.insert(before.unwrap_or((at.indexed, now)));
        now.duration_since(since) >= STALLED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_of_other_texts_is_left_when_it_stands_still_behind_what_is_stored() {
        let mut work = BackgroundIndexing::default();
        let start = Instant::now();
        let mut is_left = |minutes, indexed, newest| {
            let at = WordProgress { indexed, newest };
            work.is_left(at, start + Duration::from_mins(minutes))
        };
        assert!(!is_left(0, 7, 7) && !is_left(60, 7, 7), "nothing is stored that is not indexed");
        assert!(!is_left(61, 7, 8) && !is_left(65, 7, 90));
        assert!(!is_left(66, 8, 90) && !is_left(70, 8, 90), "somebody indexes");
        assert!(is_left(71, 8, 90));
        assert!(!is_left(80, 90, 90) && !is_left(81, 90, 91));
    }
}
