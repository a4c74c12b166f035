//! Maintenance: sealing full heads, merging segments, rewriting logs that are mostly dead. One job
//! runs at a time, while readers and the writer continue; the job's result is installed in one
//! step. The files of a failed job are removed, and later jobs use the same file numbers.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::{CommitError, vital};
use parking_lot::MutexGuard;

use crate::lengths::{FileLooks, LOOK_EVERY};
use crate::log::{Log, LogError};
use crate::open::ShelfOpenError;
use crate::room;
use crate::shelf::{EmbeddedShelf, FROZEN_MAX};
use crate::store::EmbeddedStore;

mod addresses;
mod compact;
mod dead;
mod due;
mod erase;
mod install;
mod mend;
mod pressure;
mod report;
mod rewrite;
mod round;
mod segments;
#[cfg(test)]
mod tests;

pub use self::compact::CompactionResult;
pub(crate) use self::dead::DeadBytes;
use self::due::due_merge;
pub(crate) use self::due::merge_due_records;
pub(crate) use self::erase::EraseSchedule;
use self::report::WorkReport;
use self::rewrite::RewriteOrder;
use self::round::MaintenanceRound;
pub(crate) use self::round::MaintenanceState;

/// Pause of maintenance after a failure, and between two checks for disk space while too little is
/// free.
const REST: Duration = Duration::from_secs(5);
/// Dead share above which a log is rewritten even while many records are being deleted, since
/// hardly any bytes have to be copied.
const DEAD_SHARE_ENOUGH: f64 = 0.9;

/// Requests to the maintenance thread, and its last failures.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceSignal {
    pub stop: bool,
    pub work: bool,
    /// Whether maintenance pauses, because another process has the shelf or may take over the shelf
    /// soon.
    pub resting: bool,
    /// Logs from this number on are not rewritten, since another process reads these logs.
    pub followed_from: Option<u32>,
    /// Size of the archive in bytes at the start of a series of deletes; `None` outside a series.
    pub deletes_from_bytes: Option<u64>,
    /// Why the last round failed.
    pub failed: Option<JobFailure>,
    /// Why the oldest full head could not be sealed; `None` once sealing succeeds.
    pub unsealed: Option<JobFailure>,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobFailure {
    pub why: String,
    /// Whether the disk had too little space. Space may become free again.
    wants_room: bool,
}

impl JobFailure {
    fn new(error: &MaintenanceError) -> Self {
        Self { why: error.to_string(), wants_room: error.wants_room() }
    }

    /// Whether this is the same failure as `before`. Two failures for lack of disk space count as
    /// the same, although their texts name different amounts of free space.
    fn is_like(&self, before: Option<&Self>) -> bool {
        before.is_some_and(|before| before == self || (before.wants_room && self.wants_room))
    }
}

/// Why maintenance failed. The archive is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// A file could not be written, renamed or removed.
    #[error("maintenance of the archive failed: {0}")]
    Io(#[from] io::Error),
    /// A file that was written could not be opened again.
    #[error("maintenance of the archive failed: {0}")]
    Open(#[from] ShelfOpenError),
    /// Another process has the shelf.
    #[error("another process has taken the archive over; ask that one")]
    Resting,
    /// A log is damaged.
    #[error("{0}; run `hark check`")]
    Log(#[from] LogError),
    /// A segment is damaged, and so are the files from which it could be rebuilt.
    #[error(
        "{0} is damaged and is neither merged nor rewritten; with the server stopped `hark rebuild` mends it"
    )]
    Damaged(PathBuf),
}

impl MaintenanceError {
    /// Whether the disk was full.
    fn wants_room(&self) -> bool {
        match self {
            Self::Io(error) | Self::Open(ShelfOpenError::Io { cause: error, .. }) => {
                room::is_full(error)
            }
            _ => false,
        }
    }

    /// Whether the same job may succeed later with the same files.
    fn may_pass(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Open(ShelfOpenError::Io { .. }) | Self::Resting)
    }
}

/// Starts the maintenance thread.
pub(crate) fn start(shelf: &Arc<EmbeddedShelf>) -> io::Result<JoinHandle<()>> {
    let shelf = Arc::clone(shelf);
    shelf.signal.lock().work = true;
    vital::spawn("hark-maintain", move || {
        let (mut done, mut looks) = (WorkReport::default(), FileLooks::new());
        loop {
            let pause = shelf.next_look(&done);
            let mut signal = shelf.signal.lock();
            let until = pause.map(|pause| Instant::now() + pause);
            while (!signal.work || signal.resting) && !signal.stop {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) && !signal.resting {
                    break;
                }
                let left = left.filter(|left| !left.is_zero());
                wait(&shelf, &mut signal, Some(left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)));
                MutexGuard::unlocked(&mut signal, || looks.look(&shelf));
            }
            if signal.stop {
                return;
            }
            signal.work = false;
            drop(signal);
            looks.look(&shelf);
            let result = shelf.maintain_all();
            done.note(&shelf.done.lock());
            let mut signal = shelf.signal.lock();
            report(&mut signal, result.err().as_ref());
            shelf.signalled.notify_all();
            if signal.failed.is_some() && !signal.stop {
                // Calls do not end the pause: on a full disk every refused batch makes such a call.
                let until = Instant::now() + REST;
                while !signal.stop && !shelf.signalled.wait_until(&mut signal, until).timed_out() {}
                signal.work = true;
            }
        }
    })
}

