//! Synchronisation with relays that break the rules. Each relay follows a script.

mod floods;
mod kit;
mod long;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hark_peers::{Direction, PeerError};
use hark_testkit::clock::now_s;
use hark_testkit::nostr::keys;
use hark_testkit::wait::until_async;
use parking_lot::Mutex;
use serde_json::{Value, json};

use kit::{Here, event, held, play, protected, signed};

/// The subscription and the filter of a REQ.
fn asked(message: &Value) -> Option<(&Value, &Value)> {
    (message[0] == "REQ").then(|| (&message[1], &message[2]))
}

/// Answers a REQ like a correct relay that has these events and sends at most `limit` events.
fn answer(message: &Value, events: &[Value], limit: usize) -> Vec<String> {
    let Some((subscription, filter)) = asked(message) else { return Vec::new() };
    let until = filter["until"].as_u64().unwrap_or(u64::MAX);
    let since = filter["since"].as_u64().unwrap_or(0);
    let limit = limit.min(filter["limit"].as_u64().unwrap_or(500) as usize);
    let mut found: Vec<&Value> = events
        .iter()
        .filter(|event| (since..=until).contains(&event["created_at"].as_u64().unwrap()))
        .filter(|event| {
            filter["ids"].as_array().is_none_or(|ids| ids.iter().any(|id| *id == event["id"]))
        })
        .collect();
    found.sort_by_key(|event| {
        (u64::MAX - event["created_at"].as_u64().unwrap(), event["id"].to_string())
    });
    let events = found.into_iter().take(limit);
    let events = events.map(|event| json!(["EVENT", subscription, event]).to_string());
    events.chain([json!(["EOSE", subscription]).to_string()]).collect()
}

/// Answers like a relay that has these events and does not support comparisons.
fn paged(message: &Value, events: &[Value], limit: usize) -> Vec<String> {
    match message[0].as_str() {
        Some("NEG-OPEN") => vec![json!(["NOTICE", "neg: no"]).to_string()],
        _ => answer(message, events, limit),
    }
}

/// Checks that a relay with this answer to a comparison is read by pages.
async fn is_paged(reply: fn(&Value) -> Vec<String>, said: &str) {
    let events: Vec<Value> = (0..95).map(|n| event(n, 1_700_000_000 + n / 10)).collect();
    let sent = events.clone();
    let url = play(move |message| match message[0].as_str() {
        Some("NEG-OPEN") => reply(message),
        _ => answer(message, &sent, 30),
    })
    .await;
    let here = Here::with(&[]);
    let report = here.sync(&url, Direction::Down).await.unwrap();
    assert!(report.paged.as_ref().is_some_and(|why| why.contains(said)), "{report:?} {said}");
    assert_eq!(here.finish().stored, 95, "{said}");
}

#[tokio::test]
async fn whoever_does_not_compare_is_read_by_pages() {
    is_paged(|_| vec![], "within").await;
    is_paged(|_| vec![json!(["NOTICE", "bad msg: negentropy disabled"]).to_string()], "disabled")
        .await;
    is_paged(|_| vec![json!(["NOTICE", "unknown command"]).to_string()], "unknown").await;
    is_paged(
        |message| vec![json!(["NEG-ERR", message[1], "error: not here"]).to_string()],
        "not here",
    )
    .await;
    is_paged(
        |message| {
            vec![json!(["NEG-ERR", message[1], "blocked: too many query results"]).to_string()]
        },
        "too many",
    )
    .await;
    // The relay compares only for some clients, and this client has no key.
    is_paged(
        |message| vec![json!(["NEG-ERR", message[1], "auth-required: who are you?"]).to_string()],
        "auth-required",
    )
    .await;
    // The relay sends notices but no answer.
    is_paged(|_| vec![json!(["NOTICE", "have a nice day"]).to_string(); 30], "nice day").await;
}

/// Of the events of one second, a relay may return only those that fit into a page, even a short
/// page. This second is counted, and the walk continues with earlier times.
#[tokio::test]
async fn a_second_with_more_events_than_a_page_is_told_of_and_passed() {
    for (page, second, rest) in [(100, 150, 30), (30, 40, 20)] {
        let mut events: Vec<Value> = (0..second).map(|n| event(n, 1_700_000_005)).collect();
        events.extend((second..second + rest).map(|n| event(n, 1_700_000_000 + n % 5)));
        let url = play(move |message| paged(message, &events, page)).await;
        let here = Here::with(&[]);
        here.sync(&url, Direction::Down).await.unwrap();
        let totals = here.finish();
        assert_eq!((totals.stored, totals.unreached), (page as u64 + rest, 1), "{page}");
    }
}

