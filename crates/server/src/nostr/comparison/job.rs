//! Answers one message of a comparison, on the reader threads. For the first message, a search
//! collects the set of events to compare; each message is then answered from the set. A comparison
//! without a set is answered from the store's sums.
//!
//! Long work is done in time slices: the search in slices of rows, the answer in slices of ranges.
//! A message is checked as a whole before its search begins.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_archive::{Query, Record, SearchProgress};
use hark_codec::nostr::negentropy::{
    NegentropyItem, NegentropyResponder, NegentropySet, RangesResponder, check_message,
};
use hark_networks::nostr::NostrVerdict;

use super::hidden_items::{HiddenFound, HiddenSearch};
use super::set::{ComparedSet, CountedSet, SetMemory};
use super::state::{Comparison, ComparisonRefusal, ReceivedComparison, SummedComparison};
use super::store_ranges::{RangesCandidate, StoreRanges};
use crate::budget::BudgetShare;
use crate::nostr::Relay;
use crate::nostr::cost::{QuestionCost, TimedSearch};
use crate::nostr::hidden_events::HiddenEvents;
use crate::nostr::outbox::{Outbox, RequestPermit};
use crate::nostr::question_refusals::bug;
use crate::nostr::readers::{ReaderJob, SliceResult};
use crate::rate::RatedConnection;

/// Number of ranges of a message that are answered in one time slice. A range takes some
/// microseconds.
const RANGES_PER_SLICE: usize = 64;

/// Length of a time slice if the store computes the sums. The sum of a range takes microseconds to
/// milliseconds.
const SUMMED_SLICE: Duration = Duration::from_micros(500);

/// Maximum number of bytes of a NEG-MSG apart from its hex digits: enough for an id of 64
/// characters that are all escaped.
const NEG_MSG_BYTES: usize = 512;

/// A message that is being answered.
pub(super) struct ComparisonJob {
    relay: Arc<Relay>,
    comparison: Arc<Comparison>,
    answer_bytes_max: usize,
    step: ComparisonStep,
    cost: QuestionCost,
    _held: (RequestPermit, BudgetShare),
}

/// The next step of the answer.
enum ComparisonStep {
    /// Check the message, and decide whether the answer comes from a set or from the store's sums.
    /// Only the first message of a comparison has `memory`, for the set.
    Begin { message: Vec<u8>, memory: Option<SetMemory> },
    /// Prepare the store's sums, which may answer the first message instead of a set.
    Prepare { message: Vec<u8>, memory: SetMemory, candidate: RangesCandidate },
    /// Find the hidden events that the store's sums include.
    Hide { message: Vec<u8>, query: Arc<Query>, search: HiddenSearch },
    /// Begin to collect the set.
    Open { answer: NegentropyResponder, memory: SetMemory },
    /// Continue to collect the set.
    Collect { answer: NegentropyResponder, search: TimedSearch, set: ComparedSet },
    /// Answer from the comparison's set.
    FromSet(NegentropyResponder),
    /// Answer from the store's sums.
    FromRanges(RangesResponder, StoreRanges),
    /// The answer is sent or refused.
    Done,
}

impl ComparisonJob {
    /// Creates the job. `memory` is the memory for the set; only the first message of a comparison
    /// has this memory.
    pub(super) fn new(
        relay: Arc<Relay>,
        comparison: Arc<Comparison>,
        received: ReceivedComparison,
        memory: Option<SetMemory>,
        rated: RatedConnection,
        permit: RequestPermit,
    ) -> Self {
        let cost = QuestionCost::new(&relay, rated);
        Self {
            relay,
            comparison,
            answer_bytes_max: received.answer_bytes_max,
            step: ComparisonStep::Begin { message: received.message, memory },
            cost,
            _held: (permit, received.memory),
        }
    }

    /// Works for one time slice. A step that returns an error is the last step.
    fn work(&mut self) -> Result<SliceResult, ComparisonRefusal> {
        // A ban waits until this slice has ended.
        let relay = Arc::clone(&self.relay);
        let _before = relay.moderation.check();
        if relay.moderation.hidings() != self.comparison.hidings {
            let words = "events of this comparison may have been banned; begin again";
            return Err(NostrVerdict::Closed.because(words).into());
        }
        let step = match std::mem::replace(&mut self.step, ComparisonStep::Done) {
            ComparisonStep::Begin { message, memory } => self.begin(message, memory)?,
            ComparisonStep::Prepare { message, memory, candidate } => {
                self.prepare(message, memory, candidate)?
            }
            ComparisonStep::Hide { message, query, search } => self.hide(message, query, search)?,
            step => step,
        };
        self.step = match step {
            ComparisonStep::Open { answer, memory } => self.open(answer, memory)?,
            ComparisonStep::Collect { answer, search, set } => {
                let work = self.relay.settings().limits.slice_rows;
                self.collect(answer, search, set, work)?
            }
            ComparisonStep::FromSet(answer) => self.answer_from_set(answer),
            ComparisonStep::FromRanges(answer, ranges) => {
                self.answer_from_ranges(answer, ranges)?
            }
            step @ (ComparisonStep::Begin { .. }
            | ComparisonStep::Prepare { .. }
            | ComparisonStep::Hide { .. }
            | ComparisonStep::Done) => step,
        };
        let is_done = matches!(self.step, ComparisonStep::Done);
        Ok(if is_done { SliceResult::Done } else { SliceResult::More })
    }

