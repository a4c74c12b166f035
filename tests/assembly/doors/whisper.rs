//! The contracts of the mail server's HTTP interface.

use hark_testkit::clock::now_s;
use hark_testkit::digits::digits;
use hark_testkit::http::HttpRequest;
use serde_json::{Value, json};

use super::Answer::{self, Same};
use crate::fixture::{self, FIRST_S, LAST_S};
use crate::world::{World, number};

const JSON: (&str, &str) = ("Content-Type", "application/json");

const RLP: (&str, &str) = ("Content-Type", "application/octet-stream");

pub(super) fn posted(world: &World) -> Answer {
    let envelope = fixture::envelope(now_s(), format!("posted {}", number()).as_bytes());
    let addr = &world.writes().whisper;
    let post = || {
        HttpRequest::new("POST", "/whisper/envelopes").headers(&[RLP]).body(&envelope).send(addr)
    };
    let first = post();
    assert_eq!(first.status, 200, "{}", first.text());
    let second = post();
    Same(first.text() + &second.text())
}

pub(super) fn envelopes(world: &World) -> Answer {
    let ask = |request: &Value| {
        let headers = [JSON, ("Accept", "application/json")];
        let addr = &world.reads().whisper;
        let reply = HttpRequest::new("POST", "/whisper/messages")
            .headers(&headers)
            .body(&request.to_string())
            .send(addr);
        assert_eq!(reply.status, 200, "{request}: {}", reply.text());
        reply.json()
    };
    let mut out = String::new();
    let of = |more: Value| {
        let mut request = json!({"from": FIRST_S, "to": LAST_S});
        request.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        request
    };
    let topic = format!("0x{}", digits(&fixture::TOPICS[0]));
    for mut request in [of(json!({})), of(json!({"limit": 7})), of(json!({"topics": [topic]}))] {
        loop {
            let page = ask(&request);
            out = out + &page.to_string() + "\n";
            let Some(cursor) = page["cursor"].as_str() else { break };
            request["cursor"] = json!(cursor);
        }
    }
    Same(out)
}
