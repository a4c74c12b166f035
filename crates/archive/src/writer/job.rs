//! Jobs for the writer's thread, and the functions that the thread calls.

use std::sync::Arc;
use std::time::Duration;

use hark_codec::record::Record;

use crate::store::{CommitError, CommitResult, Outcome, Write, commit_whole};

/// The bounds of batches and of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Maximum number of writes in a batch.
    pub batch_writes_max: usize,
    /// Approximate maximum number of bytes of a batch's records.
    pub batch_bytes_max: usize,
    /// How long a batch waits for further writes after its first write.
    pub batch_wait: Duration,
    /// Maximum number of writes that wait for the writer. When the queue is full,
    /// [`Writer::try_submit`] returns [`WriterBusy`].
    ///
    /// [`Writer::try_submit`]: super::Writer::try_submit
    /// [`WriterBusy`]: super::WriterBusy
    pub queue_max: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            batch_writes_max: 1024,
            batch_bytes_max: 4 << 20,
            batch_wait: Duration::ZERO,
            queue_max: 4096,
        }
    }
}

/// A callback that is called once, with the outcome of a write.
pub type WriteCallback = Box<dyn FnOnce(Result<Outcome, Arc<CommitError>>) + Send>;

/// Receives records as soon as they are durable, on the writer's thread.
pub trait CommitListener: Send {
    /// Receives the records of a durable batch with their sequence numbers, in order. `answer`
    /// sends the outcomes to the senders. The listener must call `answer` after it has notified all
    /// subscribers.
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    );
}

/// A listener without subscribers.
impl CommitListener for () {
    fn batch(&mut self, _: &mut dyn Iterator<Item = (u64, Record<'_>)>, answer: &mut dyn FnMut()) {
        answer();
    }
}

/// Makes a batch durable: with [`Store::commit_some`], or by sending it to another process that has
/// taken over the archive. An empty batch tests whether writes would succeed.
///
/// [`Store::commit_some`]: crate::store::Store::commit_some
pub type CommitFn = Box<dyn Fn(&[Write]) -> Result<CommitResult, CommitError> + Send>;

/// The function that makes writes durable, and the listener that receives the durable records.
pub struct WriteTarget {
    /// Makes the writes durable.
    pub commit: CommitFn,
    /// Receives the durable records.
    pub listener: Box<dyn CommitListener>,
}

impl WriteTarget {
    /// Carries out a whole batch between two batches of the writer, and passes its records to the
    /// listener, as the writer does. The listener also receives the records of other processes that
    /// the commits report, since no other commit reports these records. Each step of the batch is
    /// published separately, because a later step may fail.
    pub fn commit_whole(&mut self, writes: &[Write]) -> Result<Vec<Outcome>, CommitError> {
        let Self { commit, listener } = self;
        let committed = commit_whole(writes, |some| {
            let done = commit(some)?;
            let before = done.before.iter().map(|(seq, bytes)| (*seq, bytes));
            let put = some.iter().zip(&done.outcomes).filter_map(|pair| match pair {
                (Write::Put(bytes), Outcome::Stored { seq }) => Some((*seq, bytes)),
                _ => None,
            });
            let mut stored =
                before.chain(put).filter_map(|(seq, bytes)| Some((seq, Record::new(bytes).ok()?)));
            listener.batch(&mut stored, &mut || {});
            drop(stored);
            Ok(done)
        })?;
        Ok(committed.outcomes)
    }
}

/// A job that runs between two batches; see [`Writer::between`](super::Writer::between).
pub type BetweenBatchesJob = Box<dyn FnOnce(&mut WriteTarget) + Send>;

/// A job for the writer's thread.
pub(super) enum WriterJob {
    Write(Write, WriteCallback),
    Between(BetweenBatchesJob),
    /// Wakes an idle thread, which then checks for news and for the end.
    Wake,
}
