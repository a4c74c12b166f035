//! How long it takes until a message can be read, where nobody says when it is stored: some of those
//! that are published are asked for by their hashes until the node gives them back.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::load::{Done, REST};
use super::messages::Draft;
use super::rest::{Client, page};
use super::stored::{HASHES, Named, by_hash};

/// Between messages that are watched: a hundred a second, at most.
const SPACING: Duration = Duration::from_millis(10);
/// How soon it is asked again: times are exact to this and a request.
const PAUSE: Duration = Duration::from_millis(1);

/// A message that is looked for, and when it was due.
pub(super) struct Watched {
    hash: String,
    due: Instant,
}

/// Chooses what is watched; shared by all who publish.
#[derive(Clone)]
pub(super) struct Choice {
    pubsub_topic: String,
    /// What is due before is not chosen.
    next: Arc<Mutex<Instant>>,
    chosen: Sender<Watched>,
}

impl Choice {
    pub(super) fn new(pubsub_topic: String, start: Instant) -> (Self, Receiver<Watched>) {
        let (chosen, watched) = channel();
        (Self { pubsub_topic, next: Arc::new(Mutex::new(start)), chosen }, watched)
    }

    /// Whether the message that is due then is one to watch. By when it is due and before it is sent, so
    /// that those that are late have as many among them as others.
    pub(super) fn takes(&self, due: Instant) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let takes = due >= *next;
        if takes {
            *next = due + SPACING;
        }
        takes
    }

    /// Has a message watched that was published.
    pub(super) fn watch(&self, draft: &Draft, time_ns: i64, due: Instant) {
        let hash = draft.hash(time_ns, &self.pubsub_topic);
        // Who watches ends before the others only by an error, which is told.
        let _ = self.chosen.send(Watched { hash, due });
    }
}

/// Asks for what was chosen until all is found, or for so long after the last message; what is not
/// found is among the refusals. Gives the requests, the messages found, and how long after they were due.
pub(super) fn watch(
    mut client: Client,
    chosen: &Receiver<Watched>,
    settle: Duration,
) -> anyhow::Result<Done> {
    let (mut done, mut waiting, mut until) = (Done::default(), Vec::new(), None);
    loop {
        if waiting.is_empty() {
            let Ok(next) = chosen.recv() else { break };
            waiting.push(next);
        }
        let ended = loop {
            match chosen.try_recv() {
                Ok(next) => waiting.push(next),
                Err(error) => break error == TryRecvError::Disconnected,
            }
        };
        let until = ended.then(|| *until.get_or_insert_with(|| Instant::now() + settle));
        let hashes: Vec<String> = waiting.iter().take(HASHES).map(|one| one.hash.clone()).collect();
        done.count += 1;
        match client.messages(&by_hash(&hashes))? {
            Ok(body) => {
                let now = Instant::now();
                let found: HashSet<String> =
                    page::<Named>(&body)?.messages.iter().map(Named::hash).collect();
                waiting.retain(|one| {
                    let is_there = found.contains(&one.hash);
                    if is_there {
                        done.messages += 1;
                        done.times.add(now - one.due);
                    }
                    !is_there
                });
            }
            Err(refused) => {
                done.refused(&refused);
                std::thread::sleep(REST);
            }
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    for _ in waiting {
        let reason = format!("{} s after the last one", settle.as_secs_f64());
        done.refusals.add("no such message", &reason);
    }
    Ok(done)
}
