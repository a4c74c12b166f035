//! Finds the stored events that match a query but are hidden by bans. Counts and sums that come
//! from an index, without reading records, include these events, so the server has to subtract
//! these events.
//!
//! The events are found by the banned keys and ids. If nothing is banned, no search is opened.

use std::ops::ControlFlow;

use hark_archive::{Query, Record, SearchProgress};
use hark_networks::nostr::NostrRefusal;

use super::Relay;
use super::cost::{QuestionCost, TimedSearch};
use crate::moderation::Moderation;

/// Maximum number of banned keys and ids that are looked up for one question.
const SUBJECTS_MAX: usize = 10_000;

/// A search for the hidden events of a query.
pub(super) struct HiddenEvents {
    /// The events of banned keys, then the banned events of other keys.
    queries: Vec<Query>,
    at: usize,
    search: Option<TimedSearch>,
}

/// The banned keys and ids are too many to be looked up.
#[derive(Debug)]
pub(super) struct TooManyBans;

/// The progress of a search for hidden events.
pub(super) enum HiddenProgress {
    More,
    Done,
    /// The budget of the question did not suffice.
    Exhausted,
}

impl HiddenEvents {
    /// Creates the search. Returns `None` if no ban can hide an event that `query` finds.
    pub(super) fn of(moderation: &Moderation, query: &Query) -> Result<Option<Self>, TooManyBans> {
        let (keys, ids) = moderation.hidden_among(query, SUBJECTS_MAX).ok_or(TooManyBans)?;
        let every = Query { limit: usize::MAX, ranked: false, hidden: None, ..query.clone() };
        let mut queries = Vec::new();
        if !keys.is_empty() {
            queries.push(Query { authors: Some(keys), ..every.clone() });
        }
        if !ids.is_empty() {
            queries.push(Query { ids: Some(ids), ..every });
        }
        queries.iter_mut().for_each(Query::normalise);
        Ok((!queries.is_empty()).then_some(Self { queries, at: 0, search: None }))
    }

    /// Visits about `work` rows, and passes each hidden event to `each` once.
    pub(super) fn work(
        &mut self,
        relay: &Relay,
        cost: &mut QuestionCost,
        mut work: u64,
        each: &mut dyn FnMut(&Record<'_>),
    ) -> Result<HiddenProgress, NostrRefusal> {
        let Some(query) = self.queries.get(self.at) else { return Ok(HiddenProgress::Done) };
        let mut search = if let Some(search) = self.search.take() {
            search
        } else {
            let budget = query.budget.saturating_sub(cost.visited);
            let query = Query { budget, ..query.clone() };
            cost.open(&**relay.shelf.store(), &query, &mut work)?
        };
        // The first query has already passed on the events of banned keys.
        let found = self.queries[..self.at].iter().find_map(|query| query.authors.as_ref());
        let was_found = |record: &Record<'_>| {
            let author = record.author();
            found.zip(author).is_some_and(|(keys, author)| keys.binary_search(author).is_ok())
        };
        let progress = cost.slice(&mut search, work.max(1), &mut |record: &Record<'_>| {
            if relay.hidden.have(record) && !was_found(record) {
                each(record);
            }
            ControlFlow::Continue(())
        });
        match progress?.0 {
            SearchProgress::Paused => self.search = Some(search),
            SearchProgress::Done { .. } => self.at += 1,
            SearchProgress::Exhausted => return Ok(HiddenProgress::Exhausted),
        }
        Ok(HiddenProgress::More)
    }
}
