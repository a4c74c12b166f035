//! Brings the index of words up to what is stored and to what the settings say.
//!
//! `state.words_seq` is a number of a put: the words of all stored records up to it are indexed, and of
//! none above it. A commit indexes what it stores, and moves the number, if the number was that of the
//! newest put and if `state.texts` are the texts of its process. Otherwise the number stays, and
//! [`step`] moves it later, some records at a time, under the lock that commits take. So it does not matter which
//! processes wrote meanwhile, nor with which settings, and a step that is interrupted is repeated.
//! Searches use the index only if the number has reached all that they see. Deleting needs no texts: the
//! table `worded` has the words of each record.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hark_archive::{Record, TextSource};
use tokio_postgres::Row;

use crate::commit::words::WordRows;
use crate::layout::StatementForm;
use crate::listen;
use crate::search::SqlQuery;
use crate::session::{DatabaseSession, StatementError};
use crate::state::PostgresState;
use crate::time::{IndexKey, to_db};

/// Records that a step indexes. Commits wait while their rows are written, for some hundredths of a second.
const STEP: i64 = 100;
/// How often to look whether there is something to index.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long to wait after a fault.
const RETRY: Duration = Duration::from_secs(5);

/// How far words are indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordProgress {
    /// The number of the newest put whose words are indexed, like those of all puts before it.
    pub indexed: u64,
    /// The number of the newest put.
    pub newest: u64,
}

/// What the database says of its words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordState {
    pub(crate) texts: Option<i64>,
    words_seq: i64,
    seq: i64,
}

impl WordState {
    pub(crate) fn read(session: &mut DatabaseSession) -> Result<Self, StatementError> {
        Self::of(&session.query(StatementForm::WordState, &[])?)
    }

    /// Whether the words of all records that a search sees are indexed.
    pub(crate) fn has(&self, asked: &SqlQuery) -> bool {
        let texts = asked.query.words.as_ref().map(|words| words.texts().fingerprint());
        texts.is_some_and(|texts| self.texts == Some(texts.cast_signed()))
            && self.words_seq >= asked.seq.min(self.seq)
    }

    /// Reads the result of [`StatementForm::WordState`].
    pub(crate) fn of(rows: &[Row]) -> Result<Self, StatementError> {
        let Some(row) = rows.first() else {
            return Err(StatementError::Refused("its table `state` is not whole".into()));
        };
        Ok(Self { texts: row.get(0), words_seq: row.get(1), seq: row.get(2) })
    }

    pub(crate) fn progress(&self) -> WordProgress {
        let number = |seq: i64| seq.max(0).cast_unsigned();
        WordProgress { indexed: number(self.words_seq), newest: number(self.seq) }
    }
}

/// Has the database index these texts from now on, or none. What it has indexed of others is deleted. Returns
/// the texts that it indexed before, if they were others.
pub(crate) fn set_texts(
    session: &mut DatabaseSession,
    texts: Option<i64>,
) -> Result<Option<i64>, StatementError> {
    if WordState::read(session)?.texts == texts {
        return Ok(None);
    }
    let before = session.whole(|session| {
        session.batch("BEGIN")?;
        let state = session.query(StatementForm::Lock, &[])?;
        let before: Option<i64> = state.first().and_then(|row| row.get(4));
        if before == texts {
            return Ok(None);
        }
        if before.is_some() {
            session.batch("TRUNCATE word, worded")?;
        }
        session.query_once("UPDATE state SET texts = $1, words_seq = 0", &[&texts])?;
        session.batch("COMMIT")?;
        Ok(Some(before))
    })?;
    Ok(before.flatten())
}

