//! Comparisons of sets of events (NIP-77): a client finds out which events only the client has, and
//! which only the relay has. The messages contain little more than the ids of these events.
//!
//! A comparison covers the events that a REQ with the same filter would have found when the
//! comparison was opened. Their times and ids are collected once, into a set that lives until the
//! comparison ends. So all answers are consistent, and no fingerprint includes an event that the
//! client may not see. Between two messages, a comparison holds only its set. The reader threads
//! process sets and messages in time slices, as they do for all questions.
//!
//! A comparison holds no set if its filter has only `since` and `until` and selects many events,
//! and if the store keeps sums ([`hark_archive::store::ranges`]). Each message is then answered
//! from the events stored at that time. Events that the client may not see stay hidden here as
//! well: the sums do not include private events, and each answer subtracts banned events
//! (`hidden_items`).

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::Duration;

use hark_archive::Query;
use hark_networks::nostr::{NostrRefusal, NostrVerdict};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

use super::Relay;
use super::outbox::{EndFlag, Outbox, RequestKind};
use crate::budget::BudgetShare;
use crate::limits::Limits;
use crate::rate::RatedConnection;
use job::ComparisonJob;
use set::SetMemory;
use state::Comparison;
pub(super) use state::ReceivedComparison;

mod hidden_items;
mod job;
mod set;
mod state;
mod store_ranges;

/// Maximum interval between two checks of whether the rates allow a deferred message.
const PUT_OFF_MAX: Duration = Duration::from_secs(1);

/// The comparisons of one session.
pub(super) struct Comparisons {
    relay: Arc<Relay>,
    outbox: Arc<Outbox>,
    rated: RatedConnection,
    open: HashMap<Box<str>, Arc<Comparison>>,
    /// Total size of the sets of all open comparisons, in bytes.
    bytes: Arc<AtomicUsize>,
    /// Messages that came faster than the rates allow. They are answered later, because a refusal
    /// would end their comparisons.
    put_off: VecDeque<(Arc<Comparison>, ReceivedComparison)>,
    /// The time of the next check of the deferred messages.
    put_off_until: Option<Pin<Box<Sleep>>>,
    /// The timer for the next check of idle comparisons.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Comparisons {
    pub(super) fn new(relay: &Arc<Relay>, outbox: &Arc<Outbox>, rated: RatedConnection) -> Self {
        Self {
            relay: Arc::clone(relay),
            outbox: Arc::clone(outbox),
            rated,
            open: HashMap::new(),
            bytes: Arc::default(),
            put_off: VecDeque::new(),
            put_off_until: None,
            alarm: None,
        }
    }

    /// Opens a comparison over the events that match `query`, and queues its first message for an
    /// answer. `question` is the memory reserved for the NEG-OPEN. `of` is the memory share for the
    /// set; it is still empty, and grows with the set.
    pub(super) fn open(
        &mut self,
        id: &str,
        mut query: Query,
        received: ReceivedComparison,
        (question, of): (BudgetShare, BudgetShare),
    ) -> Result<(), NostrRefusal> {
        let settings = self.relay.settings();
        let limits = &settings.limits;
        self.open.retain(|_, comparison| !comparison.over.is());
        let bound = limits.negentropy_per_connection_max;
        if self.open.len() >= bound {
            return Err(
                NostrVerdict::Blocked.because(format!("more than {bound} comparisons; close some"))
            );
        }
        let (events_max, is_whole) = (limits.negentropy_events_max, query.limit == usize::MAX);
        query.limit = query.limit.min(events_max.saturating_add(1));
        let comparison = Arc::new(Comparison {
            id: id.into(),
            query,
            is_whole,
            events_max,
            hidings: self.relay.moderation.hidings(),
            over: EndFlag::default(),
            outbox: Arc::clone(&self.outbox),
            metrics: Arc::clone(&self.relay.metrics),
            state: Mutex::default(),
            _memory: question,
        });
        self.relay.metrics.comparisons_open.add(1);
        self.open.insert(id.into(), Arc::clone(&comparison));
        let memory = SetMemory::new(of, Arc::clone(&self.bytes), limits);
        self.work(comparison, received, Some(memory));
        Ok(())
    }

