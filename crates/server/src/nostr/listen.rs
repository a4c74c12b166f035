//! The relay's door. It owns the listening ports, and serves connections until the last connection
//! has ended.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hark_archive::Record;
use hark_networks::nostr::NostrVerdict;
use hark_networks::nostr::admit::host_name;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::Relay;
use super::auth::NO_URL;
use super::info::web_url;
use super::manage;
use super::metrics::{MessageResult, Verb};
use super::policy::{nothing_allowed, nothing_answered};
use super::report::LoggedCounts;
use super::threads::RelayThreads;
use super::web::{self, ConnectionContext, CountedConnection, WebState};
use crate::admin::http::Operators;
use crate::door::{self, AdminLinkFault, Door, DoorAddress, StatusRow};
use crate::listener::{Listener, accept};
use crate::metrics::MetricsPage;
use crate::patience::TimedStream;
use crate::roster::ClientRefusal;
use crate::sockets::ServedSockets;
use crate::stop::StopSignal;
use crate::stream::AcceptedStream;
use crate::words::{bytes, number};

/// The advice to the operator of a server that has started without a shelf for bans.
const NO_BANS: &str = "the archive has no shelf for bans, so only the lists in [policy] apply; the log \
                       says why";

/// The relay, with its listener and its threads.
pub(super) struct RelayDoor {
    relay: Arc<Relay>,
    listener: Listener,
    threads: RelayThreads,
    report: Mutex<LoggedCounts>,
}

impl RelayDoor {
    pub(super) fn new(relay: Arc<Relay>, listener: Listener, threads: RelayThreads) -> Self {
        Self { relay, listener, threads, report: Mutex::default() }
    }
}

impl Door for RelayDoor {
    fn addresses(&self) -> Vec<DoorAddress> {
        let urls = self.listener.urls("ws");
        urls.map(|at| DoorAddress { what: "listening on", at }).collect()
    }

    fn listeners(&self) -> io::Result<Vec<OwnedFd>> {
        self.listener.sockets()
    }

    fn refuses(&self, record: &Record<'_>) -> bool {
        self.relay.moderation.bans_record(record)
    }

    fn metrics(&self, page: &mut MetricsPage) {
        super::prometheus::write(page, &self.relay);
    }

    fn stats(&self) -> (Map<String, Value>, Vec<StatusRow>) {
        let relay = &self.relay;
        // How many messages of these verbs were done as requested, and how many were refused.
        let answered = |what, verbs: &[Verb]| {
            let is_done = |result| {
                use MessageResult::{Done, Refused};
                matches!(result, Done | Refused(NostrVerdict::Duplicate))
            };
            let results = verbs.iter().map(|verb| relay.metrics.answers().of(*verb));
            let done = results.clone().map(|results| results.sum(is_done)).sum();
            let refused = results.map(|results| results.sum(|it| !is_done(it))).sum();
            (what, number(done), format!("{} refused", number(refused)))
        };
        let plain = |what, value| (what, value, String::new());
        let rows = vec![
            answered("events accepted", &[Verb::Event]),
            answered("questions answered", &[Verb::Req, Verb::Count]),
            plain("connections", number(relay.metrics.connections_open.get())),
            plain("subscriptions", number(relay.live.len() as u64)),
            plain("waits for clients", bytes(relay.outboxes.bytes() as u64)),
        ];
        let fields = [
            ("subscriptions", json!(relay.live.len())),
            ("connections", json!(relay.metrics.connections_open.get())),
            ("outbox_bytes", json!(relay.outboxes.bytes())),
            ("messages", relay.metrics.answers().nested()),
        ];
        (fields.into_iter().map(|(name, value)| (name.into(), value)).collect(), rows)
    }

    fn admin_link(&self, maker: &str) -> Result<Value, AdminLinkFault> {
        let path = manage::link_path(&self.relay, maker)?;
        let identity = self.relay.identity.current();
        let local = || self.listener.urls("http").find(|url| url.starts_with("http"));
        let base = identity.info.url.clone().or_else(local);
        Ok(match base {
            Some(base) => json!({ "url": web_url(&base) + &path }),
            None => json!({ "path": path }),
        })
    }

