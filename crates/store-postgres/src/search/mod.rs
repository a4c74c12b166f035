//! Runs queries: finds keys in ordered index ranges, then fetches the records with these keys.
//!
//! No transaction outlives a statement. A search resumes behind the last key that it read. Records
//! stored after the search began are recognised by their sequence numbers and left out.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::query::LazyWords;
use hark_archive::query::plan::Set;
use hark_archive::{Order, Record, SearchProgress};

use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::layout::StatementForm;
use crate::session::{DatabaseSession, StatementError};
use crate::state::PostgresState;
use crate::time::IndexKey;
use crate::words::mark::mark;
use recent::FetchedRecord;
use walk::{GatherResult, IndexWalk, PageWalk};
use windows::WindowWalk;
use words::WordWalk;

pub(crate) use asked::SqlQuery;
pub(crate) use pooled::start;
pub(crate) use several::Finders;

mod asked;
mod plan;
mod pooled;
pub(crate) mod recent;
mod several;
mod walk;
pub(crate) mod windows;
mod words;

/// Maximum number of records fetched at a time.
const FETCH_MAX: usize = 500;
/// Maximum number of parts whose own tables are read. Records in more parts are fetched from the
/// parent table.
const FETCH_PARTS_MAX: usize = 4;
/// Lower bound of the maximum number of records fetched at a time, regardless of their length.
const FETCH_MIN: usize = 16;
/// Maximum number of records whose words are read at a time, and the minimum for a ranked search.
const WORDS_READ_MAX: usize = 64;
/// If at least `RARE_MIN` records were fetched, and fewer than one in `RARE_SHARE` matches, common
/// conditions are counted too.
const RARE_MIN: usize = 500;
const RARE_SHARE: usize = 16;
/// Bytes of records that every search may keep between slices. Other records are fetched again.
const KEPT_BYTES: usize = 64 << 10;
/// Bytes of records that a search keeps if it gets a permit from `PostgresState::room`.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// Bytes of these permits for all searches together.
pub(crate) const KEPT_ALL_BYTES: usize = 64 << 20;

/// The sessions on which a search runs its statements.
pub(crate) trait Sessions {
    /// Calls `work` with a session, and again with another one if the first session is lost.
    fn with<T>(
        &mut self,
        work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError>;
}

impl Sessions for DatabaseSession {
    fn with<T>(
        &mut self,
        mut work: impl FnMut(&mut DatabaseSession) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        work(self)
    }
}

/// The way in which a search finds its keys.
enum SearchStage {
    /// The search is not planned yet.
    Start,
    /// The search walks index ranges to find the keys.
    Walk(Box<IndexWalk>),
    /// The search reads pages of keys together with their records.
    Pages(Box<PageWalk>),
    /// The search reads windows of distributed tables.
    Windows(Box<WindowWalk>),
    /// The search walks index ranges of words, and reads the records.
    Words(Box<WordWalk>),
    /// All keys are found.
    Found,
}

/// A search that runs on the sessions of its caller.
pub(crate) struct Finder {
    asked: SqlQuery,
    stage: SearchStage,
    /// The next keys whose records are not fetched yet, in order.
    keys: VecDeque<IndexKey>,
    /// Fetched records, in order; they come before the records of `keys`.
    bodies: VecDeque<Box<[u8]>>,
    /// The permit for the bytes of `bodies` between slices.
    room: Option<OwnedSemaphorePermit>,
    /// Maximum number of records fetched at a time. Lowered when the records turn out to be long.
    fetch_max: usize,
    /// Maximum number of records of a page: the number that a slice delivers. Lowered when the
    /// records turn out to be long.
    page_max: usize,
    delivered: usize,
    /// The number of keys whose records were fetched. `matched` is the number of those that match
    /// the query.
    fetched: usize,
    matched: usize,
    visited: u64,
    driver: Option<Set>,
    /// Whether walking past other authors' records has turned out to be expensive.
    by_value: bool,
    /// Whether hardly any record has met the conditions that were expected to be common.
    by_size: bool,
}

impl Finder {
    pub(crate) fn new(asked: SqlQuery) -> Self {
        Self {
            asked,
            stage: SearchStage::Start,
            keys: VecDeque::new(),
            bodies: VecDeque::new(),
            room: None,
            fetch_max: FETCH_MAX,
            page_max: usize::MAX,
            delivered: 0,
            fetched: 0,
            matched: 0,
            visited: 0,
            driver: None,
            by_value: false,
            by_size: false,
        }
    }

    /// Disables the cache of records, so that the statements fetch all records from the database.
    pub(crate) fn fetch_all(&mut self) {
        self.asked.era = None;
    }

    pub(crate) fn visited(&self) -> u64 {
        self.visited
    }

