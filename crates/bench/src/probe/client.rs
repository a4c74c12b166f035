//! A client that parses every message of a relay, and remembers the last frames for a report.

use std::collections::VecDeque;
use std::time::Duration;

use hark_codec::crypto::KeyPair;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::end::{ProbeEnd, ProbeResult, ensure};
use super::event::{EventPlan, ProbeEvent};
use super::refusal::{is_policy, prefix_of};
use super::run::{ProbeRun, now};
use crate::websocket::{ConnectionKind, RelayConnection, put_text};

/// Maximum number of frames in a transcript.
const FRAMES_MAX: usize = 24;
/// Maximum length of a frame in a transcript, in characters.
const FRAME_CHARS_MAX: usize = 300;
/// Maximum size of the messages that wait to be read, in bytes.
const INBOX_BYTES_MAX: usize = 128 << 20;
/// Pauses before resending an event or a question that was refused with `rate-limited:`.
const PAUSES_S: [u64; 4] = [1, 2, 4, 8];

/// The relay's answer to an EVENT or an AUTH.
#[derive(Clone, Debug)]
pub(crate) struct OkAnswer {
    pub(crate) accepted: bool,
    pub(crate) message: String,
    /// The whole OK message.
    pub(crate) parts: Vec<Value>,
}

/// The end of a question.
#[derive(Clone, Debug)]
pub(crate) enum QuestionEnd {
    /// The whole EOSE message.
    Eose(Vec<Value>),
    /// The message of CLOSED.
    Closed(String),
}

impl QuestionEnd {
    /// The prefix of the CLOSED message, such as `blocked`.
    fn prefix(&self) -> Option<&str> {
        match self {
            Self::Eose(_) => None,
            Self::Closed(why) => prefix_of(why),
        }
    }

    /// The end of a check that needs an answer: success after EOSE, undecided after a refusal by the
    /// relay's policy, and failure after any other refusal.
    pub(crate) fn require_eose(&self) -> ProbeResult {
        let Self::Closed(why) = self else { return Ok(()) };
        let text = format!("the relay refuses a question: {why}");
        Err(if is_policy(why) { ProbeEnd::Undecided(text) } else { ProbeEnd::Failed(text) })
    }
}

/// The answer to a COUNT.
#[derive(Clone, Debug)]
pub(crate) enum CountEnd {
    /// The object of COUNT.
    Counted(Value),
    /// The message of CLOSED.
    Closed(String),
}

/// The stored events that a relay returned, and the end of the answer.
#[derive(Clone, Debug)]
pub(crate) struct StoredEvents {
    pub(crate) events: Vec<Value>,
    pub(crate) end: QuestionEnd,
}

impl StoredEvents {
    /// The ids of the events, in the order of the answer.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.events.iter().map(id_of).collect()
    }
}

/// The id of an event, or an empty text.
pub(crate) fn id_of(event: &Value) -> String {
    event["id"].as_str().unwrap_or_default().to_owned()
}

/// A message in the inbox.
struct ReceivedMessage {
    parts: Vec<Value>,
    bytes: usize,
}

/// A connection that checks a relay's answers.
pub(crate) struct ProbeClient {
    connection: RelayConnection,
    public_url: String,
    timeout: Duration,
    spacing: Duration,
    /// Messages that were received while another message was awaited.
    inbox: VecDeque<ReceivedMessage>,
    /// The size of the messages in the inbox.
    inbox_bytes: usize,
    /// The frames of an incomplete message.
    partial: Vec<u8>,
    transcript: VecDeque<String>,
    subscriptions: u64,
}

impl ProbeClient {
    pub(crate) async fn open(run: &ProbeRun) -> ProbeResult<Self> {
        let opened = RelayConnection::open(&run.url, ConnectionKind::Busy).await;
        let connection = opened.map_err(|error| ProbeEnd::Undecided(format!("{error:#}")))?;
        Ok(Self {
            connection,
            public_url: run.public_url.clone(),
            timeout: run.timeout,
            spacing: run.spacing,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            partial: Vec::new(),
            transcript: VecDeque::new(),
            subscriptions: 0,
        })
    }

    /// The last frames, oldest first.
    pub(crate) fn transcript(&self) -> Vec<String> {
        self.transcript.iter().cloned().collect()
    }

    fn log(&mut self, direction: &str, text: &str) {
        if self.transcript.len() == FRAMES_MAX {
            self.transcript.pop_front();
        }
        let mut line: String = text.chars().take(FRAME_CHARS_MAX).collect();
        if line.len() < text.len() {
            line.push('…');
        }
        self.transcript.push_back(format!("{direction} {line}"));
    }

