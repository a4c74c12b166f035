//! Turns the messages of a client into requests. Nothing here waits: other threads process events
//! and questions, and refusals are sent at once. If the message has an id, a refusal is an OK or
//! CLOSED for that id.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use hark_archive::Query;
use hark_codec::hex;
use hark_codec::nostr::{ClientMessage, Filter, MessageBuffers, RefusalSubject, reply};
use hark_codec::record::Id;
use hark_networks::nostr::{NostrRefusal, NostrVerdict, query};

use super::Relay;
use super::audience::{AudienceEntry, RuledSession as _};
use super::auth::ClientIdentity;
use super::comparison::{Comparisons, ReceivedComparison};
use super::cost::QuestionCost;
use super::count::CountJob;
use super::hll::HyperLogLog;
use super::invite_answer::answer_with_invite;
use super::message_head::{FilterBounds, head_of_long_question, question_bytes_max};
use super::metrics::Verb;
use super::outbox::{Outbox, RequestKind};
use super::page::StoredAnswer;
use super::question_memory::memory_bytes;
use super::readers::ReaderJob;
use super::reading::SessionReader;
use super::refused::note_refusal;
use super::subscription::SessionSubscription;
use crate::address::ClientAddress;
use crate::budget::BudgetShare;
use crate::rate::{RateExceeded, RatedConnection};

thread_local! {
    /// Buffers for the current message. One set per thread is enough, as nothing here waits.
    static INBOX: RefCell<Option<(FilterBounds, MessageBuffers)>> = const { RefCell::new(None) };
}

/// Number of nanoseconds that a session's thread spends on questions before it serves other
/// sessions.
const OWN_MAX_NS: u64 = 1_000_000;

/// A COUNT with more values than this starts on the reader threads, because the archive looks up
/// all values in one time slice.
const COUNTED_VALUES_MAX: usize = 256;

/// Number of bytes of a malformed message for which one visited row is charged.
const UNREAD_BYTES: u64 = 4;

/// Minimum number of bytes of an answer to a comparison for which memory is reserved.
const SHORT_ANSWER: usize = 16 << 10;

/// The message handler of one session, with its subscriptions.
pub(crate) struct MessageHandler {
    relay: Arc<Relay>,
    outbox: Arc<Outbox>,
    caller: Arc<ClientIdentity>,
    rated: RatedConnection,
    /// The address that the memory of this session's questions is charged to.
    address: Option<ClientAddress>,
    /// The open subscriptions.
    reader: AudienceEntry<SessionReader>,
    comparisons: Comparisons,
    own: OwnQuestions,
}

/// The questions that a session's thread answers while it polls the session.
#[derive(Default)]
struct OwnQuestions {
    /// The questions that are not answered yet, in the order of arrival.
    unfinished: Vec<Box<dyn ReaderJob>>,
    /// Number of nanoseconds spent on these questions in this poll.
    spent_ns: u64,
}

impl Drop for MessageHandler {
    fn drop(&mut self) {
        self.end_all();
    }
}

impl MessageHandler {
    /// Creates the handler, and sends the client its challenge.
    pub(crate) fn new(
        relay: Arc<Relay>,
        outbox: Arc<Outbox>,
        caller: Arc<ClientIdentity>,
        rated: RatedConnection,
        address: Option<ClientAddress>,
    ) -> Self {
        outbox.push_message(|out| reply::write_auth(out, caller.challenge()));
        let comparisons = Comparisons::new(&relay, &outbox, rated.clone());
        Self {
            reader: SessionReader::enter(&relay, &caller, &outbox),
            relay,
            outbox,
            caller,
            rated,
            address,
            comparisons,
            own: OwnQuestions::default(),
        }
    }

    /// Ends every subscription and comparison.
    pub(crate) fn end_all(&mut self) {
        let subs = std::mem::take(&mut *self.reader.subs.lock());
        for sub in subs {
            sub.end(&self.relay.readers);
        }
        self.comparisons.end_all();
    }

