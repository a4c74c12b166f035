//! Measures the time until a published message can be read, for nodes that do not answer a
//! publication. The watcher queries some of the published messages by hash until the node returns
//! each message.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::messages::MessageDraft;
use super::rest::{RestClient, page};
use super::stored::{HASHES, HashOnlyMessage, by_hash};
use super::totals::{REST, RequestTotals};

/// Minimum time between two watched messages: at most a hundred a second are watched.
const SPACING: Duration = Duration::from_millis(10);
/// The pause before the next query. A measured time may be too long by this pause plus the time of
/// a request.
const PAUSE: Duration = Duration::from_millis(1);

/// A watched message with its due time.
pub(super) struct WatchedMessage {
    hash: String,
    due: Instant,
}

/// Chooses the messages to watch. All publishers share the selector.
#[derive(Clone)]
pub(super) struct WatchSelector {
    pubsub_topic: String,
    /// Messages due before this time are not chosen.
    next: Arc<Mutex<Instant>>,
    chosen: Sender<WatchedMessage>,
}

impl WatchSelector {
    pub(super) fn new(pubsub_topic: String, start: Instant) -> (Self, Receiver<WatchedMessage>) {
        let (chosen, watched) = channel();
        (Self { pubsub_topic, next: Arc::new(Mutex::new(start)), chosen }, watched)
    }

    /// Whether to watch the message with this due time. The decision depends only on the due time
    /// and is made before the message is sent, so that late messages are watched as often as
    /// others.
    pub(super) fn takes(&self, due: Instant) -> bool {
        let mut next = self.next.lock();
        let takes = due >= *next;
        if takes {
            *next = due + SPACING;
        }
        takes
    }

    /// Hands a published message to the watcher.
    pub(super) fn watch(&self, draft: &MessageDraft, time_ns: i64, due: Instant) {
        let hash = draft.hash(time_ns, &self.pubsub_topic);
        // The watcher ends before the publishers only on an error, which is reported.
        let _ = self.chosen.send(WatchedMessage { hash, due });
    }
}

/// Queries the chosen messages until all are found, or until `settle` after the end of publishing.
/// Messages that are not found count as refusals. Returns the number of requests, the number of
/// found messages, and their latencies after the due times.
pub(super) fn watch(
    mut client: RestClient,
    chosen: &Receiver<WatchedMessage>,
    settle: Duration,
) -> anyhow::Result<RequestTotals> {
    let (mut done, mut waiting, mut until) = (RequestTotals::default(), Vec::new(), None);
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
                let found: HashSet<String> = page::<HashOnlyMessage>(&body)?
                    .messages
                    .iter()
                    .map(HashOnlyMessage::hash)
                    .collect();
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