    pub(crate) fn driver(&self) -> Option<Set> {
        self.driver
    }

    /// Whether nothing is left to find or fetch.
    fn is_through(&self) -> bool {
        matches!(self.stage, SearchStage::Found) && self.keys.is_empty()
    }

    /// Returns how many records are still wanted, plus one that shows whether more exist.
    fn wanted(&self) -> usize {
        (self.asked.query.limit - self.delivered)
            .saturating_add(1)
            .saturating_sub(self.bodies.len())
    }

    /// Returns how many keys yield the wanted number of records if the share of matches stays the
    /// same.
    fn reach(&self) -> usize {
        let reach = self.wanted().saturating_mul(self.fetched + 1) / (self.matched + 1);
        if self.asked.rank.is_some() {
            // A ranked search has no limit. It ends where no later record can be better than the
            // best so far.
            let best = self.asked.best.saturating_add(self.fetched);
            reach.min(best.clamp(WORDS_READ_MAX, FETCH_MAX))
        } else if self.asked.query.words.is_some() {
            reach.min(WORDS_READ_MAX)
        } else {
            reach
        }
    }

    /// Makes one step towards the next record. Returns false if no record is left.
    fn step(
        &mut self,
        inner: &PostgresState,
        session: &mut DatabaseSession,
    ) -> Result<bool, StatementError> {
        if let Some(key) = self.keys.front() {
            let time = crate::time::from_db(key.time);
            if self.asked.rank.as_ref().is_some_and(|bound| !bound.admits_any(time)) {
                self.keys.clear();
                self.stage = SearchStage::Found;
            } else {
                self.fetch(inner, session)?;
            }
            return Ok(true);
        }
        let reach = self.reach();
        match &mut self.stage {
            SearchStage::Start => {
                self.stage = if session.layout().is_distributed() {
                    self.plan_windows(inner, session)?
                } else {
                    self.plan(&inner.parts(), session)?
                };
                Ok(true)
            }
            SearchStage::Walk(walk) => {
                let before = walk.visited;
                let parts = inner.parts();
                let gathered = walk.gather(&self.asked, &parts, reach, &mut self.keys, session)?;
                self.visited += walk.visited - before;
                match gathered {
                    GatherResult::Some => {}
                    GatherResult::All => self.stage = SearchStage::Found,
                    GatherResult::Instead(at) => {
                        self.asked.query.after = Some(at.position());
                        (self.stage, self.by_value) = (SearchStage::Start, true);
                    }
                }
                Ok(true)
            }
            SearchStage::Pages(pages) => {
                let (before, fetched) = (pages.visited, pages.fetched);
                let reach = reach.min(self.page_max);
                let page = pages.next(&self.asked, &inner.parts(), reach, session)?;
                self.visited += pages.visited - before;
                self.fetched += pages.fetched - fetched;
                let Some(page) = page else {
                    self.stage = SearchStage::Found;
                    return Ok(true);
                };
                self.matched += page.len();
                self.bodies.extend(page);
                // Far fewer records may meet another condition, or none.
                let is_rare = self.fetched >= RARE_MIN && self.matched * RARE_SHARE < self.fetched;
                if let Some(at) = pages.resumes_behind()
                    && is_rare
                    && !self.by_size
                    && self.asked.common.contains(&true)
                {
                    self.asked.query.after = Some(at.position());
                    (self.stage, self.by_size) = (SearchStage::Start, true);
                }
                Ok(true)
            }
            SearchStage::Windows(windows) => {
                let before = windows.visited;
                let rows = windows.next(&self.asked, reach.min(self.page_max), session)?;
                let passed = windows.visited - before;
                self.visited += passed;
                match rows {
                    Some(found) => {
                        self.fetched += usize::try_from(passed).unwrap_or(usize::MAX);
                        self.matched += found.len();
                        self.bodies.extend(found);
                    }
                    None => self.stage = SearchStage::Found,
                }
                Ok(true)
            }
            SearchStage::Words(words) => {
                let (before, fetched) = (words.visited, words.fetched);
                let reach = reach.min(self.page_max);
                let found = words.next(&self.asked, &inner.parts(), reach, session)?;
                self.visited += words.visited - before;
                self.fetched += words.fetched - fetched;
                match found {
                    Some(found) => {
                        self.matched += found.len();
                        self.bodies.extend(found);
                    }
                    None => self.stage = SearchStage::Found,
                }
                Ok(true)
            }
            SearchStage::Found => Ok(false),
        }
    }

