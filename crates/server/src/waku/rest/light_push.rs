//! `/lightpush`: publishes a message at this node. In nwaku, these endpoints publish at another
//! node, or at the node itself if no other node is configured.

use axum::http::StatusCode;
use hark_codec::waku::Message;
use hark_networks::waku::json::PublishedMessage;
use serde_json::json;

use crate::rate::RateSource;
use crate::rest::RestAnswer;
use crate::waku::metrics::{LightPushStatus, MessageOrigin};
use crate::waku::node::WakuNode;
use crate::waku::publish::{TOO_MANY_PUSHES, relay_peer_count};

/// The number of nodes that have the message, or the status and reason of a refusal.
type PublishResult = Result<u32, (LightPushStatus, String)>;

/// Publishes the message of a body.
async fn publish(waku: &WakuNode, from: RateSource, body: &[u8]) -> PublishResult {
    if !waku.admits_push(from) {
        return Err((LightPushStatus::TooManyRequests, TOO_MANY_PUSHES.into()));
    }
    let published = PublishedMessage::read(body)
        .map_err(|error| (LightPushStatus::BadRequest, format!("Invalid push request! {error}")))?;
    let message: Message<'_> = published.message.message();
    let topic = published.pubsub_topic.as_deref().filter(|topic| !topic.is_empty());
    let peers = waku.publish(MessageOrigin::Rest, &message, topic).await;
    peers.map(relay_peer_count).map_err(|refusal| (refusal.status(), refusal.to_string()))
}

/// Answers a request to `/lightpush/v3`. The statuses are those of light push.
pub(super) async fn push(waku: &WakuNode, from: RateSource, body: &[u8]) -> RestAnswer {
    match publish(waku, from, body).await {
        Ok(count) => RestAnswer::json(json!({ "relayPeerCount": count }).to_string()),
        Err((status, words)) => {
            let code = u16::try_from(status.code()).ok().map(StatusCode::from_u16);
            let status = code.and_then(Result::ok).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            RestAnswer { status, ..RestAnswer::json(json!({ "statusDesc": words }).to_string()) }
        }
    }
}

/// Answers a request to `/lightpush/v1`.
pub(super) async fn push_legacy(waku: &WakuNode, from: RateSource, body: &[u8]) -> RestAnswer {
    match publish(waku, from, body).await {
        Ok(_) => RestAnswer::ok(),
        Err((LightPushStatus::BadRequest, words)) => RestAnswer::refused(words),
        Err((LightPushStatus::TooManyRequests, _)) => {
            RestAnswer::words(StatusCode::TOO_MANY_REQUESTS, "Request rate limmit reached")
        }
        Err((_, words)) => RestAnswer::words(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("Failed to request a message push: {words}"),
        ),
    }
}
