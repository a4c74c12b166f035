//! The events that wait for a process: in order for each client, and in turn among clients.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use hark_codec::record::Id;

use crate::answer::PluginDecision;
use crate::failure::PluginFailure;

/// The plugin's decision about an event, or the reason why there is none.
pub type PluginOutcome = Result<PluginDecision, PluginFailure>;

/// An event for a plugin.
pub struct PluginJob {
    /// The event's id.
    pub id: Id,
    /// The line that asks the plugin ([`crate::question::line`]).
    pub question: Vec<u8>,
    /// The client that has sent the event. The text is only compared.
    pub client: Arc<str>,
    /// Receives the outcome, exactly once. Runs on the runtime, so it must not wait.
    pub answer: Box<dyn FnOnce(PluginOutcome) + Send>,
}

impl fmt::Debug for PluginJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginJob").field("client", &self.client).finish_non_exhaustive()
    }
}

/// The waiting events.
#[derive(Debug)]
pub(crate) struct JobQueue {
    clients: HashMap<Arc<str>, ClientQueue>,
    /// Clients in the order of their next turns. An entry whose client has no waiting event is
    /// skipped.
    turns: VecDeque<Arc<str>>,
    /// All events in the order of arrival. Entries of events that no longer wait are skipped.
    arrivals: VecDeque<(u64, Arc<str>, Instant)>,
    next_number: u64,
    /// Bytes of the events that wait or are with a process.
    bytes: usize,
    bytes_max: usize,
}

/// An event that waits.
#[derive(Debug)]
struct WaitingJob {
    number: u64,
    job: PluginJob,
    /// Whether the event waits behind other events of its client.
    follows_own: bool,
}

/// An event that has waited too long.
#[derive(Debug)]
pub(crate) struct ExpiredJob {
    pub(crate) job: PluginJob,
    /// Whether the event has waited behind other events of its client.
    pub(crate) follows_own: bool,
}

#[derive(Debug, Default)]
struct ClientQueue {
    jobs: VecDeque<WaitingJob>,
    /// Number of events that are with a process.
    running: usize,
    bytes: usize,
    /// Whether the client is in the list of turns.
    has_turn: bool,
}

