//! The server's log, on stderr, since other programs may read stdout. The level and the format of
//! the log can change while the server runs. If stderr is connected to systemd's journal, each line
//! begins with its priority (see sd-daemon(3)), so that `journalctl -p err` finds the errors.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::fstat;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::reload;

use crate::config::log::filter;
use crate::config::{Faults, LogFormat, LogSettings};

/// Flags that override the settings of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogFlags {
    pub(crate) level: Option<String>,
    pub(crate) format: Option<LogFormat>,
}

/// The log of a running server. Each of the two formats has a writer and a filter, and the filter
/// of the unused format rejects all events.
pub(crate) struct ServerLog {
    flags: LogFlags,
    /// Applies the filters for text and for JSON.
    put: Box<dyn Fn([Targets; 2]) + Send + Sync>,
}

impl ServerLog {
    /// Starts the log. Fails with a reason if the level in a flag is invalid.
    pub(crate) fn start(flags: LogFlags, settings: &LogSettings) -> Result<Self, String> {
        let [text, json] = filters(&flags, settings)?;
        let (text, text_in_force) = reload::Layer::new(text);
        let (json, json_in_force) = reload::Layer::new(json);
        let output = LogOutput { is_journal: is_journal() };
        // See https://no-color.org: the variable counts if it is set and not empty.
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
        let colours = io::stderr().is_terminal() && !is_plain;
        // Errors of the output are not reported, since a report would go to the same output.
        let lines = tracing_subscriber::fmt::layer().with_writer(output).log_internal_errors(false);
        let objects =
            tracing_subscriber::fmt::layer().with_writer(output).log_internal_errors(false).json();
        tracing_subscriber::registry()
            .with(lines.with_ansi(colours).with_filter(text))
            .with(objects.flatten_event(true).with_filter(json))
            .init();
        let put = Box::new(move |[text, json]: [Targets; 2]| {
            // Both calls fail only after the log is dropped, at the end of the process.
            let _ = (text_in_force.reload(text), json_in_force.reload(json));
        });
        Ok(Self { flags, put })
    }

    /// Applies changed settings that no flag overrides.
    pub(crate) fn change(&self, settings: &LogSettings) {
        // Cannot fail: the flags were parsed at the start, and the settings are checked.
        if let Ok(filters) = filters(&self.flags, settings) {
            (self.put)(filters);
        }
    }
}

/// The output of the log, which is stderr.
#[derive(Clone, Copy)]
struct LogOutput {
    /// Whether lines begin with their priority.
    is_journal: bool,
}

impl<'a> MakeWriter<'a> for LogOutput {
    type Writer = LogLine;

    fn make_writer(&'a self) -> LogLine {
        LogLine { priority: "" }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> LogLine {
        LogLine { priority: if self.is_journal { priority(*about.level()) } else { "" } }
    }
}

/// Writes the lines of one event to stderr.
struct LogLine {
    /// The prefix of each line.
    priority: &'static str,
}

impl io::Write for LogLine {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut out = io::stderr().lock();
        if self.priority.is_empty() {
            return out.write(lines);
        }
        let mut marked = Vec::with_capacity(lines.len() + 8);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            marked.extend_from_slice(self.priority.as_bytes());
            marked.extend_from_slice(line);
        }
        out.write_all(&marked).map(|()| lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Returns the prefix by which the journal recognises the priority of a line.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Whether stderr is connected to the journal. systemd passes the device and the inode of the
/// connected stream in JOURNAL_STREAM (systemd.exec(5)).
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(io::stderr()).is_ok_and(|about| stream == format!("{}:{}", about.st_dev, about.st_ino))
}

/// Whether this process has a log whose level includes errors of this crate.
static TAKES_ERRORS: AtomicBool = AtomicBool::new(false);

/// Logs why a command failed: one event for each fault of a configuration, or a single event for
/// other errors. Returns false if nothing was logged, because no log has started or its level
/// excludes errors.
pub(crate) fn failure(error: &anyhow::Error) -> bool {
    if !TAKES_ERRORS.load(Ordering::Relaxed) {
        return false;
    }
    if let Some(faults) = error.downcast_ref::<Faults>() {
        for fault in faults.lines() {
            tracing::error!("the configuration cannot be used, and nothing was done: {fault}");
        }
    } else {
        tracing::error!("{error:#}");
    }
    true
}

/// Returns the filter for the text format and the filter for JSON.
fn filters(flags: &LogFlags, settings: &LogSettings) -> Result<[Targets; 2], String> {
    let wanted = match &flags.level {
        Some(level) => filter(level).map_err(|fault| format!("--log-level: {fault}"))?,
        // Checked with the configuration.
        None => filter(&settings.level)?,
    };
    TAKES_ERRORS.store(wanted.would_enable(module_path!(), &Level::ERROR), Ordering::Relaxed);
    Ok(match flags.format.unwrap_or(settings.format) {
        LogFormat::Text => [wanted, Targets::new()],
        LogFormat::Json => [Targets::new(), wanted],
    })
}