    /// Begins a question on this thread, or hands it to the readers.
    fn ask(&mut self, question: Box<dyn ReaderJob>) {
        let (unfinished, took) = self.relay.readers.begin(question);
        self.own.unfinished.extend(unfinished);
        self.own.spent_ns += took.as_nanos() as u64;
    }

    /// Whether this poll has used up its time for questions.
    pub(crate) fn is_spent(&self) -> bool {
        self.own.spent_ns >= OWN_MAX_NS
    }

    /// Continues a question that this thread has begun, once the client has received all earlier
    /// messages. Returns false if no question is left, or if this poll has used up its time for
    /// questions.
    pub(crate) fn continue_question(&mut self) -> bool {
        if self.is_spent() || self.own.unfinished.is_empty() {
            return false;
        }
        let question = self.own.unfinished.remove(0);
        self.ask(question);
        true
    }

    /// Ends a poll. The readers continue the unfinished questions. If the client first has to
    /// receive earlier messages, the questions wait here instead.
    pub(crate) fn end_poll(&mut self, is_client_behind: bool) {
        self.own.spent_ns = 0;
        if !is_client_behind {
            self.own.unfinished.drain(..).for_each(|question| self.relay.readers.push(question));
        }
    }

    /// Ends the subscriptions that the rules in force forbid. Called from time to time, because a
    /// permission in the archive may have expired.
    pub(crate) fn enforce_rules(&self) {
        self.reader.enforce();
    }

    /// Runs the timers of the comparisons: see `Comparisons::poll_idle`.
    pub(crate) fn poll_idle(&mut self, cx: &mut Context<'_>) {
        self.comparisons.poll_idle(cx);
    }

    /// Handles a message that is not for the intake. A message above the rate limit is refused;
    /// then the result is the time that the client should wait.
    pub(crate) fn handle(&mut self, text: &[u8]) -> Option<Duration> {
        let settings = self.relay.settings();
        let bounds = FilterBounds::of(&settings.limits);
        let bytes_max = question_bytes_max(&settings.limits);
        INBOX.with_borrow_mut(|inbox| {
            if inbox.as_ref().is_none_or(|(used, _)| *used != bounds) {
                *inbox = None;
            }
            let (_, inbox) = inbox.get_or_insert_with(|| (bounds, bounds.buffers()));
            let head = head_of_long_question(text, bytes_max);
            let message = ClientMessage::parse(head.unwrap_or(text), inbox);
            // A CLOSE saves work, so it has no rate limit.
            let free =
                matches!(message, Ok(ClientMessage::Close { .. } | ClientMessage::NegClose { .. }));
            // The work of a comparison is charged in rows, not by the length of its messages.
            let compares = matches!(message, Ok(ClientMessage::NegMsg { .. }));
            let bytes = if compares { 0 } else { text.len() };
            let too_fast = if free { None } else { self.rated.speaks(bytes).err() };
            match (message, too_fast) {
                (Ok(message), too_fast) => self.answer(&message, text.len(), too_fast),
                (Err(error), None) => {
                    self.rated.visited(head.unwrap_or(text).len() as u64 / UNREAD_BYTES);
                    let refusal = if head.is_some() {
                        let words = format!("a question has at most {bytes_max} bytes; split it");
                        NostrVerdict::Blocked.because(words)
                    } else {
                        (&error.reason).into()
                    };
                    self.refuse(&error.about, &refusal);
                    None
                }
                (Err(error), Some(too_fast)) => {
                    let wait = too_fast.wait;
                    self.refuse(&error.about, &too_fast.into());
                    Some(wait)
                }
            }
        })
    }

    /// Refuses a binary message. Returns the time that the client should wait if the message
    /// exceeded a rate.
    pub(crate) fn handle_binary(&self) -> Option<Duration> {
        let too_fast = self.rated.speaks(0).err();
        let (wait, refusal) = too_fast.map(|it| (it.wait, it.into())).unzip();
        let is_binary = || NostrVerdict::Invalid.because("messages are text, not binary");
        self.notice(&refusal.unwrap_or_else(is_binary));
        wait
    }

