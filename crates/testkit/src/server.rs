//! Hark's binary as a server, and the addresses of its doors.

use std::io::{BufRead as _, BufReader, Lines};
use std::net::TcpListener;
use std::ops::{Deref, DerefMut};
use std::process::{ChildStdout, Stdio};

use crate::program::{Process, Program};

/// The addresses that a server prints at its start, except the relay's address.
#[derive(Clone, Debug, Default)]
pub struct Doors {
    /// Host and port of the REST interface of the Waku node.
    pub waku_rest: String,
    /// Addresses of libp2p, by TCP and by WebSocket.
    pub waku_peers: Vec<String>,
    /// Host and port of the REST interface of the mail server.
    pub whisper_rest: String,
    /// The enode URL of the mail server.
    pub whisper_peer: String,
    /// Lines about other doors, and about further addresses of these doors.
    pub others: Vec<String>,
}

/// A running server. Dropping this value kills the server.
#[derive(Debug)]
pub struct Server {
    /// The process.
    pub process: Process,
    /// Host and port of the relay.
    pub address: String,
    /// The addresses of the other doors.
    pub doors: Doors,
    /// The pipe of the server's output. It stays open, because otherwise the server would fail when
    /// it prints.
    stdout: Lines<BufReader<ChildStdout>>,
}

/// Returns an address on which nothing listens now.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("an address").to_string()
}

/// Returns a port that is free now.
pub fn free_port() -> u16 {
    let address = free_address();
    address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port")
}

impl Server {
    /// Starts a program, and returns once its relay listens.
    #[track_caller]
    pub fn start(program: &mut Program) -> Self {
        Self::start_with_doors(program, |_| true)
    }

    /// Starts a program. Returns once its relay listens and `are_open` returns true for the other
    /// doors.
    #[track_caller]
    pub fn start_with_doors(program: &mut Program, are_open: impl Fn(&Doors) -> bool) -> Self {
        Self::try_start(program, are_open).unwrap_or_else(|process| {
            panic!("the server does not start: {}", process.log());
        })
    }

    /// Does the same as [`Server::start_with_doors`], but does not panic. If the process ends
    /// before the server is ready, the error has the ended process.
    pub fn try_start(
        program: &mut Program,
        are_open: impl Fn(&Doors) -> bool,
    ) -> Result<Self, Process> {
        let mut process = program.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let stdout = BufReader::new(process.stdout.take().expect("is piped")).lines();
        let mut server = Self { process, address: String::new(), doors: Doors::default(), stdout };
        while server.address.is_empty() || !are_open(&server.doors) {
            let Some(Ok(line)) = server.stdout.next() else {
                // The server logs the reason for its end last.
                let _ = server.process.wait();
                return Err(server.process);
            };
            server.listens(&line);
        }
        Ok(server)
    }

    /// Stores the address in a line that the server prints at its start.
    fn listens(&mut self, line: &str) {
        let doors = &mut self.doors;
        // A process that takes over prints the same addresses again.
        let mut note = |first: &mut String, at: &str| {
            if first.is_empty() {
                at.clone_into(first);
            } else if first != at {
                doors.others.push(line.to_owned());
            }
        };
        let at = line.strip_prefix("listening on ws");
        let at = at.map(|at| at.strip_prefix('s').unwrap_or(at));
        if let Some(at) = at.and_then(|at| at.strip_prefix("://")) {
            note(&mut self.address, at);
        } else if let Some(at) = line.strip_prefix("waku rest on http://") {
            note(&mut doors.waku_rest, at);
        } else if let Some(at) = line.strip_prefix("waku peer on ") {
            doors.waku_peers.push(at.to_owned());
        } else if let Some(at) = line.strip_prefix("whisper rest on http://") {
            note(&mut doors.whisper_rest, at);
        } else if let Some(at) = line.strip_prefix("whisper peer on ") {
            at.clone_into(&mut doors.whisper_peer);
        } else {
            doors.others.push(line.to_owned());
        }
    }

    /// Reads the lines that the server prints until its end.
    pub fn read_to_end(&mut self) {
        while let Some(Ok(line)) = self.stdout.next() {
            self.listens(&line);
        }
    }

    /// Whether the server runs.
    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("is ours").is_none()
    }

    /// Kills the server, which may have ended already.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Stops the server in the way that an operator does.
    #[track_caller]
    pub fn stop(&mut self) {
        self.process.signal("TERM");
        let status = self.process.wait().expect("has ended");
        assert!(status.success(), "{}", self.process.log());
    }

    /// Ends the server by a signal. Returns its exit code, and its log after the last line that
    /// [`Process::wait_for_log`] returned.
    pub fn terminate(mut self) -> (i32, String) {
        self.process.signal("TERM");
        let status = self.process.wait().expect("has ended");
        (status.code().unwrap_or(-1), self.process.remaining_log())
    }
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