    fn host_names(&self) -> Vec<String> {
        let identity = self.relay.identity.current();
        identity.info.urls().map(|url| host_name(&url)).collect()
    }

    fn advice(&self) -> Vec<String> {
        let policy = self.relay.policy.load();
        let lists = policy.empty_lists();
        let auth_keys_max = self.relay.settings().limits.auth_keys_max;
        let unanswered = nothing_answered(&policy.questions, auth_keys_max);
        let url = (!self.relay.identity.current().knows_url()).then(|| NO_URL.to_owned());
        let plugin = self.relay.plugin.options().fault();
        let bans = self.relay.moderation.is_lacking().then(|| NO_BANS.to_owned());
        let lists = lists.map(nothing_allowed).chain(unanswered);
        let trust = self.relay.trust.advice(policy.allow_keys.is_some());
        lists.chain(trust).chain(plugin).chain(url).chain(bans).collect()
    }

    fn check_load(&self) {
        self.report.lock().log_growth(&self.relay.metrics);
        self.relay.connections.clients().roster().refusals().log_pending();
        if self.relay.outboxes.have_questions_waited() {
            self.relay.audience.yield_shares();
        }
    }

    fn serve(self: Arc<Self>, operators: Operators, stop: StopSignal) -> door::DoorFuture {
        Box::pin(async move {
            // Only now does the archive have all records of a process that was taken over.
            self.relay.trust.begin();
            if let Some(sockets) = self.listener.take() {
                serve_all(sockets, &self.relay, operators, stop).await;
            }
        })
    }

    fn close(&self) {
        self.relay.intake.close();
        self.relay.readers.close();
        self.relay.outboxes.close();
        self.relay.trust.close();
        self.threads.join();
        self.relay.plugin.close();
        self.relay.slow.close();
    }
}

/// Serves connections until `stop`, and returns when the last connection has ended.
async fn serve_all(
    sockets: ServedSockets,
    relay: &Arc<Relay>,
    operators: Operators,
    stop: StopSignal,
) {
    let web = WebState::new(Arc::clone(relay), operators, stop.clone());
    let enter = |peer| {
        let slot = CountedConnection::admit(relay, peer);
        slot.inspect_err(|why| web::note_refused_connection(relay, peer, *why))
    };
    accept(sockets, stop, enter, |accepted: AcceptedStream, peer, (slot, alive)| {
        let (slot, local, has_tls) =
            (Arc::new(slot), accepted.local_addr(), accepted.tls.is_some());
        let context = ConnectionContext { _alive: alive, slot, peer, local, has_tls };
        serve(accepted, web.clone(), context)
    })
    .await;
}

/// The refusal of bytes that are no HTTP request.
const NOT_HTTP: ClientRefusal<'_> = ClientRefusal {
    verb: "connect",
    verdict: "invalid",
    reason: "this is no HTTP request",
    is_of_record: false,
    is_logged: true,
};

/// Serves the HTTP requests of one connection. After an upgrade, the session holds `context`.
async fn serve(accepted: AcceptedStream, web: WebState, context: ConnectionContext) {
    let (mut stop, slot) = (web.stop.clone(), Arc::clone(&context.slot));
    // Behind a proxy, the client that has sent an unreadable request is unknown.
    let is_direct = !web.relay.connections.is_proxy(context.peer);
    let Some(stream) = accepted.open(&mut stop).await else { return };
    stream.send_at_once();
    let (head_timeout, take_max) = {
        let limits = &web.relay.settings().limits;
        (limits.handshake_timeout_ms, limits.idle_timeout_s)
    };
    let head_timeout = Duration::from_millis(head_timeout);
    let stream = TimedStream::new(stream, Duration::from_secs(take_max));
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let answer = web::answer(web.clone(), context.clone(), request.map(Body::new));
        async { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        served = &mut connection => {
            // After an upgrade, the session serves the connection.
            if is_direct && served.is_err_and(|error| error.is_parse()) {
                slot.listed.refuse(&NOT_HTTP);
            }
            return;
        }
        () = slot.listed.kicked() => return,
        () = stop.serving() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
