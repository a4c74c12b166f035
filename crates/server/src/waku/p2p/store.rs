//! `/vac/waku/store-query/3.0.0` (RFC 13/WAKU2-STORE): a stream has one request and one answer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::AsyncReadExt as _;
use futures_util::io::WriteHalf;
use hark_codec::waku::store::Status;
use hark_networks::waku::history::{HistoryError, HistoryPage, MessageRequest, answer};
use libp2p::Stream;

use super::incoming::{IncomingStreams, StreamPeer};
use super::{ask, frame};
use crate::answers::PermittedAnswer;
use crate::permits::Shares;
use crate::rate::RateSource;
use crate::waku::metrics::QuestionSource;
use crate::waku::node::WakuNode;

/// Maximum size of a request, in bytes: 1,000 hashes and 1,000 topics.
const REQUEST_MAX: usize = 256 << 10;
/// Maximum size of a short request, in bytes. The number of longer requests is bounded.
const REQUEST_SHORT: usize = 4 << 10;
/// Maximum number of concurrent long requests, in total and per address. Further long requests are
/// refused.
const LONG_REQUESTS_MAX: usize = 256;
const LONG_REQUESTS_PER_ADDRESS_MAX: usize = 32;
/// How long a stream may be idle before its request: js-waku opens streams ahead of time.
const REQUEST_WAIT: Duration = Duration::from_mins(30);
/// Permits for long requests, by address.
type LongRequests = Shares<RateSource>;

/// Answers the requests of all peers.
pub(super) fn serve(incoming: &IncomingStreams, waku: Arc<WakuNode>) {
    let long = LongRequests::new(LONG_REQUESTS_MAX, LONG_REQUESTS_PER_ADDRESS_MAX);
    incoming.serve(ask::PROTOCOL, move |peer, stream| {
        let (waku, long) = (Arc::clone(&waku), long.clone());
        async move { serve_one(&waku, &long, peer, stream).await }
    });
}

/// Answers the request of a stream. If the peer leaves, the waiting or running search is cancelled.
async fn serve_one(waku: &WakuNode, long: &LongRequests, mut peer: StreamPeer, mut stream: Stream) {
    let source = peer.source;
    let reading = frame::read_if(&mut stream, REQUEST_MAX, |len| {
        if len <= REQUEST_SHORT { Some(None) } else { long.acquire(source, 1).map(Some) }
    });
    let read = match tokio::time::timeout(REQUEST_WAIT, reading).await {
        Ok(Ok(Some(read))) => Ok(read),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err(HistoryError::Length(error.to_string()))
        }
        // The peer has left, or has sent no request in time: the stream is reset.
        _ => return,
    };
    let (mut reader, mut writer) = stream.split();
    let (request, _room) = match read {
        Ok(read) => read,
        Err(refusal) => {
            let refusing = send(waku, &mut writer, Err(refusal));
            return frame::discarding(&mut reader, refusing).await;
        }
    };
    let answering = async {
        let page = waku.page(source, || MessageRequest::read(&request)).await;
        send(waku, &mut writer, page).await;
    };
    tokio::select! {
        () = answering => {}
        () = frame::wait_until_left(&mut reader, &mut peer) => waku.metrics.gone.add(1),
    }
}

/// Sends the answer to a request.
async fn send(
    waku: &WakuNode,
    writer: &mut WriteHalf<Stream>,
    page: Result<PermittedAnswer<HistoryPage>, HistoryError>,
) {
    let status = page.as_ref().map_or_else(HistoryError::status, |_| Status::Success);
    waku.metrics.queries.of(QuestionSource::Peer).of(status.into()).add(1);
    let answer = answer(page.as_ref().map(|page| &page.page));
    // The encoded answer has a copy of the records. So the page is dropped before the transmission,
    // and only its permit is held.
    let _room = page.map(|page| page.room);
    // A write error affects only this peer, so the error is ignored.
    if frame::write(writer, &answer).await.is_ok() {
        let _ = frame::end(writer).await;
    }
}
