//! Light push (RFC 19/WAKU2-LIGHTPUSH), by which peers without gossip publish messages:
//! `/vac/waku/lightpush/3.0.0` and, for older clients, `/vac/waku/lightpush/2.0.0-beta1`. A stream
//! has one request and one answer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::AsyncReadExt as _;
use hark_codec::waku::light_push::LegacyPushResponse;
use hark_codec::waku::{LegacyPush, LightPushRequest, LightPushResponse, Message};
use libp2p::Stream;

use super::frame;
use super::incoming::{IncomingStreams, StreamPeer};
use super::requests::{RequestBounds, UnreadRequest};
use crate::roster::{self, ClientRefusal};
use crate::waku::metrics::{LightPushStatus, LightPushVersion, MessageOrigin};
use crate::waku::node::WakuNode;
use crate::waku::publish::{TOO_MANY_PUSHES, relay_peer_count};

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "/vac/waku/lightpush/3.0.0";
/// The name of version 2 of the protocol.
pub(super) const LEGACY_PROTOCOL: &str = "/vac/waku/lightpush/2.0.0-beta1";
/// Number of bytes allowed for the request around a message.
const ENVELOPE_BYTES: usize = 64 << 10;
/// Maximum total size of the long requests that are being read or stored at the same time, in
/// bytes.
const REQUESTS_MAX: usize = 32 << 20;
/// How long the rest of a refused request is read.
const REST_MAX: Duration = Duration::from_secs(10);
/// The id in the answer to a request that was not read, as in nwaku.
const NO_ID: &str = "N/A";

/// The number of peers that get a message, or the status and reason of a refusal.
type PushResult = Result<u32, (LightPushStatus, String)>;

/// Answers the requests of all peers.
pub(super) fn serve(incoming: &IncomingStreams, waku: &Arc<WakuNode>) {
    let request_max = waku.config.message_bytes_max.saturating_add(ENVELOPE_BYTES);
    let bounds = RequestBounds::new(request_max, REQUESTS_MAX.max(request_max));
    for (name, version) in
        [(PROTOCOL, LightPushVersion::Three), (LEGACY_PROTOCOL, LightPushVersion::Two)]
    {
        let (waku, bounds) = (Arc::clone(waku), bounds.clone());
        incoming.serve(name, move |peer, stream| {
            let (waku, bounds) = (Arc::clone(&waku), bounds.clone());
            async move { serve_one(&waku, &bounds, version, &peer, stream).await }
        });
    }
}

/// Answers the request of a stream.
async fn serve_one(
    waku: &WakuNode,
    bounds: &RequestBounds,
    version: LightPushVersion,
    peer: &StreamPeer,
    mut stream: Stream,
) {
    let read = bounds.read(&mut stream, peer.source).await;
    let (request_id, result) = match &read {
        Ok(_) if !waku.admits_push(peer.source) => {
            (NO_ID, Err((LightPushStatus::TooManyRequests, TOO_MANY_PUSHES.into())))
        }
        Ok(request) => match version {
            LightPushVersion::Three => push(waku, &request.bytes).await,
            LightPushVersion::Two => push_legacy(waku, &request.bytes).await,
        },
        Err(UnreadRequest::Left) => return,
        Err(UnreadRequest::Malformed) => (
            NO_ID,
            Err((LightPushStatus::BadRequest, "the length of the request is invalid".into())),
        ),
        Err(UnreadRequest::TooLong) => {
            let words = format!("a message has at most {} bytes", waku.config.message_bytes_max);
            (NO_ID, Err((LightPushStatus::TooLarge, words)))
        }
        Err(UnreadRequest::Busy) => {
            let words = "too many long messages at a time; try again";
            (NO_ID, Err((LightPushStatus::Unavailable, words.into())))
        }
    };
    let status = result.as_ref().map_or_else(|(status, _)| *status, |_| LightPushStatus::Success);
    waku.metrics.light_pushes.of(version).of(status).add(1);
    if let Err((status, words)) = &result {
        refuse(*status, words);
    }
    let bytes = encode(version, request_id, &result);
    let is_unread = matches!(read, Err(UnreadRequest::TooLong | UnreadRequest::Busy));
    drop(read);
    let (mut reader, mut writer) = stream.split();
    let sending = async {
        // A write error affects only this peer, so the error is ignored.
        if frame::write(&mut writer, &bytes).await.is_ok() {
            let _ = frame::end(&mut writer).await;
        }
    };
    frame::discarding(&mut reader, sending).await;
    if is_unread {
        // Most clients write their whole request before they read the answer.
        let rest = async {
            let mut bytes = [0; 4_096];
            while !matches!(reader.read(&mut bytes).await, Ok(0) | Err(_)) {}
        };
        let _ = tokio::time::timeout(REST_MAX, rest).await;
    }
}

