//! `hark serve --takeover` with real processes: connected clients notice nothing, and no
//! acknowledged event is lost, no matter which process dies.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hark_archive::{Id, Store as _};
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore};
use hark_testkit::clock::now_s;
use hark_testkit::nostr::{keys, publication, publish};
use hark_testkit::random::Random;
use hark_testkit::runs::is_long;
use hark_testkit::wait::{until, until_ok};
use hark_testkit::websocket::Socket;
use serde_json::json;

use crate::served::{Place, hark};

mod addresses;
mod between;
mod steps;

/// A place with small heads, so that servers begin logs and seal segments during takeovers.
fn place(name: &str, settings: &str) -> Place {
    Place::new(name, &format!("[archive]\nseal_records = 1500\n{settings}"))
}

fn reader(place: &Place) -> EmbeddedStore {
    EmbeddedStore::open_read_only(&place.data().join("nostr"), EmbeddedOptions::default())
        .expect("opens beside the server")
}

/// Asserts that the archive is sound and has all of these records.
fn check(place: &Place, acknowledged: &[Id]) {
    let reader = reader(place);
    let lost = acknowledged.iter().filter(|id| !reader.knows(id).expect("answers")).count();
    assert_eq!(lost, 0, "of {} events with an OK", acknowledged.len());
    let checked = hark(&place.data()).arg("check").output().expect("runs");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && said.contains("no faults"), "{said}");
}

/// Returns a note, or an event that is sent to subscribers but not stored.
fn event(kept: bool, content: &str) -> (Vec<u8>, Id) {
    let kind = if kept { 1 } else { 20_001 };
    publication(&keys(6), now_s(), kind, &[&["t", "load"]], content)
}

/// The published events: every event's content, and the ids of stored events.
#[derive(Default)]
struct Published {
    contents: Mutex<Vec<String>>,
    kept: Mutex<Vec<Id>>,
    answered: AtomicUsize,
    over: AtomicBool,
}

impl Published {
    /// Publishes events with this name until the load is over or the server is gone. Every fifth
    /// event is ephemeral. Returns whether every event got its OK.
    fn load(&self, socket: Socket, name: &str) -> bool {
        let (mut sent, mut ok) = (0, 0);
        publish(
            socket,
            32,
            || {
                if self.over.load(Ordering::Acquire) {
                    return None;
                }
                std::thread::sleep(Duration::from_micros(700));
                let content = format!("{name} {sent}");
                let (message, id) = event(sent % 5 != 0, &content);
                self.contents.lock().expect("no panic").push(content);
                if sent % 5 != 0 {
                    self.kept.lock().expect("no panic").push(id);
                }
                sent += 1;
                Some(message)
            },
            |_, verdict| {
                assert_eq!(verdict, b"\",true,\"\"]", "{}", String::from_utf8_lossy(verdict));
                self.answered.fetch_add(1, Ordering::Release);
                ok += 1;
            },
        );
        sent == ok
    }

    /// Waits until `more` further events have their OK.
    fn wait(&self, more: usize) {
        let answered = || self.answered.load(Ordering::Acquire);
        let before = answered();
        until("more events get their OK", || answered() >= before + more);
    }
}

/// Subscribes to all events of the load from now on.
fn subscribe(address: &str) -> Socket {
    let mut socket = Socket::connect(address);
    socket.send_text(json!(["REQ", "s", { "#t": ["load"], "limit": 0 }]).to_string());
    assert_eq!(socket.json()[0], "EOSE");
    socket
}

/// Receives until `ends` contents that begin with "end" have arrived. Returns the number of
/// deliveries of each content.
fn listen(mut socket: Socket, ends: usize) -> HashMap<String, u32> {
    let (mut received, mut ended) = (HashMap::new(), 0);
    while ended < ends {
        let message = socket.json();
        assert_eq!(message[0], "EVENT", "{message}");
        let content = message[2]["content"].as_str().expect("content");
        if content.starts_with("end") {
            ended += 1;
        } else {
            *received.entry(content.to_owned()).or_default() += 1;
        }
    }
    // A duplicate that is still in transit would arrive before the answer to this COUNT.
    socket.send_text(json!(["COUNT", "n", { "limit": 1 }]).to_string());
    assert_eq!(socket.json()[0], "COUNT");
    received
}

/// Publishes one event and waits for its OK.
fn send_text(socket: &mut Socket, kept: bool, content: &str) -> Id {
    let (message, id) = event(kept, content);
    socket.send_text(&message);
    let answer = socket.json();
    assert_eq!((&answer[0], &answer[2]), (&json!("OK"), &json!(true)), "{answer}");
    id
}

/// Asserts that a query finds the event with this id.
fn finds(socket: &mut Socket, id: &Id) {
    let id = String::from_utf8(hark_codec::hex::encode_32(id).to_vec()).expect("is hex");
    socket.send_text(json!(["REQ", "q", { "ids": [id] }]).to_string());
    assert_eq!(socket.json()[0], "EVENT", "what got its OK is not found");
    assert_eq!(socket.json()[0], "EOSE");
    socket.send_text(json!(["CLOSE", "q"]).to_string());
}

