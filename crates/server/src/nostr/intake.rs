//! The intake of events: dedicated threads parse, look up, hash and verify events, then hand them
//! to the writer. OK is sent when the event is durable, or when it is certain that the event will
//! not be stored. AUTH events take the same path up to the signature check, and then prove a key.
//!
//! The bytes of events without an OK are bounded: a session needs an [`EventPermit`] for each
//! event, and reads nothing while it waits for a permit. So a busy archive slows publishers down,
//! and no backlog builds up.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use hark_archive::writer::ExpectedWrites;
use hark_archive::{Record, vital};
use hark_codec::crypto::{SignatureVerifier, UnverifiedSignature};
use hark_codec::nostr::{
    ClientMessage, Event, EventArena, EventEncoder, MessageBuffers, RefusalSubject,
};
use hark_networks::nostr::NostrRefusal;
use hark_networks::nostr::admit::{self, PrivateLabels};
use hark_networks::nostr::requests::is_heard;
use hark_plugin::{PluginJob, PluginOutcome};
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::auth::ClientIdentity;
use super::checked_event::{CheckedEvent, EventPurpose};
use super::event_checks::{IntakeContext, PolicyVerdict, check, wrong_id};
use super::metrics::Verb;
use super::outbox::{self, Outbox, RequestKind};
use super::plugin::{self, PluginVerdict};
use super::reply_handle::{EventPermit, ReplyHandle};
use crate::rate::RatedConnection;

/// Maximum number of events that a thread takes from the queue at a time.
const BATCH: usize = 64;
/// Number of events that are parsed and looked up before sessions are woken, so that a client gets
/// several answers in one write. A session with waiting answers sends nothing else until it is
/// woken.
const ANSWERED_AT_ONCE: usize = 16;
/// Size of the parts of a message outside its event, in bytes: `["EVENT",` and `]`.
const FRAME_BYTES: usize = 10;
/// Number of parsed keys that a verifier caches.
const KEYS_CACHED: usize = 4096;

/// The queue of the verifying threads.
pub(crate) struct Intake {
    room: Arc<Semaphore>,
    queue: Mutex<EventQueue>,
    /// Notified of each arrival. A notification costs no system call while no thread waits.
    work: Condvar,
    threads: usize,
}

#[derive(Default)]
struct EventQueue {
    arrivals: VecDeque<QueuedEvent>,
    /// Events that come back from the plugin.
    judged: VecDeque<JudgedEvent>,
    closed: bool,
}

/// An EVENT or AUTH message, as received.
pub(crate) struct ReceivedEvent {
    pub(crate) what: RequestKind,
    pub(crate) text: Box<[u8]>,
    /// Present if the message is refused regardless of its content.
    pub(crate) refusal: Option<NostrRefusal>,
}

/// An EVENT or AUTH message in the queue.
struct QueuedEvent {
    text: Box<[u8]>,
    refusal: Option<NostrRefusal>,
    from: ReplyHandle,
}

/// An event that passed every check, with the plugin's outcome.
struct JudgedEvent {
    event: CheckedEvent,
    outcome: PluginOutcome,
}

