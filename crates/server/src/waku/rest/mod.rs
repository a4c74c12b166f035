//! The HTTP door: nwaku's REST interface, as far as a store needs it. `openapi.json` describes the
//! interface and is served with it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hark_codec::waku::store::Status;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tokio::sync::OwnedSemaphorePermit;

use super::history::HistoryError;
use super::metrics::{AnswerStatus, QuestionSource};
use super::poll::PollTopic;
use super::{PermittedPage, WakuNode};
use crate::http::{self, ConnectionTimeouts};
use crate::listener::Listener;
use crate::rate::RateSource;
use crate::stop::StopSignal;

mod admin;
mod guard;
mod health;
mod relay;
mod store;

pub use guard::RestAccess;
use guard::RestClientAddress;

/// Maximum number of connections at a time. Further ones are refused with status 503. The bound of
/// an address is that of the relay.
const CONNECTIONS_MAX: usize = 2_048;
/// How long a connection may be idle between two requests, and how long a request's head may take.
const REST_MAX: Duration = Duration::from_mins(1);
/// How long a request may take, from its head to its answer.
const REQUEST_MAX: Duration = Duration::from_mins(1);

/// The description of the interface for programs (OpenAPI 3).
const OPENAPI: &str = include_str!("openapi.json");

/// An HTTP answer.
#[derive(Debug, PartialEq, Eq)]
struct RestAnswer {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
}

impl RestAnswer {
    fn json(body: impl Into<Bytes>) -> Self {
        Self { status: StatusCode::OK, content_type: "application/json", body: body.into() }
    }

    fn words(status: StatusCode, words: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain", body: words.into().into() }
    }

    fn ok() -> Self {
        Self::words(StatusCode::OK, "OK")
    }

    fn refused(words: impl Into<String>) -> Self {
        Self::words(StatusCode::BAD_REQUEST, words)
    }
}

impl IntoResponse for RestAnswer {
    fn into_response(self) -> Response {
        (self.status, [(CONTENT_TYPE, self.content_type)], self.body).into_response()
    }
}

/// An answer, with the memory permit that it holds until it is sent.
struct PermittedJson {
    json: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for PermittedJson {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

type WakuState = State<Arc<WakuNode>>;

/// Serves until `stop`, and until the requests under way are answered.
pub(super) async fn serve(listener: Arc<Listener>, stop: StopSignal, waku: Arc<WakuNode>) {
    let bounds = ConnectionTimeouts { head_timeout: REST_MAX, connection_max: None };
    let Some(socket) = listener.take() else { return };
    let enter = |peer| listener.enter(peer, CONNECTIONS_MAX);
    let service = TowerToHyperService::new(routes(waku));
    let answer = move |peer: IpAddr, mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let answer = service.call(request);
        async move {
            match tokio::time::timeout(REQUEST_MAX, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(never)) => match never {},
                Err(_) => {
                    let words = format!("it took more than {} s\n", REQUEST_MAX.as_secs());
                    (StatusCode::SERVICE_UNAVAILABLE, words).into_response()
                }
            }
        }
    };
    http::serve(socket, stop, bounds, enter, answer).await;
}

fn routes(waku: Arc<WakuNode>) -> Router {
    // Base64 takes four bytes for three, and there is JSON around it.
    let body_max = waku.config.message_bytes_max * 2;
    let subscriptions = |auto: bool| {
        let add = move |State(waku): WakuState, body: Bytes| async move {
            relay::subscribe(&waku, &body, auto)
        };
        let remove = move |State(waku): WakuState, body: Bytes| async move {
            relay::unsubscribe(&waku, &body, auto)
        };
        post(add).delete(remove)
    };
    Router::new()
        .route("/store/v3/messages", get(history))
        .route("/relay/v1/messages/{topic}", get(poll).post(publish))
        .route("/relay/v1/auto/messages", post(publish_auto))
        .route("/relay/v1/auto/messages/{topic}", get(poll_auto))
        .route("/relay/v1/subscriptions", subscriptions(false))
        .route("/relay/v1/auto/subscriptions", subscriptions(true))
        .route("/health", get(async |State(waku): WakuState| health::health(&waku).await))
        .route("/info", get(info))
        .route("/debug/v1/info", get(info))
        .route("/version", get(version))
        .route("/debug/v1/version", get(version))
        .route("/openapi.json", get(async || RestAnswer::json(OPENAPI)))
        .fallback(async || {
            RestAnswer::words(
                StatusCode::NOT_FOUND,
                "nothing is here; /openapi.json says what there is\n",
            )
        })
        .merge(admin::routes(waku.config.access.admin))
        .layer(DefaultBodyLimit::max(body_max))
        .layer(from_fn_with_state(Arc::clone(&waku), guard::guard))
        .with_state(waku)
}

async fn history(
    State(waku): WakuState,
    Extension(RestClientAddress(client)): Extension<RestClientAddress>,
    RawQuery(query): RawQuery,
) -> RestAnswer {
    let parameters = match store::StoreParameters::parse(&query.unwrap_or_default()) {
        Ok(parameters) => parameters,
        Err(words) => {
            waku.metrics.queries.of(QuestionSource::Client).of(AnswerStatus::BadRequest).add(1);
            return RestAnswer::refused(words);
        }
    };
    if let Some(addr) = &parameters.peer_addr {
        return store::from_peer(waku.ask_peer(addr, &parameters.request()).await);
    }
    let told = waku.page(RateSource::Address(client.into()), &parameters.request()).await;
    let status = told.as_ref().map_or_else(HistoryError::status, |_| Status::Success);
    waku.metrics.queries.of(QuestionSource::Client).of(status.into()).add(1);
    match told {
        Ok(PermittedPage { page, room }) => {
            let json = store::json(&page, parameters.include_data);
            RestAnswer::json(Bytes::from_owner(PermittedJson { json, _room: room }))
        }
        Err(refusal) => store::refused(&refusal),
    }
}

async fn publish(State(waku): WakuState, Path(topic): Path<String>, body: Bytes) -> RestAnswer {
    relay::publish(&waku, &body, Some(topic)).await
}

async fn publish_auto(State(waku): WakuState, body: Bytes) -> RestAnswer {
    relay::publish(&waku, &body, None).await
}

async fn poll(State(waku): WakuState, Path(topic): Path<String>) -> RestAnswer {
    relay::poll(&waku, PollTopic::Pubsub(topic))
}

async fn poll_auto(State(waku): WakuState, Path(topic): Path<String>) -> RestAnswer {
    relay::poll(&waku, PollTopic::Content(topic))
}

async fn info(State(waku): WakuState) -> RestAnswer {
    let info = serde_json::json!({ "listenAddresses": waku.addresses(), "enrUri": "" });
    RestAnswer::json(info.to_string())
}

async fn version() -> RestAnswer {
    RestAnswer::words(StatusCode::OK, concat!("hark-v", env!("CARGO_PKG_VERSION")))
}
