//! The requests, answers and pushes of Waku's filter and light push. Values are the same after they
//! are written and read again, and a push is read by a strict decoder.

use hark_codec::waku::protobuf::ProtobufFields;
use hark_codec::waku::{
    FilterPush, FilterRequest, FilterResponse, LegacyPush, LightPushRequest, LightPushResponse,
    Message,
};

const PUBSUB: &str = "/waku/2/rs/1/0";

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    let mut out = Vec::new();
    if let Ok(request) = FilterRequest::parse(bytes) {
        request.write(request.content_topics(), &mut out);
        let again = FilterRequest::parse(&out).expect("what was written is a request");
        assert!(again.content_topics().eq(request.content_topics()));
        assert_eq!(
            (again.request_id, again.pubsub_topic),
            (request.request_id, request.pubsub_topic)
        );
        assert!(again.action == request.action || request.action.is_none());
    }
    if let Ok(response) = FilterResponse::parse(bytes) {
        out.clear();
        response.write(&mut out);
        assert_eq!(FilterResponse::parse(&out), Ok(response));
    }
    if let Ok(request) = LightPushRequest::parse(bytes) {
        out.clear();
        request.write(&mut out);
        assert_eq!(LightPushRequest::parse(&out), Ok(request));
        if let Some(Ok(message)) = request.message.map(Message::parse) {
            forwarded(&message);
        }
    }
    if let Ok(response) = LightPushResponse::parse(bytes) {
        out.clear();
        response.write(&mut out);
        assert_eq!(LightPushResponse::parse(&out), Ok(response));
    }
    if let Ok(push) = LegacyPush::parse(bytes) {
        out.clear();
        push.write(&mut out);
        assert_eq!(LegacyPush::parse(&out), Ok(push));
    }
    if let Ok(message) = Message::parse(bytes) {
        forwarded(&message);
    }
}

/// Checks the bytes that a subscriber gets: two fields, and the message with each field once, in
/// the order of the numbers.
fn forwarded(message: &Message<'_>) {
    let (mut wire, mut push) = (Vec::new(), Vec::new());
    message.write(&mut wire);
    FilterPush { message: &wire, pubsub_topic: PUBSUB }.write(&mut push);
    let numbers = |bytes: &[u8]| -> Vec<u32> {
        ProtobufFields::new(bytes).map(|field| field.expect("a field").number).collect()
    };
    assert_eq!(numbers(&push), [1, 2]);
    assert!(numbers(&wire).is_sorted_by(|one, next| one < next));
    let read = FilterPush::parse(&push).expect("what was written is a push");
    assert_eq!((Message::parse(read.message), read.pubsub_topic), (Ok(*message), PUBSUB));
}
