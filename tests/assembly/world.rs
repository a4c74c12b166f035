//! A world: an archive on a store, with its servers.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use hark_testkit::digits::digits;
use hark_testkit::folder::Folder;
use hark_testkit::program::{Finished, Program};
use hark_testkit::server::Server;
use hark_testkit::wait::PATIENCE;

use crate::fixture;
use crate::peers::{Helper, helpers_address};
use crate::stores::{Backing, StoreKind};

/// A server.
pub(crate) struct Node {
    pub(crate) server: Server,
    /// Host and port of the relay.
    pub(crate) relay: String,
    pub(crate) waku: String,
    pub(crate) whisper: String,
    pub(crate) enode: String,
    /// Addresses of libp2p, by TCP and by WebSocket.
    pub(crate) peers: Vec<String>,
    /// Number of bytes of the log that have been checked.
    looked_at: usize,
}

/// An archive with its servers and its database.
pub(crate) struct World {
    pub(crate) store: StoreKind,
    pub(crate) root: Folder,
    pub(crate) backing: Option<Backing>,
    pub(crate) nodes: Vec<Node>,
    /// The number of the first server's data directory.
    pub(crate) first: usize,
    helper: OnceLock<Helper>,
}

/// The binary, without an archive.
pub(crate) fn program() -> Program {
    let mut program = Program::new(env!("CARGO_BIN_EXE_hark"));
    program.stdout(Stdio::piped());
    program
}

/// A number that no other call returns.
pub(crate) fn number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

impl World {
    /// An archive without records and without a server.
    pub(crate) fn empty(store: StoreKind, is_own: bool) -> Self {
        let root = Folder::new(&format!("assembly-{}", store.name().replace(' ', "-")));
        let backing = store.is_database().then(|| Backing::new(store, is_own));
        let world =
            Self { store, root, backing, nodes: Vec::new(), first: 0, helper: OnceLock::new() };
        std::fs::write(world.config(), world.settings()).expect("is written");
        world
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.root.join("hark.toml")
    }

    pub(crate) fn data(&self, node: usize) -> PathBuf {
        self.root.join(format!("data{}", self.first + node))
    }

    /// The settings of the world's servers: every door is open, and nothing is deleted by age.
    fn settings(&self) -> String {
        let trusted = digits(&fixture::trusted().public().bytes());
        let replica = self.backing.as_ref().and_then(|of| Some((of.replica()?, &of.name)));
        let read_url = replica.map_or_else(String::new, |(replica, name)| replica.url(name));
        let helper = helpers_address();
        let search = self.store != StoreKind::Citus;
        format!(
            "[postgres]\nread_url = \"{read_url}\"\n[search]\nenabled = {search}\n\
             [waku]\nserve = true\nrest = \"127.0.0.1:0\"\nrest_any_peer = true\n\
             rest_admin = true\nforward = \"always\"\nretention = \"\"\n\
             listen = [\"/ip4/127.0.0.1/tcp/0\", \"/ip4/127.0.0.1/tcp/0/ws\"]\n\
             peers = [\"{helper}\"]\n\
             [whisper]\nserve = true\nrest = \"127.0.0.1:0\"\nlisten = \"127.0.0.1:0\"\n\
             pow_min = 0.0\nretention_days = 0\n\
             trusted = [\"enode://{trusted}@127.0.0.1:1\"]\n"
        )
    }

    /// A command on this archive, with the settings of its first server.
    pub(crate) fn command(&self, args: &[&str]) -> Program {
        self.command_at(0, args)
    }

    pub(crate) fn command_at(&self, node: usize, args: &[&str]) -> Program {
        let mut program = program();
        program.arg("--data").arg(self.data(node)).arg("--config").arg(self.config());
        if let Some(backing) = &self.backing {
            program.arg("--store").arg(backing.url(&backing.name));
        }
        program.args(args);
        program
    }

    pub(crate) fn hark(&self, args: &[&str]) -> Finished {
        self.command(args).run_with(b"")
    }

    pub(crate) fn hark_fed(&self, args: &[&str], stdin: &[u8]) -> Finished {
        self.command(args).run_with(stdin)
    }

    /// A command on another, empty archive of the same store.
    pub(crate) fn aside(&self) -> impl Fn(&[&str]) -> Program + use<> {
        let data = self.root.join(format!("aside{}", number()));
        let url = self.backing.as_ref().map(|backing| backing.url(&backing.make()));
        move |args| {
            let mut program = program();
            program.arg("--data").arg(&data);
            if let Some(url) = &url {
                program.arg("--store").arg(url);
            }
            program.args(args);
            program
        }
    }