    /// Sends any text as a message.
    pub(crate) async fn send_text(&mut self, text: &str) -> ProbeResult {
        if !self.spacing.is_zero() {
            tokio::time::sleep(self.spacing).await;
        }
        self.log(">", text);
        let mut frame = Vec::with_capacity(text.len() + 16);
        put_text(&mut frame, &[text.as_bytes()]);
        Ok(self.connection.send(&frame).await?)
    }

    pub(crate) async fn send(&mut self, message: &Value) -> ProbeResult {
        self.send_text(&message.to_string()).await
    }

    /// Receives the next message and its size. `None` if none arrives before `until`.
    async fn receive(&mut self, until: Instant) -> ProbeResult<Option<(Vec<Value>, usize)>> {
        loop {
            // A relay that sends without end must not prolong the wait.
            if Instant::now() >= until {
                return Ok(None);
            }
            let Ok(frame) = tokio::time::timeout_at(until, self.connection.next_text()).await
            else {
                return Ok(None);
            };
            self.partial.extend_from_slice(frame?);
            if self.partial.len() > INBOX_BYTES_MAX {
                return Err(ProbeEnd::Failed("the relay sends a message without end".into()));
            }
            if self.connection.is_message_end {
                break;
            }
        }
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        self.log("<", &text);
        match serde_json::from_str::<Value>(&text) {
            Ok(Value::Array(parts)) => Ok(Some((parts, text.len()))),
            _ => Err(ProbeEnd::Failed("the relay sent a message that is no JSON array".into())),
        }
    }

    /// Stores a message until it is awaited.
    fn push(&mut self, parts: Vec<Value>, bytes: usize) -> ProbeResult {
        self.inbox_bytes += bytes;
        self.inbox.push_back(ReceivedMessage { parts, bytes });
        let why = || "the relay sends far more than was requested".into();
        ensure(self.inbox_bytes <= INBOX_BYTES_MAX, why)
    }

    /// Removes the messages for which `is_removed` holds.
    fn remove_all(&mut self, mut is_removed: impl FnMut(&mut Vec<Value>) -> bool) {
        self.inbox.retain_mut(|message| !is_removed(&mut message.parts));
        self.inbox_bytes = self.inbox.iter().map(|message| message.bytes).sum();
    }

    /// Waits for a message for which `is_wanted` holds. Other messages stay in the inbox.
    pub(crate) async fn wait(
        &mut self,
        name: &str,
        is_wanted: impl Fn(&[Value]) -> bool,
    ) -> ProbeResult<Vec<Value>> {
        let at = self.inbox.iter().position(|message| is_wanted(&message.parts));
        if let Some(message) = at.and_then(|at| self.inbox.remove(at)) {
            self.inbox_bytes -= message.bytes;
            return Ok(message.parts);
        }
        let until = Instant::now() + self.timeout;
        loop {
            match self.receive(until).await? {
                Some((message, _)) if is_wanted(&message) => return Ok(message),
                Some((message, bytes)) => self.push(message, bytes)?,
                None => {
                    let seconds = self.timeout.as_secs_f64();
                    return Err(ProbeEnd::Failed(format!("no {name} within {seconds} s")));
                }
            }
        }
    }

    /// Sends a message with an event and waits for its OK.
    async fn submit(&mut self, verb: &str, event: &Value) -> ProbeResult<OkAnswer> {
        let id = id_of(event);
        self.remove_all(|message| is_ok_of(message, &id));
        self.send(&json!([verb, event])).await?;
        let parts = self.wait("OK", |message| is_ok_of(message, &id)).await?;
        let message = parts.get(3).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(OkAnswer { accepted: parts.get(2) == Some(&Value::Bool(true)), message, parts })
    }

    /// Publishes an event. An event above the relay's rate is sent again after a pause.
    pub(crate) async fn publish(&mut self, event: &Value) -> ProbeResult<OkAnswer> {
        let mut answer = self.submit("EVENT", event).await?;
        for pause in PAUSES_S {
            if answer.accepted || prefix_of(&answer.message) != Some("rate-limited") {
                break;
            }
            tokio::time::sleep(Duration::from_secs(pause)).await;
            answer = self.submit("EVENT", event).await?;
        }
        Ok(answer)
    }

    /// Publishes an event. If the relay requires AUTH, the client authenticates with these keys.
    pub(crate) async fn publish_as(
        &mut self,
        keys: &KeyPair,
        event: &Value,
    ) -> ProbeResult<OkAnswer> {
        let answer = self.publish(event).await?;
        if answer.accepted || prefix_of(&answer.message) != Some("auth-required") {
            return Ok(answer);
        }
        self.authenticate(keys).await?;
        self.publish(event).await
    }

