//! The answers to HTTP requests: an upgrade becomes a session, a program gets the NIP-11 document,
//! a person gets a page.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, HOST, REFERRER_POLICY, UPGRADE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use parking_lot::Mutex;

use super::landing::{self, LandingHtml, LandingPage};
use super::manage::{self, AdminRequest, ManageClient};
use super::outboxes::OutboxAccount;
use super::session;
use super::{Relay, nip11};
use crate::address::{ClientAddress, Proxies};
use crate::admin::http::Operators;
use crate::connections::{ConnectionPermit, refusal_response};
use crate::http::held;
use crate::listener::SessionGuard;
use crate::metrics::{ConnectionRefusal, MetricLabel as _};
use crate::permits::Permit;
use crate::rate::RatedConnection;
use crate::roster::{ClientRefusal, ConnectionForm, OpenConnection, RosterEntry};
use crate::stop::StopSignal;
use crate::websocket::{Handshake, HandshakeFault, lost_upgrade};

/// The state of the HTTP handler.
#[derive(Clone)]
pub(crate) struct WebState {
    pub(crate) relay: Arc<Relay>,
    pub(crate) stop: StopSignal,
    operators: Operators,
    landing: Arc<LandingPage>,
}

/// The state that one connection holds while it is open.
#[derive(Clone)]
pub(crate) struct ConnectionContext {
    pub(crate) _alive: SessionGuard,
    pub(crate) slot: Arc<CountedConnection>,
    /// The peer address of the connection.
    pub(crate) peer: IpAddr,
    /// The local (server-side) address of the connection. `None` for a Unix socket.
    pub(crate) local: Option<SocketAddr>,
    /// Whether the connection itself has TLS.
    pub(crate) has_tls: bool,
}

/// An open connection, counted in the metrics until it is dropped.
pub(crate) struct CountedConnection {
    relay: Arc<Relay>,
    entered: ConnectionPermit,
    account: Arc<OutboxAccount>,
    /// The entry in the list of open connections.
    pub(crate) listed: RosterEntry,
}

impl ConnectionContext {
    /// The account of the connection's unsent bytes.
    pub(crate) fn account(&self) -> &Arc<OutboxAccount> {
        &self.slot.account
    }
}

impl CountedConnection {
    /// Takes a slot for a connection from `peer`, or returns the reason for refusal.
    pub(crate) fn admit(relay: &Arc<Relay>, peer: IpAddr) -> Result<Self, ConnectionRefusal> {
        let settings = relay.settings();
        let (max, of_address_max) =
            (settings.limits.connections_max, settings.connections_of(peer));
        let entered = relay
            .connections
            .enter(peer, max, of_address_max)
            .or_else(|why| relay.connections.enter_for_operators(peer, why))?;
        relay.metrics.connections.add(1);
        relay.metrics.connections_open.add(1);
        let is_proxy = relay.connections.is_proxy(peer);
        let account = account(relay, (!is_proxy).then(|| peer.into()));
        let of = (relay.shelf.name(), ConnectionForm::Http);
        let listed = relay.connections.clients().list(of, peer);
        Ok(Self { relay: Arc::clone(relay), entered, account, listed })
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.relay.metrics.connections_open.sub(1);
    }
}

/// An open WebSocket, counted in the metrics until it is dropped.
struct CountedWebSocket(Arc<Relay>);

impl CountedWebSocket {
    fn new(relay: &Arc<Relay>) -> Self {
        relay.metrics.websockets_open.add(1);
        Self(Arc::clone(relay))
    }
}

impl Drop for CountedWebSocket {
    fn drop(&mut self) {
        self.0.metrics.websockets_open.sub(1);
    }
}

/// Opens an account for a connection. `address` is ignored where rate limits are off.
fn account(relay: &Relay, address: Option<ClientAddress>) -> Arc<OutboxAccount> {
    let address = address.filter(|_| !relay.unlimited);
    Arc::new(relay.outboxes.open(address, &relay.settings().limits))
}

impl WebState {
    pub(crate) fn new(relay: Arc<Relay>, operators: Operators, stop: StopSignal) -> Self {
        let landing = Arc::new(LandingPage::new(Arc::clone(&relay)));
        Self { relay, stop, operators, landing }
    }
}

