//! Runs several processes of one plugin for the events of many clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hark_archive::vital;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use crate::answer::PluginDecision;
use crate::counters::PluginCounters;
use crate::failure::PluginFailure;
use crate::log::PluginLog;
use crate::options::{FailureRule, PluginOptions, SharedPlugin};
use crate::process::PluginProcess;
use crate::queue::{ExpiredJob, JobQueue, PluginJob, PluginOutcome};
use crate::slot::ProcessSlots;
use crate::suspects::SuspectClients;

/// How long [`PluginPool::close`] waits for the end of the processes.
const CLOSE_MAX: Duration = Duration::from_secs(3);

/// The processes of a plugin. The options can change while the pool runs.
#[derive(Debug)]
pub struct PluginPool {
    to: mpsc::UnboundedSender<PluginJob>,
    options: SharedPlugin,
    counters: Arc<PluginCounters>,
    closing: Arc<PoolClosing>,
}

/// The state of closing a pool.
#[derive(Debug, Default)]
struct PoolClosing {
    begin: Notify,
    is_closed: Mutex<bool>,
    closed: Condvar,
}

impl PluginPool {
    /// Creates the pool, and the task that runs the pool. The events in the pool may have up to
    /// `bytes_max` bytes in total.
    pub fn new(options: SharedPlugin, bytes_max: usize) -> (Self, impl Future<Output = ()> + Send) {
        let (to, jobs) = mpsc::unbounded_channel();
        let (counters, closing) = (Arc::<PluginCounters>::default(), Arc::default());
        let dispatcher = JobDispatcher {
            jobs,
            queue: JobQueue::new(bytes_max),
            slots: ProcessSlots::new(0),
            suspects: SuspectClients::default(),
            generation: 0,
            log: Arc::new(PluginLog::new("")),
            in_force: Arc::default(),
            changes: options.subscribe(),
            asking: JoinSet::new(),
            ending: JoinSet::new(),
            counters: Arc::clone(&counters),
            guard: ClosedGuard(Arc::clone(&closing)),
        };
        (Self { to, options, counters, closing }, dispatcher.run())
    }

    /// The options in force.
    pub fn options(&self) -> Arc<PluginOptions> {
        self.options.current()
    }

    /// The counters of the pool.
    pub fn counters(&self) -> &PluginCounters {
        &self.counters
    }

    /// Queues an event for the plugin, without waiting. If the pool is closed, the event is
    /// dropped.
    pub fn push(&self, job: PluginJob) {
        self.counters.waiting.add(1);
        // Fails only when the pool is closed, and then the server is ending.
        let _ = self.to.send(job);
    }

    /// Ends all processes, and waits for their end. Must not be called on the runtime.
    pub fn close(&self) {
        self.closing.begin.notify_one();
        let mut is_closed = self.closing.is_closed.lock();
        if !*is_closed {
            self.closing.closed.wait_for(&mut is_closed, CLOSE_MAX);
        }
    }
}

/// When dropped, reports that the pool's task has ended.
#[derive(Debug)]
struct ClosedGuard(Arc<PoolClosing>);

impl Drop for ClosedGuard {
    fn drop(&mut self) {
        *self.0.is_closed.lock() = true;
        self.0.closed.notify_all();
    }
}

/// The task that gives events to processes.
struct JobDispatcher {
    jobs: mpsc::UnboundedReceiver<PluginJob>,
    queue: JobQueue,
    slots: ProcessSlots,
    suspects: SuspectClients,
    /// Counts the changes of the command. A process of an earlier command ends after its answer.
    generation: u64,
    log: Arc<PluginLog>,
    in_force: Arc<PluginOptions>,
    changes: watch::Receiver<Arc<PluginOptions>>,
    asking: JoinSet<AskedProcess>,
    ending: JoinSet<()>,
    counters: Arc<PluginCounters>,
    guard: ClosedGuard,
}

/// A process that has answered or failed.
struct AskedProcess {
    slot: usize,
    generation: u64,
    job: PluginJob,
    answered: Result<(PluginProcess, PluginDecision), PluginFailure>,
}

impl JobDispatcher {
    async fn run(mut self) {
        self.follow_options();
        let closing = Arc::clone(&self.guard.0);
        loop {
            let next = self.dispatch(Instant::now());
            tokio::select! {
                () = closing.begin.notified() => break,
                job = self.jobs.recv() => match job {
                    Some(job) => self.enqueue(job),
                    None => break,
                },
                Some(asked) = self.asking.join_next() => match asked {
                    Ok(asked) => self.finish(asked),
                    Err(error) if error.is_panic() => vital::end("the plugin's task"),
                    Err(_) => {}
                },
                Some(_) = self.ending.join_next() => {}
                Ok(()) = self.changes.changed() => self.follow_options(),
                () = async { sleep_until(next.unwrap_or_else(Instant::now).into()).await },
                    if next.is_some() => {}
            }
        }
        self.asking.abort_all();
        self.end_idle();
        while self.ending.join_next().await.is_some() {}
    }

