//! An HTTP client that sends each request on its own connection.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::wait::PATIENCE;

/// A request. [`HttpRequest::send`] sends it to an address.
#[derive(Clone, Debug)]
pub struct HttpRequest<'a> {
    method: &'a str,
    path: &'a str,
    host: Option<&'a str>,
    headers: Vec<(&'a str, &'a str)>,
    body: &'a [u8],
    sends_body: bool,
    patience: Duration,
}

/// An answer. If the body is chunked, its parts are joined.
#[derive(Debug)]
pub struct HttpReply {
    /// The status code.
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

/// Sends a GET request. Panics if there is no answer.
#[track_caller]
pub fn get(addr: &str, path: &str) -> HttpReply {
    HttpRequest::new("GET", path).send(addr)
}

/// Returns the value of a metric in a page of metrics; `None` if the page does not have the metric.
/// `name` must include the labels.
pub fn metric(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

impl<'a> HttpRequest<'a> {
    /// A request without a body.
    pub fn new(method: &'a str, path: &'a str) -> Self {
        Self {
            method,
            path,
            host: None,
            headers: Vec::new(),
            body: b"",
            sends_body: true,
            patience: PATIENCE,
        }
    }

    /// Sets the name of the server in the request. By default, the name is the address.
    #[must_use]
    pub fn host(mut self, host: &'a str) -> Self {
        self.host = Some(host);
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Adds headers.
    #[must_use]
    pub fn headers(mut self, headers: &[(&'a str, &'a str)]) -> Self {
        self.headers.extend_from_slice(headers);
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.body = body.as_ref();
        self
    }

    /// Sets a JSON body.
    #[must_use]
    pub fn json(self, body: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.header("Content-Type", "application/json").body(body)
    }

    /// Sends the length of the body, but not the body. Otherwise a server that refuses a body
    /// because of its length could reset the connection while the client is still sending.
    #[must_use]
    pub fn without_body(mut self) -> Self {
        self.sends_body = false;
        self
    }

    /// Sets the longest time to wait for further bytes of the answer.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The bytes of the request for this address.
    pub fn bytes(&self, addr: &str) -> Vec<u8> {
        let (method, path, host) = (self.method, self.path, self.host.unwrap_or(addr));
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        let headers = self.headers.iter().flat_map(|(name, value)| [*name, ": ", *value, "\r\n"]);
        let length = format!("Content-Length: {}\r\n\r\n", self.body.len());
        let head = head + &headers.collect::<String>() + &length;
        let body = if self.sends_body { self.body } else { b"" };
        [head.as_bytes(), body].concat()
    }

    /// Sends the request. Panics if there is no answer.
    #[track_caller]
    pub fn send(&self, addr: &str) -> HttpReply {
        self.try_send(addr).unwrap_or_else(|error| {
            panic!("{} {} is not answered: {error}", self.method, self.path);
        })
    }

    /// Sends the request. Returns an error if there is no answer.
    pub fn try_send(&self, addr: &str) -> io::Result<HttpReply> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.write_all(&self.bytes(addr))?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        HttpReply::parse(&answer)
    }
}

impl HttpReply {
    /// Parses a whole answer.
    pub fn parse(answer: &[u8]) -> io::Result<Self> {
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
        let body = &answer[end + 4..];
        let is_chunked = head.contains("transfer-encoding: chunked");
        let body = if is_chunked { joined(body)? } else { body.into() };
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { status, head, body })
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    /// The text of an answer; panics unless its status is 200.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.status, 200, "{}", self.text());
        self.text()
    }

    /// The status and the text.
    pub fn parts(self) -> (u16, String) {
        (self.status, self.text())
    }
}

/// Joins the parts of a chunked body. Returns an error if the last chunk is missing.
fn joined(mut body: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let line = body.windows(2).position(|two| two == b"\r\n");
        let line = line.ok_or(io::ErrorKind::UnexpectedEof)?;
        let length = usize::from_str_radix(&String::from_utf8_lossy(&body[..line]), 16);
        let length = length.map_err(|_| io::ErrorKind::InvalidData)?;
        if length == 0 {
            return Ok(out);
        }
        let (from, to) = (line + 2, line + 2 + length);
        out.extend_from_slice(body.get(from..to).ok_or(io::ErrorKind::UnexpectedEof)?);
        body = body.get(to + 2..).ok_or(io::ErrorKind::UnexpectedEof)?;
    }
}
