//! Clients make the server use as much memory as possible, of every kind at the same time. The
//! server must not exceed the memory that docs/resources.md calculates.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hark_testkit::clock::now_s;
use hark_testkit::folder::Folder;
use hark_testkit::http::{HttpRequest, metric};
use hark_testkit::nostr::{keys, publication, publish};
use hark_testkit::runs::is_long;
use hark_testkit::server::Server;
use hark_testkit::wait::{PATIENCE, until};
use hark_testkit::websocket::{Socket, masked, upgrade};
use serde_json::json;

use crate::served::Place;

/// The server's memory for these settings, calculated as in docs/resources.md.
const MEMORY_BYTES: u64 = 288 << 20;
const SETTINGS: &str = "
[archive]
head_bytes_max = 12_000_000

[limits]
intake_bytes_max = 8_000_000
inbound_bytes_max = 16_000_000
questions_bytes_max = 32_000_000
outbox_bytes_max = 4_000_000
outboxes_bytes_max = 32_000_000
";

/// Number of events of each publisher: many times the capacity of the heads.
const EVENTS: u64 = 4_000;

/// Metrics of the memory that clients hold, by their names in `/metrics`.
const METRICS: [&str; 3] = ["hark_outbox_bytes", "hark_questions_bytes", "hark_inbound_bytes"];

/// A control group with a limit of memory. The kernel kills a process that exceeds the limit.
struct Group(PathBuf);

