//! Archives with servers, and helpers that read and write their events.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hark_testkit::nostr::event_line;
use hark_testkit::program::{Finished, Process, Program};
use hark_testkit::server::{Server, free_port};
use hark_testkit::wait::until_ok;

use crate::served::Place;

/// An archive, and perhaps its server.
pub(super) struct Node {
    place: Place,
    port: Option<u16>,
    server: Option<Server>,
}

impl Node {
    /// An archive with these events.
    pub(super) fn new(name: &str, settings: &str, events: &[String]) -> Self {
        let place = Place::new(&format!("peers-{name}"), settings);
        let lines = place.folder.file("events.jsonl", events.concat());
        let node = Self { place, port: None, server: None };
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
        let address = format!("127.0.0.1:{}", self.port.unwrap_or(0));
        let mut command = self.place.serving(&["--unlimited", "--listen", &address]);
        self.server = Some(Server::start(&mut command));
    }

    /// Starts the server with the configured rates.
    pub(super) fn serve_with_rates(&mut self) {
        self.server = Some(Server::start(&mut self.place.serving(&[])));
    }

    pub(super) fn kill(&mut self) {
        self.server = None;
    }

    pub(super) fn url(&self) -> String {
        format!("ws://{}", self.server.as_ref().expect("is served").address)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.place.folder.join(name)
    }

    pub(super) fn command(&self, args: &[&str]) -> Program {
        self.place.command(args)
    }

    pub(super) fn run(&self, args: &[&str]) -> Finished {
        self.command(args).run_with(b"")
    }

    /// The ids of the events that match a filter.
    pub(super) fn ids(&self, filter: &str) -> BTreeSet<String> {
        let done = self.run(&["query", filter]);
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout.lines().map(id).collect()
    }

    /// Waits until the archive has this number of events.
    pub(super) fn wait_for(&self, count: usize) {
        until_ok(|| {
            let found = self.run(&["count", "{}"]).stdout;
            let is_all = found.trim().parse() == Ok(count);
            if is_all { Ok(()) } else { Err(format!("{} of {count} events", found.trim())) }
        });
    }
}

/// A command that runs until it is stopped, and is killed if the test fails.
pub(super) struct Running(Process);

impl Running {
    pub(super) fn start(mut command: Program) -> Self {
        Self(command.spawn().expect("the binary runs"))
    }

    /// Waits for a line of the log with this text.
    pub(super) fn wait_for_log(&mut self, said: &str) {
        self.0.wait_for_log(said);
    }

    /// Stops the command as Ctrl-C does.
    pub(super) fn stop(self) -> Finished {
        self.0.signal("INT");
        self.0.finish()
    }
}

/// The id of an event's line.
pub(super) fn id(line: &str) -> String {
    line.split_once("\"id\":\"").expect("an id").1[..64].to_owned()
}

/// Notes of several people about several things, three each second.
pub(super) fn notes(name: &str, count: u64, start: u64) -> Vec<String> {
    let topic = |n: u64| ["bread", "salt"][(n % 2) as usize];
    (0..count)
        .map(|n| {
            let tags: [&[&str]; 1] = [&["t", topic(n)]];
            let kind = [1, 1, 7, 30][(n % 4) as usize];
            event_line(1 + (n % 3) as u8, start + n / 3, kind, &tags, &format!("{name} {n}"))
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
