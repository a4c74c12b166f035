//! What became of the configuration that was read last, and requests to read it again.
//!
//! The server does not read the configuration itself: the binary does, and reports here. A request
//! comes from `hark reload` by `control.sock`.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Maximum number of requests that wait while the configuration is read.
const WAITING_MAX: usize = 8;

/// What became of the configuration that was read last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastReload {
    /// When the configuration in force was read, in seconds since 1970.
    pub(crate) in_force_since_s: u64,
    /// When a configuration was read last, in seconds since 1970.
    pub(crate) read_at_s: u64,
    /// Why that one was refused. `None` if it is in force.
    pub(crate) refusal: Option<String>,
}

/// The record of reloads, and the way to ask for one.
pub(crate) struct ReloadDesk {
    last: Mutex<LastReload>,
    requests: mpsc::Sender<ReloadRequest>,
}

/// A request to read the configuration again. Dropping it answers that this was not possible.
pub struct ReloadRequest(SyncSender<Result<String, String>>);

impl ReloadRequest {
    /// Answers with what has changed, or with why the configuration was refused.
    pub fn answer(self, result: Result<String, String>) {
        // Fails if the command that asked has ended.
        let _ = self.0.send(result);
    }
}

impl ReloadDesk {
    /// Creates a desk at the start of a server, and the receiver of its requests.
    pub(crate) fn new() -> (Arc<Self>, mpsc::Receiver<ReloadRequest>) {
        let (requests, asked) = mpsc::channel(WAITING_MAX);
        let now_s = now_s();
        let last = LastReload { in_force_since_s: now_s, read_at_s: now_s, refusal: None };
        (Arc::new(Self { last: Mutex::new(last), requests }), asked)
    }

    /// What became of the configuration that was read last.
    pub(crate) fn last(&self) -> LastReload {
        self.last.lock().clone()
    }

    /// The same for `hark stats`.
    pub(crate) fn stats(&self) -> Value {
        let last = self.last();
        json!({
            "in_force_since": last.in_force_since_s,
            "read_at": last.read_at_s,
            "refused": last.refusal,
        })
    }

    /// Notes that a configuration was read, and why it was refused, if it was.
    pub(crate) fn note(&self, refusal: Option<String>) {
        let mut last = self.last.lock();
        last.read_at_s = now_s();
        if refusal.is_none() {
            last.in_force_since_s = last.read_at_s;
        }
        last.refusal = refusal;
    }

    /// Has the configuration read again, and waits for the result. Not for the runtime's threads.
    pub(crate) fn ask(&self) -> Result<String, String> {
        let nobody = || "this server cannot read its configuration again now".to_owned();
        let (answer, answered) = sync_channel(1);
        self.requests.blocking_send(ReloadRequest(answer)).map_err(|_| nobody())?;
        answered.recv().map_err(|_| nobody())?
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
