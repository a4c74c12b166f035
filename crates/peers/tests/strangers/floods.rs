//! Tests with relays that send messages without end, messages that are too long to be read, or
//! useless messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hark_codec::crypto::sha256;
use hark_codec::hex;
use hark_peers::{Direction, PeerError};
use hark_testkit::nostr::keys;
use hark_testkit::wait::{PATIENCE, until_async};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::kit::{Here, event, held, play, play_quickly, pour};
use crate::{answer, paged};

/// An event that nobody has signed, with a valid id.
fn unsigned(time: u64) -> Value {
    let key = "ab".repeat(32);
    let hashed = format!("[0,\"{key}\",{time},1,[],\"\"]");
    let id = String::from_utf8(hex::encode_32(&sha256(hashed.as_bytes())).to_vec()).unwrap();
    json!({
        "id": id, "pubkey": key, "created_at": time, "kind": 1, "tags": [], "content": "",
        "sig": "00".repeat(64),
    })
}

/// An event that is too long is counted, and all other events are received, whether they are
/// requested in pages or by their ids.
#[tokio::test]
async fn an_event_that_is_too_long_to_be_read_holds_up_no_other() {
    let mut events: Vec<Value> = (0..60).map(|n| event(n, 1_700_000_000 + n)).collect();
    events[30]["content"] = "x".repeat(300 << 10).into();
    let ids: Vec<String> = events.iter().map(|event| event["id"].to_string()).collect();
    let ids = ids.concat().replace('"', "");
    let (sent, compared) = (Arc::new(events), format!("610000023c{ids}"));
    for compares in [false, true] {
        let (events, compared) = (Arc::clone(&sent), compared.clone());
        let url = play(move |message| match message[0].as_str() {
            Some("NEG-OPEN") if compares => {
                vec![json!(["NEG-MSG", message[1], compared]).to_string()]
            }
            _ => paged(message, &events, 20),
        })
        .await;
        let mut here = Here::with(&[]);
        here.client.message_bytes_max = 128 << 10;
        let report = here.sync(&url, Direction::Down).await.unwrap();
        assert_eq!(report.paged.is_none(), compares, "{report:?}");
        let totals = here.finish();
        assert_eq!((totals.stored, held(&here)), (59, 59), "{totals:?}");
        assert!(totals.refused_here.of("too large") > 0, "{totals:?}");
    }
}

/// An event that is too long and alone in its page is counted, too.
#[tokio::test]
async fn pages_end_with_an_event_that_is_too_long() {
    let mut events: Vec<Value> = (0..3).map(|n| event(n, 1_700_000_000 + n)).collect();
    events[0]["content"] = "x".repeat(300 << 10).into();
    let url = play(move |message| paged(message, &events, 500)).await;
    let mut here = Here::with(&[]);
    here.client.message_bytes_max = 128 << 10;
    here.sync(&url, Direction::Down).await.unwrap();
    let totals = here.finish();
    assert_eq!(totals.stored, 2, "{totals:?}");
    assert!(totals.refused_here.of("too large") > 0, "{totals:?}");
}

/// Some relays store events that are not valid.
#[tokio::test]
async fn pages_end_with_an_event_that_is_not_valid() {
    let mut events: Vec<Value> = (0..3).map(|n| event(n, 1_700_000_000 + n)).collect();
    events[0]["tags"] = json!([[]]);
    let url = play(move |message| paged(message, &events, 500)).await;
    let here = Here::with(&[]);
    here.sync(&url, Direction::Down).await.unwrap();
    let totals = here.finish();
    assert_eq!(totals.stored, 2, "{totals:?}");
    assert!(totals.refused_here.of("malformed") > 0, "{totals:?}");
}

/// A page may have only such events.
#[tokio::test]
async fn events_behind_many_that_are_not_valid_are_read() {
    let mut events: Vec<Value> = (0..30).map(|n| event(n, 1_700_000_000 + n)).collect();
    for broken in &mut events[10..20] {
        broken["tags"] = json!([[]]);
    }
    let url = play(move |message| paged(message, &events, 5)).await;
    let here = Here::with(&[]);
    here.sync(&url, Direction::Down).await.unwrap();
    let totals = here.finish();
    assert_eq!((totals.stored, totals.unreached), (20, 0), "{totals:?}");
}

