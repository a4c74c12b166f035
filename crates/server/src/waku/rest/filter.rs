//! `/filter/v2`: subscriptions to content topics, and polling for their messages. In nwaku, these
//! endpoints subscribe at another node. Here, they subscribe at this node, for all clients of the
//! REST API together. The subscriptions have no lifetime, and end only at a client's request.

use std::sync::Arc;

use axum::http::StatusCode;
use hark_codec::waku::{Message, Shard};
use hark_networks::waku::json::put_message;
use serde::Deserialize;
use serde_json::json;

use crate::rest::RestAnswer;
use crate::waku::node::WakuNode;
use crate::waku::poll::PollTopic;

/// Maximum number of content topics in a request, as in nwaku.
const TOPICS_MAX: usize = 100;

/// The body of a request to subscribe or to unsubscribe.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FilterBody {
    request_id: String,
    pubsub_topic: Option<String>,
    content_filters: Vec<String>,
}

/// The body of a request to unsubscribe from all topics.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestIdBody {
    request_id: String,
}

/// Returns the answer to a request, in nwaku's format.
fn answer(status: StatusCode, request_id: &str, status_desc: &str) -> RestAnswer {
    let body = json!({ "requestId": request_id, "statusDesc": status_desc }).to_string();
    RestAnswer { status, ..RestAnswer::json(body) }
}

fn bad(request_id: &str, why: &str) -> RestAnswer {
    answer(StatusCode::BAD_REQUEST, request_id, why)
}

fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, RestAnswer> {
    serde_json::from_slice(body).map_err(|error| {
        let why = format!("BAD_REQUEST: Failed to decode request: {error}");
        bad("unknown", &why)
    })
}

/// Reads a request, and returns its id with its topics. If the request names no pubsub topic, each
/// content topic is combined with the pubsub topic of its own shard.
fn topics(waku: &WakuNode, body: &[u8]) -> Result<(String, Vec<PollTopic>), RestAnswer> {
    let FilterBody { request_id, pubsub_topic, content_filters } = read(body)?;
    let fault = match content_filters.len() {
        0 => Some("pubsubTopic and contentTopics must be specified".to_owned()),
        count if count > TOPICS_MAX => {
            Some(format!("exceeds maximum content topics: {TOPICS_MAX}"))
        }
        _ => None,
    };
    if let Some(fault) = fault {
        return Err(bad(&request_id, &fault));
    }
    let (cluster, shards) = (waku.config.cluster, waku.config.shards_in_cluster);
    let pubsub_topic = pubsub_topic.filter(|topic| !topic.is_empty());
    let mut topics = Vec::with_capacity(content_filters.len());
    for content in content_filters {
        let shard = match &pubsub_topic {
            Some(topic) => topic.parse(),
            None => Shard::of(&content, cluster, shards),
        };
        let shard = shard.map_err(|error| bad(&request_id, &error.to_string()))?;
        if !waku.serves_shard(shard) {
            return Err(bad(&request_id, &format!("this node does not serve {shard}")));
        }
        topics.push(PollTopic::Filter(shard.to_string(), content));
    }
    Ok((request_id, topics))
}

/// Subscribes to all topics of a request, or to none.
pub(super) fn subscribe(waku: &Arc<WakuNode>, body: &[u8]) -> RestAnswer {
    match topics(waku, body) {
        Ok((id, topics)) => match waku.poll.subscribe(topics.into_iter()) {
            Ok(()) => answer(StatusCode::OK, &id, "OK"),
            Err(full) => answer(StatusCode::SERVICE_UNAVAILABLE, &id, &full.to_string()),
        },
        Err(refused) => refused,
    }
}

/// Ends the subscriptions to the topics of a request.
pub(super) fn unsubscribe(waku: &Arc<WakuNode>, body: &[u8]) -> RestAnswer {
    match topics(waku, body) {
        Ok((id, topics)) => {
            if waku.poll.unsubscribe(topics.into_iter()) {
                answer(StatusCode::OK, &id, "OK")
            } else {
                answer(StatusCode::NOT_FOUND, &id, "peer has no subscriptions")
            }
        }
        Err(refused) => refused,
    }
}

/// Ends all subscriptions.
pub(super) fn unsubscribe_all(waku: &Arc<WakuNode>, body: &[u8]) -> RestAnswer {
    match read::<RequestIdBody>(body) {
        Ok(RequestIdBody { request_id }) => found(&request_id, waku.poll.unsubscribe_filters()),
        Err(refused) => refused,
    }
}

/// Answers whether there are subscriptions.
pub(super) fn ping(waku: &Arc<WakuNode>, request_id: &str) -> RestAnswer {
    found(request_id, waku.poll.has_filters())
}

fn found(request_id: &str, are_some: bool) -> RestAnswer {
    if are_some {
        answer(StatusCode::OK, request_id, "OK")
    } else {
        answer(StatusCode::NOT_FOUND, request_id, "peer has no subscriptions")
    }
}

/// Returns the messages of a content topic that have arrived since the last poll.
pub(super) fn messages(waku: &Arc<WakuNode>, content_topic: &str) -> RestAnswer {
    let Some(messages) = waku.poll.poll_filtered(content_topic) else {
        return RestAnswer::refused(format!("Not subscribed to topic: {content_topic}"));
    };
    let mut out = b"[".to_vec();
    for message in messages.iter().filter_map(|bytes| Message::parse(bytes).ok()) {
        if out.len() > 1 {
            out.push(b',');
        }
        // As in nwaku, these messages have no proof.
        put_message(&mut out, &Message { proof: None, ..message });
    }
    out.push(b']');
    RestAnswer::json(out)
}
