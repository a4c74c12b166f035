//! The state that requests share, and the parts of a request.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;

use crate::permits::Share;
use crate::rate::RateSource;
use crate::rest::{BodyPermits, RestAnswer, body_length};
use crate::whisper::mail_server::MailServer;

/// Maximum size of a request's body, in bytes. If a single envelope may be longer, the maximum is
/// larger.
const BODY_BYTES_MAX: usize = 1 << 20;
/// The types of bodies: RLP and JSON.
pub(super) const BODY_TYPES: [&str; 2] = [RLP, JSON];
/// The media type of RLP.
pub(super) const RLP: &str = "application/octet-stream";
pub(super) const JSON: &str = "application/json";

/// The state that requests share.
pub(super) struct RestMail {
    pub(super) mail: Arc<MailServer>,
    /// Permits, in bytes, for bodies that are being received.
    bodies: BodyPermits,
}

pub(super) type MailState = State<Arc<RestMail>>;

/// A body and its memory permit.
pub(super) struct PermittedBody {
    pub(super) bytes: Bytes,
    _room: Share<RateSource>,
}

impl RestMail {
    pub(super) fn new(mail: Arc<MailServer>) -> Self {
        Self { mail, bodies: BodyPermits::default() }
    }

    /// Receives the body of a request. Refuses the request if the memory for bodies is used up.
    pub(super) async fn body(&self, request: Request) -> Result<PermittedBody, RestAnswer> {
        let envelope = self.mail.settings().bounds.envelope_bytes_max;
        let bytes_max = BODY_BYTES_MAX.max(envelope.saturating_add(1 << 10));
        let bytes = body_length(&request).unwrap_or(bytes_max);
        if bytes > bytes_max {
            let words = format!("a body has at most {bytes_max} bytes\n");
            return Err(RestAnswer::words(StatusCode::PAYLOAD_TOO_LARGE, words));
        }
        let room = self.bodies.acquire(&request, bytes)?;
        let bytes = to_bytes(request.into_body(), bytes_max).await;
        let bytes = bytes.map_err(|error| {
            let words = format!("the body could not be received: {error}\n");
            RestAnswer::refused(words)
        })?;
        Ok(PermittedBody { bytes, _room: room })
    }
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
