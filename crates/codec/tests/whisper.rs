//! Compares Whisper's RLP with another implementation. From any bytes, both implementations read
//! the same values, and each reads the bytes that the other writes.

use alloy_rlp::{Decodable as _, Encodable as _, Header};
use hark_codec::crypto::keccak256;
use hark_codec::record::Record;
use hark_codec::whisper::record::encode;
use hark_codec::whisper::request::RequestError;
use hark_codec::whisper::{
    Bloom, Completion, Envelope, EnvelopeError, EnvelopeRecord, HistoryCursor,
};
use hark_codec::whisper::{HistoryRequest, Topic};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// The content of a list. `bytes` must be exactly one list.
fn content(mut bytes: &[u8]) -> alloy_rlp::Result<&[u8]> {
    let content = Header::decode_bytes(&mut bytes, true)?;
    if bytes.is_empty() { Ok(content) } else { Err(alloy_rlp::Error::UnexpectedLength) }
}

fn their_envelope(bytes: &[u8]) -> alloy_rlp::Result<Envelope<'_>> {
    let mut items = content(bytes)?;
    let expiry = u32::decode(&mut items)?;
    let ttl = u32::decode(&mut items)?;
    let topic = <[u8; 4]>::decode(&mut items)?;
    let data = Header::decode_bytes(&mut items, false)?;
    let nonce = u64::decode(&mut items)?;
    let envelope = Envelope { expiry, ttl, topic, data, nonce };
    if items.is_empty() { Ok(envelope) } else { Err(alloy_rlp::Error::UnexpectedLength) }
}

fn written_by_them(envelope: &Envelope<'_>) -> Vec<u8> {
    let mut items = Vec::new();
    envelope.expiry.encode(&mut items);
    envelope.ttl.encode(&mut items);
    envelope.topic.encode(&mut items);
    envelope.data.encode(&mut items);
    envelope.nonce.encode(&mut items);
    list(&items)
}

fn list(items: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Header { list: true, payload_length: items.len() }.encode(&mut out);
    [out, items.to_vec()].concat()
}

/// The fields of a request: times, filter, topics, limit, cursor, batch.
type Said = (u32, u32, Vec<u8>, Vec<Topic>, u32, Vec<u8>, bool);

fn their_request(bytes: &[u8]) -> alloy_rlp::Result<Said> {
    let mut items = content(bytes)?;
    let (lower, upper) = (u32::decode(&mut items)?, u32::decode(&mut items)?);
    let bloom = Header::decode_bytes(&mut items, false)?.to_vec();
    let topics = Vec::<[u8; 4]>::decode(&mut items)?;
    let limit = u32::decode(&mut items)?;
    let cursor = Header::decode_bytes(&mut items, false)?.to_vec();
    let said = (lower, upper, bloom, topics, limit, cursor, bool::decode(&mut items)?);
    if items.is_empty() { Ok(said) } else { Err(alloy_rlp::Error::UnexpectedLength) }
}

fn written_request(said: &Said) -> Vec<u8> {
    let mut items = Vec::new();
    said.0.encode(&mut items);
    said.1.encode(&mut items);
    said.2[..].encode(&mut items);
    said.3.encode(&mut items);
    said.4.encode(&mut items);
    said.5[..].encode(&mut items);
    said.6.encode(&mut items);
    list(&items)
}

fn said(request: &HistoryRequest<'_>) -> Said {
    let bloom = request.bloom.map_or_else(Vec::new, |bloom| bloom.0.to_vec());
    let cursor = request.cursor.map_or_else(Vec::new, |cursor| cursor.bytes().to_vec());
    let topics = request.topics.iter().collect();
    (request.lower, request.upper, bloom, topics, request.limit, cursor, request.batch)
}