    fn answer(
        &mut self,
        message: &ClientMessage<'_>,
        bytes: usize,
        mut too_fast: Option<RateExceeded>,
    ) -> Option<Duration> {
        let asks = matches!(
            message,
            ClientMessage::Req { .. }
                | ClientMessage::Count { .. }
                | ClientMessage::NegOpen { .. }
                | ClientMessage::NegMsg { .. }
        );
        if asks && !matches!(message, ClientMessage::NegMsg { .. }) {
            self.rated.listed().counts.questions.add(1);
        }
        if too_fast.is_none() && asks {
            too_fast = self.rated.charge_question(&self.caller.gate().readers).err();
        }
        let (wait, too_fast) = too_fast.map(|it| (it.wait, it.into())).unzip();
        match message {
            ClientMessage::Req { sub, filters } => {
                let done = too_fast.map_or_else(|| self.req(sub, filters, bytes), Err);
                if let Err(refusal) = done {
                    self.end(sub);
                    self.closed(Verb::Req, sub, &refusal);
                }
            }
            ClientMessage::Count { sub, filters } => {
                let done = too_fast.map_or_else(|| self.count(sub, filters, bytes), Err);
                if let Err(refusal) = done {
                    self.closed(Verb::Count, sub, &refusal);
                }
            }
            ClientMessage::Close { sub } => {
                self.end(sub);
                self.relay.metrics.done(Verb::Close);
            }
            // The session hands these messages to the intake. `request_kind` misses a message only
            // if its type is written with escapes, which no client does.
            ClientMessage::Event(event) | ClientMessage::Auth(event) => {
                let escaped = NostrVerdict::Invalid.because("message type is written with escapes");
                self.refuse_event(event.id(), &escaped);
            }
            ClientMessage::NegOpen { sub, filter, message } => {
                // An open comparison with this id ends, even if the new comparison is refused.
                self.comparisons.end(sub);
                let open = || self.compare(sub, filter, message, bytes);
                if let Err(refusal) = too_fast.map_or_else(open, Err) {
                    self.neg_err(sub, &refusal);
                }
            }
            ClientMessage::NegMsg { sub, message } => {
                match self.continue_comparison(sub, message, wait) {
                    // The message is accepted, and its answer follows later.
                    Ok(()) => return None,
                    Err(refusal) => self.neg_err(sub, &too_fast.unwrap_or(refusal)),
                }
            }
            ClientMessage::NegClose { sub } => {
                self.comparisons.end(sub);
                self.relay.metrics.done(Verb::Neg);
            }
        }
        wait
    }

    fn refuse(&mut self, about: &RefusalSubject<'_>, refusal: &NostrRefusal) {
        match about {
            RefusalSubject::Nothing => self.notice(refusal),
            RefusalSubject::Event(id) => self.refuse_event(id, refusal),
            RefusalSubject::Sub(sub) => {
                self.end(sub);
                self.closed(Verb::Req, sub, refusal);
            }
            RefusalSubject::Neg(sub) => self.neg_err(sub, refusal),
        }
    }