/// Answers a request on the connection that holds `context`, with status 503 above the bounds of
/// the outboxes. Metrics are exempt: they are requested rarely, and mostly under high load.
pub(crate) async fn answer(
    web: WebState,
    context: ConnectionContext,
    request: Request,
) -> Response {
    let account = Arc::clone(context.account());
    let is_metrics = request.uri().path() == "/metrics";
    if let Some(why) = context.slot.entered.refused {
        return respond_to_operators(web, context, request, why).await;
    }
    let answer = respond(web, context, request).await;
    if is_metrics { answer } else { held(answer, |bytes| account.hold(bytes)) }
}

/// Answers a request on a connection that is admitted only for operators (see
/// `ConnectionPermit::refused`), and closes the connection, so that few such connections suffice.
async fn respond_to_operators(
    web: WebState,
    context: ConnectionContext,
    request: Request,
    why: ConnectionRefusal,
) -> Response {
    let peer = context.peer;
    let mut answer = if ["/healthz", "/metrics"].contains(&request.uri().path()) {
        respond(web, context, request).await
    } else {
        refuse_connection(&web.relay, peer, why)
    };
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

async fn respond(web: WebState, context: ConnectionContext, request: Request) -> Response {
    let headers = request.headers();
    let listed = &context.slot.listed;
    listed.set_agent_of(headers);
    let is_proxy = web.relay.connections.is_proxy(context.peer);
    if is_proxy {
        let named = web.relay.connections.named(headers);
        listed.set_client(context.peer, named);
        if let Some(client) = named.filter(|ip| !web.relay.connections.clients().serve(*ip)) {
            return refuse_connection(&web.relay, client, ConnectionRefusal::Denied);
        }
    }
    // A proxy may forward the path of the relay's URL or strip it, so both paths are accepted.
    let prefix = own_path(&web.relay);
    let asked = request.uri().path().to_owned();
    let path = below(&asked, &prefix);
    if header_lists(headers, UPGRADE.as_str(), "websocket") {
        // The relay has one endpoint, because the path does not change the service (NIP-01).
        return if path == "/" { upgrade(web, context, request) } else { nothing() };
    }
    if lost_upgrade(headers) {
        return refuse(&web.relay, HandshakeFault::Upgrade, &context.slot.listed);
    }
    if manage::is_path(path) && web.relay.management.has_page() {
        return admin_page(&web, &context, (&prefix, path), request).await;
    }
    if *request.method() == Method::OPTIONS {
        return cors(StatusCode::NO_CONTENT, "text/plain", Bytes::new());
    }
    let is_call = header_lists(headers, CONTENT_TYPE.as_str(), manage::MEDIA_TYPE);
    if *request.method() == Method::POST && is_call && path == "/" {
        return manage(&web.relay, &context, request).await;
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET, HEAD, OPTIONS")]).into_response();
    }
    match path {
        "/" => {}
        "/counts" => return plain("application/json", web.landing.counts_json().await),
        "/page.js" => return plain("text/javascript", landing::SCRIPT),
        "/page.css" => return plain("text/css", landing::STYLE),
        "/healthz" => return web.operators.health(),
        "/metrics" if !web.operators.are_apart() => {
            return web.operators.metrics(context.peer, headers).await;
        }
        _ => return nothing(),
    }
    if header_lists(headers, ACCEPT.as_str(), "application/nostr+json") {
        let (relay, settings) = (&web.relay, web.relay.settings());
        let identity = relay.identity.current();
        let document = nip11::document(
            &identity.info,
            &settings.limits,
            &relay.policy.load(),
            relay.has_further_rules(),
            identity.private_kinds(),
            nip11::OfferedServices::of(relay),
        );
        return cors(StatusCode::OK, "application/nostr+json", document.into());
    }
    let address = address(headers, context.has_tls);
    let LandingHtml { text, security } = web.landing.page(&address, &prefix, &web.operators).await;
    let mut answer = plain("text/html; charset=utf-8", text);
    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, security);
    answer
}

