//! Bounded writes. A record waits while too many bytes of earlier records are not durable yet. Its
//! sender waits until the record itself is durable.

use std::sync::Arc;

use hark_archive::writer::{WriteCallback, Writer, WriterOptions};
use hark_archive::{CommitError, Outcome, Write};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Maximum size of the records that wait to be durable, in bytes. Above this bound senders wait.
const BYTES_MAX: usize = 64 << 20;

/// Bounds for the records that wait to be durable.
#[derive(Clone, Copy, Debug)]
pub struct IntakeBounds {
    /// Maximum number of records.
    pub records_max: usize,
}

impl Default for IntakeBounds {
    fn default() -> Self {
        Self { records_max: 4_096 }
    }
}

impl IntakeBounds {
    /// Sets the length of the writer's queue. The queue is a little longer than `records_max`,
    /// because retention writes, too.
    pub(super) fn writer(self, options: WriterOptions) -> WriterOptions {
        WriterOptions { queue_max: self.records_max + 64, ..options }
    }

    /// Returns the bytes that are charged for a record. The minimum charge ensures that the waiting
    /// records fit into the writer's queue.
    fn charge(self, bytes: usize) -> u32 {
        bytes.clamp(BYTES_MAX / self.records_max, BYTES_MAX) as u32
    }
}

/// The result of storing a record of a network without rules. In both cases the record is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Archived {
    /// The record is new.
    Stored,
    /// The record was stored before.
    Duplicate,
}

impl From<Outcome> for Archived {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Duplicate => Self::Duplicate,
            _ => Self::Stored,
        }
    }
}

/// Why a record was not stored.
#[derive(Clone, Debug)]
pub(crate) enum NotStored {
    /// The archive failed to commit the record.
    Archive(Arc<CommitError>),
    /// The server is shutting down.
    Down,
}

/// The intake of a shelf; see the module.
pub(crate) struct WriteIntake {
    writer: Arc<Writer>,
    bounds: IntakeBounds,
    /// Permits, in bytes, for records that wait to be durable.
    room: Arc<Semaphore>,
}

/// A record, and the permit for its bytes.
pub(crate) struct EnteredRecord<'a> {
    writer: &'a Writer,
    record: Vec<u8>,
    room: OwnedSemaphorePermit,
}

/// A record that was passed to the writer and is not durable yet.
pub(crate) struct SubmittedRecord(oneshot::Receiver<Result<Outcome, Arc<CommitError>>>);

impl WriteIntake {
    pub(super) fn new(writer: &Arc<Writer>, bounds: IntakeBounds) -> Self {
        let room = Arc::new(Semaphore::new(BYTES_MAX));
        Self { writer: Arc::clone(writer), bounds, room }
    }

    /// Waits while too many bytes of records are not durable yet.
    pub(crate) async fn enter(&self, record: Vec<u8>) -> Result<EnteredRecord<'_>, NotStored> {
        let bytes = self.bounds.charge(record.len());
        let room = Arc::clone(&self.room).acquire_many_owned(bytes).await;
        let room = room.map_err(|_| NotStored::Down)?;
        Ok(EnteredRecord { writer: &self.writer, record, room })
    }
}

impl EnteredRecord<'_> {
    /// Passes the record to the writer. A caller with several records submits all of them before
    /// the first wait.
    pub(crate) fn submit(self) -> Result<SubmittedRecord, NotStored> {
        let Self { writer, record, room } = self;
        let (send, done) = oneshot::channel();
        let callback: WriteCallback = Box::new(move |outcome| {
            drop(room);
            // Fails if the receiver was dropped.
            let _ = send.send(outcome);
        });
        let submitted = writer.try_submit(Write::Put(record.into()), callback);
        submitted.map_err(|_| NotStored::Down)?;
        Ok(SubmittedRecord(done))
    }
}

impl SubmittedRecord {
    /// Waits until the record is durable.
    pub(crate) async fn durable(self) -> Result<Outcome, NotStored> {
        match self.0.await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(error)) => Err(NotStored::Archive(error)),
            Err(_) => Err(NotStored::Down),
        }
    }
}
