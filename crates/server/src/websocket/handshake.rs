//! The handshake that turns an HTTP connection into a WebSocket (RFC 6455, section 4).

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{
    ALLOW, CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sha1::{Digest as _, Sha1};

use super::{Compressors, DeflateOptions, Socket, deflate};
use crate::metrics::{MetricLabel, labels};
use crate::patience::TimedStream;
use crate::stream::ClientStream;

labels! {
    /// Why a request for a WebSocket is refused.
    HandshakeFault {
        /// The request uses HTTP/1.0, as some proxies do unless configured otherwise.
        Http10 = "http-1.0",
        /// The request's method is not GET.
        Method = "method",
        /// The header Upgrade is missing although the other headers are present: a proxy has
        /// dropped the header.
        Upgrade = "upgrade",
        /// The version is not 13.
        Version = "version",
        /// The key is missing or invalid.
        Key = "key",
    }
}

impl HandshakeFault {
    /// The fault in words, with advice.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Http10 => {
                "a WebSocket needs HTTP/1.1, and this request is HTTP/1.0; if a proxy made it, set its \
                 version of HTTP (nginx: proxy_http_version 1.1)"
            }
            Self::Method => "a WebSocket must be requested with GET",
            Self::Upgrade => {
                "the header Upgrade is missing; a proxy must pass it on (nginx: proxy_set_header Upgrade \
                 $http_upgrade and proxy_set_header Connection \"upgrade\")"
            }
            Self::Version => "version 13 of the WebSocket protocol is spoken here (RFC 6455)",
            Self::Key => "the header Sec-WebSocket-Key is missing or invalid",
        }
    }

    /// The answer to the request.
    pub(crate) fn answer(self) -> Response<Body> {
        let mut answer = Response::new(Body::from(format!("{}\n", self.words())));
        let headers = answer.headers_mut();
        let status = match self {
            Self::Version => {
                headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
                StatusCode::UPGRADE_REQUIRED
            }
            Self::Upgrade | Self::Http10 => StatusCode::UPGRADE_REQUIRED,
            Self::Method => {
                headers.insert(ALLOW, HeaderValue::from_static("GET"));
                StatusCode::METHOD_NOT_ALLOWED
            }
            Self::Key => StatusCode::BAD_REQUEST,
        };
        if status == StatusCode::UPGRADE_REQUIRED {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
        *answer.status_mut() = status;
        answer
    }
}

/// Whether a request without the header Upgrade was a request for a WebSocket. Browsers and other
/// clients send the key header for no other purpose.
pub(crate) fn lost_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(SEC_WEBSOCKET_KEY) && !headers.contains_key(UPGRADE)
}

/// A connection that becomes a WebSocket once the answer to its request is sent.
pub(crate) struct Handshake {
    upgrade: OnUpgrade,
    deflate: Option<Arc<Compressors>>,
    message_bytes_max: usize,
}

impl Handshake {
    /// Parses a request. Returns the handshake and the answer to send.
    pub(crate) fn new(
        parts: &mut Parts,
        deflate: &DeflateOptions,
        message_bytes_max: usize,
    ) -> Result<(Self, Response<Body>), HandshakeFault> {
        if parts.version < Version::HTTP_11 {
            return Err(HandshakeFault::Http10);
        }
        if parts.method != Method::GET {
            return Err(HandshakeFault::Method);
        }
        if parts.headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(HandshakeFault::Version);
        }
        let key = parts.headers.get(SEC_WEBSOCKET_KEY).ok_or(HandshakeFault::Key)?;
        let accept = HeaderValue::from_str(&accept(key.as_bytes()));
        let accept = accept.map_err(|_| HandshakeFault::Key)?;
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        let upgrade = upgrade.ok_or(HandshakeFault::Upgrade)?;
        let deflate = deflate.agree(&parts.headers);
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        if deflate.is_some() {
            headers.insert(
                SEC_WEBSOCKET_EXTENSIONS,
                HeaderValue::from_static(deflate::EXTENSION_PARAMETERS),
            );
        }
        Ok((Self { upgrade, deflate, message_bytes_max }, answer))
    }

    /// Waits until the answer is sent. Returns `None` if the connection ends before the answer is
    /// sent.
    pub(crate) async fn finish(self) -> Option<Socket> {
        let upgraded = self.upgrade.await.ok()?;
        let parts = upgraded.downcast::<TokioIo<TimedStream<ClientStream>>>().ok()?;
        let stream = parts.io.into_inner().into_inner();
        Some(Socket::new(stream, &parts.read_buf, self.deflate, self.message_bytes_max))
    }
}

/// Returns the value of `Sec-WebSocket-Accept` for the client's key, as proof that the server has
/// read the key.
fn accept(key: &[u8]) -> String {
    let mut sha1 = Sha1::new();
    sha1.update(key);
    sha1.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64_simd::STANDARD.encode_to_string(sha1.finalize())
}

#[test]
fn the_example_of_the_rfc() {
    assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}
