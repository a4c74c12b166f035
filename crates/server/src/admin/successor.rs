//! The process that took over, from the old process's point of view. It makes the old process's
//! batches durable.

use std::io::{self, BufWriter, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use hark_archive::{CommitError, CommitResult, Id, Outcome, Query, Record, SearchError, Write};
use parking_lot::Mutex;

use super::protocol::{self, ControlFrame, EPHEMERAL, ERASE, OUTCOME, PUT, TEXT, ids_bytes};
use super::takeover_parties::Sibling;
use crate::shelf::Shelf;

/// Maximum number of ids in one ERASE request.
const ERASE_IDS: usize = 512;

/// The outgoing stream to the process that took over, shared by all shelves.
pub(super) type SuccessorStream = Arc<Mutex<BufWriter<UnixStream>>>;

/// Opens the outgoing stream to the process that took over.
pub(super) fn to(stream: &UnixStream) -> io::Result<SuccessorStream> {
    Ok(Arc::new(Mutex::new(BufWriter::with_capacity(64 << 10, stream.try_clone()?))))
}

/// The process that took over, to which the writer of one shelf sends its batches.
pub(super) struct Successor {
    /// The old process's view of the shelf.
    pub(super) shelf: Arc<Shelf>,
    to: SuccessorStream,
    /// `None` once the process that took over is gone.
    answers: Mutex<Option<Sender<WriteReply>>>,
    answered: Mutex<Receiver<WriteReply>>,
}

type WriteReply = Result<Outcome, SuccessorError>;

/// Why the successor has not made a write durable.
#[derive(Debug, thiserror::Error)]
pub(super) enum SuccessorError {
    #[error("{0}")]
    Refused(String),
    #[error("an outcome of an unknown form")]
    NoOutcome,
    #[error("a count that is not a number")]
    NoCount,
}

impl Successor {
    pub(super) fn new(shelf: Arc<Shelf>, to: SuccessorStream) -> Self {
        let (answers, answered) = channel();
        let (answers, answered) = (Mutex::new(Some(answers)), Mutex::new(answered));
        Self { shelf, to, answers, answered }
    }

    /// Sends a batch to the successor, and waits until the batch is durable there. The successor
    /// reports growth before it answers, so readers in this process see a record before its write
    /// is acknowledged.
    pub(super) fn commit(&self, writes: &[Write]) -> Result<CommitResult, CommitError> {
        let stopped = |reason: String| CommitError::Stopped(reason);
        let lost = |_| stopped("the process that took over is gone".into());
        let shelf = self.shelf.name();
        let mut asked = Vec::with_capacity(writes.len());
        {
            let mut to = self.to.lock();
            for write in writes {
                match write {
                    Write::Put(record) => {
                        protocol::write(&mut *to, PUT, shelf, record).map_err(lost)?;
                        asked.push(1);
                    }
                    Write::Erase(query) => {
                        let ids =
                            self.matching(query).map_err(|error| stopped(error.to_string()))?;
                        for ids in ids.chunks(ERASE_IDS) {
                            let ids = ids_bytes(ids);
                            protocol::write(&mut *to, ERASE, shelf, &ids).map_err(lost)?;
                        }
                        asked.push(ids.chunks(ERASE_IDS).len());
                    }
                }
            }
            to.flush().map_err(lost)?;
        }
        let answered = self.answered.lock();
        let (mut done, mut refused) = (CommitResult::default(), None);
        // The writes before the first refused write are answered. The writer sends the others again.
        let mut whole = None;
        for (write, parts) in writes.iter().zip(asked) {
            let mut erased = 0;
            for _ in 0..parts {
                let answer = answered
                    .recv()
                    .map_err(|_| stopped("the process that took over is gone".into()))?;
                match (write, answer) {
                    (Write::Erase(_), Ok(Outcome::Erased(count))) => erased += count,
                    (_, Ok(outcome)) => done.outcomes.push(outcome),
                    (_, Err(error)) => {
                        whole.get_or_insert(done.outcomes.len());
                        refused = Some(error);
                    }
                }
            }
            if matches!(write, Write::Erase(_)) {
                done.outcomes.push(Outcome::Erased(erased));
            }
        }
        match (refused, whole) {
            (Some(_), Some(whole)) if whole > 0 => done.cut(whole),
            // The other process still runs, so a later batch may be kept.
            (Some(error), _) => return Err(CommitError::Unavailable(error.to_string())),
            (None, _) => {}
        }
        Ok(done)
    }

    /// Returns the ids of the matching records, for ERASE requests.
    fn matching(&self, query: &Query) -> Result<Vec<Id>, SearchError> {
        let mut ids = Vec::new();
        let mut search = self.shelf.store().search(query)?;
        let take = &mut |record: &Record<'_>| {
            ids.push(*record.id());
            std::ops::ControlFlow::Continue(())
        };
        search.slice(u64::MAX, take)?;
        Ok(ids)
    }

    /// Passes an answer of the successor to the waiting commit.
    pub(super) fn answered(&self, frame: &ControlFrame) {
        let answer = match frame.what {
            OUTCOME => protocol::outcome(frame.body()).ok_or(SuccessorError::NoOutcome),
            TEXT => frame.text().parse().map(Outcome::Erased).map_err(|_| SuccessorError::NoCount),
            _ => Err(SuccessorError::Refused(frame.text().into_owned())),
        };
        if let Some(answers) = &*self.answers.lock() {
            // Cannot fail: the receiver lives as long as `self`.
            let _ = answers.send(answer);
        }
    }

    /// Closes the connection to a successor that is gone. Commits that wait for an answer fail.
    pub(super) fn end(&self) {
        drop(self.answers.lock().take());
        let to = self.to.lock();
        // Fails if the connection is closed already.
        let _ = to.get_ref().shutdown(std::net::Shutdown::Both);
    }
}

impl Sibling for Successor {
    fn pass_on(&self, record: &Record<'_>) {
        let mut to = self.to.lock();
        // If the successor is gone, the thread that reads from it notices.
        let _ = protocol::write(&mut *to, EPHEMERAL, self.shelf.name(), record.bytes())
            .and_then(|()| to.flush());
    }

    fn grown(&self) {}
}
