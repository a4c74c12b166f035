//! The contracts of the Waku node's REST interface.

use hark_testkit::clock::now_s;
use hark_testkit::http::{HttpRequest, get};
use hark_testkit::wait::until;
use serde_json::{Value, json};

use super::Answer::{self, Own, Same};
use super::without_numbers;
use crate::fixture::{self, CONTENT_TOPICS, FIRST_S, LAST_S, message};
use crate::world::{World, number};

/// The parameters of the fixture's messages.
fn of_fixture() -> String {
    format!("startTime={FIRST_S}000000000&endTime={LAST_S}000000000&includeData=true")
}

pub(super) fn history(world: &World) -> Answer {
    let mut out = String::new();
    for more in [
        "&pageSize=100".to_owned(),
        "&pageSize=7&ascending=false".into(),
        format!("&contentTopics={}&pageSize=100", CONTENT_TOPICS[0].replace('/', "%2F")),
    ] {
        let mut cursor = String::new();
        loop {
            let path = format!("/store/v3/messages?{}{more}&cursor={cursor}", of_fixture());
            let page = get(&world.reads().waku, &path).ok();
            out = out + &page + "\n";
            let page: Value = serde_json::from_str(&page).expect("JSON");
            match page["paginationCursor"].as_str() {
                Some(next) => cursor = next.into(),
                None => break,
            }
        }
    }
    Same(out)
}

/// The current second, with a different number of nanoseconds in each call.
fn unused_ns() -> u64 {
    now_s() * 1_000_000_000 + u64::from(number())
}

/// Publishes a message, and waits until the reader's history contains the message.
fn publish_message(world: &World, path: &str, topic: &str) -> u64 {
    let at = unused_ns();
    let message = message(topic, at, "published").to_string();
    let reply = HttpRequest::new("POST", path).json(&message).send(&world.writes().waku);
    assert_eq!((reply.status, reply.text()), (200, "OK".into()));
    let path = format!("/store/v3/messages?startTime={at}&endTime={at}");
    until("the message is in the history", || {
        let page = get(&world.reads().waku, &path).json();
        page["messages"].as_array().is_some_and(|found| found.len() == 1)
    });
    at
}

pub(super) fn published(world: &World) -> Answer {
    publish_message(world, "/relay/v1/auto/messages", CONTENT_TOPICS[0]);
    Own
}

pub(super) fn published_to_shard(world: &World) -> Answer {
    let kept = fixture::kept(CONTENT_TOPICS[0], 0, "");
    let shard = kept["pubsubTopic"].as_str().expect("a topic").replace('/', "%2F");
    let path = format!("/relay/v1/messages/{shard}");
    get(&world.writes().waku, &path).ok();
    let at = publish_message(world, &path, CONTENT_TOPICS[0]);
    let polled = get(&world.writes().waku, &path).json();
    let polled = polled.as_array().expect("a list");
    assert!(polled.iter().any(|message| message["timestamp"] == at), "{polled:?}");
    Own
}

pub(super) fn polled(world: &World) -> Answer {
    let addr = &world.writes().waku;
    let topic = format!("/polled{}/1/chat/proto", number());
    let list = json!([topic]).to_string();
    let path = "/relay/v1/auto/subscriptions";
    assert_eq!(HttpRequest::new("POST", path).json(&list).send(addr).ok(), "OK");
    let at = publish_message(world, "/relay/v1/auto/messages", &topic);
    let poll = format!("/relay/v1/auto/messages/{}", topic.replace('/', "%2F"));
    let polled = get(addr, &poll).json();
    assert_eq!(polled[0]["timestamp"], at, "{polled}");
    assert_eq!(get(addr, &poll).ok(), "[]");
    assert_eq!(HttpRequest::new("DELETE", path).json(&list).send(addr).ok(), "OK");
    let gone = get(addr, &poll);
    Same(format!("{} {}", gone.status, without_numbers(&gone.text())))
}

pub(super) fn shard_subscriptions(world: &World) -> Answer {
    let path = "/relay/v1/subscriptions";
    let list = json!(["/waku/2/rs/1/5"]).to_string();
    let mut said = Vec::new();
    for method in ["POST", "DELETE", "POST"] {
        let reply = HttpRequest::new(method, path).json(&list).send(&world.reads().waku);
        assert!(reply.status < 500, "{method}: {}", reply.text());
        said.push(format!("{} {}", reply.status, reply.text()));
    }
    Same(said.join("\n"))
}

/// Subscribes by the REST endpoints of the filter protocol, and receives a message.
pub(super) fn filtered(world: &World) -> Answer {
    let addr = &world.writes().waku;
    let topic = format!("/filtered{}/1/chat/proto", number());
    let body = json!({ "requestId": "1", "contentFilters": [topic] }).to_string();
    let path = "/filter/v2/subscriptions";
    let mut said = Vec::new();
    let mut send = |method: &str, path: &str, body: &str| {
        let reply = HttpRequest::new(method, path).json(body).send(addr);
        said.push(format!("{} {}", reply.status, reply.text()));
    };
    send("POST", path, &body);
    let at = publish_message(world, "/relay/v1/auto/messages", &topic);
    let poll = format!("/filter/v2/messages/{}", topic.replace('/', "%2F"));
    let polled = get(addr, &poll).json();
    assert_eq!(polled[0]["timestamp"], at, "{polled}");
    assert_eq!(get(addr, &poll).ok(), "[]");
    send("GET", "/filter/v2/subscriptions/7", "");
    send("DELETE", path, &body);
    send("DELETE", path, &body);
    // Another test may have subscribed, so only the form of this answer is the same.
    let all = HttpRequest::new("DELETE", "/filter/v2/subscriptions/all")
        .json(r#"{"requestId":"2"}"#)
        .send(addr);
    assert!([200, 404].contains(&all.status), "{}", all.text());
    Same(said.join("\n"))
}

/// Publishes by the REST endpoints of the light push protocol.
pub(super) fn pushed(world: &World) -> Answer {
    let mut said = Vec::new();
    for path in ["/lightpush/v3/message", "/lightpush/v1/message"] {
        let message = message(CONTENT_TOPICS[0], unused_ns(), "pushed");
        let body = json!({ "message": message }).to_string();
        let reply = HttpRequest::new("POST", path).json(&body).send(&world.writes().waku);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        said.push(without_numbers(&reply.text()));
    }
    Same(said.join("\n"))
}
