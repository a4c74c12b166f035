//! A connection to a relay, with its requests. The connection has a reading task and a writing
//! task. Each request waits for its answer up to a time limit.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hark_codec::crypto::KeyPair;
use hark_codec::nostr::EventDraft;
use hark_codec::record::Id;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::address::RelayAddress;
use crate::connection::{self, RelaySocket, shortened};
use crate::error::PeerError;
use crate::message::{self, RelaySays};
use crate::request::{Comparing, RelaySubscription};
use crate::route::{AnswerRoutes, BytesPermit, PublishAnswer};

/// Approximate memory of a message besides its bytes, in bytes.
const MESSAGE_OVERHEAD: usize = 256;
/// Maximum number of messages that wait to be sent.
const OUTGOING_MAX: usize = 64;
/// Interval at which the reading task notes that it is blocked.
const HELD_UP_EVERY: Duration = Duration::from_secs(1);
/// Kind of the answer to a challenge (NIP-42).
const AUTH_KIND: u16 = 22_242;
/// How long to wait for a challenge after the connection is made, for relays that challenge every
/// client.
const CHALLENGE_WAIT: Duration = Duration::from_millis(500);

/// Options of a connection to a relay.
#[derive(Clone)]
pub struct ClientOptions {
    /// How long the relay may leave a request unanswered, and the connection idle.
    pub patience: Duration,
    /// Maximum length of a message, in bytes. A longer event is skipped, and any other longer
    /// message ends the connection.
    pub message_bytes_max: usize,
    /// Maximum number of bytes in answers that are received but not processed yet.
    pub waiting_bytes_max: usize,
    /// The key for answers to challenges (NIP-42); `None` to ignore challenges.
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

/// A connection to a relay. Dropping this value ends the connection.
pub struct PeerClient {
    shared: Arc<ClientShared>,
    outgoing: mpsc::Sender<Message>,
    tasks: [JoinHandle<()>; 2],
}

pub(crate) struct ClientShared {
    address: RelayAddress,
    options: ClientOptions,
    pub(crate) routes: Mutex<AnswerRoutes>,
    challenged: Notify,
    numbers: AtomicU64,
    /// How many times the key was proved. `proving` is locked during a proof.
    proofs: AtomicU64,
    proving: tokio::sync::Mutex<()>,
    /// When the reading task last had to wait for permits, in ms since `started`.
    held_up_ms: AtomicU64,
    started: Instant,
    pub(crate) sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// Why the connection ended.
    ended: watch::Sender<Option<String>>,
}

impl PeerClient {
    /// Connects to a relay, and authenticates if there is a key and the relay sends a challenge.
    pub async fn connect(
        address: &RelayAddress,
        options: ClientOptions,
    ) -> Result<Self, PeerError> {
        let socket =
            connection::connect(address, options.message_bytes_max, options.patience).await?;
        let (sink, stream) = socket.split();
        let (outgoing, queue) = mpsc::channel(OUTGOING_MAX);
        let has_key = options.key.is_some();
        let shared = Arc::new(ClientShared {
            address: address.clone(),
            options,
            routes: Mutex::default(),
            challenged: Notify::new(),
            numbers: AtomicU64::new(1),
            proofs: AtomicU64::new(0),
            proving: tokio::sync::Mutex::default(),
            held_up_ms: AtomicU64::new(0),
            started: Instant::now(),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            ended: watch::Sender::default(),
        });
        let reading = tokio::spawn({
            let (shared, outgoing) = (Arc::clone(&shared), outgoing.clone());
            async move {
                let why = shared.read(stream, &outgoing).await;
                shared.end(why);
            }
        });
        let writing = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                if let Err(why) = shared.write(sink, queue).await {
                    shared.end(why);
                }
            }
        });
        let client = Self { shared, outgoing, tasks: [reading, writing] };
        if has_key {
            let challenged = client.shared.challenged.notified();
            // Most relays send a challenge only after a request that requires authentication.
            let _ = timeout(CHALLENGE_WAIT, challenged).await;
            if client.shared.routes.lock().challenge.is_some() {
                client.authenticate(0).await?;
            }
        }
        Ok(client)
    }

    /// The relay's address.
    pub fn address(&self) -> &RelayAddress {
        &self.shared.address
    }

    /// The bytes of all messages sent and received so far.
    pub fn traffic(&self) -> (u64, u64) {
        let Self { shared, .. } = self;
        (shared.sent_bytes.load(Ordering::Relaxed), shared.received_bytes.load(Ordering::Relaxed))
    }

    /// Begins a subscription. `filter` is a filter's JSON.
    pub(crate) async fn subscribe(&self, filter: &str) -> Result<RelaySubscription, PeerError> {
        let id = format!("h{}", self.shared.numbers.fetch_add(1, Ordering::Relaxed));
        let (to, answers) = mpsc::unbounded_channel();
        self.shared.routes.lock().subscriptions.insert(id.clone(), to);
        let request = format!("[\"REQ\",\"{id}\",{filter}]");
        let (shared, outgoing) = (Arc::clone(&self.shared), self.outgoing.clone());
        let subscription = RelaySubscription {
            id,
            answers,
            shared,
            outgoing,
            is_open: true,
            waited: Duration::ZERO,
        };
        self.send(request).await?;
        Ok(subscription)
    }

    /// Begins a comparison (NIP-77) with its first message.
    pub(crate) async fn compare(&self, filter: &str, hex: &str) -> Result<Comparing, PeerError> {
        let id = format!("n{}", self.shared.numbers.fetch_add(1, Ordering::Relaxed));
        let (to, answers) = mpsc::unbounded_channel();
        self.shared.routes.lock().comparisons.insert(id.clone(), to);
        let request = format!("[\"NEG-OPEN\",\"{id}\",{filter},\"{hex}\"]");
        let (shared, outgoing) = (Arc::clone(&self.shared), self.outgoing.clone());
        let comparing = Comparing { id, answers, shared, outgoing, asked: Instant::now() };
        self.send(request).await?;
        Ok(comparing)
    }

    /// Sends an event as JSON. The receiver gets the relay's answer.
    pub(crate) async fn publish(
        &self,
        id: Id,
        json: &str,
    ) -> Result<oneshot::Receiver<PublishAnswer>, PeerError> {
        self.answered("EVENT", id, json).await
    }

    async fn answered(
        &self,
        verb: &str,
        id: Id,
        json: &str,
    ) -> Result<oneshot::Receiver<PublishAnswer>, PeerError> {
        let (to, answer) = oneshot::channel();
        let is_first = {
            let mut routes = self.shared.routes.lock();
            let waiting = routes.published.entry(id).or_default();
            waiting.push(to);
            waiting.len() == 1
        };
        // One answer is passed to all callers that sent the same event meanwhile.
        if is_first {
            self.send(format!("[\"{verb}\",{json}]")).await?;
        }
        Ok(answer)
    }

    /// Waits for the answer to an event.
    pub(crate) async fn answer(
        &self,
        id: &Id,
        mut answer: oneshot::Receiver<PublishAnswer>,
    ) -> Result<PublishAnswer, PeerError> {
        let answered = self.shared.within("an event", async || (&mut answer).await.ok()).await;
        if answered.is_err() {
            answer.close();
            let mut routes = self.shared.routes.lock();
            if let Entry::Occupied(mut waiting) = routes.published.entry(*id) {
                waiting.get_mut().retain(|to| !to.is_closed());
                if waiting.get().is_empty() {
                    waiting.remove();
                }
            }
        }
        answered
    }

    /// How long the relay may leave a request unanswered.
    pub(crate) fn patience(&self) -> Duration {
        self.shared.patience()
    }

    /// How many times the key was proved to the relay.
    pub(crate) fn proofs(&self) -> u64 {
        self.shared.proofs.load(Ordering::Acquire)
    }

    /// Proves the key to the relay, once per connection. `proofs` is the value of [`Self::proofs`]
    /// when the refused request was sent. Does nothing if another request has proved the key since
    /// then. Fails if there is no key or no challenge, or if the relay does not accept the proof.
    pub(crate) async fn authenticate(&self, proofs: u64) -> Result<(), PeerError> {
        let refused = |reason: &str| PeerError::Refused { what: "AUTH", reason: reason.into() };
        let _turn = self.shared.proving.lock().await;
        if self.proofs() > proofs {
            return Ok(());
        }
        if self.proofs() > 0 {
            return Err(refused("it wants another key than the one that was given"));
        }
        let Some(key) = &self.shared.options.key else {
            return Err(refused(
                "it serves only those who authenticate; give a key with --key-file",
            ));
        };
        let challenge = self.shared.routes.lock().challenge.clone();
        let challenge = challenge.ok_or_else(|| refused("it has sent no challenge"))?;
        let mut json = Vec::new();
        let tags: [&[&str]; 2] =
            [&["relay", self.shared.address.as_str()], &["challenge", &challenge]];
        let draft = EventDraft { created_at: now_s(), kind: AUTH_KIND, tags: &tags, content: "" };
        let id = draft.sign(key, &mut json);
        let receiver = self.answered("AUTH", id, &String::from_utf8_lossy(&json)).await?;
        match self.answer(&id, receiver).await? {
            (true, _) => {
                self.shared.proofs.fetch_add(1, Ordering::Release);
                Ok(())
            }
            (false, reason) => Err(refused(&reason)),
        }
    }

    /// Proves the key after a refusal, like [`Self::authenticate`]. `restricted:` is also sent to
    /// authenticated clients. If no proof is possible, the error then has the relay's own reason.
    pub(crate) async fn authenticate_for(
        &self,
        proofs: u64,
        reason: &str,
    ) -> Result<(), PeerError> {
        let is_stranger = self.proofs() == 0 && self.shared.options.key.is_some();
        let has_challenge = self.shared.routes.lock().challenge.is_some();
        if reason.starts_with("restricted") && !(is_stranger && has_challenge) {
            return Err(PeerError::Refused { what: "a question", reason: reason.into() });
        }
        self.authenticate(proofs).await
    }

    /// Waits until the connection has ended, and returns why.
    pub(crate) async fn closed(&self) -> PeerError {
        let mut ended = self.shared.ended.subscribe();
        // Waiting fails only if the sender is dropped, but this client owns the sender.
        let _ = ended.wait_for(Option::is_some).await;
        self.shared.ended_error()
    }

    async fn send(&self, text: String) -> Result<(), PeerError> {
        send(&self.shared, &self.outgoing, text).await
    }
}

