//! HTTP endpoints for operators' programs: `/healthz` (whether the server serves and writes) and
//! `/metrics`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, FORWARDED};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use ipnet::IpNet;

use super::prometheus;
use super::reload::ReloadDesk;
use crate::blocking;
use crate::clients::Clients;
use crate::connections::Connections;
use crate::door::{Host, OpenNetwork};
use crate::error::ServeError;
use crate::growth::{GrowthLog, GrowthRecorder};
use crate::hosts;
use crate::http::{self, ConnectionTimeouts};
use crate::listener::Listener;
use crate::metrics::CONTENT_TYPE as METRICS;
use crate::ranges;
use crate::settings::SharedSettings;
use crate::shelf::Shelf;
use crate::stop::StopSignal;
use crate::tls::TlsEndpoint;

/// Maximum number of simultaneous connections to the address `server.metrics_listen`.
const CONNECTIONS_MAX: usize = 32;
/// Maximum duration of a connection to that address.
const CONNECTION_MAX: Duration = Duration::from_mins(1);

/// The addresses that may read `/metrics`, and the address that serves this page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsDoor {
    /// A separate address for `/metrics` and `/healthz`. If it is set, no other door serves
    /// `/metrics`.
    pub listen: Option<SocketAddr>,
    /// Addresses that may read `/metrics`.
    pub allow: Vec<IpNet>,
}

impl Default for MetricsDoor {
    fn default() -> Self {
        Self { listen: None, allow: ranges::LOOPBACK.to_vec() }
    }
}

/// The listener of `server.metrics_listen`, if this address is configured, and the client addresses
/// that may read the metrics.
pub(crate) struct OperatorsDoor {
    /// The listener, and its address.
    listener: Option<(Listener, SocketAddr)>,
    allow: Vec<IpNet>,
    version: &'static str,
}

impl OperatorsDoor {
    /// Listens on `server.metrics_listen`, if this address is configured.
    pub(crate) fn open(
        door: MetricsDoor,
        version: Option<&'static str>,
        host: &mut Host<'_>,
    ) -> Result<Self, ServeError> {
        let listen = |addr| host.listen(addr, "server.metrics_listen");
        let listener = door.listen.map(listen).transpose()?;
        let version = version.unwrap_or(env!("CARGO_PKG_VERSION"));
        Ok(Self { listener, allow: door.allow, version })
    }

    /// The listener of `server.metrics_listen`. `None` if this address is not configured.
    pub(crate) fn listener(&self) -> Option<&Listener> {
        self.listener.as_ref().map(|(listener, _)| listener)
    }

    /// The address `server.metrics_listen`. `None` if this address is not configured.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref().map(|(_, addr)| *addr)
    }

    /// Creates the handler of requests for `/healthz` and `/metrics`, for `server.metrics_listen`
    /// and for other doors.
    pub(crate) fn operators(
        &self,
        networks: &Arc<[OpenNetwork]>,
        settings: &SharedSettings,
        desk: &Arc<ReloadDesk>,
        tls: Option<Arc<TlsEndpoint>>,
        growth: Option<Arc<GrowthRecorder>>,
        stop: StopSignal,
    ) -> Operators {
        Operators {
            networks: Arc::clone(networks),
            settings: Arc::clone(settings),
            desk: Arc::clone(desk),
            tls,
            growth,
            allow: self.allow.as_slice().into(),
            apart: self.listener.is_some(),
            version: self.version,
            stop,
        }
    }

    /// Serves `server.metrics_listen` until the server shuts down. Returns at once if the
    /// configuration has no such address.
    pub(crate) async fn serve(self, operators: Operators) {
        let Some(sockets) = self.listener.and_then(|(listener, _)| listener.take()) else { return };
        let bounds = ConnectionTimeouts {
            head_timeout: CONNECTION_MAX,
            connection_max: Some(CONNECTION_MAX),
        };
        let stop = operators.stop.clone();
        // The lists of allowed and denied clients do not apply here: `metrics_allow` decides which
        // addresses may read the metrics.
        let connections = Connections::new(Clients::default(), false);
        let enter = |peer| connections.enter(peer, CONNECTIONS_MAX, CONNECTIONS_MAX);
        let answer = move |peer, request| operators.clone().answer(peer, request);
        // The clients' bounds do not count these answers: there are few connections, and the
        // answers are short.
        http::serve(sockets, stop, bounds, enter, answer, None).await;
    }
}

/// Answers the requests of operators' programs. Cheap to clone.
#[derive(Clone)]
pub struct Operators {
    networks: Arc<[OpenNetwork]>,
    settings: SharedSettings,
    desk: Arc<ReloadDesk>,
    tls: Option<Arc<TlsEndpoint>>,
    growth: Option<Arc<GrowthRecorder>>,
    /// Addresses that may read the metrics.
    allow: Arc<[IpNet]>,
    /// Whether `server.metrics_listen` is configured.
    apart: bool,
    version: &'static str,
    stop: StopSignal,
}