impl JobQueue {
    /// Creates a queue for events of `bytes_max` bytes in all. The events of one client may have a
    /// quarter of these bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            clients: HashMap::new(),
            turns: VecDeque::new(),
            arrivals: VecDeque::new(),
            next_number: 0,
            bytes: 0,
            bytes_max,
        }
    }

    /// Adds an event, or returns the event if there is no room. A single event always has room.
    pub(crate) fn push(&mut self, job: PluginJob, now: Instant) -> Result<(), PluginJob> {
        let (bytes, name) = (job.question.len(), Arc::clone(&job.client));
        let of_client = self.clients.get(&name).map_or(0, |client| client.bytes);
        let has_room = |used: usize, max: usize| used == 0 || used + bytes <= max;
        if !has_room(of_client, self.bytes_max / 4) || !has_room(self.bytes, self.bytes_max) {
            return Err(job);
        }
        let (number, client) =
            (self.next_number, self.clients.entry(Arc::clone(&name)).or_default());
        let follows_own = client.running > 0 || !client.jobs.is_empty();
        client.jobs.push_back(WaitingJob { number, job, follows_own });
        client.bytes += bytes;
        if !std::mem::replace(&mut client.has_turn, true) {
            self.turns.push_back(Arc::clone(&name));
        }
        self.arrivals.push_back((number, name, now));
        self.next_number += 1;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes the next event. A client with `running_max` events at processes has to wait. The event
    /// counts as running until [`JobQueue::finish`].
    pub(crate) fn pop(&mut self, running_max: usize) -> Option<PluginJob> {
        for _ in 0..self.turns.len() {
            let name = self.turns.pop_front()?;
            let Some(client) = self.clients.get_mut(&name) else { continue };
            if client.running >= running_max && !client.jobs.is_empty() {
                self.turns.push_back(name);
                continue;
            }
            let Some(WaitingJob { job, .. }) = client.jobs.pop_front() else {
                client.has_turn = false;
                self.forget_if_idle(&name);
                continue;
            };
            client.running += 1;
            self.turns.push_back(name);
            return Some(job);
        }
        None
    }

    /// Ends an event that was with a process.
    pub(crate) fn finish(&mut self, name: &Arc<str>, bytes: usize) {
        if let Some(client) = self.clients.get_mut(name) {
            client.running -= 1;
        }
        self.release(name, bytes);
    }

    /// Removes the events that arrived at `before` or earlier and still wait.
    pub(crate) fn expire(&mut self, before: Instant) -> Vec<ExpiredJob> {
        let mut expired = Vec::new();
        while self.oldest().is_some_and(|at| at <= before) {
            let Some((_, name, _)) = self.arrivals.pop_front() else { break };
            // The oldest waiting event is the first of its client.
            let first = self.clients.get_mut(&name).and_then(|client| client.jobs.pop_front());
            if let Some(WaitingJob { job, follows_own, .. }) = first {
                self.release(&name, job.question.len());
                expired.push(ExpiredJob { job, follows_own });
            }
        }
        expired
    }

    /// Removes all events that wait.
    pub(crate) fn drain(&mut self) -> Vec<PluginJob> {
        let last = self.arrivals.back().map(|(_, _, at)| *at);
        let expired = last.map(|last| self.expire(last)).unwrap_or_default();
        expired.into_iter().map(|expired| expired.job).collect()
    }

    /// Removes the waiting events of a client.
    pub(crate) fn drain_client(&mut self, name: &Arc<str>) -> Vec<PluginJob> {
        let jobs = self.clients.get_mut(name).map(|client| std::mem::take(&mut client.jobs));
        let jobs: Vec<_> = jobs.into_iter().flatten().map(|waiting| waiting.job).collect();
        self.release(name, jobs.iter().map(|job| job.question.len()).sum());
        jobs
    }

    /// The time at which the oldest waiting event arrived.
    pub(crate) fn oldest(&mut self) -> Option<Instant> {
        while let Some((number, name, at)) = self.arrivals.front() {
            let first = self.clients.get(name).and_then(|client| client.jobs.front());
            if first.is_some_and(|waiting| waiting.number == *number) {
                return Some(*at);
            }
            self.arrivals.pop_front();
        }
        None
    }

    /// Stops counting the events that are with processes now, because these processes are replaced.
    /// The bytes of each of these events count until [`JobQueue::release`].
    pub(crate) fn forget_running(&mut self) {
        self.clients.values_mut().for_each(|client| client.running = 0);
    }

    /// Releases the bytes of an event.
    pub(crate) fn release(&mut self, name: &Arc<str>, bytes: usize) {
        self.bytes -= bytes;
        if let Some(client) = self.clients.get_mut(name) {
            client.bytes -= bytes;
        }
        self.forget_if_idle(name);
    }

    /// Removes a client without events. Its entry in the list of turns is skipped later.
    fn forget_if_idle(&mut self, name: &Arc<str>) {
        let is_idle = |client: &ClientQueue| {
            let is_used = client.running > 0 || client.bytes > 0 || client.has_turn;
            client.jobs.is_empty() && !is_used
        };
        if self.clients.get(name).is_some_and(is_idle) {
            self.clients.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn job(client: &str, number: u8, bytes: usize) -> PluginJob {
        PluginJob {
            id: [number; 32],
            question: vec![0; bytes],
            client: client.into(),
            answer: Box::new(drop),
        }
    }

    fn queue(jobs: &[(&str, u8)]) -> JobQueue {
        let mut queue = JobQueue::new(1 << 20);
        for (client, number) in jobs {
            queue.push(job(client, *number, 10), Instant::now()).unwrap();
        }
        queue
    }

    #[test]
    fn clients_take_turns_and_each_keeps_its_order() {
        let mut queue = queue(&[("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)]);
        let mut order = Vec::new();
        while let Some(job) = queue.pop(9) {
            order.push(job.id[0]);
        }
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
        assert_eq!(queue.oldest(), None);
    }

    #[test]
    fn a_client_with_enough_events_at_processes_waits_and_others_do_not() {
        let mut queue = queue(&[("a", 1), ("a", 2), ("b", 3)]);
        let pop = |queue: &mut JobQueue| queue.pop(1).map(|job| job.id[0]);
        assert_eq!([pop(&mut queue), pop(&mut queue), pop(&mut queue)], [Some(1), Some(3), None]);
        queue.finish(&"b".into(), 10);
        assert_eq!(pop(&mut queue), None);
        queue.finish(&"a".into(), 10);
        assert_eq!(pop(&mut queue), Some(2));
        queue.finish(&"a".into(), 10);
        assert_eq!(pop(&mut queue), None);
        assert!(queue.clients.is_empty() && queue.turns.is_empty() && queue.bytes == 0);
    }

    #[test]
    fn events_that_wait_too_long_are_removed_in_their_order() {
        let (mut queue, now) = (JobQueue::new(1 << 20), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        for (seconds, client, number) in [(0, "a", 1), (1, "a", 2), (2, "b", 3), (3, "a", 4)] {
            queue.push(job(client, number, 10), at(seconds)).unwrap();
        }
        assert_eq!(queue.pop(9).map(|job| job.id[0]), Some(1));
        assert_eq!(queue.oldest(), Some(at(1)));
        let expired = queue.expire(at(2));
        let expired = expired.iter().map(|expired| (expired.job.id[0], expired.follows_own));
        assert_eq!(expired.collect::<Vec<_>>(), [(2, true), (3, false)]);
        assert_eq!(queue.drain().iter().map(|job| job.id[0]).collect::<Vec<_>>(), [4]);
        assert_eq!((queue.oldest(), queue.bytes), (None, 10));
        queue.finish(&"a".into(), 10);
        while queue.pop(9).is_some() {}
        assert!(queue.clients.is_empty() && queue.bytes == 0);
    }

    #[test]
    fn one_client_fills_a_quarter_and_all_clients_the_whole() {
        let (mut queue, now) = (JobQueue::new(100), Instant::now());
        assert!(queue.push(job("a", 1, 500), now).is_ok(), "a single event has room");
        assert!(queue.push(job("b", 2, 1), now).is_err());
        drop(queue.drain());
        for client in ["a", "b", "c", "d"] {
            assert!(queue.push(job(client, 1, 20), now).is_ok());
            assert!(queue.push(job(client, 2, 10), now).is_err(), "more than a quarter");
        }
        assert!(queue.push(job("e", 1, 20), now).is_ok());
        assert!(queue.push(job("f", 1, 20), now).is_err(), "more than the whole");
    }
}
