//! The writer of a server that another process is about to take over: held between two batches, then
//! let go to one end or another.

use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hark_archive::CommitError;
use hark_archive::writer::{Between, Commit, Listener, Target};

use crate::shelf::Shelf;

/// Interval between two tries to queue a job while the writer's queue is full.
const RETRY: Duration = Duration::from_millis(5);

/// Changes where writes go.
type Change = Box<dyn FnOnce(&mut Target) + Send>;

/// A writer that is held, or refuses what it gets.
pub(super) struct Hold {
    shelf: Arc<Shelf>,
    /// Lets the writer's thread go on; None once it does.
    held: Option<Sender<Change>>,
    /// What made writes durable, while they are refused.
    refused: Arc<Mutex<Option<Commit>>>,
}

impl Hold {
    /// Holds the writer between two batches, by that time; what is written meanwhile waits.
    pub(super) fn begin(shelf: &Arc<Shelf>, until: Instant) -> Result<Self, String> {
        let (held, decided) = channel::<Change>();
        let (waits, waiting) = sync_channel(1);
        let mut job: Between = Box::new(move |target: &mut Target| {
            if waits.send(()).is_ok()
                && let Ok(change) = decided.recv()
            {
                change(target);
            }
        });
        let late = || "the archive has too much to write at the moment".to_owned();
        while let Err(refused) = shelf.writer().between(job) {
            if Instant::now() > until {
                return Err(late());
            }
            job = refused;
            std::thread::sleep(RETRY);
        }
        waiting
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .map_err(|_| late())?;
        Ok(Self { shelf: Arc::clone(shelf), held: Some(held), refused: Arc::default() })
    }

    /// Whose writer it is.
    pub(super) fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// Writes wait no longer: they are refused, for this reason, until the writer is let go.
    pub(super) fn refuse(&mut self, reason: &str) {
        let (refused, reason) = (Arc::clone(&self.refused), reason.to_owned());
        self.change(Box::new(move |target| {
            let refuse = move |_: &[_]| Err(CommitError::Elsewhere(reason.clone()));
            let commit = std::mem::replace(&mut target.commit, Box::new(refuse));
            refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(commit);
        }));
    }

    /// The writer goes on as before.
    pub(super) fn let_go(mut self) {
        let refused = Arc::clone(&self.refused);
        self.change(Box::new(move |target| {
            let commit = refused.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(commit) = commit {
                target.commit = commit;
            }
        }));
    }

    /// The writer goes on another way.
    pub(super) fn through(mut self, commit: Commit, listener: Box<dyn Listener>) {
        self.change(Box::new(move |target| {
            target.commit = commit;
            target.listener = listener;
        }));
    }

    /// The writer refuses what it gets for good.
    pub(super) fn give_up(mut self, reason: &str) {
        self.refuse(reason);
    }

    /// Has the writer's thread make a change, which waits for it, or comes by sooner or later: it lives
    /// as long as the shelf does.
    fn change(&mut self, change: Change) {
        let mut job: Between = match self.held.take() {
            None => change,
            Some(held) => match held.send(change) {
                Ok(()) => return,
                // Not reached: it waits for this.
                Err(refused) => refused.0,
            },
        };
        while let Err(refused) = self.shelf.writer().between(job) {
            job = refused;
            std::thread::sleep(RETRY);
        }
    }
}
