//! A WebSocket to a relay. tokio-tungstenite speaks it, and rustls below it.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::error::Error as WsError;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::{LOCATION, USER_AGENT};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{
    Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config,
};

use crate::address::RelayAddress;
use crate::error::PeerError;
use crate::tls;

/// Redirects that are followed.
const REDIRECTS_MAX: usize = 4;
/// Bytes read at once: events come in quantity.
const READ_BYTES: usize = 256 << 10;
/// Bytes of a reason that are shown.
const REASON_BYTES_MAX: usize = 300;

pub(crate) type RelaySocket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Connects to a relay within `patience`. Messages above `message_bytes_max` end the connection.
pub(crate) async fn connect(
    address: &RelayAddress,
    message_bytes_max: usize,
    patience: Duration,
) -> Result<RelaySocket, PeerError> {
    let connected = timeout(patience, follow(address.clone(), message_bytes_max)).await;
    let unreachable = |why: String| PeerError::Unreachable(format!("{address}: {why}"));
    match connected {
        Ok(connected) => connected.map_err(unreachable),
        Err(_) => Err(unreachable(format!("no answer within {} s", patience.as_secs()))),
    }
}

async fn follow(
    mut address: RelayAddress,
    message_bytes_max: usize,
) -> Result<RelaySocket, String> {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .max_message_size(Some(message_bytes_max))
        .max_frame_size(Some(message_bytes_max));
    for _ in 0..=REDIRECTS_MAX {
        let mut request = address.as_str().into_client_request().map_err(|error| words(&error))?;
        let agent = HeaderValue::from_static(concat!("hark/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().insert(USER_AGENT, agent);
        let connector = if address.is_encrypted() {
            Connector::Rustls(tls::config()?)
        } else {
            Connector::Plain
        };
        match connect_async_tls_with_config(request, Some(config), true, Some(connector)).await {
            Ok((socket, _)) => return Ok(socket),
            Err(WsError::Http(answer)) if answer.status().is_redirection() => {
                let location = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
                let location = location.ok_or("it redirects, and does not say where to")?;
                address = address.redirected(location)?;
            }
            Err(error) => return Err(words(&error)),
        }
    }
    Err(format!("it redirects more than {REDIRECTS_MAX} times"))
}

/// Returns what is wrong, for people.
pub(crate) fn words(error: &WsError) -> String {
    match error {
        WsError::Http(answer) => {
            let body = answer.body().as_deref().unwrap_or_default();
            let body = shortened(String::from_utf8_lossy(body).trim());
            let said = if body.is_empty() { String::new() } else { format!(": {body}") };
            format!("it answers with HTTP {} and not as a relay{said}", answer.status())
        }
        WsError::Capacity(error) => format!("it sent a message that is too large: {error}"),
        WsError::Io(error) if error.to_string().contains("UnknownIssuer") => {
            format!("{error}; if you trust its authority, name the file of that in SSL_CERT_FILE")
        }
        WsError::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Returns the beginning of a stranger's text, on one line.
pub(crate) fn shortened(text: &str) -> String {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let line: String = text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if end < text.len() { format!("{line}…") } else { line }
}
