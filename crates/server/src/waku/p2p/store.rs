//! `/vac/waku/store-query/3.0.0` (RFC 13/WAKU2-STORE): one request, one answer, then the stream ends.

use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use hark_codec::waku::store::{PAGE_MAX, Status};
use hark_codec::waku::{ProtobufError, Response};
use libp2p::{PeerId, StreamProtocol};
use libp2p_stream::Control;
use tokio::sync::Semaphore;

use super::frame;
use super::incoming::Incoming;
use crate::rate::Source;
use crate::waku::Waku;
use crate::waku::history::{self, Refusal};
use crate::waku::metrics::Asker;

/// Its name.
pub(super) const PROTOCOL: &str = "/vac/waku/store-query/3.0.0";
/// Bytes of a request, at most: 1,000 hashes and 1,000 topics.
const REQUEST_MAX: usize = 256 << 10;
/// Bytes of a request that is not counted among the long ones.
const REQUEST_SHORT: usize = 4 << 10;
/// Long requests of all peers at a time. One more is refused.
const LONG_REQUESTS_MAX: usize = 256;
/// Bytes of another store's answer, at most: 100 messages of 150 KiB, and what is around them.
const ANSWER_MAX: usize = 16 << 20;
/// How long a stream may rest before its request comes: js-waku opens them ahead of time.
const REQUEST_WAIT: Duration = Duration::from_mins(30);
/// How long another store may take.
const ANSWER_WAIT: Duration = Duration::from_secs(20);

/// Answers whoever asks.
pub(super) fn serve(incoming: &Incoming, waku: Arc<Waku>) {
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
                    (Vec::new(), Err(Refusal::Length(error.to_string())))
                }
                // It is gone, or never asks: the stream is reset.
                _ => return,
            };
            let status = page.as_ref().map_or_else(Refusal::status, |_| Status::Success);
            waku.metrics.queries.of(Asker::Peer).of(status.into()).add(1);
            let answer = history::answer(&request, page.as_ref().map(|told| &told.page));
            // Whether the peer takes it is its own affair.
            if frame::write(&mut stream, &answer).await.is_ok() {
                let _ = frame::end(&mut stream).await;
            }
        }
    });
}

/// A peer, as what it does is measured.
fn source(peer: PeerId) -> Source {
    let mut hash = std::hash::DefaultHasher::new();
    peer.hash(&mut hash);
    Source::Connection(hash.finish())
}

/// Asks a peer. Says why there is no answer, or gives its bytes, which are one.
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
    let told = Response::parse(&answer)
        .map_err(|error: ProtobufError| format!("the peer's answer is none: {error}"))?;
    // A message can take three bytes there, and far more once it is read.
    if told.messages().nth(PAGE_MAX).is_some() {
        return Err(format!("the peer's answer has more than {PAGE_MAX} messages"));
    }
    Ok(answer)
}
