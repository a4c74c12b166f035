//! The thread that carries out a retention policy.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::hold::RetentionState;
use super::policy::RetentionPolicy;
use super::sweep::{RetentionError, SweepResult};
use super::trust::ClockTrust;
use crate::clock::Clock;
use crate::store::Store;
use crate::vital;
use crate::writer::Writer;

/// Interval between two reports of the same open question (a state about which a person must decide
/// or act, for example a clock that is not trusted).
const DOUBTS_EVERY: Duration = Duration::from_hours(1);

/// The time at which each open question was last reported.
#[derive(Default)]
struct RetentionReminders([Option<Instant>; 3]);

impl RetentionReminders {
    /// Returns the questions that are open after a step and were not reported within the last hour.
    fn due(&mut self, swept: SweepResult) -> Vec<RetentionError> {
        let open = [
            (swept.space_unmet, RetentionError::Space),
            (swept.clock_doubted, RetentionError::Clock),
            (swept.history_held, RetentionError::History),
        ];
        let mut due = Vec::new();
        for (last, (is_open, question)) in self.0.iter_mut().zip(open) {
            *last = last.filter(|_| is_open);
            if is_open && last.is_none_or(|at| at.elapsed() >= DOUBTS_EVERY) {
                *last = Some(Instant::now());
                due.push(question);
            }
        }
        due
    }
}

/// The thread that applies a policy. Dropping the handle ends the thread.
pub struct RetentionThread {
    /// A message wakes the thread to read `changed`; dropping the sender ends the thread.
    wake: Option<SyncSender<()>>,
    /// A new policy that the thread has not read yet.
    changed: Arc<Mutex<Option<RetentionPolicy>>>,
    thread: Option<JoinHandle<()>>,
}

impl RetentionThread {
    /// Starts the thread. `report` is called after every round that deleted records, and after
    /// every failure; a failure does not end the thread. An untrusted clock, held history and a
    /// bound of free bytes that cannot be met are reported once an hour; `state` shows the first
    /// two at any time.
    pub fn start(
        mut policy: RetentionPolicy,
        store: Arc<dyn Store>,
        writer: Arc<Writer>,
        (clock, state): (Clock, Arc<RetentionState>),
        mut report: impl FnMut(Result<SweepResult, RetentionError>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (wake, woken) = sync_channel::<()>(1);
        let changed = Arc::new(Mutex::new(None));
        let due = Arc::clone(&changed);
        let thread = vital::spawn("hark-keeper", move || {
            let (mut pause, mut round) = (policy.every, SweepResult::default());
            let (mut trust, mut deletes_follow) = (ClockTrust::default(), false);
            let mut asked = RetentionReminders::default();
            // A short pause between the batches of a long round lets other writes through.
            let rest = Duration::from_millis(5);
            loop {
                if woken.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
                if let Some(changed) = due.lock().take() {
                    policy = changed;
                }
                let step = policy.step_with(&*store, &writer, &clock, (&mut trust, &state));
                let swept = step.as_ref().copied().unwrap_or_default();
                if step.is_ok() {
                    state.set(swept.clock_doubted, swept.history_held);
                }
                if policy.has_more(swept) != deletes_follow {
                    deletes_follow = !deletes_follow;
                    store.deletes_follow(deletes_follow);
                }
                round.add(swept);
                pause = if swept.total() > 0 { rest } else { policy.every };
                if swept.total() == 0 && round.total() > 0 {
                    report(Ok(std::mem::take(&mut round)));
                }
                if let Err(error) = step {
                    report(Err(error));
                }
                asked.due(swept).into_iter().for_each(|question| report(Err(question)));
            }
            if deletes_follow {
                store.deletes_follow(false);
            }
            if round.total() > 0 {
                report(Ok(round));
            }
        })?;
        Ok(Self { wake: Some(wake), changed, thread: Some(thread) })
    }

    /// Replaces the policy. The thread applies the new policy after the current batch.
    pub fn change(&self, policy: RetentionPolicy) {
        *self.changed.lock() = Some(policy);
        if let Some(wake) = &self.wake {
            // The send fails if an earlier wake-up is still pending.
            let _ = wake.try_send(());
        }
    }

    /// Stops the thread after the current batch and waits for its end.
    pub fn stop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // The thread does not panic: see `vital`.
            let _ = thread.join();
        }
    }
}

impl Drop for RetentionThread {
    fn drop(&mut self) {
        self.stop();
    }
}