/// A relay that answers with more events than requested is disconnected, even if all these events
/// are too long to be read.
#[tokio::test]
async fn too_long_events_without_end_are_no_answer() {
    let compared = format!("6100000201{}", "5a".repeat(32));
    let long = "x".repeat(200 << 10);
    let url = play(move |message| match message[0].as_str() {
        Some("NEG-OPEN") => vec![json!(["NEG-MSG", message[1], compared]).to_string()],
        Some("REQ") => {
            let event = json!(["EVENT", message[1], {"content": long}]).to_string();
            vec![event; 5]
        }
        _ => vec![],
    })
    .await;
    let mut here = Here::with(&[]);
    here.client.message_bytes_max = 128 << 10;
    let error = here.sync(&url, Direction::Down).await.unwrap_err();
    assert!(matches!(error, PeerError::Misbehaved(_)), "{error}");
    assert!(error.to_string().contains("more than 2 events"), "{error}");
}

/// A relay that sends a flood of messages instead of an answer is disconnected within the time
/// limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_are_no_answer() {
    let text = |value: Value| Message::text(value.to_string());
    let event = event(1, 1_700_000_000);
    let part = Frame::message(vec![b'x'; 1000], OpCode::Data(Data::Text), false);
    let more = Frame::message(vec![b'x'; 1000], OpCode::Data(Data::Continue), false);
    let nothing = Frame::message(Vec::new(), OpCode::Data(Data::Continue), false);
    let long = Frame::message(vec![b'x'; 300 << 10], OpCode::Data(Data::Text), true);
    for (name, first, then) in [
        ("notices", text(json!(["NOTICE", "hello"])), text(json!(["NOTICE", "hello"]))),
        ("challenges", text(json!(["AUTH", "1"])), text(json!(["AUTH", "2"]))),
        ("other events", text(json!(["EVENT", "x", event])), text(json!(["EVENT", "x", event]))),
        ("pings", Message::Ping(vec![1].into()), Message::Ping(vec![2].into())),
        ("fragments", Message::Frame(part.clone()), Message::Frame(more)),
        ("empty fragments", Message::Frame(part), Message::Frame(nothing)),
        ("long messages", Message::Frame(long.clone()), Message::Frame(long)),
    ] {
        let url = pour(first, then).await;
        let mut here = Here::with(&[]);
        here.client.message_bytes_max = 128 << 10;
        let ended = tokio::time::timeout(PATIENCE, here.sync(&url, Direction::Down)).await;
        let error = ended.unwrap_or_else(|_| panic!("{name} hold the client up")).unwrap_err();
        assert!(matches!(error, PeerError::Silent { .. } | PeerError::Ended(_)), "{name}: {error}");
        assert_eq!(here.finish().stored, 0, "{name}");
    }
}

/// A relay that always has one more event, in pages of one event, is disconnected after some
/// thousand pages. This holds both if its events are stored and if they are only counted.
#[tokio::test]
async fn pages_that_never_end_are_left() {
    for direction in [Direction::Down, Direction::Neither] {
        let url = play_quickly(|message| {
            let until = message[2]["until"].as_u64().unwrap_or(1_800_000_000).min(1_800_000_000);
            paged(message, &[event(1, until)], 500)
        })
        .await;
        let here = Here::with(&[]);
        let error = here.sync(&url, direction).await.unwrap_err();
        assert!(matches!(error, PeerError::Misbehaved(_)), "{error}");
        assert!(error.to_string().contains("its pages do not end"), "{error}");
        let totals = here.finish();
        assert!((1_000..1_200).contains(&totals.pages), "{totals:?}");
        assert_eq!(totals.stored > 400, direction == Direction::Down, "{totals:?}");
    }
}