/// Answers a request to the page for managers.
async fn admin_page(
    web: &WebState,
    context: &ConnectionContext,
    (prefix, path): (&str, &str),
    request: Request,
) -> Response {
    let (relay, listed) = (&web.relay, &context.slot.listed);
    let (address, _permit) = match client(relay, context.peer, request.headers()) {
        Ok(client) => client,
        Err(why) => return refuse_connection(relay, listed.ip(), why),
    };
    let asked = AdminRequest {
        relay,
        operators: &web.operators,
        client: ManageClient { listed, address, local: own_address(context, request.headers()) },
        prefix,
        path,
        is_secure: is_secure(request.headers(), context.has_tls),
    };
    manage::answer_page(asked, request).await
}

/// The server's address on a connection. `None` behind a proxy.
fn own_address(context: &ConnectionContext, headers: &HeaderMap) -> Option<SocketAddr> {
    let is_direct = !Proxies::HEADERS.iter().any(|header| headers.contains_key(*header));
    context.local.filter(|_| is_direct)
}

/// Answers a request to the relay management API.
async fn manage(relay: &Arc<Relay>, context: &ConnectionContext, request: Request) -> Response {
    let listed = &context.slot.listed;
    let (address, _permit) = match client(relay, context.peer, request.headers()) {
        Ok(client) => client,
        Err(why) => return refuse_connection(relay, listed.ip(), why),
    };
    let local = own_address(context, request.headers());
    manage::answer(relay, ManageClient { listed, address, local }, request).await
}

fn nothing() -> Response {
    (StatusCode::NOT_FOUND, "nothing is here; the relay is at /\n").into_response()
}

/// The path of the relay's configured URL, without slashes at its end.
fn own_path(relay: &Relay) -> String {
    let identity = relay.identity.current();
    identity.info.url.as_deref().map_or("", path).to_owned()
}

/// The part of a path below `prefix`. A path elsewhere is returned unchanged.
fn below<'a>(asked: &'a str, prefix: &str) -> &'a str {
    if asked.trim_end_matches('/') == prefix {
        return "/";
    }
    let rest = asked.strip_prefix(prefix).filter(|rest| rest.starts_with('/'));
    rest.unwrap_or(asked)
}

/// The path of a URL, without slashes at its end.
fn path(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = rest.find('/').map_or("", |at| &rest[at..]);
    path.trim_end_matches('/')
}

/// The URL by which the browser reached the relay. A header that is not a host and port is ignored,
/// because the page shows the URL.
fn address(headers: &HeaderMap, has_tls: bool) -> String {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_host = |host: &&str| {
        host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte))
    };
    let host = header(HOST.as_str()).filter(is_host).unwrap_or("this address");
    let scheme = if is_secure(headers, has_tls) { "wss" } else { "ws" };
    format!("{scheme}://{host}")
}

/// Whether the client's connection has TLS, to this server or to a proxy.
fn is_secure(headers: &HeaderMap, has_tls: bool) -> bool {
    has_tls || headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https")
}

/// Returns an answer that a cache must revalidate before each use.
fn plain(content_type: &'static str, body: impl Into<Body>) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-cache"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, body.into()).into_response()
}

/// Whether the comma-separated list in a header contains `value`.
fn header_lists(headers: &HeaderMap, name: &str, value: &str) -> bool {
    headers.get_all(name).iter().filter_map(|list| list.to_str().ok()).any(|list| {
        list.split(',').any(|item| {
            let item = item.split(';').next().unwrap_or_default();
            item.trim().eq_ignore_ascii_case(value)
        })
    })
}

fn cors(status: StatusCode, content_type: &'static str, body: Bytes) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        // `*` does not cover Authorization: a browser requires the name of this header.
        (ACCESS_CONTROL_ALLOW_HEADERS, "*, Authorization"),
        (ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, OPTIONS, POST"),
    ];
    (status, headers, Body::from(body)).into_response()
}

/// Whether the warning about an untrusted proxy was logged.
static SAID: Once = Once::new();

