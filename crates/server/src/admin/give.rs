//! The old process's side of a takeover.
//!
//! ```text
//!  new                old
//!  TAKEOVER     ->    lets upkeep rest; holds the writer between two batches; stops writing
//!               <-    HANDED, the listening sockets, the lock, and when to claim the right to write
//!  opens the archive, writing nothing to it that counts
//!  READY        ->    lets the right to write go
//!               <-    GO
//!  claims it; opens the archive for writing
//!  STARTED      ->    lets the writer go on, through the new process; accepts no more; follows
//! ```
//!
//! Whichever process has the right to write (WRITER locked, see the store's lock) writes; nothing that
//! is said gives it, and the end of a process gives it back. So whatever fails, the old process goes
//! on if it can claim that right again, and else waits for STARTED, or for the end of the new one. What
//! comes next in each case is for `exchange` to say.

use std::io::{self, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hark_archive::Record;
use tokio::sync::watch;

use super::exchange::{Event, Give, Giver};
use super::fds;
use super::handover::{Claim, Handover, Peer, Role};
use super::hold::Hold;
use super::protocol::{
    self, EPHEMERAL, FAILED, Frame, GO, GROWN, HANDED, PEER_FRAME_BYTES_MAX, PROGRESS, READY,
    STARTED, TAKEOVER_VERSION,
};
use super::successor::Successor;
use crate::nostr::Relay;

/// Between two looks at what may have happened without a word.
pub(super) const RETRY: Duration = Duration::from_millis(20);

/// What a server can give away.
pub(crate) struct Giving {
    pub(crate) archive: Arc<dyn Handover>,
    /// The relay's first; empty once they are given.
    pub(crate) listeners: Mutex<Vec<OwnedFd>>,
    pub(crate) role: watch::Sender<Role>,
}

/// How a takeover ended for the process that was to be taken over.
enum Given {
    /// It goes on as it was, for this reason.
    Kept(String),
    /// The other process has taken over.
    Away(Arc<Successor>),
    /// It does not write any more, and there is nobody to follow.
    Lost(String),
}

impl Giving {
    /// Answers a process that wants to take over. Returns once that one has failed, or once this
    /// one need not follow any more.
    pub(super) fn serve(
        &self,
        relay: &Arc<Relay>,
        mut from: BufReader<UnixStream>,
        stream: &UnixStream,
        stopping: &AtomicBool,
        wish: &[u8],
    ) -> io::Result<()> {
        let mut to = stream;
        if wish != TAKEOVER_VERSION.to_le_bytes() {
            let text = "it takes over in another way; stop this server, then start the new one";
            return protocol::write(&mut to, FAILED, text.as_bytes());
        }
        let begin = |role: &mut Role| {
            let begin = *role == Role::Serving;
            if begin {
                *role = Role::Giving;
            }
            begin
        };
        if !self.role.send_if_modified(begin) {
            let text = "another process is taking over, or has done so; try again, or ask that one";
            return protocol::write(&mut to, FAILED, text.as_bytes());
        }
        tracing::info!("another process wants to take over");
        match self.give(relay, &mut from, stream, stopping) {
            Given::Away(successor) => self.follow(relay, &mut from, &successor),
            Given::Kept(reason) => {
                tracing::warn!(reason, "the takeover failed; this server goes on");
                self.role.send_replace(Role::Serving);
                // The other end may be gone.
                let _ = protocol::write(&mut to, FAILED, reason.as_bytes());
            }
            Given::Lost(reason) => {
                tracing::warn!(reason, "this server does not write any more, and ends");
                self.role.send_replace(Role::Lost(reason));
            }
        }
        Ok(())
    }

    /// Whether another process has taken over.
    pub(super) fn is_given(&self) -> bool {
        self.role.borrow().is_given()
    }

    fn give(
        &self,
        relay: &Arc<Relay>,
        from: &mut BufReader<UnixStream>,
        stream: &UnixStream,
        stopping: &AtomicBool,
    ) -> Given {
        let patience = Duration::from_millis(relay.settings().limits.takeover_wait_ms);
        let mut to = stream;
        let waiting = b"waiting for upkeep of the archive to pause";
        let asked = protocol::write(&mut to, PROGRESS, waiting)
            .and_then(|()| stream.set_read_timeout(Some(RETRY)))
            .and_then(|()| Successor::new(Arc::clone(&relay.store), stream));
        let successor = match asked {
            Ok(successor) => Arc::new(successor),
            Err(error) => return Given::Kept(format!("the other process is gone: {error}")),
        };
        self.archive.rest(true);
        let held =
            Hold::begin(relay, patience).and_then(|hold| self.archive.release().map(|_| hold));
        let hold = match held {
            Ok(hold) => hold,
            Err(reason) => {
                self.archive.rest(false);
                return Given::Kept(reason);
            }
        };
        let mut exchange = Exchange {
            giving: self,
            relay,
            from,
            frame: Frame::default(),
            stream,
            stopping,
            patience,
            late: Some(Instant::now() + patience),
            gone: false,
            pid: "(unknown)".into(),
            reason: String::new(),
            hold,
        };
        match exchange.run() {
            Give::Resume => exchange.resume(),
            Give::Follow => {
                let Exchange { hold, .. } = exchange;
                self.away(relay, hold, &successor);
                Given::Away(successor)
            }
            Give::Leave => exchange.lost("it was asked to end while another process took over"),
            _ => exchange.lost("the right to write could not be claimed"),
        }
    }

    /// The new process writes.
    fn away(&self, relay: &Arc<Relay>, hold: Hold<'_>, successor: &Arc<Successor>) {
        self.archive.given();
        self.listeners().clear();
        relay.peers.add(Arc::clone(successor) as _);
        let commits = Arc::clone(successor);
        // Subscribers hear of what comes back.
        hold.through(Box::new(move |writes| commits.commit(writes)), Box::new(()));
        relay.peers.set_trouble(None);
        self.role.send_replace(Role::Following);
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the new process until it or this one ends.
    fn follow(
        &self,
        relay: &Arc<Relay>,
        from: &mut BufReader<UnixStream>,
        successor: &Arc<Successor>,
    ) {
        tracing::info!(
            "another process has taken over; this one serves its connections to their end"
        );
        let reason = self.hear(relay, from, successor).err().unwrap_or_else(|| "it is gone".into());
        relay.peers.remove(&(Arc::clone(successor) as Arc<dyn Peer>));
        successor.end();
        self.role.send_replace(Role::Lost(reason));
    }

    fn hear(
        &self,
        relay: &Arc<Relay>,
        from: &mut BufReader<UnixStream>,
        successor: &Arc<Successor>,
    ) -> Result<(), String> {
        let peer = Arc::clone(successor) as Arc<dyn Peer>;
        from.get_ref().set_read_timeout(None).map_err(|error| error.to_string())?;
        let mut body = Vec::new();
        while let Some(what) = protocol::read(from, &mut body, PEER_FRAME_BYTES_MAX)
            .map_err(|error| error.to_string())?
        {
            match what {
                GROWN => {
                    let to = protocol::mark(&body).ok_or("it tells a mark that is none")?;
                    self.archive.follow(to, &mut |seq, record| {
                        relay.live.publish(Some(seq), record);
                    })?;
                    relay.peers.grown();
                }
                EPHEMERAL => {
                    if let Ok(record) = Record::new(&body) {
                        relay.live.publish(None, &record);
                        relay.peers.pass_on(&record, Some(&peer));
                    }
                }
                PROGRESS => {}
                answer => successor.answered(answer, &body),
            }
        }
        Ok(())
    }
}

/// A takeover between HANDED and its outcome.
struct Exchange<'a> {
    giving: &'a Giving,
    relay: &'a Arc<Relay>,
    from: &'a mut BufReader<UnixStream>,
    /// What has come of the next frame.
    frame: Frame,
    stream: &'a UnixStream,
    /// Whether this process is to end.
    stopping: &'a AtomicBool,
    patience: Duration,
    /// When the other process will have taken too long.
    late: Option<Instant>,
    /// Nothing more is heard from it.
    gone: bool,
    /// Its number, once it has said it.
    pid: String,
    /// Why it came to nothing, so far.
    reason: String,
    hold: Hold<'a>,
}

impl Exchange<'_> {
    /// Hands over, then does what is to be done until it is one of the last things.
    fn run(&mut self) -> Give {
        let mut giver = Giver::Handed;
        let mut event = match self.hand_over() {
            Ok(()) => Event::Moment,
            Err(error) => {
                self.failed(Event::Gone, format!("nothing could be handed over: {error}"))
            }
        };
        loop {
            let (next, what) = giver.next(event);
            giver = next;
            event = match what {
                Give::Listen => self.listen(),
                Give::Offer => self.offer(),
                Give::Claim => self.claim(),
                Give::Refuse => self.refuse(),
                Give::Resume | Give::Follow | Give::Leave | Give::End => return what,
            };
        }
    }

    fn hand_over(&mut self) -> io::Result<()> {
        let mut to = self.stream;
        let (lock, turn) = self.giving.archive.share()?;
        protocol::write(&mut to, HANDED, &turn.to_le_bytes())?;
        let listeners = self.giving.listeners();
        let handed: Vec<_> =
            std::iter::once(&lock).chain(listeners.iter()).map(AsFd::as_fd).collect();
        fds::send(self.stream, &handed)
    }

    /// Waits a moment for what the other process says.
    fn listen(&mut self) -> Event {
        if self.stopping.load(Ordering::Acquire) {
            return Event::Stop;
        }
        if self.gone {
            std::thread::sleep(RETRY);
            return self.moment();
        }
        match self.frame.read(self.from, PEER_FRAME_BYTES_MAX) {
            Ok(Some((READY, pid))) => {
                self.pid = String::from_utf8_lossy(&pid).into_owned();
                Event::Ready
            }
            Ok(Some((STARTED, _))) => Event::Started,
            Ok(Some((FAILED, body))) => self.failed(Event::Failed, String::from_utf8_lossy(&body)),
            Ok(Some(_)) => self.failed(Event::Failed, "the other process says something else"),
            // Also where this process has closed it, being about to end.
            Ok(None) if self.stopping.load(Ordering::Acquire) => Event::Stop,
            Ok(None) => self.failed(Event::Gone, "the other process is gone"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.moment(),
            Err(error) => self.failed(Event::Gone, format!("the other process is gone: {error}")),
        }
    }

    /// Nothing was heard for a moment.
    fn moment(&mut self) -> Event {
        if self.late.take_if(|late| Instant::now() > *late).is_none() {
            return Event::Moment;
        }
        self.failed(Event::Late, "the other process took too long (takeover_wait_ms)")
    }

    /// Keeps the first reason.
    fn failed(&mut self, event: Event, reason: impl Into<String>) -> Event {
        if self.reason.is_empty() {
            self.reason = reason.into();
        }
        self.gone |= event == Event::Gone;
        event
    }

    fn offer(&mut self) -> Event {
        let mut to = self.stream;
        self.late = Some(Instant::now() + self.patience);
        let offered = self.giving.archive.offer();
        match offered.and_then(|()| protocol::write(&mut to, GO, b"")) {
            Ok(()) => Event::Moment,
            Err(error) => self.failed(Event::Gone, format!("GO could not be said: {error}")),
        }
    }

    fn claim(&mut self) -> Event {
        match self.giving.archive.claim() {
            Ok(Claim::Mine) => Event::Claimed,
            Ok(Claim::Held | Claim::Late) => Event::Held,
            Err(error) => {
                self.failed(Event::Unable, format!("the right to write is not to be had: {error}"))
            }
        }
    }

    fn refuse(&mut self) -> Event {
        if self.relay.peers.trouble().is_none() {
            let reason = format!(
                "process {} takes this server's archive over and has not come to write; nothing is \
                 kept until it does, or has ended",
                self.pid
            );
            tracing::error!(reason, "writes are refused");
            self.hold.refuse(&reason);
            self.relay.peers.set_trouble(Some(reason));
        }
        self.listen()
    }

    /// Goes on as if nothing had been, with the right to write.
    fn resume(self) -> Given {
        let Self { giving, relay, hold, reason, .. } = self;
        match giving.archive.resume() {
            Ok(()) => {
                hold.let_go();
                relay.peers.set_trouble(None);
                Given::Kept(reason)
            }
            Err(why) => {
                let reason = format!("{reason}; and this server cannot write any more: {why}");
                hold.give_up(&reason);
                Given::Lost(reason)
            }
        }
    }

    /// Ends without writing.
    fn lost(self, why: &str) -> Given {
        let Self { giving, hold, reason, .. } = self;
        let reason = if reason.is_empty() { why.to_owned() } else { format!("{why}: {reason}") };
        hold.give_up(&reason);
        // The end of this process does so, too, but may take its time.
        if let Err(error) = giving.archive.offer() {
            tracing::warn!(%error, "the right to write goes with the end of this process");
        }
        Given::Lost(reason)
    }
}