/// If a connection ends, the events that were in flight or waiting are sent on the next connection,
/// even if nothing else is compared on that connection. In this test, the oldest events are
/// published last.
#[tokio::test]
async fn what_waits_to_be_sent_when_a_stream_breaks_is_sent_later() {
    let events: Vec<Value> = (0..300).map(|n| event(n, 1_700_000_300 - n)).collect();
    let (is_deaf, taken) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let url = play({
        let (is_deaf, taken) = (Arc::clone(&is_deaf), Arc::clone(&taken));
        move |message| match message[0].as_str() {
            Some("EVENT") if is_deaf.load(Ordering::Relaxed) => vec![],
            Some("EVENT") => {
                taken.fetch_add(1, Ordering::Relaxed);
                vec![json!(["OK", message[1]["id"], true, ""]).to_string()]
            }
            _ => paged(message, &[], 500),
        }
    })
    .await;
    let here = Here::with(&events);
    let (mut stream, status) = here.stream(&url);
    (stream.options.direction, stream.options.catch_up_s) = (Direction::Up, Some(0));
    let feed = Arc::clone(&stream.ends.feed);
    let as_expected = async {
        until_async("it connects", async || status.is_connected()).await;
        Here::publish(&feed, &events);
        until_async("it breaks", async || status.last_error().is_some()).await;
        assert_eq!(taken.load(Ordering::Relaxed), 0);
        is_deaf.store(false, Ordering::Relaxed);
        until_async("all are sent", async || taken.load(Ordering::Relaxed) >= events.len()).await;
    };
    tokio::select! {
        error = stream.run() => panic!("{error}"),
        () = as_expected => {}
    }
}

