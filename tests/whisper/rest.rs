//! The REST interface, checked against its OpenAPI document.

use std::io::Write as _;
use std::net::TcpStream;

use hark_codec::crypto::keccak256;
use hark_codec::whisper::{Bloom, Completion, Envelope, HistoryRequest, Topic};
use hark_testkit::clock::now_s;
use hark_testkit::digits::digits;
use hark_testkit::http::get;
use hark_testkit::wait::until;
use serde_json::{Value, json};

use super::{JSON, MailNode, RLP, envelope, folder, list};

const ONE: Topic = [0x5c, 0x6c, 0x9b, 0x56];
const TWO: Topic = [8, 9, 10, 0];

/// Parses an answer in frames: the envelopes and the last frame.
pub(super) fn frames(mut body: &[u8]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut envelopes = Vec::new();
    loop {
        let (len, rest) = body.split_first_chunk().expect("a frame");
        let len = u32::from_be_bytes(*len) as usize;
        if len == 0 {
            return (envelopes, rest.into());
        }
        envelopes.push(rest[..len].into());
        body = &rest[len..];
    }
}

fn request(of: &HistoryRequest<'_>, topics: &[Topic]) -> Vec<u8> {
    let mut out = Vec::new();
    of.write(topics.iter().copied(), &mut out);
    out
}

#[test]
fn envelopes_are_durable_and_found_by_topics_and_by_bloom_filters_page_by_page() {
    let mut node = MailNode::start("rest", &[]);
    let envelopes: Vec<_> = (0..30u8)
        .map(|n| envelope([ONE, TWO][usize::from(n % 2)], 60 - u32::from(n), &[n; 40]))
        .collect();
    node.publish(&envelopes);
    // A single envelope, and then a duplicate.
    let alone = envelope([1, 2, 3, 4], 5, b"alone");
    for (stored, duplicates) in [(1, 0), (0, 1)] {
        let answer = node.ask("POST /whisper/envelopes", &[RLP], &alone);
        let expected = json!({ "stored": stored, "duplicates": duplicates, "refused": [] });
        assert_eq!((answer.status, answer.json()), (200, expected));
    }
    // Acknowledged envelopes are there after kill -9.
    node.kill();
    let node = MailNode::on(node.data.clone(), &[], &[]);
    let of_one: Vec<_> = envelopes.iter().step_by(2).cloned().collect();
    let mut bloom = Bloom::default();
    bloom.add(&Bloom::of_topic_or(ONE));
    for (bloom, topics) in [(None, &[ONE][..]), (Some(bloom), &[])] {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let asked =
                HistoryRequest { bloom, limit: 4, cursor, batch: true, ..Default::default() };
            let asked = request(&asked, topics);
            let answer = node.ask("POST /whisper/messages", &[RLP], &asked);
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert!(answer.head.contains("application/octet-stream"), "{}", answer.head);
            let (page, end) = frames(&answer.body);
            assert!(page.len() <= 4);
            found.extend(page);
            let hash = keccak256(found.last().expect("one"));
            match Completion::parse(&end).expect("an end") {
                Completion::Done { request, last, cursor: next } => {
                    assert_eq!((request, last), (keccak256(&asked), hash));
                    cursor = next;
                }
                Completion::Failed { text, .. } => panic!("{text}"),
            }
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(found, of_one);
    }
    // All envelopes, newest first, in JSON, in the format of an export.
    let answer = node.ask(
        "POST /whisper/messages?order=newest",
        &[JSON, ("Accept", "application/json")],
        b"{\"limit\":2}",
    );
    let page = answer.json();
    let first = Envelope::parse(&alone).expect("one");
    let expected = json!({
        "hash": format!("0x{}", digits(&keccak256(&alone))), "expiry": first.expiry, "ttl": 100,
        "topic": "0x01020304", "data": format!("0x{}", digits(b"alone")), "nonce": 7,
    });
    assert_eq!(page["envelopes"][0], expected);
    assert_eq!(page["envelopes"].as_array().map(Vec::len), Some(2));
    let cursor = page["cursor"].as_str().expect("more");
    let rest = node.ask(
        "POST /whisper/messages?order=newest",
        &[JSON, ("Accept", "application/json")],
        format!("{{\"cursor\":\"{cursor}\"}}").as_bytes(),
    );
    let rest = rest.json();
    assert_eq!(rest["envelopes"].as_array().map(Vec::len), Some(29));
    assert_eq!(rest.get("cursor"), None);
    // An empty answer is valid too.
    assert_eq!(node.query("{\"topics\":[]}"), json!({ "envelopes": [] }));
}