/// Events are not stored if they were not requested, do not match the filter, or are forged.
#[tokio::test]
async fn what_was_not_asked_for_or_is_forged_is_not_stored() {
    let good: Vec<Value> = (0..10).map(|n| event(n, 1_700_000_000 + n)).collect();
    let mut forged = event(20, 1_700_000_001);
    forged["sig"] = event(21, 1_700_000_001)["sig"].clone();
    let mut renamed = event(22, 1_700_000_001);
    renamed["content"] = "other words".into();
    let other = signed(23, 1_700_000_002, 7);
    let future = event(24, 1_900_000_000);
    let url = play(move |message| match message[0].as_str() {
        Some("NEG-OPEN") => vec![json!(["NOTICE", "neg: no"]).to_string()],
        Some("REQ") => {
            let mut all = answer(message, &good, 500);
            let eose = all.pop().unwrap();
            if all.len() > 1 {
                for event in [&forged, &renamed, &other, &future, &json!({"id": 5})] {
                    all.push(json!(["EVENT", message[1], event]).to_string());
                }
                all.push(json!(["EVENT", "another", good[0]]).to_string());
            }
            all.push(eose);
            all
        }
        _ => vec![],
    })
    .await;
    let mut here = Here::with(&[]);
    here.query.kinds = Some(vec![1]);
    here.query.to = 1_800_000_000;
    here.sync(&url, Direction::Down).await.unwrap();
    let totals = here.finish();
    assert_eq!(totals.stored, 10);
    assert_eq!(totals.refused_here.of("bad signature"), 1);
    assert_eq!(totals.refused_here.of("bad id"), 1);
    assert!(totals.refused_here.of("malformed") >= 1 && totals.unasked >= 2, "{totals:?}");
}

/// While received events cannot be written, the relay may drop events. They are found at the next
/// connection.
#[tokio::test]
async fn a_comparison_begins_before_the_time_in_which_nothing_was_written() {
    let compared: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (asked, live) = (Arc::clone(&compared), Mutex::new(Value::Null));
    let url = play(move |message| match message[0].as_str() {
        Some("NEG-OPEN") => {
            asked.lock().push(message[2]["since"].as_u64().unwrap());
            paged(message, &[], 100)
        }
        Some("EVENT") => {
            vec![json!(["CLOSED", *live.lock(), "error: the relay is tired"]).to_string()]
        }
        _ => {
            if message[2]["limit"] == 0 {
                *live.lock() = message[1].clone();
            }
            paged(message, &[], 100)
        }
    })
    .await;
    let here = Here::with(&[]);
    let (mut stream, status) = here.stream(&url);
    (stream.options.direction, stream.options.catch_up_s) = (Direction::Both, Some(60));
    let (feed, waits) = (Arc::clone(&stream.ends.feed), Arc::clone(&stream.ends.waits));
    let as_expected = async {
        until_async("it is in step", async || status.is_in_step()).await;
        waits.store(true, Ordering::Relaxed);
        until_async("it is behind", async || !status.is_in_step()).await;
        let behind_from = now_s();
        until_async("time passes", async || now_s() > behind_from + 2).await;
        Here::publish(&feed, &[event(1, now_s())]);
        until_async("it compares again", async || compared.lock().len() > 1).await;
        assert!(compared.lock()[1] <= behind_from - 60, "{:?} {behind_from}", compared.lock());
    };
    tokio::select! {
        error = stream.run() => panic!("{error}"),
        () = as_expected => {}
    }
}

