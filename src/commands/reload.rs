//! A running server's settings, read again when their files change or on SIGHUP. An invalid
//! configuration changes nothing, and the log says why.

use std::time::Duration;

use anyhow::Context as _;
use hark_server::{Settings, SettingsHandle};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{self, Config, FileState};
use crate::notify;

/// How often the files are checked. A changed file is read once it has not changed again for this
/// long, so that no half-written file is read.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Watches one configuration.
pub(crate) struct ConfigWatch {
    config: Config,
    reload: SettingsHandle,
    networks: Vec<config::ReloadCallback>,
    hangup: Signal,
}

impl ConfigWatch {
    /// Creates a watch. `config` is the configuration with which the server of `reload` runs;
    /// `networks` apply changed settings to its networks. From this call on, SIGHUP does not end
    /// the process.
    pub(crate) fn new(
        config: Config,
        reload: SettingsHandle,
        networks: Vec<config::ReloadCallback>,
    ) -> anyhow::Result<Self> {
        let hangup = signal(SignalKind::hangup())
            .context("the system does not let Hark listen for signals")?;
        Ok(Self { config, reload, networks, hangup })
    }

    /// Watches the files and SIGHUP. Never ends.
    pub(crate) async fn run(mut self) {
        let mut read = self.config.files.clone();
        let mut seen = read.clone();
        loop {
            let asked = tokio::select! {
                _ = self.hangup.recv() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let now: Vec<FileState> = read.iter().map(FileState::again).collect();
            if asked || now != read && now == seen {
                notify::reloading();
                // A refused configuration is not read again until its files change.
                read = if self.read_again() { self.config.files.clone() } else { now };
                notify::reloaded();
                seen.clone_from(&read);
            } else {
                seen = now;
            }
        }
    }

    /// Reads the configuration again and applies it. Returns whether the configuration is valid.
    fn read_again(&mut self) -> bool {
        let config = match Config::load(self.config.file.as_deref()) {
            Ok(config) => config,
            Err(faults) => return refused(&faults.to_string()),
        };
        let (limits, addresses) = (config.limits.clone(), config.addresses.clone());
        let settings = Settings { limits, addresses };
        if let Err(fault) = self.reload.set(settings) {
            return refused(&fault);
        }
        for reload in &self.networks {
            reload(&config);
        }
        tracing::info!("the configuration was read again, and is in force");
        for (change, is_live) in config.changes(&self.config) {
            if is_live {
                tracing::info!("now {change}");
            } else {
                tracing::warn!("{change} holds after a restart");
            }
        }
        self.config = config;
        true
    }
}

fn refused(why: &str) -> bool {
    tracing::error!("the new configuration is refused, and the old one stays in force: {why}");
    false
}
