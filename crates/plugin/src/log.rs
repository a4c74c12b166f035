//! Logs a plugin's failures, and the lines that it writes to stderr.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::ChildStderr;

use crate::answer::shortened;
use crate::budget::LineBudget;
use crate::failure::PluginFailure;

/// Maximum numbers of lines of the log in a period.
const ERRORS_MAX: u32 = 20;
const FAILURES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_mins(1);
/// Maximum number of bytes of stderr that are read as one line.
const LINE_BYTES_MAX: u64 = 4 << 10;

/// The log of a plugin.
#[derive(Debug)]
pub struct PluginLog {
    command: String,
    errors: LineBudget,
    failures: LineBudget,
}

impl PluginLog {
    /// Creates the log of the plugin with this command line.
    pub fn new(command: &str) -> Self {
        Self {
            command: command.into(),
            errors: LineBudget::new(ERRORS_MAX, PERIOD),
            failures: LineBudget::new(FAILURES_MAX, PERIOD),
        }
    }

    /// Logs a failure. `outcome` is the text about what happens to the event.
    pub fn failure(&self, failure: &PluginFailure, outcome: &str) {
        if let Some(dropped) = self.failures.admit() {
            tracing::warn!(
                plugin = self.command,
                dropped,
                "the plugin failed: {failure}; {outcome}"
            );
        }
    }

    /// Logs that the plugin answers after `failures` failures.
    pub fn recovery(&self, failures: u32) {
        if self.failures.admit().is_some() {
            tracing::info!(plugin = self.command, failures, "the plugin works again");
        }
    }

    /// Logs the lines that a process writes to stderr, until the end of its output.
    pub(crate) async fn follow(self: Arc<Self>, stderr: ChildStderr) {
        let (mut from, mut line) = (BufReader::new(stderr), Vec::new());
        loop {
            line.clear();
            match (&mut from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = shortened(&String::from_utf8_lossy(&line));
            if let Some(dropped) = self.errors.admit().filter(|_| !text.is_empty()) {
                tracing::info!(plugin = self.command, dropped, "the plugin reports: {text}");
            }
        }
    }
}