#[test]
fn a_server_is_replaced_under_load_and_nobody_notices() {
    for round in 0..if is_long() { 10 } else { 1 } {
        let place = place("takeover", "");
        let mut old = place.start();
        let address = old.address.clone();
        let published = Published::default();
        // Subscribers from before the load receive all of its events.
        let listening = [subscribe(&address), subscribe(&address)];
        let mut idle = Socket::connect(&address);
        let (mut new, took, late, received) = std::thread::scope(|scope| {
            let published = &published;
            let load = |name: &'static str| {
                let socket = Socket::connect(&address);
                scope.spawn(move || published.load(socket, name))
            };
            let listening = listening.map(|socket| scope.spawn(move || listen(socket, 4)));
            let mut loading = vec![load("a"), load("b")];
            published.wait(1_000);
            let begun = Instant::now();
            let new = place.take_over();
            let took = begun.elapsed();
            assert_eq!(new.address, address);
            // Later subscribers receive all later events, no matter which process gets the events.
            let late = subscribe(&address);
            let before = published.contents.lock().expect("no panic").len();
            let late = scope.spawn(move || (before, listen(late, 4)));
            loading.push(load("c"));
            let mut fresh = Socket::connect(&address);
            for n in 0..50 {
                let id = send_text(
                    &mut idle,
                    true,
                    &format!("end of nothing {n}").replace("end", "idle"),
                );
                finds(&mut idle, &id);
                finds(&mut fresh, &id);
            }
            published.wait(4_000);
            published.over.store(true, Ordering::Release);
            for each in loading {
                assert!(each.join().expect("no panic"), "an event got no OK");
            }
            for kept in [true, false] {
                send_text(&mut idle, kept, "end, said to the old one");
                send_text(&mut fresh, kept, "end, said to the new one");
            }
            let late = late.join().expect("no panic");
            (new, took, late, listening.map(|each| each.join().expect("no panic")))
        });
        let contents = published.contents.lock().expect("no panic");
        for received in &received {
            let of = |content: &String| received.get(content).copied().unwrap_or(0);
            let missed = contents.iter().filter(|content| of(content) == 0).count();
            let duplicates = received.values().filter(|times| **times > 1).count();
            assert_eq!((missed, duplicates), (0, 0), "of {}, round {round}", contents.len());
        }
        let (before, late) = late;
        let missed = contents[before..].iter().filter(|content| !late.contains_key(*content));
        assert_eq!(missed.count(), 0, "by one that came later, round {round}");
        assert!(late.values().all(|times| *times == 1), "duplicates, round {round}");
        // The old process ends with its last connection.
        drop(idle);
        assert!(old.wait().expect("ends").success());
        check(&place, &published.kept.lock().expect("no panic"));
        new.kill();
        println!(
            "round {round}: {} events, the takeover took {} ms; none lost, none missed, none twice",
            contents.len(),
            took.as_millis()
        );
    }
}

#[test]
fn servers_are_replaced_one_after_another() {
    let place = place("chain", "");
    let mut servers = vec![place.start()];
    let address = servers[0].address.clone();
    let mut sockets = vec![Socket::connect(&address)];
    let mut subscribers = vec![subscribe(&address)];
    for _ in 0..2 {
        servers.push(place.take_over());
        sockets.push(Socket::connect(&address));
        subscribers.push(subscribe(&address));
    }
    for (at, socket) in sockets.iter_mut().enumerate() {
        for n in 0..600 {
            let id = send_text(socket, n % 3 > 0, &format!("{at} {n}"));
            if n % 3 > 0 {
                finds(socket, &id);
            }
        }
    }
    for (at, socket) in sockets.iter_mut().enumerate() {
        for kept in [true, false] {
            send_text(socket, kept, &format!("end {at}"));
        }
    }
    for subscriber in subscribers {
        let received = listen(subscriber, 6);
        assert_eq!(received.len(), 1_800);
        assert!(received.values().all(|times| *times == 1));
    }
    let taken = hark(&place.data()).args(["serve", "--listen", "127.0.0.1:0"]).output();
    let taken = taken.expect("runs");
    let newest = servers[2].id().to_string();
    let said = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(!taken.status.success() && said.contains(&newest), "{said}");
    // The first server serves its connection through the second server.
    for (server, socket) in servers.iter_mut().zip(sockets).take(2) {
        drop(socket);
        assert!(server.wait().expect("ends").success());
    }
}

/// The version of the takeover protocol.
const VERSION: u32 = 3;

/// Requests a takeover as a new server does. Returns the connection and the type of the first
/// answer.
fn ask(data: &Path, version: u32) -> (UnixStream, u8) {
    let mut stream = UnixStream::connect(data.join("control.sock")).expect("a server runs");
    let names = b"nostr\nmoderation";
    let length = 6 + names.len() as u8;
    let request = [&[length, 0, 0, 0, 5, 0][..], &version.to_le_bytes(), names].concat();
    stream.write_all(&request).expect("is sent");
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head).expect("is answered");
        let [a, b, c, d, what] = head;
        let mut body = vec![0; u32::from_le_bytes([a, b, c, d]) as usize - 1];
        stream.read_exact(&mut body).expect("is whole");
        if what != 0x82 {
            return (stream, what);
        }
    }
}

