//! A search that runs in slices, on sessions that its caller passes.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::query::plan::Set;
use hark_archive::{Record, SearchProgress};
use tokio::sync::OwnedSemaphorePermit;

use super::asked::SqlQuery;
use super::found::{FETCH_MAX, FETCH_MIN, FinderState};
use super::sessions::{Sessions, StepSession};
use super::state::SearchState;
use super::steps::SearchSteps;
use crate::error::StatementError;
use crate::time::{IndexKey, from_db};

/// Number of bytes of fetched records that every search may keep from one slice to the next. All
/// other records are fetched again.
const KEPT_BYTES: usize = 64 << 10;
/// Number of bytes of fetched records that a search may keep if it gets a permit from
/// [`SearchState::room`].
const KEPT_BYTES_MAX: usize = 1 << 20;

/// A search that runs on sessions that its caller passes.
pub(super) struct Finder {
    pub(super) found: FinderState,
    /// The layout's steps.
    steps: Box<dyn SearchSteps>,
    /// The permit for the bytes of records that are kept from one slice to the next.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

impl Finder {
    pub(super) fn new(asked: SqlQuery, steps: Box<dyn SearchSteps>) -> Self {
        Self { found: FinderState::new(asked), steps, room: None }
    }

    /// Stops using the cache of records, so that the statements fetch all records from the
    /// database.
    pub(super) fn fetch_all(&mut self) {
        self.found.asked.era = None;
    }

    pub(super) fn visited(&self) -> u64 {
        self.found.visited
    }

    pub(super) fn driver(&self) -> Option<Set> {
        self.found.driver
    }

    /// Returns approximately how many bytes of memory the search uses between two slices, apart from
    /// the bytes for which it has a permit.
    pub(super) fn bytes(&self) -> usize {
        let bodies = self.found.bodies.iter().filter(|_| self.room.is_none());
        let keys = self.found.keys.len() * size_of::<IndexKey>();
        size_of::<Self>() + keys + bodies.map(|body| body.len()).sum::<usize>()
    }

    /// Whether nothing is left to be found or fetched.
    pub(super) fn is_through(&self) -> bool {
        self.found.is_over && self.found.keys.is_empty()
    }

    /// Makes one step towards the next record. Returns false if no record is left. If the step
    /// needs no session with the database, no session is kept from other questions meanwhile.
    pub(super) fn step(
        &mut self,
        shared: &SearchState,
        sessions: &mut impl Sessions,
    ) -> Result<bool, StatementError> {
        let found = &mut self.found;
        if let Some(key) = found.keys.front() {
            let time = from_db(key.time);
            if found.asked.rank.as_ref().is_some_and(|bound| !bound.admits_any(time)) {
                found.keys.clear();
                found.is_over = true;
                return Ok(true);
            }
        } else if found.is_over {
            return Ok(false);
        }
        let on_shards = found.asked.on_shards && shared.shards.is_some();
        let mut step = |session: StepSession<'_>| {
            if found.keys.is_empty() {
                self.steps.find(found, shared, session)
            } else {
                self.steps.fetch(found, shared, session)
            }
        };
        if on_shards {
            match sessions.aside(|deadline| step(StepSession { session: None, deadline })) {
                Err(StatementError::NoSession) => {}
                done => return done.map(|()| true),
            }
        }
        sessions.with(|session| step(StepSession::with(session)))?;
        Ok(true)
    }

    /// Runs the search for one slice, like [`Search::slice`](hark_archive::Search::slice).
    pub(super) fn slice(
        &mut self,
        shared: &SearchState,
        work: u64,
        sessions: &mut impl Sessions,
        sink: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<SearchProgress, StatementError> {
        if self.found.asked.query.is_void() {
            return Ok(SearchProgress::Done { more: false });
        }
        self.room = None;
        // A page has at most as many records as a slice delivers, so no records need to be kept for
        // the next slice.
        let most = usize::try_from(work).unwrap_or(usize::MAX);
        self.found.page_max = self.found.page_max.min(most).max(1);
        let start = self.found.visited;
        let mut handed = 0;
        loop {
            while let Some(body) = self.found.bodies.front() {
                if self.found.delivered == self.found.asked.query.limit {
                    return Ok(SearchProgress::Done { more: true });
                }
                if handed >= work.max(1) {
                    return Ok(self.release_rows(shared));
                }
                let Ok(record) = Record::new(body) else {
                    self.found.bodies.pop_front();
                    continue;
                };
                handed += 1;
                self.found.delivered += 1;
                let stop = sink(&record).is_break();
                self.found.bodies.pop_front();
                if stop {
                    return Ok(self.release_rows(shared));
                }
            }
            if self.found.visited >= self.found.asked.query.budget {
                return Ok(SearchProgress::with_spent_budget(
                    self.found.delivered,
                    self.found.asked.query.limit,
                ));
            }
            if self.found.visited - start >= work.max(1) {
                return Ok(self.release_rows(shared));
            }
            if !self.step(shared, sessions)? {
                return Ok(SearchProgress::Done { more: false });
            }
        }
    }

    /// Drops records beyond the bytes that a search may keep until the next slice.
    pub(super) fn release_rows(&mut self, shared: &SearchState) -> SearchProgress {
        let found = &mut self.found;
        // The records of the remaining keys may be deleted before the next slice, so from now on
        // the search does not use the cache.
        found.asked.era = None;
        let (mut kept, bytes) = found.first(KEPT_BYTES_MAX);
        if bytes > KEPT_BYTES {
            self.room = Arc::clone(&shared.room).try_acquire_many_owned(bytes as u32).ok();
            if self.room.is_none() {
                kept = found.first(KEPT_BYTES).0;
            }
        }
        if kept < found.bodies.len() {
            found.fetch_max = kept.clamp(FETCH_MIN, FETCH_MAX);
            found.page_max = found.fetch_max;
        }
        for body in found.bodies.drain(kept..).rev() {
            if let Ok(record) = Record::new(&body) {
                found.keys.push_front(IndexKey::of(&record));
            }
        }
        SearchProgress::Paused
    }
}
