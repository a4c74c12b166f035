//! Reads a running server's settings again when their files change, on SIGHUP and for `hark
//! reload`. An invalid configuration changes nothing, and the log gives the reason.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use hark_server::control::TakeoverState;
use hark_server::{ReloadError, ReloadHandle, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{self, Config, FileState, FileWatch, LOOK_EVERY, setups};
use crate::log::ServerLog;
use crate::notify;
use crate::print;
use crate::stores::address_forms;
use crate::stores::embedded::space_bounds;

/// Begins the line about a certificate that could not be put in force. `hark reload` fails if its
/// answer has such a line.
pub(crate) const OLD_CERTIFICATE: &str = "the certificate stays the old one";

/// Watches one configuration.
pub(crate) struct ConfigWatch {
    config: Config,
    server: ReloadHandle,
    takeover: TakeoverState,
    networks: Vec<config::ReloadCallback>,
    log: ServerLog,
    hangup: Signal,
}

impl ConfigWatch {
    /// Creates a watch. `config` is the server's current configuration. The callbacks in `networks`
    /// apply changed settings to the server's networks. After this call, SIGHUP does not end the
    /// process.
    pub(crate) fn new(
        config: Config,
        (server, takeover): (ReloadHandle, TakeoverState),
        networks: Vec<config::ReloadCallback>,
        log: ServerLog,
    ) -> anyhow::Result<Self> {
        let hangup = signal(SignalKind::hangup())
            .context("the system does not let Hark listen for signals")?;
        Ok(Self { config, server, takeover, networks, log, hangup })
    }

    /// Waits for changed files, SIGHUP and requests to reload. Never returns.
    pub(crate) async fn run(mut self) {
        let mut files = FileWatch::new(self.config.files.clone());
        let mut requests = Vec::new();
        loop {
            let is_asked = tokio::select! {
                _ = self.hangup.recv() => true,
                request = self.server.request() => {
                    requests.push(request);
                    true
                }
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            if is_asked {
                files.ask(Instant::now());
            }
            let result = if files.is_due(Instant::now()) {
                // After a takeover, the service is the new process.
                let is_service = !self.takeover.is_superseded();
                if is_service {
                    notify::reloading();
                }
                let result = self.read_again(&files);
                if is_service {
                    notify::reloaded();
                }
                result
            } else {
                None
            };
            let result = result.or_else(|| files.has_timed_out(Instant::now()).then(still_written));
            let Some(result) = result else { continue };
            self.server.report(result.as_ref().err().map(|refused| refused.reason.clone()));
            // A refused configuration is not read again until one of its files changes.
            match &result {
                Ok(_) => files.was_read(self.config.files.clone()),
                Err(refused) => {
                    if let Some(read) = refused.files.clone() {
                        files.was_read(read);
                    }
                }
            }
            for request in requests.drain(..) {
                let result = result.as_ref().map(String::clone);
                let reason = |refused: &RefusedConfig| ReloadError::Refused(refused.reason.clone());
                request.answer(result.map_err(reason));
            }
        }
    }

    /// Reads the configuration again and applies the result. Returns the changes, one per line, or
    /// `None` if a process may still be writing the files.
    fn read_again(&mut self, files: &FileWatch) -> Option<Result<String, RefusedConfig>> {
        let config = match Config::load(self.config.file.as_deref(), &address_forms()) {
            Ok(config) => config,
            Err(faults) => {
                let reason = faults.list();
                let refused = RefusedConfig { reason, files: Some(faults.files.clone()) };
                return Some(Err(refused.logged(faults.lines())));
            }
        };
        if files.must_wait(&config, &self.config, Instant::now()) {
            return None;
        }
        Some(self.apply(config))
    }

    /// Puts a configuration in force. Returns the changes, one per line.
    fn apply(&mut self, config: Config) -> Result<String, RefusedConfig> {
        let refused = |reason: String| {
            let faults = [reason.clone()];
            RefusedConfig { reason, files: Some(config.files.clone()) }.logged(&faults)
        };
        if let Some(reason) = config.lost(&self.config) {
            return Err(refused(reason));
        }
        let settings = Settings {
            limits: config.limits.clone(),
            addresses: config.addresses.clone(),
            rate_groups: Arc::new(config.rate_groups()),
            slow_question: config.log.slow_question(),
            refusals_from: config.log.refusals_from,
            addresses_shown: config.log.addresses,
            mirror_stuck_after: config.mirror.stuck_after(),
        };
        self.server.set(settings).map_err(|conflict| refused(conflict.to_string()))?;
        self.log.change(&config.log);
        for setup in setups() {
            let retention = (setup.shelf)(&config).retention;
            let space = space_bounds(&config, &retention);
            self.server.set_retention(setup.network.name(), &retention, &space);
        }
        for reload in &self.networks {
            reload(&config);
        }
        tracing::info!("the configuration was read again, and is in force");
        let mut lines = Vec::new();
        match self.server.read_certificate() {
            Ok(Some(expires_s)) => {
                lines.push(format!("now with a certificate until {}", print::moment(expires_s)));
            }
            Ok(None) => {}
            // The server logs the fault.
            Err(fault) => lines.push(format!("{OLD_CERTIFICATE}: {fault}")),
        }
        for (change, is_live) in config.changes(&self.config) {
            if is_live {
                tracing::info!("now {change}");
                lines.push(format!("now {change}"));
            } else {
                tracing::warn!("{change} takes effect after a restart");
                lines.push(format!("{change} takes effect after a restart"));
            }
        }
        self.config = config;
        Ok(lines.join("\n"))
    }
}

/// A configuration that was refused.
struct RefusedConfig {
    reason: String,
    /// The states of the configuration's files when they were read; `None` if they were not read.
    files: Option<Vec<FileState>>,
}

/// The answer to requests that timed out while the files kept changing.
fn still_written() -> Result<String, RefusedConfig> {
    let reason = "its files are still being written; they are read once they are whole".to_owned();
    let faults = [reason.clone()];
    Err(RefusedConfig { reason, files: None }.logged(&faults))
}

impl RefusedConfig {
    /// Logs each fault as a separate event.
    fn logged(self, faults: &[String]) -> Self {
        for fault in faults {
            tracing::error!(
                "the new configuration is refused, and the old one stays in force: {fault}"
            );
        }
        self
    }
}
