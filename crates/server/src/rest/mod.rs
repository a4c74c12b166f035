//! Shared parts of the REST interfaces of all networks: access control, connections, and plain
//! answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use crate::answers::Answers;
use crate::http::{self, ConnectionTimeouts, ServedClients};
use crate::listener::Listener;
use crate::stop::StopSignal;

mod bodies;
mod guard;

pub(crate) use bodies::{BodyPermits, body_length, bounded_body, source};
pub use guard::WebAccess;
pub(crate) use guard::{RestClientAddress, RestGuard, guard, without_port};

/// Maximum number of connections of one interface at a time. Further connections are refused with
/// status 503. The bound per address is the same as for the relay.
const CONNECTIONS_MAX: usize = 2_048;
/// How long a connection may be idle between two requests, and how long a request's head may take.
const REST_MAX: Duration = Duration::from_mins(1);
/// How long a request may take, from its head to the head of its answer.
const REQUEST_MAX: Duration = Duration::from_mins(1);

/// An HTTP answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RestAnswer {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
}

impl RestAnswer {
    /// An answer in JSON.
    pub(crate) fn json(body: impl Into<Bytes>) -> Self {
        Self { status: StatusCode::OK, content_type: "application/json", body: body.into() }
    }

    /// An answer in plain text.
    pub(crate) fn words(status: StatusCode, words: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain", body: words.into().into() }
    }

    /// The answer to a request that succeeded and has no result.
    pub(crate) fn ok() -> Self {
        Self::words(StatusCode::OK, "OK")
    }

    /// The answer to a request that is wrong.
    pub(crate) fn refused(words: impl Into<String>) -> Self {
        Self::words(StatusCode::BAD_REQUEST, words)
    }

    /// The answer to a request for a path that does not exist.
    pub(crate) fn nothing_here() -> Self {
        let words = "nothing is here; /openapi.json lists the paths\n";
        Self::words(StatusCode::NOT_FOUND, words)
    }
}

impl IntoResponse for RestAnswer {
    fn into_response(self) -> Response {
        (self.status, [(CONTENT_TYPE, self.content_type)], self.body).into_response()
    }
}

/// Serves the interface of a network until `stop` is signalled and the requests under way are
/// answered.
pub(crate) async fn serve(
    listener: Arc<Listener>,
    network: &'static str,
    stop: StopSignal,
    routes: Router,
    answers: Answers,
) {
    let bounds = ConnectionTimeouts { head_timeout: REST_MAX, connection_max: None };
    let Some(sockets) = listener.take() else { return };
    let enter = |peer| listener.enter(peer, CONNECTIONS_MAX);
    let service = TowerToHyperService::new(routes);
    let answer = move |peer: IpAddr, mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let answer = service.call(request);
        async move {
            match tokio::time::timeout(REQUEST_MAX, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(never)) => match never {},
                Err(_) => {
                    let words = format!("the request took more than {} s\n", REQUEST_MAX.as_secs());
                    (StatusCode::SERVICE_UNAVAILABLE, words).into_response()
                }
            }
        }
    };
    let clients = listener.connections().clients().clone();
    let served = ServedClients { clients, network, answers };
    http::serve(sockets, stop, bounds, enter, answer, Some(served)).await;
}