    /// Publishes an event that a check needs. If the relay requires AUTH, the client authenticates
    /// as the event's author. A refusal leaves the check undecided.
    pub(crate) async fn store(&mut self, event: &ProbeEvent, keys: &KeyPair) -> ProbeResult {
        let answer = self.publish_as(keys, &event.json()).await?;
        if answer.accepted {
            return Ok(());
        }
        let why = format!("the relay refuses an event of the check: {}", answer.message);
        Err(ProbeEnd::Undecided(why))
    }

    /// Makes an AUTH event for this connection's challenge.
    pub(crate) fn auth_event(&self, keys: &KeyPair) -> Option<ProbeEvent> {
        let challenge = self.challenge()?;
        let plan = EventPlan::new(22_242, now());
        Some(plan.tag(&["relay", &self.public_url]).tag(&["challenge", &challenge]).sign(keys))
    }

    /// The last challenge that the relay sent.
    pub(crate) fn challenge(&self) -> Option<String> {
        self.connection.challenge.clone()
    }

    /// Authenticates as the owner of these keys. A refusal leaves the check undecided.
    pub(crate) async fn authenticate(&mut self, keys: &KeyPair) -> ProbeResult {
        let event = self.auth_event(keys);
        let event =
            event.ok_or_else(|| ProbeEnd::Unsupported("the relay sent no challenge".into()))?;
        let answer = self.auth(&event).await?;
        if answer.accepted {
            return Ok(());
        }
        Err(ProbeEnd::Undecided(format!("the relay refuses an AUTH: {}", answer.message)))
    }

    /// Sends an AUTH and waits for its OK.
    pub(crate) async fn auth(&mut self, event: &ProbeEvent) -> ProbeResult<OkAnswer> {
        self.submit("AUTH", &event.json()).await
    }

    /// A subscription id that this connection has not used yet.
    pub(crate) fn new_subscription(&mut self) -> String {
        self.subscriptions += 1;
        format!("hark{}", self.subscriptions)
    }

    /// Subscribes, and returns the stored events. The subscription stays open.
    pub(crate) async fn subscribe(
        &mut self,
        subscription: &str,
        filters: &[Value],
    ) -> ProbeResult<StoredEvents> {
        let mut message = vec![json!("REQ"), json!(subscription)];
        message.extend_from_slice(filters);
        self.send(&Value::Array(message)).await?;
        let is_end = |message: &[Value]| {
            matches!(name_of(message), "EOSE" | "CLOSED") && is_of(message, subscription)
        };
        let end = self.wait("EOSE or CLOSED", is_end).await?;
        let events = self.live(subscription);
        let end = if name_of(&end) == "EOSE" {
            QuestionEnd::Eose(end)
        } else {
            QuestionEnd::Closed(end.get(2).and_then(Value::as_str).unwrap_or_default().into())
        };
        Ok(StoredEvents { events, end })
    }

    /// Subscribes. A question above the relay's rate is sent again after a pause.
    pub(crate) async fn subscribe_paced(
        &mut self,
        subscription: &str,
        filters: &[Value],
    ) -> ProbeResult<StoredEvents> {
        let mut pauses = PAUSES_S.into_iter();
        loop {
            let answer = self.subscribe(subscription, filters).await?;
            if answer.end.prefix() != Some("rate-limited") {
                return Ok(answer);
            }
            let why = || ProbeEnd::Undecided("the relay refuses questions above its rate".into());
            tokio::time::sleep(Duration::from_secs(pauses.next().ok_or_else(why)?)).await;
        }
    }

    /// Subscribes for a check that needs the subscription. If the relay requires AUTH, the client
    /// authenticates with these keys. A refusal by the relay's policy leaves the check undecided.
    pub(crate) async fn subscribe_as(
        &mut self,
        keys: &KeyPair,
        subscription: &str,
        filters: &[Value],
    ) -> ProbeResult<StoredEvents> {
        let mut answer = self.subscribe_paced(subscription, filters).await?;
        if answer.end.prefix() == Some("auth-required") {
            self.authenticate(keys).await?;
            answer = self.subscribe_paced(subscription, filters).await?;
        }
        answer.end.require_eose()?;
        Ok(answer)
    }

    /// Requests stored events, and closes the subscription. A question above the relay's rate is
    /// sent again after a pause.
    pub(crate) async fn ask(&mut self, filters: &[Value]) -> ProbeResult<StoredEvents> {
        let subscription = self.new_subscription();
        let answer = self.subscribe_paced(&subscription, filters).await?;
        if matches!(answer.end, QuestionEnd::Eose(_)) {
            self.close(&subscription).await?;
        }
        Ok(answer)
    }