    /// Checks the message. The first message of a comparison may be answered from the store's sums.
    fn begin(
        &mut self,
        message: Vec<u8>,
        memory: Option<SetMemory>,
    ) -> Result<ComparisonStep, ComparisonRefusal> {
        let Some(memory) = memory else {
            let summed = self.comparison.state.lock().by_ranges.clone();
            return match summed {
                Some(summed) => self.by_ranges(message, summed),
                None => Ok(ComparisonStep::FromSet(self.responder(message)?)),
            };
        };
        // Checked before any search, so that an invalid message costs no search.
        check_message(&message)?;
        match RangesCandidate::of(&self.comparison, &**self.relay.shelf.store())? {
            Some(candidate) => self.prepare(message, memory, candidate),
            None => Ok(ComparisonStep::Open { answer: self.responder(message)?, memory }),
        }
    }

    /// Does a part of the preparation. The last part decides whether the answer comes from a set or
    /// from the store's sums.
    fn prepare(
        &mut self,
        message: Vec<u8>,
        memory: SetMemory,
        candidate: RangesCandidate,
    ) -> Result<ComparisonStep, ComparisonRefusal> {
        if self.cost.compare(|| candidate.prepare()) {
            return Ok(ComparisonStep::Prepare { message, memory, candidate });
        }
        let slice_rows = self.relay.settings().limits.slice_rows;
        let store = &**self.relay.shelf.store();
        let query = candidate.query(&self.comparison, store, &mut self.cost, slice_rows)?;
        let hidden = query.as_ref().map(|query| HiddenEvents::of(&self.relay.moderation, query));
        match (query, hidden) {
            (Some(query), Some(Ok(None))) => {
                self.by_ranges(message, SummedComparison { query, hidden: None })
            }
            (Some(query), Some(Ok(Some(events)))) => {
                let search = HiddenSearch::new(events, memory);
                Ok(ComparisonStep::Hide { message, query, search })
            }
            _ => Ok(ComparisonStep::Open { answer: self.responder(message)?, memory }),
        }
    }

    /// Finds some of the hidden events that the store's sums include.
    fn hide(
        &mut self,
        message: Vec<u8>,
        query: Arc<Query>,
        search: HiddenSearch,
    ) -> Result<ComparisonStep, ComparisonRefusal> {
        let slice_rows = self.relay.settings().limits.slice_rows;
        match search.work(&self.relay, &mut self.cost, slice_rows)? {
            HiddenFound::More(search) => Ok(ComparisonStep::Hide { message, query, search }),
            HiddenFound::All(items) => {
                let hidden = Some(Arc::new(items));
                self.by_ranges(message, SummedComparison { query, hidden })
            }
            HiddenFound::TooMany(mut memory) => {
                memory.release();
                Ok(ComparisonStep::Open { answer: self.responder(message)?, memory })
            }
        }
    }

    /// Begins the answer from a set.
    fn responder(&self, message: Vec<u8>) -> Result<NegentropyResponder, ComparisonRefusal> {
        Ok(NegentropyResponder::new(message, self.frame_bytes_max())?)
    }

    fn frame_bytes_max(&self) -> usize {
        let bytes_max = self.relay.settings().limits.outbox_bytes_max;
        self.answer_bytes_max.min(bytes_max).saturating_sub(NEG_MSG_BYTES) / 2
    }

    /// Begins the answer from the store's sums, for the query of [`RangesCandidate::query`] without
    /// its hidden events.
    fn by_ranges(
        &self,
        message: Vec<u8>,
        summed: SummedComparison,
    ) -> Result<ComparisonStep, ComparisonRefusal> {
        let query = &summed.query;
        // The rules for questions may hide further kinds.
        let hidden = query.gate.as_ref().map_or(&[][..], |gate| &gate.kinds);
        let is_hidden = |kind: &u32| hidden.binary_search(kind).is_ok();
        if !self.relay.identity.current().private_kinds().iter().all(is_hidden) {
            let changed = "other events are private since you began; begin again";
            return Err(NostrVerdict::Closed.because(changed).into());
        }
        let now = Query { now: self.relay.shelf.clock().now_s(), ..(**query).clone() };
        let Some(ranges) = self.relay.shelf.store().ranges(&now)? else {
            let lacking = "a part of the archive is being rebuilt; begin again";
            return Err(NostrVerdict::Error.because(lacking).into());
        };
        let answer = RangesResponder::new(message, self.frame_bytes_max())?;
        let ranges = StoreRanges::new(ranges, summed.hidden.clone());
        let mut state = self.comparison.state.lock();
        if !state.has_ended {
            state.by_ranges = Some(summed);
        }
        drop(state);
        Ok(ComparisonStep::FromRanges(answer, ranges))
    }

