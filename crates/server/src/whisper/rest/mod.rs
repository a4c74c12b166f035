//! The HTTP interface of the mail server. `openapi.json` describes the interface, and is served
//! along with the interface.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};

use super::MailServer;
use crate::listener::Listener;
use crate::permits::{Share, Shares};
use crate::rate::RateSource;
use crate::rest::{self, RestAnswer, RestClientAddress, RestGuard, guard};
use crate::stop::StopSignal;

mod envelopes;
mod messages;
mod stream;

/// Maximum size of a request's body, in bytes. If a single envelope may be longer, the maximum is
/// larger.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum size of the bodies that are being received from all clients, in bytes.
const BODIES_BYTES_MAX: usize = 128 << 20;
/// The types of bodies: RLP and JSON.
const BODY_TYPES: [&str; 2] = [RLP, JSON];
/// The media type of RLP.
const RLP: &str = "application/octet-stream";
const JSON: &str = "application/json";

/// The description of the interface for programs (OpenAPI 3).
const OPENAPI: &str = include_str!("openapi.json");

/// The state that requests share.
struct RestMail {
    mail: Arc<MailServer>,
    /// Permits, in bytes, for bodies that are being received.
    bodies: Shares<RateSource>,
}

type MailState = State<Arc<RestMail>>;

/// A body and its memory permit.
struct PermittedBody {
    bytes: Bytes,
    _room: Share<RateSource>,
}

impl RestMail {
    /// Receives the body of a request. Refuses the request if the memory for bodies is used up.
    async fn body(&self, request: Request) -> Result<PermittedBody, RestAnswer> {
        let envelope = self.mail.settings().bounds.envelope_bytes_max;
        let bytes_max = BODY_BYTES_MAX.max(envelope.saturating_add(1 << 10));
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        let bytes = length.unwrap_or(bytes_max);
        if bytes > bytes_max {
            let words = format!("a body has at most {bytes_max} bytes\n");
            return Err(RestAnswer::words(StatusCode::PAYLOAD_TOO_LARGE, words));
        }
        let room = self.bodies.take(source(&request), bytes.clamp(1, BODIES_BYTES_MAX));
        let busy = "too many requests are being received; try again later\n";
        let room = room.ok_or_else(|| RestAnswer::words(StatusCode::SERVICE_UNAVAILABLE, busy))?;
        let bytes = to_bytes(request.into_body(), bytes_max).await;
        let bytes = bytes.map_err(|error| {
            let words = format!("the body could not be received: {error}\n");
            RestAnswer::refused(words)
        })?;
        Ok(PermittedBody { bytes, _room: room })
    }
}

/// Serves until `stop`, and until the requests in progress are answered.
pub(super) async fn serve(listener: Arc<Listener>, stop: StopSignal, mail: Arc<MailServer>) {
    rest::serve(listener, stop, routes(mail)).await;
}

fn routes(mail: Arc<MailServer>) -> Router {
    let own_guard = RestGuard {
        clients: mail.clients.clone(),
        access: mail.config.access.clone(),
        section: "whisper",
        body_types: &BODY_TYPES,
    };
    let state =
        Arc::new(RestMail { mail, bodies: Shares::new(BODIES_BYTES_MAX, BODIES_BYTES_MAX / 4) });
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
    match rest.mail.shelf.trouble() {
        None => RestAnswer::ok(),
        Some(trouble) => RestAnswer::words(StatusCode::SERVICE_UNAVAILABLE, trouble),
    }
}

async fn version() -> RestAnswer {
    RestAnswer::words(StatusCode::OK, concat!("hark-v", env!("CARGO_PKG_VERSION")))
}

/// Returns the source that a request is charged to: the client's address, from the guard.
fn source(request: &Request) -> RateSource {
    let client = request.extensions().get::<RestClientAddress>();
    client.map_or(RateSource::Connection(0), |client| RateSource::Address(client.0.into()))
}

/// Whether the content type of a request is JSON.
fn is_json(request: &Request) -> bool {
    let of = request.headers().get(CONTENT_TYPE).and_then(|of| of.to_str().ok());
    of.is_some_and(|of| of.trim_start().to_ascii_lowercase().starts_with(JSON))
}

/// Creates an answer with a streamed body.
fn streamed(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let value = axum::http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}
