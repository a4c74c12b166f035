//! What takes part in a takeover: the archive that is given from process to process, the part a
//! process plays, and the processes next to it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock};

use hark_archive::Record;
use hark_archive::live::Live;
use hark_archive::store::Mark;
use hark_archive::writer::Listener;

use crate::line;

/// An archive that another process can take over while this one goes on serving it.
pub trait Handover: Send + Sync {
    /// Lets upkeep rest, or go on; returns once it rests.
    fn rest(&self, rest: bool);

    /// Another hold on the lock of the one process that writes.
    fn lock(&self) -> io::Result<OwnedFd>;

    /// Stops writing. What is durable by then is where the other process begins.
    fn release(&self) -> Result<Mark, String>;

    /// Goes on writing after [`Handover::release`], as the other process never did.
    fn resume(&self) -> Result<(), String>;

    /// The other process writes: this one lets go of the lock for good.
    fn given(&self);

    /// The other process does not write any more: this one begins to, upkeep apart.
    fn take(&self) -> Result<(), String>;

    /// And that one will not again.
    fn taken(&self) -> io::Result<()>;

    /// Another process follows this one from there on, or none does any more.
    fn followed(&self, from: Option<Mark>);

    /// How far the archive is durable, and readers here see it.
    fn end(&self) -> Mark;

    /// Takes in what the other process has written up to there; `each` hears of every record and its
    /// number in this process.
    fn follow(&self, to: Mark, each: &mut dyn FnMut(u64, &Record<'_>)) -> Result<(), String>;
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
pub(crate) struct Peers(RwLock<Vec<Arc<dyn Peer>>>);

impl Peers {
    pub(super) fn add(&self, peer: Arc<dyn Peer>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(peer);
    }

    pub(super) fn remove(&self, peer: &Arc<dyn Peer>) {
        let mut peers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|known| !Arc::ptr_eq(known, peer));
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
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
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
