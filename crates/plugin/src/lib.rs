//! Runs the operator's plugin, a program that accepts or refuses events. The interface is that of
//! strfry's write-policy plugins, so plugins for strfry work unchanged.
//!
//! A plugin reads one event per line from stdin, and answers with one line on stdout ([`question`]
//! and [`answer`]). [`PluginProcess`] is one running process, which decides about one event at a
//! time. [`PluginPool`] runs several processes of one plugin for the events of many clients: an
//! event waits for a limited time, the events of one client never occupy all processes, and a
//! plugin that fails again and again delays nobody.
//!
//! A plugin is the operator's program and is trusted to run, but nothing that a plugin does may
//! stop or slow down its caller: each wait, each line and each queue has a bound.

pub mod answer;
mod budget;
mod command;
mod counters;
mod failure;
mod log;
mod options;
mod pool;
mod process;
pub mod question;
mod queue;
mod slot;
mod suspects;

pub use answer::PluginDecision;
pub use command::PluginCommand;
pub use counters::PluginCounters;
pub use failure::PluginFailure;
pub use log::PluginLog;
pub use options::{FailureRule, PluginOptions, SharedPlugin};
pub use pool::PluginPool;
pub use process::PluginProcess;
pub use question::EventOrigin;
pub use queue::{PluginJob, PluginOutcome};
