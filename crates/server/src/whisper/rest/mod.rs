//! The REST API of the mail server. `openapi.json` describes the API, and is served along with the
//! API.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use super::mail_server::MailServer;
use crate::listener::Listener;
use crate::rest::{self, RestAnswer, RestGuard, guard};
use crate::stop::StopSignal;
use state::{BODY_TYPES, MailState, RestMail};

mod envelopes;
mod messages;
mod state;
mod stream;

/// The description of the API for programs (OpenAPI 3).
const OPENAPI: &str = include_str!("openapi.json");

/// Serves until `stop` is signalled and the requests in progress are answered.
pub(super) async fn serve(listener: Arc<Listener>, stop: StopSignal, mail: Arc<MailServer>) {
    let (network, answers) = (mail.service.shelf.name(), mail.service.answers.clone());
    rest::serve(listener, network, stop, routes(mail), answers).await;
}

fn routes(mail: Arc<MailServer>) -> Router {
    let own_guard = RestGuard {
        clients: mail.clients.clone(),
        access: mail.config.access.clone(),
        section: "whisper",
        body_types: &BODY_TYPES,
    };
    let state = Arc::new(RestMail::new(mail));
    Router::new()
        .route("/whisper/envelopes", post(envelopes::publish))
        .route("/whisper/messages", post(messages::history))
        .route("/health", get(health))
        .route("/version", get(version))
        .route("/openapi.json", get(async || RestAnswer::json(OPENAPI)))
        .fallback(async || RestAnswer::nothing_here())
        .layer(from_fn_with_state(Arc::new(own_guard), guard))
        .with_state(state)
}

async fn health(State(rest): MailState) -> RestAnswer {
    match rest.mail.service.shelf.trouble() {
        None => RestAnswer::ok(),
        Some(trouble) => RestAnswer::words(StatusCode::SERVICE_UNAVAILABLE, trouble),
    }
}

async fn version() -> RestAnswer {
    RestAnswer::words(StatusCode::OK, concat!("hark-v", env!("CARGO_PKG_VERSION")))
}