    /// Fetches the records of the next keys.
    fn fetch(
        &mut self,
        inner: &PostgresState,
        session: &mut DatabaseSession,
    ) -> Result<(), StatementError> {
        let count = self.reach().clamp(1, self.fetch_max).min(self.keys.len());
        let keys: Vec<IndexKey> = self.keys.iter().take(count).copied().collect();
        if session.layout().is_distributed() {
            return self.fetch_placed(&keys, session);
        }
        let mut found: Vec<(usize, Arc<[u8]>)> = Vec::new();
        // The statement checks the probed words in the database, so the cache is not used.
        let era = self.asked.era.filter(|_| self.asked.probes.is_empty());
        let missing: Vec<usize> = if let Some(era) = era {
            let seq = self.asked.seq;
            inner.recent.find(&keys, era, seq, |at, body| found.push((at, body)))
        } else {
            (0..count).collect()
        };
        if !missing.is_empty() {
            let some: Vec<IndexKey> = missing.iter().map(|&at| keys[at]).collect();
            let parts = inner.parts();
            let rows = match self.rows(&some, &|key| parts.of_time(key.time), session) {
                // A part may have been dropped, or a lagging replica may not have it yet.
                Err(StatementError::Missing(_)) => self.rows(&some, &|_| None, session)?,
                rows => rows?,
            };
            let record = |(at, row): &(usize, Row)| {
                let seq = if era.is_some() { row.get(2) } else { 0 };
                (missing[*at], FetchedRecord { seq, body: row.get::<_, &[u8]>(1).into() })
            };
            let fetched: Vec<(usize, FetchedRecord)> = rows.iter().map(record).collect();
            if let Some(era) = era {
                let records = fetched.iter().map(|(at, record)| (keys[*at], record.clone()));
                inner.recent.keep(era, self.asked.seq, records);
            }
            found.extend(fetched.into_iter().map(|(at, record)| (at, record.body)));
        }
        found.sort_unstable_by_key(|(index, _)| *index);
        let bodies = found.iter().map(|(_, body)| &**body);
        let found = matching(&self.asked, bodies, &mut self.visited)?;
        (self.fetched, self.matched) = (self.fetched + count, self.matched + found.len());
        self.bodies.extend(found);
        self.keys.drain(..count);
        Ok(())
    }

    /// Fetches the records of the next keys from distributed tables. Their places are looked up
    /// first.
    fn fetch_placed(
        &mut self,
        keys: &[IndexKey],
        session: &mut DatabaseSession,
    ) -> Result<(), StatementError> {
        let places = windows::places(session, keys.iter().map(|key| &key.id[..]))?;
        let placed = keys.iter().filter_map(|key| Some((*key, *places.get(&key.id)?)));
        let placed: Vec<_> = placed.collect();
        let mut found = windows::bodies(session, &placed, self.asked.seq, None)?;
        found.sort_unstable_by(|(a, _), (b, _)| compare(self.asked.query.order, a, b));
        let bodies = found.iter().map(|(_, body)| &body[..]);
        let found = matching(&self.asked, bodies, &mut self.visited)?;
        (self.fetched, self.matched) = (self.fetched + keys.len(), self.matched + found.len());
        self.bodies.extend(found);
        self.keys.drain(..keys.len());
        Ok(())
    }

    /// Returns the rows of `keys`, each with its key's position in `keys`. The rows are read from
    /// the tables of single parts if they are in at most [`FETCH_PARTS_MAX`] parts.
    fn rows(
        &self,
        keys: &[IndexKey],
        part: &dyn Fn(&IndexKey) -> Option<i64>,
        session: &mut DatabaseSession,
    ) -> Result<Vec<(usize, Row)>, StatementError> {
        let mut by_part: BTreeMap<Option<i64>, Vec<usize>> = BTreeMap::new();
        for (index, key) in keys.iter().enumerate() {
            by_part.entry(part(key)).or_default().push(index);
        }
        if by_part.len() > FETCH_PARTS_MAX {
            by_part = BTreeMap::from([(None, (0..keys.len()).collect())]);
        }
        let cut = self.asked.cut(self.driver);
        let values: Vec<(Vec<i64>, Vec<&[u8]>)> = by_part
            .values()
            .map(|indices| indices.iter().map(|&at| (keys[at].time, &keys[at].id[..])).unzip())
            .collect();
        let values: Vec<[&(dyn ToSql + Sync); 4]> = values
            .iter()
            .map(|(times, ids)| [times as _, ids as _, &self.asked.seq as _, &cut as _])
            .collect();
        let probes = &self.asked.probes;
        let marks: Vec<Vec<i64>> = by_part
            .values()
            .filter(|_| !probes.is_empty())
            .map(|indices| indices.iter().map(|&at| mark(&keys[at].id)).collect())
            .collect();
        let mut given: Vec<Vec<&(dyn ToSql + Sync)>> =
            values.iter().map(|values| values.to_vec()).collect();
        for (given, marks) in given.iter_mut().zip(&marks) {
            given.extend([marks as &(dyn ToSql + Sync), probes]);
        }
        let form: fn(Option<i64>) -> StatementForm =
            if probes.is_empty() { StatementForm::Bodies } else { StatementForm::WordedBodies };
        let mut calls: Vec<_> =
            by_part.keys().zip(&given).map(|(part, given)| (form(*part), &given[..])).collect();
        if !probes.is_empty() {
            calls.push((StatementForm::WordState, &[]));
        }
        let mut answers = session.pipeline(&calls)?;
        if !probes.is_empty() {
            words::still_indexed(&self.asked, &answers.pop().unwrap_or_default())?;
        }
        let rows = by_part.values().zip(answers).flat_map(|(indices, rows)| {
            rows.into_iter().map(|row| (indices[row.get::<_, i64>(0) as usize - 1], row))
        });
        Ok(rows.collect())
    }