/// Records the result of a round, and logs the result unless the same failure was already logged.
fn report(signal: &mut MaintenanceSignal, error: Option<&MaintenanceError>) {
    let rest_s = REST.as_secs();
    let failed = error.map(JobFailure::new);
    match &failed {
        Some(now) if now.is_like(signal.failed.as_ref()) => {
            tracing::debug!(error = now.why, rest_s, "maintenance still fails");
        }
        Some(now) => {
            let error = &now.why;
            tracing::error!(error, rest_s, "maintenance failed; it is tried again after a rest");
        }
        None if signal.failed.is_some() => tracing::info!("maintenance continues"),
        None => {}
    }
    signal.failed = failed;
}

fn wait(
    shelf: &EmbeddedShelf,
    signal: &mut MutexGuard<'_, MaintenanceSignal>,
    at_most: Option<Duration>,
) {
    match at_most {
        None => shelf.signalled.wait(signal),
        Some(time) => {
            shelf.signalled.wait_for(signal, time);
        }
    }
}

impl EmbeddedShelf {
    /// Wakes maintenance after the start of a new head, and waits while too many heads wait to be
    /// sealed. If the disk has no space for sealing, the writer fills the new head nevertheless.
    pub(crate) fn after_rotation(&self) -> Result<(), CommitError> {
        self.wait_for_sealing().or_else(|error| match error {
            CommitError::Unavailable(_) => Ok(()),
            error => Err(error),
        })
    }

    /// Waits while too many heads wait to be sealed. Returns an error if the heads cannot be
    /// sealed; the error is temporary if sealing only needs disk space.
    pub(crate) fn wait_for_sealing(&self) -> Result<(), CommitError> {
        if !self.options.background {
            // After a failure the head stays in memory and its log on disk; the next rotation tries
            // again, as long as there is memory for more heads.
            let result = self.maintain_all();
            report(&mut self.signal.lock(), result.err().as_ref());
        }
        let mut signal = self.signal.lock();
        signal.work = true;
        self.signalled.notify_all();
        while self.must_seal_first() {
            if let Some(JobFailure { why, wants_room }) = &signal.unsealed {
                let error = format!("full heads cannot be sealed into segments: {why}");
                return Err(if *wants_room {
                    CommitError::Unavailable(error)
                } else {
                    CommitError::Stopped(error)
                });
            }
            if !self.options.background {
                break;
            }
            wait(self, &mut signal, Some(Duration::from_millis(50)));
        }
        Ok(())
    }

    /// Whether the writer must wait because too many heads, or too large heads, wait to be sealed.
    pub(crate) fn must_seal_first(&self) -> bool {
        let view = self.view.load();
        let bytes = view.frozen.iter().map(|head| head.bytes()).sum();
        view.frozen.len() >= FROZEN_MAX || self.options.must_seal_first(bytes)
    }

    /// Wakes the maintenance thread to look for work.
    pub(crate) fn call_maintenance(&self) {
        self.signal.lock().work = true;
        self.signalled.notify_all();
    }

    /// Runs all maintenance jobs that are due.
    pub(crate) fn maintain_all(&self) -> Result<(), MaintenanceError> {
        let _one_at_a_time = self.maintenance.lock();
        let stop = || {
            let signal = self.signal.lock();
            signal.stop || signal.resting
        };
        let mut round = MaintenanceRound::new(self, &stop);
        let erasing = if stop() { None } else { self.begin_erasing() };
        let lacks_space = self.lacks_space();
        round.seal();
        let active = self.view.load().active.log.clone();
        let is_erased = erasing.as_ref().is_some_and(|round| round.logs.contains(&active.number));
        // Small logs are not sealed early: many small logs would take more space than rewrites
        // free.
        let gives_back = active.written() >= (self.options.log_bytes_max / 16).max(1 << 20)
            && active.dead_share() > self.options.rewrite_dead_share;
        if is_erased || (lacks_space && gives_back && !self.puts_off_rewrites()) {
            round.seal_head();
        }
        round.merge(due_merge);
        let share_max = if self.puts_off_rewrites() {
            DEAD_SHARE_ENOUGH.max(self.options.rewrite_dead_share)
        } else {
            self.options.rewrite_dead_share
        };
        round.rewrite(RewriteOrder::Oldest, &|log| log.dead_share() > share_max, &mut |_| {});
        if !self.puts_off_rewrites() {
            let spread = || DeadBytes::of(&self.view.load(), &self.options).spread;
            let spread_too_far = |_: &Log| spread() > self.bounds.load().dead_bytes_max;
            round.rewrite(RewriteOrder::Worst, &spread_too_far, &mut |_| {});
            let helps = |log: &Log| log.droppable_bytes() > 0 && self.lacks_space();
            round.rewrite(RewriteOrder::Worst, &helps, &mut |_| {});
        }
        if let Some(mut erasing) = erasing {
            round.erase(&mut erasing.logs);
            self.end_erasing(erasing, stop());
        }
        let ended = round.end();
        if !stop() {
            self.look_for_space();
        }
        ended
    }

    /// Time after which maintenance checks for work without a call; `None` if no check is needed.
    fn next_look(&self, done: &WorkReport) -> Option<Duration> {
        let space = self.space.lacking().map(|_| REST);
        let erase = self.erase_wait();
        [space, erase, done.next()].into_iter().flatten().min()
    }
}

impl EmbeddedStore {
    /// Runs all due maintenance jobs and returns after the last one; for tests and benches.
    pub fn settle(&self) -> Result<(), MaintenanceError> {
        self.shelf.maintain_all()
    }

    /// Checks the lengths of all files, and makes later reads verify checksums again, as
    /// maintenance does regularly; for tests.
    pub fn look_at_files(&self) {
        self.shelf.check_lengths();
        self.shelf.forget_verified();
    }
}
