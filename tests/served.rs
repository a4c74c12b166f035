//! Runs the binary on an archive, and serves an archive with its own directory.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use hark_testkit::folder::Folder;
use hark_testkit::program::Program;
use hark_testkit::server::Server;

/// An archive in its own directory, with a configuration file.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) folder: Folder,
    /// The name of the configuration file.
    pub(crate) settings: &'static str,
}

/// A server on its own archive.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) server: Server,
    pub(crate) place: Place,
}

/// Returns a command that runs the binary on this archive.
pub(crate) fn hark(data: &Path) -> Program {
    let mut command = Program::new(env!("CARGO_BIN_EXE_hark"));
    command.arg("--data").arg(data).stdout(Stdio::piped());
    command
}

/// Flips a bit in the shelf's only stored record with these bytes.
pub(crate) fn damage(shelf: &Path, bytes: &[u8]) {
    for entry in std::fs::read_dir(shelf.join("log")).expect("is there") {
        let path = entry.expect("is there").path();
        let mut log = std::fs::read(&path).expect("is there");
        if let Some(at) = log.windows(bytes.len()).position(|part| part == bytes) {
            log[at] ^= 0x20;
            return std::fs::write(&path, log).expect("is written");
        }
    }
    panic!("no record has these bytes");
}

impl Place {
    /// Makes a place with these lines in the configuration file.
    pub(crate) fn new(name: &str, settings: &str) -> Self {
        Self::on(Folder::new(name), settings)
    }

    /// Makes a place like [`Place::new`], in an existing directory.
    pub(crate) fn on(folder: Folder, settings: &str) -> Self {
        let place = Self { folder, settings: "hark.toml" };
        place.folder.file(place.settings, settings);
        place
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Returns a command on the archive, with the settings of the configuration file.
    pub(crate) fn command(&self, args: &[&str]) -> Program {
        let mut command = hark(&self.data());
        command.arg("--config").arg(self.folder.join(self.settings)).args(args);
        command
    }

    /// Returns a command that serves the archive on a free port, with these arguments as well.
    pub(crate) fn serving(&self, args: &[&str]) -> Program {
        let mut command = self.command(&["serve"]);
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(args);
        command
    }

    /// Starts a server without rates.
    pub(crate) fn start(&self) -> Server {
        Server::start(&mut self.serving(&["--unlimited"]))
    }

    /// Starts a server that takes over from the running server.
    pub(crate) fn take_over(&self) -> Server {
        Server::start(&mut self.serving(&["--unlimited", "--takeover"]))
    }
}

impl Relay {
    /// Starts a server without rates, with these lines of a configuration file.
    pub(crate) fn start(name: &str, settings: &str) -> Self {
        let place = Place::new(name, settings);
        Self { server: place.start(), place }
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.server.address
    }

    /// The URL for clients.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.server.address)
    }
}
