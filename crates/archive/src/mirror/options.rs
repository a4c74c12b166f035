//! The bounds of a mirror, and the callbacks that its owner passes.

use std::sync::Arc;
use std::time::Duration;

use crate::store::Store;

/// The bounds of a mirror's queue, and the durations for which a mirror waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorOptions {
    /// Number of bytes of writes that may wait for the second store.
    pub queue_bytes_max: usize,
    /// Maximum number of writes in one batch to the second store.
    pub batch_writes_max: usize,
    /// Time after which a failed second store is tried again. The time doubles with each further
    /// failure, up to 32 times this value.
    pub retry: Duration,
    /// How long a shutdown waits until the queued writes are in the second store.
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

/// Opens the second store. The mirror calls the function again until it succeeds.
pub type StoreOpener = Box<dyn Fn() -> Result<Arc<dyn Store>, String> + Send>;

/// Logs that the mirror has fallen behind, has failed, or is in step again.
pub type MirrorReporter = Box<dyn Fn(&str) + Send>;
