//! Archives with servers, and helpers that read and write their events.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use hark_codec::crypto::KeyPair;
use hark_codec::nostr::EventDraft;
use hark_testkit::disk::scratch;
use hark_testkit::program::{Process, Program};

use crate::served::{PATIENCE, Server, hark};

/// An archive, and perhaps its server.
pub(super) struct Node {
    root: PathBuf,
    port: Option<u16>,
    server: Option<Server>,
}

/// The result of a command.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Done {
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

impl Node {
    /// An archive with these events.
    pub(super) fn new(name: &str, settings: &str, events: &[String]) -> Self {
        let root = scratch(&format!("peers-{name}"));
        std::fs::create_dir_all(&root).expect("is made");
        std::fs::write(root.join("hark.toml"), settings).expect("is written");
        let lines = root.join("events.jsonl");
        std::fs::write(&lines, events.concat()).expect("is written");
        let node = Self { root, port: None, server: None };
        let done = node.run(&["import", &lines.to_string_lossy()]);
        assert_eq!(done.code, 0, "{done:?}");
        node
    }

    /// An archive with these events and a running server.
    pub(super) fn served(name: &str, settings: &str, events: &[String]) -> Self {
        let mut node = Self::new(name, settings, events);
        node.serve();
        node
    }

    /// The same as [`Node::served`], with a server that keeps its address after a restart.
    pub(super) fn served_again(name: &str, events: &[String]) -> Self {
        let mut node = Self::new(name, "", events);
        node.port = Some(free_port());
        node.serve();
        node
    }

    pub(super) fn serve(&mut self) {
        let config = self.root.join("hark.toml");
        let address = format!("127.0.0.1:{}", self.port.unwrap_or(0));
        self.server = Some(Server::start_at(&self.data(), &config, &address));
    }

    /// Starts the server with the configured rates.
    pub(super) fn serve_with_rates(&mut self) {
        let config = self.root.join("hark.toml");
        self.server = Some(Server::start_with_rates(&self.data(), &config));
    }

    pub(super) fn kill(&mut self) {
        self.server = None;
    }

    pub(super) fn url(&self) -> String {
        format!("ws://{}", self.server.as_ref().expect("is served").address)
    }

    pub(super) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(super) fn command(&self, args: &[&str]) -> Program {
        let mut command = hark(&self.data());
        command.arg("--config").arg(self.root.join("hark.toml")).args(args);
        command
    }

    pub(super) fn run(&self, args: &[&str]) -> Done {
        done(self.command(args).spawn().expect("the binary runs"))
    }

    /// The ids of the events that match a filter.
    pub(super) fn ids(&self, filter: &str) -> BTreeSet<String> {
        let done = self.run(&["query", filter]);
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout.lines().map(id).collect()
    }

    /// Waits until the archive has this number of events.
    pub(super) fn wait_for(&self, count: usize) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.run(&["count", "{}"]).stdout;
            if found.trim().parse() == Ok(count) {
                return;
            }
            assert!(Instant::now() < until, "{} of {count} events", found.trim());
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server = None;
        // Files that remain in the temporary directory do no harm.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// A port that is free now.
pub(super) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Waits for a command.
pub(super) fn done(child: Process) -> Done {
    let output = child.wait_with_output().expect("it ends");
    Done {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("is text"),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A command that runs until it is stopped, and is killed if the test fails.
pub(super) struct Running(Process);

impl Running {
    pub(super) fn start(mut command: Program) -> Self {
        Self(command.spawn().expect("the binary runs"))
    }

    /// Stops the command as Ctrl-C does.
    pub(super) fn stop(self) -> Done {
        self.0.signal("INT");
        done(self.0)
    }
}

/// The id of an event's line.
pub(super) fn id(line: &str) -> String {
    line.split_once("\"id\":\"").expect("an id").1[..64].to_owned()
}

/// A signed event and its line break.
pub(super) fn event(who: u8, at: u64, kind: u16, tags: &[&[&str]], content: &str) -> String {
    let keys = KeyPair::from_secret([who; 32]).expect("a key");
    let mut line = Vec::new();
    EventDraft { created_at: at, kind, tags, content }.sign(&keys, &mut line);
    line.push(b'\n');
    String::from_utf8(line).expect("is text")
}

/// Notes of several people about several things, three each second.
pub(super) fn notes(name: &str, count: u64, start: u64) -> Vec<String> {
    let topic = |n: u64| ["bread", "salt"][(n % 2) as usize];
    (0..count)
        .map(|n| {
            let tags: [&[&str]; 1] = [&["t", topic(n)]];
            let kind = [1, 1, 7, 30][(n % 4) as usize];
            event(1 + (n % 3) as u8, start + n / 3, kind, &tags, &format!("{name} {n}"))
        })
        .collect()
}

/// Joins several lists.
pub(super) fn all(lists: &[&[String]]) -> Vec<String> {
    lists.concat()
}

/// Writes a file of a node.
pub(super) fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("is written");
}
