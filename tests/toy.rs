//! A network that is not part of Hark: examples/toy.rs adds the network, and every command supports
//! the network, in files and in PostgreSQL. Also a store that is not part of Hark.
//!
//! This test has no harness, since the test program is also the tested binary if `HARK_TOY` or
//! `HARK_MEMORY` is set.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::ExitCode;

use hark_testkit::clock::now_s;
use hark_testkit::folder::Folder;
use hark_testkit::http::get;
use hark_testkit::postgres::Cluster;
use hark_testkit::program::Program;
use hark_testkit::server::{Server, free_address};
use hark_testkit::wait::{PATIENCE, until};
use serde_json::Value;

#[path = "../examples/memory.rs"]
mod memory;
#[path = "../examples/toy.rs"]
mod program;

fn main() -> ExitCode {
    if std::env::var_os("HARK_TOY").is_some() {
        return program::main();
    }
    if std::env::var_os("HARK_MEMORY").is_some() {
        return memory::main();
    }
    // With `--list`, the list of tests is empty.
    if !std::env::args().any(|argument| argument == "--list") {
        in_files();
        in_a_database();
        in_memory();
        println!("the toy is served, and every command knows it");
    }
    ExitCode::SUCCESS
}

/// An archive, its settings, and the address on which the toy network listens.
struct Place {
    root: Folder,
    /// The value of `--store`.
    store: String,
    toy: String,
}

impl Place {
    fn new(name: &str, store: &str, mirror: &str) -> Self {
        let root = Folder::new(&format!("toy-{name}"));
        let toy = free_address();
        let mirror = if mirror.is_empty() { root.join("mirror") } else { mirror.into() };
        let settings =
            format!("[mirror]\nstore = \"{}\"\n[retention]\nevery_s = 1\n", mirror.display());
        root.file("hark.toml", settings);
        Self { root, store: store.into(), toy }
    }

    /// Returns a command that runs this program as the binary.
    fn hark(&self, args: &[&str]) -> Program {
        let mut command = Program::new(std::env::current_exe().expect("this program"));
        command.env("HARK_TOY", &self.toy).args(args).arg("--store").arg(&self.store);
        command.arg("--data").arg(self.root.join("data"));
        command
    }

    /// Runs a command on the toy network, and returns its output.
    fn says(&self, args: &[&str]) -> String {
        let output = self.hark(args).args(["--network", "toy"]).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {said} {output:?}");
        said
    }

    fn json(&self, args: &[&str]) -> Value {
        let said = self.says(&[args, &["--json"]].concat());
        serde_json::from_str(&said).unwrap_or_else(|_| panic!("{args:?} says {said}"))
    }

    fn count(&self, filter: &str) -> u64 {
        self.json(&["count", filter])["count"].as_u64().expect("a number")
    }

    fn serve(&self, more: &[&str]) -> Server {
        let config = self.root.join("hark.toml");
        let mut command = self.hark(&["serve", "--listen", "127.0.0.1:0"]);
        command.arg("--config").arg(config).args(more).log_to(&self.root.join("log"));
        let server = Server::start_with_doors(&mut command, |doors| !doors.others.is_empty());
        assert_eq!(server.doors.others, [format!("toy on {}", self.toy)], "{}", self.log());
        server
    }

    fn log(&self) -> String {
        let log = std::fs::read(self.root.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.toy).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("is set");
        Client(BufReader::new(stream))
    }
}

/// A client of the toy's door.
struct Client(BufReader<TcpStream>);

impl Client {
    fn send_text(&mut self, line: &str) -> String {
        writeln!(self.0.get_mut(), "{line}").expect("is sent");
        let mut answer = String::new();
        self.0.read_line(&mut answer).expect("is answered");
        answer
    }

    fn publish_new(&mut self, line: &str) {
        let answer = self.send_text(line);
        assert!(answer.starts_with("Ok(Stored"), "{line}: {answer}");
    }
}

fn in_files() {
    let place = Place::new("files", "embedded", "");
    without_a_server(&place);
    let old = beside_a_server(&place);
    assert!(place.says(&["check"]).contains("no faults"));
    assert!(place.says(&["compact"]).contains("became"));
    let mut new = taken_over(&place, old);
    new.stop();
    assert!(place.json(&["rebuild"])["records"].as_u64().is_some());
    let mirror = Place::new("mirror", "embedded", "");
    std::fs::rename(place.root.join("mirror"), mirror.root.join("data")).expect("is there");
    assert_eq!(mirror.count("weather"), place.count("weather"), "the mirror is in step");
}

fn in_a_database() {
    let database = Cluster::shared().database("toy");
    let second = Cluster::shared().database("toymirror");
    let place = Place::new("database", &database.url, &second.url);
    assert!(place.says(&["migrate", "up"]).contains("applied"));
    without_a_server(&place);
    beside_a_server(&place).stop();
    let mirror = Place::new("database-mirror", &second.url, "");
    assert_eq!(mirror.count("weather"), place.count("weather"), "the mirror is in step");
}

