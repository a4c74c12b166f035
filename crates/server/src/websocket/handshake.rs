//! The handshake that turns an HTTP connection into a WebSocket (RFC 6455, section 4).

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sha1::{Digest as _, Sha1};
use tokio::net::TcpStream;

use super::{Compressors, DeflateOptions, Socket, deflate};
use crate::patience::TimedStream;

/// A connection that becomes a WebSocket once the answer to its request is sent.
pub(crate) struct Handshake {
    upgrade: OnUpgrade,
    deflate: Option<Arc<Compressors>>,
    message_bytes_max: usize,
}

impl Handshake {
    /// Parses a request. Returns the handshake and the answer to send, or `None` if the request is
    /// no handshake.
    pub(crate) fn new(
        parts: &mut Parts,
        deflate: &DeflateOptions,
        message_bytes_max: usize,
    ) -> Option<(Self, Response<Body>)> {
        let key = parts.headers.get(SEC_WEBSOCKET_KEY)?;
        if parts.headers.get(SEC_WEBSOCKET_VERSION)? != "13" || parts.method != Method::GET {
            return None;
        }
        let accept = HeaderValue::from_str(&accept(key.as_bytes())).ok()?;
        let upgrade = parts.extensions.remove::<OnUpgrade>()?;
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
        Some((Self { upgrade, deflate, message_bytes_max }, answer))
    }

    /// Waits until the answer is sent. `None` if the connection has ended before.
    pub(crate) async fn finish(self) -> Option<Socket> {
        let upgraded = self.upgrade.await.ok()?;
        let parts = upgraded.downcast::<TokioIo<TimedStream<TcpStream>>>().ok()?;
        let stream = parts.io.into_inner().into_inner();
        Some(Socket::new(stream, &parts.read_buf, self.deflate, self.message_bytes_max))
    }
}

/// The value that shows the client that the server has read its key.
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
