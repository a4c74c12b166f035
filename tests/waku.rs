//! A Waku node from outside: its REST door, peers, and real clients.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hark_testkit::disk::scratch;
use hark_testkit::program::Process;
use serde_json::{Value, json};

use crate::served::{PATIENCE, hark};

mod bench;
mod clients;
mod damage;
mod door;
mod history;
mod metrics;
mod peers;
mod rest;
mod retention;
mod shelf;
mod takeover;
mod validators;

/// A server with a Waku node.
pub(crate) struct Node {
    child: Process,
    pub(crate) data: PathBuf,
    /// Host and port of the REST door.
    pub(crate) rest: String,
    /// Addresses for peers.
    pub(crate) peers: Vec<String>,
    /// Host and port of the relay.
    pub(crate) relay: String,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        // Remaining files do no harm.
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// An empty directory.
fn folder(name: &str) -> PathBuf {
    let path = scratch(&format!("waku-{name}"));
    std::fs::create_dir_all(&path).expect("is made");
    path
}

/// A pseudo-argument of tests: rates and connections have the default bounds.
const LIMITED: &str = "limited";

impl Node {
    pub(crate) fn start(name: &str, settings: &[(&str, &str)]) -> Self {
        Self::on(folder(name), settings)
    }

    /// Starts a node on an existing archive, with these settings of `[waku]` beside the usual ones.
    pub(crate) fn on(data: PathBuf, settings: &[(&str, &str)]) -> Self {
        Self::with(data, &[], settings)
    }

    /// Starts a node as [`Node::on`] does, with these arguments as well.
    fn with(data: PathBuf, args: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut command = hark(&data);
        command.arg("serve").args(args.iter().filter(|arg| **arg != LIMITED));
        if !args.contains(&LIMITED) {
            command.arg("--unlimited");
        }
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.env("HARK_WAKU_SERVE", "true").env("HARK_WAKU_REST", "127.0.0.1:0");
        // Test networks require no proofs.
        command.env("HARK_WAKU_FORWARD", "always");
        command.env("HARK_WAKU_LISTEN", "/ip4/127.0.0.1/tcp/0,/ip4/127.0.0.1/tcp/0/ws");
        for (name, value) in settings {
            let of_waku = format!("HARK_WAKU_{}", name.to_uppercase());
            command.env(if name.starts_with("HARK_") { *name } else { &*of_waku }, value);
        }
        let mut child = command.log_to(&data.join("log")).spawn().expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        let (mut relay, mut rest, mut peers) = (String::new(), String::new(), Vec::new());
        while peers.len() < 2 {
            let Some(line) = lines.next() else {
                panic!("the node does not start: {}", child.log());
            };
            let line = line.expect("a line");
            if let Some(addr) = line.strip_prefix("listening on ws://") {
                relay = addr.into();
            } else if let Some(addr) = line.strip_prefix("waku rest on http://") {
                rest = addr.into();
            } else if let Some(addr) = line.strip_prefix("waku peer on ") {
                peers.push(addr.into());
            }
        }
        Self { child, data, rest, peers, relay }
    }

    pub(crate) fn kill(&mut self) {
        // SIGKILL. The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops the node as an operator does.
    pub(crate) fn stop(&mut self) {
        self.child.signal("TERM");
        assert!(self.child.wait().expect("has ended").success());
    }

    /// Sends a request to the REST door, and returns the status and the body.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        http(&self.rest, method, path, body)
    }

    /// Sends a GET request, which must succeed, and returns the JSON of the answer.
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Publishes a message under its own shard.
    pub(crate) fn publish(&self, message: &Value) {
        let answer = self.ask("POST", "/relay/v1/auto/messages", &message.to_string());
        assert_eq!(answer, (200, "OK".into()));
    }

    /// Returns the hashes of all stored messages that match the parameters `of`, oldest first.
    pub(crate) fn hashes(&self, of: &str) -> Vec<String> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("/store/v3/messages?{of}&pageSize=100&cursor={cursor}"));
            let messages = page["messages"].as_array().expect("a list");
            all.extend(messages.iter().map(|one| text(&one["messageHash"])));
            match page["paginationCursor"].as_str() {
                Some(next) => cursor = next.into(),
                None => return all,
            }
        }
    }
}

/// Imports messages from lines of JSON, without a server.
fn import(data: &Path, lines: &str) {
    let file = data.join("messages.jsonl");
    std::fs::write(&file, lines).expect("is written");
    let mut command = hark(data);
    command.args(["import", "--network", "waku"]).arg(&file);
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

/// Waits until `holds` returns true.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends one request on its own connection, and returns the status and the body.
pub(crate) fn http(addr: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    try_http(addr, method, path, body).expect("is answered")
}

/// Does the same as [`http`], but fails if the node is gone.
fn try_http(addr: &str, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    status.zip(body).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}

/// Now, in nanoseconds since 1970.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    since.as_nanos() as u64
}

/// A message with this payload, in base64, under a content topic of application `app`.
fn message(app: &str, payload: &str, timestamp: u64) -> Value {
    json!({
        "payload": payload, "contentTopic": format!("/{app}/1/chat/proto"), "timestamp": timestamp,
    })
}
