//! What operators' programs ask over HTTP: `/healthz` (does it serve and write?) and `/metrics`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, FORWARDED};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::prometheus;
use crate::network::Network;
use crate::nostr::Relay;

/// Connections to the operators' own address at a time. One more is closed at once.
const CONNECTIONS_MAX: usize = 32;
/// How long one of them may last.
const CONNECTION_MAX: Duration = Duration::from_mins(1);

/// What is needed to answer. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handles {
    pub(crate) relay: Arc<Relay>,
    pub(crate) leaving: watch::Receiver<bool>,
    /// Who may read the metrics.
    pub(crate) allow: Arc<[Network]>,
}

impl Handles {
    /// 200 while events are taken and kept, else 503 with the reason.
    pub(crate) fn health(&self) -> Response {
        let trouble = if *self.leaving.borrow() {
            Some("going down".to_owned())
        } else {
            self.relay.trouble()
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
        let relay = Arc::clone(&self.relay);
        // Reads files of the system and takes a look at all segments: no work for this thread.
        match tokio::task::spawn_blocking(move || prometheus::page(&relay)).await {
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
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut leaving = handles.leaving.clone();
    loop {
        let accepted = tokio::select! {
            _ = leaving.wait_for(|leaving| *leaving) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            // Out of files, most likely: those that end make room.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&slots).try_acquire_owned() else { continue };
        let handles = handles.clone();
        tokio::spawn(async move {
            let mut leaving = handles.leaving.clone();
            tokio::select! {
                _ = leaving.wait_for(|leaving| *leaving) => {}
                () = connection(stream, peer.ip(), handles) => {}
            }
            drop(permit);
        });
    }
}

async fn connection(stream: TcpStream, peer: IpAddr, handles: Handles) {
    let service = service_fn(move |request| {
        let answer = handles.clone().answer(peer, request);
        async { Ok::<Response<Body>, std::convert::Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_MAX)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service);
    // Whether the other side got its answer is its own affair.
    let _ = tokio::time::timeout(CONNECTION_MAX, connection).await;
}