    fn answer_from_set(&mut self, mut answer: NegentropyResponder) -> ComparisonStep {
        let set = self.comparison.state.lock().set.clone();
        // The set is gone if the comparison has ended meanwhile.
        let Some(set) = set else { return ComparisonStep::Done };
        let counted = CountedSet::new(&set);
        let step = || (answer.step(&counted, RANGES_PER_SLICE), counted.rows());
        if self.cost.compare(step) {
            return ComparisonStep::FromSet(answer);
        }
        self.cost.compared();
        self.comparison.answer(&answer.finish());
        ComparisonStep::Done
    }

    fn answer_from_ranges(
        &mut self,
        mut answer: RangesResponder,
        ranges: StoreRanges,
    ) -> Result<ComparisonStep, ComparisonRefusal> {
        let started = Instant::now();
        while self.cost.compare(|| ranges.counted(|| answer.step(&ranges, 1))) {
            if started.elapsed() >= SUMMED_SLICE {
                return Ok(ComparisonStep::FromRanges(answer, ranges));
            }
        }
        self.cost.compared();
        ranges.check()?;
        self.comparison.answer(&answer.finish());
        Ok(ComparisonStep::Done)
    }

    /// Begins to collect the set. The set is also collected for a message of another protocol
    /// version, because the client will then send a message in the supported version.
    fn open(
        &mut self,
        answer: NegentropyResponder,
        memory: SetMemory,
    ) -> Result<ComparisonStep, ComparisonRefusal> {
        let mut work = self.relay.settings().limits.slice_rows;
        let set = ComparedSet::new(memory);
        if self.comparison.query.is_void() {
            self.comparison.cache_set(set.seal());
            return Ok(ComparisonStep::FromSet(answer));
        }
        self.count(work)?;
        let (store, query) = (&**self.relay.shelf.store(), &self.comparison.query);
        let search = self.cost.open(store, query, &mut work)?;
        self.collect(answer, search, set, work)
    }

    /// Collects a part of the set.
    fn collect(
        &mut self,
        answer: NegentropyResponder,
        mut search: TimedSearch,
        mut set: ComparedSet,
        work: u64,
    ) -> Result<ComparisonStep, ComparisonRefusal> {
        let mut no_memory = None;
        let progress = self.cost.slice(&mut search, work.max(1), &mut |record: &Record<'_>| {
            let item = NegentropyItem { time: record.time(), id: *record.id() };
            no_memory = set.push(item).err();
            if no_memory.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if let Some(refusal) = no_memory {
            return Err(refusal.into());
        }
        match progress?.0 {
            _ if set.size() > self.comparison.events_max => Err(self.too_big()),
            SearchProgress::Paused => Ok(ComparisonStep::Collect { answer, search, set }),
            SearchProgress::Done { .. } => {
                self.comparison.cache_set(set.seal());
                Ok(ComparisonStep::FromSet(answer))
            }
            SearchProgress::Exhausted => Err(self.too_big()),
        }
    }

    /// Refuses a comparison over too many events before the events are visited, if the store can
    /// count the events within a time slice.
    fn count(&mut self, budget: u64) -> Result<(), ComparisonRefusal> {
        let Comparison { query, events_max, .. } = &*self.comparison;
        if query.limit <= *events_max {
            return Ok(());
        }
        let query = Query { budget: query.budget.min(budget), ..query.clone() };
        let count = self.cost.count(&**self.relay.shelf.store(), &query)?;
        // The count may include hidden events. The set of the events decides then.
        let hides_nothing = || matches!(HiddenEvents::of(&self.relay.moderation, &query), Ok(None));
        if count.is_some_and(|count| count > *events_max as u64) && hides_nothing() {
            return Err(self.too_big());
        }
        Ok(())
    }

    fn too_big(&self) -> ComparisonRefusal {
        ComparisonRefusal {
            why: NostrVerdict::Blocked.because("this query is too big"),
            events_max: Some(self.comparison.events_max),
        }
    }
}

impl Drop for ComparisonJob {
    fn drop(&mut self) {
        let query = &self.comparison.query;
        let asked = std::iter::once((query, query.limit));
        self.relay.slow.note("NEG", &self.cost.spent(), Some(self.cost.rated.listed()), asked);
    }
}

impl ReaderJob for ComparisonJob {
    fn turn(&mut self, _: u64) -> SliceResult {
        if self.comparison.over.is() || self.comparison.outbox.is_closed_by_client() {
            return SliceResult::Done;
        }
        self.cost.begin();
        self.work().unwrap_or_else(|refusal| {
            self.comparison.refuse(&refusal);
            SliceResult::Done
        })
    }

    fn fail(&mut self) {
        self.comparison.refuse(&bug().into());
    }

    fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.comparison.outbox)
    }

    /// A job that holds a view of the archive does not wait for the client. It sends only one
    /// message.
    fn sends_records(&self) -> bool {
        matches!(self.step, ComparisonStep::Begin { .. } | ComparisonStep::FromSet(_))
    }
}
