//! The result of the last reload of the configuration, and requests to reload.
//!
//! The server does not read the configuration itself. The binary reads the configuration, and
//! reports the result here. A request comes from `hark reload` through `control.sock`.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use hark_archive::clock::Clock;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Maximum number of requests that wait while a reload is in progress.
const WAITING_MAX: usize = 8;

/// The result of the last reload of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastReload {
    /// When the configuration in force was read, in seconds since 1970.
    pub(crate) in_force_since_s: u64,
    /// When a configuration was last read, in seconds since 1970.
    pub(crate) read_at_s: u64,
    /// Why the configuration that was last read was refused; `None` if that configuration is in
    /// force.
    pub(crate) refusal: Option<String>,
}

/// The result of the last reload, and a channel for requests to reload.
pub(crate) struct ReloadDesk {
    last: Mutex<LastReload>,
    requests: mpsc::Sender<ReloadRequest>,
}

/// A request to reload the configuration. Dropping the request sends the answer that a reload is
/// not possible.
pub struct ReloadRequest(SyncSender<Result<String, ReloadError>>);

/// Why a configuration is not in force.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The server is not able to read its configuration.
    #[error("this server cannot read its configuration again now")]
    Unable,
    /// The configuration is refused, for this reason.
    #[error("{0}")]
    Refused(String),
}

impl ReloadRequest {
    /// Answers with a description of the changes, or with the reason for refusing the
    /// configuration.
    pub fn answer(self, result: Result<String, ReloadError>) {
        // Fails if the requesting command has ended.
        let _ = self.0.send(result);
    }
}

impl ReloadDesk {
    /// Creates the desk of a starting server, and the receiver of the desk's requests.
    pub(crate) fn new() -> (Arc<Self>, mpsc::Receiver<ReloadRequest>) {
        let (requests, asked) = mpsc::channel(WAITING_MAX);
        let now_s = Clock::System.now_s();
        let last = LastReload { in_force_since_s: now_s, read_at_s: now_s, refusal: None };
        (Arc::new(Self { last: Mutex::new(last), requests }), asked)
    }

    /// Returns the result of the last reload.
    pub(crate) fn last(&self) -> LastReload {
        self.last.lock().clone()
    }

    /// Returns the result of the last reload as the fields for `hark stats`.
    pub(crate) fn stats(&self) -> Value {
        let last = self.last();
        json!({
            "in_force_since": last.in_force_since_s,
            "read_at": last.read_at_s,
            "refused": last.refusal,
        })
    }

    /// Records that a configuration was read. `refusal` is the reason if the configuration was
    /// refused.
    pub(crate) fn note(&self, refusal: Option<String>) {
        let mut last = self.last.lock();
        last.read_at_s = Clock::System.now_s();
        if refusal.is_none() {
            last.in_force_since_s = last.read_at_s;
        }
        last.refusal = refusal;
    }

    /// Requests a reload, and waits for the result. Blocking: do not call this on the runtime's
    /// threads.
    pub(crate) fn ask(&self) -> Result<String, ReloadError> {
        let (answer, answered) = sync_channel(1);
        let asked = self.requests.blocking_send(ReloadRequest(answer));
        asked.map_err(|_| ReloadError::Unable)?;
        answered.recv().map_err(|_| ReloadError::Unable)?
    }
}
