//! One open connection: its client, its counters, and the operator's request to end the connection.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_util::task::AtomicWaker;
use hark_archive::meter::Counter;
use hark_codec::record::Key;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::refusals::{ClientRefusal, RefusalLog};
use super::shown::AddressPrivacy;
use crate::rate::{ClientRates, GroupMembership, RateGroups};

/// Maximum number of characters of a client's program name that are stored.
const AGENT_CHARS_MAX: usize = 120;
/// Maximum number of keys of one connection that `hark clients` shows.
pub(crate) const KEYS_MAX: usize = 8;

/// The protocol that a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionForm {
    /// HTTP requests.
    Http,
    /// A WebSocket.
    WebSocket,
    /// The protocol of a network's nodes.
    Peer,
}

impl ConnectionForm {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::WebSocket => "websocket",
            Self::Peer => "peer",
        }
    }
}

/// A key that a client has proved, in the two forms in which people write the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyName {
    /// The form that lists show.
    pub(crate) shown: Box<str>,
    /// The digits of the key, or the same text if the network has one form only.
    pub(crate) digits: Box<str>,
}

/// The counters of a connection. The code that serves the connection adds to the counters.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    /// Open subscriptions.
    pub(crate) subscriptions: Counter,
    /// Records of the client that were stored or passed on, or were known.
    pub(crate) accepted: Counter,
    /// Records of the client that were refused.
    pub(crate) refused: Counter,
    /// Questions of the client.
    pub(crate) questions: Counter,
    /// Refused messages that had no record: questions, and messages that cannot be read.
    pub(crate) unanswered: Counter,
    /// Rows that the questions have visited.
    pub(crate) rows: Counter,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl ConnectionCounts {
    /// Adds bytes that were received from the client.
    pub(crate) fn receive(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds bytes that were sent to the client.
    pub(crate) fn send(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Sets the total numbers of bytes, for a connection that counts the bytes itself.
    pub(crate) fn set_bytes(&self, (received, sent): (u64, u64)) {
        self.received_bytes.store(received, Ordering::Relaxed);
        self.sent_bytes.store(sent, Ordering::Relaxed);
    }
}

/// The facts about a client, which change rarely.
#[derive(Debug)]
struct ClientFacts {
    ip: IpAddr,
    /// Whether `ip` is the address of a proxy that names no client, and so stands for many clients.
    is_of_proxy: bool,
    form: ConnectionForm,
    agent: Box<str>,
    keys: Vec<KeyName>,
}

/// Whether a terminal shows a character as itself: the character is no control character and does
/// not change the direction of the text.
fn is_printable(c: char) -> bool {
    let is_direction = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}');
    !c.is_control() && !is_direction
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    number: u64,
    network: &'static str,
    since_s: u64,
    facts: Mutex<ClientFacts>,
    pub(crate) counts: ConnectionCounts,
    membership: Mutex<GroupMembership>,
    /// Whether the operator has closed the connection. The reason is in `reason`.
    is_kicked: AtomicBool,
    reason: OnceLock<Box<str>>,
    /// Wakes the task that serves the connection.
    task: AtomicWaker,
    refusals: Arc<RefusalLog>,
}

impl OpenConnection {
    /// Creates the entry of a connection from `ip`.
    pub(super) fn new(
        number: u64,
        (network, form): (&'static str, ConnectionForm),
        (ip, is_of_proxy): (IpAddr, bool),
        refusals: Arc<RefusalLog>,
    ) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let facts = ClientFacts { ip, is_of_proxy, form, agent: Box::default(), keys: Vec::new() };
        Self {
            number,
            network,
            since_s: since.as_ref().map_or(0, Duration::as_secs),
            facts: Mutex::new(facts),
            counts: ConnectionCounts::default(),
            membership: Mutex::default(),
            is_kicked: AtomicBool::new(false),
            reason: OnceLock::new(),
            task: AtomicWaker::new(),
            refusals,
        }
    }

    /// An entry that is in no list, for tests.
    #[cfg(test)]
    pub(crate) fn unlisted(number: u64) -> Arc<Self> {
        let (ip, refusals) = (std::net::Ipv4Addr::LOCALHOST.into(), Arc::default());
        Arc::new(Self::new(number, ("test", ConnectionForm::Peer), (ip, false), refusals))
    }

    /// The number of the connection in this process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The name of the network whose door serves the connection.
    pub(super) fn network(&self) -> &'static str {
        self.network
    }

    /// The client's address, or the address of a proxy that names no client.
    pub(crate) fn ip(&self) -> IpAddr {
        self.facts.lock().ip
    }

    /// The client's own address. `None` if the address stands for all clients of a proxy.
    pub(crate) fn client_ip(&self) -> Option<IpAddr> {
        let facts = self.facts.lock();
        (!facts.is_of_proxy).then_some(facts.ip)
    }

    /// Records the client of a request that came through the trusted proxy `proxy`. With `None`,
    /// the proxy names no client, and the client of an earlier request is forgotten.
    pub(crate) fn set_client(&self, proxy: IpAddr, client: Option<IpAddr>) {
        let mut facts = self.facts.lock();
        (facts.ip, facts.is_of_proxy) = (client.unwrap_or(proxy).to_canonical(), client.is_none());
        drop(facts);
        self.membership.lock().forget();
    }

    /// Records that the client has proved a key, which may be in a group with other rates.
    pub(crate) fn prove(&self, key: &Key) {
        self.membership.lock().prove(key);
    }

    /// Returns the groups of the client. `None` if the rates are the same for everyone.
    pub(crate) fn rates(&self, groups: &Arc<RateGroups>) -> Option<Arc<ClientRates>> {
        let find = || self.membership.lock().rates(groups, || self.client_ip());
        (!groups.is_empty()).then(find)
    }

    /// Records that the connection speaks another protocol from now on.
    pub(crate) fn set_form(&self, form: ConnectionForm) {
        self.facts.lock().form = form;
    }

    /// Records the name that the client's program has reported.
    pub(crate) fn set_agent(&self, agent: &str) {
        let mut facts = self.facts.lock();
        if *facts.agent != *agent {
            let shown = agent.chars().take(AGENT_CHARS_MAX);
            facts.agent = shown.map(|c| if is_printable(c) { c } else { '?' }).collect();
        }
    }

    /// Records the program of an HTTP request.
    pub(crate) fn set_agent_of(&self, headers: &axum::http::HeaderMap) {
        let agent = headers.get(axum::http::header::USER_AGENT);
        if let Some(Ok(agent)) = agent.map(|agent| agent.to_str()) {
            self.set_agent(agent);
        }
    }

    /// Adds a key that the client has proved.
    pub(crate) fn add_key(&self, key: KeyName) {
        let mut facts = self.facts.lock();
        // `limits.auth_keys_max` bounds the keys. A ban must find each key.
        if !facts.keys.contains(&key) {
            facts.keys.push(key);
        }
    }

    /// Returns the result of `has` for the client's address and its keys.
    pub(crate) fn facts_match(&self, has: impl FnOnce(IpAddr, &[KeyName]) -> bool) -> bool {
        let facts = self.facts.lock();
        has(facts.ip, &facts.keys)
    }

    /// The first key that the client has proved, for a line of the log.
    pub(crate) fn key(&self) -> Option<Box<str>> {
        self.facts.lock().keys.first().map(|key| key.shown.clone())
    }

    /// Counts a refused message, and logs the client if many messages are refused.
    pub(crate) fn refuse(&self, refusal: &ClientRefusal<'_>) {
        if refusal.is_of_record {
            self.counts.refused.add(1);
        } else {
            self.counts.unanswered.add(1);
        }
        // The address of a proxy is not logged: it stands for many clients, and a program such as
        // fail2ban may ban a logged address.
        if let Some(ip) = self.client_ip() {
            self.refusals.note(ip, || self.key(), refusal);
        }
    }

    /// Closes the connection with a reason for the client. Returns false if the connection was
    /// closed in this way before.
    pub(crate) fn kick(&self, reason: &str) -> bool {
        let is_first = self.reason.set(reason.into()).is_ok();
        self.is_kicked.store(true, Ordering::Release);
        self.task.wake();
        is_first
    }

    /// The operator's reason for closing the connection. `None` if the operator has not closed the
    /// connection.
    pub(crate) fn kick_reason(&self) -> Option<&str> {
        self.reason.get().map(|reason| &**reason)
    }

    /// Ready once the operator closes the connection. The task that polls is woken.
    pub(crate) fn poll_kicked(&self, cx: &Context<'_>) -> Poll<()> {
        // The flag is read after the registration, so no request is missed.
        self.task.register(cx.waker());
        if self.is_kicked.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the operator closes the connection.
    pub(crate) fn kicked(&self) -> impl Future<Output = ()> {
        std::future::poll_fn(|cx| self.poll_kicked(cx))
    }

    /// The fields of the connection for `hark clients`.
    pub(crate) fn row(&self, privacy: AddressPrivacy, groups: &Arc<RateGroups>) -> Value {
        let rates = self.rates(groups);
        let Self { number, network, since_s, counts, .. } = self;
        let facts = self.facts.lock();
        let keys = facts.keys.iter().take(KEYS_MAX);
        let keys: Vec<&str> = keys.map(|key| &*key.shown).collect();
        json!({
            "number": number,
            "address": privacy.show(facts.ip),
            "network": network,
            "form": facts.form.name(),
            "keys": keys,
            "group": rates.as_ref().and_then(|rates| rates.name()),
            "agent": facts.agent,
            "since": since_s,
            "subscriptions": counts.subscriptions.get(),
            "accepted": counts.accepted.get(),
            "refused": counts.refused.get(),
            "questions": counts.questions.get(),
            "unanswered": counts.unanswered.get(),
            "rows": counts.rows.get(),
            "received_bytes": counts.received_bytes.load(Ordering::Relaxed),
            "sent_bytes": counts.sent_bytes.load(Ordering::Relaxed),
        })
    }
}