impl Group {
    /// `None` if groups cannot be made: without root, or without the kernel's memory controller.
    fn new(name: &str, bytes: u64) -> Option<Self> {
        let of_this = fs::read_to_string("/proc/self/cgroup").ok()?;
        let under = |line: &str| Some(line.split(':').nth(2)?.trim_start_matches('/').to_owned());
        let (root, limit) = if let Some(line) = of_this.lines().find(|l| l.contains(":memory:")) {
            ("/sys/fs/cgroup/memory", (under(line)?, "memory.limit_in_bytes"))
        } else {
            let line = of_this.lines().find(|line| line.starts_with("0::"))?;
            ("/sys/fs/cgroup", (under(line)?, "memory.max"))
        };
        let (root, limit) = (Path::new(root).join(limit.0), limit.1);
        let group = Self(root.join(format!("hark-{name}-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(limit), bytes.to_string()).ok()?;
        Some(group)
    }

    fn add(&self, process: u32) {
        fs::write(self.0.join("cgroup.procs"), process.to_string()).expect("is moved");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // An empty group that remains does no harm.
        let _ = fs::remove_dir(&self.0);
    }
}

/// A server among hostile clients.
struct Stage {
    server: Server,
    over: AtomicBool,
    stored: AtomicU64,
}

impl Stage {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn upgrade(&self) -> Option<TcpStream> {
        let (status, socket) = upgrade(&self.server.address, "").ok()?;
        (status == 101).then(|| socket.into_inner())
    }

    /// Keeps this many connections open, each of which has sent `messages`. Replaces closed
    /// connections, and never reads.
    fn say_and_wait(&self, connections: usize, messages: &[Vec<u8>]) {
        let mut open: Vec<TcpStream> = Vec::new();
        while self.goes_on() {
            if open.len() < connections {
                let Some(mut stream) = self.upgrade() else { continue };
                // The server may close the connection early, or not read all messages.
                let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
                if messages.iter().all(|message| stream.write_all(message).is_ok()) {
                    open.push(stream);
                }
            } else {
                thread::sleep(Duration::from_millis(20));
                // A pong keeps the connection alive.
                open.retain_mut(|stream| stream.write_all(&masked(0x8a, b"")).is_ok());
            }
        }
    }

    /// Publishes events with the maximum number of tags, all different.
    fn publish_tags(&self, seed: u8) {
        let keys = keys(seed);
        let mut made = 0u64;
        let next = || {
            made += 1;
            let values: Vec<String> = (0..2_000).map(|n| format!("{seed}.{made}.{n}")).collect();
            let tags: Vec<[&str; 2]> = values.iter().map(|value| ["t", value.as_str()]).collect();
            let tags: Vec<&[&str]> = tags.iter().map(<[&str; 2]>::as_slice).collect();
            (self.goes_on() && made <= EVENTS).then(|| publication(&keys, now_s(), 1, &tags, "").0)
        };
        publish(Socket::connect(&self.server.address), 16, next, |_, rest| {
            self.stored.fetch_add(u64::from(rest.starts_with(b"\",true")), Ordering::Relaxed);
        });
    }

    /// Requests the page repeatedly, and never reads the answers.
    fn pipeline(&self, connections: usize) {
        let request =
            format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", self.server.address).repeat(500);
        let mut open: Vec<TcpStream> = Vec::new();
        while self.goes_on() {
            if open.len() < connections
                && let Ok(mut stream) = TcpStream::connect(&self.server.address)
            {
                let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
                let _ = stream.write_all(request.as_bytes());
                open.push(stream);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns the values of [`METRICS`] in `/metrics`. `None` once the server has ended.
fn metrics(address: &str) -> Option<[u64; 3]> {
    let request = HttpRequest::new("GET", "/metrics").patience(Duration::from_secs(1));
    let page = request.try_send(address).ok()?.text();
    Some(METRICS.map(|name| metric(&page, name).unwrap_or(0.0) as u64))
}

fn text(message: &serde_json::Value) -> Vec<u8> {
    masked(0x81, message.to_string().as_bytes())
}

/// Returns the anonymous memory of a process. `None` once the process has ended.
fn own_kib(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

#[test]
fn everything_at_once_stays_within_the_memory_that_settings_add_up_to() {
    // Files in memory would count as the server's memory.
    let place = Place::on(Folder::on_disk("together"), SETTINGS);
    let server = place.start();
    let process = server.id();
    let group = Group::new("together", MEMORY_BYTES);
    match &group {
        Some(group) => group.add(process),
        None => println!("no memory group can be made here: only what is resident is looked at"),
    }
    let stage = Stage { server, over: AtomicBool::new(false), stored: AtomicU64::new(0) };
    let time = Duration::from_secs(if is_long() { 120 } else { 12 });

    let asks: Vec<Vec<u8>> =
        (0..63).map(|n| text(&json!(["REQ", n.to_string(), {"limit": 500}]))).collect();
    let filters: Vec<_> =
        (0..20).map(|n| json!({"kinds": [1], "since": 4_102_444_800u64 + n})).collect();
    let subscriptions: Vec<Vec<u8>> = (0..200)
        .map(|n| {
            text(&json!([
                "REQ",
                n.to_string(),
                filters[0],
                filters[1],
                filters[2],
                filters[3],
                filters[4],
                filters[5],
                filters[6],
                filters[7],
                filters[8],
                filters[9]
            ]))
        })
        .collect();
    let ids: Vec<String> = (0..2_400).map(|n| format!("{n:064x}")).collect();
    let counts: Vec<Vec<u8>> =
        (0..64).map(|n| text(&json!(["COUNT", n.to_string(), {"ids": ids}]))).collect();
    let half = vec![masked(0x81, &vec![b' '; 250_000])[..240_000].to_vec()];

    let (peak, most) = thread::scope(|scope| {
        let stage = &stage;
        (1..3).for_each(|seed| drop(scope.spawn(move || stage.publish_tags(seed))));
        scope.spawn(|| stage.say_and_wait(40, &asks));
        scope.spawn(|| stage.say_and_wait(60, &subscriptions));
        scope.spawn(|| stage.say_and_wait(20, &counts));
        scope.spawn(|| stage.say_and_wait(400, &half));
        scope.spawn(|| stage.pipeline(50));
        let sampler = scope.spawn(|| {
            let mut most = [0; 3];
            while stage.goes_on() {
                let now = metrics(&stage.server.address).unwrap_or_default();
                most = std::array::from_fn(|at| now[at].max(most[at]));
                thread::sleep(Duration::from_millis(100));
            }
            most
        });
        let (started, mut peak) = (Instant::now(), 0);
        // A slow machine gets the time to store an event.
        while (started.elapsed() < time || stage.stored.load(Ordering::Relaxed) == 0)
            && started.elapsed() < time + PATIENCE
            && let Some(kib) = own_kib(process)
        {
            peak = peak.max(kib);
            thread::sleep(Duration::from_millis(10));
        }
        stage.over.store(true, Ordering::Relaxed);
        (peak, sampler.join().expect("samples"))
    });
    let stored = stage.stored.load(Ordering::Relaxed);
    println!(
        "everything at once for {time:?}: {peak} KiB of its own at the peak, bound {} KiB, {stored} \
         events of 2,000 tags stored; {METRICS:?} at most {most:?}",
        MEMORY_BYTES >> 10
    );
    assert!(stored > 0, "events are kept meanwhile");
    assert!(peak << 10 < MEMORY_BYTES, "{peak} KiB");
    // The server has memory for queries again once it notices that the other clients are gone.
    until("it still serves", || {
        let mut socket = Socket::connect(&stage.server.address);
        socket.send_text(r#"["COUNT","n",{"limit":1}]"#);
        socket.json()[0] == "COUNT"
    });
    drop(stage);
    drop(group);
}
