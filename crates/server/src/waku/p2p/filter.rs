//! `/vac/waku/filter-subscribe/2.0.0-beta1` (RFC 12/WAKU2-FILTER): peers subscribe to the new
//! messages of content topics. A stream has one request and one answer.

use std::sync::Arc;

use futures_util::AsyncReadExt as _;
use hark_codec::record::Key;
use hark_codec::waku::filter::FilterAction;
use hark_codec::waku::{FilterRequest, FilterResponse, Shard};
use libp2p::{PeerId, Stream};

use super::frame;
use super::incoming::{IncomingStreams, StreamPeer};
use super::outgoing::StreamOpener;
use super::push::{self, PushTarget};
use super::requests::{RequestBounds, UnreadRequest};
use crate::rate::RateSubject;
use crate::roster::{self, ClientRefusal};
use crate::waku::metrics::{FilterRequestKind, FilterStatus};
use crate::waku::node::WakuNode;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "/vac/waku/filter-subscribe/2.0.0-beta1";
/// Maximum size of a request, in bytes: 100 topics of 600 bytes.
const REQUEST_MAX: usize = 64 << 10;
/// Maximum total size of the long requests that are read at the same time, in bytes.
const REQUESTS_MAX: usize = 16 << 20;
/// Maximum number of content topics in a request, as in nwaku.
const TOPICS_MAX: usize = 100;

/// The status of a request, and its reason.
type FilterOutcome = (FilterStatus, String);

/// Answers the requests of all peers.
pub(super) fn serve(incoming: &IncomingStreams, opener: &StreamOpener, waku: &Arc<WakuNode>) {
    let bounds = RequestBounds::new(REQUEST_MAX, REQUESTS_MAX);
    let (waku, opener) = (Arc::clone(waku), opener.clone());
    incoming.serve(PROTOCOL, move |peer, stream| {
        let (waku, bounds, opener) = (Arc::clone(&waku), bounds.clone(), opener.clone());
        async move { serve_one(&waku, &bounds, &opener, &peer, stream).await }
    });
}

/// Answers the request of a stream.
async fn serve_one(
    waku: &WakuNode,
    bounds: &RequestBounds,
    opener: &StreamOpener,
    peer: &StreamPeer,
    mut stream: Stream,
) {
    let read = bounds.read(&mut stream, peer.source).await;
    let (request_id, (status, words)) = match &read {
        Ok(request) => answer(waku, opener, peer, &request.bytes),
        Err(UnreadRequest::Left) => return,
        Err(UnreadRequest::Busy) => {
            let words = "TOO_MANY_REQUESTS: too many long requests at a time; try again";
            (NO_ID, (FilterStatus::TooManyRequests, words.into()))
        }
        Err(UnreadRequest::Malformed | UnreadRequest::TooLong) => {
            let words = format!("BAD_REQUEST: a request has at most {REQUEST_MAX} bytes");
            (NO_ID, (FilterStatus::BadRequest, words))
        }
    };
    waku.metrics.filter.answers.of(status).add(1);
    if status != FilterStatus::Success {
        refuse(status, &words);
    }
    let mut bytes = Vec::with_capacity(request_id.len() + words.len() + 16);
    let status_desc = Some(&*words);
    FilterResponse { request_id, status_code: status.code(), status_desc }.write(&mut bytes);
    let (mut reader, mut writer) = stream.split();
    let sending = async {
        // A write error affects only this peer, so the error is ignored.
        if frame::write(&mut writer, &bytes).await.is_ok() {
            let _ = frame::end(&mut writer).await;
        }
    };
    frame::discarding(&mut reader, sending).await;
}

/// The id in the answer to a request that was not read, as in nwaku.
const NO_ID: &str = "N/A";

/// Counts a refused request of the client.
fn refuse(status: FilterStatus, words: &str) {
    let verdict = match status {
        FilterStatus::TooManyRequests => "rate-limited",
        FilterStatus::Unavailable => "full",
        _ => "invalid",
    };
    // A client that pings after its subscriptions have ended is honest.
    let is_logged = status != FilterStatus::NotFound;
    let refusal =
        ClientRefusal { verb: "filter", verdict, reason: words, is_of_record: false, is_logged };
    roster::count_refusal(&refusal);
}