    /// Returns the reason why an open comparison must end. `refusal_of` returns this reason for the
    /// comparison's query.
    pub(super) fn refusal_by(
        &self,
        id: &str,
        refusal_of: impl FnOnce(&Query) -> Option<NostrRefusal>,
    ) -> Option<NostrRefusal> {
        let comparison = self.open.get(id).filter(|comparison| !comparison.over.is())?;
        refusal_of(&comparison.query)
    }

    /// Queues the next message of a comparison for an answer. The message is deferred if `wait` is
    /// given, or if other messages are deferred already.
    pub(super) fn continue_comparison(
        &mut self,
        id: &str,
        received: ReceivedComparison,
        wait: Option<Duration>,
    ) -> Result<(), NostrRefusal> {
        let comparison = self.open.get(id).filter(|comparison| !comparison.over.is());
        let Some(comparison) = comparison else {
            return Err(NostrVerdict::Closed.because("no comparison of this id is open"));
        };
        if comparison.state.lock().answered_at.take().is_none() {
            return Err(NostrVerdict::Invalid
                .because("the previous message of this comparison has no answer yet"));
        }
        let comparison = Arc::clone(comparison);
        if wait.is_none() && self.put_off.is_empty() {
            self.work(comparison, received, None);
            return Ok(());
        }
        self.put_off.push_back((comparison, received));
        let wait = wait.unwrap_or_default().min(PUT_OFF_MAX);
        self.put_off_until.get_or_insert_with(|| Box::pin(sleep(wait)));
        Ok(())
    }

    /// Queues the deferred messages that the rates allow by now.
    fn poll_deferred(&mut self, cx: &mut Context<'_>) {
        self.put_off.retain(|(comparison, _)| !comparison.over.is());
        while !self.put_off.is_empty()
            && let Some(until) = &mut self.put_off_until
        {
            if until.as_mut().poll(cx).is_pending() {
                return;
            }
            if let Err(wait) = self.rated.charge_deferred() {
                until.as_mut().reset(tokio::time::Instant::now() + wait.min(PUT_OFF_MAX));
            } else if let Some((comparison, received)) = self.put_off.pop_front() {
                self.work(comparison, received, None);
            }
        }
        self.put_off_until = None;
    }

    fn work(
        &self,
        comparison: Arc<Comparison>,
        received: ReceivedComparison,
        memory: Option<SetMemory>,
    ) {
        let (relay, rated) = (Arc::clone(&self.relay), self.rated.clone());
        let permit = self.outbox.permit(RequestKind::Search);
        let job = ComparisonJob::new(relay, comparison, received, memory, rated, permit);
        self.relay.readers.push(Box::new(job));
    }

    /// Ends a comparison, if it is open.
    pub(super) fn end(&mut self, id: &str) {
        if let Some(comparison) = self.open.remove(id) {
            comparison.end();
        }
    }

    /// Ends all comparisons.
    pub(super) fn end_all(&mut self) {
        for (_, comparison) in self.open.drain() {
            comparison.end();
        }
        self.put_off.clear();
        self.alarm = None;
    }

    /// Queues the deferred messages that are due, and ends each comparison that its client has not
    /// continued in time. The task is woken for the next check.
    pub(super) fn poll_idle(&mut self, cx: &mut Context<'_>) {
        self.poll_deferred(cx);
        if self.open.is_empty() {
            self.alarm = None;
            return;
        }
        let idle_max = idle_max(&self.relay.settings().limits);
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(idle_max)));
        while let Poll::Ready(()) = alarm.as_mut().poll(cx) {
            let mut next = idle_max;
            self.open.retain(|_, comparison| {
                let answered_at = comparison.state.lock().answered_at;
                let left = answered_at.map_or(idle_max, |at| idle_max.saturating_sub(at.elapsed()));
                if left.is_zero() {
                    let late = NostrVerdict::Closed.because("you took too long to respond");
                    comparison.refuse(&late.into());
                }
                next = next.min(left.max(Duration::from_millis(1)));
                !comparison.over.is()
            });
            alarm.as_mut().reset(tokio::time::Instant::now() + next);
        }
    }
}

fn idle_max(limits: &Limits) -> Duration {
    Duration::from_secs(limits.negentropy_idle_s)
}