/// A relay is disconnected after a bounded time if it lists events but does not send them, sends
/// pages or messages without end, or sends nothing at all.
#[tokio::test]
async fn whoever_would_keep_a_client_for_ever_is_left() {
    // This relay lists invented ids: a whole range of ids as an answer to each message.
    let rounds = Arc::new(AtomicUsize::new(0));
    let url = play({
        let rounds = Arc::clone(&rounds);
        move |message| match message[0].as_str() {
            Some("NEG-OPEN" | "NEG-MSG") => {
                let round = rounds.fetch_add(1, Ordering::Relaxed);
                let ids: Vec<String> =
                    (0..100).map(|n| format!("{:064x}", round * 100 + n)).collect();
                // The message consists of the version, an infinite bound, the mode for lists of
                // ids, the number of ids, and the ids.
                let list = format!("6100000264{}", ids.concat());
                vec![json!(["NEG-MSG", message[1], list]).to_string()]
            }
            _ => answer(message, &[], 500),
        }
    })
    .await;
    let here = Here::with(&[]);
    here.sync(&url, Direction::Down).await.unwrap();
    let totals = here.finish();
    assert_eq!((totals.stored, totals.not_sent), (0, 100));
    // A relay that sends more events than a page may have.
    let event = event(1, 1_700_000_000);
    let url = play(move |message| match message[0].as_str() {
        Some("NEG-OPEN") => vec![json!(["NOTICE", "neg: no"]).to_string()],
        Some("REQ") => {
            std::iter::repeat_n(json!(["EVENT", message[1], event]).to_string(), 25_000).collect()
        }
        _ => vec![],
    })
    .await;
    let here = Here::with(&[]);
    let error = here.sync(&url, Direction::Down).await.unwrap_err();
    assert!(matches!(error, PeerError::Misbehaved(_)), "{error}");
    // A relay that sends the same page for every requested time.
    let event = kit::event(2, 1_900_000_000);
    let url = play(move |message| match message[0].as_str() {
        Some("NEG-OPEN") => vec![json!(["NOTICE", "neg: no"]).to_string()],
        Some("REQ") => vec![
            json!(["EVENT", message[1], event]).to_string(),
            json!(["EOSE", message[1]]).to_string(),
        ],
        _ => vec![],
    })
    .await;
    let here = Here::with(&[]);
    let error = here.sync(&url, Direction::Down).await.unwrap_err();
    assert!(error.to_string().contains("none is in the requested range of time"), "{error}");
    // A relay that sends nothing, and a relay that sends a message that is too large.
    let url = play(|_| vec![]).await;
    let here = Here::with(&[]);
    let error = here.sync(&url, Direction::Down).await.unwrap_err();
    assert!(matches!(error, PeerError::Silent { .. }), "{error}");
    let url = play(|_| vec![format!("[\"NOTICE\",\"{}\"]", "x".repeat(5 << 20))]).await;
    let here = Here::with(&[]);
    let error = here.sync(&url, Direction::Down).await.unwrap_err();
    assert!(matches!(error, PeerError::Ended(_)), "{error}");
    assert!(error.to_string().contains("bytes, and"), "{error}");
}

/// If a relay does not mark the end of an answer, the client waits for the time limit once, and
/// uses the received events.
#[tokio::test]
async fn an_answer_without_an_end_is_complete_once_nothing_more_comes() {
    let events: Vec<Value> = (0..7).map(|n| event(n, 1_700_000_000 + n)).collect();
    let url = play(move |message| match message[0].as_str() {
        Some("NEG-OPEN") => vec![json!(["NOTICE", "neg: no"]).to_string()],
        Some("REQ") => {
            let mut answers = answer(message, &events, 500);
            // The relay marks the end of an answer only if the answer is empty.
            if answers.len() > 1 {
                answers.pop();
            }
            answers
        }
        _ => vec![],
    })
    .await;
    let here = Here::with(&[]);
    here.sync(&url, Direction::Down).await.unwrap();
    assert_eq!(here.finish().stored, 7);
}

/// Refusals are counted by reason. An event that was refused because of the rate limit is sent
/// again. An event without an answer does not delay other events.
#[tokio::test]
async fn answers_to_uploads_are_counted_and_rates_are_waited_for() {
    let ours: Vec<Value> = (0..8).map(|n| event(n, 1_700_000_000 + n)).collect();
    let seen = AtomicUsize::new(0);
    let url = play(move |message| match message[0].as_str() {
        Some("EVENT") => {
            let (id, at) = (&message[1]["id"], message[1]["created_at"].as_u64().unwrap() % 10);
            let (accepted, reason) = match at {
                1 => (true, "duplicate: have it"),
                2 => (false, "blocked: not you"),
                3 if seen.fetch_add(1, Ordering::Relaxed) == 0 => (false, "rate-limited: slower"),
                0 | 3 => (true, ""),
                4 => return vec![],
                5 => (false, "blocked: event was deleted by its author"),
                _ => (false, "pow: more"),
            };
            vec![json!(["OK", id, accepted, reason]).to_string()]
        }
        Some("NEG-OPEN") => vec![json!(["NOTICE", "neg: no"]).to_string()],
        _ => answer(message, &[], 500),
    })
    .await;
    let here = Here::with(&ours);
    here.sync(&url, Direction::Up).await.unwrap();
    let totals = here.finish();
    assert_eq!((totals.sent, totals.taken, totals.settled), (8, 2, 2), "{totals:?}");
    let refused = |reason| totals.refused_there.of(reason);
    assert_eq!([refused("blocked"), refused("no answer"), refused("pow")], [1, 1, 2]);
}

