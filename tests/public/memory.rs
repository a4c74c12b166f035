//! Tests of the memory that clients can make the server use.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use flate2::{Compress, Compression, FlushCompress};
use hark_testkit::clock::now_s;
use hark_testkit::nostr::{keys, publication, publish};
use hark_testkit::runs::is_long;
use hark_testkit::wait::until;
use hark_testkit::websocket::{Socket, masked, read_frame, upgrade};
use serde_json::json;

use crate::served::Relay;

/// Measures a server's resident memory and its anonymous part. The other part is the archive's
/// files, which the system caches in free memory.
struct Watch {
    process: u32,
    rss: u64,
    own: u64,
    over: Arc<AtomicBool>,
    sampler: thread::JoinHandle<u64>,
}

fn kib(process: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("is there");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number")
}

impl Watch {
    /// Prints the memory before and at its peak. Returns the growth of the anonymous memory in KiB.
    fn grown(self, what: &str) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        let (rss, rss_peak) = (self.rss, kib(self.process, "VmHWM"));
        let (own, own_peak) = (self.own, self.sampler.join().expect("samples"));
        println!(
            "{what}: RSS {rss} KiB before, {rss_peak} KiB at the peak; its own {own} and {own_peak}"
        );
        own_peak - own
    }
}

impl Watch {
    /// Starts watching the server's memory.
    fn start(relay: &Relay) -> Self {
        let process = relay.server.id();
        // Without kernel support the write fails, and the reported peak is the peak since the
        // server's start.
        let _ = fs::write(format!("/proc/{process}/clear_refs"), "5");
        let own = kib(process, "RssAnon");
        let over = Arc::new(AtomicBool::new(false));
        let sampler = thread::spawn({
            let over = Arc::clone(&over);
            move || {
                let mut peak = own;
                while !over.load(Ordering::Relaxed) {
                    peak = peak.max(kib(process, "RssAnon"));
                    thread::sleep(Duration::from_millis(5));
                }
                peak.max(kib(process, "RssAnon"))
            }
        });
        Self { process, rss: kib(process, "VmRSS"), own, over, sampler }
    }
}

