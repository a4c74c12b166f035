//! The part of a WebSocket client that a load generator needs. The client runs on the same machine
//! as the server that it measures, so it must use little CPU: requests are framed beforehand, and
//! answers are not parsed but recognized frame by frame by their first bytes. Low CPU use is the
//! only reason for this implementation. The client trusts the server, checks no
//! `Sec-WebSocket-Accept`, and has no TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// The longest frame accepted. A longer frame is treated as an error of the relay.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Initial size of the read buffer of busy connections, in bytes.
const READ_BYTES: usize = 256 << 10;
/// Initial size of the read buffer of connections that receive little, in bytes.
const SMALL_BYTES: usize = 4 << 10;
/// How long a server may take to answer a handshake.
const HANDSHAKE: Duration = Duration::from_secs(20);

/// The longest time that a server may take to read from a connection.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The address of a relay or a node.
#[derive(Clone, Debug)]
pub(crate) struct Url {
    /// The URL as it was typed.
    pub(crate) text: String,
    /// Host and port.
    pub(crate) authority: String,
    pub(crate) path: String,
}

impl std::str::FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("wss://") {
            return Err("TLS is not measured here: give the relay's own ws:// address".into());
        }
        let rest = text.strip_prefix("ws://").ok_or("a relay's URL begins with ws://")?;
        Self::new(text, rest).ok_or("there is no host, as in ws://127.0.0.1:7777".into())
    }
}

impl Url {
    /// Parses the address of a node's REST API.
    pub(crate) fn http(text: &str) -> Result<Self, String> {
        if text.starts_with("https://") {
            return Err("TLS is not measured here: give the node's own http:// address".into());
        }
        let rest = text.strip_prefix("http://").ok_or("a node's URL begins with http://")?;
        Self::new(text, rest).ok_or("there is no host, as in http://127.0.0.1:8645".into())
    }

    /// Splits `rest`, the part after the scheme. `None` if it has no host.
    fn new(text: &str, rest: &str) -> Option<Self> {
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty() {
            return None;
        }
        let has_port = authority.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
        Some(Self {
            text: text.into(),
            authority: if has_port && authority.contains(':') {
                authority.into()
            } else {
                format!("{authority}:80")
            },
            path: if path.is_empty() { "/".into() } else { path.into() },
        })
    }
}

/// Appends a text frame from a client. The mask is all zeros, which leaves the text unchanged.
pub(crate) fn put_text(out: &mut Vec<u8>, parts: &[&[u8]]) {
    put_frame(out, TEXT, parts);
}

