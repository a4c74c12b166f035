//! Checks by hash whether the messages that a node has accepted are stored.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::rest::{RestClient, StoredFields, encoded};
use super::totals::AcceptedMessage;
use crate::args::WakuBenchArgs;

/// Number of hashes in a query, as many as a page may have.
pub(super) const HASHES: usize = 100;
/// The pause before the next check.
const PAUSE: Duration = Duration::from_millis(50);

/// A message in an answer that has only hashes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HashOnlyMessage {
    message_hash: String,
}

impl HashOnlyMessage {
    /// Returns the hash in the form of [`MessageDraft::hash`](super::messages::MessageDraft::hash).
    pub(super) fn hash(&self) -> String {
        self.message_hash.to_ascii_lowercase()
    }
}

/// Makes the query that returns the stored messages among these hashes.
pub(super) fn by_hash(hashes: &[String]) -> String {
    format!("includeData=false&hashes={}&pageSize={HASHES}", hashes.join(","))
}

/// Returns the hashes of accepted messages that are still not stored after `--settle` seconds.
pub(super) fn missing(
    args: &WakuBenchArgs,
    client: &mut RestClient,
    accepted: &[AcceptedMessage],
    bytes: usize,
) -> anyhow::Result<Vec<String>> {
    let until = Instant::now() + Duration::from_secs_f64(args.settle);
    // All content topics belong to one application. So if the node derives the pubsub topic from
    // the content topic, all messages have the same pubsub topic.
    let chosen = match &args.pubsub_topic {
        Some(topic) => Some(topic.clone()),
        None => pubsub_topic(client, accepted, bytes, until)?,
    };
    // If no message is stored, any pubsub topic suffices for the hashes.
    let pubsub_topic = chosen.unwrap_or_default();
    let hash = |one: &AcceptedMessage| one.draft(bytes).hash(one.time_ns, &pubsub_topic);
    let mut missing: Vec<String> = accepted.iter().map(hash).collect();
    loop {
        let mut found = HashSet::new();
        for hashes in missing.chunks(HASHES) {
            let named = client.page::<HashOnlyMessage>(&by_hash(hashes))?.messages;
            found.extend(named.iter().map(HashOnlyMessage::hash));
        }
        missing.retain(|hash| !found.contains(hash));
        if missing.is_empty() || Instant::now() >= until {
            return Ok(missing);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the pubsub topic that a node has chosen: the topic of the first message found in its
/// store.
fn pubsub_topic(
    client: &mut RestClient,
    accepted: &[AcceptedMessage],
    bytes: usize,
    until: Instant,
) -> anyhow::Result<Option<String>> {
    // One message may be lost, but hardly all of the first ten.
    for one in accepted.iter().take(10).cycle() {
        let topic = encoded(&one.draft(bytes).topic);
        let time = one.time_ns;
        let query =
            format!("includeData=true&contentTopics={topic}&startTime={time}&endTime={time}");
        if let Some(stored) = client.page::<StoredFields>(&query)?.messages.pop() {
            return Ok(Some(stored.pubsub_topic));
        }
        if Instant::now() >= until {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}
