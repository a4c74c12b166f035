//! The state that requests share, and the parts of a request.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::Response;

use crate::permits::{Share, Shares};
use crate::rate::RateSource;
use crate::rest::{RestAnswer, RestClientAddress};
use crate::whisper::mail_server::MailServer;

/// Maximum size of a request's body, in bytes. If a single envelope may be longer, the maximum is
/// larger.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum size of the bodies that are being received from all clients, in bytes.
const BODIES_BYTES_MAX: usize = 128 << 20;
/// The types of bodies: RLP and JSON.
pub(super) const BODY_TYPES: [&str; 2] = [RLP, JSON];
/// The media type of RLP.
pub(super) const RLP: &str = "application/octet-stream";
pub(super) const JSON: &str = "application/json";

/// The state that requests share.
pub(super) struct RestMail {
    pub(super) mail: Arc<MailServer>,
    /// Permits, in bytes, for bodies that are being received.
    bodies: Shares<RateSource>,
}

pub(super) type MailState = State<Arc<RestMail>>;

/// A body and its memory permit.
pub(super) struct PermittedBody {
    pub(super) bytes: Bytes,
    _room: Share<RateSource>,
}

impl RestMail {
    pub(super) fn new(mail: Arc<MailServer>) -> Self {
        Self { mail, bodies: Shares::new(BODIES_BYTES_MAX, BODIES_BYTES_MAX / 4) }
    }

    /// Receives the body of a request. Refuses the request if the memory for bodies is used up.
    pub(super) async fn body(&self, request: Request) -> Result<PermittedBody, RestAnswer> {
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

/// Returns the source that a request is charged to: the client's address, from the guard.
pub(super) fn source(request: &Request) -> RateSource {
    let client = request.extensions().get::<RestClientAddress>();
    client.map_or(RateSource::Connection(0), |client| RateSource::Address(client.0.into()))
}

/// Whether the content type of a request is JSON.
pub(super) fn is_json(request: &Request) -> bool {
    let of = request.headers().get(CONTENT_TYPE).and_then(|of| of.to_str().ok());
    of.is_some_and(|of| of.trim_start().to_ascii_lowercase().starts_with(JSON))
}

/// Creates an answer with a streamed body.
pub(super) fn streamed(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let value = axum::http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}
