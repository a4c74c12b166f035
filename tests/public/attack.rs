//! Five kinds of hostile clients, beside ordinary clients. Nothing crashes, the ordinary clients
//! are served, and every refusal is counted.

use std::collections::BTreeMap;
use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hark_testkit::clock::now_s;
use hark_testkit::http::get;
use hark_testkit::nostr::{keys, publication};
use hark_testkit::random::Random;
use hark_testkit::runs::is_long;
use hark_testkit::wait::until;
use hark_testkit::websocket::{masked, read_frame, upgrade};
use serde_json::{Value, json};

use crate::cli::support::{Place, notes};

/// The number of received refusals, by the verb of the answer and the prefix of the reason.
type ReceivedRefusals = Mutex<BTreeMap<(&'static str, String), u64>>;

/// Refusals that the attackers receive.
const EXPECTED: [(&str, &str); 5] = [
    ("OK", "invalid"),
    ("OK", "rate-limited"),
    ("CLOSED", "rate-limited"),
    ("CLOSED", "invalid"),
    ("NOTICE", "invalid"),
];

/// Interval between two messages of an attacker.
const PACE: Duration = Duration::from_millis(1);

/// State that all attackers share.
struct Mix {
    address: String,
    over: AtomicBool,
    received: ReceivedRefusals,
    said: AtomicU64,
    turned_away: AtomicU64,
}

impl Mix {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn note(&self, text: &[u8]) {
        if text.starts_with(b"[\"EVENT\"") {
            return;
        }
        let Ok(Value::Array(reply)) = serde_json::from_slice(text) else { return };
        let verb = match reply[0].as_str() {
            Some("OK") if reply[2] == false => "OK",
            Some("CLOSED") => "CLOSED",
            Some("NOTICE") => "NOTICE",
            _ => return,
        };
        let reason = reply.last().and_then(Value::as_str).unwrap_or_default();
        let prefix = reason.split(':').next().unwrap_or_default().to_owned();
        *self.received.lock().unwrap().entry((verb, prefix)).or_default() += 1;
    }

    /// Connects with this address in `X-Forwarded-For`, and sends the messages of `next` until the
    /// attack is over or the connection ends. Another thread receives the answers.
    fn flood(self: &Arc<Self>, from: u32, mut next: impl FnMut() -> Vec<u8>) {
        let from = format!("X-Forwarded-For: 198.51.100.{from}\r\n");
        let Ok((status, socket)) = upgrade(&self.address, &from) else { return };
        if status != 101 {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut to = socket.get_ref().try_clone().unwrap();
        // With the timeout, this thread ends even if the server does not read.
        to.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let ears = thread::spawn({
            let mix = Arc::clone(self);
            move || mix.listen(socket)
        });
        // The loop ends when the answers end, since a server that closes a connection still reads
        // for some seconds.
        while !self.is_over() && !ears.is_finished() && to.write_all(&next()).is_ok() {
            self.said.fetch_add(1, Ordering::Relaxed);
            // About the rate of one client on a network. The attackers run on the server's machine.
            // The CPU time should go to handling the messages, not to sending.
            thread::sleep(PACE);
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
        ears.join().unwrap();
    }

    fn listen(&self, mut socket: BufReader<TcpStream>) {
        while let Ok((first, payload)) = read_frame(&mut socket) {
            match first & 0xf {
                1 => self.note(&payload),
                8 => return,
                _ => {}
            }
        }
    }
}

/// Starts an attacker that reconnects whenever its connection ends.
fn attacker(
    mix: &Arc<Mix>,
    from: u32,
    next: impl FnMut() -> Vec<u8> + Send + 'static,
) -> thread::JoinHandle<()> {
    let (mix, mut next) = (Arc::clone(mix), next);
    thread::spawn(move || {
        while !mix.is_over() {
            mix.flood(from, &mut next);
            thread::sleep(Duration::from_millis(20));
        }
    })
}

fn invalid_signatures() -> impl FnMut() -> Vec<u8> + Send {
    let keys = keys(9);
    let forged: Vec<Vec<u8>> = (0..200)
        .map(|n| {
            let (message, _) = publication(&keys, now_s(), 1, &[], &format!("forged {n}"));
            let text = String::from_utf8(message).unwrap();
            let (head, tail) = text.split_once("\"sig\":\"").unwrap();
            masked(0x81, format!("{head}\"sig\":\"{}{}", "00".repeat(16), &tail[32..]).as_bytes())
        })
        .collect();
    let mut at = 0;
    move || {
        at += 1;
        forged[at % forged.len()].clone()
    }
}

fn malformed(seed: u64) -> impl FnMut() -> Vec<u8> + Send {
    let mut random = Random::new(seed);
    // Most of these messages get an answer. The others end the connection.
    move || match random.below(16) {
        0..4 => masked(0x81, b"[\"EVENT\",{\"id\":\"x\"}]"),
        4..8 => masked(0x81, b"[[[[[[[[[[[["),
        8..11 => masked(0x81, b"[\"REQ\",\"s\",{\"kinds\":[\"one\"]}]"),
        11 => masked(0x81, &[0xff; 200]),
        12 => masked(0x82, b"binary"),
        // Invalid frames: a reserved bit, an unknown opcode, a long ping, no mask.
        13 => masked(0xa1, b"x"),
        14 => vec![0x81, 0x03, b'a', b'b', b'c'],
        _ => masked(0x89, &[0; 126]),
    }
}

fn expensive(seed: u64) -> impl FnMut() -> Vec<u8> + Send {
    let mut random = Random::new(seed);
    let mut some = |many: usize| -> Vec<String> {
        (0..many).map(|_| format!("{:064x}", random.below(1 << 40))).collect()
    };
    // The messages are made beforehand, so that only the server's work takes CPU time.
    let messages: Vec<Vec<u8>> = (0..64)
        .map(|at| {
            let text = match at % 4 {
                0 => json!(["REQ", "all", {"limit": 5000}]),
                1 => json!(["COUNT", "all", {"since": at}, {"kinds": [1]}]),
                2 => json!(["REQ", "many", {"authors": some(2000), "limit": 5000}]),
                _ => {
                    let filters: Vec<Value> =
                        (0..18).map(|_| json!({"#t": some(20), "kinds": [1, 6, 7]})).collect();
                    Value::Array([vec![json!("REQ"), json!("f")], filters].concat())
                }
            };
            masked(0x81, text.to_string().as_bytes())
        })
        .collect();
    let mut at = 0;
    move || {
        at += 1;
        messages[at % messages.len()].clone()
    }
}

fn duplicates() -> impl FnMut() -> Vec<u8> + Send {
    let keys = keys(8);
    let (message, _) = publication(&keys, now_s(), 1, &[], "the same, again");
    let message = masked(0x81, &message);
    move || message.clone()
}

/// Connects and disconnects repeatedly.
fn churn(mix: &Arc<Mix>, from: u32) -> thread::JoinHandle<()> {
    let mix = Arc::clone(mix);
    let header = format!("X-Forwarded-For: 203.0.113.{from}\r\n");
    thread::spawn(move || {
        while !mix.is_over() {
            if upgrade(&mix.address, &header).is_ok_and(|(status, _)| status != 101) {
                mix.turned_away.fetch_add(1, Ordering::Relaxed);
            }
            mix.said.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(2));
        }
    })
}

/// Sends queries like ordinary clients, until `end`. Returns the time of each answer.
fn normal(address: &str, from: u32, end: Instant) -> Vec<Duration> {
    let header = format!("X-Forwarded-For: 192.0.2.{from}\r\n");
    let (status, mut socket) = upgrade(address, &header).unwrap();
    assert_eq!(status, 101);
    let mut took = Vec::new();
    while Instant::now() < end {
        let filter = match took.len() % 3 {
            0 => json!({"kinds": [1], "limit": 20}),
            1 => json!({"#t": ["bread"], "limit": 20}),
            _ => json!({"kinds": [1], "until": 1_700_000_000 + took.len(), "limit": 20}),
        };
        let asked = Instant::now();
        let req = json!(["REQ", "s", filter]).to_string();
        socket.get_mut().write_all(&masked(0x81, req.as_bytes())).unwrap();
        loop {
            let (first, text) = read_frame(&mut socket).unwrap();
            if first & 0xf == 9 {
                socket.get_mut().write_all(&masked(0x8a, &text)).unwrap();
            }
            assert!(!text.starts_with(b"[\"CLOSED\""), "{}", String::from_utf8_lossy(&text));
            if text.starts_with(b"[\"EOSE\"") {
                break;
            }
        }
        took.push(asked.elapsed());
        socket.get_mut().write_all(&masked(0x81, b"[\"CLOSE\",\"s\"]")).unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    took
}

fn clients(address: &str, lasts: Duration, name: &str) {
    let end = Instant::now() + lasts;
    let clients: Vec<_> = (1..=4)
        .map(|from| {
            let address = address.to_owned();
            thread::spawn(move || normal(&address, from, end))
        })
        .collect();
    let mut took: Vec<Duration> =
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    took.sort();
    let at = |share: usize| took[(took.len() * share / 100).min(took.len() - 1)];
    println!(
        "REQs of normal clients, {name}: {} answered, p50 {:?}, p99 {:?}",
        took.len(),
        at(50),
        at(99)
    );
}

/// Returns the server's counts by verb and result.
fn counted(address: &str) -> BTreeMap<String, u64> {
    let page = get(address, "/metrics").ok();
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

#[test]
fn the_others_are_served_and_every_refusal_is_counted() {
    let place = Place::new("attack");
    let settings = b"[server]\ntrusted_proxies = [\"127.0.0.1\"]\n\n[log]\nlevel = \"error\"\n";
    let config = place.file("hark.toml", settings);
    let stored = if is_long() { 50_000 } else { 2_000 };
    let report = place.hark_fed(&["import", "--json"], notes(stored).as_bytes()).json();
    assert_eq!(report["stored"], stored);
    let mut server = place.serve_with(&["--config", &config]);
    let address = server.address.clone();
    let lasts = if is_long() { Duration::from_mins(10) } else { Duration::from_secs(5) };
    clients(&address, lasts.min(Duration::from_mins(1)), "without an attack");

    let mix = Arc::new(Mix {
        address: address.clone(),
        over: AtomicBool::new(false),
        received: Mutex::default(),
        said: AtomicU64::new(0),
        turned_away: AtomicU64::new(0),
    });
    let mut attackers = Vec::new();
    for n in 1..=2 {
        attackers.push(attacker(&mix, n, invalid_signatures()));
        attackers.push(attacker(&mix, 10 + n, malformed(u64::from(n))));
        attackers.push(attacker(&mix, 20 + n, expensive(u64::from(n))));
        attackers.push(attacker(&mix, 30 + n, duplicates()));
        attackers.push(churn(&mix, n));
    }
    // Another attacker requests more connections than one address may have.
    let held: Vec<_> = (0..110)
        .map(|_| upgrade(&address, "X-Forwarded-For: 198.51.100.99\r\n").unwrap())
        .collect();
    let refused = held.iter().filter(|(status, _)| *status == 429).count() as u64;
    assert_eq!(refused, 10);
    clients(&address, lasts, "beside the attack");
    let has = |(verb, prefix): (&'static str, &str)| {
        mix.received.lock().unwrap().contains_key(&(verb, prefix.to_owned()))
    };
    until("each refusal is received", || EXPECTED.into_iter().all(has));
    mix.over.store(true, Ordering::Relaxed);
    for attacker in attackers {
        attacker.join().unwrap();
    }
    drop(held);

    assert!(server.is_running(), "the server has crashed");
    let counted = counted(&address);
    let received = mix.received.lock().unwrap();
    println!("{} messages and connections of attackers", mix.said.load(Ordering::Relaxed));
    for ((verb, prefix), received) in received.iter() {
        let result = format!("result=\"{prefix}\"");
        let counted: u64 = counted
            .iter()
            .filter(|(name, _)| name.starts_with("hark_messages_total") && name.contains(&result))
            .map(|(_, count)| count)
            .sum();
        println!("{verb} {prefix}: {received} received, {counted} counted with this reason");
        assert!(counted >= *received, "{verb} {prefix} is not counted");
    }
    let kinds: Vec<(&str, &str)> =
        received.keys().map(|(verb, prefix)| (*verb, prefix.as_str())).collect();
    for expected in EXPECTED {
        assert!(kinds.contains(&expected), "{expected:?} was never received: {kinds:?}");
    }
    let turned_away: u64 = counted
        .iter()
        .filter(|(name, _)| name.starts_with("hark_connections_refused_total"))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(turned_away, refused + mix.turned_away.load(Ordering::Relaxed));
    let (code, _) = server.terminate();
    assert_eq!(code, 0);
}
