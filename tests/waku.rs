//! A Waku node from outside: its REST door, peers, and real clients.

use std::path::Path;

use hark_testkit::folder::Folder;
use hark_testkit::http::HttpRequest;
use hark_testkit::server::Server;
use serde_json::{Value, json};

use crate::served::hark;

mod bench;
mod clients;
mod damage;
mod discovery;
mod door;
mod history;
mod light;
mod metrics;
mod peers;
mod rest;
mod retention;
#[cfg(feature = "tls")]
mod secure;
mod shelf;
mod takeover;
mod validators;

/// A server with a Waku node.
pub(crate) struct Node {
    server: Server,
    pub(crate) data: Folder,
    /// Host and port of the REST door.
    pub(crate) rest: String,
    /// Addresses for peers.
    pub(crate) peers: Vec<String>,
    /// Host and port of the relay.
    pub(crate) relay: String,
}

/// An empty directory.
fn folder(name: &str) -> Folder {
    Folder::new(&format!("waku-{name}"))
}

/// A pseudo-argument of these tests: with it, rates and connections have the default bounds.
const LIMITED: &str = "limited";

impl Node {
    pub(crate) fn start(name: &str, settings: &[(&str, &str)]) -> Self {
        Self::on(folder(name), settings)
    }

    /// Starts a node on an existing archive, with these settings of `[waku]` in addition to the
    /// usual settings.
    pub(crate) fn on(data: Folder, settings: &[(&str, &str)]) -> Self {
        Self::with(data, &[], settings)
    }

    /// Starts a node as [`Node::on`] does, with these arguments as well.
    fn with(data: Folder, args: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut command = hark(&data);
        command.arg("serve").args(args.iter().filter(|arg| **arg != LIMITED));
        if !args.contains(&LIMITED) {
            command.arg("--unlimited");
        }
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.env("HARK_WAKU_SERVE", "true").env("HARK_WAKU_REST", "127.0.0.1:0");
        // Test networks require no proofs, so the node may forward all messages.
        command.env("HARK_WAKU_FORWARD", "always");
        command.env("HARK_WAKU_LISTEN", "/ip4/127.0.0.1/tcp/0,/ip4/127.0.0.1/tcp/0/ws");
        for (name, value) in settings {
            let of_waku = format!("HARK_WAKU_{}", name.to_uppercase());
            command.env(if name.starts_with("HARK_") { *name } else { &*of_waku }, value);
        }
        command.log_to(&data.join("log"));
        let server = Server::start_with_doors(&mut command, |doors| doors.waku_peers.len() == 2);
        let (rest, peers) = (server.doors.waku_rest.clone(), server.doors.waku_peers.clone());
        Self { data, rest, peers, relay: server.address.clone(), server }
    }

    pub(crate) fn kill(&mut self) {
        self.server.kill();
    }

    /// Stops the node as an operator does.
    pub(crate) fn stop(&mut self) {
        self.server.stop();
    }

    /// Sends a request to the REST door, and returns the status and the body.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        HttpRequest::new(method, path).json(body).send(&self.rest).parts()
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

/// A message with this payload, in base64, under a content topic of application `app`.
fn message(app: &str, payload: &str, timestamp: u64) -> Value {
    json!({
        "payload": payload, "contentTopic": format!("/{app}/1/chat/proto"), "timestamp": timestamp,
    })
}