    fn req(&mut self, id: &str, filters: &[Filter], bytes: usize) -> Result<(), NostrRefusal> {
        let queries = self.queries(id, filters)?;
        let invite = self.reader.invite_request(filters)?;
        self.end(id);
        let settings = self.relay.settings();
        let limits = &settings.limits;
        let mut subs = self.reader.subs.lock();
        subs.retain(|sub| !sub.is_over());
        let bound = limits.subscriptions_max;
        if subs.len() >= bound {
            return Err(NostrVerdict::Blocked
                .because(format!("more than {bound} subscriptions; close some")));
        }
        let bound = limits.subscription_bytes_max;
        if subs.iter().map(|sub| sub.bytes()).sum::<usize>() + bytes > bound {
            return Err(NostrVerdict::Blocked
                .because(format!("subscriptions of more than {bound} bytes; close some")));
        }
        let memory = self.memory(bytes, filters)?;
        let (outbox, rated) = (&self.outbox, self.rated.clone());
        let memory = (bytes, memory);
        let sub =
            SessionSubscription::start(id, memory, outbox, &self.relay, rated, queries.clone());
        subs.push(Arc::clone(&sub));
        drop(subs);
        // The rules may have changed since the call of `queries`.
        if let Some(refusal) = self.reader.refusal_of_open(&queries) {
            return Err(refusal);
        }
        let permit = self.outbox.permit(RequestKind::Search);
        let rooms = filters.iter().map(|filter| query::room(filter, &limits.filters));
        let cost = QuestionCost::new(&self.relay, self.rated.clone());
        let answer = StoredAnswer::new(Arc::clone(&self.relay), sub, queries, rooms, cost, permit);
        match invite {
            Some(request) => answer_with_invite(&self.relay, request, answer, self.rated.clone()),
            None => self.ask(Box::new(answer)),
        }
        Ok(())
    }

    fn count(&mut self, id: &str, filters: &[Filter], bytes: usize) -> Result<(), NostrRefusal> {
        let queries = self.queries(id, filters)?;
        let memory = self.memory(bytes, filters)?;
        let permit = self.outbox.permit(RequestKind::Search);
        let (relay, outbox) = (Arc::clone(&self.relay), Arc::clone(&self.outbox));
        let cost = QuestionCost::new(&relay, self.rated.clone());
        let held = (permit, memory);
        let is_wide = queries.first().is_some_and(|first| first.values() > COUNTED_VALUES_MAX);
        let counting =
            CountJob::new(relay, outbox, id, queries, HyperLogLog::of(filters), cost, held);
        if is_wide {
            self.relay.readers.push(Box::new(counting));
        } else {
            self.ask(Box::new(counting));
        }
        Ok(())
    }

    fn compare(
        &mut self,
        id: &str,
        filter: &Filter,
        message: &str,
        bytes: usize,
    ) -> Result<(), NostrRefusal> {
        if self.relay.settings().limits.negentropy_per_connection_max == 0 {
            return Err(NostrVerdict::Unsupported.because("NIP-77 is not offered"));
        }
        let queries = self.queries(id, std::slice::from_ref(filter))?;
        let Some(query) = queries.into_iter().next() else { return Ok(()) };
        // The bounds of pages do not apply, as no event is sent.
        let limit = filter.limit().map_or(usize::MAX, |limit| limit as usize);
        let received = self.received(message)?;
        let question =
            self.memory(bytes.saturating_sub(message.len()), std::slice::from_ref(filter))?;
        let set = self.relay.comparisons.share(self.address);
        let query = Query { limit, ranked: false, ..query };
        self.comparisons.open(id, query, received, (question, set))
    }

    fn continue_comparison(
        &mut self,
        id: &str,
        message: &str,
        wait: Option<Duration>,
    ) -> Result<(), NostrRefusal> {
        let received = self.received(message)?;
        let refusal_of = |query: &Query| self.reader.refusal_of_open(std::slice::from_ref(query));
        if let Some(refusal) = self.comparisons.refusal_by(id, refusal_of) {
            return Err(refusal);
        }
        self.comparisons.continue_comparison(id, received, wait)
    }

    /// Decodes a comparison's message, and reserves memory for the message and its answer. If
    /// memory is scarce, the answer is short, and the rest follows in a later answer.
    fn received(&self, hex_text: &str) -> Result<ReceivedComparison, NostrRefusal> {
        let limit = self.relay.settings().limits.negentropy_message_bytes_max;
        let lengths = [1, 8, 64].map(|part| (limit / part).max(SHORT_ANSWER.min(limit)));
        let reserve = |answer_bytes_max: usize| {
            let memory = self.reserve((hex_text.len() / 2).saturating_add(answer_bytes_max))?;
            Ok::<_, NostrRefusal>((memory, answer_bytes_max))
        };
        let (memory, answer_bytes_max) = reserve(lengths[0])
            .or_else(|_| reserve(lengths[1]))
            .or_else(|_| reserve(lengths[2]))?;
        let mut message = Vec::with_capacity(hex_text.len() / 2);
        if hex::decode_into(hex_text.as_bytes(), &mut message) {
            return Ok(ReceivedComparison { message, memory, answer_bytes_max });
        }
        Err(NostrVerdict::Invalid.because("comparison message is not lowercase hex"))
    }

