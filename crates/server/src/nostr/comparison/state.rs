//! An open comparison, and the messages that arrive for the comparison.

use std::sync::Arc;
use std::time::Instant;

use hark_archive::Query;
use hark_codec::nostr::reply;
use hark_networks::nostr::NostrRefusal;
use parking_lot::Mutex;

use super::hidden_items::HiddenItems;
use super::set::ComparedSet;
use crate::budget::BudgetShare;
use crate::nostr::metrics::{RelayMetrics, Verb};
use crate::nostr::outbox::{EndFlag, Outbox};
use crate::nostr::outbox_item::OutboxItem;
use crate::websocket::FramedMessages;

/// Why a comparison ends. `events_max` is present if the comparison has more events than this
/// maximum.
pub(super) struct ComparisonRefusal {
    pub(super) why: NostrRefusal,
    pub(super) events_max: Option<usize>,
}

impl<T: Into<NostrRefusal>> From<T> for ComparisonRefusal {
    fn from(why: T) -> Self {
        Self { why: why.into(), events_max: None }
    }
}

/// An open comparison.
pub(super) struct Comparison {
    pub(super) id: Box<str>,
    /// The limit of this query is the client's limit, but at most `events_max` + 1.
    pub(super) query: Query,
    /// Whether the client asks for all events, without a limit.
    pub(super) is_whole: bool,
    /// Maximum number of events of the comparison.
    pub(super) events_max: usize,
    /// The value of [`Moderation::hidings`](crate::moderation::Moderation::hidings) when the
    /// comparison was opened.
    pub(super) hidings: u64,
    pub(super) over: EndFlag,
    pub(super) outbox: Arc<Outbox>,
    pub(super) metrics: Arc<RelayMetrics>,
    pub(super) state: Mutex<ComparisonState>,
    pub(super) _memory: BudgetShare,
}

/// A comparison that is answered from the store's sums over ranges.
#[derive(Clone)]
pub(super) struct SummedComparison {
    pub(super) query: Arc<Query>,
    /// The hidden events that the sums include; `None` if there are none.
    pub(super) hidden: Option<Arc<HiddenItems>>,
}

#[derive(Default)]
pub(super) struct ComparisonState {
    /// The set. `None` before the first answer, and after the end.
    pub(super) set: Option<Arc<ComparedSet>>,
    /// The source of the answers, if there is no set.
    pub(super) by_ranges: Option<SummedComparison>,
    /// The time of the last answer. `None` while the next answer is in progress.
    pub(super) answered_at: Option<Instant>,
    pub(super) has_ended: bool,
}

impl Comparison {
    /// Stores the set for later messages, unless the comparison has ended meanwhile.
    pub(super) fn cache_set(&self, set: ComparedSet) {
        let mut state = self.state.lock();
        if !state.has_ended {
            state.set = Some(Arc::new(set));
        }
    }

    /// Ends the comparison: nothing more is sent for it, and its set is dropped.
    pub(super) fn end(&self) {
        self.outbox.end(&self.over);
        let mut state = self.state.lock();
        let (set, summed) = (state.set.take(), state.by_ranges.take());
        if !std::mem::replace(&mut state.has_ended, true) {
            self.metrics.comparisons_open.sub(1);
        }
        drop(state);
        drop((set, summed));
    }

    /// Ends the comparison with a NEG-ERR that gives the reason.
    pub(super) fn refuse(&self, refusal: &ComparisonRefusal) {
        let ComparisonRefusal { why, events_max } = refusal;
        let mut out = Vec::new();
        why.write_neg_err(&mut out, &self.id, events_max.map(|events_max| events_max as u64));
        if self.outbox.put_for(&self.over, OutboxItem::One(out)) {
            self.metrics.refused(Verb::Neg, why.verdict);
        }
        self.end();
    }

    /// Sends an answer. From now on, the time until the client's next message counts as idle.
    pub(super) fn answer(&self, message: &[u8]) {
        let mut out = Vec::new();
        reply::write_neg_msg(&mut out, &self.id, message);
        // The time is set first, because the client's next message may arrive before this function
        // returns.
        self.state.lock().answered_at = Some(Instant::now());
        self.metrics.done(Verb::Neg);
        let mut page = FramedMessages::default();
        page.add(self.outbox.framing(), &[&out]);
        self.outbox.put_for(&self.over, OutboxItem::Page(page));
    }
}

/// A message of a comparison, with the memory reserved for the message and its answer.
pub(crate) struct ReceivedComparison {
    pub(crate) message: Vec<u8>,
    pub(crate) memory: BudgetShare,
    /// Maximum number of bytes of the answer, for which memory is reserved.
    pub(crate) answer_bytes_max: usize,
}
