//! A world: an archive on a store, with its servers.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hark_testkit::disk::scratch;
use hark_testkit::program::{Process, Program};
use serde_json::Value;

use crate::fixture;
use crate::peers::{Helper, helpers_address};
use crate::stores::{Backing, StoreKind};

/// The longest wait. No step of the suite takes this long, even on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The beginnings of the start's lines that name a door.
pub(crate) const LISTENING: [&str; 5] = [
    "listening on ws://",
    "waku rest on http://",
    "waku peer on ",
    "whisper rest on http://",
    "whisper peer on ",
];

/// A server.
pub(crate) struct Node {
    pub(crate) process: Process,
    stdout: Lines<BufReader<ChildStdout>>,
    /// Host and port of the relay.
    pub(crate) relay: String,
    pub(crate) waku: String,
    pub(crate) whisper: String,
    pub(crate) enode: String,
    /// Addresses of libp2p, by TCP and by WebSocket.
    pub(crate) peers: Vec<String>,
    /// The bytes of the log that have been checked.
    looked_at: usize,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    /// The output of a successful command.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    pub(crate) fn json(self) -> Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"))
    }

    /// The error message of a command that does not apply here.
    pub(crate) fn refused(self) -> String {
        assert!([1, 2].contains(&self.code), "{self:?}");
        assert!(!self.stderr.trim().is_empty(), "it does not say why: {self:?}");
        self.stderr
    }
}

/// An archive with its servers and its database.
pub(crate) struct World {
    pub(crate) store: StoreKind,
    pub(crate) root: PathBuf,
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

/// Waits until `holds` returns true.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command with this input.
pub(crate) fn run(program: &mut Program, stdin: &[u8]) -> Done {
    let mut process = program.stdin(Stdio::piped()).spawn().expect("the binary runs");
    let (mut input, bytes) = (process.stdin.take().expect("is piped"), stdin.to_vec());
    // A command that fails early does not read its input to the end.
    let writer = std::thread::spawn(move || drop(input.write_all(&bytes)));
    let output = process.wait_with_output().expect("it ends");
    writer.join().expect("no panic");
    Done {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl World {
    /// An archive without records and without a server.
    pub(crate) fn empty(store: StoreKind, is_own: bool) -> Self {
        let root = scratch(&format!("assembly-{}-{}", store.name().replace(' ', "-"), number()));
        std::fs::create_dir_all(&root).expect("is made");
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
        let trusted = fixture::digits(&fixture::trusted().public().bytes());
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

    pub(crate) fn hark(&self, args: &[&str]) -> Done {
        run(&mut self.command(args), b"")
    }

    pub(crate) fn hark_fed(&self, args: &[&str], stdin: &[u8]) -> Done {
        run(&mut self.command(args), stdin)
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
        let path = self.root.join(name);
        std::fs::write(&path, text).expect("is written");
        path.to_string_lossy().into_owned()
    }

    /// Imports the fixture of a network, without a server.
    pub(crate) fn import(&self, network: &str, lines: &str) {
        self.hark_fed(&["import", "--network", network], lines.as_bytes()).ok();
    }

    /// Imports all of the fixture.
    pub(crate) fn fill(&self) {
        self.import("nostr", &fixture::events().join("\n"));
        self.import("waku", &fixture::messages());
        self.import("whisper", &fixture::envelopes());
    }

    /// Starts all of its servers.
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
                let list = std::fs::read_dir(format!("/proc/{}/{what}", node.process.id()));
                list.map_or(0, Iterator::count)
            };
            count("fd") + count("task")
        };
        let connections = self.backing.as_ref().map_or(0, Backing::connections);
        self.nodes.iter().map(of_node).sum::<usize>() + connections
    }

    /// Ends the servers as an operator does.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.helper.take();
        let mut faults = Vec::new();
        for mut node in self.nodes.drain(..) {
            node.process.signal("TERM");
            match node.process.wait_for_end(PATIENCE) {
                Some(status) if status.success() => {}
                Some(status) => faults.push(format!("it ends with {status}")),
                None => faults.push(format!("it has not ended {PATIENCE:?} after SIGTERM")),
            }
            faults.extend(node.panic());
            let last = node.process.log();
            if faults.is_empty() && !last.contains("closed") {
                faults.push(format!("its log does not end with `closed`: {}", tail(&last)));
            }
            faults.extend(node.stdout.by_ref().map_while(Result::ok).find(|line| !is_door(line)));
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
        // Files that remain in the temporary directory do no harm.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// Whether a line of a start names a door of the table.
fn is_door(line: &str) -> bool {
    LISTENING.iter().any(|begin| line.starts_with(begin))
}

/// A panic in a log, or its last lines.
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
        let mut process = program.spawn().expect("the binary runs");
        let lines = BufReader::new(process.stdout.take().expect("is piped")).lines();
        let mut node = Self {
            process,
            stdout: lines,
            relay: String::new(),
            waku: String::new(),
            whisper: String::new(),
            enode: String::new(),
            peers: Vec::new(),
            looked_at: 0,
        };
        while node.peers.len() < 2
            || [&node.relay, &node.waku, &node.whisper, &node.enode].iter().any(|at| at.is_empty())
        {
            let Some(Ok(line)) = node.stdout.next() else {
                let _ = node.process.wait();
                let why = tail(&node.process.log());
                node.forget();
                panic!("it does not start: {why}");
            };
            let Some(which) = LISTENING.iter().position(|begin| line.starts_with(begin)) else {
                node.forget();
                panic!("a door that is not in the table: {line}");
            };
            let at = line[LISTENING[which].len()..].to_owned();
            match which {
                0 => node.relay = at,
                1 => node.waku = at,
                2 => node.peers.push(at),
                3 => node.whisper = at,
                _ => node.enode = at,
            }
        }
        node
    }

    /// A panic in the log since the last call.
    fn panic(&mut self) -> Option<String> {
        let log = self.process.log();
        let new = &log[self.looked_at.min(log.len())..];
        let mut lines = new.lines().skip_while(|line| !line.contains("panicked at"));
        let found = lines.next().map(|at| format!("{at} {}", lines.next().unwrap_or_default()));
        self.looked_at = log.len();
        found
    }

    /// Kills the server. Panics in its log have been reported already.
    pub(crate) fn forget(self) {
        let Self { process, .. } = self;
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(process)));
    }
}

/// Copies a folder.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("is made");
    for entry in std::fs::read_dir(from).expect("is there") {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).expect("is there");
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            std::fs::copy(&path, to.join(name)).expect("is copied");
        }
    }
}
