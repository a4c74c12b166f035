//! Tests of the whole bench, against a node that keeps its messages in a list.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clap::Parser;
use hark_codec::hex;
use hark_codec::waku::Message;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::*;
use crate::cli::{Bench, BenchArgs};
use crate::websocket::Url;

const PUBSUB: &str = "/waku/2/rs/1/5";

/// A test node, with its messages ordered by time. The node loses one of `loses_one_in` messages,
/// if set.
#[derive(Default)]
struct Node {
    stored: Mutex<Vec<Value>>,
    given: Mutex<u64>,
    loses_one_in: Option<u64>,
}

impl Node {
    /// Serves as long as the test runs, and returns the node's URL.
    fn serve(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        listener.set_nonblocking(true).unwrap();
        let node = Arc::new(self);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let node = Arc::clone(&node);
                    let service = service_fn(move |request| answer(Arc::clone(&node), request));
                    let served =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    tokio::spawn(async { drop(served.await) });
                }
            });
        });
        url
    }

    fn take(&self, pubsub_topic: &str, message: &Value) {
        let mut given = self.given.lock().unwrap();
        *given += 1;
        if self.loses_one_in.is_some_and(|of| given.is_multiple_of(of)) {
            return;
        }
        let payload =
            base64_simd::STANDARD.decode_to_vec(message["payload"].as_str().unwrap()).unwrap();
        let parsed = Message {
            payload: &payload,
            content_topic: message["contentTopic"].as_str().unwrap(),
            timestamp: message["timestamp"].as_i64(),
            ..Message::default()
        };
        let hash = hex::encode_32(&parsed.hash(pubsub_topic));
        let hash = format!("0x{}", str::from_utf8(&hash).unwrap());
        let one = json!({ "messageHash": hash, "message": message, "pubsubTopic": pubsub_topic });
        let mut stored = self.stored.lock().unwrap();
        stored.push(one);
        stored.sort_by_key(|one| one["message"]["timestamp"].as_i64());
    }

    fn page(&self, query: &str) -> Value {
        let asked = |name: &str| {
            let found =
                query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            found.map(|value| percent_decode_str(value).decode_utf8().unwrap().into_owned())
        };
        let listed = |name: &str, value: &Value| {
            asked(name).is_none_or(|list| list.split(',').any(|one| *value == one))
        };
        let time = |name: &str| asked(name).map(|time| time.parse::<i64>().unwrap());
        let size = asked("pageSize").map_or(20, |size| size.parse::<usize>().unwrap());
        let mut found: Vec<Value> = self.stored.lock().unwrap().clone();
        if asked("ascending").as_deref() == Some("false") {
            found.reverse();
        }
        if let Some(cursor) = asked("cursor") {
            let at = found.iter().position(|one| one["messageHash"] == cursor).unwrap();
            found.drain(..=at);
        }
        found.retain(|one| {
            let (message, at) = (&one["message"], one["message"]["timestamp"].as_i64());
            listed("pubsubTopic", &one["pubsubTopic"])
                && listed("contentTopics", &message["contentTopic"])
                && listed("hashes", &one["messageHash"])
                && time("startTime").is_none_or(|start| at >= Some(start))
                && time("endTime").is_none_or(|end| at <= Some(end))
        });
        let more = found.len() > size;
        found.truncate(size);
        let cursor = found.last().filter(|_| more).map(|one| one["messageHash"].clone());
        let mut page = json!({ "statusCode": 200, "messages": found });
        if let Some(cursor) = cursor {
            page["paginationCursor"] = cursor;
        }
        page
    }
}