    /// Queues an event. An event for which there is no room gets its outcome at once.
    fn enqueue(&mut self, job: PluginJob) {
        let now = Instant::now();
        let suspension = self.suspects.suspension(&job.client, now);
        if let Some(suspension) = suspension.filter(|_| self.in_force.is_on()) {
            self.answer(job, Err(suspension));
        } else if let Err(job) = self.queue.push(job, now) {
            self.answer(job, Err(PluginFailure::Crowded));
        }
    }

    /// Gives events to processes. Returns the time of the next call, unless an event or an answer
    /// arrives earlier.
    fn dispatch(&mut self, now: Instant) -> Option<Instant> {
        if !self.in_force.is_on() {
            for job in self.queue.drain() {
                self.answer(job, Ok(PluginDecision::Accept));
            }
            return None;
        }
        let limit = self.in_force.timeout;
        if let Some(before) = now.checked_sub(limit) {
            for ExpiredJob { job, follows_own } in self.queue.expire(before) {
                // If the plugin fails for this client only, the client's own events have delayed
                // this event.
                let is_own_fault = follows_own && !self.slots.fails_for_others(&job.client);
                let failure =
                    if is_own_fault { PluginFailure::Crowded } else { PluginFailure::Busy };
                self.answer(job, Err(failure));
            }
        }
        while let Some(oldest) = self.queue.oldest()
            && let Some(slot) = self.slots.free(now, oldest)
            && let Some(job) = self.queue.pop(self.slots.of_client_max())
        {
            self.ask(slot, job, now);
        }
        if self.slots.is_broken() {
            for job in self.queue.drain() {
                self.answer(job, Err(PluginFailure::Down));
            }
        }
        let oldest = self.queue.oldest()?;
        let change = self.slots.next_change(now, oldest);
        Some(change.map_or(oldest + limit, |change| change.min(oldest + limit)))
    }

    /// Hands an event to a process.
    fn ask(&mut self, slot: usize, job: PluginJob, now: Instant) {
        let process = self.slots.begin(slot, now);
        let (options, log) = (Arc::clone(&self.in_force), Arc::clone(&self.log));
        let (counters, generation) = (Arc::clone(&self.counters), self.generation);
        self.asking.spawn(async move {
            let asking = async {
                let mut process = current(process, &options, &log, &counters).await?;
                let begun = Instant::now();
                let decided = process.ask(&job.id, &job.question).await?;
                counters.answers.note(begun.elapsed());
                Ok((process, decided))
            };
            let limit = options.timeout;
            let answered = timeout(limit, asking).await;
            let answered = answered.unwrap_or(Err(PluginFailure::Timeout(limit)));
            AskedProcess { slot, generation, job, answered }
        });
    }

    /// Frees the slot of a process, and then gives the outcome of its event: the client's next
    /// event finds what follows from this outcome.
    fn finish(&mut self, asked: AskedProcess) {
        let AskedProcess { slot, generation, job, answered } = asked;
        let (process, outcome) = match answered {
            Ok((process, decided)) => (Ok(process), Ok(decided)),
            Err(failure) => (Err(failure.clone()), Err(failure)),
        };
        if generation == self.generation {
            self.free_slot(slot, &job, process);
        } else {
            self.queue.release(&job.client, job.question.len());
            if let Ok(process) = process {
                self.ending.spawn(process.end());
            }
        }
        self.counters.note(&outcome);
        self.counters.waiting.sub(1);
        (job.answer)(outcome);
    }

    /// Frees the slot of a process of the present command.
    fn free_slot(
        &mut self,
        slot: usize,
        job: &PluginJob,
        process: Result<PluginProcess, PluginFailure>,
    ) {
        let (client, now) = (&job.client, Instant::now());
        self.queue.finish(client, job.question.len());
        match process {
            Ok(process) => {
                self.suspects.answered(client, now);
                if let Some(failures) = self.slots.answered(slot, Some(process)) {
                    self.log.recovery(failures);
                }
            }
            Err(failure) => {
                if self.suspects.failed(client, now)
                    && let Some(suspension) = self.suspects.suspension(client, now)
                {
                    for job in self.queue.drain_client(client) {
                        self.answer(job, Err(suspension.clone()));
                    }
                }
                let failures = self.slots.failed(slot, client, now);
                // The first two failures are logged. Further failures are only counted.
                if failures <= 2 {
                    self.log.failure(&failure, outcome_text(self.in_force.on_failure, failures));
                }
            }
        }
    }