    /// Runs the search for one slice, like [`Search::slice`].
    pub(crate) fn slice(
        &mut self,
        inner: &PostgresState,
        work: u64,
        sessions: &mut impl Sessions,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, StatementError> {
        if self.asked.query.is_void() {
            return Ok(SearchProgress::Done { more: false });
        }
        self.room = None;
        // Pages are no larger than a slice, so that no records have to be kept for the next slice.
        self.page_max = self.page_max.min(usize::try_from(work).unwrap_or(usize::MAX)).max(1);
        let start = self.visited;
        let mut handed = 0;
        loop {
            while let Some(body) = self.bodies.front() {
                if self.delivered == self.asked.query.limit {
                    return Ok(SearchProgress::Done { more: true });
                }
                if handed >= work.max(1) {
                    return Ok(self.rest(inner));
                }
                let Ok(record) = Record::new(body) else {
                    self.bodies.pop_front();
                    continue;
                };
                handed += 1;
                self.delivered += 1;
                let stop = sink(&record).is_break();
                self.bodies.pop_front();
                if stop {
                    return Ok(self.rest(inner));
                }
            }
            if self.visited >= self.asked.query.budget {
                return Ok(SearchProgress::Exhausted);
            }
            if self.visited - start >= work.max(1) {
                return Ok(self.rest(inner));
            }
            if !sessions.with(|session| self.step(inner, session))? {
                return Ok(SearchProgress::Done { more: false });
            }
        }
    }

    /// Releases the records beyond the bytes that a search may keep until the next slice.
    fn rest(&mut self, inner: &PostgresState) -> SearchProgress {
        // The records of the remaining keys may be deleted before the next slice, so the cache is
        // not used any more.
        self.asked.era = None;
        let (mut kept, bytes) = self.first(KEPT_BYTES_MAX);
        if bytes > KEPT_BYTES {
            self.room = Arc::clone(&inner.room).try_acquire_many_owned(bytes as u32).ok();
            if self.room.is_none() {
                kept = self.first(KEPT_BYTES).0;
            }
        }
        if kept < self.bodies.len() {
            self.fetch_max = kept.clamp(FETCH_MIN, FETCH_MAX);
            self.page_max = self.fetch_max;
        }
        for body in self.bodies.drain(kept..).rev() {
            if let Ok(record) = Record::new(&body) {
                self.keys.push_front(IndexKey::of(&record));
            }
        }
        SearchProgress::Paused
    }

    /// Returns how many of the next records fit in `bytes_max`, and their bytes.
    fn first(&self, bytes_max: usize) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for body in &self.bodies {
            if bytes + body.len() > bytes_max {
                break;
            }
            (count, bytes) = (count + 1, bytes + body.len());
        }
        (count, bytes)
    }
}

/// Returns the records that match the query. In a ranked search, the words are not compared. Adds
/// the cost of comparing words to `visited`, as rows.
fn matching<'a>(
    asked: &SqlQuery,
    bodies: impl Iterator<Item = &'a [u8]>,
    visited: &mut u64,
) -> Result<Vec<Box<[u8]>>, StatementError> {
    let mut found = Vec::new();
    for body in bodies {
        let record = Record::new(body)
            .map_err(|error| StatementError::Refused(format!("a record is damaged: {error}")))?;
        if !asked.plain.matches(&record) {
            continue;
        }
        if let Some(words) = asked.query.words.as_ref().filter(|_| asked.rank.is_none()) {
            *visited += words.cost(&record);
            if !words.matches(&record, &LazyWords::default()) {
                continue;
            }
        }
        found.push(body.into());
    }
    Ok(found)
}

/// Compares the positions of `key` and `other` in `order`.
fn compare(order: Order, key: &IndexKey, other: &IndexKey) -> std::cmp::Ordering {
    let times = match order {
        Order::NewestFirst => other.time.cmp(&key.time),
        Order::OldestFirst => key.time.cmp(&other.time),
    };
    times.then_with(|| key.id.cmp(&other.id))
}