    /// Writes a file, and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        self.root.file(name, text).to_string_lossy().into_owned()
    }

    /// Imports the fixture of a network, without a server.
    pub(crate) fn import(&self, network: &str, lines: &str) {
        self.hark_fed(&["import", "--network", network], lines.as_bytes()).text();
    }

    /// Imports all of the fixture.
    pub(crate) fn fill(&self) {
        self.import("nostr", &fixture::events().join("\n"));
        self.import("waku", &fixture::messages());
        self.import("whisper", &fixture::envelopes());
    }

    /// Starts all servers of the world.
    pub(crate) fn serve(&mut self) {
        for at in 0..self.store.nodes() {
            self.start(at, &[]);
        }
    }

    /// Starts a server on the data directory with this number.
    pub(crate) fn start(&mut self, at: usize, flags: &[&str]) {
        let node = Node::start(self.command_at(at, &[]), flags);
        self.nodes.push(node);
    }

    /// The server for writes.
    pub(crate) fn writes(&self) -> &Node {
        self.nodes.first().expect("is served")
    }

    /// The server for reads.
    pub(crate) fn reads(&self) -> &Node {
        self.nodes.last().expect("is served")
    }

    /// A second Waku node with an archive in files, connected with this world.
    pub(crate) fn helper(&self) -> &Helper {
        self.helper.get_or_init(|| Helper::start(self))
    }

    /// Returns the panics in the servers' logs since the last call.
    pub(crate) fn panics(&mut self) -> Option<String> {
        let found = self.nodes.iter_mut().filter_map(Node::panic).collect::<Vec<_>>();
        (!found.is_empty()).then(|| found.join("; "))
    }

    /// The number of files, threads and connections to the database that the servers hold.
    pub(crate) fn held(&self) -> usize {
        let of_node = |node: &Node| {
            let count = |what: &str| {
                let list = std::fs::read_dir(format!("/proc/{}/{what}", node.server.id()));
                list.map_or(0, Iterator::count)
            };
            count("fd") + count("task")
        };
        let connections = self.backing.as_ref().map_or(0, Backing::connections);
        self.nodes.iter().map(of_node).sum::<usize>() + connections
    }

    /// Ends the servers with SIGTERM, as an operator does.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.helper.take();
        let mut faults = Vec::new();
        for mut node in self.nodes.drain(..) {
            node.server.signal("TERM");
            match node.server.wait_for_end(PATIENCE) {
                Some(status) if status.success() => {}
                Some(status) => faults.push(format!("it ends with {status}")),
                None => faults.push(format!("it has not ended {PATIENCE:?} after SIGTERM")),
            }
            faults.extend(node.panic());
            let last = node.server.log();
            if faults.is_empty() && !last.contains("closed") {
                faults.push(format!("its log does not end with `closed`: {}", tail(&last)));
            }
            node.server.read_to_end();
            faults.extend(node.server.doors.others.first().cloned());
            node.forget();
        }
        if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.helper.take();
        for node in self.nodes.drain(..) {
            node.forget();
        }
    }
}

/// Returns the panic in a log or, if there is none, the last lines of the log.
pub(crate) fn tail(log: &str) -> String {
    let mut lines: Vec<&str> = log.lines().collect();
    if let Some(at) = lines.iter().position(|line| line.contains("panicked at")) {
        lines.truncate(at + 2);
        return lines.split_off(at).join(" ");
    }
    // A backtrace has no use in a table.
    lines.retain(|line| !line.starts_with("   "));
    lines[lines.len().saturating_sub(3)..].join(" | ")
}

impl Node {
    /// Starts a server, and returns once every door is open.
    pub(crate) fn start(mut program: Program, flags: &[&str]) -> Self {
        program.args(["serve", "--unlimited", "--listen", "127.0.0.1:0"]).args(flags);
        let server = Server::try_start(&mut program, |doors| {
            let single = [&doors.waku_rest, &doors.whisper_rest, &doors.whisper_peer];
            doors.waku_peers.len() == 2 && single.iter().all(|at| !at.is_empty())
        });
        let server = server.unwrap_or_else(|process| {
            let why = tail(&process.log());
            forget(process);
            panic!("it does not start: {why}");
        });
        let doors = server.doors.clone();
        let node = Self {
            relay: server.address.clone(),
            waku: doors.waku_rest,
            whisper: doors.whisper_rest,
            enode: doors.whisper_peer,
            peers: doors.waku_peers,
            looked_at: 0,
            server,
        };
        if let Some(line) = doors.others.first() {
            node.forget();
            panic!("a door that is not in the table: {line}");
        }
        node
    }

    /// A panic in the log since the last call.
    fn panic(&mut self) -> Option<String> {
        let log = self.server.log();
        let new = &log[self.looked_at.min(log.len())..];
        let mut lines = new.lines().skip_while(|line| !line.contains("panicked at"));
        let found = lines.next().map(|at| format!("{at} {}", lines.next().unwrap_or_default()));
        self.looked_at = log.len();
        found
    }

    /// Kills the server. Panics in its log have been reported already.
    pub(crate) fn forget(self) {
        forget(self.server);
    }
}

/// Kills a process. Panics in its log have been reported already.
pub(crate) fn forget<T>(process: T) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(process)));
}
