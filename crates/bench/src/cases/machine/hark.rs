//! A server of Hark: `hark serve` on a database. The program `hark` is in the directory of this
//! program.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, bail};

use super::RunDirectory;
use crate::process::ProcessTree;
use crate::websocket::Url;

/// A running server. Dropping the value ends the server.
pub(in crate::cases) struct HarkProcess {
    child: Child,
    /// The server's output. Kept open, since the server may write more.
    _stdout: BufReader<ChildStdout>,
    url: Url,
}

impl HarkProcess {
    /// Starts a server on this database, in the directory `name` of the run.
    pub(in crate::cases) fn start(
        run: &RunDirectory,
        name: &str,
        database: &str,
    ) -> anyhow::Result<Self> {
        let (folder, log) = (run.path().join(name), run.path().join(format!("{name}.log")));
        let start = || {
            let mut command = Command::new(hark::beside("hark"));
            for (variable, _) in std::env::vars_os() {
                if variable.to_string_lossy().starts_with("HARK_") {
                    command.env_remove(variable);
                }
            }
            command
                .args(["serve", "--unlimited", "--listen", "127.0.0.1:0", "--store", database])
                .arg("--data")
                .arg(&folder)
                .current_dir(run.path())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(File::create(&log)?)
                .process_group(0);
            let mut child = command.spawn()?;
            run.remember_process("TERM", child.id())?;
            let mut stdout = BufReader::new(child.stdout.take().context("its output is a pipe")?);
            let mut first = String::new();
            stdout.read_line(&mut first)?;
            let Some(url) = first.trim().strip_prefix("listening on ") else {
                let said = fs::read_to_string(&log).unwrap_or_default();
                bail!("it says: {}", said.trim());
            };
            let url = url.parse().map_err(anyhow::Error::msg)?;
            Ok(Self { child, _stdout: stdout, url })
        };
        start().with_context(|| format!("Hark's server `{name}` could not be started"))
    }

    pub(in crate::cases) fn url(&self) -> &Url {
        &self.url
    }

    pub(in crate::cases) fn processes(&self) -> ProcessTree {
        ProcessTree::new(self.child.id())
    }
}

impl Drop for HarkProcess {
    fn drop(&mut self) {
        // Nothing can be lost, as the server was only queried and all stored data is durable.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