/// The result of [`step`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum StepResult {
    /// There may be more to index.
    More(WordProgress),
    /// Everything that is stored is indexed.
    Done(WordProgress),
    /// The database indexes other texts.
    Others,
    /// The database indexes none.
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
        return Ok(before.texts.map_or(StepResult::None, |_| StepResult::Others));
    }
    if before.words_seq >= before.seq {
        return Ok(StepResult::Done(before.progress()));
    }
    // The records are read and divided into words before commits have to wait.
    let puts = listen::read(session, before.words_seq, before.seq, STEP)?.puts;
    let is_last = (puts.len() as u64) < STEP.unsigned_abs();
    let last = puts.last().filter(|_| !is_last).map_or(before.seq, |(seq, _)| *seq);
    let numbers: Vec<i64> = puts.iter().map(|(seq, _)| *seq).collect();
    let moved = session.whole(|session| {
        session.batch("BEGIN")?;
        let state = session.query(StatementForm::Lock, &[])?;
        let now = state.first().map(|row| (row.get::<_, Option<i64>>(4), row.get::<_, i64>(5)));
        if now != Some((before.texts, before.words_seq)) {
            return Ok(None);
        }
        // Some may have been deleted since they were read.
        let there = session.query(StatementForm::StillThere, &[&numbers])?;
        let mut there: Vec<i64> = there.iter().map(|row| row.get(0)).collect();
        there.sort_unstable();
        let mut rows = WordRows::new(texts, &inner.terms);
        for (_, body) in puts.iter().filter(|(seq, _)| there.binary_search(seq).is_ok()) {
            if let Ok(record) = Record::new(body) {
                let key = IndexKey { time: to_db(record.time()), id: *record.id() };
                rows.add(&record, &key);
            }
            if rows.are_many() {
                rows.write(session)?;
            }
        }
        rows.write(session)?;
        session.query(StatementForm::AdvanceWords, &[&last])?;
        session.batch("COMMIT")?;
        Ok(Some(()))
    })?;
    let words_seq = if moved.is_some() { last } else { before.words_seq };
    Ok(StepResult::More(WordState { words_seq, ..before }.progress()))
}

/// Indexes the words of everything that is stored. `progress` may stop it between two steps. Returns
/// how far it came.
pub(crate) fn index_all(
    inner: &PostgresState,
    texts: &Arc<dyn TextSource>,
    progress: &mut dyn FnMut(WordProgress) -> ControlFlow<()>,
) -> Result<WordProgress, StatementError> {
    let own = Some(texts.fingerprint().cast_signed());
    inner.pool.with(|session| set_texts(session, own))?;
    loop {
        match inner.pool.with(|session| step(inner, texts, session))? {
            StepResult::Done(at) => return Ok(at),
            StepResult::More(at) => {
                if progress(at).is_break() {
                    return Ok(at);
                }
            }
            StepResult::Others | StepResult::None => {
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
        let pause = work.go_on(&strong, &texts);
        drop(strong);
        std::thread::sleep(pause);
    }
}

/// What the background thread has done and said.
#[derive(Default)]
struct BackgroundIndexing {
    /// Whether the database was told which texts to index.
    has_begun: bool,
    /// Whether records were found that are not indexed, and it was not said since that all are.
    is_behind: bool,
    has_warned: bool,
}

impl BackgroundIndexing {
    /// Takes a step, and returns how long to wait for the next one.
    fn go_on(&mut self, inner: &PostgresState, texts: &Arc<dyn TextSource>) -> Duration {
        let started = Instant::now();
        let result = inner.pool.with(|session| {
            if !self.has_begun {
                let own = Some(texts.fingerprint().cast_signed());
                if set_texts(session, own)?.is_some() {
                    tracing::info!(
                        "the words of all records are indexed anew, as [search] is not what it was"
                    );
                }
                self.has_begun = true;
            }
            step(inner, texts, session)
        });
        match result {
            Ok(StepResult::Done(_)) => {
                if std::mem::take(&mut self.is_behind) {
                    tracing::info!("the words of all records are indexed");
                }
                self.has_warned = false;
                LOOK_EVERY
            }
            Ok(StepResult::More(at)) => {
                if !self.is_behind && at.newest - at.indexed > STEP.unsigned_abs() {
                    self.is_behind = true;
                    let WordProgress { indexed, newest } = at;
                    tracing::info!(
                        indexed,
                        newest,
                        "words are being indexed; until that is done searches read records"
                    );
                }
                // Others commit meanwhile.
                started.elapsed().min(LOOK_EVERY)
            }
            Ok(StepResult::None) => {
                self.has_begun = false;
                LOOK_EVERY
            }
            Ok(StepResult::Others) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(
                        "another process that uses this database has other settings in [search], and \
                         its words are indexed; searches of this one read records. Give all processes \
                         the same settings"
                    );
                }
                RETRY
            }
            Err(fault) => {
                tracing::debug!(%fault, "words are indexed later");
                RETRY
            }
        }
    }
}
