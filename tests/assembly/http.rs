//! One request on a new connection.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// The longest wait for an answer. A door that takes this long counts as unanswered.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// An answer, its chunks joined.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    /// The body of an answer with status 200.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.status, 200, "{}", self.text());
        self.text()
    }
}

pub(crate) fn get(addr: &str, path: &str) -> Reply {
    ask(addr, "GET", path, &[], b"")
}

pub(crate) fn ask(
    addr: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    try_ask(addr, method, path, headers, body)
        .unwrap_or_else(|error| panic!("{method} {path} is not answered: {error}"))
}

pub(crate) fn try_ask(
    addr: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Reply> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head = head + name + ": " + value + "\r\n";
    }
    let length = format!("Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), length.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let body = &answer[end + 4..];
    let body = if head.contains("transfer-encoding: chunked") { joined(body) } else { body.into() };
    let status = head.get(9..12).and_then(|status| status.parse().ok());
    let status = status.ok_or(std::io::ErrorKind::InvalidData)?;
    Ok(Reply { status, head, body })
}

/// The content of a chunked body.
fn joined(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let line = body.windows(2).position(|two| two == b"\r\n").expect("a chunk");
        let length = usize::from_str_radix(&String::from_utf8_lossy(&body[..line]), 16);
        let length = length.expect("a length");
        if length == 0 {
            return out;
        }
        out.extend_from_slice(&body[line + 2..][..length]);
        body = &body[line + 2 + length + 2..];
    }
}
