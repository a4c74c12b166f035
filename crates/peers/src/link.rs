//! The state of a connection, which its requests and its two tasks share: the routes of answers,
//! the queue of messages to send, the time limits and the counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hark_codec::crypto::KeyPair;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::address::RelayAddress;
use crate::error::PeerError;
use crate::route::AnswerRoutes;

/// Options of a connection to a relay.
#[derive(Clone)]
pub struct ClientOptions {
    /// How long a request may be unanswered, and how long the connection may be idle.
    pub patience: Duration,
    /// Maximum length of a message, in bytes. A longer event is skipped, and any other longer
    /// message ends the connection.
    pub message_bytes_max: usize,
    /// Maximum number of bytes in answers that are received but not processed yet.
    pub waiting_bytes_max: usize,
    /// The key to prove after a challenge (NIP-42); `None` to ignore challenges.
    pub key: Option<KeyPair>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(30),
            message_bytes_max: 4 << 20,
            waiting_bytes_max: 32 << 20,
            key: None,
        }
    }
}

/// The shared state of a connection.
pub(crate) struct RelayLink {
    pub(crate) address: RelayAddress,
    pub(crate) options: ClientOptions,
    pub(crate) routes: Mutex<AnswerRoutes>,
    /// The messages to send.
    outgoing: mpsc::Sender<Message>,
    /// Notified when the relay has sent a challenge.
    pub(crate) challenged: Notify,
    next_number: AtomicU64,
    /// Number of times that the key was proved. `proving` is locked during a proof.
    pub(crate) proofs: AtomicU64,
    pub(crate) proving: tokio::sync::Mutex<()>,
    /// Time at which the reading task last waited, in ms since `started`. It waits while answers
    /// that are not processed yet use all permitted bytes.
    held_up_ms: AtomicU64,
    started: Instant,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// Why the connection ended.
    ended: watch::Sender<Option<String>>,
}

impl RelayLink {
    pub(crate) fn new(
        address: RelayAddress,
        options: ClientOptions,
        outgoing: mpsc::Sender<Message>,
    ) -> Self {
        Self {
            address,
            options,
            routes: Mutex::default(),
            outgoing,
            challenged: Notify::new(),
            next_number: AtomicU64::new(1),
            proofs: AtomicU64::new(0),
            proving: tokio::sync::Mutex::default(),
            held_up_ms: AtomicU64::new(0),
            started: Instant::now(),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            ended: watch::Sender::default(),
        }
    }

    /// Returns a new number for the id of a request.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The bytes of all messages sent and received so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.sent_bytes.load(Ordering::Relaxed), self.received_bytes.load(Ordering::Relaxed))
    }

    /// Counts the bytes of a received message.
    pub(crate) fn count_received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Queues a message. Waits while the queue is full.
    pub(crate) async fn send(&self, text: String) -> Result<(), PeerError> {
        self.sent_bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
        match timeout(self.options.patience, self.outgoing.send(Message::text(text))).await {
            Ok(Ok(())) if self.ended.borrow().is_none() => Ok(()),
            Ok(_) => Err(self.ended_error()),
            Err(_) => Err(self.silence_error("(it accepts no more data)")),
        }
    }

    /// Queues a message without blocking the caller.
    pub(crate) fn send_later(&self, text: String) {
        self.sent_bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
        let sent = self.outgoing.try_send(Message::text(text));
        if let Err(mpsc::error::TrySendError::Full(message)) = sent
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let outgoing = self.outgoing.clone();
            // Sending fails only if the connection has ended. Then all requests have ended, too.
            runtime.spawn(async move { outgoing.send(message).await.is_ok() });
        }
    }

    /// Queues a ping, unless the queue is full.
    pub(crate) fn ping(&self) {
        let _ = self.outgoing.try_send(Message::Ping(Vec::new().into()));
    }

    /// Awaits an answer within the time limit, which is suspended while the reading task is
    /// blocked.
    pub(crate) async fn within<T>(
        &self,
        what: &'static str,
        mut answer: impl AsyncFnMut() -> Option<T>,
    ) -> Result<T, PeerError> {
        let patience = self.options.patience;
        loop {
            match timeout(patience, answer()).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => return Err(self.ended_error()),
                Err(_) => {
                    if self.started.elapsed().saturating_sub(self.held_up()) > patience {
                        return Err(self.silence_error(what));
                    }
                }
            }
        }
    }

    /// How long the relay may leave a request unanswered.
    pub(crate) fn patience(&self) -> Duration {
        self.options.patience
    }

    /// Whether the reading task was blocked since `began`, because too many answers wait to be
    /// processed.
    pub(crate) fn was_held_up_since(&self, began: Instant) -> bool {
        let at = self.held_up();
        at > Duration::ZERO && self.started + at >= began
    }

    /// The time since `started` at which the reading task was last blocked.
    fn held_up(&self) -> Duration {
        Duration::from_millis(self.held_up_ms.load(Ordering::Relaxed))
    }

    /// Notes that the reading task is blocked.
    pub(crate) fn note_held_up(&self) {
        self.held_up_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// The error of a request that the relay has not answered in time.
    pub(crate) fn silence_error(&self, what: &'static str) -> PeerError {
        let said = self.last_notice();
        PeerError::Silent { what, within_s: self.options.patience.as_secs(), said }
    }

    /// Returns the relay's last notice, as text to append to an error.
    fn last_notice(&self) -> String {
        let notice = self.routes.lock().notices.back().cloned();
        notice.map(|notice| format!("; its last notice: {notice}")).unwrap_or_default()
    }

    /// The error of a request whose connection has ended.
    pub(crate) fn ended_error(&self) -> PeerError {
        let why = self.ended.borrow().clone();
        PeerError::Ended(why.unwrap_or_else(|| "closed".into()) + &self.last_notice())
    }

    /// Waits until the connection has ended.
    pub(crate) async fn wait_for_end(&self) {
        // Waiting fails only if the sender is dropped, but this value owns the sender.
        let _ = self.ended.subscribe().wait_for(Option::is_some).await;
    }

    /// Ends the connection, unless it has ended before.
    pub(crate) fn end(&self, why: String) {
        self.ended.send_modify(|ended| {
            ended.get_or_insert(why);
        });
        let mut routes = self.routes.lock();
        // Dropping the senders ends all waiting requests.
        routes.subscriptions.clear();
        routes.comparisons.clear();
        routes.published.clear();
    }
}
