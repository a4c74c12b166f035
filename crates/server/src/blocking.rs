//! Runs work that waits for the disk or the database, on a thread that may block.

use hark_archive::blocking::may_block;
use tokio::task::JoinHandle;

/// Runs `work` on a thread that may block. Work that has begun runs to its end, even if nothing
/// waits for its result any longer.
pub(crate) fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    tokio::task::spawn_blocking(|| may_block(work))
}
