//! A WebSocket to a relay, implemented by tokio-tungstenite over rustls.

use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::error::{Error as WsError, ProtocolError};
use tokio_tungstenite::tungstenite::http::header::{LOCATION, USER_AGENT};
use tokio_tungstenite::tungstenite::http::{HeaderValue, Uri};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::address::RelayAddress;
use crate::error::PeerError;
use crate::frames::BoundedFrames;
use crate::tls;

/// A connection, encrypted or not.
pub(crate) trait RelayTransport: AsyncRead + AsyncWrite + Send + Unpin {}

impl RelayTransport for TcpStream {}
impl RelayTransport for TlsStream<TcpStream> {}

/// Number of bytes that one read requests. The number is large because many events may arrive
/// together.
const READ_BYTES: usize = 256 << 10;
/// Maximum number of bytes that are displayed of a relay's reason.
const REASON_BYTES_MAX: usize = 300;

pub(crate) type RelaySocket = WebSocketStream<BoundedFrames<Box<dyn RelayTransport>>>;

/// Connects to a relay within `patience`. Events longer than `message_bytes_max` are skipped, and
/// other messages that are too long end the connection. Redirects are not followed, so that no
/// relay can make this machine connect to an address of the relay's choice.
pub(crate) async fn connect(
    address: &RelayAddress,
    message_bytes_max: usize,
    patience: Duration,
) -> Result<RelaySocket, PeerError> {
    let connected = timeout(patience, open(address, message_bytes_max)).await;
    let unreachable = |why: String| PeerError::Unreachable(format!("{address}: {why}"));
    match connected {
        Ok(connected) => connected.map_err(unreachable),
        Err(_) => Err(unreachable(format!("no answer within {} s", patience.as_secs()))),
    }
}

async fn open(address: &RelayAddress, message_bytes_max: usize) -> Result<RelaySocket, String> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(message_bytes_max))
        .max_frame_size(Some(message_bytes_max));
    let mut request = address.as_str().into_client_request().map_err(|error| words(&error))?;
    let agent = HeaderValue::from_static(concat!("hark/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, agent);
    let transport = transport(address, request.uri()).await?;
    let frames = BoundedFrames::new(transport, message_bytes_max, READ_BYTES);
    match client_async_with_config(request, frames, Some(config)).await {
        Ok((socket, _)) => Ok(socket),
        Err(WsError::Http(answer)) if answer.status().is_redirection() => {
            let location = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let location = shortened(location.unwrap_or("nowhere"));
            Err(format!(
                "it redirects to {location}, which is not followed; connect to that relay directly"
            ))
        }
        Err(error) => Err(words(&error)),
    }
}

/// Connects to the host of the address, with TLS for `wss://`. The error is a text for people.
async fn transport(address: &RelayAddress, uri: &Uri) -> Result<Box<dyn RelayTransport>, String> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = uri.port_u16().unwrap_or(if address.is_encrypted() { 443 } else { 80 });
    let socket = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
    // A failure is harmless, because it only delays requests a little.
    let _ = socket.set_nodelay(true);
    if !address.is_encrypted() {
        return Ok(Box::new(socket));
    }
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| format!("`{host}` is not a name that a certificate can have"))?;
    let connected = TlsConnector::from(tls::config()?).connect(name, socket).await;
    let stream = connected.map_err(|error| {
        let advice = match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidMessage(_)) => {
                ". No TLS is spoken there: does the URL need ws://, or another port?"
            }
            Some(rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)) => {
                "; if you trust its authority, set SSL_CERT_FILE to the authority's file"
            }
            _ => "",
        };
        format!("{error}{advice}")
    })?;
    Ok(Box::new(stream))
}

/// Describes an error, for people.
pub(crate) fn words(error: &WsError) -> String {
    match error {
        WsError::Http(answer) => {
            let body = answer.body().as_deref().unwrap_or_default();
            let body = shortened(String::from_utf8_lossy(body).trim());
            let said = if body.is_empty() { String::new() } else { format!(": {body}") };
            format!("it answers with HTTP {} and not as a relay{said}", answer.status())
        }
        WsError::Capacity(error) => format!("it sent a message that is too large: {error}"),
        WsError::Protocol(ProtocolError::HandshakeIncomplete) => {
            "it closed the connection without an answer".into()
        }
        WsError::Protocol(ProtocolError::HttparseError(_)) => {
            "it does not answer as a relay does; is the port right, and is it ws:// or wss://?"
                .into()
        }
        WsError::AttackAttempt => "its answer does not end".into(),
        WsError::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Returns the beginning of an untrusted text, on one line.
pub(crate) fn shortened(text: &str) -> String {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let line: String = text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if end < text.len() { format!("{line}…") } else { line }
}