/// A relay that closes each request is disconnected, and so is a relay that requires a new proof
/// again and again.
#[tokio::test]
async fn a_relay_that_refuses_everything_is_left() {
    for (reason, said) in [
        ("error: no", "error: no"),
        ("auth-required: who are you?", "who are you?"),
        ("", "refused a page"),
    ] {
        let challenges = std::sync::atomic::AtomicU64::new(0);
        let url = play(move |message| match message[0].as_str() {
            Some("AUTH") => vec![json!(["OK", message[1]["id"], true, ""]).to_string()],
            Some("REQ") => {
                let n = challenges.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                vec![
                    json!(["AUTH", n.to_string()]).to_string(),
                    json!(["CLOSED", message[1], reason]).to_string(),
                ]
            }
            _ => paged(message, &[], 500),
        })
        .await;
        let mut here = Here::with(&[]);
        here.client.key = Some(keys(9));
        let error = here.sync(&url, Direction::Down).await.unwrap_err();
        assert!(matches!(error, PeerError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

/// A comparison ends if no answer has differences, whether the relay is fast or slow.
#[tokio::test]
async fn a_comparison_that_comes_to_nothing_ends() {
    let url = play(|message| match message[0].as_str() {
        Some("NEG-OPEN" | "NEG-MSG") => {
            std::thread::sleep(Duration::from_millis(40));
            // The fingerprint of a set that nobody has.
            let wrong = format!("61000001{}", "5a".repeat(16));
            vec![json!(["NEG-MSG", message[1], wrong]).to_string()]
        }
        _ => answer(message, &[], 500),
    })
    .await;
    let mut here = Here::with(&[]);
    here.client.patience = Duration::from_millis(200);
    let error = here.sync(&url, Direction::Down).await.unwrap_err();
    assert!(error.to_string().contains("hardly any differences"), "{error}");
    assert!(here.finish().rounds < 200);
}

/// The client waits for a slow relay as long as the comparison makes progress, here with one small
/// time range after another.
#[tokio::test]
async fn a_slow_comparison_in_many_parts_ends_well() {
    const PAUSE: Duration = Duration::from_millis(100);
    let all = 1_700_000_000 - 1_577_836_800;
    let pauses = Arc::new(AtomicUsize::new(0));
    let made = Arc::clone(&pauses);
    let url = play(move |message| match message[0].as_str() {
        Some("NEG-OPEN") => {
            let time = |name: &str| message[2][name].as_u64();
            let from = time("since").unwrap_or(0).max(1_577_836_800);
            if time("until").unwrap_or(u64::MAX).saturating_sub(from) > all / 32 {
                return vec![json!(["NEG-ERR", message[1], "blocked: too many"]).to_string()];
            }
            // The fingerprint of another set, so that the client continues the comparison and finds
            // no differences.
            let other = format!("61000001{}", "5a".repeat(16));
            vec![json!(["NEG-MSG", message[1], other]).to_string()]
        }
        Some("NEG-MSG") => {
            std::thread::sleep(PAUSE);
            made.fetch_add(1, Ordering::Relaxed);
            vec![json!(["NEG-MSG", message[1], "61"]).to_string()]
        }
        _ => answer(message, &[], 500),
    })
    .await;
    let mut here = Here::with(&[]);
    here.client.patience = Duration::from_millis(200);
    here.query.to = 1_700_000_000;
    let report = here.sync(&url, Direction::Down).await.unwrap();
    assert_eq!(report.paged, None);
    let (rounds, pauses) = (here.finish().rounds, pauses.load(Ordering::Relaxed));
    assert!(rounds > 40 && PAUSE * pauses as u32 > 10 * here.client.patience, "{rounds}");
}

/// A relay that slowly refuses each part of a comparison as too large is disconnected long before
/// the parts are single seconds.
#[tokio::test]
async fn slow_refusals_of_ever_smaller_parts_come_to_an_end() {
    let refusals = Arc::new(AtomicUsize::new(0));
    let url = play({
        let refusals = Arc::clone(&refusals);
        move |message| match message[0].as_str() {
            Some("NEG-OPEN") => {
                std::thread::sleep(Duration::from_millis(80));
                refusals.fetch_add(1, Ordering::Relaxed);
                vec![json!(["NEG-ERR", message[1], "blocked: too many results"]).to_string()]
            }
            _ => answer(message, &[], 500),
        }
    })
    .await;
    let mut here = Here::with(&[]);
    here.client.patience = Duration::from_millis(400);
    let error = here.sync(&url, Direction::Down).await.unwrap_err();
    assert!(error.to_string().contains("hardly any differences"), "{error}");
    // Ten times the patience for one answer is enough for 50 refusals.
    let refusals = refusals.load(Ordering::Relaxed);
    assert!((2..60).contains(&refusals), "{refusals}");
    assert_eq!(here.finish().rounds, 0);
}

/// If a relay refuses the first request for each part because of its rate limit, the client
/// requests each part once more.
#[tokio::test]
async fn each_part_of_a_comparison_that_came_too_fast_is_asked_for_once_more() {
    let all = 1_700_000_000 - 1_577_836_800;
    let asked = Arc::<Mutex<BTreeMap<String, u32>>>::default();
    let url = play({
        let asked = Arc::clone(&asked);
        move |message| {
            if message[0] != "NEG-OPEN" {
                return answer(message, &[], 500);
            }
            let time = |name: &str| message[2][name].as_u64();
            let from = time("since").unwrap_or(0).max(1_577_836_800);
            let is_large = time("until").unwrap_or(u64::MAX).saturating_sub(from) > all / 2;
            let mut asked = asked.lock();
            let times = asked.entry(message[2].to_string()).or_default();
            *times += 1;
            let reply = match (*times, is_large) {
                (1, _) => json!(["NEG-ERR", message[1], "rate-limited: slower"]),
                (_, true) => json!(["NEG-ERR", message[1], "blocked: too many"]),
                (_, false) => json!(["NEG-MSG", message[1], "61"]),
            };
            vec![reply.to_string()]
        }
    })
    .await;
    let mut here = Here::with(&[]);
    here.query.to = 1_700_000_000;
    let report = here.sync(&url, Direction::Down).await.unwrap();
    assert_eq!(report.paged, None);
    // The whole time range, and its two halves.
    let times: Vec<u32> = asked.lock().values().copied().collect();
    assert_eq!(times, [2; 3]);
    let totals = here.finish();
    assert_eq!((totals.slowed, totals.rounds), (3, 2), "{totals:?}");
}

/// A stalled TLS handshake is abandoned after the time limit.
#[tokio::test]
async fn tls_that_stalls_is_given_up() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("wss://localhost:{}", silent.local_addr().unwrap().port());
    let here = Here::with(&[]);
    let error = here.sync(&url.parse().unwrap(), Direction::Down).await.unwrap_err();
    // A machine without a list of certificate authorities cannot begin the handshake.
    let said = error.to_string();
    assert!(said.contains("no answer within") || said.contains("authorities"), "{said}");
}

/// A relay that sends forged live events is disconnected, and does not delay other relays.
#[tokio::test]
async fn a_stream_of_forged_events_ends_and_another_one_goes_on() {
    let mut forged = event(1, 1_700_000_000);
    forged["content"] = "other words".into();
    let bad = play(move |message| match message[0].as_str() {
        Some("REQ") if message[2]["limit"] == 0 => {
            let live = json!(["EVENT", message[1], forged]).to_string();
            let eose = json!(["EOSE", message[1]]).to_string();
            std::iter::once(eose).chain(std::iter::repeat_n(live, 12_000)).collect()
        }
        _ => paged(message, &[], 500),
    })
    .await;
    let events: Vec<Value> = (0..95).map(|n| event(n, 1_700_000_000 + n)).collect();
    let good = play(move |message| paged(message, &events, 500)).await;
    let here = Here::with(&[]);
    let (bad, bad_status) = here.stream(&bad);
    let (good, good_status) = here.stream(&good);
    let as_expected =
        until_async("the bad stream ends and the good stream is in step", async || {
            bad_status.last_error().is_some() && good_status.is_in_step()
        });
    tokio::select! {
        error = bad.run() => panic!("{error}"),
        error = good.run() => panic!("{error}"),
        () = as_expected => {}
    }
    let said = bad_status.last_error().unwrap();
    assert!(said.contains("not valid"), "{said}");
    assert_eq!(good_status.meter.totals().received, 95);
}

/// While one relay, which does not support comparisons, sends unsigned events without end, the
/// stream to another relay still sends its events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_invented_ids_holds_up_no_other_stream() {
    let flood = play_quickly(|message| match message[0].as_str() {
        Some("REQ") => {
            let to = message[2]["until"].as_u64().unwrap_or(u64::MAX).min(1_800_000_000);
            let named = (0..500).map(|n| json!(["EVENT", message[1], unsigned(to - n)]));
            let eose = json!(["EOSE", message[1]]);
            named.chain([eose]).map(|said| said.to_string()).collect()
        }
        _ => paged(message, &[], 500),
    })
    .await;
    let taken = Arc::new(AtomicUsize::new(0));
    let good = play({
        let taken = Arc::clone(&taken);
        move |message| match message[0].as_str() {
            Some("EVENT") => {
                taken.fetch_add(1, Ordering::Relaxed);
                vec![json!(["OK", message[1]["id"], true, ""]).to_string()]
            }
            _ => paged(message, &[], 500),
        }
    })
    .await;
    let here = Here::with(&[]);
    let (mut flood, flood_status) = here.stream(&flood);
    flood.options.direction = Direction::Up;
    let (mut good, good_status) = here.stream(&good);
    (good.options.direction, good.options.catch_up_s) = (Direction::Up, Some(0));
    let feed = Arc::clone(&good.ends.feed);
    let events: Vec<Value> = (0..95).map(|n| event(n, 1_700_000_000 + n)).collect();
    let pages = || flood_status.meter.totals().pages;
    let as_expected = async {
        until_async("the flood begins", async || pages() > 20 && good_status.is_connected()).await;
        Here::publish(&feed, &events);
        until_async("all are sent", async || taken.load(Ordering::Relaxed) >= events.len()).await;
        let before = pages();
        until_async("the flood goes on", async || pages() > before).await;
    };
    tokio::select! {
        error = flood.run() => panic!("{error}"),
        error = good.run() => panic!("{error}"),
        () = as_expected => {}
    }
    assert!(!flood_status.is_in_step());
}
