//! Writes the events of relays through a server or a database that may be unavailable for a while.
//!
//! Failed writes are retried until they succeed, since a server may be stopped for an hour, or a
//! disk may be full. If a single record keeps failing while the server or the database works, that
//! record is refused, so that it does not block the others for ever.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hark_peers::{EventWriter, LocalFeed, WriteOutcome};

use crate::location::ArchiveLocation;
use crate::writer::WriterHandle;

/// Interval between attempts to reach a server that has stopped.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Maximum wait between two attempts. Each wait is twice the previous wait.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Number of consecutive failures after which a warning is logged, and fewer records are written
/// together.
const FAILURES_MAX: u32 = 3;
/// Number of consecutive failures, over about a minute, after which a single record is refused.
const TRIES_MAX: u32 = 12;

/// A writer that waits for its server or database.
pub(super) struct WaitingWriter {
    pub(super) writer: WriterHandle,
    pub(super) location: ArchiveLocation,
    pub(super) stop: Arc<AtomicBool>,
    /// Whether the writer is waiting now.
    pub(super) waits: Arc<AtomicBool>,
    /// The feed of the events that this process stores; `None` if a server feeds the streams.
    pub(super) feed: Option<Arc<LocalFeed>>,
}

impl EventWriter for WaitingWriter {
    fn put(&mut self, records: Vec<Box<[u8]>>) -> Result<Vec<WriteOutcome>, String> {
        let mut outcomes: Vec<Option<WriteOutcome>> = vec![None; records.len()];
        let mut left: VecDeque<usize> = (0..records.len()).collect();
        let (mut together, mut failures, mut wait) = (records.len(), 0, LOOK_EVERY);
        let mut has_failed = false;
        while !left.is_empty() {
            let part: Vec<usize> = left.iter().copied().take(together).collect();
            let sent = part.iter().map(|&at| records[at].clone()).collect();
            let failed = match self.writer.put(sent) {
                Ok(written) => {
                    let mut failed = None;
                    for (&at, written) in part.iter().zip(written) {
                        match written {
                            Ok(outcome) => outcomes[at] = Some(Ok(outcome)),
                            Err(words) => failed = Some(words),
                        }
                    }
                    failed
                }
                Err(error)
                    if self.writer.own_store().is_some() && !self.location.facts().is_remote =>
                {
                    return Err(format!("{error:#}"));
                }
                Err(error) => Some(format!("{error:#}")),
            };
            left.retain(|&at| outcomes[at].is_none());
            let Some(words) = failed else {
                (failures, wait) = (0, LOOK_EVERY);
                if self.waits.swap(false, Ordering::Relaxed) {
                    tracing::info!("events are written again");
                }
                continue;
            };
            if self.stop.load(Ordering::Relaxed) {
                return Err(words);
            }
            failures += 1;
            has_failed = true;
            if failures >= FAILURES_MAX {
                if !self.waits.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        error = words,
                        "events cannot be written; trying until they can"
                    );
                }
                if self.works() {
                    if part.len() == 1 && failures >= TRIES_MAX {
                        tracing::warn!(error = words, "an event cannot be written, and is refused");
                        outcomes[part[0]] = Some(Err(words));
                        left.pop_front();
                        (failures, wait) = (0, LOOK_EVERY);
                        continue;
                    }
                    together = part.len().div_ceil(2);
                }
            }
            self.sleep(wait);
            wait = (wait * 2).min(WAIT_MAX);
            if matches!(self.writer, WriterHandle::Server(_))
                && let Ok(Some(client)) = self.location.control()
            {
                self.writer = WriterHandle::Server(client);
            }
        }
        self.waits.store(false, Ordering::Relaxed);
        // A write whose answer was lost may have stored records that then count as duplicates.
        if let Some(feed) = self.feed.as_ref().filter(|_| has_failed) {
            feed.lagged();
        }
        Ok(outcomes.into_iter().flatten().collect())
    }
}

impl WaitingWriter {
    /// Whether the server or the database answers and reports no fault.
    fn works(&self) -> bool {
        if let Some(store) = self.writer.own_store() {
            // An empty batch tests whether the store carries out writes.
            return store.commit_some(&[]).is_ok();
        }
        let client = self.location.control().ok().flatten();
        let stats = client.and_then(|mut client| client.stats().ok());
        stats.is_some_and(|stats| stats["trouble"].is_null())
    }

    fn sleep(&self, mut wait: Duration) {
        while !wait.is_zero() && !self.stop.load(Ordering::Relaxed) {
            let step = wait.min(LOOK_EVERY);
            std::thread::sleep(step);
            wait -= step;
        }
    }
}