#[test]
fn a_request_up_to_time_zero_has_no_end() {
    let node = MailNode::start("no-end", &[]);
    let envelopes: Vec<_> = (0..3u8).map(|n| envelope(ONE, 60 - u32::from(n), &[n; 30])).collect();
    node.publish(&envelopes);
    let all = node.hashes("{}");
    assert_eq!(all.len(), 3);
    for asked in ["{\"to\":0}", "{\"from\":1,\"to\":0}", "{\"from\":0,\"to\":0}"] {
        assert_eq!(node.hashes(asked), all, "{asked}");
    }
    // Any other early time is a real end of the range, here in 1970.
    assert_eq!(node.hashes("{\"to\":1}"), [""; 0]);
    let bloom = Some(Bloom::FULL);
    let asked = HistoryRequest { lower: 1, upper: 0, bloom, ..Default::default() };
    let answer = node.ask("POST /whisper/messages", &[RLP], &request(&asked, &[]));
    assert_eq!(frames(&answer.body).0, envelopes);
}

#[test]
fn a_long_history_is_streamed_and_whole() {
    let node = MailNode::start("stream", &[]);
    let mut all = Vec::new();
    for chunk in 0..8u32 {
        let some: Vec<_> = (0..500u32)
            .map(|n| envelope(ONE, 90, &[&(chunk * 500 + n).to_be_bytes()[..], &[1; 900]].concat()))
            .collect();
        node.publish(&some);
        all.extend(some);
    }
    // The answer is far larger than the memory for one page.
    let asked = request(&HistoryRequest { bloom: Some(Bloom::FULL), ..Default::default() }, &[]);
    let (mut found, end) = frames(&node.ask("POST /whisper/messages", &[RLP], &asked).body);
    assert!(matches!(Completion::parse(&end), Ok(Completion::Done { cursor: None, .. })));
    found.sort();
    all.sort();
    assert!(found == all, "{} of {}", found.len(), all.len());
    assert_eq!(node.hashes("{}").len(), 4_000);
    let page = get(&node.relay, "/metrics").ok();
    for line in [
        "mailserver_archived_envelopes_total{db=\"embedded\"} 4000\n",
        "hark_whisper_envelopes_total{source=\"rest\",result=\"stored\"} 4000\n",
        "hark_whisper_sent_envelopes_total{source=\"rest\"} 8000\n",
        "hark_whisper_requests_total{source=\"rest\",result=\"answered\"} 2\n",
        "hark_whisper_topics 1\n",
        "hark_whisper_peers 0\n",
        "hark_whisper_handshakes_total{result=\"connected\"} 0\n",
        "hark_whisper_peers_left_total{reason=\"breach\"} 0\n",
        "hark_store_records{shelf=\"whisper\"} 4000\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

#[test]
fn what_is_wrong_is_refused_and_says_why() {
    let node = MailNode::start("refused", &[("pow_min", "0.001"), ("envelope_bytes_max", "300")]);
    let with = |change: &dyn Fn(&mut Envelope<'static>)| {
        let expiry = now_s() as u32 + 50;
        let mut one =
            Envelope { expiry, ttl: 50, topic: ONE, data: &[7; 100], ..Default::default() };
        // A sufficient proof of work takes a few thousand tries.
        while one.pow() < 0.01 {
            one.nonce += 1;
        }
        change(&mut one);
        let mut rlp = Vec::new();
        one.write(&mut rlp);
        rlp
    };
    let good = with(&|_| {});
    for (body, said) in [
        (with(&|one| one.expiry -= 100), "expired"),
        (with(&|one| one.expiry += 100), "in the future"),
        (with(&|one| one.ttl = 1 << 30), "proof of work"),
        (with(&|one| one.data = &[7; 300]), "more than the allowed 300"),
        (with(&|one| one.ttl = u32::MAX), "ttl"),
    ] {
        let answer = node.ask("POST /whisper/envelopes", &[RLP], &body);
        let json = answer.json();
        let reason = json["refused"][0]["reason"].as_str().expect("a reason");
        assert!(answer.status == 400 && reason.contains(said), "{said}: {json}");
        assert_eq!(json["refused"][0]["hash"], format!("0x{}", digits(&keccak256(&body))));
        // The other envelopes of the list are stored.
        let answer = node.ask("POST /whisper/envelopes", &[RLP], &list(&[body, good.clone()]));
        let json = answer.json();
        assert_eq!(answer.status, 200, "{json}");
        assert_eq!(
            json["stored"].as_u64().zip(json["duplicates"].as_u64()).map(|(a, b)| a + b),
            Some(1)
        );
        assert_eq!(json["refused"][0]["at"], 0);
    }
    for (body, kind, status, said) in [
        (&b""[..], RLP, 400, "neither an envelope nor a list"),
        (b"\x83abc", RLP, 400, "neither"),
        (&good[..good.len() - 1], RLP, 400, "neither"),
        (b"{}", JSON, 400, "RLP"),
        (b"{}", ("Content-Type", "text/plain"), 400, "Wrong Content-Type"),
        (&vec![7; 2_000_000], RLP, 413, "at most"),
    ] {
        let answer = node.ask("POST /whisper/envelopes", &[kind], body);
        assert!(
            answer.status == status && answer.text().contains(said),
            "{said}: {} {}",
            answer.status,
            answer.text()
        );
    }
    let too_many = format!("{{\"topics\":[{}]}}", vec!["\"00000000\""; 10_001].join(","));
    let backwards =
        HistoryRequest { lower: 2, upper: 1, bloom: Some(Bloom::FULL), ..Default::default() };
    for (body, kind, at, said) in [
        (too_many.into_bytes(), JSON, "", "there are 10001 topics, more than 10000"),
        (request(&backwards, &[]), RLP, "", "lower 2 > upper 1"),
        (request(&HistoryRequest::default(), &[]), RLP, "", "are empty"),
        (vec![1, 2, 3], RLP, "", "3 bytes"),
        (b"{\"kinds\":[]}".to_vec(), JSON, "", "kinds"),
        (b"{\"topics\":[\"0x12\"]}".to_vec(), JSON, "", "not 4 bytes"),
        (b"{\"topics\":[],\"bloom\":\"\"}".to_vec(), JSON, "", "exclude"),
        (b"{\"cursor\":\"0x12\"}".to_vec(), JSON, "", "36 bytes"),
        (b"[null,null,1,2,null,null]".to_vec(), JSON, "", "expected an object"),
        (b"{}".to_vec(), JSON, "?order=random", "neither order=oldest"),
    ] {
        let answer = node.ask(&format!("POST /whisper/messages{at}"), &[kind], &body);
        assert!(
            answer.status == 400 && answer.text().contains(said),
            "{said}: {} {}",
            answer.status,
            answer.text()
        );
    }
    for request in ["GET /whisper/messages", "POST /health", "GET /nothing"] {
        assert!([404, 405].contains(&node.ask(request, &[], b"").status), "{request}");
    }
    let evil = [RLP, ("Origin", "https://evil.example")];
    assert_eq!(node.ask("POST /whisper/envelopes", &evil, &good).status, 403);
    assert_eq!(node.hashes("{}"), [format!("0x{}", digits(&keccak256(&good)))]);
}

#[test]
fn a_list_is_read_up_to_the_thousandth_envelope_that_is_refused() {
    let node = MailNode::start("faults", &[]);
    let good = envelope(ONE, 3, b"good");
    let faults = |count| vec![vec![0xc0]; count];
    for (body, status, stored, unread) in [
        (list(&faults(3_000)), 400, 0, json!(2_000)),
        (list(&[vec![good], faults(1_500)].concat()), 200, 1, json!(500)),
        (list(&faults(1_000)), 400, 0, Value::Null),
    ] {
        let answer = node.ask("POST /whisper/envelopes", &[RLP], &body);
        let json = answer.json();
        assert_eq!((answer.status, &json["stored"]), (status, &json!(stored)), "{json}");
        assert_eq!(json["unread"], unread);
        let refused = json["refused"].as_array().expect("a list");
        assert_eq!((refused.len(), &refused[999]["at"]), (1_000, &json!(999 + stored)));
    }
}

#[test]
fn a_request_that_would_read_too_much_is_refused() {
    let node = MailNode::start("dear", &[("query_rows_max", "20")]);
    let envelopes: Vec<_> = (0..50u8).map(|n| envelope(ONE, n.into(), &[n; 30])).collect();
    node.publish(&envelopes);
    let answer = node.ask("POST /whisper/messages", &[JSON], b"{}");
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("too much would have to be read"), "{}", answer.text());
    assert_eq!(node.hashes("{\"limit\":10}").len(), 10);
}

#[test]
fn requests_are_counted_against_a_rate_and_settings_are_read_again() {
    let data = folder("rates");
    let file = data.join("hark.toml");
    let write = |queries: &str| {
        std::fs::write(&file, format!("[whisper]\nqueries = {queries}\n")).expect("is written");
    };
    write("[1, 2]");
    let path = file.to_str().expect("a path").to_owned();
    let node = MailNode::on(data, &["--config", &path], &[]);
    let status = || node.ask("POST /whisper/messages", &[JSON], b"{}").status;
    assert_eq!([status(), status(), status()], [200, 200, 429]);
    write("[0, 0]");
    until("requests are not bounded any more", || status() == 200);
    assert!(node.log().contains("now whisper.queries = [0, 0]"), "{}", node.log());
}

/// Whether a value has the shape that a schema describes.
fn fits(document: &Value, schema: &Value, value: &Value) -> bool {
    if let Some(at) = schema["$ref"].as_str() {
        return fits(document, document.pointer(&at[1..]).expect("a schema"), value);
    }
    match schema["type"].as_str() {
        Some("object") => {
            let Some(object) = value.as_object() else { return false };
            let required = schema["required"].as_array().into_iter().flatten();
            let known = |(key, value): (&String, &Value)| {
                schema["properties"].get(key).is_some_and(|schema| fits(document, schema, value))
            };
            required.map(|key| key.as_str().expect("a key")).all(|key| object.contains_key(key))
                && object.iter().all(known)
        }
        Some("array") => value
            .as_array()
            .is_some_and(|list| list.iter().all(|one| fits(document, &schema["items"], one))),
        Some("integer") => value.is_u64(),
        Some("string") => value.is_string(),
        other => panic!("a schema of {other:?}"),
    }
}

#[test]
fn answers_are_as_the_openapi_document_says() {
    let node = MailNode::start("openapi", &[]);
    let document = node.ask("GET /openapi.json", &[], b"").json();
    let good = envelope(ONE, 3, b"some");
    let mut checked = 0;
    for (request, headers, body) in [
        ("POST /whisper/envelopes", &[RLP][..], &good[..]),
        ("POST /whisper/envelopes", &[RLP], &envelope(ONE, 5_000, b"old")),
        ("POST /whisper/envelopes", &[RLP], b"?"),
        ("POST /whisper/envelopes", &[RLP, ("Host", "evil.example")], &good),
        ("POST /whisper/envelopes", &[RLP], &vec![0; 2_000_000]),
        ("POST /whisper/messages", &[JSON, ("Accept", "application/json")], b"{}"),
        ("POST /whisper/messages", &[JSON, ("Accept", "application/json")], b"{\"limit\":0}"),
        ("POST /whisper/messages", &[JSON], b"{}"),
        ("POST /whisper/messages", &[JSON], b"?"),
        ("GET /health", &[], b""),
        ("GET /version", &[], b""),
    ] {
        let answer = node.ask(request, headers, body);
        let (method, path) = request.split_once(' ').expect("two words");
        let operation = &document["paths"][path][method.to_lowercase()];
        let mut response = &operation["responses"][answer.status.to_string()];
        if let Some(at) = response["$ref"].as_str() {
            response = document.pointer(&at[1..]).expect("a response");
        }
        let line = answer.head.lines().find_map(|line| line.strip_prefix("content-type: "));
        let kind = line.expect("a type").split(';').next().expect("a type");
        let schema = &response["content"][kind]["schema"];
        assert!(schema.is_object(), "{request}: {} {kind}", answer.status);
        if kind == "application/json" {
            assert!(fits(&document, schema, &answer.json()), "{request}: {}", answer.text());
            checked += 1;
        }
    }
    assert_eq!(checked, 4);
}

#[test]
fn an_address_that_reads_no_answers_leaves_others_the_memory_for_pages() {
    let proxies = [("HARK_SERVER_TRUSTED_PROXIES", "[\"127.0.0.1\"]")];
    let node = MailNode::start("unread", &proxies);
    for n in 0..14 {
        node.publish(&[envelope(ONE, 30 - n, &vec![n as u8; 900_000])]);
    }
    let by = |client| ("X-Forwarded-For", client);
    let ask = |client| node.ask("POST /whisper/messages", &[JSON, by(client)], b"{}").status;
    let head = format!(
        "POST /whisper/messages HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         X-Forwarded-For: 192.0.2.1\r\nContent-Length: 2\r\n\r\n{{}}",
        node.rest
    );
    let mut unread = Vec::new();
    // Until the address has no memory for another page.
    while ask("192.0.2.1") != 503 {
        assert!(unread.len() < 200, "an address may hold any number of pages");
        let mut stream = TcpStream::connect(&node.rest).expect("connects");
        stream.write_all(head.as_bytes()).expect("is sent");
        unread.push(stream);
    }
    assert!(unread.len() > 5, "{}", unread.len());
    assert_eq!(ask("192.0.2.2"), 200);
}
