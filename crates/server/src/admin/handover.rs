//! The old process's side of a takeover.
//!
//! ```text
//!  new                old
//!  TAKEOVER     ->    pauses maintenance; holds the writers between two batches; stops writing
//!               <-    STATE of the doors
//!               <-    HANDED, the listening sockets, the lock, and the last turn for the claim
//!  opens the shelves for reading
//!  READY        ->    releases the right to write
//!               <-    GO
//!  claims the right; opens the shelves for writing
//!  STARTED      ->    sends all writes to the new process; accepts no connections; follows
//! ```
//!
//! All shelves of an archive are taken over together, under their common lock. Only the process
//! that has the right to write (WRITER locked, see the store's lock) writes. No message transfers
//! the right to write, which ends with the process. So after any failure the old process continues
//! if it can claim the right again. Otherwise it waits for STARTED, or for the end of the new
//! process. `exchange` decides each step. The *turn* counts offers and claims.

use std::io::{self, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hark_archive::Record;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::exchange::{ExchangeEvent, OldProcess, OldProcessStep};
use super::fds;
use super::hold::WriterHold;
use super::protocol::{
    self, ControlFrame, EPHEMERAL, FAILED, FrameReader, GO, GROWN, HANDED, PEER_FRAME_BYTES_MAX,
    PROGRESS, READY, STARTED, STATE, TAKEOVER_VERSION,
};
use super::successor::{self, Successor};
use super::takeover_parties::{HandoverError, RETRY, Role, Sibling, TakeoverLock, WriteClaim};
use crate::door::OpenNetwork;
use crate::shelf::MovableShelf;

/// The lock, shelves and sockets that a server hands over in a takeover.
pub(crate) struct TakeoverSource {
    pub(crate) lock: Arc<dyn TakeoverLock>,
    /// All shelves of the server.
    pub(crate) shelves: Vec<MovableShelf>,
    /// The listening sockets. Empty once another process has taken over.
    pub(crate) listeners: Mutex<Vec<OwnedFd>>,
    pub(crate) role: watch::Sender<Role>,
}

/// The outcome of a takeover for the old process.
enum TakeoverOutcome {
    /// This process continues as before, because the takeover failed for this reason.
    Kept(String),
    /// The other process has taken over.
    Away(Vec<Arc<Successor>>),
    /// This process does not write any more, for the given reason. No other process is known to
    /// write.
    Lost(String),
}

impl TakeoverSource {
    /// Answers a process that wants to take over. Returns after the takeover has failed, or after
    /// this process has stopped following the new process.
    pub(super) fn serve(
        &self,
        doors: &[OpenNetwork],
        mut from: BufReader<UnixStream>,
        stream: &UnixStream,
        stopping: &AtomicBool,
        wish: &ControlFrame,
        patience_ms: u64,
    ) -> io::Result<()> {
        let mut to = stream;
        if let Err(mismatch) = self.can_grant(wish) {
            return protocol::write(&mut to, FAILED, "", mismatch.to_string().as_bytes());
        }
        let begin = |role: &mut Role| {
            let begin = *role == Role::Serving;
            if begin {
                *role = Role::Giving;
            }
            begin
        };
        if !self.role.send_if_modified(begin) {
            let text = "another process is taking over, or has taken over; try again later";
            return protocol::write(&mut to, FAILED, "", text.as_bytes());
        }
        tracing::info!("another process wants to take over");
        let patience = Duration::from_millis(patience_ms);
        match self.run_exchange(doors, &mut from, stream, stopping, patience) {
            TakeoverOutcome::Away(successors) => self.follow(&mut from, &successors),
            TakeoverOutcome::Kept(reason) => {
                tracing::warn!(reason, "the takeover failed; this server continues");
                self.role.send_replace(Role::Serving);
                // The new process may be gone.
                let _ = protocol::write(&mut to, FAILED, "", reason.as_bytes());
            }
            TakeoverOutcome::Lost(reason) => {
                tracing::warn!(reason, "this server does not write any more, and ends");
                self.role.send_replace(Role::Lost(reason));
            }
        }
        Ok(())
    }

    /// Fails if the new process uses another takeover version, or would serve other shelves.
    fn can_grant(&self, wish: &ControlFrame) -> Result<(), TakeoverMismatch> {
        let spoken = wish.body().split_first_chunk::<4>();
        let spoken = spoken.filter(|(version, _)| **version == TAKEOVER_VERSION.to_le_bytes());
        let Some((_, names)) = spoken else { return Err(TakeoverMismatch::Version) };
        let theirs = String::from_utf8_lossy(names);
        let mut theirs: Vec<_> = theirs.lines().collect();
        let mut ours: Vec<_> = self.shelves.iter().map(|moved| moved.shelf.name()).collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        if ours == theirs {
            return Ok(());
        }
        let (ours, theirs) = (ours.join(", "), theirs.join(", "));
        Err(TakeoverMismatch::Shelves { ours, theirs })
    }

    /// Whether another process has taken over.
    pub(super) fn is_superseded(&self) -> bool {
        self.role.borrow().is_superseded()
    }

    fn run_exchange(
        &self,
        doors: &[OpenNetwork],
        from: &mut BufReader<UnixStream>,
        stream: &UnixStream,
        stopping: &AtomicBool,
        patience: Duration,
    ) -> TakeoverOutcome {
        let mut to = stream;
        let waiting = b"waiting for maintenance of the archive to pause";
        let asked = protocol::write(&mut to, PROGRESS, "", waiting)
            .and_then(|()| stream.set_read_timeout(Some(RETRY)))
            .and_then(|()| stream.set_write_timeout(Some(patience.max(RETRY))))
            .and_then(|()| successor::to(stream));
        let to = match asked {
            Ok(to) => to,
            Err(error) => {
                return TakeoverOutcome::Kept(format!("the other process is gone: {error}"));
            }
        };
        let successor = |moved: &MovableShelf| {
            Arc::new(Successor::new(Arc::clone(&moved.shelf), Arc::clone(&to)))
        };
        let successors: Vec<_> = self.shelves.iter().map(successor).collect();
        let holds = match self.release(patience) {
            Ok(holds) => holds,
            Err(given) => return given,
        };
        let mut exchange = TakeoverExchange {
            giving: self,
            doors,
            from,
            pieces: FrameReader::default(),
            stream,
            stopping,
            patience,
            late: Some(Instant::now() + patience),
            gone: false,
            pid: "(unknown)".into(),
            reason: String::new(),
            holds,
        };
        match exchange.run() {
            OldProcessStep::Resume => exchange.resume(),
            OldProcessStep::Follow => {
                let TakeoverExchange { holds, .. } = exchange;
                self.away(holds, &successors);
                TakeoverOutcome::Away(successors)
            }
            OldProcessStep::Leave => {
                exchange.lost("it was asked to end while another process took over")
            }
            _ => exchange.lost("the right to write could not be claimed"),
        }
    }

    /// Holds all writers and stops writing. If this fails for one shelf, all shelves resume
    /// writing.
    fn release(&self, patience: Duration) -> Result<Vec<WriterHold>, TakeoverOutcome> {
        for moved in &self.shelves {
            moved.store.pause_maintenance(true);
        }
        let until = Instant::now() + patience;
        let hold = |moved: &MovableShelf| WriterHold::begin(&moved.shelf, until);
        let holds: Vec<_> = match self.shelves.iter().map(hold).collect() {
            Ok(holds) => holds,
            Err(late) => return Err(self.resume_all(0, late.to_string())),
        };
        for (released, moved) in self.shelves.iter().enumerate() {
            if let Err(error) = moved.store.release() {
                // `holds` is dropped later, so no writer continues before its shelf does.
                return Err(self.resume_all(released, error.to_string()));
            }
        }
        Ok(holds)
    }

    /// Continues with all shelves. Only the first `released` shelves were released.
    fn resume_all(&self, released: usize, reason: String) -> TakeoverOutcome {
        let (released, others) = self.shelves.split_at(released);
        for moved in others {
            moved.store.pause_maintenance(false);
        }
        match released.iter().try_for_each(|moved| moved.store.resume()) {
            Ok(()) => TakeoverOutcome::Kept(reason),
            Err(why) => TakeoverOutcome::Lost(format!("{reason}; a shelf cannot resume: {why}")),
        }
    }

    /// Directs all writes to the new process, which now has the right to write.
    fn away(&self, holds: Vec<WriterHold>, successors: &[Arc<Successor>]) {
        self.lock.release_for_good();
        self.listeners.lock().clear();
        for (hold, successor) in holds.into_iter().zip(successors) {
            let siblings = successor.shelf.siblings();
            siblings.add(Arc::clone(successor) as _);
            let commits = Arc::clone(successor);
            // The writer gets no listener, because subscribers are notified when the new process
            // reports growth.
            hold.through(Box::new(move |writes| commits.commit(writes)), Box::new(()));
            siblings.set_trouble(None);
        }
        self.role.send_replace(Role::Following);
    }

    /// Follows the new process until one of the two processes ends.
    fn follow(&self, from: &mut BufReader<UnixStream>, successors: &[Arc<Successor>]) {
        tracing::info!(
            "another process has taken over; this process serves open connections until they end"
        );
        let failed = self.receive(from, successors).err();
        let reason = failed.map_or_else(|| "it is gone".into(), |error| error.to_string());
        for successor in successors {
            successor.shelf.siblings().remove(&(Arc::clone(successor) as Arc<dyn Sibling>));
            successor.end();
        }
        self.role.send_replace(Role::Lost(reason));
    }

    fn receive(
        &self,
        from: &mut BufReader<UnixStream>,
        successors: &[Arc<Successor>],
    ) -> Result<(), SuccessorLost> {
        from.get_ref().set_read_timeout(None)?;
        from.get_ref().set_write_timeout(None)?;
        let mut frame = ControlFrame::default();
        while frame.read(from, PEER_FRAME_BYTES_MAX)? {
            let about = self.shelves.iter().zip(successors);
            let about = about.into_iter().find(|(moved, _)| moved.shelf.name() == frame.shelf());
            let Some((MovableShelf { shelf, store }, successor)) = about else {
                return Err(SuccessorLost::Shelf(frame.shelf().into()));
            };
            match frame.what {
                GROWN => {
                    let to = protocol::mark(frame.body()).ok_or(SuccessorLost::Mark)?;
                    store.follow(to, &mut |seq, record| {
                        shelf.subscribers().publish(Some(seq), record);
                        shelf.feeds().publish(record);
                    })?;
                    shelf.subscribers().published();
                    shelf.siblings().grown();
                }
                EPHEMERAL => {
                    if let Ok(record) = Record::new(frame.body()) {
                        shelf.subscribers().publish(None, &record);
                        shelf.siblings().pass_on(&record, Some(&(Arc::clone(successor) as _)));
                    }
                }
                PROGRESS => {}
                _ => successor.answered(&frame),
            }
        }
        Ok(())
    }
}

/// Why this process cannot be taken over by the requesting process.
#[derive(Debug, thiserror::Error)]
enum TakeoverMismatch {
    #[error("the versions differ too much; stop the old server, then start the new one")]
    Version,
    #[error(
        "it serves {ours}, and the new server would serve {theirs}; stop this one, then start the \
         new one"
    )]
    Shelves { ours: String, theirs: String },
}

