//! Programs that are written in Go, with which tests talk to the server.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Installs a program below the target directory if it is missing, and returns its folder. `None` if
/// the installation fails, e.g. without Go. `scripts/go-program` lists the programs.
pub(crate) fn go_program(name: &str) -> Option<PathBuf> {
    let mut install = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/go-program"));
    install.args([name, env!("CARGO_TARGET_TMPDIR")]).stderr(Stdio::null());
    let installed = install.output().ok()?;
    let folder = String::from_utf8(installed.stdout).ok()?;
    installed.status.success().then(|| PathBuf::from(folder.trim_end()))
}