    /// Reserves memory for a question of the given bytes and filters, or refuses the question.
    fn memory(&self, bytes: usize, filters: &[Filter]) -> Result<BudgetShare, NostrRefusal> {
        self.reserve(memory_bytes(bytes, filters, &self.relay.policy.load().questions))
    }

    /// Reserves bytes of the memory for questions, or refuses the question.
    fn reserve(&self, bytes: usize) -> Result<BudgetShare, NostrRefusal> {
        let mut memory = self.relay.questions.share(self.address);
        let max = self.relay.settings().limits.questions_bytes_max;
        if memory.resize(bytes, max) {
            return Ok(memory);
        }
        let words =
            "open questions take all the memory there is for them; close some, or try again later";
        Err(NostrVerdict::RateLimited.because(words))
    }

    fn queries(&self, id: &str, filters: &[Filter]) -> Result<Vec<Query>, NostrRefusal> {
        let settings = self.relay.settings();
        let limits = &settings.limits;
        // The values were parsed and sorted, even if the question is refused. This work is charged
        // as one row per value.
        self.rated.visited(filters.iter().map(query::values).sum::<usize>() as u64);
        let bound = limits.subscription_id_chars_max;
        if id.chars().count() > bound {
            let words = format!("subscription id is longer than {bound} characters");
            return Err(NostrVerdict::Invalid.because(words));
        }
        let bound = limits.filters.filter_values_max;
        if filters.iter().any(|filter| query::values(filter) > bound) {
            let words = format!("a filter has more than {bound} values; split it");
            return Err(NostrVerdict::Blocked.because(words));
        }
        let bound = query::AND_VALUES_MAX;
        if filters.iter().any(|filter| query::and_values(filter) > bound) {
            let words = format!("a filter has more than {bound} values of `&` tags");
            return Err(NostrVerdict::Blocked.because(words));
        }
        let now_s = self.relay.shelf.clock().now_s();
        let texts = self.relay.texts.as_ref();
        let mut queries = query::within(filters, &limits.filters, now_s, texts)?;
        self.reader.restrict(&mut queries)?;
        for query in &mut queries {
            query.hidden = Some(self.relay.hidden.clone());
        }
        Ok(queries)
    }

    fn end(&mut self, id: &str) {
        if let Some(sub) = self.reader.remove(id) {
            sub.end(&self.relay.readers);
        }
    }

    fn note_refusal(&self, verb: Verb, refusal: &NostrRefusal) {
        note_refusal(&self.relay.metrics, &self.rated, verb, refusal);
    }

    fn refuse_event(&self, id: &Id, refusal: &NostrRefusal) {
        self.note_refusal(Verb::Event, refusal);
        self.outbox.push_message(|out| refusal.write_ok(out, id));
    }

    fn closed(&self, verb: Verb, sub: &str, refusal: &NostrRefusal) {
        self.reader.challenge_again(refusal);
        self.note_refusal(verb, refusal);
        self.outbox.push_message(|out| refusal.write_closed(out, sub));
    }

    fn notice(&self, refusal: &NostrRefusal) {
        self.note_refusal(Verb::Unknown, refusal);
        self.outbox.push_message(|out| refusal.write_notice(out));
    }

    /// Refuses a message of a comparison, which ends the comparison.
    fn neg_err(&mut self, sub: &str, refusal: &NostrRefusal) {
        self.comparisons.end(sub);
        self.reader.challenge_again(refusal);
        self.note_refusal(Verb::Neg, refusal);
        self.outbox.push_message(|out| refusal.write_neg_err(out, sub, None));
    }
}