    /// Requests stored events. If the relay requires AUTH, the client authenticates with these keys.
    pub(crate) async fn ask_as(
        &mut self,
        keys: &KeyPair,
        filters: &[Value],
    ) -> ProbeResult<StoredEvents> {
        let answer = self.ask(filters).await?;
        if answer.end.prefix() != Some("auth-required") {
            return Ok(answer);
        }
        self.authenticate(keys).await?;
        self.ask(filters).await
    }

    /// Sends a COUNT and waits for the answer.
    async fn count(&mut self, filters: &[Value]) -> ProbeResult<CountEnd> {
        let query = self.new_subscription();
        let mut message = vec![json!("COUNT"), json!(query)];
        message.extend_from_slice(filters);
        self.send(&Value::Array(message)).await?;
        let is_answer =
            |parts: &[Value]| matches!(name_of(parts), "COUNT" | "CLOSED") && is_of(parts, &query);
        let mut parts = self.wait("COUNT or CLOSED", is_answer).await?;
        let body = parts.get_mut(2).map(Value::take).unwrap_or_default();
        Ok(match (name_of(&parts), body) {
            ("COUNT", body) => CountEnd::Counted(body),
            (_, body) => CountEnd::Closed(body.as_str().unwrap_or_default().to_owned()),
        })
    }

    /// Sends a COUNT. If the relay requires AUTH, the client authenticates with these keys. A COUNT
    /// above the relay's rate is sent again after a pause.
    pub(crate) async fn count_as(
        &mut self,
        keys: &KeyPair,
        filters: &[Value],
    ) -> ProbeResult<CountEnd> {
        let (mut pauses, mut is_authenticated) = (PAUSES_S.into_iter(), false);
        loop {
            let end = self.count(filters).await?;
            let prefix = match &end {
                CountEnd::Counted(_) => None,
                CountEnd::Closed(why) => prefix_of(why),
            };
            match (prefix, pauses.len()) {
                (Some("auth-required"), _) if !is_authenticated => {
                    self.authenticate(keys).await?;
                    is_authenticated = true;
                }
                (Some("rate-limited"), 1..) => {
                    let pause = pauses.next().unwrap_or_default();
                    tokio::time::sleep(Duration::from_secs(pause)).await;
                }
                _ => return Ok(end),
            }
        }
    }

    pub(crate) async fn close(&mut self, subscription: &str) -> ProbeResult {
        self.send(&json!(["CLOSE", subscription])).await
    }

    /// Removes the events of a subscription from the inbox, and returns the events.
    pub(crate) fn live(&mut self, subscription: &str) -> Vec<Value> {
        let mut events = Vec::new();
        self.remove_all(|message| {
            let is_event = name_of(message) == "EVENT" && is_of(message, subscription);
            if is_event {
                events.extend(message.get_mut(2).map(Value::take));
            }
            is_event
        });
        events
    }

    /// Whether a message for which `is_wanted` holds was received and not read yet.
    pub(crate) fn received(&self, is_wanted: impl Fn(&[Value]) -> bool) -> bool {
        self.inbox.iter().any(|message| is_wanted(&message.parts))
    }

    /// The subscription ids of the received events that nothing has read yet.
    pub(crate) fn unread_subscriptions(&self) -> Vec<String> {
        let messages = self.inbox.iter().map(|message| &message.parts);
        let events = messages.filter(|message| name_of(message) == "EVENT");
        events.filter_map(|message| Some(message.get(1)?.as_str()?.to_owned())).collect()
    }

    /// Waits for an event of a subscription. The event stays in the inbox.
    pub(crate) async fn wait_for_event(&mut self, subscription: &str, id: &str) -> ProbeResult {
        let is_wanted = |message: &[Value]| {
            name_of(message) == "EVENT"
                && is_of(message, subscription)
                && message.get(2).is_some_and(|event| event["id"] == id)
        };
        let message = self.wait("delivery of a new event", is_wanted).await?;
        // For simplicity, this message does not count towards the size of the inbox.
        self.inbox.push_front(ReceivedMessage { parts: message, bytes: 0 });
        Ok(())
    }

    /// Sends a question without matches and waits for its end, so that all earlier messages of the
    /// relay have been received.
    pub(crate) async fn sync(&mut self) -> ProbeResult {
        self.ask(&[json!({"ids": ["0".repeat(64)], "limit": 1})]).await.map(drop)
    }
}

/// The name of a message, such as EVENT.
pub(crate) fn name_of(message: &[Value]) -> &str {
    message.first().and_then(Value::as_str).unwrap_or_default()
}

/// Whether the second element of a message is this text.
pub(crate) fn is_of(message: &[Value], subscription: &str) -> bool {
    message.get(1).is_some_and(|found| found == subscription)
}

fn is_ok_of(message: &[Value], id: &str) -> bool {
    name_of(message) == "OK" && is_of(message, id)
}
