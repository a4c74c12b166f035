//! Compares the messages of filter and light push with another implementation of Protocol Buffers.

use hark_codec::waku::filter::FilterAction;
use hark_codec::waku::protobuf::ProtobufError;
use hark_codec::waku::{
    FilterPush, FilterRequest, FilterResponse, LegacyPush, LightPushRequest, LightPushResponse,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;

mod oracle {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct SubscribeRequest {
        #[prost(string, tag = "1")]
        pub request_id: String,
        #[prost(uint64, tag = "2")]
        pub action: u64,
        #[prost(string, optional, tag = "10")]
        pub pubsub_topic: Option<String>,
        #[prost(string, repeated, tag = "11")]
        pub content_topics: Vec<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct SubscribeResponse {
        #[prost(string, tag = "1")]
        pub request_id: String,
        #[prost(uint32, tag = "10")]
        pub status_code: u32,
        #[prost(string, optional, tag = "11")]
        pub status_desc: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Push {
        #[prost(bytes = "vec", tag = "1")]
        pub message: Vec<u8>,
        #[prost(string, tag = "2")]
        pub pubsub_topic: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct PublishRequest {
        #[prost(string, tag = "1")]
        pub request_id: String,
        #[prost(string, optional, tag = "20")]
        pub pubsub_topic: Option<String>,
        #[prost(bytes = "vec", optional, tag = "21")]
        pub message: Option<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct PublishResponse {
        #[prost(string, tag = "1")]
        pub request_id: String,
        #[prost(uint32, tag = "10")]
        pub status_code: u32,
        #[prost(string, optional, tag = "11")]
        pub status_desc: Option<String>,
        #[prost(uint32, optional, tag = "12")]
        pub relay_peer_count: Option<u32>,
    }

    /// The nested messages are declared as bytes, because prost would merge several nested messages
    /// with the same field number.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Legacy {
        #[prost(string, tag = "1")]
        pub request_id: String,
        #[prost(bytes = "vec", optional, tag = "2")]
        pub request: Option<Vec<u8>>,
        #[prost(bytes = "vec", optional, tag = "3")]
        pub response: Option<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct LegacyRequest {
        #[prost(string, tag = "1")]
        pub pubsub_topic: String,
        #[prost(bytes = "vec", tag = "2")]
        pub message: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct LegacyResponse {
        #[prost(bool, tag = "1")]
        pub is_success: bool,
        #[prost(string, tag = "2")]
        pub info: String,
    }
}

fn action(number: u64) -> Option<FilterAction> {
    match number {
        0 => Some(FilterAction::Ping),
        1 => Some(FilterAction::Subscribe),
        2 => Some(FilterAction::Unsubscribe),
        3 => Some(FilterAction::UnsubscribeAll),
        _ => None,
    }
}

/// Asserts that both implementations read the same values, or that both refuse the bytes. Only
/// Hark's implementation may refuse groups, and numbers that are longer than their field.
fn alike<T, U>(
    ours: Result<T, ProtobufError>,
    theirs: Result<U, prost::DecodeError>,
    same: impl FnOnce(T, U),
) {
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => same(ours, theirs),
        (Err(_), Err(_)) | (Err(ProtobufError::Type(_) | ProtobufError::Varint), _) => {}
        (Ok(_), Err(error)) => panic!("only the other implementation refuses: {error}"),
        (Err(error), Ok(_)) => panic!("only Hark refuses: {error}"),
    }
}

fn all_alike(bytes: &[u8]) {
    alike(FilterRequest::parse(bytes), oracle::SubscribeRequest::decode(bytes), |ours, theirs| {
        assert_eq!(ours.request_id, theirs.request_id);
        assert_eq!(ours.action, action(theirs.action));
        assert_eq!(ours.pubsub_topic, theirs.pubsub_topic.as_deref());
        assert!(ours.content_topics().eq(theirs.content_topics.iter().map(String::as_str)));
    });
    alike(
        FilterResponse::parse(bytes),
        oracle::SubscribeResponse::decode(bytes),
        |ours, theirs| {
            let status_desc = theirs.status_desc.as_deref();
            let oracle::SubscribeResponse { request_id, status_code, .. } = &theirs;
            let theirs = FilterResponse { request_id, status_code: *status_code, status_desc };
            assert_eq!(ours, theirs);
        },
    );
    alike(FilterPush::parse(bytes), oracle::Push::decode(bytes), |ours, theirs| {
        let oracle::Push { message, pubsub_topic } = &theirs;
        assert_eq!(ours, FilterPush { message, pubsub_topic });
    });
    alike(LightPushRequest::parse(bytes), oracle::PublishRequest::decode(bytes), |ours, theirs| {
        let (request_id, message) = (&*theirs.request_id, theirs.message.as_deref());
        let pubsub_topic = theirs.pubsub_topic.as_deref();
        assert_eq!(ours, LightPushRequest { request_id, pubsub_topic, message });
    });
    alike(
        LightPushResponse::parse(bytes),
        oracle::PublishResponse::decode(bytes),
        |ours, theirs| {
            assert_eq!(ours.request_id, theirs.request_id);
            assert_eq!(ours.status_code, theirs.status_code);
            assert_eq!(ours.status_desc, theirs.status_desc.as_deref());
            assert_eq!(ours.relay_peer_count, theirs.relay_peer_count);
        },
    );
    legacy_alike(bytes);
}

/// If the request or the response occurs more than once, only the last occurrence is compared,
/// because prost keeps only the last occurrence.
fn legacy_alike(bytes: &[u8]) {
    let (Ok(ours), Ok(theirs)) = (LegacyPush::parse(bytes), oracle::Legacy::decode(bytes)) else {
        return;
    };
    assert_eq!(ours.request_id, theirs.request_id);
    assert_eq!(ours.request.is_some(), theirs.request.is_some());
    if let (Some(ours), Some(bytes)) = (ours.request, theirs.request) {
        let theirs = oracle::LegacyRequest::decode(&bytes[..]).expect("Hark has read it");
        assert_eq!((ours.pubsub_topic, ours.message), (&*theirs.pubsub_topic, &*theirs.message));
    }
    assert_eq!(ours.response.is_some(), theirs.response.is_some());
    if let (Some(ours), Some(bytes)) = (ours.response, theirs.response) {
        let theirs = oracle::LegacyResponse::decode(&bytes[..]).expect("Hark has read it");
        assert_eq!((ours.is_success, ours.info), (theirs.is_success, &*theirs.info));
    }
}

prop_compose! {
    fn subscribe_request()(
        request_id in ".{0,20}",
        action in 0_u64..6,
        pubsub_topic in option::of(".{0,20}"),
        content_topics in vec(".{0,20}", 0..5),
    ) -> oracle::SubscribeRequest {
        oracle::SubscribeRequest { request_id, action, pubsub_topic, content_topics }
    }
}

prop_compose! {
    fn publish_request()(
        request_id in ".{0,20}",
        pubsub_topic in option::of(".{0,20}"),
        message in option::of(vec(any::<u8>(), 0..200)),
    ) -> oracle::PublishRequest {
        oracle::PublishRequest { request_id, pubsub_topic, message }
    }
}

prop_compose! {
    fn publish_response()(
        request_id in ".{0,20}",
        status_code in any::<u32>(),
        status_desc in option::of(".{0,20}"),
        relay_peer_count in option::of(any::<u32>()),
    ) -> oracle::PublishResponse {
        oracle::PublishResponse { request_id, status_code, status_desc, relay_peer_count }
    }
}

prop_compose! {
    fn legacy()(
        request_id in ".{0,20}",
        request in option::of((".{0,20}", vec(any::<u8>(), 0..200))),
        response in option::of((any::<bool>(), ".{0,20}")),
    ) -> oracle::Legacy {
        let request = request.map(|(pubsub_topic, message)| {
            oracle::LegacyRequest { pubsub_topic, message }.encode_to_vec()
        });
        let response = response.map(|(is_success, info)| {
            oracle::LegacyResponse { is_success, info }.encode_to_vec()
        });
        oracle::Legacy { request_id, request, response }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn requests_to_subscribe_are_read_and_written_alike(theirs in subscribe_request()) {
        let bytes = theirs.encode_to_vec();
        let ours = FilterRequest::parse(&bytes).unwrap();
        all_alike(&bytes);
        let mut out = Vec::new();
        ours.write(ours.content_topics(), &mut out);
        let again = oracle::SubscribeRequest::decode(&out[..]).unwrap();
        let action = if theirs.action > 3 { 0 } else { theirs.action };
        prop_assert_eq!(again, oracle::SubscribeRequest { action, ..theirs });
    }

    #[test]
    fn messages_to_publish_are_read_and_written_alike(
        request in publish_request(),
        response in publish_response(),
        legacy in legacy(),
    ) {
        let bytes = request.encode_to_vec();
        let mut out = Vec::new();
        LightPushRequest::parse(&bytes).unwrap().write(&mut out);
        prop_assert_eq!(oracle::PublishRequest::decode(&out[..]).unwrap(), request);
        let bytes = response.encode_to_vec();
        out.clear();
        LightPushResponse::parse(&bytes).unwrap().write(&mut out);
        prop_assert_eq!(oracle::PublishResponse::decode(&out[..]).unwrap(), response);
        let bytes = legacy.encode_to_vec();
        out.clear();
        LegacyPush::parse(&bytes).unwrap().write(&mut out);
        legacy_alike(&bytes);
        prop_assert_eq!(LegacyPush::parse(&out), LegacyPush::parse(&bytes));
        legacy_alike(&out);
    }

    #[test]
    fn responses_and_pushes_are_written_as_the_other_side_reads_them(
        request_id in ".{0,20}",
        status_code in any::<u32>(),
        status_desc in option::of(".{0,20}"),
        message in vec(any::<u8>(), 0..200),
        pubsub_topic in ".{0,20}",
    ) {
        let mut out = Vec::new();
        let words = status_desc.as_deref();
        FilterResponse { request_id: &request_id, status_code, status_desc: words }.write(&mut out);
        let theirs = oracle::SubscribeResponse::decode(&out[..]).unwrap();
        prop_assert_eq!(theirs, oracle::SubscribeResponse { request_id, status_code, status_desc });
        out.clear();
        FilterPush { message: &message, pubsub_topic: &pubsub_topic }.write(&mut out);
        prop_assert_eq!(oracle::Push::decode(&out[..]).unwrap(), oracle::Push { message, pubsub_topic });
    }

    #[test]
    fn any_bytes_are_read_alike(bytes in vec(any::<u8>(), 0..60)) {
        all_alike(&bytes);
    }

    #[test]
    fn spoiled_bytes_are_read_alike(
        subscribe in subscribe_request(),
        publish in publish_request(),
        response in publish_response(),
        legacy in legacy(),
        faults in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let all = [
            subscribe.encode_to_vec(), publish.encode_to_vec(), response.encode_to_vec(),
            legacy.encode_to_vec(),
        ];
        for mut bytes in all {
            for (place, byte) in &faults {
                if !bytes.is_empty() {
                    let at = place.index(bytes.len());
                    bytes[at] = *byte;
                }
            }
            all_alike(&bytes);
        }
    }
}
