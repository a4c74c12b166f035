//! A session: one task for each WebSocket connection. Reading and writing are independent: neither
//! waits for the other, and the task never blocks on an answer.
//!
//! The task stops reading while too much is under way for the client, so that TCP slows the client
//! down. The number of events without an OK, the number of questions without an answer, and the
//! memory of the intake are limited.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::Relay;
use super::auth::ClientIdentity;
use super::intake::ReceivedEvent;
use super::message_head::request_kind;
use super::messages::MessageHandler;
use super::metrics::ConnectionEnd;
use super::outbox::{Outbox, RequestKind};
use super::outboxes::OutboxAccount;
use super::outgoing::{OutgoingItems, SentCounts};
use super::refused::{feed_kick, note_end};
use super::reply_handle::EventPermit;
use crate::budget::BudgetShare;
use crate::rate::RatedConnection;
use crate::stop::StopSignal;
use crate::websocket::{ClientInput, CloseReason, Socket};

/// Number of received messages, and of their bytes, that the task handles before it yields to other
/// tasks of its thread. Bytes are bounded as well, because one filter of thousands of values takes
/// as long as a hundred short messages.
const TURN_MESSAGES: usize = 64;
const TURN_BYTES: usize = 64 << 10;

/// Number of messages sent before the task yields to other tasks of its thread. Otherwise a client
/// that reads a long answer as fast as it is sent would occupy the thread.
const TURN_MESSAGES_OUT: u64 = 256;
/// Number of bytes sent before the task yields to other tasks of its thread. Bytes are bounded as
/// well, because live events are compressed when they are sent.
const TURN_BYTES_OUT: u64 = 256 << 10;
/// The longest pause in reading from a connection that exceeded its rate limit.
const REST_MAX: Duration = Duration::from_secs(1);

/// The shortest time between two pings.
const PING_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Up to this many inbound bytes of a connection are not counted.
const INBOUND_FREE: usize = 1 << 10;

/// Time that a client has to receive the close frame.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// How long, and how many bytes, the server reads from a client after sending it the close frame.
const LINGER_MAX: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 16 << 20;

type PendingEventPermit = Pin<Box<dyn Future<Output = Option<EventPermit>> + Send>>;

struct RelaySession {
    socket: Socket,
    relay: Arc<Relay>,
    outbox: Arc<Outbox>,
    caller: Arc<ClientIdentity>,
    rated: RatedConnection,
    messages: MessageHandler,
    outgoing: OutgoingItems,
    /// Number of unsent bytes of the socket, as last reported to the outbox.
    unsent: usize,
    /// Memory of bytes that were received and not processed yet.
    inbound: BudgetShare,
    /// An EVENT or AUTH that waits for a permit of the intake.
    waiting: Option<(PendingEventPermit, ReceivedEvent)>,
    /// Reading pauses until this timer ends, because the client exceeded its rate limit.
    rest: Option<Pin<Box<Sleep>>>,
    received_at: Instant,
    pinged: bool,
    alarm: Pin<Box<Sleep>>,
    /// Whether reading pauses because too many requests are under way. If a request ends during the
    /// session's own poll, the poll must wake the session itself, because no other thread does.
    held_back: bool,
    /// Whether the server is shutting down. Requests under way are then finished, and new messages
    /// are not accepted.
    leaving: bool,
}

/// Why a session ends.
enum SessionEnd {
    /// The client closed the connection, or the connection broke.
    Gone,
    /// The client broke the protocol; a close frame with the reason is under way.
    Broken,
    /// The server closes the connection.
    Close(CloseReason),
    /// The operator closes the connection.
    Kicked,
}