impl Intake {
    /// Starts the threads; they end after [`Intake::close`], once the queue is empty. Must be
    /// called on the runtime of the sessions.
    pub(crate) fn start(
        threads: usize,
        parts: IntakeContext,
    ) -> std::io::Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let threads = threads.max(1);
        let intake = Arc::new(Self {
            room: Arc::new(Semaphore::new(parts.settings.load().limits.intake_bytes_max)),
            queue: Mutex::default(),
            work: Condvar::new(),
            threads,
        });
        let parts = Arc::new(parts);
        let runtime = Handle::current();
        let spawn = |n| {
            let (intake, parts) = (Arc::clone(&intake), Arc::clone(&parts));
            let (name, runtime) = (format!("hark-verify-{n}"), runtime.clone());
            vital::spawn(&name, move || {
                let _sessions = runtime.enter();
                VerifyWorker::new(&parts).run(&intake);
            })
        };
        let handles = (0..threads).map(spawn).collect::<Result<_, _>>()?;
        Ok((intake, handles))
    }

    /// Returns a permit for `bytes` if this number of bytes is free now.
    pub(crate) fn try_enter(&self, bytes: usize) -> Option<EventPermit> {
        Arc::clone(&self.room).try_acquire_many_owned(bytes as u32).ok()
    }

    /// Waits for a permit for `bytes`. Returns `None` if the intake is closed.
    pub(crate) fn enter(
        &self,
        bytes: usize,
    ) -> impl Future<Output = Option<EventPermit>> + Send + 'static {
        let room = Arc::clone(&self.room);
        async move { room.acquire_many_owned(bytes as u32).await.ok() }
    }

    /// Queues an EVENT or AUTH message.
    pub(crate) fn push(
        &self,
        brought: ReceivedEvent,
        outbox: &Arc<Outbox>,
        caller: &Arc<ClientIdentity>,
        rated: &RatedConnection,
        permit: EventPermit,
    ) {
        let verb = if brought.what == RequestKind::Proof { Verb::Auth } else { Verb::Event };
        let permits = (outbox.permit(brought.what), permit);
        let from = ReplyHandle::new(verb, permits, Arc::clone(caller), rated.clone());
        let mut queue = self.queue.lock();
        if queue.closed {
            return;
        }
        let ReceivedEvent { text, refusal, .. } = brought;
        queue.arrivals.push_back(QueuedEvent { text, refusal, from });
        drop(queue);
        self.work.notify_one();
    }

    /// Stops accepting messages. The threads end once the queue is empty.
    pub(crate) fn close(&self) {
        self.room.close();
        self.queue.lock().closed = true;
        self.work.notify_all();
    }

    /// Queues an event that comes back from the plugin.
    fn push_judged(&self, event: JudgedEvent) {
        let mut queue = self.queue.lock();
        if !queue.closed {
            queue.judged.push_back(event);
            drop(queue);
            self.work.notify_one();
        }
    }

    /// Waits while the queue is empty, then takes this thread's share of the queue. Returns false
    /// once the queue is closed and empty.
    fn pop_batch(&self, batch: &mut Vec<QueuedEvent>, judged: &mut Vec<JudgedEvent>) -> bool {
        let mut queue = self.queue.lock();
        while queue.arrivals.is_empty() && queue.judged.is_empty() {
            if queue.closed {
                return false;
            }
            self.work.wait(&mut queue);
        }
        let share = |waiting: usize| waiting.div_ceil(self.threads).min(BATCH);
        let (new, old) = (share(queue.arrivals.len()), share(queue.judged.len()));
        batch.extend(queue.arrivals.drain(..new));
        judged.extend(queue.judged.drain(..old));
        if !queue.arrivals.is_empty() || !queue.judged.is_empty() {
            drop(queue);
            self.work.notify_one();
        }
        true
    }
}

struct VerifyWorker<'a> {
    parts: &'a IntakeContext,
    inbox: MessageBuffers,
    /// Memory for parsing an event inside another event, such as a reposted event.
    arena: EventArena,
    encoder: EventEncoder,
    verifier: SignatureVerifier,
}

impl<'a> VerifyWorker<'a> {
    fn new(parts: &'a IntakeContext) -> Self {
        Self {
            parts,
            inbox: MessageBuffers::new(1),
            arena: EventArena::new(),
            encoder: EventEncoder::default(),
            verifier: SignatureVerifier::new(KEYS_CACHED),
        }
    }

    fn run(&mut self, intake: &Arc<Intake>) {
        let (mut batch, mut judged) = (Vec::new(), Vec::new());
        while intake.pop_batch(&mut batch, &mut judged) {
            let now_s = self.parts.shelf.clock().now_s();
            let mut expected = self.parts.shelf.writer().expect(batch.len() + judged.len());
            // A panic is a bug in the server. The events of the batch then get no OK, but the
            // thread survives for other clients.
            let work = AssertUnwindSafe(|| {
                outbox::together(|| {
                    for event in judged.drain(..) {
                        self.land_judged(event);
                    }
                });
                let mut staged = Vec::with_capacity(batch.len());
                while !batch.is_empty() {
                    let some = batch.len().min(ANSWERED_AT_ONCE);
                    let some = batch.drain(..some);
                    outbox::together(|| {
                        staged.extend(some.filter_map(|arrival| self.stage(arrival, now_s)));
                    });
                }
                self.verify(staged, &mut expected, intake);
            });
            if catch_unwind(work).is_err() {
                batch.clear();
                judged.clear();
                *self = Self::new(self.parts);
            }
        }
    }

