//! Runs another benchmark of this program and reads its JSON. So every figure of a comparison can
//! be measured again by hand with the same command.

use std::io::Read as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::relay::StartedRelay;

/// The result of another benchmark.
pub(super) struct ToolResult(Value);

/// Runs `hark bench` with these arguments on a relay.
pub(super) fn measure(relay: &StartedRelay, args: &[&str]) -> anyhow::Result<ToolResult> {
    let mut all: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    all.extend(["--url".to_owned(), relay.url.text.clone()]);
    for process in relay.processes() {
        all.extend(["--pid".to_owned(), process.to_string()]);
    }
    run(&all)
}

/// Runs `hark bench` with these arguments.
pub(super) fn run(args: &[String]) -> anyhow::Result<ToolResult> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(args)
        .arg("--json")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("`hark bench` could not be run")?;
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(|| stderr.map(|mut stderr| stderr.read_to_end(&mut errors)));
        stdout.map(|mut stdout| stdout.read_to_end(&mut output)).transpose()
    })?;
    child.wait()?;
    if let Ok(result) = serde_json::from_slice(&output) {
        return Ok(ToolResult(result));
    }
    let errors = String::from_utf8_lossy(&errors);
    let lines: Vec<&str> = errors.lines().map(str::trim).collect();
    bail!("{}", lines.join(" ").trim_start_matches("Error: ").trim_start_matches("hark: "))
}

impl ToolResult {
    /// The names of the rows, in their order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        rows(&self.0["rows"]).iter().filter_map(|row| row["name"].as_str())
    }

    /// Returns a figure of a row.
    pub(super) fn figure(&self, name: &str, key: &str) -> Option<f64> {
        rows(&self.0["rows"]).iter().find(|row| row["name"] == name)?[key].as_f64()
    }

    /// Returns the sums of these figures over all rows of a section.
    pub(super) fn sums(&self, section: &str, keys: &[&str]) -> Vec<Option<f64>> {
        let of = rows(&self.0[section]["rows"]);
        let sum = |key: &&str| Some(of.iter().filter_map(|row| row[*key].as_f64()).sum());
        keys.iter().map(sum).collect()
    }

    /// The reasons to doubt the figures.
    pub(super) fn faults(&self) -> impl Iterator<Item = &str> {
        rows(&self.0["faults"]).iter().filter_map(Value::as_str)
    }

    /// The relay's software and version in its information document (NIP-11).
    pub(super) fn software(&self) -> Option<&str> {
        self.0["settings"]["relay"].as_str().filter(|name| *name != "unknown")
    }
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