impl Operators {
    /// Whether `/metrics` is served on `server.metrics_listen` alone.
    pub fn are_apart(&self) -> bool {
        self.apart
    }

    /// Returns status 200 while records are accepted, stored and mirrored, else 503 with all
    /// reasons, one per line. Further lines list decisions that the operator has to make, and
    /// advice. With several shelves, each line about a shelf begins with the shelf's name.
    pub fn health(&self) -> Response {
        let (is_healthy, lines) = self.health_lines();
        let status = if is_healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, lines).into_response()
    }

    /// Whether records are accepted, stored and mirrored, and the lines of [`Operators::health`].
    pub(crate) fn health_lines(&self) -> (bool, String) {
        let mut lines = String::new();
        if self.stop.is_down() {
            lines.push_str("going down\n");
        }
        let settings = self.settings.load();
        for OpenNetwork { shelf, .. } in &*self.networks {
            for reason in shelf.troubles(settings.mirror_stuck_after) {
                self.add_line(&mut lines, shelf, &reason);
            }
        }
        let is_healthy = lines.is_empty();
        if is_healthy {
            lines.push_str("ok\n");
        }
        // The reason is not shown: any client may send this request, and the reason may quote a
        // configured list.
        if self.desk.last().refusal.is_some() {
            lines.push_str(
                "the new configuration is refused, and the earlier one stays in force; the log and \
                 `hark stats` say why\n",
            );
        }
        // These lines apply to all doors.
        lines.extend(
            settings.addresses.warn_if_none_allowed().iter().flat_map(|words| [words, "\n"]),
        );
        for OpenNetwork { shelf, door } in &*self.networks {
            for question in shelf.questions() {
                self.add_line(&mut lines, shelf, question);
            }
            for advice in door.advice() {
                self.add_line(&mut lines, shelf, &advice);
            }
        }
        (is_healthy, lines)
    }

    /// The networks that this server serves.
    pub(crate) fn networks(&self) -> Arc<[OpenNetwork]> {
        Arc::clone(&self.networks)
    }

    /// The sizes of the shelves in the last days. `None` if this server does not note the sizes.
    pub(crate) fn growth_log(&self) -> Option<Arc<GrowthLog>> {
        self.growth.as_ref().map(|growth| growth.log())
    }

    /// Adds a line about a shelf.
    fn add_line(&self, lines: &mut String, shelf: &Shelf, words: &str) {
        if self.networks.len() > 1 {
            lines.push_str(shelf.name());
            lines.push_str(": ");
        }
        // The text may contain line breaks, such as those of a database error.
        lines.extend(words.lines().flat_map(|line| [line.trim(), " "]));
        lines.truncate(lines.trim_end().len());
        lines.push('\n');
    }

    /// Returns the page for Prometheus, or status 403 for an address that may not read the page.
    pub async fn metrics(&self, peer: IpAddr, headers: &HeaderMap) -> Response {
        if !ranges::contain(&self.allow, peer) {
            let text = "not for this address; server.metrics_allow lists those that may read it\n";
            return (StatusCode::FORBIDDEN, text).into_response();
        }
        // A proxy on this machine connects from an address of this machine, even if the proxy's
        // client is remote.
        if is_passed_on(headers) {
            let text = "not through a proxy; ask this server itself\n";
            return (StatusCode::FORBIDDEN, text).into_response();
        }
        // A web page, open in a browser at an allowed address, may point its own host name at this
        // server (DNS rebinding). This check is pointless where any address may read the page.
        let is_public = self.allow.iter().any(|all| all.prefix_len() == 0 && all.contains(&peer));
        let names = || self.networks.iter().flat_map(|network| network.door.host_names()).collect();
        if !is_public && !hosts::are_own(headers, names()) {
            let text = "not under this name; use an address, localhost, this machine's name, or one that \
                        [info] url or other_urls has\n";
            return (StatusCode::FORBIDDEN, text).into_response();
        }
        let (networks, desk) = (Arc::clone(&self.networks), Arc::clone(&self.desk));
        let (version, tls, growth) = (self.version, self.tls.clone(), self.growth.clone());
        // This work blocks: it reads system files and the state of all segments.
        let page = move || {
            prometheus::page(version, &networks, &desk.last(), tls.as_deref(), growth.as_deref())
        };
        match blocking::run(page).await {
            Ok(page) => ([(CONTENT_TYPE, METRICS)], page).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }

    async fn answer(self, peer: IpAddr, request: Request<Incoming>) -> Response {
        match request.uri().path() {
            "/healthz" => self.health(),
            "/metrics" => self.metrics(peer, request.headers()).await,
            _ => (StatusCode::NOT_FOUND, "this address serves /metrics and /healthz\n")
                .into_response(),
        }
    }
}

/// Whether the headers show that a proxy forwards the request of another client.
fn is_passed_on(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED)
        || headers.contains_key("x-forwarded-for")
        || headers.contains_key("x-real-ip")
}
