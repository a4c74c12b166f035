//! Why a plugin has not decided about an event.

use std::time::Duration;

/// Why a plugin has not decided about an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginFailure {
    /// The plugin could not be started.
    #[error("it could not be started: {0}")]
    Start(String),
    /// The plugin ended, or no longer reads or writes.
    #[error("it ended ({0})")]
    Ended(String),
    /// The plugin did not answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The plugin's output has no answer.
    #[error("its answer is {0}")]
    Garbage(String),
    /// The answer is about another event.
    #[error("it answered for another event, `{0}`")]
    OtherEvent(String),
    /// No process of the plugin was free in time.
    #[error("none of its processes was free in time")]
    Busy,
    /// The plugin has failed again and again, and waits for its next start.
    #[error("it fails again and again")]
    Down,
    /// The plugin failed for the last events of this event's client, but has since answered events
    /// of another client.
    #[error("it fails again and again for the events of this client only")]
    Suspended,
    /// Too many events of the same client, or of all clients, wait for the plugin.
    #[error("too many events wait for it")]
    Crowded,
}