/// Why this process can no longer follow the process that took over.
#[derive(Debug, thiserror::Error)]
enum SuccessorLost {
    #[error(transparent)]
    Connection(#[from] io::Error),
    #[error("it names {0:?}, which is not a shelf here")]
    Shelf(String),
    #[error("it sends an invalid mark")]
    Mark,
    #[error(transparent)]
    Follow(#[from] HandoverError),
}

/// The part of a takeover that begins with the frame HANDED and ends when the takeover succeeds or
/// fails.
struct TakeoverExchange<'a> {
    giving: &'a TakeoverSource,
    doors: &'a [OpenNetwork],
    from: &'a mut BufReader<UnixStream>,
    /// The bytes of the next frame that have arrived so far.
    pieces: FrameReader,
    stream: &'a UnixStream,
    /// Whether this process is to end.
    stopping: &'a AtomicBool,
    patience: Duration,
    /// The deadline of the other process's next step.
    late: Option<Instant>,
    /// Whether the connection to the other process has ended.
    gone: bool,
    /// The process id of the new process, once it has sent READY.
    pid: String,
    /// The first reason why the takeover failed; empty while nothing has failed.
    reason: String,
    holds: Vec<WriterHold>,
}

impl TakeoverExchange<'_> {
    /// Hands over, then performs the steps that [`OldProcess`] requests. Returns the final step,
    /// which the caller performs.
    fn run(&mut self) -> OldProcessStep {
        let mut giver = OldProcess::Handed;
        let mut event = match self.send_state() {
            Ok(()) => ExchangeEvent::Moment,
            Err(error) => self.failed(ExchangeEvent::Gone, format!("the handover failed: {error}")),
        };
        loop {
            let (next, what) = giver.next(event);
            giver = next;
            event = match what {
                OldProcessStep::Listen => self.listen(),
                OldProcessStep::Offer => self.offer(),
                OldProcessStep::Claim => self.claim(),
                OldProcessStep::Refuse => self.refuse(),
                OldProcessStep::Resume
                | OldProcessStep::Follow
                | OldProcessStep::Leave
                | OldProcessStep::End => return what,
            };
        }
    }