    /// Makes all checks except the signature check. If a check fails or the event is known, answers
    /// the message and returns `None`.
    fn stage(&mut self, arrival: QueuedEvent, now_s: u64) -> Option<CheckedEvent> {
        let QueuedEvent { text, refusal, from } = arrival;
        let event = match (ClientMessage::parse(&text, &mut self.inbox), refusal) {
            (Ok(ClientMessage::Event(event) | ClientMessage::Auth(event)), Some(refusal)) => {
                from.refuse(event.id(), &refusal);
                return None;
            }
            (Ok(ClientMessage::Event(event)), None) => event,
            (Ok(ClientMessage::Auth(event)), None) => {
                return stage_proof(self.parts, &event, from, now_s);
            }
            (Ok(_), _) => return None,
            (Err(error), refusal) => {
                let refusal = refusal.unwrap_or_else(|| (&error.reason).into());
                match error.about {
                    RefusalSubject::Event(id) => from.refuse(&id, &refusal),
                    _ => from.notice(&refusal),
                }
                return None;
            }
        };
        let bytes = text.len().saturating_sub(FRAME_BYTES);
        let verdict = check(self.parts, &event, bytes, now_s, &from, &mut self.arena);
        let unwelcome = match verdict {
            PolicyVerdict::Pass => None,
            PolicyVerdict::PassMembership(request) => {
                let purpose = EventPurpose::ChangeMembership(request);
                return Some(CheckedEvent::new(&event, purpose, from));
            }
            PolicyVerdict::PassRequest(refusal) => Some(refusal),
            PolicyVerdict::Known => {
                from.refuse(event.id(), &admit::duplicate());
                return None;
            }
            PolicyVerdict::Refuse(refusal) => {
                from.refuse(event.id(), &refusal);
                return None;
            }
        };
        let mut record = Vec::with_capacity(text.len() + 128);
        let identity = self.parts.identity.current();
        let private = PrivateLabels::of(&event, &identity.own_urls);
        self.encoder.encode(&event, private.labels(), &mut record);
        let purpose = match unwelcome {
            Some(refusal) => EventPurpose::KeepRequest(record, refusal),
            None if admit::is_ephemeral(&event) => EventPurpose::PassOn(record),
            None => EventPurpose::Keep(record),
        };
        let is_own_request = identity.own_urls.are_named_by_deletion(&event);
        Some(CheckedEvent { is_own_request, ..CheckedEvent::new(&event, purpose, from) })
    }

    fn verify(
        &mut self,
        staged: Vec<CheckedEvent>,
        expected: &mut ExpectedWrites,
        intake: &Arc<Intake>,
    ) {
        let mut left = staged.len();
        expected.left(left);
        let started = Instant::now();
        let signed: Vec<UnverifiedSignature<'_>> = staged
            .iter()
            .map(|event| UnverifiedSignature {
                id: &event.id,
                key: &event.key,
                signature: &event.signature,
            })
            .collect();
        let mut results = Vec::with_capacity(signed.len());
        self.verifier.verify_many(&signed, &mut results);
        drop(signed);
        if !staged.is_empty() {
            self.parts.metrics.verify.note(started.elapsed());
            self.parts.metrics.verified.add(staged.len() as u64);
        }
        for (event, result) in staged.into_iter().zip(results) {
            left -= 1;
            expected.left(left);
            let (id, from) = (&event.id, &event.from);
            if let Err(error) = result {
                from.refuse(id, &error.into());
                continue;
            }
            if !matches!(event.purpose, EventPurpose::Prove)
                && let Err(too_fast) = from.rated.publishes_of(&event.key, event.kind)
            {
                from.refuse(id, &too_fast.into());
                continue;
            }
            match self.question(&event) {
                Some(question) => self.consult(event, question, intake),
                None => event.land(self.parts),
            }
        }
    }

