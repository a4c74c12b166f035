//! The threads of a relay, which are joined when the relay closes.

use std::thread::JoinHandle;

use parking_lot::Mutex;

/// The threads of a relay, which are joined when the relay closes.
#[derive(Default)]
pub(super) struct RelayThreads(Mutex<Vec<JoinHandle<()>>>);

impl RelayThreads {
    /// Creates the list of these threads.
    pub(super) fn new(threads: Vec<JoinHandle<()>>) -> Self {
        Self(Mutex::new(threads))
    }

    /// Waits for all threads.
    pub(super) fn join(&self) {
        let threads = std::mem::take(&mut *self.0.lock());
        for thread in threads {
            // The thread does not panic: see `vital`.
            let _ = thread.join();
        }
    }
}
