//! A directory of one test, the binary run in it, and signed events.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use hark_codec::crypto::KeyPair;
use hark_codec::nostr::EventDraft;
use hark_testkit::program::{Process, Program};

use crate::served::PATIENCE;

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Stdout of a successful run, as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, 0, "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("no JSON: {}", self.stdout))
    }

    /// Stdout of a successful run.
    pub(crate) fn text(self) -> String {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self.stdout
    }
}

pub(crate) fn hark(args: &[&str]) -> Run {
    hark_with(args, &[], b"")
}

pub(crate) fn hark_with(args: &[&str], variables: &[(&str, &str)], stdin: &[u8]) -> Run {
    let mut child = command(args).envs(variables.iter().copied()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let stdin = stdin.to_vec();
    // A command that fails early does not read its input to the end.
    let writer = std::thread::spawn(move || drop(input.write_all(&stdin)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Returns a command that runs the binary with pipes.
pub(crate) fn command(args: &[&str]) -> Program {
    let mut command = Program::new(env!("CARGO_BIN_EXE_hark"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A test's own directory, emptied before and removed after.
pub(crate) struct Place {
    root: PathBuf,
}

impl Place {
    pub(crate) fn new(test: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli").join(test);
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        Self { root }
    }

    /// The archive's directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// The path of a name in the directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.root.join(name).to_str().unwrap().into()
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Runs a command on the archive.
    pub(crate) fn hark(&self, args: &[&str]) -> Run {
        self.hark_fed(args, b"")
    }

    pub(crate) fn hark_fed(&self, args: &[&str], stdin: &[u8]) -> Run {
        let data = self.data();
        hark_with(&[&["--data", data.to_str().unwrap()], args].concat(), &[], stdin)
    }

    /// Starts a command on the archive.
    pub(crate) fn start(&self, args: &[&str]) -> Process {
        let data = self.data();
        command(&[&["--data", data.to_str().unwrap()], args].concat()).spawn().unwrap()
    }

    /// Starts a server, and returns once the server accepts connections.
    pub(crate) fn serve(&self) -> Serving {
        self.serve_with(&[])
    }

    /// The same as [`Place::serve`], with more flags.
    pub(crate) fn serve_with(&self, flags: &[&str]) -> Serving {
        let mut child = self.start(&[&["serve", "--listen", "127.0.0.1:0"], flags].concat());
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        let address = first.trim().strip_prefix("listening on ws://").map(str::to_owned);
        let Some(address) = address else {
            // The server logs the reason last.
            let _ = child.wait();
            panic!("the server says {first:?} {}", child.log());
        };
        Serving { child, address }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The next run removes remaining files.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// A running server; killed if the test fails.
pub(crate) struct Serving {
    pub(crate) child: Process,
    pub(crate) address: String,
}

impl Serving {
    /// Terminates the server. Returns its exit code, and its log after the last line waited for.
    pub(crate) fn terminate(mut self) -> (i32, String) {
        self.child.signal("TERM");
        (self.child.wait().unwrap().code().unwrap_or(-1), self.child.rest_of_log())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn signal(&self, name: &str) {
        self.child.signal(name);
    }

    /// Waits for a line of the log with this text.
    pub(crate) fn wait_for_log(&mut self, said: &str) {
        self.child.wait_for_log(said);
    }
}

/// The status and the body of `/healthz`.
pub(crate) fn health(address: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("is there");
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("is answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("has a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// Waits until `/healthz` has this status, and returns its body.
pub(crate) fn wait_for_health(address: &str, status: u16) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let (found, body) = health(address);
        if found == status {
            return body;
        }
        assert!(Instant::now() < until, "no status {status}, but {found}: {body}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn keys(seed: u8) -> KeyPair {
    KeyPair::from_secret([seed; 32]).unwrap()
}

/// A signed event and its line break.
pub(crate) fn event(
    seed: u8,
    created_at: u64,
    kind: u16,
    tags: &[&[&str]],
    content: &str,
) -> String {
    let mut out = Vec::new();
    EventDraft { created_at, kind, tags, content }.sign(&keys(seed), &mut out);
    out.push(b'\n');
    String::from_utf8(out).unwrap()
}

/// Returns `count` different notes of a few authors, some with equal times.
pub(crate) fn notes(count: u64) -> String {
    let topics = ["nostr", "bread", "w\"eird\\", "\u{2028}"];
    (0..count)
        .map(|n| {
            let topic = topics[(n % 4) as usize];
            let content = format!("note {n}\t{}", "x".repeat((n % 61) as usize));
            event((n % 5 + 1) as u8, 1_700_000_000 + n / 3, 1, &[&["t", topic]], &content)
        })
        .collect()
}

/// The field of an event's line.
pub(crate) fn field(line: &str, name: &str) -> String {
    let event: serde_json::Value = serde_json::from_str(line).unwrap();
    event[name].as_str().unwrap().to_owned()
}