async fn answer(
    node: Arc<Node>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let path = percent_decode_str(head.uri.path()).decode_utf8().unwrap();
    let text = match &*path {
        "/relay/v1/auto/messages" => {
            node.take(PUBSUB, &serde_json::from_slice(&body).unwrap());
            "OK".into()
        }
        "/store/v3/messages" => node.page(head.uri.query().unwrap_or_default()).to_string(),
        "/debug/v1/version" => "\"v1\"".into(),
        other => {
            let Some(topic) = other.strip_prefix("/relay/v1/messages/") else {
                let unknown = Response::builder().status(404).body(Full::from("what?\n"));
                return Ok(unknown.unwrap());
            };
            node.take(topic, &serde_json::from_slice(&body).unwrap());
            "OK".to_owned()
        }
    };
    Ok(Response::new(Full::from(text)))
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

fn parse(args: &[&str]) -> Result<WakuBenchArgs, String> {
    let parsed = Cli::try_parse_from([&["bench", "store"], args].concat());
    match parsed.map_err(|error| error.to_string())?.bench.bench {
        Bench::Waku(args) => Ok(*args),
        other => panic!("{other:?}"),
    }
}

/// Measures all payload sizes at the first node.
fn report(args: &[&str]) -> BenchReport {
    let args = parse(args).unwrap();
    let shapes = choose(&SHAPES, |shape| shape.name, &args.shapes).unwrap();
    let side = ComparedNode::all(&args).unwrap().remove(0);
    let mut report = begin(&args, &side).unwrap();
    for bytes in &args.payload_bytes {
        measure(&args, &shapes, &side, *bytes, &mut report).unwrap();
    }
    report
}

#[test]
fn what_is_typed_is_what_is_meant() {
    let args = parse(&[]).unwrap();
    assert_eq!((args.publishers, args.messages, args.readers), (30, 9_000, 10));
    assert_eq!((&*args.payload_bytes, args.publish_rate), (&[1_400][..], None));
    assert_eq!(args.nodes.targets().unwrap()[0].url.authority, "127.0.0.1:8645");
    let args = parse(&["--payload-bytes", "1400,10240", "--against", "http://b"]).unwrap();
    assert_eq!(args.payload_bytes, [1_400, 10_240]);
    assert_eq!(args.nodes.targets().unwrap()[1].url.authority, "b:80");
    let args = parse(&["--payload-bytes", "7B,2kB,10KiB, 1 MiB,1mb"]).unwrap();
    assert_eq!(args.payload_bytes, [7, 2_000, 10_240, 1 << 20, 1_000_000]);
    for wrong in ["0kB", "much", "kB", "1.5kB", "-1", "18446744073709552kB"] {
        assert!(parse(&["--payload-bytes", wrong]).is_err(), "{wrong}");
    }
    assert!(parse(&["--url", "ws://a"]).is_err_and(|said| said.contains("http://")));
    assert!(parse(&["--against", "ws://a"]).is_err_and(|said| said.contains("http://")));
    assert!(parse(&["--payload-bytes", "0"]).is_err_and(|said| said.contains("at least 1")));
    let made = parse(&["gen", "week.jsonl", "--to", "5"]).unwrap();
    let Some(WakuBenchCommand::Gen(made)) = made.command else { panic!("no gen") };
    assert_eq!((made.messages, made.topics, made.to), (100_000, 1_000, Some(5)));
    assert!(messages::write(&made).unwrap_err().to_string().contains("nanoseconds"));
    assert!(parse(&["--readers", "1", "gen", "week.jsonl"]).is_err());
}

#[test]
fn all_that_is_published_is_counted_asked_for_and_found() {
    let url = Node::default().serve();
    let small = ["--url", &url, "--publishers", "3", "--messages", "150"];
    let first = report(&[&small[..], &["--readers", "0"]].concat());
    assert_eq!(first.faults(), [""; 0]);
    assert_eq!(
        first.rows().iter().map(|row| &*row.name).collect::<Vec<_>>(),
        ["publish", "all requests"]
    );
    assert_eq!(first.rows()[0].figures[0], Some(150.0));
    assert!(first.notes().contains(&"publish: 150 of 150 messages are stored.".to_owned()));

    let more = ["--readers", "2", "--payload-bytes", "100,200", "--pubsub-topic", "/waku/2/rs/1/0"];
    let rates = ["--publish-rate", "600", "--query-rate", "100", "--seconds", "1", "--pages", "2"];
    let both = report(&[&small[..], &more, &rates].concat());
    assert_eq!(both.faults(), [""; 0]);
    assert_eq!(both.rows().len(), 2 * (1 + SHAPES.len() + 1));
    assert_eq!(both.curves().len(), 4);
    for (at, shape) in SHAPES.iter().enumerate() {
        let row = &both.rows()[1 + at];
        assert_eq!(row.name, format!("100 B: {}", shape.name));
        let [count, _, messages, first, p50, ..] = row.figures[..] else { panic!("{row:?}") };
        assert!(count >= Some(1.0) && first.is_some() && p50.is_some(), "{row:?}");
        assert_eq!(messages.is_some(), !shape.may_be_empty, "{row:?}");
    }
    let asked: f64 = both.rows()[1..=SHAPES.len()].iter().filter_map(|row| row.figures[0]).sum();
    assert!(asked <= 100.0, "{asked}");
}

#[test]
fn what_is_watched_is_found_or_given_up() {
    let url = Url::http(&Node::default().serve()).unwrap();
    let client = RestClient::open(&url).unwrap();
    let door = PublishEndpoint::Rest {
        url,
        path: format!("/relay/v1/messages/{}", rest::encoded(PUBSUB)),
    };
    let mut publisher = door.open(1).unwrap().remove(0);
    let start = Instant::now();
    let (choice, chosen) = watch::WatchSelector::new(PUBSUB.into(), start);
    let mut random = Random::new(1);
    // Messages due at these times, in ms. The second is too close to the first; the last is lost.
    for (due_ms, is_lost) in [(0, false), (5, false), (20, false), (40, true)] {
        let draft = messages::MessageDraft::draw(&mut random, 10, 50);
        let time_ns = if is_lost {
            messages::now_ns().unwrap()
        } else {
            publisher.publish(&draft).unwrap().unwrap()
        };
        let due = start + Duration::from_millis(due_ms);
        if choice.takes(due) {
            choice.watch(&draft, time_ns, due);
        }
    }
    drop(choice);
    let done = watch::watch(client, &chosen, Duration::from_millis(100)).unwrap();
    assert_eq!(done.messages, 2);
    assert!(done.count >= 2 && done.times.at_ms(1.0).is_some());
    let mut report = BenchReport::new("store", &COLUMNS);
    done.refusals.add_to(&mut report, "publish, watched");
    let lost = "publish, watched: refused 1 times with no such message: 0.1 s after the last one";
    assert_eq!(report.faults(), [lost]);
}

#[test]
fn what_is_lost_or_refused_is_a_fault() {
    let url = Node { loses_one_in: Some(50), ..Node::default() }.serve();
    let small = ["--messages", "100", "--readers", "0", "--settle", "0.2"];
    let lossy = report(&[&["--url", &url], &small[..]].concat());
    let [fault] = lossy.faults() else { panic!("{:?}", lossy.faults()) };
    assert!(fault.starts_with("publish: 2 of 100 messages are not stored: 0x"), "{fault}");

    // A server that is not a node.
    let elsewhere = format!("{url}elsewhere");
    let args = parse(&["--url", &elsewhere, "--messages", "1", "--readers", "0"]).unwrap();
    let side = ComparedNode::all(&args).unwrap().remove(0);
    let mut report = begin(&args, &side).unwrap();
    measure(&args, &[], &side, 10, &mut report).unwrap();
    assert_eq!(
        report.faults(),
        ["publish: refused 1 times with status 404: what?", "publish: none succeeded"]
    );

    let empty = Node::default().serve();
    let args = parse(&["--url", &empty, "--messages", "0"]).unwrap();
    let side = ComparedNode::all(&args).unwrap().remove(0);
    let mut report = begin(&args, &side).unwrap();
    let error = measure(&args, &[&SHAPES[0]], &side, 10, &mut report).unwrap_err();
    assert!(error.to_string().contains("--readers 0"), "{error}");
}
