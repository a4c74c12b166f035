//! A connection to a relay, with its requests. The connection has a reading task and a writing
//! task. Each request waits for its answer up to a time limit.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use hark_codec::nostr::EventDraft;
use hark_codec::record::Id;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::address::RelayAddress;
use crate::clock::now_s;
use crate::connection;
use crate::error::PeerError;
use crate::link::{ClientOptions, RelayLink};
use crate::request::{RelayComparison, RelaySubscription};
use crate::route::PublishAnswer;
use crate::tasks;

/// Maximum number of messages that wait to be sent.
const OUTGOING_MAX: usize = 64;
/// Kind of an event that proves a key after a challenge (NIP-42).
const AUTH_KIND: u16 = 22_242;
/// How long to wait for a challenge after connecting. Some relays send a challenge to every client
/// immediately.
const CHALLENGE_WAIT: Duration = Duration::from_millis(500);

/// A connection to a relay. Dropping this value ends the connection.
pub struct PeerClient {
    link: Arc<RelayLink>,
    tasks: [JoinHandle<()>; 2],
}

impl PeerClient {
    /// Connects to a relay, and authenticates if there is a key and the relay sends a challenge
    /// immediately.
    pub async fn connect(
        address: &RelayAddress,
        options: ClientOptions,
    ) -> Result<Self, PeerError> {
        let socket =
            connection::connect(address, options.message_bytes_max, options.patience).await?;
        let (sink, stream) = socket.split();
        let (outgoing, queue) = mpsc::channel(OUTGOING_MAX);
        let has_key = options.key.is_some();
        let link = Arc::new(RelayLink::new(address.clone(), options, outgoing));
        let reading = tokio::spawn({
            let link = Arc::clone(&link);
            async move {
                let why = tasks::read(&link, stream).await;
                link.end(why);
            }
        });
        let writing = tokio::spawn({
            let link = Arc::clone(&link);
            async move {
                if let Err(why) = tasks::write(&link, sink, queue).await {
                    link.end(why);
                }
            }
        });
        let client = Self { link, tasks: [reading, writing] };
        if has_key {
            let challenged = client.link.challenged.notified();
            // Most relays send a challenge only after a request that requires authentication.
            let _ = timeout(CHALLENGE_WAIT, challenged).await;
            if client.link.routes.lock().challenge.is_some() {
                client.authenticate(0).await?;
            }
        }
        Ok(client)
    }

    /// The relay's address.
    pub fn address(&self) -> &RelayAddress {
        &self.link.address
    }

    /// The bytes of all messages sent and received so far.
    pub fn traffic(&self) -> (u64, u64) {
        self.link.traffic()
    }

    /// Begins a subscription. `filter` is a filter's JSON.
    pub(crate) async fn subscribe(&self, filter: &str) -> Result<RelaySubscription, PeerError> {
        RelaySubscription::open(&self.link, filter).await
    }

    /// Begins a comparison (NIP-77) with its first message.
    pub(crate) async fn compare(
        &self,
        filter: &str,
        hex: &str,
    ) -> Result<RelayComparison, PeerError> {
        RelayComparison::open(&self.link, filter, hex).await
    }

    /// Sends an event as JSON. The returned receiver gets the relay's answer.
    pub(crate) async fn publish(
        &self,
        id: Id,
        json: &str,
    ) -> Result<oneshot::Receiver<PublishAnswer>, PeerError> {
        self.send_event("EVENT", id, json).await
    }

    /// Sends a signed event in a message that begins with `verb`. The returned receiver gets the
    /// relay's answer.
    async fn send_event(
        &self,
        verb: &str,
        id: Id,
        json: &str,
    ) -> Result<oneshot::Receiver<PublishAnswer>, PeerError> {
        let (to, answer) = oneshot::channel();
        let is_first = {
            let mut routes = self.link.routes.lock();
            let waiting = routes.published.entry(id).or_default();
            waiting.push(to);
            waiting.len() == 1
        };
        // If several callers send the same event at the same time, it is sent once, and all callers
        // get the same answer.
        if is_first {
            self.link.send(format!("[\"{verb}\",{json}]")).await?;
        }
        Ok(answer)
    }

    /// Waits for the answer to an event.
    pub(crate) async fn answer(
        &self,
        id: &Id,
        mut answer: oneshot::Receiver<PublishAnswer>,
    ) -> Result<PublishAnswer, PeerError> {
        let answered = self.link.within("an event", async || (&mut answer).await.ok()).await;
        if answered.is_err() {
            answer.close();
            let mut routes = self.link.routes.lock();
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
        self.link.patience()
    }

    /// Number of times that the key was proved to the relay.
    pub(crate) fn proofs(&self) -> u64 {
        self.link.proofs.load(Ordering::Acquire)
    }

    /// Proves the key to the relay, once per connection. `proofs` is the value of [`Self::proofs`]
    /// when the refused request was sent. Does nothing if another request has proved the key since
    /// then. Fails if there is no key or no challenge, or if the relay does not accept the proof.
    pub(crate) async fn authenticate(&self, proofs: u64) -> Result<(), PeerError> {
        let refused = |reason: &str| PeerError::Refused { what: "AUTH", reason: reason.into() };
        let _turn = self.link.proving.lock().await;
        if self.proofs() > proofs {
            return Ok(());
        }
        if self.proofs() > 0 {
            return Err(refused("it does not accept the given key"));
        }
        let Some(key) = &self.link.options.key else {
            return Err(refused(
                "it serves only those who authenticate; give a key with --key-file",
            ));
        };
        let challenge = self.link.routes.lock().challenge.clone();
        let challenge = challenge.ok_or_else(|| refused("it has sent no challenge"))?;
        let mut json = Vec::new();
        let tags: [&[&str]; 2] =
            [&["relay", self.link.address.as_str()], &["challenge", &challenge]];
        let draft = EventDraft { created_at: now_s(), kind: AUTH_KIND, tags: &tags, content: "" };
        let id = draft.sign(key, &mut json);
        let receiver = self.send_event("AUTH", id, &String::from_utf8_lossy(&json)).await?;
        match self.answer(&id, receiver).await? {
            (true, _) => {
                self.link.proofs.fetch_add(1, Ordering::Release);
                Ok(())
            }
            (false, reason) => Err(refused(&reason)),
        }
    }

    /// Proves the key after a refusal with this `reason`, like [`Self::authenticate`]. A relay may
    /// also refuse a client that is already authenticated (`restricted:`). Then no proof helps, and
    /// the error has the relay's reason.
    pub(crate) async fn authenticate_for(
        &self,
        proofs: u64,
        reason: &str,
    ) -> Result<(), PeerError> {
        let is_stranger = self.proofs() == 0 && self.link.options.key.is_some();
        let has_challenge = self.link.routes.lock().challenge.is_some();
        if reason.starts_with("restricted") && !(is_stranger && has_challenge) {
            return Err(PeerError::Refused { what: "a question", reason: reason.into() });
        }
        self.authenticate(proofs).await
    }

    /// Waits until the connection has ended, and returns why.
    pub(crate) async fn closed(&self) -> PeerError {
        self.link.wait_for_end().await;
        self.link.ended_error()
    }
}

impl Drop for PeerClient {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
