//! The settings of the plugin that decides about published events.

use std::path::Path;
use std::time::Duration;

use hark_plugin::{FailureRule, PluginCommand, PluginOptions};

use super::setting_type::{SettingType, quoted, wanted};
use super::value::TypedValue;

/// The settings of the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginSettings {
    pub(crate) command: String,
    pub(crate) processes: usize,
    pub(crate) timeout_ms: u64,
    pub(crate) on_failure: FailureRule,
}

impl Default for PluginSettings {
    fn default() -> Self {
        let PluginOptions { command, processes, timeout, on_failure } = PluginOptions::default();
        let timeout_ms = timeout.as_millis() as u64;
        Self { command: command.line, processes, timeout_ms, on_failure }
    }
}

impl PluginSettings {
    /// Returns the options of the plugin, which runs in `folder`.
    pub(crate) fn options(&self, folder: &Path) -> PluginOptions {
        let command = PluginCommand { line: self.command.clone(), folder: Some(folder.into()) };
        PluginOptions {
            command,
            processes: self.processes,
            timeout: Duration::from_millis(self.timeout_ms),
            on_failure: self.on_failure,
        }
    }
}

impl SettingType for FailureRule {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match String::read(value).as_deref() {
            Ok("accept") => Ok(Self::Accept),
            Ok("refuse") => Ok(Self::Refuse),
            _ => wanted("\"accept\" or \"refuse\"", value),
        }
    }

    fn show(&self) -> String {
        quoted(match self {
            Self::Accept => "accept",
            Self::Refuse => "refuse",
        })
    }
}