/// Appends a text frame from a server.
pub(crate) fn put_server_text(out: &mut Vec<u8>, parts: &[&[u8]]) {
    put_head(out, TEXT, parts.iter().map(|part| part.len()).sum(), 0);
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn put_head(out: &mut Vec<u8>, opcode: u8, len: usize, masked: u8) {
    out.push(0x80 | opcode);
    match len {
        0..126 => out.push(masked | len as u8),
        126..65_536 => {
            out.push(masked | 0x7e);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(masked | 0x7f);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

fn put_frame(out: &mut Vec<u8>, opcode: u8, parts: &[&[u8]]) {
    put_head(out, opcode, parts.iter().map(|part| part.len()).sum(), 0x80);
    out.extend_from_slice(&[0; 4]);
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// The head of a frame, before its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) opcode: u8,
    /// Whether the payload is deflated.
    deflated: bool,
    /// Whether no further frame of the same message follows.
    is_final: bool,
    /// Size of the head in bytes, including the mask.
    pub(crate) len: usize,
    /// Size of the payload in bytes.
    pub(crate) payload: usize,
}

/// Parses the head of the frame at the start of `bytes`. `None` if the head is incomplete.
pub(crate) fn head(bytes: &[u8]) -> Option<FrameHead> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    // Servers do not mask. The key of a masked frame is skipped, and the payload is not unmasked.
    // This client's own frames need no unmasking, because their mask is all zeros.
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let (len, payload) = match second & 0x7f {
        126 => {
            let len = bytes.get(2..4)?;
            (2, usize::from(u16::from_be_bytes([len[0], len[1]])))
        }
        127 => {
            let len = bytes.get(2..10)?.try_into().ok()?;
            (8, usize::try_from(u64::from_be_bytes(len)).unwrap_or(usize::MAX))
        }
        short => (0, usize::from(short)),
    };
    let len = 2 + len + mask;
    Some(FrameHead {
        opcode: first & 15,
        deflated: first & 0x40 != 0,
        is_final: first & 0x80 != 0,
        len,
        payload,
    })
}

/// A relay's message, identified by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayMessage<'a> {
    /// `["EVENT",`
    Event(&'a [u8]),
    /// `["EOSE",`
    Eose(&'a [u8]),
    /// `["OK",`
    Ok(&'a [u8]),
    /// `["CLOSED",`
    Closed(&'a [u8]),
    /// `["NOTICE",`
    Notice(&'a [u8]),
    /// `["AUTH",`
    Auth(&'a [u8]),
    /// `["NEG-MSG",` and `["NEG-ERR",`
    Negentropy(&'a [u8]),
    /// Anything else, including the later frames of a fragmented message.
    Other,
}

fn message_of(text: &[u8]) -> RelayMessage<'_> {
    match text.get(..4) {
        Some(b"[\"EV") => RelayMessage::Event(text),
        Some(b"[\"EO") => RelayMessage::Eose(text),
        Some(b"[\"OK") => RelayMessage::Ok(text),
        Some(b"[\"CL") => RelayMessage::Closed(text),
        Some(b"[\"NO") => RelayMessage::Notice(text),
        Some(b"[\"AU") => RelayMessage::Auth(text),
        Some(b"[\"NE") => RelayMessage::Negentropy(text),
        _ => RelayMessage::Other,
    }
}

/// Returns the fields of a short message like CLOSED or OK: strings unescaped, booleans as `true`
/// and `false`. Empty if the message is not a JSON array.
pub(crate) fn fields(text: &[u8]) -> Vec<String> {
    let parsed: Option<Vec<serde_json::Value>> = serde_json::from_slice(text).ok();
    let text = |value: &serde_json::Value| match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    };
    parsed.iter().flatten().map(text).collect()
}

/// A connection to a relay.
pub(crate) struct RelayConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The part of the buffer that was read and not scanned yet.
    unread: Range<usize>,
    /// Answers to pings that are still to be sent.
    pongs: Vec<u8>,
    /// Total size of all frames scanned so far, in bytes.
    pub(crate) bytes: u64,
    /// The challenge of the last AUTH message (NIP-42).
    pub(crate) challenge: Option<String>,
    /// Whether the last frame ended its message.
    pub(crate) is_message_end: bool,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    /// A connection that carries load.
    Busy,
    /// One of many connections that receive little. `deflate` offers permessage-deflate.
    Quiet { deflate: bool },
}

impl RelayConnection {
    pub(crate) async fn open(url: &Url, kind: ConnectionKind) -> anyhow::Result<Self> {
        Self::open_from(url, kind, None).await
    }

    /// Connects from the address `from`, if the relay is at an address of the same loopback network.
    pub(crate) async fn open_from(
        url: &Url,
        kind: ConnectionKind,
        from: Option<Ipv4Addr>,
    ) -> anyhow::Result<Self> {
        let handshake = Self::handshake(url, kind, from);
        let timeout = tokio::time::timeout(HANDSHAKE, handshake).await;
        let opened = timeout.unwrap_or_else(|_| {
            bail!("no answer to the WebSocket handshake in {} s", HANDSHAKE.as_secs())
        });
        opened.with_context(|| format!("no connection to {}", url.text))
    }

    async fn handshake(
        url: &Url,
        kind: ConnectionKind,
        from: Option<Ipv4Addr>,
    ) -> anyhow::Result<Self> {
        let stream = connect(&url.authority, from)
            .await
            .context("is the relay running, and is this its address?")?;
        stream.set_nodelay(true)?;
        let (room, deflate) = match kind {
            ConnectionKind::Busy => (READ_BYTES, false),
            ConnectionKind::Quiet { deflate } => (SMALL_BYTES, deflate),
        };
        let offer = if deflate { "Sec-WebSocket-Extensions: permessage-deflate\r\n" } else { "" };
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: aGFyayBiZW5jaCwgYWhveQ==\r\nSec-WebSocket-Version: 13\r\n{offer}\r\n",
            url.path, url.authority
        );
        let mut connection = Self {
            stream,
            buffer: vec![0; room],
            unread: 0..0,
            pongs: Vec::new(),
            bytes: 0,
            challenge: None,
            is_message_end: true,
        };
        connection.stream.write_all(request.as_bytes()).await?;
        let end = loop {
            connection.fill().await?;
            let so_far = &connection.buffer[connection.unread.clone()];
            if let Some(at) = so_far.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let answer = String::from_utf8_lossy(&connection.buffer[..end]).into_owned();
        let status = answer.lines().next().unwrap_or_default();
        if !status.contains(" 101 ") {
            bail!(
                "the relay answered `{status}`. Hark answers 429 and 503 where limits.connections_* \
                 are too low for the load (see docs/benchmarks.md)"
            );
        }
        let agreed = answer.to_ascii_lowercase().contains("permessage-deflate");
        if deflate != agreed {
            bail!(
                "permessage-deflate was {} by the relay",
                if deflate { "declined" } else { "forced" }
            );
        }
        connection.unread.start = end;
        Ok(connection)
    }

    /// Sends frames.
    pub(crate) async fn send(&mut self, frames: &[u8]) -> anyhow::Result<()> {
        let sent = tokio::time::timeout(PATIENCE, self.stream.write_all(frames)).await;
        let sent = sent.context("the relay has not read from a connection for a minute")?;
        sent.context("the relay has closed the connection")
    }

    /// Waits for the next message. Control frames are handled and not returned.
    pub(crate) async fn next(&mut self) -> anyhow::Result<RelayMessage<'_>> {
        Ok(message_of(self.next_text().await?))
    }

    /// Waits for the next frame of a message, and returns the frame's payload. If the future is
    /// dropped, no received byte is lost.
    pub(crate) async fn next_text(&mut self) -> anyhow::Result<&[u8]> {
        let payload = loop {
            if let Some(payload) = self.walk()? {
                break payload;
            }
            self.fill().await?;
        };
        Ok(&self.buffer[payload])
    }

    /// Returns the next message if it has already been read.
    pub(crate) fn next_read(&mut self) -> anyhow::Result<Option<RelayMessage<'_>>> {
        Ok(self.walk()?.map(|payload| message_of(&self.buffer[payload])))
    }

    /// Scans complete frames up to the next message and returns the range of its payload.
    fn walk(&mut self) -> anyhow::Result<Option<Range<usize>>> {
        loop {
            let unread = &self.buffer[self.unread.clone()];
            let Some(head) = head(unread) else { return Ok(None) };
            let whole = head.len.saturating_add(head.payload);
            if whole > MESSAGE_BYTES_MAX {
                bail!("the relay sends a frame of {} bytes", head.payload);
            }
            if unread.len() < whole {
                return Ok(None);
            }
            let payload = self.unread.start + head.len..self.unread.start + whole;
            self.unread.start += whole;
            self.bytes += whole as u64;
            if head.opcode < CLOSE {
                self.is_message_end = head.is_final;
            }
            match head.opcode {
                PING => {
                    let Self { pongs, buffer, .. } = self;
                    put_frame(pongs, PONG, &[&buffer[payload]]);
                }
                PONG => {}
                CLOSE => {
                    let text = &self.buffer[payload];
                    let code =
                        text.get(..2).map_or(1005, |two| u16::from_be_bytes([two[0], two[1]]));
                    let reason = String::from_utf8_lossy(text.get(2..).unwrap_or_default());
                    bail!("the relay has closed the connection: {code} {reason}");
                }
                // A deflated message is not inflated and is returned as an empty message.
                _ if head.deflated => return Ok(Some(payload.start..payload.start)),
                _ => {
                    if self.buffer[payload.clone()].starts_with(b"[\"AUTH\"") {
                        self.challenge = fields(&self.buffer[payload.clone()]).into_iter().nth(1);
                    }
                    return Ok(Some(payload));
                }
            }
        }
    }

    /// Sends pending pongs, then waits for at least one byte and reads the received data.
    pub(crate) async fn fill(&mut self) -> anyhow::Result<()> {
        if !self.pongs.is_empty() {
            let pongs = std::mem::take(&mut self.pongs);
            self.send(&pongs).await?;
        }
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.unread.end == self.buffer.len() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            if self.unread.end == self.buffer.len() {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        let read = self.stream.read(&mut self.buffer[self.unread.end..]).await;
        let read = read.context("the connection broke")?;
        if read == 0 {
            bail!("the relay has closed the connection without a word");
        }
        self.unread.end += read;
        Ok(())
    }
}

async fn connect(authority: &str, from: Option<Ipv4Addr>) -> std::io::Result<TcpStream> {
    if let Some(from) = from {
        let found = tokio::net::lookup_host(authority).await?.find(SocketAddr::is_ipv4);
        if let Some(to) = found.filter(|to| to.ip().is_loopback()) {
            let socket = TcpSocket::new_v4()?;
            socket.bind((from, 0).into())?;
            return socket.connect(to).await;
        }
    }
    TcpStream::connect(authority).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_walked_by_their_heads() {
        for len in [0usize, 1, 125, 126, 65_535, 65_536] {
            let mut frame = Vec::new();
            let text = vec![b'x'; len];
            put_text(&mut frame, &[&text[..len / 2], &text[len / 2..]]);
            let found = head(&frame).unwrap();
            assert_eq!((found.opcode, found.payload), (TEXT, len));
            assert_eq!(found.len + found.payload, frame.len());
            assert_eq!(&frame[found.len..], text);
            // An incomplete head is not parsed.
            assert!((0..found.len - 4).all(|cut| head(&frame[..cut]).is_none()));
        }
        let from_server = [0x81, 2, b'h', b'i'];
        assert_eq!(
            head(&from_server),
            Some(FrameHead { opcode: TEXT, deflated: false, is_final: true, len: 2, payload: 2 })
        );
        assert!(head(&[0xc1, 0]).unwrap().deflated);
        let endless = [0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255];
        assert_eq!(head(&endless).unwrap().payload, usize::MAX);
    }

    #[test]
    fn messages_are_recognised_by_how_they_begin() {
        assert_eq!(
            message_of(b"[\"EVENT\",\"a\",{}]"),
            RelayMessage::Event(b"[\"EVENT\",\"a\",{}]")
        );
        assert!(matches!(message_of(b"[\"EOSE\",\"a\"]"), RelayMessage::Eose(_)));
        assert!(matches!(message_of(b"[\"CLOSED\",\"a\",\"\"]"), RelayMessage::Closed(_)));
        assert_eq!(
            [message_of(b""), message_of(b"[]"), message_of(b"[\"COUNT\"")],
            [RelayMessage::Other; 3]
        );
        assert_eq!(
            fields(br#"["OK","ab",false,"blocked: \"x\""]"#)[2..],
            ["false", "blocked: \"x\""]
        );
        assert!(fields(b"no json").is_empty());
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        let url = |text: &str| text.parse::<Url>();
        assert_eq!(url("ws://a.example:7777").unwrap().authority, "a.example:7777");
        assert_eq!(url("ws://a.example/x/y").unwrap().authority, "a.example:80");
        assert_eq!(url("ws://a.example/x/y").unwrap().path, "/x/y");
        assert_eq!(url("ws://[::1]:80").unwrap().authority, "[::1]:80");
        assert_eq!(url("ws://[::1]").unwrap().authority, "[::1]:80");
        assert!(url("wss://a.example").unwrap_err().contains("TLS"));
        assert!(url("http://a").is_err() && url("ws://").is_err());
        let node = Url::http("http://a.example:8645").unwrap();
        assert_eq!((&*node.authority, &*node.path), ("a.example:8645", "/"));
        assert!(Url::http("https://a.example").unwrap_err().contains("TLS"));
        assert!(Url::http("ws://a").is_err() && Url::http("http:///x").is_err());
    }
}
