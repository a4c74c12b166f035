//! The configuration file of `hark router`, which defines the streams. Where possible, the keys
//! have the same names as in strfry's configuration.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hark_archive::Query;
use hark_codec::record::Key;
use hark_peers::{
    ClientOptions, Direction, EventPlugin, PluginSource, RelayAddress, StreamOptions,
};
use hark_plugin::PluginCommand;
use serde::Deserialize;

use super::stream::{CatchUp, catch_up};
use super::sync::queries;
use crate::config::FileState;
use crate::location::ArchiveLocation;
use crate::wrong_use::WrongUse;

/// The content of the file, before its values are checked.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouterPlan {
    /// The address for `/metrics`; `None` if metrics are not served.
    pub(super) metrics: Option<SocketAddr>,
    #[serde(default)]
    pub(super) streams: BTreeMap<String, StreamPlan>,
}

/// A stream of the file, before its values are checked.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StreamPlan {
    #[serde(default)]
    dir: PlanDirection,
    urls: Vec<String>,
    filter: Option<toml::Value>,
    #[serde(default = "all")]
    catch_up: String,
    #[serde(default)]
    private: bool,
    key_file: Option<PathBuf>,
    events_per_s_max: Option<u32>,
    #[serde(default = "half_a_minute")]
    timeout_s: u64,
    #[serde(alias = "pluginDown")]
    plugin_down: Option<String>,
    #[serde(alias = "pluginUp")]
    plugin_up: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PlanDirection {
    #[default]
    Down,
    Up,
    Both,
}

fn all() -> String {
    "all".into()
}

fn half_a_minute() -> u64 {
    30
}

/// All inputs of a stream: its plan in the file, and values from the configuration and the key
/// file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StreamTerms {
    typed: StreamPlan,
    key: Option<Key>,
    private_kinds: Vec<u32>,
    message_bytes_max: usize,
}

/// A stream to one relay.
pub(super) struct PlannedStream {
    /// The name of the stream and the relay's address.
    pub(super) key: (String, RelayAddress),
    /// The inputs, which are compared to detect a changed stream.
    pub(super) terms: StreamTerms,
    pub(super) options: StreamOptions,
}

impl RouterPlan {
    /// Reads the file. Adds to `files` the state of the file and of each key file that it names.
    /// The state of a file is recorded before the file is read.
    pub(super) fn read(path: &Path, files: &mut Vec<FileState>) -> anyhow::Result<Self> {
        let shown = path.display();
        files.push(FileState::new(path.into()));
        let text =
            std::fs::read_to_string(path).with_context(|| format!("{shown} could not be read"))?;
        let plan: Self =
            toml::from_str(&text).map_err(|error| WrongUse(format!("{shown}: {error}")))?;
        if plan.streams.is_empty() {
            return Err(WrongUse(format!(
                "{shown} names no stream: write one as [streams.NAME] with urls = [\"wss://…\"]"
            ))
            .into());
        }
        let keys = plan.streams.values().filter_map(|stream| stream.key_file.clone());
        files.extend(keys.map(FileState::new));
        Ok(plan)
    }

    /// Returns the streams of the plan. `path` is the file's name for error messages.
    pub(super) fn planned(
        &self,
        path: &Path,
        location: &ArchiveLocation,
    ) -> anyhow::Result<Vec<PlannedStream>> {
        let mut streams = Vec::new();
        for (name, typed) in &self.streams {
            let planned = typed.planned(name, location);
            let wrong = |error| WrongUse(format!("{}: [streams.{name}] {error:#}", path.display()));
            streams.extend(planned.map_err(wrong)?);
        }
        Ok(streams)
    }
}

impl StreamPlan {
    fn planned(
        &self,
        name: &str,
        location: &ArchiveLocation,
    ) -> anyhow::Result<Vec<PlannedStream>> {
        anyhow::ensure!(!self.urls.is_empty(), "`urls` is empty");
        anyhow::ensure!(
            (1..=3600).contains(&self.timeout_s),
            "`timeout_s` is {}, and must be from 1 to 3600",
            self.timeout_s
        );
        anyhow::ensure!(self.events_per_s_max != Some(0), "`events_per_s_max` must be above 0");
        let CatchUp(catch_up_s) =
            catch_up(&self.catch_up).map_err(|why| anyhow::anyhow!("`catch_up`: {why}"))?;
        let query = self.query(location)?;
        let key = self.key_file.as_deref().map(super::key).transpose()?;
        let client = super::client(&location.config, Duration::from_secs(self.timeout_s));
        let client = ClientOptions { key, ..client };
        let private_kinds =
            if self.private { Vec::new() } else { location.config.private_kinds.clone() };
        let terms = StreamTerms {
            typed: self.clone(),
            key: client.key.as_ref().map(|key| *key.public()),
            private_kinds: private_kinds.clone(),
            message_bytes_max: client.message_bytes_max,
        };
        let mut urls = self.urls.clone();
        urls.sort_unstable();
        urls.dedup();
        urls.iter()
            .map(|url| {
                let address: RelayAddress =
                    url.parse().map_err(|why| anyhow::anyhow!("`urls`: {url}: {why}"))?;
                let plugin = |line: &Option<String>, source| {
                    let line = line.clone()?;
                    let command = PluginCommand { line, folder: None };
                    Some(Arc::new(EventPlugin::new(command, source)))
                };
                let options = StreamOptions {
                    direction: match self.dir {
                        PlanDirection::Down => Direction::Down,
                        PlanDirection::Up => Direction::Up,
                        PlanDirection::Both => Direction::Both,
                    },
                    query: query.clone(),
                    private_kinds: private_kinds.clone(),
                    send_protected: self.private,
                    catch_up_s,
                    events_per_s_max: self.events_per_s_max,
                    plugin_down: plugin(&self.plugin_down, PluginSource::Stream(url.clone())),
                    plugin_up: plugin(&self.plugin_up, PluginSource::Stored),
                    client: client.clone(),
                };
                Ok(PlannedStream { key: (name.into(), address), terms: terms.clone(), options })
            })
            .collect()
    }

    fn query(&self, location: &ArchiveLocation) -> anyhow::Result<Query> {
        let text = match &self.filter {
            None => "{}".into(),
            Some(toml::Value::String(text)) => text.clone(),
            Some(table @ toml::Value::Table(_)) => serde_json::to_string(table)?,
            Some(_) => anyhow::bail!("`filter` is a table, or the text of one in JSON"),
        };
        let query = queries(location, &[text])?.into_iter().next();
        query.context("`filter`: nothing can match it")
    }
}
