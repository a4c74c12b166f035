//! `/relay/v1`: publishing a message, and polling for published messages.

use std::sync::Arc;

use axum::http::StatusCode;
use hark_codec::waku::{Message, Shard};
use hark_networks::waku::json::{put_message, read_message};

use crate::rest::RestAnswer;
use crate::waku::intake::MessageRejection;
use crate::waku::metrics::MessageOrigin;
use crate::waku::node::WakuNode;
use crate::waku::poll::PollTopic;
use crate::waku::publish::PublishRefusal;

/// Stores and relays a message. The pubsub topic is `topic`, or the topic of the shard that the
/// content topic belongs to.
pub(super) async fn publish(waku: &WakuNode, body: &[u8], topic: Option<String>) -> RestAnswer {
    let published = match read_message(body) {
        Ok(published) => published,
        Err(error) => return RestAnswer::refused(format!("the body is not a message: {error}")),
    };
    let message = published.message();
    match waku.publish(MessageOrigin::Rest, &message, topic.as_deref()).await {
        Ok(_) => RestAnswer::ok(),
        Err(
            refusal @ PublishRefusal::Rejected(MessageRejection::Store(_) | MessageRejection::Down),
        ) => RestAnswer::words(StatusCode::SERVICE_UNAVAILABLE, refusal.to_string()),
        Err(refusal) => RestAnswer::refused(refusal.to_string()),
    }
}

/// Returns the messages of a topic that have arrived since the last poll of the topic.
pub(super) fn poll(waku: &WakuNode, topic: PollTopic) -> RestAnswer {
    let Some(messages) = waku.poll.take(&topic) else {
        let (PollTopic::Pubsub(name) | PollTopic::Content(name) | PollTopic::Filter(_, name)) =
            topic;
        return RestAnswer::words(
            StatusCode::NOT_FOUND,
            format!("Not subscribed to topic: {name}"),
        );
    };
    let mut out = b"[".to_vec();
    for message in messages.iter().filter_map(|bytes| Message::parse(bytes).ok()) {
        if out.len() > 1 {
            out.push(b',');
        }
        // In nwaku, messages always have a proof, so a missing proof is written as an empty proof.
        let proof = Some(message.proof.unwrap_or_default());
        put_message(&mut out, &Message { proof, ..message });
    }
    out.push(b']');
    RestAnswer::json(out)
}

/// Parses the topics in a body: a list of strings. Each string names a shard, or is a content topic
/// of a shard.
fn topics(waku: &WakuNode, body: &[u8], auto: bool) -> Result<Vec<(PollTopic, Shard)>, RestAnswer> {
    let names: Vec<String> = serde_json::from_slice(body).map_err(|error| {
        RestAnswer::refused(format!("the body is not a list of topics: {error}"))
    })?;
    let topic = |name: String| {
        let (cluster, shards) = (waku.config.cluster, waku.config.shards_in_cluster);
        let shard = if auto { Shard::of(&name, cluster, shards) } else { name.parse() };
        match shard {
            Ok(shard) if auto => Ok((PollTopic::Content(name), shard)),
            Ok(shard) => Ok((PollTopic::Pubsub(name), shard)),
            Err(error) => {
                Err(RestAnswer::refused(format!("Invalid topic: {}: {error}", shown(&name))))
            }
        }
    };
    names.into_iter().map(topic).collect()
}

/// Returns the beginning of a client's topic, for an error message.
fn shown(name: &str) -> String {
    name.chars().take(200).collect()
}

/// Subscribes to all of the topics in a body, or to none. Clients can then poll the topics'
/// messages.
pub(super) fn subscribe(waku: &Arc<WakuNode>, body: &[u8], auto: bool) -> RestAnswer {
    let topics = match topics(waku, body, auto) {
        Ok(topics) => topics,
        Err(refused) => return refused,
    };
    // Messages of other shards are not accepted, so a poll would never return a message.
    if let Some((_, shard)) = topics.iter().find(|(_, shard)| !waku.serves_shard(*shard)) {
        let words =
            format!("Subscribe failed: this node does not serve {shard}; see [waku] shards");
        return RestAnswer::refused(words);
    }
    match waku.poll.subscribe(topics.into_iter().map(|(topic, _)| topic)) {
        Ok(()) => RestAnswer::ok(),
        Err(full) => RestAnswer::words(StatusCode::TOO_MANY_REQUESTS, full.to_string()),
    }
}

/// Ends the subscriptions to the topics in a body.
pub(super) fn unsubscribe(waku: &Arc<WakuNode>, body: &[u8], auto: bool) -> RestAnswer {
    match topics(waku, body, auto) {
        Ok(topics) => {
            waku.poll.unsubscribe(topics.into_iter().map(|(topic, _)| topic));
            RestAnswer::ok()
        }
        Err(refused) => refused,
    }
}
