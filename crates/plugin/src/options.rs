//! The options of a plugin, which can change while the plugin runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::command::PluginCommand;

/// The action for events about which the plugin does not decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureRule {
    /// The events pass.
    Accept,
    /// The events are refused.
    #[default]
    Refuse,
}

/// The options of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginOptions {
    /// The command.
    pub command: PluginCommand,
    /// Number of processes that run the command side by side.
    pub processes: usize,
    /// Time that an event may wait for a process, and time that a process may take to answer.
    pub timeout: Duration,
    /// The action for events about which the plugin does not decide.
    pub on_failure: FailureRule,
}

impl Default for PluginOptions {
    fn default() -> Self {
        Self {
            command: PluginCommand::default(),
            processes: 2,
            timeout: Duration::from_secs(10),
            on_failure: FailureRule::default(),
        }
    }
}

impl PluginOptions {
    /// Whether there is a plugin.
    pub fn is_on(&self) -> bool {
        !self.command.line.trim().is_empty()
    }

    /// Returns the advice for the operator about a plugin that cannot be run. `None` if there is no
    /// plugin, or if the plugin can be run.
    pub fn fault(&self) -> Option<String> {
        let fault = self.is_on().then(|| self.command.fault()).flatten()?;
        let outcome = match self.on_failure {
            FailureRule::Accept => "accepted without the plugin",
            FailureRule::Refuse => "refused",
        };
        Some(format!("[plugin] command cannot be run, so events are {outcome}: {fault}"))
    }

    /// Whether processes that were started with the options `other` can continue with these
    /// options.
    pub(crate) fn continue_those_of(&self, other: &Self) -> bool {
        self.command == other.command && self.processes == other.processes
    }
}

/// A shared handle to the options in force.
#[derive(Clone, Debug)]
pub struct SharedPlugin(Arc<watch::Sender<Arc<PluginOptions>>>);

impl Default for SharedPlugin {
    fn default() -> Self {
        Self::new(PluginOptions::default())
    }
}

impl SharedPlugin {
    /// Creates a handle to these options.
    pub fn new(options: PluginOptions) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(options))))
    }

    /// Replaces the options. Processes of another command end, and new ones start with the next
    /// event. Events that wait go to the new processes.
    pub fn set(&self, options: PluginOptions) {
        self.0.send_if_modified(|current| {
            let is_new = **current != options;
            if is_new {
                *current = Arc::new(options);
            }
            is_new
        });
    }

    /// The options in force.
    pub fn current(&self) -> Arc<PluginOptions> {
        Arc::clone(&self.0.borrow())
    }

    /// Follows the changes of the options.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<PluginOptions>> {
        self.0.subscribe()
    }
}