impl Drop for PeerClient {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

pub(crate) async fn send(
    shared: &ClientShared,
    outgoing: &mpsc::Sender<Message>,
    text: String,
) -> Result<(), PeerError> {
    shared.sent_bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
    match timeout(shared.options.patience, outgoing.send(Message::text(text))).await {
        Ok(Ok(())) if shared.ended.borrow().is_none() => Ok(()),
        Ok(_) => Err(shared.ended_error()),
        Err(_) => Err(shared.silent("(it takes nothing more)")),
    }
}

impl ClientShared {
    /// Awaits an answer. The time limit is suspended while the reading task is blocked.
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
                    let held_up = Duration::from_millis(self.held_up_ms.load(Ordering::Relaxed));
                    if self.started.elapsed().saturating_sub(held_up) > patience {
                        return Err(self.silent(what));
                    }
                }
            }
        }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.options.patience
    }

    /// Whether the reading task was blocked since `began`, because too many answers wait to be
    /// processed.
    pub(crate) fn was_held_up_since(&self, began: Instant) -> bool {
        let at = Duration::from_millis(self.held_up_ms.load(Ordering::Relaxed));
        at > Duration::ZERO && self.started + at >= began
    }

    pub(crate) fn silent(&self, what: &'static str) -> PeerError {
        let said = self.last_notice();
        PeerError::Silent { what, within_s: self.options.patience.as_secs(), said }
    }

    /// The relay's last notice, as an addition to an error.
    fn last_notice(&self) -> String {
        let notice = self.routes.lock().notices.back().cloned();
        notice.map(|notice| format!("; its last notice: {notice}")).unwrap_or_default()
    }

    pub(crate) fn ended_error(&self) -> PeerError {
        let why = self.ended.borrow().clone();
        PeerError::Ended(why.unwrap_or_else(|| "closed".into()) + &self.last_notice())
    }

    fn end(&self, why: String) {
        self.ended.send_modify(|ended| {
            ended.get_or_insert(why);
        });
        let mut routes = self.routes.lock();
        // Dropping the senders tells all waiting requests that no answer will come.
        routes.subscriptions.clear();
        routes.comparisons.clear();
        routes.published.clear();
    }

    /// Reads until the connection ends, and returns the reason.
    async fn read(
        &self,
        mut stream: SplitStream<RelaySocket>,
        outgoing: &mpsc::Sender<Message>,
    ) -> String {
        let budget = Arc::new(Semaphore::new(self.options.waiting_bytes_max));
        let mut asked_for_life = false;
        loop {
            let message = match timeout(self.options.patience, stream.next()).await {
                Err(_) if asked_for_life => return "it does not answer pings".into(),
                Err(_) => {
                    asked_for_life = true;
                    let _ = outgoing.try_send(Message::Ping(Vec::new().into()));
                    continue;
                }
                Ok(None) => return "the relay closed it".into(),
                Ok(Some(Err(error))) => return connection::words(&error),
                Ok(Some(Ok(message))) => message,
            };
            asked_for_life = false;
            match message {
                Message::Text(text) => {
                    if let Err(why) = self.take(&text, &budget).await {
                        return why;
                    }
                }
                Message::Close(Some(frame)) if !frame.reason.is_empty() => {
                    return format!("the relay closed it: {}", shortened(&frame.reason));
                }
                Message::Close(_) => return "the relay closed it".into(),
                Message::Binary(_) => return "it sent a binary message".into(),
                _ => {}
            }
        }
    }

    async fn take(&self, text: &Utf8Bytes, budget: &Arc<Semaphore>) -> Result<(), String> {
        self.received_bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
        let says = message::read(text)?;
        if let RelaySays::TooLong { subscription: None, bytes } = says {
            let max = self.options.message_bytes_max;
            return Err(format!("it sent a message of {bytes} bytes, and {max} are read at most"));
        }
        let bytes = (text.len() + MESSAGE_OVERHEAD).min(self.options.waiting_bytes_max) as u32;
        let permit = self.permit(bytes, budget).await?;
        let challenges = matches!(says, RelaySays::Auth(_));
        self.routes.lock().pass(says, text, permit);
        if challenges {
            self.challenged.notify_one();
        }
        Ok(())
    }

    /// Waits for a permit for `bytes` bytes, and notes that the reading task is blocked meanwhile.
    async fn permit(&self, bytes: u32, budget: &Arc<Semaphore>) -> Result<BytesPermit, String> {
        if let Ok(permit) = Arc::clone(budget).try_acquire_many_owned(bytes) {
            return Ok(permit);
        }
        let mut waiting = std::pin::pin!(Arc::clone(budget).acquire_many_owned(bytes));
        loop {
            let now_ms = self.started.elapsed().as_millis() as u64;
            self.held_up_ms.store(now_ms, Ordering::Relaxed);
            if let Ok(permit) = timeout(HELD_UP_EVERY, &mut waiting).await {
                return permit.map_err(|error| error.to_string());
            }
        }
    }

    /// Writes the queued messages and, along with them, the answers to pings.
    async fn write(
        &self,
        mut sink: SplitSink<RelaySocket, Message>,
        mut queue: mpsc::Receiver<Message>,
    ) -> Result<(), String> {
        let patience = self.options.patience;
        let late = |_| format!("the relay took nothing for {} s", patience.as_secs());
        let mut ended = self.ended.subscribe();
        loop {
            let message = tokio::select! {
                message = queue.recv() => message,
                _ = ended.wait_for(Option::is_some) => None,
            };
            let Some(message) = message else { return Ok(()) };
            let mut next = Some(message);
            while let Some(message) = next {
                let fed = timeout(patience, sink.feed(message)).await.map_err(late)?;
                fed.map_err(|error| connection::words(&error))?;
                next = queue.try_recv().ok();
            }
            let flushed = timeout(patience, sink.flush()).await.map_err(late)?;
            flushed.map_err(|error| connection::words(&error))?;
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
