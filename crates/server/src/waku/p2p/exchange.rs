//! `/vac/waku/peer-exchange/2.0.0-alpha1` (RFC 34/WAKU2-PEER-EXCHANGE): records of reachable nodes.
//!
//! An answer also contains the answering node's own record. So a node's record spreads by this
//! protocol alone, as soon as one peer has asked the node.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::AsyncReadExt as _;
use hark_codec::waku::ProtobufError;
use hark_codec::waku::protobuf::{ProtobufFields, put_bytes, put_number};
use libp2p::PeerId;

use super::discovery::NodeRecord;
use super::frame;
use super::incoming::{IncomingStreams, StreamPeer};
use super::outgoing::StreamOpener;
use crate::limits::Rate;
use crate::rate::{RateBuckets, RateSubject};
use crate::waku::metrics::{Direction, ExchangeStatus};
use crate::waku::node::WakuNode;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "/vac/waku/peer-exchange/2.0.0-alpha1";
/// Maximum number of records in an answer, as in nwaku.
pub(super) const RECORDS_MAX: usize = 60;
/// Maximum size of a request, in bytes.
const REQUEST_MAX: usize = 1_024;
/// Maximum size of an answer, in bytes: nwaku sends up to 60 records of 300 bytes.
const ANSWER_MAX: usize = 32 << 10;
/// How long a peer may take to send its request, and to answer.
const WAIT: Duration = Duration::from_secs(20);
/// How fast the peers at one address may request records.
const RATE: Rate = Rate { per_minute: 12, at_once: 30 };

/// Why a peer sent no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer exchange ended with status {0:?}")]
pub(super) struct ExchangeFault(pub(super) ExchangeStatus);

/// Answers the requests of all peers.
pub(super) fn serve(incoming: &IncomingStreams, waku: &Arc<WakuNode>) {
    let (waku, buckets) = (Arc::clone(waku), Arc::new(RateBuckets::default()));
    incoming.serve(PROTOCOL, move |peer, stream| {
        let (waku, buckets) = (Arc::clone(&waku), Arc::clone(&buckets));
        async move { serve_one(&waku, &buckets, &peer, stream).await }
    });
}

async fn serve_one(
    waku: &WakuNode,
    buckets: &RateBuckets,
    peer: &StreamPeer,
    mut stream: libp2p::Stream,
) {
    let reading = frame::read(&mut stream, REQUEST_MAX);
    let read = match tokio::time::timeout(WAIT, reading).await {
        Ok(Ok(Some(request))) => Ok(request),
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => Err(error),
        // The peer has left, or has sent no request in time: the stream is reset.
        _ => return,
    };
    let (status, words, records) = answer(waku, buckets, peer, &read);
    waku.metrics.exchanges.of(Direction::Sent).of(status).add(1);
    let bytes = encode_answer(status, &words, &records);
    let (mut reader, mut writer) = stream.split();
    let answering = async {
        // A write error affects only this peer, so the error is ignored.
        if frame::write(&mut writer, &bytes).await.is_ok() {
            let _ = frame::end(&mut writer).await;
        }
    };
    frame::discarding(&mut reader, answering).await;
}

fn answer(
    waku: &WakuNode,
    buckets: &RateBuckets,
    peer: &StreamPeer,
    read: &io::Result<Vec<u8>>,
) -> (ExchangeStatus, String, Vec<NodeRecord>) {
    let refused = |status, words: &str| (status, words.to_owned(), Vec::new());
    if buckets.charge(RateSubject::Questions(peer.source), RATE).is_err() {
        return refused(ExchangeStatus::TooManyRequests, "too many requests; try again later");
    }
    let invalid = |words: &str| refused(ExchangeStatus::BadRequest, words);
    let count = match read.as_ref().map(|request| requested(request)) {
        Ok(Ok(Some(count))) => usize::try_from(count).unwrap_or(usize::MAX).min(RECORDS_MAX),
        Ok(Ok(None)) => return invalid("the message has no request"),
        Ok(Err(fault)) => return invalid(&fault.to_string()),
        Err(fault) => return invalid(&fault.to_string()),
    };
    let Some(network) = &waku.network else {
        return refused(ExchangeStatus::Unavailable, "this node has no peers");
    };
    let own = network.own_record().filter(|own| !own.addrs.is_empty());
    let known = network.directory.book.lock().reachable(Instant::now(), RECORDS_MAX + 1);
    let others = known.into_iter().filter(|record| record.peer != peer.id);
    (ExchangeStatus::Success, "OK".into(), own.into_iter().chain(others).take(count).collect())
}

