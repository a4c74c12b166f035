//! A directory for one test, commands that run the binary in this directory, and signed events.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use hark_testkit::folder::Folder;
use hark_testkit::http::get;
use hark_testkit::nostr::event_line;
use hark_testkit::program::{Finished, Process, Program};
use hark_testkit::server::{Doors, Server};
use hark_testkit::wait::until_ok;

pub(crate) fn hark(args: &[&str]) -> Finished {
    hark_with(args, &[], b"")
}

pub(crate) fn hark_with(args: &[&str], variables: &[(&str, &str)], stdin: &[u8]) -> Finished {
    command(args).envs(variables.iter().copied()).run_with(stdin)
}

/// Returns a command that runs the binary with pipes.
pub(crate) fn command(args: &[&str]) -> Program {
    let mut command = Program::new(env!("CARGO_BIN_EXE_hark"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A test's own directory, emptied before the test and removed after the test.
pub(crate) struct Place {
    folder: Folder,
}

impl Place {
    pub(crate) fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli").join(test);
        Self { folder: Folder::at(path) }
    }

    /// The archive's directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The path of a name in the directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().into()
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> String {
        self.folder.file(name, bytes);
        self.path(name)
    }

    /// Runs a command on the archive.
    pub(crate) fn hark(&self, args: &[&str]) -> Finished {
        self.hark_fed(args, b"")
    }

    pub(crate) fn hark_fed(&self, args: &[&str], stdin: &[u8]) -> Finished {
        self.command(args).run_with(stdin)
    }

    /// Returns a command on the archive.
    fn command(&self, args: &[&str]) -> Program {
        let data = self.data();
        command(&[&["--data", data.to_str().unwrap()], args].concat())
    }

    /// Starts a command on the archive.
    pub(crate) fn start(&self, args: &[&str]) -> Process {
        self.command(args).spawn().unwrap()
    }

    /// Starts a server, and returns once the server accepts connections.
    pub(crate) fn serve(&self) -> Server {
        self.serve_with(&[])
    }

    /// The same as [`Place::serve`], with more flags.
    pub(crate) fn serve_with(&self, flags: &[&str]) -> Server {
        self.serve_with_doors(flags, |_| true)
    }

    /// The same as [`Place::serve_with`], but returns once `are_open` accepts the other doors.
    pub(crate) fn serve_with_doors(
        &self,
        flags: &[&str],
        are_open: impl Fn(&Doors) -> bool,
    ) -> Server {
        let args = [&["serve", "--listen", "127.0.0.1:0"], flags].concat();
        Server::start_with_doors(&mut self.command(&args), are_open)
    }
}

/// The status and the body of `/healthz`.
pub(crate) fn health(address: &str) -> (u16, String) {
    get(address, "/healthz").parts()
}

/// Waits until `/healthz` has this status, and returns its body.
pub(crate) fn wait_for_health(address: &str, status: u16) -> String {
    until_ok(|| {
        let (found, body) = health(address);
        let why = format!("no status {status}, but {found}: {body}");
        if found == status { Ok(body) } else { Err(why) }
    })
}

/// Waits until a running archive has this many events.
pub(crate) fn wait_for_events(place: &Place, events: u64) {
    until_ok(|| {
        let found: u64 = place.hark(&["count", "{}"]).text().trim().parse().unwrap();
        if found >= events { Ok(()) } else { Err(format!("{found} of {events}")) }
    });
}

/// Returns `count` different notes of a few authors, some with equal times.
pub(crate) fn notes(count: u64) -> String {
    let topics = ["nostr", "bread", "w\"eird\\", "\u{2028}"];
    (0..count)
        .map(|n| {
            let topic = topics[(n % 4) as usize];
            let content = format!("note {n}\t{}", "x".repeat((n % 61) as usize));
            event_line((n % 5 + 1) as u8, 1_700_000_000 + n / 3, 1, &[&["t", topic]], &content)
        })
        .collect()
}

/// The field of an event's line.
pub(crate) fn field(line: &str, name: &str) -> String {
    let event: serde_json::Value = serde_json::from_str(line).unwrap();
    event[name].as_str().unwrap().to_owned()
}