/// Asserts that both implementations read the same values from the bytes, or both refuse the bytes.
/// Hark may refuse a request that the other implementation reads, but not because of its RLP.
fn all_alike(bytes: &[u8]) {
    match (Envelope::parse(bytes), their_envelope(bytes)) {
        (Ok(ours), Ok(theirs)) => {
            assert_eq!(ours, theirs);
            let mut out = Vec::new();
            ours.write(&mut out);
            assert_eq!(out, bytes);
        }
        (Err(EnvelopeError::Ttl { ttl, expiry }), Ok(theirs)) => {
            assert_eq!((ttl, expiry), (theirs.ttl, theirs.expiry));
        }
        (Err(EnvelopeError::Rlp(_)), Err(_)) => {}
        (ours, theirs) => panic!("{ours:?} and {theirs:?}"),
    }
    if bytes.first().is_some_and(|first| *first >= 0xc0) {
        match (HistoryRequest::parse(bytes), their_request(bytes)) {
            (Ok(ours), Ok(theirs)) => assert_eq!(said(&ours), theirs),
            (Err(RequestError::Rlp(fault)), Ok(theirs)) => panic!("{fault} and {theirs:?}"),
            // A form that the other implementation does not know, or a request that only Hark
            // refuses.
            _ => {}
        }
    }
    let _ = (HistoryRequest::parse_open(bytes), Completion::parse(bytes));
}

fn spoiled(mut bytes: Vec<u8>, faults: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    for (at, byte, how) in faults {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match how % 4 {
            0 => bytes[at] = *byte,
            1 => bytes.truncate(at),
            2 => bytes.insert(at, *byte),
            _ => drop(bytes.remove(at)),
        }
    }
    bytes
}

prop_compose! {
    /// Numbers of all lengths.
    fn number()(bits in 0u32..=64, number in any::<u64>()) -> u64 {
        number.checked_shr(64 - bits).unwrap_or(0)
    }
}

prop_compose! {
    fn request()(
        times in (number(), number()),
        bloom in option::of(any::<[u8; 32]>()),
        topics in vec(any::<Topic>(), 0..20),
        limit in 0u32..=1001,
        cursor in option::of(any::<[u8; 32]>()),
        batch in any::<bool>(),
    ) -> Said {
        let (lower, upper) = (times.0 as u32, times.1 as u32);
        let bloom = bloom.map_or_else(Vec::new, |half| [half, half].concat());
        let cursor = cursor.map_or_else(Vec::new, |hash| HistoryCursor { sent: 7, hash }.bytes().to_vec());
        (lower, upper, bloom, topics, limit, cursor, batch)
    }
}

proptest! {
    #[test]
    fn envelopes_come_back_by_both(
        expiry in number(),
        ttl in number(),
        topic in any::<Topic>(),
        data in vec(any::<u8>(), 0..400),
        nonce in number(),
    ) {
        let envelope =
            Envelope { expiry: expiry as u32, ttl: ttl as u32, topic, data: &data, nonce };
        let mut rlp = Vec::new();
        envelope.write(&mut rlp);
        prop_assert_eq!(&rlp, &written_by_them(&envelope));
        prop_assert_eq!(envelope.hash(), keccak256(&rlp));
        all_alike(&rlp);
        let mut record = Vec::new();
        encode(&envelope, &envelope.hash(), &mut record);
        let record = Record::new(&record).unwrap();
        prop_assert_eq!(record.check(), Ok(()));
        let record = EnvelopeRecord::new(record);
        prop_assert_eq!((record.rlp(), record.topic()), (&rlp[..], Some(topic)));
        prop_assert_eq!(record.hash(), &envelope.hash());
        prop_assert!(Bloom::of_topic_or(topic).covers(&Bloom::of_topic(topic)));
    }

    #[test]
    fn requests_come_back_by_both(request in request()) {
        let theirs = written_request(&request);
        all_alike(&theirs);
        if let Ok(ours) = HistoryRequest::parse(&theirs) {
            let mut out = Vec::new();
            ours.write(request.3.iter().copied(), &mut out);
            prop_assert_eq!(out, theirs);
        } else {
            let empty = request.2.is_empty() && request.3.is_empty();
            let late = request.1 != 0 && request.0 > request.1;
            prop_assert!(empty || late || request.4 > 1000);
        }
    }

    #[test]
    fn any_bytes_are_read_alike(bytes in vec(any::<u8>(), 0..60)) {
        all_alike(&bytes);
        all_alike(&list(&bytes));
    }

    #[test]
    fn spoiled_bytes_are_read_alike(
        request in request(),
        data in vec(any::<u8>(), 0..100),
        faults in vec((any::<prop::sample::Index>(), any::<u8>(), any::<u8>()), 1..5),
    ) {
        all_alike(&spoiled(written_request(&request), &faults));
        let envelope =
            Envelope { expiry: request.1, ttl: request.0, topic: [7; 4], data: &data, nonce: 300 };
        all_alike(&spoiled(written_by_them(&envelope), &faults));
    }
}