/// Serves a connection until it ends.
pub(crate) fn run(
    socket: Socket,
    caller: ClientIdentity,
    rated: RatedConnection,
    account: Arc<OutboxAccount>,
    relay: Arc<Relay>,
    stop: StopSignal,
) -> impl Future<Output = ()> {
    let caller = Arc::new(caller);
    let limits = &relay.settings.load_full().limits;
    let address = account.address();
    let inbound = relay.inbound.share(address);
    let outbox = Arc::new(Outbox::new(
        limits,
        socket.framing().clone(),
        account,
        Arc::clone(&relay.metrics),
    ));
    let now = Instant::now();
    let first_alarm = now + Duration::from_secs(limits.ping_after_s);
    // The session is boxed, because a future may reserve memory for several copies of a value that
    // its code moves.
    let session = Box::new(RelaySession {
        socket,
        messages: MessageHandler::new(
            Arc::clone(&relay),
            Arc::clone(&outbox),
            Arc::clone(&caller),
            rated.clone(),
            address,
        ),
        relay,
        outbox,
        caller,
        rated,
        outgoing: OutgoingItems::default(),
        unsent: 0,
        inbound,
        waiting: None,
        rest: None,
        received_at: now,
        pinged: false,
        held_back: false,
        alarm: Box::pin(sleep_until(first_alarm)),
        leaving: false,
    });
    session.serve(stop)
}

impl RelaySession {
    async fn serve(mut self: Box<Self>, mut stop: StopSignal) {
        let end = loop {
            tokio::select! {
                biased;
                () = stop.serving(), if !self.leaving => self.leave(),
                end = poll_fn(|cx| self.poll(cx)) => break end,
            }
        };
        self.finish(end).await;
    }

    fn leave(&mut self) {
        self.leaving = true;
        self.messages.end_all();
    }

    async fn finish(mut self: Box<Self>, end: SessionEnd) {
        self.messages.end_all();
        self.outbox.close();
        let ended = match end {
            SessionEnd::Gone => ConnectionEnd::Gone,
            SessionEnd::Broken => ConnectionEnd::Protocol,
            SessionEnd::Close(CloseReason::Away) => ConnectionEnd::Shutdown,
            SessionEnd::Close(CloseReason::Idle) => ConnectionEnd::Idle,
            SessionEnd::Close(CloseReason::Slow) => ConnectionEnd::Slow,
            SessionEnd::Close(CloseReason::Crowded) => ConnectionEnd::Crowded,
            SessionEnd::Kicked => ConnectionEnd::Kicked,
        };
        note_end(&self.relay.metrics, &self.rated, ended);
        let listed = Arc::clone(self.rated.listed());
        let (mut socket, relay) = self.into_parts();
        let closing = async {
            if !matches!(end, SessionEnd::Gone | SessionEnd::Broken) {
                poll_fn(|cx| socket.poll_ready(cx)).await?;
            }
            match end {
                SessionEnd::Close(reason) => socket.feed_close(reason),
                SessionEnd::Kicked => feed_kick(&mut socket, &listed),
                SessionEnd::Gone | SessionEnd::Broken => {}
            }
            socket.finish().await
        };
        // A client that does not even read the close frame is disconnected.
        let closed: Result<io::Result<()>, _> = tokio::time::timeout(CLOSE_MAX, closing).await;
        // A client that did not end the connection is often still sending. The system would discard
        // the last answers if received bytes stayed unread, so the server reads on for a short time.
        let may_be_sending =
            !matches!(end, SessionEnd::Gone | SessionEnd::Close(CloseReason::Idle));
        if may_be_sending
            && let Ok(Ok(())) = closed
            && let Some(_permit) = relay.connections.acquire_reading_permit()
        {
            let _ = tokio::time::timeout(LINGER_MAX, socket.drain(LINGER_BYTES_MAX)).await;
        }
    }

    /// Returns the socket and the relay, and drops the rest of the session.
    fn into_parts(self: Box<Self>) -> (Socket, Arc<Relay>) {
        let Self { socket, relay, .. } = *self;
        (socket, relay)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        self.outbox.listen(cx.waker());
        let _polled = self.outbox.poll();
        if self.rated.listed().poll_kicked(cx).is_ready() {
            return Poll::Ready(SessionEnd::Kicked);
        }
        if let Poll::Ready(end) = self.poll_alarm(cx) {
            return Poll::Ready(end);
        }
        if let Poll::Ready(end) = self.poll_read(cx) {
            return Poll::Ready(end);
        }
        self.messages.poll_idle(cx);
        self.socket.shrink_buffers();
        self.rated.listed().counts.set_bytes(self.socket.traffic());
        if !self.count_inbound() {
            return Poll::Ready(SessionEnd::Close(CloseReason::Crowded));
        }
        let mut written = self.poll_write(cx);
        while matches!(written, Poll::Ready(Ok(()))) && self.messages.continue_question() {
            written = self.poll_write(cx);
        }
        self.messages.end_poll(written.is_pending());
        if self.held_back && !self.is_busy() {
            cx.waker().wake_by_ref();
        }
        match written {
            Poll::Ready(Err(end)) => return Poll::Ready(end),
            Poll::Ready(Ok(())) if self.leaving && self.is_through() => {
                return Poll::Ready(SessionEnd::Close(CloseReason::Away));
            }
            _ => {}
        }
        Poll::Pending
    }

