//! The state of a mirror, and the work of its thread.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::options::{MirrorOptions, MirrorReporter, StoreOpener};
use super::queue::{MirrorQueue, QueuedWrite, size};
use crate::copy::{ComparisonWalk, Difference, WalkTarget};
use crate::store::{CommitResult, MirrorLag, Outcome, SearchError, SpaceBounds, Store, Write};

/// The state that a mirrored store and its thread share.
pub(super) struct MirrorState {
    pub(super) first: Arc<dyn Store>,
    options: MirrorOptions,
    /// Locked from the start of a commit until the commit's writes are queued, so that a walk
    /// begins between two commits.
    pub(super) order: Mutex<()>,
    queue: Mutex<MirrorQueue>,
    second: Mutex<SecondStore>,
    /// Wakes the thread when the queue has grown, or when the thread must end.
    grown: Condvar,
    closing: AtomicBool,
    progress: LastProgress,
    copied: AtomicU64,
    extra: AtomicU64,
    refused: AtomicU64,
}

/// The last time at which the second store committed writes or a walk advanced. An update needs no
/// lock.
struct LastProgress {
    started: Instant,
    at_ms: AtomicU64,
}

impl LastProgress {
    fn new() -> Self {
        Self { started: Instant::now(), at_ms: AtomicU64::new(0) }
    }

    fn note(&self) {
        self.at_ms.store(milliseconds(self.started.elapsed()), Ordering::Relaxed);
    }

