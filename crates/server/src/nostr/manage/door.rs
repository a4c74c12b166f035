//! The HTTP requests of the relay management API (NIP-86): authorization, body, and answer.
//!
//! Strangers cost little: the signature in the header is checked before the body is read, so only
//! the bodies of managers are read.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE,
    RETRY_AFTER, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use hark_codec::nostr::npub;
use hark_codec::record::Key;
use serde_json::{Value, json};

use super::call::ManageRequest;
use super::execute;
use super::fault::{BODY_BYTES_MAX, ManageFault, ManageResult};
use super::http_auth::HttpAuthRequest;
use super::managers::Permissions;
use crate::nostr::Relay;
use crate::nostr::auth::names;
use crate::rate::RatedConnection;
use crate::roster::OpenConnection;

/// The media type of requests and answers.
pub(crate) const MEDIA_TYPE: &str = "application/nostr+json+rpc";

/// The client of a request.
pub(crate) struct ManageClient<'a> {
    /// The connection's entry in the list of open connections.
    pub(crate) listed: &'a Arc<OpenConnection>,
    /// The client's address, if it is known.
    pub(crate) address: Option<IpAddr>,
    /// The server's address on this connection. `None` behind a proxy.
    pub(crate) local: Option<SocketAddr>,
}

/// Answers a request.
pub(crate) async fn answer(
    relay: &Arc<Relay>,
    client: ManageClient<'_>,
    request: Request,
) -> Response {
    let (status, result, body) = match call(relay, client, request).await {
        Ok(result) => (StatusCode::OK, ManageResult::Done, json!({ "result": result })),
        Err(fault) => {
            let (status, result) = fault.status();
            (status, result, json!({ "error": fault.to_string() }))
        }
    };
    relay.management.results.of(result).add(1);
    let headers = [
        (CONTENT_TYPE, MEDIA_TYPE),
        (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (CACHE_CONTROL, "no-store"),
    ];
    let mut answer = (status, headers, Body::from(body.to_string())).into_response();
    let more = match status {
        StatusCode::UNAUTHORIZED => Some((WWW_AUTHENTICATE, "Nostr")),
        StatusCode::TOO_MANY_REQUESTS => Some((RETRY_AFTER, "60")),
        _ => None,
    };
    if let Some((name, value)) = more {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

async fn call(
    relay: &Arc<Relay>,
    client: ManageClient<'_>,
    request: Request,
) -> Result<Value, ManageFault> {
    let management = &relay.management;
    if management.managers.load().is_empty() {
        return Err(ManageFault::NoManagers);
    }
    let rated = RatedConnection::new(&relay.rates, Arc::clone(client.listed), client.address);
    let headers = request.headers();
    let length = body_length(headers);
    rated.publishes(length.unwrap_or_default()).map_err(|rate| ManageFault::Rate(rate.words))?;
    let (signature, now_s) = {
        let identity = relay.identity.current();
        let query = request.uri().query();
        let is_own_url = |url: &str| is_own_url(relay, client.local, url, query);
        let now_s = relay.shelf.clock().now_s();
        let asked = HttpAuthRequest {
            header: headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()),
            method: request.method().as_str(),
            is_own_url: &is_own_url,
            own_url: identity.info.url.as_deref(),
            now_s,
        };
        (asked.signature()?, now_s)
    };
    // The roles are read again for the call, because the body may arrive late.
    permissions(relay, &signature.key)?;
    management.seen.check(&signature)?;
    if length.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(ManageFault::Long);
    }
    let patience = Duration::from_millis(relay.settings().limits.handshake_timeout_ms);
    let body = read_body(request.into_body(), patience).await?;
    signature.check_body(&body)?;
    management.seen.record(&signature, now_s)?;
    let request = ManageRequest::parse(&body)?;
    let permissions = permissions(relay, &signature.key)?;
    if !permissions.include(request.method) {
        return Err(ManageFault::NotAllowed(request.method));
    }
    let by = npub::encode(&signature.key);
    execute::execute(relay, request.call()?, &permissions, &by).await
}

/// Whether a URL of a request names this relay, with this query. `local` is the server's address on
/// the connection of the request.
pub(super) fn is_own_url(
    relay: &Relay,
    local: Option<SocketAddr>,
    url: &str,
    query: Option<&str>,
) -> bool {
    let (url, asked) = as_websocket_url(url);
    let is_here = |local| names(&url, local);
    let is_own = relay.identity.current().own_urls.have(&url);
    asked.as_deref() == query && (is_own || local.is_some_and(is_here))
}

/// The current permissions of a key. Fails if the key is no manager.
pub(super) fn permissions(relay: &Relay, key: &Key) -> Result<Permissions, ManageFault> {
    let roles = relay.management.roles.load();
    let managers = relay.management.managers.load();
    let permissions = managers.permissions(key, |role| roles.is_assigned(role, key));
    permissions.ok_or(ManageFault::NotManager)
}

pub(super) fn body_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a body. Fails if the body is too long, or does not arrive within `patience`.
pub(super) async fn read_body(body: Body, patience: Duration) -> Result<Vec<u8>, ManageFault> {
    let read = async {
        let (mut stream, mut bytes) = (body.into_data_stream(), Vec::new());
        while let Some(part) = stream.next().await {
            let part = part.map_err(|_| ManageFault::Body)?;
            if bytes.len() + part.len() > BODY_BYTES_MAX {
                return Err(ManageFault::Long);
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    };
    tokio::time::timeout(patience, read).await.unwrap_or(Err(ManageFault::Body))
}

/// Splits a URL into the URL with the scheme of a WebSocket, without its query, and the query.
fn as_websocket_url(url: &str) -> (String, Option<String>) {
    let (url, query) = match url.trim().split_once('?') {
        Some((url, query)) => (url, Some(query.to_owned())),
        None => (url.trim(), None),
    };
    let schemes = [("https://", "wss://"), ("http://", "ws://")];
    let converted = schemes.into_iter().find_map(|(web, socket)| {
        let (scheme, rest) = url.split_at_checked(web.len())?;
        scheme.eq_ignore_ascii_case(web).then(|| [socket, rest].concat())
    });
    (converted.unwrap_or_else(|| url.to_owned()), query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_url_is_compared_as_the_url_of_a_websocket() {
        for (url, socket, query) in [
            ("https://relay.example/", "wss://relay.example/", None),
            ("HTTP://relay.example/x?a=b", "ws://relay.example/x", Some("a=b")),
            ("wss://relay.example", "wss://relay.example", None),
            ("relay.example", "relay.example", None),
            ("\u{e4}", "\u{e4}", None),
        ] {
            assert_eq!(as_websocket_url(url), (socket.to_owned(), query.map(str::to_owned)));
        }
    }
}