    /// Returns the line that asks the plugin about an event. `None` if there is no plugin, or if
    /// the plugin does not decide about the event. The plugin decides neither about an AUTH, nor
    /// about a request, such as a deletion, of an author who may not publish.
    fn question(&self, event: &CheckedEvent) -> Option<Vec<u8>> {
        if !self.parts.plugin.options().is_on() {
            return None;
        }
        let (EventPurpose::Keep(record) | EventPurpose::PassOn(record)) = &event.purpose else {
            return None;
        };
        let (record, now_s) = (Record::new(record).ok()?, self.parts.shelf.clock().now_s());
        Some(plugin::question(record.wire(), &event.key, now_s, &event.from))
    }

    /// Hands an event to the plugin. The event comes back to the queue.
    fn consult(&self, event: CheckedEvent, question: Vec<u8>, intake: &Arc<Intake>) {
        let (id, client) = (event.id, plugin::client(&event.from.rated));
        let intake = Arc::clone(intake);
        let answer = move |outcome| intake.push_judged(JudgedEvent { event, outcome });
        self.parts.plugin.push(PluginJob { id, question, client, answer: Box::new(answer) });
    }

    /// Returns the reason to refuse an event that bans or the policy forbid since the event was
    /// checked, as the plugin may take seconds. Requests about their author's own data pass.
    fn refusal_since(&mut self, event: &CheckedEvent) -> Option<NostrRefusal> {
        let (EventPurpose::Keep(record) | EventPurpose::PassOn(record)) = &event.purpose else {
            return None;
        };
        let record = Record::new(record).ok().filter(|_| !event.is_own_request)?;
        let parsed = Event::parse(record.wire(), &mut self.arena).ok()?;
        let policy = self.parts.policy.load();
        let refusal = self.parts.moderation.event_refusal(&policy, &parsed);
        refusal.or_else(|| self.parts.trust.late_refusal(&policy, &parsed))
    }

    /// Carries out the plugin's decision about an event.
    fn land_judged(&mut self, judged: JudgedEvent) {
        let JudgedEvent { event, outcome } = judged;
        let verdict = plugin::verdict(outcome, self.parts.plugin.options().on_failure);
        if matches!(verdict, PluginVerdict::Pass) {
            return match self.refusal_since(&event) {
                Some(refusal) => {
                    event.from.rated.refund(&event.key, event.kind);
                    event.from.refuse(&event.id, &refusal);
                }
                None => event.land(self.parts),
            };
        }
        let heard = match &event.purpose {
            EventPurpose::Keep(record) if event.is_own_request => {
                is_heard(&**self.parts.shelf.store(), record)
            }
            _ => Ok(false),
        };
        if matches!((&heard, &verdict), (Ok(true), _) | (_, PluginVerdict::Pass)) {
            return event.land(self.parts);
        }
        let (id, from) = (&event.id, &event.from);
        // The event is not stored. Otherwise anybody could use up an author's rate with events of
        // the author that the plugin refuses.
        from.rated.refund(&event.key, event.kind);
        match (heard, verdict) {
            (Ok(true), _) | (_, PluginVerdict::Pass) => {}
            (Err(error), _) => from.refuse(id, &error.into()),
            (Ok(false), PluginVerdict::Refuse(refusal)) => from.refuse(id, &refusal),
            (Ok(false), PluginVerdict::Feign(msg)) => from.feign(id, &msg),
        }
    }
}

/// Makes all checks of an AUTH except the signature check. Answers an AUTH that fails a check.
fn stage_proof(
    parts: &IntakeContext,
    event: &Event<'_>,
    from: ReplyHandle,
    now_s: u64,
) -> Option<CheckedEvent> {
    let settings = parts.settings.load();
    let refusal = from.caller.refusal(event, &settings.limits, now_s);
    if let Some(refusal) = refusal.or_else(|| wrong_id(event)) {
        from.refuse(event.id(), &refusal);
        return None;
    }
    Some(CheckedEvent::new(event, EventPurpose::Prove, from))
}
