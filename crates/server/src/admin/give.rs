//! The old process's side of a takeover.
//!
//! ```text
//!  new                old
//!  TAKEOVER     ->    lets upkeep rest; holds the writer between two batches; stops writing
//!               <-    HANDED, the listening sockets and the lock
//!  opens the archive, writing nothing to it that counts
//!  READY        ->
//!               <-    GO: from here on it only gives up if the new process is gone
//!  STARTED      ->    lets the writer go on, through the new process; accepts no more; follows
//! ```
//!
//! Whatever fails before STARTED has come leaves the old process as it was: the new one writes only
//! after it, and until then both hold the lock, so nobody else can.

use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hark_archive::writer::{Between, Target};
use hark_archive::{CommitError, Committed, Id, Outcome, Query, Record, Store, Write};
use tokio::sync::watch;

use super::fds;
use super::handover::{Handover, Peer, Role};
use super::protocol::{
    self, EPHEMERAL, ERASE, FAILED, GO, GROWN, HANDED, OUTCOME, PEER_FRAME_BYTES_MAX, PROGRESS,
    PUT, READY, STARTED, TAKEOVER_VERSION, TEXT,
};
use crate::nostr::Relay;

/// Ids in one request to erase.
const ERASE_IDS: usize = 512;
/// Between two tries to get between two batches, while the writer's queue is full.
const RETRY: Duration = Duration::from_millis(5);

/// What a server can give away.
pub(crate) struct Giving {
    pub(crate) archive: Arc<dyn Handover>,
    /// The relay's first; empty once they are given.
    pub(crate) listeners: Mutex<Vec<OwnedFd>>,
    pub(crate) role: watch::Sender<Role>,
}

/// Why it was not given away. It goes on as it was.
#[derive(Debug, thiserror::Error)]
enum GiveError {
    /// The connection broke.
    #[error("the other process is gone: {0}")]
    Gone(#[from] io::Error),
    /// Either side cannot, or does not want to.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for GiveError {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl From<&str> for GiveError {
    fn from(reason: &str) -> Self {
        Self::Failed(reason.into())
    }
}

/// What lets the writer go on: with what it had, or with this in its place.
type Verdict = Box<dyn FnOnce(&mut Target) + Send>;

impl Giving {
    /// Answers a process that wants to take over. Returns once that one has failed, or once this
    /// one need not follow any more.
    pub(super) fn serve(
        &self,
        relay: &Arc<Relay>,
        mut from: BufReader<UnixStream>,
        stream: &UnixStream,
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
        match self.give(relay, &mut from, stream) {
            Ok(successor) => {
                self.follow(relay, &mut from, &successor);
                Ok(())
            }
            Err(error) => {
                let reason = error.to_string();
                tracing::warn!(reason, "the takeover failed; this server goes on");
                self.role.send_replace(Role::Serving);
                // The other end may be gone.
                let _ = protocol::write(&mut to, FAILED, reason.as_bytes());
                Ok(())
            }
        }
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
    ) -> Result<Arc<Successor>, GiveError> {
        let patience = Duration::from_millis(relay.settings().limits.takeover_wait_ms);
        let mut to = stream;
        let say = protocol::write(&mut to, PROGRESS, b"waiting for upkeep of the archive to pause");
        say?;
        let store = Arc::clone(&relay.store);
        let successor = Arc::new(Successor::new(store, stream)?);
        self.archive.rest(true);
        let held = hold_writer(relay, patience)
            .and_then(|verdict| self.archive.release().map(|_| verdict));
        let verdict = held.inspect_err(|_| self.archive.rest(false))?;
        // The writer goes on with what it had when `verdict` is dropped: after this.
        if let Err(reason) = self.hand_over(from, stream, patience) {
            return match self.archive.resume() {
                Ok(()) => Err(reason),
                Err(why) => {
                    Err(format!("{reason}; and this server cannot write any more: {why}").into())
                }
            };
        }
        self.archive.given();
        self.listeners().clear();
        relay.peers.add(Arc::clone(&successor) as _);
        let commits = Arc::clone(&successor);
        // The writer's thread waits for it.
        let _ = verdict.send(Box::new(move |target| {
            target.commit = Box::new(move |writes| commits.commit(writes));
            // Subscribers hear of what comes back.
            target.listener = Box::new(());
        }));
        self.role.send_replace(Role::Following);
        Ok(successor)
    }

