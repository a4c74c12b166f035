//! `/relay/v1`: publishing a message, and coming for those that have been published.

use std::sync::Arc;

use axum::http::StatusCode;
use hark_codec::waku::{Message, Shard};

use super::Answer;
use crate::waku::json::{OwnedMessage, put_message};
use crate::waku::metrics::Origin;
use crate::waku::poll::Topic;
use crate::waku::{NotTaken, Waku, now_ns};

/// Takes a message in and passes it on: under this topic, or else under that of the shard to which its
/// content topic belongs.
pub(super) async fn publish(waku: &Waku, body: &[u8], topic: Option<String>) -> Answer {
    let mut published: OwnedMessage = match serde_json::from_slice(body) {
        Ok(published) => published,
        Err(error) => return Answer::refused(format!("the body is no message: {error}")),
    };
    // As nwaku does it, 0 is no time.
    if published.timestamp.is_none_or(|time| time == 0) {
        published.timestamp = i64::try_from(now_ns()).ok();
    }
    let message = published.message();
    let topic = topic.map_or_else(
        || {
            let (cluster, shards) = (waku.config.cluster, waku.config.shards_in_cluster);
            Shard::of(message.content_topic, cluster, shards).map(|shard| shard.to_string())
        },
        Ok,
    );
    let topic = match topic {
        Ok(topic) => topic,
        Err(error) => return Answer::refused(error.to_string()),
    };
    if !waku.serves(&topic) {
        let words = format!("Failed to publish: Node not subscribed to topic: {topic}");
        return Answer::refused(words);
    }
    let mut wire = Vec::with_capacity(body.len());
    message.write(&mut wire);
    match waku.take(Origin::Rest, &message, wire.len(), &topic).await {
        Ok(_) => {
            waku.pass_on(topic, wire).await;
            Answer::ok()
        }
        Err(NotTaken::Refused(refusal)) => Answer::refused(refusal.to_string()),
        Err(error) => Answer::words(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

/// What has come under a topic since it was last asked for.
pub(super) fn poll(waku: &Waku, topic: Topic) -> Answer {
    let Some(messages) = waku.poll.take(&topic) else {
        let (Topic::Pubsub(name) | Topic::Content(name)) = topic;
        return Answer::words(StatusCode::NOT_FOUND, format!("Not subscribed to topic: {name}"));
    };
    let mut out = b"[".to_vec();
    for message in messages.iter().filter_map(|bytes| Message::parse(bytes).ok()) {
        if out.len() > 1 {
            out.push(b',');
        }
        put_message(&mut out, &message);
    }
    out.push(b']');
    Answer::json(out)
}

/// The topics in a body: a list of strings.
fn topics(body: &[u8], auto: bool) -> Result<impl Iterator<Item = Topic>, Answer> {
    let names: Vec<String> = serde_json::from_slice(body)
        .map_err(|error| Answer::refused(format!("the body is no list of topics: {error}")))?;
    Ok(names.into_iter().map(if auto { Topic::Content } else { Topic::Pubsub }))
}

/// From now on messages of these topics can be come for.
pub(super) fn subscribe(waku: &Arc<Waku>, body: &[u8], auto: bool) -> Answer {
    let topics = match topics(body, auto) {
        Ok(topics) => topics,
        Err(refused) => return refused,
    };
    match waku.poll.subscribe(topics) {
        Ok(()) => Answer::ok(),
        Err(full) => Answer::words(StatusCode::TOO_MANY_REQUESTS, full.to_string()),
    }
}

/// No longer.
pub(super) fn unsubscribe(waku: &Arc<Waku>, body: &[u8], auto: bool) -> Answer {
    match topics(body, auto) {
        Ok(topics) => {
            waku.poll.unsubscribe(topics);
            Answer::ok()
        }
        Err(refused) => refused,
    }
}