#[test]
fn a_takeover_that_fails_changes_nothing() {
    let (handed, failed) = (0x85, 0x84);
    let place = place("fails", "[limits]\ntakeover_wait_ms = 300\n");
    let mut server = place.start();
    let mut socket = Socket::connect(&server.address);
    let mut subscriber = subscribe(&server.address);
    let mut times = 0;
    let mut alive = |kept: bool| {
        times += 1;
        let content = format!("still there {times}");
        send_text(&mut socket, kept, &content);
        assert_eq!(subscriber.json()[2]["content"], content);
        assert_eq!(Socket::connect(&server.address).writer().send_text(b"[]").ok(), Some(()));
    };
    alive(true);
    // A new process that disconnects once it has the sockets.
    let (stream, what) = ask(&place.data(), VERSION);
    assert_eq!(what, handed);
    // During this takeover, a second new process and a process with another version of the protocol
    // are refused.
    assert_eq!(ask(&place.data(), VERSION).1, failed);
    assert_eq!(ask(&place.data(), 7).1, failed);
    drop(stream);
    alive(false);
    // A new process that sends nothing more: events published during the wait are delayed, then
    // stored. The server may not have noticed yet that the previous connection has ended.
    let stream = until_ok(|| {
        let (stream, what) = ask(&place.data(), VERSION);
        if what == handed { Ok(stream) } else { Err("the takeover is refused") }
    });
    alive(true);
    drop(stream);
    // A new process that fails to start.
    let log = place.folder.file("other.toml", "[server]\nmetrics_listen = \"192.0.2.1:1\"\n");
    let mut command = hark(&place.data());
    command.args(["serve", "--takeover", "--listen", "127.0.0.1:0", "--config"]).arg(log);
    let output = command.output().expect("runs");
    assert!(!output.status.success());
    alive(true);
    // A new process that succeeds.
    let new = place.take_over();
    alive(true);
    assert_eq!(new.address, server.address);
    drop((socket, subscriber));
    assert!(server.wait().expect("ends").success());
}

#[test]
fn whichever_is_killed_meanwhile_nothing_acknowledged_is_lost() {
    let (mut random, mut kept) = (Random::new(3), Vec::new());
    let (mut went_on, mut taken) = (0, 0);
    let place = place("killed", "");
    for round in 0..if is_long() { 60 } else { 6 } {
        let mut old = place.start();
        let address = old.address.clone();
        let acknowledged = Mutex::new(Vec::new());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (acknowledged, over) = (&acknowledged, &over);
            let socket = Socket::connect(&address);
            let loading = scope.spawn(move || {
                let mut numbers = 0..;
                let next = || {
                    let n = numbers.next().filter(|_| !over.load(Ordering::Acquire));
                    n.map(|n: u32| event(true, &format!("{round} {n}")).0)
                };
                publish(socket, 64, next, |id, verdict| {
                    if verdict.starts_with(b"\",true") {
                        acknowledged.lock().expect("no panic").push(id);
                    }
                });
            });
            std::thread::sleep(Duration::from_millis(50));
            let mut new = hark(&place.data());
            new.args(["serve", "--unlimited", "--takeover", "--listen", &address]);
            let mut new = new.spawn().expect("runs");
            std::thread::sleep(Duration::from_millis(random.below(120) as u64));
            let kill_old = random.once_in(2);
            let victim = if kill_old { &mut old.process } else { &mut new };
            victim.kill().expect("is killed");
            victim.wait().expect("has ended");
            // The other process continues as the server, or ends because it cannot continue.
            let other = if kill_old { &mut new } else { &mut old.process };
            let serves = until_ok(|| {
                if other.try_wait().expect("is there").is_some() {
                    return Ok(false);
                }
                let answers = Socket::try_connect(&address)
                    .is_ok_and(|mut socket| round_trip(&mut socket, round));
                if answers { Ok(true) } else { Err("it neither serves nor ends") }
            });
            went_on += usize::from(serves && !kill_old);
            taken += usize::from(serves && kill_old);
            over.store(true, Ordering::Release);
            for child in [&mut new, &mut old.process] {
                // One of the two processes is dead already.
                let _ = child.kill();
                let _ = child.wait();
            }
            loading.join().expect("no panic");
        });
        kept.append(&mut acknowledged.into_inner().expect("no panic"));
        let server = place.start();
        check(&place, &kept);
        drop(server);
    }
    println!(
        "{} events acknowledged; {went_on} times the old one went on, {taken} times the new one",
        kept.len()
    );
}

/// Publishes an event, and returns whether it gets its OK.
fn round_trip(socket: &mut Socket, round: u32) -> bool {
    let (message, _) = event(true, &format!("{round}, after"));
    socket.writer().send_text(&message).is_ok()
        && socket.receive().is_some_and(|text| {
            let text = String::from_utf8_lossy(&text);
            text.starts_with("[\"OK\"") && text.contains(",true,")
        })
}
