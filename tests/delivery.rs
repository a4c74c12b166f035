//! Every published event reaches every matching subscriber exactly once: stored or live.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use hark_testkit::clock::now_s;
use hark_testkit::digits::digits;
use hark_testkit::nostr::{keys, publication, publish};
use hark_testkit::random::Random;
use hark_testkit::runs::is_long;
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;
use serde_json::json;

use crate::served::Relay;

/// The deliveries to one subscriber in a run.
#[derive(Default)]
struct Delivery {
    times: HashMap<u64, u32>,
    stored: usize,
}

/// Subscribes once `begin` of the run's events have their OK, and receives until all events of the
/// run have arrived.
fn listen(
    address: &str,
    filters: &[serde_json::Value],
    acknowledged: &AtomicUsize,
    begin: usize,
    events: usize,
) -> Delivery {
    let mut socket = Socket::connect(address);
    until("the publisher goes on", || acknowledged.load(Ordering::Acquire) >= begin);
    let mut request = vec![json!("REQ"), json!("s")];
    request.extend_from_slice(filters);
    socket.send_text(json!(request).to_string());
    let (mut received, mut eose) = (Delivery::default(), false);
    while received.times.len() < events || !eose {
        let message = socket.json();
        if message[0] == "EVENT" {
            let n = message[2]["content"].as_str().and_then(|text| text.parse().ok());
            *received.times.entry(n.expect("a number")).or_default() += 1;
            received.stored += usize::from(!eose);
        } else {
            assert_eq!((&message[0], eose), (&json!("EOSE"), false), "{message}");
            eose = true;
        }
    }
    // A duplicate that is still in transit would arrive before the answer to this COUNT.
    socket.send_text(json!(["COUNT", "n", { "limit": 1 }]).to_string());
    let last = socket.json();
    assert_eq!(last[0], "COUNT", "{last}");
    received
}

#[test]
fn two_subscribers_receive_each_event_published_meanwhile_exactly_once() {
    let (runs, events) = if is_long() { (100, 10_000) } else { (4, 2_000) };
    let relay =
        Relay::start("once", "[limits]\nlimit_max = 100000\n[archive]\nseal_records = 5000\n");
    let address = relay.address();
    let keys = [1, 2, 3].map(keys);
    let (mut random, now) = (Random::new(5), now_s());
    let (mut stored, mut live) = (0, 0);
    for run in 0..runs {
        let topic = format!("run {run}");
        let acknowledged = AtomicUsize::new(0);
        let received = std::thread::scope(|scope| {
            let whole = json!({ "#t": [topic], "limit": 100_000 });
            let author = |at: usize| digits(keys[at].public());
            // The second subscriber's filters overlap, and are searched one after the other.
            let parts = [
                json!({ "#t": [topic], "authors": [author(0), author(1)], "limit": 100_000 }),
                json!({ "#t": [topic], "kinds": [1], "limit": 100_000 }),
            ];
            let begins = [random.below(events), random.below(events)];
            let acknowledged = &acknowledged;
            let asking = [vec![whole], parts.to_vec()];
            let listening: Vec<_> = std::iter::zip(asking, begins)
                .map(|(filters, begin)| {
                    scope.spawn(move || listen(address, &filters, acknowledged, begin, events))
                })
                .collect();
            let mut numbers = 0..events;
            publish(
                Socket::connect(address),
                64,
                || {
                    let n = numbers.next()?;
                    let tags: &[&[&str]] = &[&["t", &topic]];
                    let created_at = now - (n % 700) as u64;
                    Some(publication(&keys[n % 3], created_at, 1, tags, &n.to_string()).0)
                },
                |_, verdict| {
                    assert_eq!(verdict, b"\",true,\"\"]");
                    acknowledged.fetch_add(1, Ordering::Release);
                },
            );
            let received: Vec<Delivery> =
                listening.into_iter().map(|each| each.join().expect("no panic")).collect();
            received
        });
        for each in received {
            let duplicates = each.times.values().filter(|times| **times != 1).count();
            assert_eq!((each.times.len(), duplicates), (events, 0), "run {run}");
            stored += each.stored;
            live += events - each.stored;
        }
    }
    assert!(stored > 0 && live > 0, "{stored} stored, {live} live");
    println!("{runs} runs of {events} events to two subscribers: {stored} stored, {live} live");
}

