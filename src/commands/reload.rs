//! A running server's settings, read again when their files change or on SIGHUP. What cannot be used
//! changes nothing, and the log says why.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use hark_server::{Reload, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Config;
use crate::notify;

/// How often the files are looked at. One that has changed is read when it has come to rest for as
/// long, so that none is read half written.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What tells that a file has changed.
type Stamps = Vec<Option<(SystemTime, u64)>>;

/// Watches one configuration.
pub(crate) struct Watch {
    config: Config,
    reload: Reload,
    hangup: Signal,
}

impl Watch {
    /// `config` is what the server of `reload` runs with. From here on SIGHUP does not end the
    /// process.
    pub(crate) fn new(config: Config, reload: Reload) -> anyhow::Result<Self> {
        let hangup = signal(SignalKind::hangup())
            .context("the system does not let Hark listen for signals")?;
        Ok(Self { config, reload, hangup })
    }

    /// Never ends.
    pub(crate) async fn run(mut self) {
        let mut read = stamps(&self.config.files);
        let mut seen = read.clone();
        loop {
            let asked = tokio::select! {
                _ = self.hangup.recv() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let now = stamps(&self.config.files);
            if asked || now != read && now == seen {
                notify::reloading();
                self.read_again();
                notify::reloaded();
                read = stamps(&self.config.files);
                seen.clone_from(&read);
            } else {
                seen = now;
            }
        }
    }

    fn read_again(&mut self) {
        let config = match Config::load(self.config.file.as_deref()) {
            Ok(config) => config,
            Err(faults) => return refused(&faults.to_string()),
        };
        let settings = Settings { limits: config.limits.clone(), policy: config.policy.clone() };
        if let Err(fault) = self.reload.set(settings) {
            return refused(&fault);
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
    }
}

fn refused(why: &str) {
    tracing::error!("the new configuration is refused, and the old one stays in force: {why}");
}

fn stamps(files: &[PathBuf]) -> Stamps {
    let stamp = |file: &Path| {
        let meta = std::fs::metadata(file).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    };
    files.iter().map(|file| stamp(file)).collect()
}