    fn idle_ms(&self) -> u64 {
        milliseconds(self.started.elapsed()).saturating_sub(self.at_ms.load(Ordering::Relaxed))
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The second store while it is open, and the space bounds that were set after the start. The
/// function that opens the store knows only the bounds that were set at the start.
#[derive(Default)]
struct SecondStore {
    store: Option<Weak<dyn Store>>,
    bounds: Option<SpaceBounds>,
}

impl SecondStore {
    /// Notes that the second store was opened.
    fn opened(&mut self, store: &Arc<dyn Store>) {
        if let Some(bounds) = &self.bounds {
            store.set_space(bounds);
        }
        self.store = Some(Arc::downgrade(store));
    }

    fn set_space(&mut self, bounds: &SpaceBounds) {
        self.bounds = Some(*bounds);
        if let Some(store) = self.store.as_ref().and_then(Weak::upgrade) {
            store.set_space(bounds);
        }
    }
}

impl MirrorState {
    /// Returns the state before the second store is opened for the first time.
    pub(super) fn new(first: Arc<dyn Store>, options: MirrorOptions) -> Self {
        Self {
            first,
            options,
            order: Mutex::new(()),
            queue: Mutex::new(MirrorQueue::new()),
            second: Mutex::default(),
            grown: Condvar::new(),
            closing: AtomicBool::new(false),
            progress: LastProgress::new(),
            copied: AtomicU64::new(0),
            extra: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns how far the second store is behind the first.
    pub(super) fn lag(&self) -> MirrorLag {
        let queue = self.queue.lock();
        let since = queue.behind_since.or_else(|| Some(queue.writes.front()?.since));
        let behind = since.map_or(Duration::ZERO, |since| since.elapsed());
        let waits = since.is_some() || queue.is_writing;
        MirrorLag {
            queued: queue.writes.len() as u64,
            queued_bytes: queue.bytes as u64,
            behind_ms: milliseconds(behind),
            in_step: queue.behind_since.is_none(),
            copied: self.copied.load(Ordering::Relaxed),
            extra: self.extra.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            trouble: queue.trouble.clone(),
            idle_ms: if waits { self.progress.idle_ms() } else { 0 },
        }
    }

    /// Passes the space bounds on to the second store, as soon as it is open.
    pub(super) fn set_space(&self, bounds: &SpaceBounds) {
        self.second.lock().set_space(bounds);
    }

    /// Lets the thread end once the queue is empty, or after [`MirrorOptions::drain`].
    pub(super) fn close(&self) {
        self.queue.lock().ends_at = Some(Instant::now() + self.options.drain);
        self.closing.store(true, Ordering::Relaxed);
        self.grown.notify_all();
    }

    /// Adds writes to the queue, and discards the whole queue if it becomes too large.
    pub(super) fn fill(&self, fill: impl FnOnce(&mut MirrorQueue)) {
        let mut queue = self.queue.lock();
        if queue.writes.is_empty() && !queue.is_writing && queue.behind_since.is_none() {
            // The queue was empty until now.
            self.progress.note();
        }
        fill(&mut queue);
        if queue.bytes > self.options.queue_bytes_max {
            queue.discard();
        }
        drop(queue);
        self.grown.notify_all();
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Keeps the second store in step until [`MirrorState::close`]. A store that fails is opened
    /// again after a waiting time.
    pub(super) fn run(&self, open: &StoreOpener, report: &MirrorReporter) {
        let mut wait = self.options.retry;
        while !self.is_closing() {
            let failed = open().and_then(|second| {
                wait = self.options.retry;
                self.second.lock().opened(&second);
                self.follow(&*second, report)
            });
            let Err(reason) = failed else { return };
            let mut queue = self.queue.lock();
            queue.is_writing = false;
            queue.discard();
            if queue.trouble.as_ref() != Some(&reason) {
                report(&format!("the mirror takes nothing and is tried again: {reason}"));
            }
            queue.trouble = Some(reason);
            // Only a shutdown ends the wait early. New writes also wake the thread, but the loop
            // continues the wait.
            let until = Instant::now() + wait;
            while !self.is_closing() && Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                self.grown.wait_for(&mut queue, left);
            }
            wait = (wait * 2).min(self.options.retry * 32);
        }
    }

    /// Keeps the second store in step until the end, or until that store fails.
    fn follow(&self, second: &dyn Store, report: &MirrorReporter) -> Result<(), String> {
        loop {
            let gap = self.queue.lock().gap;
            if gap {
                if self.is_closing() {
                    return Ok(());
                }
                self.catch_up(second, report)?;
                continue;
            }
            let Some(batch) = self.next() else { return Ok(()) };
            let writes: Vec<Write> = batch.iter().map(|queued| queued.write.clone()).collect();
            if !writes.is_empty() {
                let done = second.commit(&writes).map_err(|error| error.to_string())?;
                self.progress.note();
                self.queue.lock().is_writing = false;
                self.copied.fetch_add(writes.len() as u64, Ordering::Relaxed);
                let fewer = no_more_its_own(&batch, &done);
                let less = |extra: u64| Some(extra.saturating_sub(fewer));
                // The update does not fail: `less` always returns a number.
                let _ = self.extra.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
        }
    }

    /// Waits for the next writes and removes them from the queue. Returns an empty list if the
    /// queue was discarded, and `None` at a shutdown.
    fn next(&self) -> Option<Vec<QueuedWrite>> {
        let mut queue = self.queue.lock();
        while queue.writes.is_empty() && !queue.gap {
            if self.is_closing() {
                return None;
            }
            self.grown.wait(&mut queue);
        }
        if queue.ends_at.is_some_and(|at| at < Instant::now()) {
            return None;
        }
        let count = queue.writes.len().min(self.options.batch_writes_max);
        let batch: Vec<QueuedWrite> = queue.writes.drain(..count).collect();
        queue.bytes -= batch.iter().map(|queued| size(&queued.write)).sum::<usize>();
        queue.is_writing = !batch.is_empty();
        Some(batch)
    }

    /// Walks through both stores and copies the records that the second store lacks. Writes that
    /// come meanwhile gather in the queue; if the queue overflows, another walk follows.
    fn catch_up(&self, second: &dyn Store, report: &MirrorReporter) -> Result<(), String> {
        let failed = |error: SearchError| error.to_string();
        let started = Instant::now();
        // The second store may have to query its database. Meanwhile the first store is not locked.
        let target = WalkTarget::new(second).map_err(failed)?;
        // The walk sees the effects of all writes in the queue, so these writes are dropped from
        // the queue.
        let order = self.order.lock();
        {
            let mut queue = self.queue.lock();
            queue.discard();
            queue.gap = false;
            queue.trouble = None;
        }
        let mut walk = ComparisonWalk::with(&*self.first, target).map_err(failed)?;
        drop(order);
        let (mut copied, mut refused, mut extra) = (0, 0, 0);
        let mut batch = Vec::new();
        let mut rested = Instant::now();
        loop {
            let noted = |_| {
                self.progress.note();
                ControlFlow::Continue(())
            };
            let difference = walk.next_difference_with(noted).map_err(failed)?;
            let ended = difference.is_none();
            match difference {
                Some(Difference::Missing(record)) => batch.push(Write::Put(record)),
                Some(Difference::Extra(_)) => extra += 1,
                None => {}
            }
            if batch.len() >= self.options.batch_writes_max || ended && !batch.is_empty() {
                let committed = second.commit(&batch).map_err(|error| error.to_string())?;
                self.progress.note();
                for outcome in committed.outcomes {
                    match outcome {
                        Outcome::Stored { .. } => copied += 1,
                        Outcome::Duplicate | Outcome::Erased(_) => {}
                        Outcome::Superseded | Outcome::Refused(_) => refused += 1,
                    }
                }
                batch.clear();
            }
            if ended {
                break;
            }
            if self.is_closing() {
                self.queue.lock().discard();
                return Ok(());
            }
            // The walk uses at most half of a core, because queries have priority.
            let worked = rested.elapsed();
            if worked > Duration::from_millis(10) {
                std::thread::sleep(worked.min(Duration::from_millis(100)));
                rested = Instant::now();
            }
        }
        self.copied.fetch_add(copied, Ordering::Relaxed);
        self.extra.store(extra, Ordering::Relaxed);
        self.refused.store(refused, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        if queue.gap {
            // More writes came during the walk than the queue holds, so another walk follows.
            return Ok(());
        }
        queue.behind_since = None;
        drop(queue);
        report(&format!(
            "the mirror is in step: compared: {} in {} s, brought over: {copied}, refused by it: \
             {refused}, only it has: {extra}",
            walk.compared(),
            started.elapsed().as_secs()
        ));
        Ok(())
    }
}

/// Returns by how much this batch reduces the number of records that only the second store has. A
/// record no longer counts if the first store has now stored the record, too, or if the batch has
/// deleted the record in the second store.
fn no_more_its_own(batch: &[QueuedWrite], done: &CommitResult) -> u64 {
    let mut deleted = vec![0_usize; batch.len()];
    for (at, _) in &done.erased {
        deleted.iter_mut().skip(*at).take(1).for_each(|count| *count += 1);
    }
    let each = batch.iter().zip(&done.outcomes).zip(deleted).map(|((queued, outcome), deleted)| {
        let doubled = usize::from(*outcome == Outcome::Duplicate);
        deleted.saturating_sub(queued.deleted) + doubled
    });
    each.sum::<usize>() as u64
}