    /// Gives the outcome of an event that no process has.
    fn answer(&self, job: PluginJob, outcome: PluginOutcome) {
        self.counters.waiting.sub(1);
        if !matches!(outcome, Ok(PluginDecision::Accept)) {
            self.counters.note(&outcome);
        }
        (job.answer)(outcome);
    }

    /// Puts the current options in force.
    fn follow_options(&mut self) {
        let new = Arc::clone(&self.changes.borrow_and_update());
        if self.generation == 0 || !new.continue_those_of(&self.in_force) {
            self.end_idle();
            self.slots = ProcessSlots::new(new.processes);
            self.suspects = SuspectClients::default();
            self.log = Arc::new(PluginLog::new(&new.command.line));
            self.queue.forget_running();
            self.generation += 1;
        }
        self.in_force = new;
    }

    fn end_idle(&mut self) {
        for process in self.slots.drain_idle() {
            self.ending.spawn(process.end());
        }
    }
}

/// Returns a process that can be asked: this process, or a new one if there is none or if the
/// plugin's file has changed.
async fn current(
    process: Option<PluginProcess>,
    options: &PluginOptions,
    log: &Arc<PluginLog>,
    counters: &PluginCounters,
) -> Result<PluginProcess, PluginFailure> {
    if let Some(mut process) = process {
        if !process.is_outdated() {
            return Ok(process);
        }
        process.end().await;
    }
    counters.starts.add(1);
    PluginProcess::start(&options.command, log)
}

/// The text about what happens after a failure.
fn outcome_text(rule: FailureRule, failures: u32) -> &'static str {
    match (rule, failures) {
        (FailureRule::Refuse, 1) => "the event is refused, and the plugin is started again",
        (FailureRule::Refuse, _) => {
            "the event is refused, and the plugin is started again until it works"
        }
        (FailureRule::Accept, 1) => "the event is accepted, and the plugin is started again",
        (FailureRule::Accept, _) => {
            "the event is accepted, and the plugin is started again until it works"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::PluginCommand;

    const ID: [u8; 32] = [7; 32];

    type AnswerFn = Box<dyn FnOnce(PluginOutcome) + Send>;

    fn job(client: &str, question: &str, answer: AnswerFn) -> PluginJob {
        PluginJob {
            id: ID,
            question: format!("{question}\n").into(),
            client: client.into(),
            answer,
        }
    }

    /// The client of an answered event can already act on the answer: its next event, or the next
    /// event of another client, finds that the plugin has answered.
    #[tokio::test]
    async fn an_event_that_follows_an_answer_finds_that_the_plugin_works() {
        let id = "07".repeat(32);
        let line = format!(
            r#"while read -r line; do
                case "$line" in die) exit 3;; esac; echo '{{"id":"{id}","action":"accept"}}'
            done"#
        );
        let command = PluginCommand { line, folder: None };
        let timeout = Duration::from_mins(10);
        let options = PluginOptions { command, timeout, ..PluginOptions::default() };
        for _ in 0..10 {
            let (pool, running) = PluginPool::new(SharedPlugin::new(options.clone()), 1 << 20);
            let running = tokio::spawn(running);
            let pool = Arc::new(pool);
            let (to, mut outcomes) = mpsc::unbounded_channel();
            let tells = || {
                let to = to.clone();
                Box::new(move |outcome: PluginOutcome| drop(to.send(outcome))) as AnswerFn
            };
            for failures in 1..=4 {
                pool.push(job("hostile", "die", tells()));
                let outcome = outcomes.recv().await.unwrap();
                assert!(outcome.is_err(), "{failures}: {outcome:?}");
            }
            let (next, again) = (job("hostile", "die", tells()), Arc::clone(&pool));
            let follows = move |outcome: PluginOutcome| {
                assert_eq!(outcome, Ok(PluginDecision::Accept));
                again.push(next);
            };
            pool.push(job("other", "good", Box::new(follows)));
            // The client may be suspended no longer. If it is, the reason is not that the plugin
            // has answered nobody.
            assert_ne!(outcomes.recv().await.unwrap(), Err(PluginFailure::Down));
            drop(pool);
            running.await.unwrap();
        }
    }
}
