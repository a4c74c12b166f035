//! The bounds of a mirror, and the functions that its owner gives.

use std::sync::Arc;
use std::time::Duration;

use crate::store::Store;

/// The bounds of a mirror's queue, and its waiting times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorOptions {
    /// Bytes of writes that may wait for the second store.
    pub queue_bytes_max: usize,
    /// Maximum number of writes in one batch to the second store.
    pub batch_writes_max: usize,
    /// Time until a failed second store is first tried again. The time doubles with each failure,
    /// up to 32 times this value.
    pub retry: Duration,
    /// How long a shutdown waits for queued writes.
    pub drain: Duration,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self {
            queue_bytes_max: 64 << 20,
            batch_writes_max: 1_024,
            retry: Duration::from_millis(500),
            drain: Duration::from_secs(10),
        }
    }
}

/// Opens the second store. Called again until it succeeds.
pub type StoreOpener = Box<dyn Fn() -> Result<Arc<dyn Store>, String> + Send>;

/// Logs that the mirror falls behind, fails, or is in step again.
pub type MirrorReporter = Box<dyn Fn(&str) + Send>;
