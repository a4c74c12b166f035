//! A Whisper mail server from outside: its REST interface, its shelf, and real clients.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use hark_codec::whisper::{Envelope, Topic};
use hark_testkit::disk::scratch;
use hark_testkit::program::Process;
use serde_json::Value;

use crate::served::{PATIENCE, hark, now_s};

mod damage;
mod history;
#[cfg(feature = "devp2p")]
mod peers;
mod rest;
mod retention;
mod shelf;
#[cfg(feature = "devp2p")]
mod wnode;

/// A server with a mail server.
pub(crate) struct MailNode {
    child: Process,
    pub(crate) data: PathBuf,
    /// Host and port of the REST interface.
    pub(crate) rest: String,
    /// The address of the node for peers: its enode URL.
    pub(crate) enode: String,
    /// Host and port of the relay.
    pub(crate) relay: String,
}

impl Drop for MailNode {
    fn drop(&mut self) {
        self.kill();
        // Remaining files do no harm.
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// An HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }
}

/// An empty directory.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = scratch(&format!("whisper-{name}"));
    std::fs::create_dir_all(&path).expect("is made");
    path
}

impl MailNode {
    pub(crate) fn start(name: &str, settings: &[(&str, &str)]) -> Self {
        Self::on(folder(name), &[], settings)
    }

    /// Starts a server on an existing archive, with these arguments, and these settings of
    /// `[whisper]` or variables of any name that begins with `HARK_`.
    pub(crate) fn on(data: PathBuf, args: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut command = hark(&data);
        command.arg("serve").args(args).args(["--unlimited", "--listen", "127.0.0.1:0"]);
        command.env("HARK_WHISPER_SERVE", "true").env("HARK_WHISPER_REST", "127.0.0.1:0");
        command.env("HARK_WHISPER_LISTEN", "127.0.0.1:0").env("HARK_WHISPER_POW_MIN", "0");
        for (name, value) in settings {
            let own = format!("HARK_WHISPER_{}", name.to_uppercase());
            command.env(if name.starts_with("HARK_") { *name } else { &*own }, value);
        }
        let mut child = command.log_to(&data.join("log")).spawn().expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        let (mut relay, mut rest, mut enode) = (String::new(), String::new(), String::new());
        while rest.is_empty() || (cfg!(feature = "devp2p") && enode.is_empty()) {
            let Some(line) = lines.next() else {
                panic!("the server does not start: {}", child.log());
            };
            let line = line.expect("a line");
            if let Some(addr) = line.strip_prefix("listening on ws://") {
                relay = addr.into();
            } else if let Some(addr) = line.strip_prefix("whisper rest on http://") {
                rest = addr.into();
            } else if let Some(url) = line.strip_prefix("whisper peer on ") {
                enode = url.into();
            }
        }
        Self { child, data, rest, enode, relay }
    }

    pub(crate) fn kill(&mut self) {
        // SIGKILL. The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops the server as an operator does.
    pub(crate) fn stop(&mut self) {
        self.child.signal("TERM");
        assert!(self.child.wait().expect("has ended").success());
    }

    /// Sends a request of this type, and returns the answer.
    pub(crate) fn ask(&self, request: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        ask(&self.rest, request, headers, body)
    }

    /// Sends envelopes, which must all be stored.
    pub(crate) fn publish(&self, envelopes: &[Vec<u8>]) {
        let answer = self.ask("POST /whisper/envelopes", &[RLP], &list(envelopes));
        let expected = serde_json::json!({
            "stored": envelopes.len(), "duplicates": 0, "refused": [],
        });
        assert_eq!((answer.status, answer.json()), (200, expected));
    }

    /// Sends a query in JSON, and returns the answer in JSON.
    pub(crate) fn query(&self, request: &str) -> Value {
        let answer = self.ask(
            "POST /whisper/messages",
            &[JSON, ("Accept", "application/json")],
            request.as_bytes(),
        );
        assert_eq!(answer.status, 200, "{request}: {}", answer.text());
        answer.json()
    }

    /// The hashes of the envelopes that match a request in JSON.
    pub(crate) fn hashes(&self, request: &str) -> Vec<String> {
        let answer = self.query(request);
        let envelopes = answer["envelopes"].as_array().expect("a list").iter();
        envelopes.map(|one| one["hash"].as_str().expect("a hash").to_owned()).collect()
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.data.join("log")).expect("is there")
    }
}

pub(crate) const RLP: (&str, &str) = ("Content-Type", "application/octet-stream");
pub(crate) const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Sends one request on its own connection, and returns the answer, its chunks joined.
pub(crate) fn ask(addr: &str, request: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(addr).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("is set");
    let mut head = format!("{request} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").expect("is text");
    }
    write!(head, "Content-Length: {}\r\n\r\n", body.len()).expect("is text");
    stream.write_all(head.as_bytes()).expect("is sent");
    // The server refuses a too large body by its declared length, and may reset the connection
    // during the body.
    if body.len() < 1_500_000 {
        stream.write_all(body).expect("is sent");
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("is answered");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let body = &answer[end + 4..];
    let body = if head.contains("transfer-encoding: chunked") { joined(body) } else { body.into() };
    Answer { status: head[9..12].parse().expect("a status"), head, body }
}

/// The content of a chunked body. A truncated body has no last chunk.
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

/// An envelope that was sent this number of seconds ago, as RLP.
pub(crate) fn envelope(topic: Topic, ago_s: u32, data: &[u8]) -> Vec<u8> {
    let expiry = now_s() as u32 - ago_s + 100;
    let mut rlp = Vec::new();
    Envelope { expiry, ttl: 100, topic, data, nonce: 7 }.write(&mut rlp);
    rlp
}

/// Envelopes as one RLP list.
pub(crate) fn list(envelopes: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    let len = envelopes.iter().map(Vec::len).sum();
    hark_codec::whisper::rlp::put_list(&mut out, len);
    for envelope in envelopes {
        out.extend_from_slice(envelope);
    }
    out
}

/// Waits until `holds` returns true.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
