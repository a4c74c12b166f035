//! What takes part in a takeover: the archive that is given from process to process, the part a
//! process plays, and the processes next to it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hark_archive::Record;
use hark_archive::live::Live;
use hark_archive::store::Mark;
use hark_archive::writer::Listener;

use crate::nostr::line;

/// An archive that another process can take over while this one goes on serving it.
pub trait Handover: Send + Sync {
    /// Lets upkeep rest, or go on; returns once it rests.
    fn rest(&self, rest: bool);

    /// Another hold on the lock that keeps third processes away, and the turn up to which its holder
    /// can claim the right to write.
    fn share(&self) -> io::Result<(OwnedFd, u64)>;

    /// Stops writing. What is durable by then is where the other process begins.
    fn release(&self) -> Result<Mark, String>;

    /// Lets the right to write go, which the other process can claim then.
    fn offer(&self) -> io::Result<()>;

    /// Claims the right to write: of two processes that hold the lock one has it, for as long as it
    /// lives or until it offers it.
    fn claim(&self) -> io::Result<Claim>;

    /// Goes on writing after [`Handover::release`], with the right to. Fails if the other process has
    /// written meanwhile.
    fn resume(&self) -> Result<(), String>;

    /// The other process writes: this one lets go of the lock for good.
    fn given(&self);

    /// Begins to write, with the right to, upkeep apart. Fails if the other process has written since
    /// the archive was opened here.
    fn take(&self) -> Result<(), String>;

    /// Begins with upkeep, as the other process knows who writes. Fails where LOCK can not be made to
    /// name this process, which costs no more than that name.
    fn taken(&self) -> io::Result<()>;

    /// Another process follows this one from there on, or none does any more.
    fn followed(&self, from: Option<Mark>);

    /// How far the archive is durable, and readers here see it.
    fn end(&self) -> Mark;

    /// Takes in what the other process has written up to there; `each` hears of every record and its
    /// number in this process.
    fn follow(&self, to: Mark, each: &mut dyn FnMut(u64, &Record<'_>)) -> Result<(), String>;
}

/// What became of claiming the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is this process's.
    Mine,
    /// Another process has it.
    Held,
    /// It is free, but was a third process's meanwhile, or was offered to one.
    Late,
}

/// The part that this process plays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It writes and accepts.
    Serving,
    /// Another process is about to take over; it may fail.
    Giving,
    /// Another process writes and accepts; this one serves its connections to their end.
    Following,
    /// And that other process is gone.
    Lost(String),
}

impl Role {
    /// Whether another process has taken over.
    pub(crate) fn is_given(&self) -> bool {
        matches!(self, Self::Following | Self::Lost(_))
    }
}

/// A process on the other end of a takeover: that which this one follows, or one that follows this.
pub(crate) trait Peer: Send + Sync {
    /// A record that is never stored, for its subscribers.
    fn pass_on(&self, record: &Record<'_>);

    /// More is durable.
    fn grown(&self);
}

/// All of them.
#[derive(Default)]
pub(crate) struct Peers {
    known: RwLock<Vec<Arc<dyn Peer>>>,
    trouble: Mutex<Option<String>>,
}

impl Peers {
    pub(super) fn add(&self, peer: Arc<dyn Peer>) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).push(peer);
    }

    pub(super) fn remove(&self, peer: &Arc<dyn Peer>) {
        let mut peers = self.known.write().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|known| !Arc::ptr_eq(known, peer));
    }

    /// Why no writes are taken, while another process has the right to write and does not.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Tells all but the one that it comes `from`.
    pub(crate) fn pass_on(&self, record: &Record<'_>, from: Option<&Arc<dyn Peer>>) {
        for peer in self.all() {
            if from.is_none_or(|from| !Arc::ptr_eq(from, &peer)) {
                peer.pass_on(record);
            }
        }
    }

    pub(super) fn grown(&self) {
        self.all().iter().for_each(|peer| peer.grown());
    }

    /// They are told outside of the lock, as that may take time.
    fn all(&self) -> Vec<Arc<dyn Peer>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Tells subscribers of what is durable, and processes that follow.
pub(crate) struct Tell {
    pub(crate) live: Arc<Live>,
    pub(crate) peers: Arc<Peers>,
}

impl Listener for Tell {
    fn batch(
        &mut self,
        records: &mut dyn Iterator<Item = (u64, Record<'_>)>,
        answer: &mut dyn FnMut(),
    ) {
        line::together(|| {
            for (seq, record) in records {
                self.live.publish(Some(seq), &record);
            }
            self.peers.grown();
            answer();
        });
    }
}
