//! A Whisper mail server from outside: its REST interface, its shelf, and real clients.

use hark_codec::whisper::{Envelope, Topic};
use hark_testkit::clock::now_s;
use hark_testkit::folder::Folder;
use hark_testkit::http::{HttpReply, HttpRequest};
use hark_testkit::server::Server;
use serde_json::Value;

use crate::served::hark;

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
    server: Server,
    pub(crate) data: Folder,
    /// Host and port of the REST interface.
    pub(crate) rest: String,
    /// The address of the node for peers: its enode URL.
    pub(crate) enode: String,
    /// Host and port of the relay.
    pub(crate) relay: String,
}

/// An empty directory.
pub(crate) fn folder(name: &str) -> Folder {
    Folder::new(&format!("whisper-{name}"))
}

impl MailNode {
    pub(crate) fn start(name: &str, settings: &[(&str, &str)]) -> Self {
        Self::on(folder(name), &[], settings)
    }

    /// Starts a server on an existing archive with these arguments and settings. The name of a
    /// setting is a key of `[whisper]`, or an environment variable that begins with `HARK_`.
    pub(crate) fn on(data: Folder, args: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut command = hark(&data);
        command.arg("serve").args(args).args(["--unlimited", "--listen", "127.0.0.1:0"]);
        command.env("HARK_WHISPER_SERVE", "true").env("HARK_WHISPER_REST", "127.0.0.1:0");
        command.env("HARK_WHISPER_LISTEN", "127.0.0.1:0").env("HARK_WHISPER_POW_MIN", "0");
        for (name, value) in settings {
            let own = format!("HARK_WHISPER_{}", name.to_uppercase());
            command.env(if name.starts_with("HARK_") { *name } else { &*own }, value);
        }
        command.log_to(&data.join("log"));
        let server = Server::start_with_doors(&mut command, |doors| {
            let has_peer = !cfg!(feature = "devp2p") || !doors.whisper_peer.is_empty();
            has_peer && !doors.whisper_rest.is_empty()
        });
        let (rest, enode) = (server.doors.whisper_rest.clone(), server.doors.whisper_peer.clone());
        Self { data, rest, enode, relay: server.address.clone(), server }
    }

    pub(crate) fn kill(&mut self) {
        self.server.kill();
    }

    /// Stops the server as an operator does.
    pub(crate) fn stop(&mut self) {
        self.server.stop();
    }

    /// Sends a request of this type, and returns the answer.
    pub(crate) fn ask(&self, request: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpReply {
        asked(request, headers, body).send(&self.rest)
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

/// A request in the form `METHOD path`.
pub(crate) fn asked<'a>(
    request: &'a str,
    headers: &[(&'a str, &'a str)],
    body: &'a [u8],
) -> HttpRequest<'a> {
    let (method, path) = request.split_once(' ').expect("a method and a path");
    let request = HttpRequest::new(method, path).headers(headers).body(body);
    // The server refuses a too large body by its declared length, and may reset the connection
    // during the body.
    if body.len() < 1_500_000 { request } else { request.without_body() }
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
