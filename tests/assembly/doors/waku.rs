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
