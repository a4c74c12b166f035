//! What operators' programs ask over HTTP: `/healthz` (does it serve and write?) and `/metrics`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, FORWARDED};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use hark_archive::writer::Writer;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::prometheus;
use crate::http::{self, Bounds};
use crate::network::Network;
use crate::nostr::Relay;
use crate::waku::Waku;

/// Connections to the operators' own address at a time. One more is closed at once.
const CONNECTIONS_MAX: usize = 32;
/// How long one of them may last.
const CONNECTION_MAX: Duration = Duration::from_mins(1);

/// What is needed to answer. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handles {
    pub(crate) relay: Arc<Relay>,
    /// The Waku node beside it, if there is one.
    pub(crate) waku: Option<Arc<Waku>>,
    pub(crate) leaving: watch::Receiver<bool>,
    /// Who may read the metrics.
    pub(crate) allow: Arc<[Network]>,
}

/// How long one batch of writes may take before the archive counts as stuck.
const COMMIT_MAX: Duration = Duration::from_secs(10);

/// Why an archive takes no writes, while it does not.
pub(crate) fn trouble(writer: &Writer) -> Option<String> {
    let counters = writer.counters();
    if let Some(reason) = counters.stopped.get() {
        return Some(format!("the archive takes no more writes: {reason}"));
    }
    if let Some(reason) = counters.unavailable() {
        return Some(format!("the last events were not kept: {reason}"));
    }
    let stuck = counters.committing_for().filter(|time| *time > COMMIT_MAX)?;
    Some(format!("the disk has not finished a write for {} s", stuck.as_secs()))
}

impl Handles {
    /// 200 while events are taken and kept, else 503 with the reason.
    pub(crate) fn health(&self) -> Response {
        let trouble = if *self.leaving.borrow() {
            Some("going down".to_owned())
        } else {
            self.relay.trouble().or_else(|| self.waku.as_ref()?.trouble())
        };
        match trouble {
            None => (StatusCode::OK, "ok\n").into_response(),
            Some(reason) => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response()
            }
        }
    }

    /// The page for Prometheus, to those who may read it.
    pub(crate) async fn metrics(&self, peer: IpAddr, headers: &HeaderMap) -> Response {
        if !self.allow.iter().any(|network| network.contains(peer)) {
            let text = "not for this address; server.metrics_allow names those that may read it\n";
            return (StatusCode::FORBIDDEN, text).into_response();
        }
        // A proxy on this machine has an address of this machine, whoever stands before it.
        if is_passed_on(headers) {
            let text = "not through a proxy; ask this server itself\n";
            return (StatusCode::FORBIDDEN, text).into_response();
        }
        let (relay, waku) = (Arc::clone(&self.relay), self.waku.clone());
        // Reads files of the system and takes a look at all segments: no work for this thread.
        match tokio::task::spawn_blocking(move || prometheus::page(&relay, waku.as_deref())).await {
            Ok(page) => ([(CONTENT_TYPE, prometheus::CONTENT_TYPE)], page).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }

    async fn answer(self, peer: IpAddr, request: Request<Incoming>) -> Response {
        match request.uri().path() {
            "/healthz" => self.health(),
            "/metrics" => self.metrics(peer, request.headers()).await,
            _ => (StatusCode::NOT_FOUND, "here are /metrics and /healthz\n").into_response(),
        }
    }
}

/// Whether a proxy says that it asks for somebody else.
fn is_passed_on(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED)
        || headers.contains_key("x-forwarded-for")
        || headers.contains_key("x-real-ip")
}

/// Serves the operators' own address until the server goes down.
pub(crate) async fn serve(listener: TcpListener, handles: Handles) {
    let bounds = Bounds {
        connections_max: CONNECTIONS_MAX,
        head_timeout: CONNECTION_MAX,
        connection_max: Some(CONNECTION_MAX),
    };
    let leaving = handles.leaving.clone();
    let answer = move |peer, request| handles.clone().answer(peer, request);
    http::serve(listener, leaving, bounds, answer).await;
}
