//! The REST API: the part of nwaku's REST API that a store needs. `openapi.json` describes the API,
//! and is served along with the API.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Path, RawQuery, State};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use hark_codec::waku::store::Status;
use hark_networks::waku::history::HistoryError;

use super::metrics::{AnswerStatus, QuestionSource};
use super::node::WakuNode;
use super::poll::PollTopic;
use crate::answers::PermittedAnswer;
use crate::listener::Listener;
use crate::rate::RateSource;
use crate::rest::{
    self, BodyPermits, RestAnswer, RestClientAddress, RestGuard, bounded_body, guard,
};
use crate::stop::StopSignal;
use state::WakuState;

mod admin;
mod filter;
mod health;
mod light_push;
mod relay;
mod state;
mod store;

/// The description of the API for programs (OpenAPI 3).
const OPENAPI: &str = include_str!("openapi.json");

/// Serves until `stop` is signalled and the requests in progress are answered.
pub(super) async fn serve(listener: Arc<Listener>, stop: StopSignal, waku: Arc<WakuNode>) {
    let (network, answers) = (waku.service.shelf.name(), waku.service.answers.clone());
    rest::serve(listener, network, stop, routes(waku), answers).await;
}

fn routes(waku: Arc<WakuNode>) -> Router {
    let own_guard = RestGuard {
        clients: waku.clients.clone(),
        access: waku.config.access.web.clone(),
        section: "waku",
        body_types: &["application/json"],
    };
    // Base64 takes four bytes for three. The rest of the bound is for the surrounding JSON.
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
        .route("/filter/v2/subscriptions", filter_subscriptions())
        .route(
            "/filter/v2/subscriptions/all",
            axum::routing::delete(async |State(waku): WakuState, body: Bytes| {
                filter::unsubscribe_all(&waku, &body)
            }),
        )
        .route("/filter/v2/subscriptions/{requestId}", get(filter_ping))
        .route("/filter/v2/messages/{contentTopic}", get(filter_messages))
        .route("/lightpush/v3/message", post(light_push))
        .route("/lightpush/v1/message", post(legacy_light_push))
        .route("/health", get(async |State(waku): WakuState| health::health(&waku).await))
        .route("/info", get(info))
        .route("/debug/v1/info", get(info))
        .route("/version", get(version))
        .route("/debug/v1/version", get(version))
        .route("/openapi.json", get(async || RestAnswer::json(OPENAPI)))
        .fallback(async || RestAnswer::nothing_here())
        .merge(admin::routes(waku.config.access.admin))
        .layer(DefaultBodyLimit::max(body_max))
        .layer(from_fn_with_state((BodyPermits::default(), body_max), bounded_body))
        .layer(from_fn_with_state(Arc::new(own_guard), guard))
        .with_state(waku)
}

async fn history(
    State(waku): WakuState,
    Extension(RestClientAddress(client)): Extension<RestClientAddress>,
    RawQuery(query): RawQuery,
) -> RestAnswer {
    let parameters = match store::StoreParameters::parse(&query.unwrap_or_default()) {
        Ok(parameters) => parameters,
        Err(fault) => {
            waku.metrics.queries.of(QuestionSource::Client).of(AnswerStatus::BadRequest).add(1);
            return RestAnswer::refused(fault.to_string());
        }
    };
    let source = RateSource::Address(client.into());
    let store::StoreParameters { peer_addr, request } = parameters;
    if let Some(addr) = &peer_addr {
        return match waku.admit_peer_question(source) {
            Ok(_permit) => store::from_peer(waku.ask_peer(addr, &request).await),
            Err(refusal) => store::refused(&refusal),
        };
    }
    let page = waku.page(source, || Ok(request)).await;
    let status = page.as_ref().map_or_else(HistoryError::status, |_| Status::Success);
    waku.metrics.queries.of(QuestionSource::Client).of(status.into()).add(1);
    match page {
        // The connection acquires its own permit for the answer's bytes, and holds this permit
        // until the client has read the answer. So the page and its permit are dropped here.
        Ok(PermittedAnswer { page, room: _room }) => RestAnswer::json(store::json(&page)),
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

fn filter_subscriptions() -> MethodRouter<Arc<WakuNode>> {
    let subscribe = async |State(waku): WakuState, body: Bytes| filter::subscribe(&waku, &body);
    let unsubscribe = async |State(waku): WakuState, body: Bytes| filter::unsubscribe(&waku, &body);
    post(subscribe).put(subscribe).delete(unsubscribe)
}

async fn filter_ping(State(waku): WakuState, Path(request_id): Path<String>) -> RestAnswer {
    filter::ping(&waku, &request_id)
}

async fn filter_messages(State(waku): WakuState, Path(topic): Path<String>) -> RestAnswer {
    filter::messages(&waku, &topic)
}

async fn light_push(
    State(waku): WakuState,
    Extension(RestClientAddress(client)): Extension<RestClientAddress>,
    body: Bytes,
) -> RestAnswer {
    light_push::push(&waku, RateSource::Address(client.into()), &body).await
}

async fn legacy_light_push(
    State(waku): WakuState,
    Extension(RestClientAddress(client)): Extension<RestClientAddress>,
    body: Bytes,
) -> RestAnswer {
    light_push::push_legacy(&waku, RateSource::Address(client.into()), &body).await
}

async fn info(State(waku): WakuState) -> RestAnswer {
    let record = waku.record().unwrap_or_default();
    let info = serde_json::json!({ "listenAddresses": waku.addresses(), "enrUri": record });
    RestAnswer::json(info.to_string())
}

async fn version() -> RestAnswer {
    RestAnswer::words(axum::http::StatusCode::OK, concat!("hark-v", env!("CARGO_PKG_VERSION")))
}