    fn send_state(&mut self) -> io::Result<()> {
        let mut to = self.stream;
        for OpenNetwork { shelf, door } in self.doors {
            for part in door.state() {
                protocol::write(&mut to, STATE, shelf.name(), &part)?;
            }
        }
        let (lock, turn) = self.giving.lock.share()?;
        protocol::write(&mut to, HANDED, "", &turn.to_le_bytes())?;
        let listeners = self.giving.listeners.lock();
        let handed: Vec<_> =
            std::iter::once(&lock).chain(listeners.iter()).map(AsFd::as_fd).collect();
        fds::send(self.stream, &handed)
    }

    /// Waits a short time for a message of the new process.
    fn listen(&mut self) -> ExchangeEvent {
        if self.stopping.load(Ordering::Acquire) {
            return ExchangeEvent::Stop;
        }
        if self.gone {
            std::thread::sleep(RETRY);
            return self.moment();
        }
        match self.pieces.read(self.from, PEER_FRAME_BYTES_MAX) {
            Ok(Some(frame)) => match frame.what {
                READY => {
                    self.pid = frame.text().into_owned();
                    ExchangeEvent::Ready
                }
                STARTED => ExchangeEvent::Started,
                FAILED => self.failed(ExchangeEvent::Failed, frame.text()),
                _ => self.failed(ExchangeEvent::Failed, "an unexpected message arrived"),
            },
            // This process may have closed the connection itself, because it has been asked to end.
            Ok(None) if self.stopping.load(Ordering::Acquire) => ExchangeEvent::Stop,
            Ok(None) => self.failed(ExchangeEvent::Gone, "the other process is gone"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.moment(),
            Err(error) => {
                self.failed(ExchangeEvent::Gone, format!("the other process is gone: {error}"))
            }
        }
    }

    /// Called when no message has arrived. Returns `Late` after the deadline, otherwise `Moment`.
    fn moment(&mut self) -> ExchangeEvent {
        if self.late.take_if(|late| Instant::now() > *late).is_none() {
            return ExchangeEvent::Moment;
        }
        self.failed(ExchangeEvent::Late, "the other process took too long (takeover_wait_ms)")
    }

    /// Stores the first reason of a failure, and returns `event`.
    fn failed(&mut self, event: ExchangeEvent, reason: impl Into<String>) -> ExchangeEvent {
        if self.reason.is_empty() {
            self.reason = reason.into();
        }
        self.gone |= event == ExchangeEvent::Gone;
        event
    }

    fn offer(&mut self) -> ExchangeEvent {
        let mut to = self.stream;
        self.late = Some(Instant::now() + self.patience);
        let offered = self.giving.lock.offer();
        match offered.and_then(|()| protocol::write(&mut to, GO, "", b"")) {
            Ok(()) => ExchangeEvent::Moment,
            Err(error) => {
                self.failed(ExchangeEvent::Gone, format!("GO could not be sent: {error}"))
            }
        }
    }

    fn claim(&mut self) -> ExchangeEvent {
        match self.giving.lock.claim() {
            Ok(WriteClaim::Mine) => ExchangeEvent::Claimed,
            Ok(WriteClaim::Held | WriteClaim::Late) => ExchangeEvent::Held,
            Err(error) => self.failed(
                ExchangeEvent::Unable,
                format!("the right to write could not be claimed: {error}"),
            ),
        }
    }

    fn refuse(&mut self) -> ExchangeEvent {
        for hold in &mut self.holds {
            let shelf = Arc::clone(hold.shelf());
            if shelf.siblings().trouble().is_none() {
                let reason = format!(
                    "process {} takes this server's archive over and has not come to write; nothing \
                     is kept until it does, or has ended",
                    self.pid
                );
                tracing::error!(shelf = shelf.name(), reason, "writes are refused");
                hold.refuse(&reason);
                shelf.siblings().set_trouble(Some(reason));
            }
        }
        self.listen()
    }

    /// Continues to write as before the takeover. The process must have the right to write.
    fn resume(self) -> TakeoverOutcome {
        let Self { giving, holds, reason, .. } = self;
        match giving.shelves.iter().try_for_each(|moved| moved.store.resume()) {
            Ok(()) => {
                for (hold, moved) in holds.into_iter().zip(&giving.shelves) {
                    hold.release();
                    moved.shelf.siblings().set_trouble(None);
                }
                TakeoverOutcome::Kept(reason)
            }
            Err(why) => {
                let reason = format!("{reason}; and this server cannot write any more: {why}");
                refuse_for_good(holds, &reason);
                TakeoverOutcome::Lost(reason)
            }
        }
    }

    /// Ends without writing.
    fn lost(self, why: &str) -> TakeoverOutcome {
        let Self { giving, holds, reason, .. } = self;
        let reason = if reason.is_empty() { why.to_owned() } else { format!("{why}: {reason}") };
        refuse_for_good(holds, &reason);
        // The end of this process also releases the right to write, but may come late.
        if let Err(error) = giving.lock.offer() {
            tracing::warn!(%error, "the right to write is released when this process ends");
        }
        TakeoverOutcome::Lost(reason)
    }
}

/// Makes the writers refuse all further writes, permanently.
fn refuse_for_good(holds: Vec<WriterHold>, reason: &str) {
    for hold in holds {
        hold.refuse_for_good(reason);
    }
}