/// Returns the client's IP address, and a permit for a client that comes through a proxy.
fn client(
    relay: &Relay,
    peer: IpAddr,
    headers: &HeaderMap,
) -> Result<(Option<IpAddr>, Option<Permit<ClientAddress>>), ConnectionRefusal> {
    if relay.connections.is_proxy(peer) {
        let Some(client) = relay.connections.named(headers) else { return Ok((None, None)) };
        let max = relay.settings().connections_of(client);
        return Ok((Some(client), relay.connections.enter_as(client, max)?));
    }
    if is_near(peer) && Proxies::HEADERS.iter().any(|header| headers.contains_key(*header)) {
        SAID.call_once(|| {
            tracing::warn!(
                "a proxy at {peer} names its clients, and is not believed: all of them count as one \
                 address. If it is yours, and sets or extends that header itself, set [server] \
                 trusted_proxies = [\"{peer}\"]"
            );
        });
    }
    Ok((Some(peer), None))
}

/// Whether `ip` is a loopback, private or link-local address.
fn is_near(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Minimum interval between two log lines about refused handshakes.
const SAID_EVERY: Duration = Duration::from_mins(1);

/// Refuses a request for a WebSocket. The client always gets the reason, the log at most once per
/// [`SAID_EVERY`].
fn refuse(relay: &Relay, fault: HandshakeFault, listed: &OpenConnection) -> Response {
    static SAID_AT: Mutex<Option<Instant>> = Mutex::new(None);
    let refused = relay.metrics.handshakes_refused.of(fault);
    refused.add(1);
    let mut said_at = SAID_AT.lock();
    if said_at.is_none_or(|at| at.elapsed() >= SAID_EVERY) {
        *said_at = Some(Instant::now());
        let (refused, reason) = (refused.get(), fault.words());
        let peer = relay.settings().addresses_shown.show(listed.ip());
        tracing::warn!(%peer, refused, reason, "a request for a WebSocket was refused");
    }
    drop(said_at);
    listed.refuse(&ClientRefusal {
        verb: "connect",
        verdict: "invalid",
        reason: fault.words(),
        is_of_record: false,
        is_logged: true,
    });
    fault.answer()
}

/// Counts a refused connection, and logs its client if the client is refused again and again.
pub(super) fn note_refused_connection(relay: &Relay, peer: IpAddr, why: ConnectionRefusal) {
    relay.metrics.turned_away.of(why).add(1);
    let refusal = ClientRefusal {
        verb: "connect",
        verdict: why.name(),
        reason: refusal_response(why).1.trim_end(),
        is_of_record: false,
        // If the server is full, its clients are not at fault.
        is_logged: why != ConnectionRefusal::Full,
    };
    relay.connections.clients().roster().refusals().note(peer, || None, &refusal);
}

/// Counts a refused connection, and returns the answer to its request.
fn refuse_connection(relay: &Relay, peer: IpAddr, why: ConnectionRefusal) -> Response {
    note_refused_connection(relay, peer, why);
    refusal_response(why).into_response()
}

fn upgrade(web: WebState, context: ConnectionContext, request: Request) -> Response {
    if context.slot.entered.is_beyond {
        let ip = context.slot.listed.ip();
        return refuse_connection(&web.relay, ip, ConnectionRefusal::Address);
    }
    let (mut parts, _) = request.into_parts();
    let listed = &context.slot.listed;
    let (address, permit) = match client(&web.relay, context.peer, &parts.headers) {
        Ok(client) => client,
        Err(why) => return refuse_connection(&web.relay, listed.ip(), why),
    };
    let message_bytes_max = web.relay.settings().limits.message_bytes_max;
    let handshake = Handshake::new(&mut parts, &web.relay.deflate, message_bytes_max);
    let (handshake, answer) = match handshake {
        Ok(handshake) => handshake,
        Err(fault) => return refuse(&web.relay, fault, &context.slot.listed),
    };
    let caller = web.relay.auth.caller(own_address(&context, &parts.headers));
    listed.set_form(ConnectionForm::WebSocket);
    let rated = RatedConnection::new(&web.relay.rates, Arc::clone(listed), address);
    let account = match address {
        Some(client) if web.relay.connections.is_proxy(context.peer) => {
            account(&web.relay, Some(client.into()))
        }
        _ => Arc::clone(context.account()),
    };
    tokio::spawn(async move {
        if let Some(socket) = handshake.finish().await {
            let _counted = CountedWebSocket::new(&web.relay);
            session::run(socket, caller, rated, account, web.relay, web.stop).await;
        }
        drop((permit, context));
    });
    answer
}