/// Number of subscriptions, each to one of the tags, ten to a connection.
const SUBSCRIPTIONS: usize = 1_000;
const PER_CONNECTION: usize = 10;
const TAGS: usize = 50;

#[test]
fn a_thousand_subscriptions_to_fifty_tags_lose_nothing() {
    let events: usize = if is_long() { 12_000 } else { 400 };
    let relay = Relay::start("fan", "");
    let address = relay.address();
    let keys = keys(4);
    // When each event was sent, in ns since the start.
    let sent_ns: Vec<AtomicU64> = (0..events).map(|_| AtomicU64::new(0)).collect();
    let (started, ready) = (Instant::now(), AtomicUsize::new(0));
    let elapsed_ns = || started.elapsed().as_nanos() as u64;
    let mut delays_ns: Vec<u64> = std::thread::scope(|scope| {
        let (sent_ns, ready, elapsed_ns) = (&sent_ns, &ready, &elapsed_ns);
        let connections = SUBSCRIPTIONS / PER_CONNECTION;
        let listening: Vec<_> = (0..connections)
            .map(|connection| {
                scope.spawn(move || {
                    let mut socket = Socket::connect(address);
                    let mine = |sub: usize| connection * PER_CONNECTION + sub;
                    for sub in 0..PER_CONNECTION {
                        let filter = json!({ "#t": [format!("tag {}", mine(sub) % TAGS)] });
                        socket.send_text(json!(["REQ", sub.to_string(), filter]).to_string());
                    }
                    for _ in 0..PER_CONNECTION {
                        assert_eq!(socket.json()[0], "EOSE");
                    }
                    ready.fetch_add(1, Ordering::Release);
                    let due: usize = (0..PER_CONNECTION)
                        .map(|sub| (0..events).filter(|n| n % TAGS == mine(sub) % TAGS).count())
                        .sum();
                    let mut received = HashSet::new();
                    let mut delays_ns = Vec::with_capacity(due);
                    for _ in 0..due {
                        let text = socket.receive().expect("the connection holds");
                        let at_ns = elapsed_ns();
                        let message: serde_json::Value =
                            serde_json::from_slice(&text).expect("is JSON");
                        assert_eq!(message[0], "EVENT", "{message}");
                        let word = |value: &serde_json::Value| -> usize {
                            value.as_str().and_then(|text| text.parse().ok()).expect("a number")
                        };
                        let (sub, n) = (word(&message[1]), word(&message[2]["content"]));
                        assert_eq!(n % TAGS, mine(sub) % TAGS, "{message}");
                        assert!(received.insert((sub, n)), "a duplicate: {message}");
                        delays_ns.push(at_ns - sent_ns[n].load(Ordering::Acquire));
                    }
                    delays_ns
                })
            })
            .collect();
        until("all have subscribed", || {
            let are_ready = ready.load(Ordering::Acquire) >= connections;
            assert!(
                are_ready || !listening.iter().any(ScopedJoinHandle::is_finished),
                "one gave up"
            );
            are_ready
        });
        let (begun, mut numbers) = (Instant::now(), 0..events);
        publish(
            Socket::connect(address),
            events,
            || {
                let n = numbers.next()?;
                let tag = format!("tag {}", n % TAGS);
                let event = publication(&keys, now_s(), 1, &[&["t", &tag]], &n.to_string()).0;
                let due = Duration::from_millis(5 * n as u64);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
                sent_ns[n].store(elapsed_ns(), Ordering::Release);
                Some(event)
            },
            |_, verdict| assert_eq!(verdict, b"\",true,\"\"]"),
        );
        listening.into_iter().flat_map(|each| each.join().expect("no panic")).collect()
    });
    delays_ns.sort_unstable();
    assert_eq!(delays_ns.len(), events * SUBSCRIPTIONS / TAGS);
    let at = |share: f64| delays_ns[((delays_ns.len() - 1) as f64 * share) as usize] as f64 / 1e6;
    println!(
        "{SUBSCRIPTIONS} subscriptions to {TAGS} tags, 200 events/s: from sent to received p50 {:.2} ms, \
         p99 {:.2} ms, at most {:.2} ms; {} deliveries, none lost",
        at(0.5),
        at(0.99),
        at(1.0),
        delays_ns.len(),
    );
}