/// Counts a refusal that the intake has not counted.
fn refuse(status: LightPushStatus, words: &str) {
    let verdict = match status {
        LightPushStatus::TooManyRequests => "rate-limited",
        LightPushStatus::BadRequest | LightPushStatus::TooLarge => "invalid",
        LightPushStatus::UnsupportedTopic => "unserved",
        _ => return,
    };
    roster::count_refusal(&ClientRefusal {
        verb: "light push",
        verdict,
        reason: words,
        is_of_record: true,
        is_logged: true,
    });
}

fn encode(version: LightPushVersion, request_id: &str, result: &PushResult) -> Vec<u8> {
    let mut out = Vec::new();
    match version {
        LightPushVersion::Three => {
            let (status, status_desc, relay_peer_count) = match result {
                Ok(count) => (LightPushStatus::Success, None, Some(*count)),
                Err((status, words)) => (*status, Some(&**words), None),
            };
            let status_code = status.code();
            LightPushResponse { request_id, status_code, status_desc, relay_peer_count }
                .write(&mut out);
        }
        LightPushVersion::Two => {
            let info = result.as_ref().map_or_else(|(_, words)| &**words, |_| "OK");
            let response = Some(LegacyPushResponse { is_success: result.is_ok(), info });
            LegacyPush { request_id, request: None, response }.write(&mut out);
        }
    }
    out
}

/// Publishes the message of a request. Returns the id of the request and the result.
async fn push<'r>(waku: &WakuNode, bytes: &'r [u8]) -> (&'r str, PushResult) {
    let request = match LightPushRequest::parse(bytes) {
        Ok(request) => request,
        Err(error) => return (NO_ID, unreadable(error)),
    };
    let result = match (request.message, request.pubsub_topic) {
        (None, _) => bad("the request has no message"),
        (_, Some(topic)) if topic.trim().is_empty() => bad("topic must not be empty"),
        (Some(message), topic) => publish(waku, message, topic).await,
    };
    (request.request_id, result)
}

/// Publishes the message of a request of version 2.
async fn push_legacy<'r>(waku: &WakuNode, bytes: &'r [u8]) -> (&'r str, PushResult) {
    let push = match LegacyPush::parse(bytes) {
        Ok(push) => push,
        Err(error) => return ("", unreadable(error)),
    };
    let result = match push.request {
        None => bad("empty request body"),
        Some(request) => publish(waku, request.message, Some(request.pubsub_topic)).await,
    };
    (push.request_id, result)
}

async fn publish(waku: &WakuNode, message: &[u8], topic: Option<&str>) -> PushResult {
    let message = match Message::parse(message) {
        Ok(message) => message,
        Err(error) => return unreadable(error),
    };
    match waku.publish(MessageOrigin::LightPush, &message, topic).await {
        Ok(peers) => Ok(relay_peer_count(peers)),
        Err(refusal) => Err((refusal.status(), refusal.to_string())),
    }
}

fn unreadable(error: hark_codec::waku::ProtobufError) -> PushResult {
    bad(&format!("decode_rpc_failure: {error}"))
}

fn bad(why: &str) -> PushResult {
    Err((LightPushStatus::BadRequest, why.into()))
}
