//! `/vac/waku/store-query/3.0.0` (RFC 13/WAKU2-STORE): a stream has one request and one answer.

use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use hark_codec::waku::store::{PAGE_MAX, Status};
use hark_codec::waku::{ProtobufError, StoreResponse};
use libp2p::{PeerId, StreamProtocol};
use libp2p_stream::Control;
use tokio::sync::Semaphore;

use super::frame;
use super::incoming::IncomingStreams;
use crate::rate::RateSource;
use crate::waku::WakuNode;
use crate::waku::history::{self, HistoryError};
use crate::waku::metrics::QuestionSource;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "/vac/waku/store-query/3.0.0";
/// Maximum size of a request, in bytes: 1,000 hashes and 1,000 topics.
const REQUEST_MAX: usize = 256 << 10;
/// Maximum size of a short request, in bytes. Longer ones are counted.
const REQUEST_SHORT: usize = 4 << 10;
/// Maximum number of long requests of all peers at a time. Further ones are refused.
const LONG_REQUESTS_MAX: usize = 256;
/// Maximum size of another store's answer, in bytes: 100 messages of 150 KiB, with their envelopes.
const ANSWER_MAX: usize = 16 << 20;
/// How long a stream may be idle before its request: js-waku opens streams ahead of time.
const REQUEST_WAIT: Duration = Duration::from_mins(30);
/// How long another store may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(20);

/// Answers the requests of all peers.
pub(super) fn serve(incoming: &IncomingStreams, waku: Arc<WakuNode>) {
    let long = Arc::new(Semaphore::new(LONG_REQUESTS_MAX));
    incoming.serve(PROTOCOL, move |peer, mut stream| {
        let (waku, long) = (Arc::clone(&waku), Arc::clone(&long));
        async move {
            let reading = frame::read_short(&mut stream, REQUEST_SHORT, REQUEST_MAX, long);
            let (request, page) = match tokio::time::timeout(REQUEST_WAIT, reading).await {
                Ok(Ok(Some((request, _room)))) => {
                    let page = waku.page(source(peer), &request).await;
                    (request, page)
                }
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                    (Vec::new(), Err(HistoryError::Length(error.to_string())))
                }
                // The peer is gone, or has sent no request in time: the stream is reset.
                _ => return,
            };
            let status = page.as_ref().map_or_else(HistoryError::status, |_| Status::Success);
            waku.metrics.queries.of(QuestionSource::Peer).of(status.into()).add(1);
            let answer = history::answer(&request, page.as_ref().map(|page| &page.page));
            drop(request);
            // The answer has its own copy of the records: only the permit is held while it is sent.
            let _room = page.map(|page| page.room);
            // A failure concerns only the peer.
            if frame::write(&mut stream, &answer).await.is_ok() {
                let _ = frame::end(&mut stream).await;
            }
        }
    });
}

/// The source under which a peer's requests are counted for rate limits.
fn source(peer: PeerId) -> RateSource {
    let mut hash = std::hash::DefaultHasher::new();
    peer.hash(&mut hash);
    RateSource::Connection(hash.finish())
}

/// Sends a request to a peer. Returns the bytes of a valid answer, or why there is none.
pub(super) async fn ask(
    mut control: Control,
    peer: PeerId,
    request: &[u8],
) -> Result<Vec<u8>, String> {
    let asking = async {
        let stream = control.open_stream(peer, StreamProtocol::new(PROTOCOL)).await;
        let mut stream = stream.map_err(|error| error.to_string())?;
        let broken = |error: std::io::Error| format!("the peer did not answer: {error}");
        frame::write(&mut stream, request).await.map_err(broken)?;
        frame::end(&mut stream).await.map_err(broken)?;
        let answer = frame::read(&mut stream, ANSWER_MAX).await.map_err(broken)?;
        answer.ok_or_else(|| "the peer did not answer".to_owned())
    };
    let answer = match tokio::time::timeout(ANSWER_WAIT, asking).await {
        Ok(answer) => answer?,
        Err(_) => return Err(format!("the peer took more than {} s", ANSWER_WAIT.as_secs())),
    };
    let parsed = StoreResponse::parse(&answer)
        .map_err(|error: ProtobufError| format!("the peer's answer is none: {error}"))?;
    // A message can take three bytes in the answer, and far more once it is parsed.
    if parsed.messages().nth(PAGE_MAX).is_some() {
        return Err(format!("the peer's answer has more than {PAGE_MAX} messages"));
    }
    Ok(answer)
}