/// Carries out a request. Returns its id and its outcome.
fn answer<'r>(
    waku: &WakuNode,
    opener: &StreamOpener,
    peer: &StreamPeer,
    bytes: &'r [u8],
) -> (&'r str, FilterOutcome) {
    roster::count_question();
    let rate = waku.settings().filter_requests;
    if !waku.service.questions.charge(RateSubject::QuestionsOf(key(peer.id)), rate) {
        let words = "filter request rejected due rate limit exceeded".to_owned();
        return (NO_ID, (FilterStatus::TooManyRequests, words));
    }
    let request = match FilterRequest::parse(bytes) {
        Ok(request) => request,
        Err(error) => {
            waku.metrics.filter.requests.of(FilterRequestKind::Malformed).add(1);
            return (NO_ID, (FilterStatus::BadRequest, format!("BAD_REQUEST: {error}")));
        }
    };
    waku.metrics.filter.requests.of(request.action.into()).add(1);
    (request.request_id, carry_out(waku, opener, peer, &request))
}

fn carry_out(
    waku: &WakuNode,
    opener: &StreamOpener,
    peer: &StreamPeer,
    request: &FilterRequest<'_>,
) -> FilterOutcome {
    let is_done = match request.action {
        None => return bad("the type of the request is not known"),
        Some(FilterAction::Ping) => waku.filter.ping(peer),
        Some(FilterAction::UnsubscribeAll) => waku.filter.remove(peer.id),
        Some(FilterAction::Subscribe) => {
            return match shard(waku, request) {
                Ok(shard) => subscribe(waku, opener, peer, shard, request),
                Err(outcome) => outcome,
            };
        }
        Some(FilterAction::Unsubscribe) => match shard(waku, request) {
            Ok(shard) => waku.filter.unsubscribe(peer, shard, request.content_topics()),
            Err(outcome) => return outcome,
        },
    };
    if is_done {
        (FilterStatus::Success, "OK".into())
    } else {
        (FilterStatus::NotFound, "NOT_FOUND: peer has no subscriptions".into())
    }
}

fn subscribe(
    waku: &WakuNode,
    opener: &StreamOpener,
    peer: &StreamPeer,
    shard: u16,
    request: &FilterRequest<'_>,
) -> FilterOutcome {
    let start = |number, waiting| {
        let (listed, opener) = (Arc::clone(&peer.listed), opener.clone());
        let target = PushTarget { peer: peer.id, number, listed, opener };
        tokio::spawn(push::run(Arc::clone(&waku.filter), target, waiting));
    };
    match waku.filter.subscribe(peer, shard, request.content_topics(), start) {
        Ok(()) => (FilterStatus::Success, "OK".into()),
        Err(refusal) => (FilterStatus::Unavailable, format!("SERVICE_UNAVAILABLE: {refusal}")),
    }
}

/// Returns the key under which a peer's requests are counted for the rate limit: the last bytes of
/// the peer's id, which are from a hash or a public key.
fn key(peer: PeerId) -> Key {
    let bytes = peer.to_bytes();
    let last = bytes.len().saturating_sub(size_of::<Key>());
    let mut key = [0; size_of::<Key>()];
    key[..bytes.len() - last].copy_from_slice(&bytes[last..]);
    key
}

/// Checks the topics of a request. Returns the shard.
fn shard(waku: &WakuNode, request: &FilterRequest<'_>) -> Result<u16, FilterOutcome> {
    let topics = request.content_topics().take(TOPICS_MAX + 1).count();
    let Some(pubsub_topic) = request.pubsub_topic.filter(|_| topics > 0) else {
        return Err(bad("pubsubTopic and contentTopics must be specified"));
    };
    if topics > TOPICS_MAX {
        return Err(bad("exceeds maximum content topics: 100"));
    }
    match pubsub_topic.parse::<Shard>() {
        Ok(shard) if waku.serves_shard(shard) => Ok(shard.index),
        _ => Err(bad("this node does not serve the pubsub topic")),
    }
}

fn bad(why: &str) -> FilterOutcome {
    (FilterStatus::BadRequest, format!("BAD_REQUEST: {why}"))
}
