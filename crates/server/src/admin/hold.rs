//! Holds a writer of a server that another process is about to take over. The writer is held
//! between two batches, until the outcome of the takeover is known.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::time::Instant;

use hark_archive::CommitError;
use hark_archive::writer::{BetweenBatchesJob, CommitFn, CommitListener, WriteTarget};
use parking_lot::Mutex;

use crate::shelf::{JobNotRun, Shelf};

/// A function that changes the target of writes.
type TargetChange = Box<dyn FnOnce(&mut WriteTarget) + Send>;

/// A writer that is held, or that refuses writes.
pub(super) struct WriterHold {
    shelf: Arc<Shelf>,
    /// The channel that lets the writer's thread continue. `None` once the thread continues.
    held: Option<Sender<TargetChange>>,
    /// The writer's own commit function, kept here while writes are refused.
    refused: Arc<Mutex<Option<CommitFn>>>,
}

/// The writer has not finished its batch in time.
#[derive(Debug, thiserror::Error)]
#[error("the archive has too much to write at the moment")]
pub(super) struct WriterLate;

impl WriterHold {
    /// Holds the writer between two batches. Writes wait until the writer is released. Fails if the
    /// writer does not pause before `until`.
    pub(super) fn begin(shelf: &Arc<Shelf>, until: Instant) -> Result<Self, WriterLate> {
        let (held, decided) = channel::<TargetChange>();
        let (waits, waiting) = sync_channel(1);
        let job: BetweenBatchesJob = Box::new(move |target: &mut WriteTarget| {
            if waits.send(()).is_ok()
                && let Ok(change) = decided.recv()
            {
                change(target);
            }
        });
        shelf.queue_between(job, Some(until)).map_err(|JobNotRun| WriterLate)?;
        waiting
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .map_err(|_| WriterLate)?;
        Ok(Self { shelf: Arc::clone(shelf), held: Some(held), refused: Arc::default() })
    }

    /// The shelf of the writer.
    pub(super) fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// Refuses writes with this reason, instead of holding them, until the writer is released.
    pub(super) fn refuse(&mut self, reason: &str) {
        let (refused, reason) = (Arc::clone(&self.refused), reason.to_owned());
        self.change(Box::new(move |target| {
            let refuse = move |_: &[_]| Err(CommitError::Elsewhere(reason.clone()));
            let commit = std::mem::replace(&mut target.commit, Box::new(refuse));
            refused.lock().get_or_insert(commit);
        }));
    }

    /// Releases the writer, which continues as before.
    pub(super) fn release(mut self) {
        let refused = Arc::clone(&self.refused);
        self.change(Box::new(move |target| {
            let commit = refused.lock().take();
            if let Some(commit) = commit {
                target.commit = commit;
            }
        }));
    }

    /// Releases the writer, which continues with another commit function and another listener.
    pub(super) fn through(mut self, commit: CommitFn, listener: Box<dyn CommitListener>) {
        self.change(Box::new(move |target| {
            target.commit = commit;
            target.listener = listener;
        }));
    }

    /// Makes the writer refuse all writes permanently.
    pub(super) fn refuse_for_good(mut self, reason: &str) {
        self.refuse(reason);
    }

    /// Makes the writer's thread apply a change: immediately if the thread is held, else between
    /// two batches. The thread lives as long as the shelf.
    fn change(&mut self, change: TargetChange) {
        let job: BetweenBatchesJob = match self.held.take() {
            None => change,
            Some(held) => match held.send(change) {
                Ok(()) => return,
                // Not reached: the held thread waits for the change.
                Err(refused) => refused.0,
            },
        };
        // Without a limit of time, this call does not fail.
        let _ = self.shelf.queue_between(job, None);
    }
}