/// A store that is not part of Hark: examples/memory.rs adds the store, and a server opens its
/// shelves.
fn in_memory() {
    let root = Folder::to_be_made("memory");
    let hark = |args: &[&str]| {
        let mut command = Program::new(std::env::current_exe().expect("this program"));
        command.env("HARK_MEMORY", "1").args(args).args(["--store", "memory:", "--data"]);
        command.arg(root.as_ref());
        command
    };
    let mut server = Server::start(&mut hark(&["serve", "--listen", "127.0.0.1:0"]));
    let page = get(&server.address, "/metrics").text();
    assert!(page.contains("hark_store_records 0\n"), "{page}");
    let refused = hark(&["check"]).output().expect("runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("another store (memory)"), "{said}");
    server.stop();
}

/// Imports, queries, copies and deletes lines without a server.
fn without_a_server(place: &Place) {
    let now = now_s();
    let lines: Vec<_> = (0..50).map(|n| format!("weather {} rain {n}", now - n)).collect();
    let file = place.root.file("lines", lines.join("\n") + "\nno line\n");
    let report = place.json(&["import", file.to_str().expect("a path")]);
    assert_eq!(report["stored"], 50, "{report}");
    assert_eq!((place.count("weather"), place.count("*"), place.count("sports")), (50, 50, 0));
    let output = place.says(&["query", "weather"]);
    assert_eq!(output.lines().collect::<Vec<_>>(), lines, "newest first");
    let explained = place.says(&["explain", "--run", "weather"]);
    assert!(explained.contains("plan: "), "{explained}");
    let exported = place.says(&["export"]);
    assert_eq!(exported.lines().count(), 50);
    let copy = Place::new("copy", "embedded", "");
    let (from, to) = (place.address(), copy.address());
    assert_eq!(place.json(&["copy", "--from", &from, "--to", &to])["copied"], 50);
    assert_eq!(copy.says(&["export"]), exported);
    let deleted = copy.json(&["delete", "--yes", "weather"]);
    assert_eq!((deleted["deleted"].as_u64(), copy.count("*")), (Some(50), 0));
}

impl Place {
    /// Returns the address of the archive for `hark copy`.
    fn address(&self) -> String {
        let data = self.root.join("data");
        let files = data.to_str().expect("a path");
        if self.store == "embedded" { files.into() } else { self.store.clone() }
    }
}

/// Does the same as [`without_a_server`] through a running server, and tests the functions that
/// only a server has.
fn beside_a_server(place: &Place) -> Server {
    let server = place.serve(&[]);
    let (mut client, now) = (place.connect(), now_s());
    client.publish_new(&format!("weather {now} sun"));
    assert!(client.send_text(&format!("weather {now} sun")).starts_with("Ok(Duplicate"));
    assert!(client.send_text("nonsense").starts_with("Err("), "and the connection stays open");
    client.publish_new(&format!("!now {now} one"));
    client.publish_new(&format!("!now {} two", now + 1));
    assert!(client.send_text(&format!("!now {now} three")).starts_with("Ok(Superseded"));
    assert_eq!(place.says(&["query", "!now"]), format!("!now {} two\n", now + 1));
    client.publish_new(&format!("gone {now} soon"));
    assert_eq!(place.json(&["delete", "--yes", "gone"])["deleted"], 1);
    let file = place.root.file("more", format!("weather {now} snow\n"));
    assert_eq!(place.json(&["import", file.to_str().expect("a path")])["stored"], 1);
    // Retention deletes records that are older than ten years.
    client.publish_new("weather 1000 long ago");
    until("what is old goes", || place.count("weather") == 52);
    let page = get(&server.address, "/metrics").ok();
    for line in ["hark_store_records{shelf=\"toy\"} 53\n", "hark_mirror_in_step{shelf=\"toy\"} "] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    in_step(&server);
    let stats = place.json(&["stats"]);
    assert_eq!(stats["records"], 53, "{stats}");
    server
}

/// Waits until the mirror has all records of the server.
fn in_step(server: &Server) {
    until("the mirror is in step", || {
        get(&server.address, "/metrics").ok().contains("hark_mirror_in_step{shelf=\"toy\"} 1\n")
    });
}

/// Another process takes over the archive, and connected clients notice nothing.
fn taken_over(place: &Place, mut old: Server) -> Server {
    let (mut kept, now) = (place.connect(), now_s());
    kept.publish_new(&format!("weather {now} before"));
    let new = place.serve(&["--takeover"]);
    until("the old process knows", || place.log().contains("another process has taken over"));
    kept.publish_new(&format!("weather {now} through the new one"));
    let mut client = place.connect();
    client.publish_new(&format!("weather {now} to the new one"));
    assert!(kept.send_text(&format!("weather {now} to the new one")).starts_with("Ok(Duplicate"));
    drop(kept);
    assert!(old.wait().expect("ends").success(), "{}", place.log());
    assert_eq!(place.count("weather"), 55);
    // The new server writes to the mirror, since the old server has released the mirror.
    in_step(&new);
    new
}
