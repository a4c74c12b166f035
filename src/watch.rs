//! A running server's settings, read again when their files change, on SIGHUP and for
//! `hark reload`. An invalid configuration changes nothing, and the log says why.

use std::time::Duration;

use anyhow::Context as _;
use hark_server::{ReloadHandle, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{self, Config, FileState, setups};
use crate::location::space_bounds;
use crate::log::ServerLog;
use crate::notify;

/// How often the files are checked. A changed file is read once it has not changed again for this
/// long, so that no half-written file is read.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Watches one configuration.
pub(crate) struct ConfigWatch {
    config: Config,
    server: ReloadHandle,
    networks: Vec<config::ReloadCallback>,
    log: ServerLog,
    hangup: Signal,
}

impl ConfigWatch {
    /// Creates a watch. `config` is the configuration with which the server of `server` runs;
    /// `networks` apply changed settings to its networks. From this call on, SIGHUP does not end
    /// the process.
    pub(crate) fn new(
        config: Config,
        server: ReloadHandle,
        networks: Vec<config::ReloadCallback>,
        log: ServerLog,
    ) -> anyhow::Result<Self> {
        let hangup = signal(SignalKind::hangup())
            .context("the system does not let Hark listen for signals")?;
        Ok(Self { config, server, networks, log, hangup })
    }

    /// Watches the files, SIGHUP and requests. Never ends.
    pub(crate) async fn run(mut self) {
        let mut read = self.config.files.clone();
        let mut seen = read.clone();
        loop {
            let mut request = None;
            let asked = tokio::select! {
                _ = self.hangup.recv() => true,
                asked = self.server.request() => {
                    request = Some(asked);
                    true
                }
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let now: Vec<FileState> = read.iter().map(FileState::again).collect();
            if !asked && (now == read || now != seen) {
                seen = now;
                continue;
            }
            notify::reloading();
            let result = self.read_again();
            self.server.report(result.as_ref().err().map(|refused| refused.reason.clone()));
            // A refused configuration is not read again until one of its files changes.
            read = match &result {
                Ok(_) => self.config.files.clone(),
                Err(refused) => refused.files.clone().unwrap_or(now),
            };
            seen.clone_from(&read);
            notify::reloaded();
            if let Some(request) = request {
                request.answer(result.map_err(|refused| refused.reason));
            }
        }
    }

    /// Reads the configuration again and applies it. Returns what has changed, a line each.
    fn read_again(&mut self) -> Result<String, RefusedConfig> {
        let config = Config::load(self.config.file.as_deref()).map_err(|faults| {
            let reason = faults.list();
            let refused = RefusedConfig { reason, files: Some(faults.files.clone()) };
            refused.logged(faults.lines())
        })?;
        let settings = Settings {
            limits: config.limits.clone(),
            addresses: config.addresses.clone(),
            slow_question: config.log.slow_question(),
            mirror_stuck_after: config.mirror.stuck_after(),
        };
        self.server.set(settings).map_err(|reason| {
            let faults = [reason.clone()];
            RefusedConfig { reason, files: None }.logged(&faults)
        })?;
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
        for (change, is_live) in config.changes(&self.config) {
            if is_live {
                tracing::info!("now {change}");
                lines.push(format!("now {change}"));
            } else {
                tracing::warn!("{change} holds after a restart");
                lines.push(format!("{change} holds after a restart"));
            }
        }
        self.config = config;
        Ok(lines.join("\n"))
    }
}

/// A configuration that was refused.
struct RefusedConfig {
    reason: String,
    /// The files that it names, as they were when it was read. `None` if these are the same as
    /// before.
    files: Option<Vec<FileState>>,
}

impl RefusedConfig {
    /// Logs each fault as an event of its own.
    fn logged(self, faults: &[String]) -> Self {
        for fault in faults {
            tracing::error!(
                "the new configuration is refused, and the old one stays in force: {fault}"
            );
        }
        self
    }
}