    /// Whether every request is answered and every answer is sent. A permit is dropped after its
    /// answer is put into the outbox, so the permits are checked before the outbox is read for the
    /// last time.
    fn is_through(&mut self) -> bool {
        self.waiting.is_none()
            && self.outbox.under_way(RequestKind::Event) == 0
            && self.outbox.under_way(RequestKind::Proof) == 0
            && self.outbox.under_way(RequestKind::Search) == 0
            && self.outbox.take(&mut self.outgoing.parts)
            && self.outgoing.parts.is_empty()
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        let mut bytes = 0;
        for _ in 0..TURN_MESSAGES {
            if let Some((entering, _)) = &mut self.waiting {
                let Poll::Ready(permit) = entering.as_mut().poll(cx) else { return Poll::Pending };
                if let (Some(permit), Some((_, brought))) = (permit, self.waiting.take()) {
                    self.relay.intake.push(
                        brought,
                        &self.outbox,
                        &self.caller,
                        &self.rated,
                        permit,
                    );
                }
            }
            if let Some(rest) = self.rest.as_mut().filter(|_| !self.leaving) {
                let Poll::Ready(()) = rest.as_mut().poll(cx) else { return Poll::Pending };
                self.rest = None;
            }
            // During a shutdown, messages are read and dropped, to find the client's close frame.
            self.held_back = !self.leaving && self.is_busy();
            if self.held_back {
                return Poll::Pending;
            }
            match self.socket.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ClientInput::End) => return Poll::Ready(SessionEnd::Gone),
                Poll::Ready(ClientInput::Broken) => return Poll::Ready(SessionEnd::Broken),
                Poll::Ready(received) => {
                    bytes += if let ClientInput::Text(text) = &received { text.len() } else { 0 };
                    self.receive(received);
                }
            }
            if bytes >= TURN_BYTES || self.messages.is_spent() {
                break;
            }
        }
        // There may be more to read: poll again after other tasks.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Counts the bytes received and not processed. Returns false if the bytes exceed the budget.
    fn count_inbound(&mut self) -> bool {
        let waiting = self.waiting.as_ref().map_or(0, |(_, brought)| brought.text.len());
        let bytes = self.socket.unfinished() + waiting;
        // The few unprocessed bytes that most connections have are not counted.
        let bytes = if bytes <= INBOUND_FREE { 0 } else { bytes };
        if bytes == self.inbound.bytes() {
            return true;
        }
        let max = self.relay.settings().limits.inbound_bytes_max;
        self.inbound.resize(bytes, max)
    }

    /// Whether too much is under way to continue reading. An AUTH is answered before the next
    /// message is read, so that the proven key applies to all later messages.
    fn is_busy(&self) -> bool {
        let limits = &self.relay.settings().limits;
        self.outbox.under_way(RequestKind::Proof) > 0
            || self.outbox.under_way(RequestKind::Event) >= limits.events_per_connection_max
            || self.outbox.under_way(RequestKind::Search) >= limits.searches_per_connection_max
    }

    fn receive(&mut self, received: ClientInput) {
        self.received_at = Instant::now();
        self.pinged = false;
        if self.leaving {
            return;
        }
        let wait = match received {
            ClientInput::Text(text) => {
                self.relay.metrics.messages_in.add(1);
                self.relay.metrics.bytes_in.add(text.len() as u64);
                match request_kind(&text) {
                    Some(what) => self.submit_event(what, text),
                    None => self.messages.handle(&text),
                }
            }
            ClientInput::Binary => self.messages.handle_binary(),
            ClientInput::Alive | ClientInput::End | ClientInput::Broken => None,
        };
        self.rest = wait.map(|wait| Box::pin(sleep(wait.min(REST_MAX))));
    }

    /// Hands an EVENT or AUTH to the intake, even one above the rate limit: its OK needs the
    /// event's id, and only the intake parses events.
    fn submit_event(&mut self, what: RequestKind, text: Box<[u8]>) -> Option<Duration> {
        let bytes = text.len();
        let too_fast = self.rated.publishes(bytes).err();
        let (wait, refusal) = too_fast.map(|it| (it.wait, it.into())).unzip();
        let brought = ReceivedEvent { what, text, refusal };
        if let Some(permit) = self.relay.intake.try_enter(bytes) {
            self.relay.intake.push(brought, &self.outbox, &self.caller, &self.rated, permit);
        } else {
            self.waiting = Some((Box::pin(self.relay.intake.enter(bytes)), brought));
        }
        wait
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        while self.alarm.as_mut().poll(cx).is_ready() {
            let limits = &self.relay.settings().limits;
            let ping = Duration::from_secs(limits.ping_after_s);
            let idle_max = Duration::from_secs(limits.idle_timeout_s);
            self.outbox.tend_parked();
            self.messages.enforce_rules();
            let stalled = self.socket.stalled();
            if stalled.is_some_and(|since| since.elapsed() >= idle_max) {
                return Poll::Ready(SessionEnd::Close(CloseReason::Slow));
            }
            let silent = self.received_at.elapsed();
            if silent >= idle_max {
                // A client that reads none of the waiting bytes is closed as too slow, above.
                let is_reading = self.socket.unsent() > 0;
                if !self.held_back && self.waiting.is_none() && !is_reading {
                    return Poll::Ready(SessionEnd::Close(CloseReason::Idle));
                }
                // The client reads, or the server itself does not read, so the silence says nothing.
                self.received_at = Instant::now();
                self.pinged = false;
            }
            let next = if silent < ping {
                self.received_at + ping
            } else {
                if !self.pinged && self.socket.poll_ready(cx).is_ready() {
                    self.socket.feed_ping();
                    self.pinged = true;
                }
                // The answer to the ping begins a new silence, which needs a ping of its own.
                let again = Instant::now() + ping.max(PING_PAUSE_MIN);
                again.min(self.received_at + idle_max)
            };
            self.alarm.as_mut().reset(stalled.map_or(next, |since| next.min(since + idle_max)));
        }
        Poll::Pending
    }

    /// Moves the items of the outbox to the socket: many frames in few writes.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SessionEnd>> {
        let mut sent = SentCounts::default();
        let written = self.write(cx, &mut sent);
        if sent.messages > 0 {
            self.relay.metrics.messages_out.add(sent.messages);
            self.relay.metrics.live_sent.add(sent.live);
            self.relay.metrics.bytes_out.add(sent.text_bytes);
        }
        let unsent = self.socket.unsent();
        if sent.messages > 0 || unsent != self.unsent {
            self.unsent = unsent;
            for job in self.outbox.sent(sent.done, unsent) {
                self.relay.readers.push(job);
            }
        }
        written
    }

    fn write(
        &mut self,
        cx: &mut Context<'_>,
        sent: &mut SentCounts,
    ) -> Poll<Result<(), SessionEnd>> {
        loop {
            if !self.outbox.take(&mut self.outgoing.parts) {
                return Poll::Ready(Err(SessionEnd::Close(CloseReason::Slow)));
            }
            if self.outgoing.parts.is_empty() {
                self.outgoing.parts = VecDeque::new();
                break;
            }
            while !self.outgoing.parts.is_empty() {
                match self.socket.poll_ready(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(SessionEnd::Gone)),
                    Poll::Ready(Ok(())) => {}
                }
                if sent.messages >= TURN_MESSAGES_OUT || sent.text_bytes >= TURN_BYTES_OUT {
                    // There is more to send: poll again after other tasks.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                self.outgoing.feed(&mut self.socket, sent);
            }
        }
        match self.socket.poll_flush(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(_)) => Poll::Ready(Err(SessionEnd::Gone)),
        }
    }
}
