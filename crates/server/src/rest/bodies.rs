//! Bounds the memory of the bodies that clients send, in total and per address.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::RestAnswer;
use super::guard::RestClientAddress;
use crate::permits::{Share, Shares};
use crate::rate::RateSource;

/// Maximum size of the bodies of all clients, in bytes.
const BYTES_MAX: usize = 128 << 20;

/// Permits, in bytes, for the bodies of requests.
#[derive(Clone)]
pub(crate) struct BodyPermits(Shares<RateSource>);

impl Default for BodyPermits {
    fn default() -> Self {
        Self(Shares::new(BYTES_MAX, BYTES_MAX / 4))
    }
}

impl BodyPermits {
    /// Acquires the permit for a body of `bytes` bytes. Refuses the request if the memory for
    /// bodies is used up.
    pub(crate) fn acquire(
        &self,
        request: &Request,
        bytes: usize,
    ) -> Result<Share<RateSource>, RestAnswer> {
        let room = self.0.acquire(source(request), bytes.clamp(1, BYTES_MAX));
        let busy = "too many requests are being received; try again later\n";
        room.ok_or_else(|| RestAnswer::words(StatusCode::SERVICE_UNAVAILABLE, busy))
    }
}

/// Returns the length of a request's body, if the client announces the length.
pub(crate) fn body_length(request: &Request) -> Option<usize> {
    request.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Returns the source that a request is charged to: the client's address, from the guard.
pub(crate) fn source(request: &Request) -> RateSource {
    let client = request.extensions().get::<RestClientAddress>();
    client.map_or(RateSource::Connection(0), |client| RateSource::Address(client.0.into()))
}

/// Holds a permit for the body of a request until the request is answered. The permit covers at
/// most `bytes_max` bytes.
pub(crate) async fn bounded_body(
    State((bodies, bytes_max)): State<(BodyPermits, usize)>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    if !headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(TRANSFER_ENCODING) {
        return next.run(request).await;
    }
    // A longer body is refused before all of it has arrived.
    let bytes = body_length(&request).unwrap_or(bytes_max).min(bytes_max);
    match bodies.acquire(&request, bytes) {
        Ok(_room) => next.run(request).await,
        Err(busy) => busy.into_response(),
    }
}
