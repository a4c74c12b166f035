//! The server's log, on stderr, since stdout is for programs. Its level and its format can change
//! while the server runs.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::Level;
use tracing_subscriber::filter::Targets;
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

/// The log while the server runs: a writer for each format, one of which has nothing to write.
pub(crate) struct ServerLog {
    flags: LogFlags,
    /// Puts these filters of text and of JSON in force.
    put: Box<dyn Fn([Targets; 2]) + Send + Sync>,
}

impl ServerLog {
    /// Starts the log. Fails with a reason if a flag has no level.
    pub(crate) fn start(flags: LogFlags, settings: &LogSettings) -> Result<Self, String> {
        let [text, json] = filters(&flags, settings)?;
        let (text, text_in_force) = reload::Layer::new(text);
        let (json, json_in_force) = reload::Layer::new(json);
        let colours = std::io::stderr().is_terminal();
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let objects = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).json();
        tracing_subscriber::registry()
            .with(lines.with_ansi(colours).with_filter(text))
            .with(objects.flatten_event(true).with_filter(json))
            .init();
        let put = Box::new(move |[text, json]: [Targets; 2]| {
            // Both fail only once the log itself is gone, with the process.
            let _ = (text_in_force.reload(text), json_in_force.reload(json));
        });
        Ok(Self { flags, put })
    }

    /// Applies changed settings, as far as no flag overrides them.
    pub(crate) fn change(&self, settings: &LogSettings) {
        // Does not fail: the flags were read at the start, and the settings are checked.
        if let Ok(filters) = filters(&self.flags, settings) {
            (self.put)(filters);
        }
    }
}

/// Whether this process has a log whose level lets errors of the binary through.
static TAKES_ERRORS: AtomicBool = AtomicBool::new(false);

/// Logs why a command failed: one event for each fault of a configuration, else a single one. False if
/// nothing was logged, because no log has started or its level is too high.
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

/// Returns what is written as text, and what as JSON.
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
