//! Compares Waku's messages with another implementation of Protocol Buffers. From any bytes, both
//! implementations read the same values, and each reads the bytes that the other writes.

use hark_codec::waku::protobuf::ProtobufError;
use hark_codec::waku::{Message, StoreRequest, StoreResponse, store};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;

// The names of messages and fields are from the specification.
#[allow(clippy::struct_field_names)]
mod oracle {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Message {
        #[prost(bytes = "vec", tag = "1")]
        pub payload: Vec<u8>,
        #[prost(string, tag = "2")]
        pub content_topic: String,
        #[prost(uint32, optional, tag = "3")]
        pub version: Option<u32>,
        #[prost(sint64, optional, tag = "10")]
        pub timestamp: Option<i64>,
        #[prost(bytes = "vec", optional, tag = "11")]
        pub meta: Option<Vec<u8>>,
        #[prost(bytes = "vec", optional, tag = "21")]
        pub proof: Option<Vec<u8>>,
        #[prost(bool, optional, tag = "31")]
        pub ephemeral: Option<bool>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Request {
        #[prost(string, tag = "1")]
        pub request_id: String,
        #[prost(bool, tag = "2")]
        pub include_data: bool,
        #[prost(string, optional, tag = "10")]
        pub pubsub_topic: Option<String>,
        #[prost(string, repeated, tag = "11")]
        pub content_topics: Vec<String>,
        #[prost(sint64, optional, tag = "12")]
        pub time_start: Option<i64>,
        #[prost(sint64, optional, tag = "13")]
        pub time_end: Option<i64>,
        #[prost(bytes = "vec", repeated, tag = "20")]
        pub message_hashes: Vec<Vec<u8>>,
        #[prost(bytes = "vec", optional, tag = "51")]
        pub cursor: Option<Vec<u8>>,
        #[prost(bool, tag = "52")]
        pub forward: bool,
        #[prost(uint64, optional, tag = "53")]
        pub limit: Option<u64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct KeyValue {
        #[prost(bytes = "vec", tag = "1")]
        pub message_hash: Vec<u8>,
        #[prost(bytes = "vec", optional, tag = "2")]
        pub message: Option<Vec<u8>>,
        #[prost(string, optional, tag = "3")]
        pub pubsub_topic: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Response {
        #[prost(string, tag = "1")]
        pub request_id: String,
        #[prost(uint32, optional, tag = "10")]
        pub status_code: Option<u32>,
        #[prost(string, optional, tag = "11")]
        pub status_desc: Option<String>,
        #[prost(message, repeated, tag = "20")]
        pub messages: Vec<KeyValue>,
        #[prost(bytes = "vec", optional, tag = "51")]
        pub cursor: Option<Vec<u8>>,
    }
}

fn owned(message: &Message<'_>) -> oracle::Message {
    oracle::Message {
        payload: message.payload.into(),
        content_topic: message.content_topic.into(),
        version: message.version,
        timestamp: message.timestamp,
        meta: message.meta.map(Vec::from),
        proof: message.proof.map(Vec::from),
        ephemeral: message.ephemeral,
    }
}

fn owned_request(request: &StoreRequest<'_>) -> oracle::Request {
    oracle::Request {
        request_id: request.request_id.into(),
        include_data: request.include_data,
        pubsub_topic: request.pubsub_topic.map(String::from),
        content_topics: request.content_topics().map(String::from).collect(),
        time_start: request.time_start,
        time_end: request.time_end,
        message_hashes: request.message_hashes().map(Vec::from).collect(),
        cursor: request.cursor.map(Vec::from),
        forward: request.forward,
        limit: request.limit,
    }
}

fn owned_response(response: &StoreResponse<'_>) -> oracle::Response {
    let messages = response.messages().map(|one| oracle::KeyValue {
        message_hash: one.message_hash.into(),
        message: one.message.map(Vec::from),
        pubsub_topic: one.pubsub_topic.map(String::from),
    });
    oracle::Response {
        request_id: response.request_id.into(),
        status_code: response.status_code,
        status_desc: response.status_desc.map(String::from),
        messages: messages.collect(),
        cursor: response.cursor.map(Vec::from),
    }
}

/// Asserts that both implementations read the same values from the bytes, or that both refuse the
/// bytes. Only Hark's implementation may refuse groups, and numbers that are longer than their
/// field.
fn alike<T: PartialEq + std::fmt::Debug>(
    ours: Result<T, ProtobufError>,
    theirs: Result<T, prost::DecodeError>,
) {
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs),
        (Err(_), Err(_)) | (Err(ProtobufError::Type(_) | ProtobufError::Varint), _) => {}
        (ours, theirs) => panic!("{ours:?} and {theirs:?}"),
    }
}

fn all_alike(bytes: &[u8]) {
    alike(Message::parse(bytes).map(|it| owned(&it)), oracle::Message::decode(bytes));
    alike(StoreRequest::parse(bytes).map(|it| owned_request(&it)), oracle::Request::decode(bytes));
    alike(
        StoreResponse::parse(bytes).map(|it| owned_response(&it)),
        oracle::Response::decode(bytes),
    );
}

prop_compose! {
    fn message()(
        payload in vec(any::<u8>(), 0..300),
        content_topic in ".{0,40}",
        version in option::of(any::<u32>()),
        timestamp in option::of(any::<i64>()),
        meta in option::of(vec(any::<u8>(), 0..70)),
        proof in option::of(vec(any::<u8>(), 0..9)),
        ephemeral in option::of(any::<bool>()),
    ) -> oracle::Message {
        oracle::Message { payload, content_topic, version, timestamp, meta, proof, ephemeral }
    }
}

prop_compose! {
    fn request()(
        request_id in ".{0,20}",
        include_data in any::<bool>(),
        pubsub_topic in option::of(".{0,20}"),
        content_topics in vec(".{0,20}", 0..5),
        (time_start, time_end) in (option::of(any::<i64>()), option::of(any::<i64>())),
        message_hashes in vec(vec(any::<u8>(), 0..34), 0..5),
        cursor in option::of(vec(any::<u8>(), 0..34)),
        forward in any::<bool>(),
        limit in option::of(any::<u64>()),
    ) -> oracle::Request {
        oracle::Request {
            request_id, include_data, pubsub_topic, content_topics, time_start, time_end,
            message_hashes, cursor, forward, limit,
        }
    }
}

/// Returns the bytes with some of them changed or removed, and others inserted.
fn spoiled(mut bytes: Vec<u8>, faults: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    for (place, what, byte) in faults {
        if bytes.is_empty() {
            break;
        }
        let at = place.index(bytes.len());
        match what % 3 {
            0 => bytes[at] = *byte,
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, *byte),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn messages_are_read_and_written_alike(theirs in message()) {
        let bytes = theirs.encode_to_vec();
        let ours = Message::parse(&bytes).unwrap();
        prop_assert_eq!(&owned(&ours), &theirs);
        let mut out = b"before".to_vec();
        let topic = 6 + ours.write(&mut out);
        prop_assert_eq!(&out[topic..][..ours.content_topic.len()], ours.content_topic.as_bytes());
        prop_assert_eq!(&oracle::Message::decode(&out[6..]).unwrap(), &theirs);
    }

    #[test]
    fn requests_are_read_and_written_alike(theirs in request()) {
        let bytes = theirs.encode_to_vec();
        let ours = StoreRequest::parse(&bytes).unwrap();
        prop_assert_eq!(&owned_request(&ours), &theirs);
        let mut out = Vec::new();
        ours.write(ours.content_topics(), ours.message_hashes(), &mut out);
        prop_assert_eq!(&oracle::Request::decode(&out[..]).unwrap(), &theirs);
    }

    #[test]
    fn answers_are_read_and_written_alike(
        id in ".{0,20}",
        description in ".{0,20}",
        messages in vec((any::<[u8; 32]>(), option::of((vec(any::<u8>(), 0..300), ".{0,200}"))), 0..6),
        cursor in option::of(any::<[u8; 32]>()),
    ) {
        let mut out = Vec::new();
        for (hash, data) in &messages {
            let data = data.as_ref().map(|(message, topic)| (&message[..], topic.as_bytes()));
            store::put_message(&mut out, hash, data);
        }
        store::put_answer(&mut out, &id, store::Status::Success, &description, cursor.as_ref());
        let theirs = oracle::Response::decode(&out[..]).unwrap();
        prop_assert_eq!(&owned_response(&StoreResponse::parse(&out).unwrap()), &theirs);
        let expected = messages.into_iter().map(|(hash, data)| {
            let (message, pubsub_topic) = data.unzip();
            oracle::KeyValue { message_hash: hash.into(), message, pubsub_topic }
        });
        prop_assert_eq!(theirs.messages, expected.collect::<Vec<_>>());
        prop_assert_eq!((theirs.status_code, theirs.request_id), (Some(200), id));
        prop_assert_eq!(theirs.cursor, cursor.map(Vec::from));
    }

    #[test]
    fn any_bytes_are_read_alike(bytes in vec(any::<u8>(), 0..60)) {
        all_alike(&bytes);
    }

    #[test]
    fn spoiled_bytes_are_read_alike(
        message in message(),
        request in request(),
        faults in vec((any::<prop::sample::Index>(), any::<u8>(), any::<u8>()), 1..5),
    ) {
        all_alike(&spoiled(message.encode_to_vec(), &faults));
        all_alike(&spoiled(request.encode_to_vec(), &faults));
        let key = oracle::KeyValue { message: Some(message.encode_to_vec()), ..Default::default() };
        let response = oracle::Response { messages: vec![key.clone(), key], ..Default::default() };
        all_alike(&spoiled(response.encode_to_vec(), &faults));
    }
}
