//! A WebSocket client without a library, for tests that hold thousands of connections, check every
//! frame, or send frames that no library sends.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::TcpStream;

use crate::wait::PATIENCE;

/// The first byte of a frame that is a whole message.
pub mod first {
    /// A message of text.
    pub const TEXT: u8 = 0x81;
    /// An answer to a ping.
    pub const PONG: u8 = 0x8a;
}

/// Clients must mask their payload with four bytes, which may have any value.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// The request that opens a WebSocket. Each additional header must end with a line break.
pub fn upgrade_request(host: impl std::fmt::Display, headers: &str) -> String {
    format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}

/// A masked frame, in the form that clients send.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len @ 126..65_536 => {
            bytes.push(0xfe);
            bytes.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0xff);
            bytes.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&MASK);
    bytes.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// Reads a frame from a server, and returns its first byte and its payload.
pub fn read_frame(from: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    from.read_exact(&mut head)?;
    let len = match head[1] & 0x7f {
        126 => {
            let mut len = [0; 2];
            from.read_exact(&mut len)?;
            u64::from(u16::from_be_bytes(len))
        }
        127 => {
            let mut len = [0; 8];
            from.read_exact(&mut len)?;
            u64::from_be_bytes(len)
        }
        len => u64::from(len),
    };
    let mut payload = vec![0; usize::try_from(len).expect("fits")];
    from.read_exact(&mut payload)?;
    Ok((head[0], payload))
}

/// Requests a WebSocket. Each additional header must end with a line break. Returns the status and
/// the connection. The buffer of a connection is small, since a test may have thousands of
/// connections.
pub fn upgrade(address: &str, headers: &str) -> io::Result<(u16, BufReader<TcpStream>)> {
    upgrade_with(address, headers, 256)
}

fn upgrade_with(
    address: &str,
    headers: &str,
    buffer: usize,
) -> io::Result<(u16, BufReader<TcpStream>)> {
    let mut to = TcpStream::connect(address)?;
    to.set_nodelay(true)?;
    to.set_read_timeout(Some(PATIENCE))?;
    to.write_all(upgrade_request(address, headers).as_bytes())?;
    let mut from = BufReader::with_capacity(buffer, to);
    let mut line = String::new();
    from.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    while line != "\r\n" && !line.is_empty() {
        line.clear();
        from.read_line(&mut line)?;
    }
    Ok((status.ok_or(io::ErrorKind::UnexpectedEof)?, from))
}

/// A WebSocket after the handshake.
#[derive(Debug)]
pub struct Socket {
    from: BufReader<TcpStream>,
    to: SocketWriter,
}

/// The sending side of a WebSocket connection.
#[derive(Debug)]
pub struct SocketWriter(TcpStream);

impl Socket {
    /// Connects. Panics if the server refuses the connection.
    #[track_caller]
    pub fn connect(address: &str) -> Self {
        Self::try_connect(address).expect("is answered")
    }

    /// Connects.
    pub fn try_connect(address: &str) -> io::Result<Self> {
        let (status, from) = upgrade_with(address, "", 8 << 10)?;
        if status != 101 {
            return Err(io::Error::other(format!("answered with status {status}")));
        }
        let to = SocketWriter(from.get_ref().try_clone()?);
        Ok(Self { from, to })
    }

    /// Returns a second handle of the connection, for a thread that only sends.
    pub fn writer(&self) -> SocketWriter {
        SocketWriter(self.to.0.try_clone().expect("is cloned"))
    }

    /// Sends a text message.
    #[track_caller]
    pub fn send_text(&mut self, text: impl AsRef<[u8]>) {
        self.to.send_text(text.as_ref()).expect("is sent");
    }

    /// Returns the next message; `None` once the connection has ended. Skips AUTH challenges, and
    /// answers pings.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            let (first, payload) = match read_frame(&mut self.from) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    panic!("nothing was received for {PATIENCE:?}");
                }
                read => read.ok()?,
            };
            match first & 0xf {
                1 if payload.starts_with(b"[\"AUTH\"") => {}
                1 => return Some(payload),
                9 => self.to.0.write_all(&masked(first::PONG, &payload)).ok()?,
                10 => {}
                _ => return None,
            }
        }
    }

    /// Returns the next message as JSON. Panics once the connection has ended.
    #[track_caller]
    pub fn json(&mut self) -> serde_json::Value {
        let text = self.receive().expect("the connection holds");
        serde_json::from_slice(&text).expect("is JSON")
    }
}

impl SocketWriter {
    /// Sends a text message.
    pub fn send_text(&mut self, text: &[u8]) -> io::Result<()> {
        self.0.write_all(&masked(first::TEXT, text))
    }
}