fn still_serves(relay: &Relay) {
    let mut socket = Socket::connect(relay.address());
    socket.send_text(r#"["COUNT","n",{"limit":1}]"#);
    assert_eq!(socket.json()[0], "COUNT");
}

const MIB: u64 = 1024;

/// Publishes `events` events of half a kilobyte each.
fn publish_notes(relay: &Relay, events: u64, name: &str) {
    publish_texts(relay, events, 1, name, 200);
}

/// Publishes `events` events of `kind` with a text of about `len` bytes each.
fn publish_texts(relay: &Relay, events: u64, kind: u16, name: &str, len: usize) {
    let keys = keys(7);
    let content = "x".repeat(len);
    let mut made = 0;
    let next = || {
        made += 1;
        let content = format!("{name} {made} {content}");
        (made <= events).then(|| publication(&keys, now_s(), kind, &[], &content).0)
    };
    publish(Socket::connect(relay.address()), 64, next, |_, rest| {
        assert!(rest.starts_with(b"\",true"), "{}", String::from_utf8_lossy(rest));
    });
}

#[test]
fn a_client_that_never_reads() {
    let settings = "[archive]\nseal_records = 2000\n\n[limits]\noutbox_bytes_max = 2_000_000\n";
    let relay = Relay::start("memory-never-reads", settings);
    let events = if is_long() { 100_000 } else { 5_000 };
    // The memory for storing events is allocated before the measurement.
    publish_notes(&relay, events, "before");
    let watch = Watch::start(&relay);
    // Neither client reads. One is sent live events, and the other is sent stored events.
    let mut deaf = Socket::connect(relay.address());
    deaf.send_text(r#"["REQ","all",{"limit":0}]"#);
    let mut late = Socket::connect(relay.address());
    late.send_text(r#"["REQ","all",{"limit":5000},{"kinds":[1],"limit":5000}]"#);
    publish_notes(&relay, events, "during");
    still_serves(&relay);
    let what = format!("clients that never read, {events} events match");
    let grown = watch.grown(&what);
    assert!(grown < 64 * MIB, "{grown} KiB");
}

/// Returns the number of removed files of the archive that the server still has open or mapped.
fn removed_files(relay: &Relay) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", relay.server.id()));
    maps.expect("the server runs")
        .lines()
        .filter(|line| line.contains("/seg/") && line.ends_with(" (deleted)"))
        .count()
}

/// Returns the names of the archive's segments.
fn segments(relay: &Relay) -> HashSet<OsString> {
    let dir = relay.place.data().join("nostr/seg");
    fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name()).collect()
}

#[test]
fn an_answer_that_is_not_read_keeps_no_removed_files_and_is_complete() {
    let settings = "[archive]\nseal_records = 100\n\n[limits]\nping_after_s = 1\n";
    let relay = Relay::start("memory-removed-files", settings);
    publish_texts(&relay, 4_500, 1, "before", 4_000);
    let mut late = Socket::connect(relay.address());
    late.send_text(r#"["REQ","all",{"kinds":[1],"limit":4000}]"#);
    let before = segments(&relay);
    until("a segment that the answer needs is replaced", || {
        publish_texts(&relay, 100, 2, "during", 10);
        !segments(&relay).is_superset(&before)
    });
    until("the answer keeps no removed file", || removed_files(&relay) == 0);
    let (mut ids, mut last) = (HashSet::new(), u64::MAX);
    // During each pause, the search is dropped. It continues when the client reads.
    for read in [1_000, 1_800, 4_000] {
        thread::sleep(Duration::from_secs(8));
        while ids.len() < read {
            let message = late.json();
            let Some(id) = message[2]["id"].as_str() else {
                assert_eq!(message[0], "AUTH", "after {} events", ids.len());
                continue;
            };
            assert!(ids.insert(id.to_owned()), "an event came twice");
            let time = message[2]["created_at"].as_u64().unwrap();
            assert!(time <= last, "the order is kept");
            last = time;
        }
    }
    assert_eq!(late.json()[0], "EOSE");
}

/// Returns a message, compressed with the same method as in browsers.
fn compressed(text: &str) -> Vec<u8> {
    let mut deflate = Compress::new(Compression::default(), false);
    let mut out = Vec::with_capacity(1_024);
    deflate.compress_vec(text.as_bytes(), &mut out, FlushCompress::Sync).expect("fits");
    assert!(out.ends_with(&[0, 0, 0xff, 0xff]));
    out.truncate(out.len() - 4);
    masked(0xc1, &out)
}

/// Opens `count` connections that send one query, receive the answer and stay open. Returns the KiB
/// per connection.
fn idle(relay: &Relay, count: u64, deflate: bool) -> u64 {
    let offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    let req = r#"["REQ","s",{"kinds":[1],"limit":1}]"#;
    let (headers, ask) =
        if deflate { (offer, compressed(req)) } else { ("", masked(0x81, req.as_bytes())) };
    let watch = Watch::start(relay);
    let mut open = Vec::new();
    for _ in 0..count {
        let (status, mut socket) = upgrade(relay.address(), headers).expect("is answered");
        assert_eq!(status, 101);
        socket.get_mut().write_all(&ask).expect("is sent");
        let (auth, _) = read_frame(&mut socket).expect("a challenge");
        let (event, _) = read_frame(&mut socket).expect("an event");
        let (eose, _) = read_frame(&mut socket).expect("the end");
        // The long message is compressed, and the short messages are not.
        assert_eq!([auth, event, eose], [0x81, if deflate { 0xc1 } else { 0x81 }, 0x81]);
        open.push(socket);
    }
    let name = if deflate { "compressed" } else { "plain" };
    let grown = watch.grown(&format!("{count} idle connections, {name}"));
    println!("  {} KiB each", grown / count);
    grown / count
}

#[test]
fn idle_connections() {
    let count = if is_long() { 10_000 } else { 500 };
    for deflate in [false, true] {
        let relay = Relay::start(&format!("memory-idle-{deflate}"), "");
        let keys = keys(7);
        let (long_one, _) = publication(&keys, now_s(), 1, &[], &"hark ".repeat(500));
        let mut once = Some(long_one);
        publish(
            Socket::connect(relay.address()),
            1,
            || once.take(),
            |_, rest| {
                assert!(rest.starts_with(b"\",true"));
            },
        );
        still_serves(&relay);
        let each = idle(&relay, count, deflate);
        // All connections share a few compressors, which cost more per connection if there are few
        // connections.
        let bound = if is_long() { 12 } else { 24 };
        assert!(each < bound, "{each} KiB for an idle connection");
        still_serves(&relay);
    }
}

#[test]
fn a_message_of_a_hundred_megabytes() {
    let relay = Relay::start("memory-long-message", "");
    still_serves(&relay);
    let watch = Watch::start(&relay);
    let bytes: u64 = 100_000_000;
    for fragmented in [false, true] {
        let (_, mut socket) = upgrade(relay.address(), "").expect("is answered");
        let part = vec![b' '; 1 << 16];
        if !fragmented {
            let mut head = vec![0x81, 0xff];
            head.extend_from_slice(&bytes.to_be_bytes());
            head.extend_from_slice(&[0; 4]);
            let _ = socket.get_mut().write_all(&head);
        }
        let mut first = 0x01;
        for _ in 0..bytes / (1 << 16) {
            let sent = if fragmented { masked(first, &part) } else { part.clone() };
            first = 0x00;
            // The server closes the connection long before the end of the message.
            if socket.get_mut().write_all(&sent).is_err() {
                break;
            }
        }
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
    }
    let grown = watch.grown("a message of 100 MB, at once and in fragments");
    // A buffer grows to 1 MiB and is then freed; the allocator keeps 12 to 17 MiB for later use.
    assert!(grown < 32 * MIB, "{grown} KiB");
    still_serves(&relay);
}

#[test]
fn subscriptions_opened_and_abandoned() {
    let relay = Relay::start("memory-subscriptions", "");
    still_serves(&relay);
    let watch = Watch::start(&relay);
    let subscriptions = if is_long() { 10_000 } else { 2_000 };
    let per_connection = 200;
    for _ in 0..subscriptions / per_connection {
        let mut socket = Socket::connect(relay.address());
        for n in 0..per_connection {
            let author = format!("{n:064x}");
            socket.send_text(
                json!(["REQ", n.to_string(), {"authors": [author], "kinds": [1, 7]}]).to_string(),
            );
        }
        for _ in 0..per_connection {
            assert_eq!(socket.json()[0], "EOSE");
        }
        // The client disconnects without a CLOSE.
    }
    let grown = watch.grown(&format!("{subscriptions} subscriptions abandoned"));
    assert!(grown < 32 * MIB, "{grown} KiB");
    // Subscriptions above the limit are refused, no matter how many a client requests.
    let mut socket = Socket::connect(relay.address());
    for n in 0..per_connection + 5 {
        socket.send_text(json!(["REQ", n.to_string(), {}]).to_string());
        assert_eq!(socket.json()[0], if n < per_connection { "EOSE" } else { "CLOSED" });
    }
}

#[test]
fn a_filter_of_ten_thousand_authors() {
    let relay = Relay::start("memory-authors", "[limits]\nmessage_bytes_max = 1_000_000\n");
    still_serves(&relay);
    let watch = Watch::start(&relay);
    let authors: Vec<_> = (0..10_000).map(|n| format!("{n:064x}")).collect();
    let req = json!(["REQ", "s", {"authors": authors}]).to_string();
    let (_, mut socket) = upgrade(relay.address(), "").expect("is answered");
    read_frame(&mut socket).expect("a challenge");
    for _ in 0..if is_long() { 200 } else { 20 } {
        socket.get_mut().write_all(&masked(0x81, req.as_bytes())).expect("is sent");
        let (_, answer) = read_frame(&mut socket).expect("an answer");
        assert!(
            answer.starts_with(br#"["CLOSED","s","blocked: "#),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    let grown = watch.grown("a filter of 10,000 authors");
    // The allocator keeps the memory of a message of 690 kB and its parts for each reading thread.
    assert!(grown < 64 * MIB, "{grown} KiB");
    still_serves(&relay);
}

#[test]
fn connections_that_send_half_a_frame_and_wait() {
    let relay = Relay::start("memory-half-frames", "[limits]\nidle_timeout_s = 60\n");
    still_serves(&relay);
    let watch = Watch::start(&relay);
    let count = if is_long() { 1_000 } else { 200 };
    // Half of a long message.
    let half = &masked(0x81, &vec![b' '; 200_000])[..100_000];
    let mut open: Vec<TcpStream> = Vec::new();
    for _ in 0..count {
        let (_, mut socket) = upgrade(relay.address(), "").expect("is answered");
        socket.get_mut().write_all(half).expect("is sent");
        open.push(socket.into_inner());
    }
    still_serves(&relay);
    let grown = watch.grown(&format!("{count} connections with half a frame of 200 kB"));
    // The server holds only the received bytes, and reserves no memory for the declared length of a
    // frame.
    assert!(grown / count < 256, "{} KiB each", grown / count);
    drop(open);
    still_serves(&relay);
}
