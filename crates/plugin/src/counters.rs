//! Counters of a plugin.

use hark_archive::meter::{Counter, Histogram};

use crate::answer::PluginDecision;
use crate::failure::PluginFailure;

/// Counters of a plugin since the start of this process.
#[derive(Debug, Default)]
pub struct PluginCounters {
    /// Events that the plugin accepted.
    pub accepted: Counter,
    /// Events that the plugin refused.
    pub rejected: Counter,
    /// Events that the plugin refused without telling their senders.
    pub shadow_rejected: Counter,
    /// Events about which the plugin did not decide.
    pub undecided: Counter,
    /// Processes that could not be started.
    pub failed_starts: Counter,
    /// Processes that ended while they had an event.
    pub ended: Counter,
    /// Events that a process did not answer in time.
    pub timeouts: Counter,
    /// Answers that could not be read, or were about another event.
    pub garbled: Counter,
    /// Processes that were started.
    pub starts: Counter,
    /// Events that wait for a process, or for its answer, now.
    pub waiting: Counter,
    /// Time from the moment at which a process gets an event to its answer.
    pub answers: Histogram,
}

impl PluginCounters {
    /// Counts the outcome of an event.
    pub(crate) fn note(&self, outcome: &Result<PluginDecision, PluginFailure>) {
        match outcome {
            Ok(PluginDecision::Accept) => self.accepted.add(1),
            Ok(PluginDecision::Reject(_)) => self.rejected.add(1),
            Ok(PluginDecision::ShadowReject(_)) => self.shadow_rejected.add(1),
            Err(failure) => {
                self.undecided.add(1);
                match failure {
                    PluginFailure::Start(_) => self.failed_starts.add(1),
                    PluginFailure::Ended(_) => self.ended.add(1),
                    PluginFailure::Timeout(_) => self.timeouts.add(1),
                    PluginFailure::Garbage(_) | PluginFailure::OtherEvent(_) => {
                        self.garbled.add(1);
                    }
                    PluginFailure::Busy
                    | PluginFailure::Down
                    | PluginFailure::Suspended
                    | PluginFailure::Crowded => {}
                }
            }
        }
    }
}