    /// Up to STARTED.
    fn hand_over(
        &self,
        from: &mut BufReader<UnixStream>,
        stream: &UnixStream,
        patience: Duration,
    ) -> Result<(), GiveError> {
        let mut to = stream;
        protocol::write(&mut to, HANDED, b"")?;
        let lock = self.archive.lock()?;
        let listeners = self.listeners();
        let handed: Vec<_> =
            std::iter::once(&lock).chain(listeners.iter()).map(AsFd::as_fd).collect();
        fds::send(stream, &handed)?;
        drop(handed);
        drop(listeners);
        stream.set_read_timeout(Some(patience))?;
        expect(from, READY)?;
        protocol::write(&mut to, GO, b"")?;
        // No more giving up: the other may have begun. It says so at once, or is gone.
        stream.set_read_timeout(None)?;
        expect(from, STARTED)
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

/// Waits for the new process to say `wanted`.
fn expect(from: &mut BufReader<UnixStream>, wanted: u8) -> Result<(), GiveError> {
    let mut body = Vec::new();
    match protocol::read(from, &mut body, PEER_FRAME_BYTES_MAX) {
        Ok(Some(what)) if what == wanted => Ok(()),
        Ok(Some(FAILED)) => Err(String::from_utf8_lossy(&body).into_owned().into()),
        Ok(Some(_)) => Err("the other process says something else".into()),
        Ok(None) => Err("the other process is gone".into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err("the other process took too long (takeover_wait_ms)".into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Holds the writer between two batches, until the verdict is sent or dropped.
fn hold_writer(relay: &Relay, patience: Duration) -> Result<Sender<Verdict>, String> {
    let (verdict, decided) = channel::<Verdict>();
    let (held, holds) = sync_channel(1);
    let mut job: Between = Box::new(move |target: &mut Target| {
        if held.send(()).is_ok()
            && let Ok(verdict) = decided.recv()
        {
            verdict(target);
        }
    });
    let until = Instant::now() + patience;
    let late = || "the archive has too much to write at the moment".to_owned();
    while let Err(refused) = relay.writer.between(job) {
        if Instant::now() > until {
            return Err(late());
        }
        job = refused;
        std::thread::sleep(RETRY);
    }
    holds.recv_timeout(until.saturating_duration_since(Instant::now())).map_err(|_| late())?;
    Ok(verdict)
}

/// The process that took over, for the writer of this one.
struct Successor {
    /// What it writes, as this process sees it.
    store: Arc<dyn Store>,
    to: Mutex<BufWriter<UnixStream>>,
    /// None once it is gone.
    answers: Mutex<Option<Sender<Answer>>>,
    answered: Mutex<Receiver<Answer>>,
}

type Answer = Result<Outcome, String>;

impl Successor {
    fn new(store: Arc<dyn Store>, stream: &UnixStream) -> io::Result<Self> {
        let (answers, answered) = channel();
        let to = Mutex::new(BufWriter::with_capacity(64 << 10, stream.try_clone()?));
        let (answers, answered) = (Mutex::new(Some(answers)), Mutex::new(answered));
        Ok(Self { store, to, answers, answered })
    }

    /// Has it make a batch durable. It tells its growth before it answers, so what is answered is
    /// seen by readers here.
    fn commit(&self, writes: &[Write]) -> Result<Committed, CommitError> {
        let stopped = |reason: String| CommitError::Stopped(reason);
        let lost = |_| stopped("the process that took over is gone".into());
        let mut asked = Vec::with_capacity(writes.len());
        {
            let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
            for write in writes {
                match write {
                    Write::Put(record) => {
                        protocol::write(&mut *to, PUT, record).map_err(lost)?;
                        asked.push(1);
                    }
                    Write::Erase(query) => {
                        let ids = self.matching(query).map_err(stopped)?;
                        for ids in ids.chunks(ERASE_IDS) {
                            let filter = super::control::ids_filter(ids);
                            protocol::write(&mut *to, ERASE, filter.as_bytes()).map_err(lost)?;
                        }
                        asked.push(ids.chunks(ERASE_IDS).len());
                    }
                }
            }
            to.flush().map_err(lost)?;
        }
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut done, mut refused) = (Committed::default(), None);
        for (write, parts) in writes.iter().zip(asked) {
            let mut erased = 0;
            for _ in 0..parts {
                let answer = answered
                    .recv()
                    .map_err(|_| stopped("the process that took over is gone".into()))?;
                match (write, answer) {
                    (Write::Erase(_), Ok(Outcome::Erased(count))) => erased += count,
                    (_, Ok(outcome)) => done.outcomes.push(outcome),
                    (_, Err(reason)) => refused = Some(reason),
                }
            }
            if matches!(write, Write::Erase(_)) {
                done.outcomes.push(Outcome::Erased(erased));
            }
        }
        refused.map_or(Ok(done), |reason| Err(stopped(reason)))
    }

    /// The ids of what matches: the other process is asked for those.
    fn matching(&self, query: &Query) -> Result<Vec<Id>, String> {
        let failed = |error: hark_archive::SearchError| error.to_string();
        let mut ids = Vec::new();
        let mut search = self.store.search(query).map_err(failed)?;
        let take = &mut |record: &Record<'_>| {
            ids.push(*record.id());
            std::ops::ControlFlow::Continue(())
        };
        search.slice(u64::MAX, take).map_err(failed)?;
        Ok(ids)
    }

    /// An answer has come.
    fn answered(&self, what: u8, body: &[u8]) {
        let text = || String::from_utf8_lossy(body).into_owned();
        let answer = match what {
            OUTCOME => protocol::outcome(body).ok_or_else(|| "an outcome that is none".into()),
            TEXT => text().parse().map(Outcome::Erased).map_err(|_| "a count that is none".into()),
            _ => Err(text()),
        };
        if let Some(answers) = &*self.answers.lock().unwrap_or_else(PoisonError::into_inner) {
            // The receiver lives as long as this does.
            let _ = answers.send(answer);
        }
    }

    /// It is gone: who waits for an answer is told.
    fn end(&self) {
        drop(self.answers.lock().unwrap_or_else(PoisonError::into_inner).take());
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        // Fails where it is closed.
        let _ = to.get_ref().shutdown(std::net::Shutdown::Both);
    }
}

impl Peer for Successor {
    fn pass_on(&self, record: &Record<'_>) {
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        // That it is gone is seen where it is heard.
        let _ = protocol::write(&mut *to, EPHEMERAL, record.bytes()).and_then(|()| to.flush());
    }

    fn grown(&self) {}
}