/// Requests records from a connected peer. Returns the bytes of each record.
pub(super) async fn ask(
    opener: &StreamOpener,
    peer: PeerId,
    count: usize,
) -> Result<Vec<Vec<u8>>, ExchangeFault> {
    let asking = async {
        let opened = opener.open(peer, PROTOCOL).await;
        let mut stream = opened.map_err(|_| ExchangeStatus::DialFailure)?;
        let away = |_| ExchangeStatus::Unavailable;
        frame::write(&mut stream, &encode_request(count)).await.map_err(away)?;
        frame::end(&mut stream).await.map_err(away)?;
        let answer = frame::read(&mut stream, ANSWER_MAX).await.map_err(away)?;
        let answer = answer.ok_or(ExchangeStatus::Unavailable)?;
        decode_answer(&answer, count).unwrap_or(Err(ExchangeStatus::BadResponse))
    };
    let asked = tokio::time::timeout(WAIT, asking).await;
    asked.unwrap_or(Err(ExchangeStatus::Unavailable)).map_err(ExchangeFault)
}

fn encode_request(count: usize) -> Vec<u8> {
    let (mut request, mut out) = (Vec::new(), Vec::new());
    put_number(&mut request, 1, count as u64);
    put_bytes(&mut out, 1, &request);
    out
}

/// Returns how many records a request asks for; `None` if the bytes have no request.
fn requested(bytes: &[u8]) -> Result<Option<u64>, ProtobufError> {
    let mut count = None;
    for field in ProtobufFields::new(bytes) {
        let field = field?;
        if field.number == 1 {
            count = Some(0);
            for inner in ProtobufFields::new(field.bytes()?) {
                let inner = inner?;
                if inner.number == 1 {
                    count = Some(inner.varint()?);
                }
            }
        }
    }
    Ok(count)
}

/// Encodes an answer. nwaku refuses an answer without a request, so the answer contains an
/// empty request.
fn encode_answer(status: ExchangeStatus, words: &str, records: &[NodeRecord]) -> Vec<u8> {
    let (mut empty, mut response, mut out) = (Vec::new(), Vec::new(), Vec::new());
    put_number(&mut empty, 1, 0);
    for record in records {
        let mut info = Vec::new();
        put_bytes(&mut info, 1, &record.encode());
        put_bytes(&mut response, 1, &info);
    }
    put_number(&mut response, 10, code(status).into());
    put_bytes(&mut response, 11, words.as_bytes());
    put_bytes(&mut out, 1, &empty);
    put_bytes(&mut out, 2, &response);
    out
}

/// Returns at most `max` records of an answer, or the answer's status if it reports a failure. As
/// in nwaku, an answer without a status is a success if it has records.
pub(super) fn decode_answer(
    bytes: &[u8],
    max: usize,
) -> Result<Result<Vec<Vec<u8>>, ExchangeStatus>, ProtobufError> {
    let (mut records, mut status) = (Vec::new(), None);
    for field in ProtobufFields::new(bytes) {
        let field = field?;
        if field.number != 2 {
            continue;
        }
        for inner in ProtobufFields::new(field.bytes()?) {
            let inner = inner?;
            match inner.number {
                1 if records.len() < max => {
                    for field in ProtobufFields::new(inner.bytes()?) {
                        let field = field?;
                        if field.number == 1 {
                            records.push(field.bytes()?.to_vec());
                        }
                    }
                }
                10 => status = Some(inner.uint32()?),
                _ => {}
            }
        }
    }
    records.truncate(max);
    Ok(match status {
        Some(200) => Ok(records),
        None if !records.is_empty() => Ok(records),
        Some(400) => Err(ExchangeStatus::BadRequest),
        Some(429) => Err(ExchangeStatus::TooManyRequests),
        Some(599) => Err(ExchangeStatus::DialFailure),
        Some(401) => Err(ExchangeStatus::BadResponse),
        _ => Err(ExchangeStatus::Unavailable),
    })
}

fn code(status: ExchangeStatus) -> u32 {
    match status {
        ExchangeStatus::Success => 200,
        ExchangeStatus::BadRequest => 400,
        ExchangeStatus::BadResponse => 401,
        ExchangeStatus::TooManyRequests => 429,
        ExchangeStatus::Unavailable => 503,
        ExchangeStatus::DialFailure => 599,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_have_the_bytes_of_nwaku() {
        assert_eq!(encode_request(60), [10, 2, 8, 60]);
        assert_eq!(requested(&[10, 2, 8, 60]), Ok(Some(60)));
        assert_eq!(requested(&[10, 0]), Ok(Some(0)));
        assert_eq!(requested(&[]), Ok(None));
        assert!(requested(&[10, 9, 8]).is_err());
        let refused = encode_answer(ExchangeStatus::TooManyRequests, "no", &[]);
        assert_eq!(refused, [10, 2, 8, 0, 18, 7, 80, 173, 3, 90, 2, b'n', b'o']);
        assert_eq!(decode_answer(&refused, 9), Ok(Err(ExchangeStatus::TooManyRequests)));
        // Two records and no status, as in the answers of older nodes.
        let older = [18, 10, 10, 3, 10, 1, 7, 10, 3, 10, 1, 8];
        assert_eq!(decode_answer(&older, 9), Ok(Ok(vec![vec![7], vec![8]])));
        assert_eq!(decode_answer(&older, 1), Ok(Ok(vec![vec![7]])));
        assert_eq!(decode_answer(&[], 9), Ok(Err(ExchangeStatus::Unavailable)));
    }
}