/// A relay that accepts few events at a time receives all events in the end.
#[tokio::test]
async fn a_relay_that_bounds_the_rate_gets_everything_more_slowly() {
    let ours: Vec<Value> = (0..300).map(|n| event(n, 1_700_000_000 + n)).collect();
    let (began, taken) = (std::time::Instant::now(), AtomicUsize::new(0));
    let url = play(move |message| match message[0].as_str() {
        Some("EVENT") => {
            let most = 100 + began.elapsed().as_millis() as usize / 20;
            let accepted = taken.load(Ordering::Relaxed) < most;
            taken.fetch_add(usize::from(accepted), Ordering::Relaxed);
            let reason = if accepted { "" } else { "rate-limited: slower" };
            vec![json!(["OK", message[1]["id"], accepted, reason]).to_string()]
        }
        Some("NEG-OPEN") => vec![json!(["NOTICE", "neg: no"]).to_string()],
        _ => answer(message, &[], 500),
    })
    .await;
    let here = Here::with(&ours);
    here.sync(&url, Direction::Up).await.unwrap();
    let totals = here.finish();
    assert_eq!((totals.taken, totals.refused_there.total()), (300, 0), "{totals:?}");
}

/// Events are read from the archive in parts. If every event of a part is withheld, the events of
/// later parts are still sent.
#[tokio::test]
async fn events_after_many_withheld_events_are_sent() {
    let mut ours: Vec<Value> = (0..300).map(|n| protected(n, 1_700_000_000 + n)).collect();
    ours.push(event(300, 1_700_000_300));
    let url = play(|message| match message[0].as_str() {
        Some("EVENT") => vec![json!(["OK", message[1]["id"], true, ""]).to_string()],
        Some("NEG-OPEN") => vec![json!(["NOTICE", "neg: no"]).to_string()],
        _ => answer(message, &[], 500),
    })
    .await;
    let here = Here::with(&ours);
    here.sync(&url, Direction::Up).await.unwrap();
    let totals = here.finish();
    assert_eq!((totals.sent, totals.taken, totals.withheld), (1, 1, 300), "{totals:?}");
}

/// A relay that requires AUTH receives a proof, and then answers.
#[tokio::test]
async fn a_relay_that_asks_for_it_gets_a_proof_of_the_key() {
    let events: Vec<Value> = (0..3).map(|n| event(n, 1_700_000_000 + n)).collect();
    let proven = AtomicUsize::new(0);
    let url = play(move |message| match message[0].as_str() {
        Some("AUTH") => {
            let tags = message[1]["tags"].to_string();
            let right = message[1]["kind"] == 22_242 && tags.contains("\"challenge\",\"prove it\"");
            proven.fetch_add(usize::from(right), Ordering::Relaxed);
            vec![json!(["OK", message[1]["id"], right, ""]).to_string()]
        }
        Some("NEG-OPEN") => vec![json!(["NOTICE", "neg: no"]).to_string()],
        Some("REQ") if proven.load(Ordering::Relaxed) == 0 => vec![
            json!(["AUTH", "prove it"]).to_string(),
            json!(["CLOSED", message[1], "auth-required: who are you?"]).to_string(),
        ],
        _ => answer(message, &events, 500),
    })
    .await;
    let here = Here::with(&[]);
    let error = here.sync(&url, Direction::Down).await.unwrap_err();
    assert!(error.to_string().contains("--key-file"), "{error}");
    let mut here = Here::with(&[]);
    here.client.key = Some(keys(9));
    here.sync(&url, Direction::Down).await.unwrap();
    assert_eq!(here.finish().stored, 3);
    assert_eq!(held(&here), 3);
}

/// Some relays require AUTH only for comparisons of private kinds.
#[tokio::test]
async fn private_kinds_are_compared_once_the_key_is_proved() {
    let own = signed(1, 1_700_000_000, 4);
    let id = own["id"].as_str().unwrap().to_owned();
    let (proven, filters) = (AtomicUsize::new(0), Arc::<Mutex<Vec<Value>>>::default());
    let asked = Arc::clone(&filters);
    let url = play(move |message| match message[0].as_str() {
        Some("AUTH") => {
            proven.fetch_add(1, Ordering::Relaxed);
            vec![json!(["OK", message[1]["id"], true, ""]).to_string()]
        }
        Some("NEG-OPEN") if proven.load(Ordering::Relaxed) == 0 => vec![
            json!(["AUTH", "prove it"]).to_string(),
            json!(["NEG-ERR", message[1], "auth-required: these are private"]).to_string(),
        ],
        Some("NEG-OPEN") => {
            asked.lock().push(message[2].clone());
            // One range up to the end, with the id of the event as its only item.
            vec![json!(["NEG-MSG", message[1], format!("6100000201{id}")]).to_string()]
        }
        _ => answer(message, &[], 500),
    })
    .await;
    let mut here = Here::with(&[own]);
    here.client.key = Some(keys(9));
    let report = here.sync(&url, Direction::Down).await.unwrap();
    assert!(report.paged.is_none(), "{report:?}");
    // The first request is for the time of the event, and the second request for all times. Neither
    // request has a condition on kinds.
    let second = json!({ "since": 1_700_000_000, "until": 1_700_000_000 });
    assert_eq!(*filters.lock(), [second, json!({})]);
}
