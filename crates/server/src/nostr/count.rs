//! The answer to a COUNT (NIP-45): the exact number of events that match any of the filters. If a
//! record that may match is damaged, the count excludes this record and is marked approximate.
//!
//! The store counts the first filter if list lengths or a few rows suffice. Otherwise the matches
//! are visited in time slices, as for any question. An event that matches a later filter counts
//! only if the event matches no earlier filter. So no event counts twice, and no ids are stored. If
//! the answer includes a HyperLogLog, every match is visited.
//!
//! The store's count includes the events that bans hide, and these are subtracted. If too many keys
//! and ids are banned to look them up, the matches are visited instead. If there are also too many
//! matches to visit, the count includes hidden events and is marked approximate.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::query::{ComparedRecord, ComparisonCost};
use hark_archive::{Query, Record, SearchProgress};
use hark_codec::nostr::reply;
use hark_networks::nostr::NostrRefusal;

use super::Relay;
use super::cost::{QuestionCost, TimedSearch};
use super::hidden_events::{HiddenEvents, HiddenProgress, TooManyBans};
use super::hll::HyperLogLog;
use super::metrics::Verb;
use super::outbox::{Outbox, RequestPermit};
use super::question_refusals::{bug, too_much};
use super::readers::{ReaderJob, SliceResult};
use super::refused::note_refusal;
use crate::budget::BudgetShare;

pub(super) struct CountJob {
    relay: Arc<Relay>,
    outbox: Arc<Outbox>,
    id: Box<str>,
    /// The queries of the filters, normalised and without limits.
    queries: Vec<Query>,
    at: usize,
    search: Option<TimedSearch>,
    cost: QuestionCost,
    count: u64,
    /// The hidden events that the count of the first filter includes, and that are yet to be found.
    hidden: Option<HiddenEvents>,
    /// Whether a record that may match could not be read, so that the count may be too low, or
    /// whether the count includes hidden events.
    is_approximate: bool,
    hll: Option<HyperLogLog>,
    _held: (RequestPermit, BudgetShare),
}

impl CountJob {
    pub(super) fn new(
        relay: Arc<Relay>,
        outbox: Arc<Outbox>,
        id: &str,
        mut queries: Vec<Query>,
        hll: Option<HyperLogLog>,
        cost: QuestionCost,
        held: (RequestPermit, BudgetShare),
    ) -> Self {
        for query in &mut queries {
            (query.limit, query.ranked) = (usize::MAX, false);
        }
        Self {
            cost,
            relay,
            outbox,
            id: id.into(),
            queries,
            at: 0,
            search: None,
            count: 0,
            hidden: None,
            is_approximate: false,
            hll,
            _held: held,
        }
    }

    /// Lets the store count the first filter, if one time slice is enough.
    fn count_first(&mut self, budget: u64) -> Result<(), NostrRefusal> {
        let Some(first) = self.queries.first() else { return Ok(()) };
        // The count includes hidden events, whether it comes from the lengths of lists or not.
        let asked = Query { budget: first.budget.min(budget), hidden: None, ..first.clone() };
        let count = self.cost.count(&**self.relay.shelf.store(), &asked);
        let Some(count) = count? else { return Ok(()) };
        match HiddenEvents::of(&self.relay.moderation, first) {
            Ok(hidden) => self.hidden = hidden,
            // The matches are visited instead.
            Err(TooManyBans) if count <= first.budget / 2 => return Ok(()),
            Err(TooManyBans) => self.is_approximate = true,
        }
        (self.count, self.at) = (count, 1);
        Ok(())
    }

    /// Subtracts some of the hidden events from the count.
    fn subtract(&mut self, mut hidden: HiddenEvents, work: u64) -> Result<(), NostrRefusal> {
        let count = &mut self.count;
        let mut each = |_: &Record<'_>| *count = count.saturating_sub(1);
        match hidden.work(&self.relay, &mut self.cost, work, &mut each)? {
            HiddenProgress::More => self.hidden = Some(hidden),
            HiddenProgress::Done => {}
            HiddenProgress::Exhausted => self.is_approximate = true,
        }
        Ok(())
    }

    fn work(&mut self, rows_max: u64) -> Result<SliceResult, NostrRefusal> {
        let mut work = self.relay.settings().limits.slice_rows.min(rows_max);
        if self.at == 0 && self.search.is_none() && self.hll.is_none() {
            self.count_first(work)?;
        }
        if let Some(hidden) = self.hidden.take() {
            self.subtract(hidden, work)?;
            return Ok(SliceResult::More);
        }
        let Some(query) = self.queries.get(self.at) else {
            self.relay.metrics.done(Verb::Count);
            let registers = self.hll.as_ref().map(HyperLogLog::registers);
            self.outbox.push_message(|out| {
                reply::write_count(out, &self.id, self.count, self.is_approximate, registers);
            });
            return Ok(SliceResult::Done);
        };
        let mut search = if let Some(search) = self.search.take() {
            search
        } else {
            let budget = query.budget.saturating_sub(self.cost.visited);
            let query = Query { budget, ..query.clone() };
            self.cost.open(&**self.relay.shelf.store(), &query, &mut work)?
        };
        let (before, count) = (&self.queries[..self.at], &mut self.count);
        let hll = &mut self.hll;
        // A record may be compared with all earlier queries, including their search words.
        let comparing = ComparisonCost::of(before);
        let (work, mut compared_rows) = (work.max(1), 0);
        let progress = self.cost.slice(&mut search, work, &mut |record: &Record<'_>| {
            let compared = ComparedRecord::new(*record);
            if !before.iter().any(|query| compared.matches(query)) {
                *count += 1;
                if let (Some(hll), Some(author)) = (hll.as_mut(), record.author()) {
                    hll.add(author);
                }
            }
            compared_rows += comparing.rows(record);
            if compared_rows < work { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        self.cost.read(compared_rows);
        self.is_approximate |= search.has_met_damage();
        match progress?.0 {
            SearchProgress::Paused => self.search = Some(search),
            SearchProgress::Done { .. } => self.at += 1,
            SearchProgress::Exhausted => return Err(too_much()),
        }
        Ok(SliceResult::More)
    }

    fn refuse(&self, refusal: &NostrRefusal) {
        note_refusal(&self.relay.metrics, &self.cost.rated, Verb::Count, refusal);
        self.outbox.push_message(|out| refusal.write_closed(out, &self.id));
    }
}

impl Drop for CountJob {
    fn drop(&mut self) {
        let asked = self.queries.iter().map(|query| (query, query.limit));
        self.relay.slow.note("COUNT", &self.cost.spent(), Some(self.cost.rated.listed()), asked);
    }
}

impl ReaderJob for CountJob {
    fn turn(&mut self, rows_max: u64) -> SliceResult {
        if self.outbox.is_closed_by_client() {
            return SliceResult::Done;
        }
        self.cost.begin();
        self.work(rows_max).unwrap_or_else(|refusal| {
            self.refuse(&refusal);
            SliceResult::Done
        })
    }

    fn fail(&mut self) {
        self.refuse(&bug());
    }

    /// The job sends a single short message at its end, and holds a view of the archive before.
    fn sends_records(&self) -> bool {
        false
    }

    fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.outbox)
    }
}
