//! Pages of history from every store and by both doors, compared with a brute-force search of the
//! stored messages; and refusals, row by row.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hark_codec::hex;
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::random::Random;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{Node, folder, import, text};

const PUBSUB: [&str; 2] = ["/waku/2/rs/1/0", "/waku/2/rs/1/1"];
const CONTENT: [&str; 3] = ["/app/1/chat/proto", "/app/1/\u{e4} \"&/proto", "/app/1/talk/proto"];
const START: u64 = 1_700_000_000_000_000_000;

/// The test's record of a message. The field order gives the order of pages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    time: u64,
    hash: String,
    pubsub: String,
    content: String,
}

impl Kept {
    /// Returns a random message and its JSON. Only a few times are drawn, so that many messages
    /// share a time.
    fn draw(random: &mut Random) -> (Self, Value) {
        let time = START + random.below(12) as u64;
        let (pubsub, content) = (*random.pick(&PUBSUB), *random.pick(&CONTENT));
        let payload = random.bits().to_le_bytes();
        let message = hark_codec::waku::Message {
            payload: &payload,
            content_topic: content,
            timestamp: i64::try_from(time).ok(),
            ..hark_codec::waku::Message::default()
        };
        let hash = hex::encode_32(&message.hash(pubsub));
        let hash = format!("0x{}", String::from_utf8_lossy(&hash));
        let json = json!({
            "payload": base64_simd::STANDARD.encode_to_string(payload), "contentTopic": content, "timestamp": time,
        });
        (Self { time, hash, pubsub: pubsub.into(), content: content.into() }, json)
    }

    fn of(returned: &Value) -> Self {
        let message = &returned["message"];
        Self {
            time: message["timestamp"].as_u64().expect("a time"),
            hash: text(&returned["messageHash"]),
            pubsub: text(&returned["pubsubTopic"]),
            content: text(&message["contentTopic"]),
        }
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A node on one of the stores, and another node that queries it as a peer.
struct World {
    name: &'static str,
    node: Node,
    asking: Node,
    // Dropped after the node.
    _database: Option<Database<'static>>,
    /// The messages that were sent to the node.
    sent: Mutex<BTreeSet<Kept>>,
    /// The messages that the node has acknowledged.
    kept: Mutex<BTreeSet<Kept>>,
}

impl World {
    fn new(name: &'static str, database: Option<Database<'static>>) -> Self {
        Self::bounded(name, database, "5000000")
    }

    /// Like [`World::new`], with a limit on the rows that a query may visit.
    fn bounded(name: &'static str, database: Option<Database<'static>>, rows_max: &str) -> Self {
        let store = database.as_ref().map_or("embedded", |database| &database.url);
        let any_time = [("window_s", "0"), ("retention", ""), ("query_rows_max", rows_max)];
        let node = Node::with(folder(name), &["--store", store], &any_time);
        let any_peer = [("rest_any_peer", "true")];
        let asking = Node::start(&format!("{name}-asking"), &any_peer);
        Self {
            name,
            node,
            asking,
            _database: database,
            sent: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Returns a world in files and a world in a database.
    fn both() -> [Self; 2] {
        let database = Cluster::shared().database("waku history");
        [Self::new("history-files", None), Self::new("history-postgres", Some(database))]
    }

    fn publish(&self, random: &mut Random) {
        let (one, message) = Kept::draw(random);
        self.sent.lock().expect("is whole").insert(one.clone());
        let path = format!("/relay/v1/messages/{}", encoded(&one.pubsub));
        assert_eq!(self.node.ask("POST", &path, &message.to_string()), (200, "OK".into()));
        self.kept.lock().expect("is whole").insert(one);
    }

    fn kept(&self) -> Vec<Kept> {
        self.kept.lock().expect("is whole").iter().cloned().collect()
    }

    /// Queries by REST, or through the other node as a peer. Returns the status and the body.
    fn ask(&self, by_peer: bool, query: &str) -> (u16, String) {
        let path = format!("/store/v3/messages?{query}");
        if !by_peer {
            return self.node.ask("GET", &path, "");
        }
        let path = format!("{path}&peerAddr={}", encoded(&self.node.peers[0]));
        self.asking.ask("GET", &path, "")
    }

    /// Returns a page, and the cursor of the next page.
    fn page(&self, by_peer: bool, query: &str) -> (Vec<Kept>, Option<String>) {
        let (status, body) = self.ask(by_peer, &format!("includeData=true&{query}"));
        assert_eq!(status, 200, "{}, {query}: {body}", self.name);
        let page: Value = serde_json::from_str(&body).expect("JSON");
        let returned = page["messages"].as_array().expect("a list").iter().map(Kept::of).collect();
        (returned, page["paginationCursor"].as_str().map(Into::into))
    }
}

/// Reads all pages of a random query.
fn walk(world: &World, random: &mut Random) {
    let by_peer = random.once_in(2);
    let times = [random.below(14), random.below(14)].map(|at| START + at as u64 - 1);
    let start = random.once_in(2).then_some(times[0].min(times[1]));
    let end = random.once_in(2).then_some(times[0].max(times[1]));
    let pubsub = random.once_in(2).then(|| *random.pick(&PUBSUB));
    let topics = &CONTENT[..random.below(4)];
    let (forward, size) = (random.once_in(2), 5 + random.below(60));
    let mut query = format!("ascending={forward}&pageSize={size}");
    let list = topics.iter().map(|topic| encoded(topic)).collect::<Vec<_>>().join(",");
    for (name, value) in [
        ("pubsubTopic", pubsub.map(encoded)),
        ("contentTopics", Some(list)),
        ("startTime", start.map(|time| time.to_string())),
        ("endTime", end.map(|time| time.to_string())),
    ] {
        query += &value.map_or_else(String::new, |value| format!("&{name}={value}"));
    }
    let holds = |one: &Kept| {
        pubsub.is_none_or(|topic| topic == one.pubsub)
            && (topics.is_empty() || topics.contains(&&*one.content))
            && start.is_none_or(|start| start <= one.time)
            && end.is_none_or(|end| one.time <= end)
    };
    let expected = world.kept();
    let (mut returned, mut cursor) = (Vec::<Kept>::new(), String::new());
    loop {
        let (page, next) = world.page(by_peer, &format!("{query}&cursor={cursor}"));
        assert!(page.is_sorted() && page.len() <= size, "{query}: {page:?}");
        let last = if forward { page.last() } else { page.first() };
        assert!(next.is_none() || next.as_ref() == last.map(|one| &one.hash), "{query}: {next:?}");
        let at = if forward { returned.len() } else { 0 };
        returned.splice(at..at, page);
        match next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    assert!(returned.is_sorted_by(|a, b| a < b), "{query}: not in order, or one came twice");
    let sent = world.sent.lock().expect("is whole");
    assert!(returned.iter().all(|one| holds(one) && sent.contains(one)), "{query}: not asked for");
    let there: BTreeSet<&Kept> = returned.iter().collect();
    for one in expected.iter().filter(|one| holds(one)) {
        assert!(there.contains(one), "{}, {query}: left out {one:?}", world.name);
    }
}

#[test]
fn pages_leave_nothing_out_and_nothing_comes_twice_while_messages_arrive() {
    for world in World::both() {
        let mut random = Random::new(7);
        for _ in 0..300 {
            world.publish(&mut random);
        }
        let (over, arrived) = (AtomicBool::new(false), AtomicUsize::new(0));
        let before = world.kept().len();
        std::thread::scope(|scope| {
            let arriving = scope.spawn(|| {
                let mut random = Random::new(8);
                while !over.load(Ordering::Relaxed) {
                    world.publish(&mut random);
                    arrived.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            });
            let mut walks = 0;
            // The number of messages stays small enough for a walk through all pages.
            while !arriving.is_finished() && (walks < 30 || arrived.load(Ordering::Relaxed) < 10) {
                walk(&world, &mut random);
                walks += 1;
            }
            over.store(true, Ordering::Relaxed);
        });
        let all = world.kept();
        assert!(all.len() > before, "{}: {} messages", world.name, all.len());
        assert_eq!(world.node.hashes("").len(), all.len());
    }
}

#[test]
fn rows_hold_for_every_store_and_both_doors() {
    for world in World::both() {
        let mut random = Random::new(9);
        for _ in 0..250 {
            world.publish(&mut random);
        }
        let all = world.kept();
        for by_peer in [false, true] {
            rows(&world, by_peer, &all);
        }
        refusals(&world);
    }
}

/// All messages have the same time. A query may visit 2,000 rows, a fifth of these messages. The
/// sender has chosen most of the hashes: nine in ten are in the highest 64th of all possible
/// hashes.
#[test]
fn a_page_backwards_through_one_nanosecond_reads_some_hundreds_of_its_messages() {
    let database = Cluster::shared().database("waku nanosecond");
    for (name, database) in [("nanosecond-files", None), ("nanosecond-postgres", Some(database))] {
        let world = World::bounded(name, database, "2000");
        let (mut lines, mut hashes) = (String::new(), Vec::new());
        for number in 0_u64.. {
            if hashes.len() == 10_000 {
                break;
            }
            let payload = number.to_le_bytes();
            let message = hark_codec::waku::Message {
                payload: &payload,
                content_topic: CONTENT[0],
                timestamp: i64::try_from(START).ok(),
                ..hark_codec::waku::Message::default()
            };
            let hash = message.hash(PUBSUB[0]);
            if hashes.len() >= 1_000 && hash[0] < 0xfc {
                continue;
            }
            let hash = hex::encode_32(&hash);
            hashes.push(format!("0x{}", String::from_utf8_lossy(&hash)));
            let payload = base64_simd::STANDARD.encode_to_string(payload);
            let message = json!({
                "payload": payload, "contentTopic": CONTENT[0], "timestamp": START,
            });
            lines.push_str(&json!({ "message": message, "pubsubTopic": PUBSUB[0] }).to_string());
            lines.push('\n');
        }
        import(&world.node.data, &lines);
        hashes.sort();
        let mut cursor = String::new();
        for page in hashes.rchunks(100).take(20) {
            let query = format!("ascending=false&pageSize=100&cursor={cursor}");
            let (returned, next) = world.page(false, &query);
            let returned: Vec<_> = returned.into_iter().map(|one| one.hash).collect();
            assert_eq!(returned, page, "{name}");
            cursor = next.expect("more follow");
            assert_eq!(cursor, page[0], "{name}");
        }
        // The last page of the messages with this time.
        let query = format!("ascending=false&pageSize=100&cursor={}", hashes[50]);
        let (returned, next) = world.page(false, &query);
        assert!(returned.iter().map(|one| &one.hash).eq(&hashes[..50]) && next.is_none(), "{name}");
    }
}

/// Compares the answers to many queries with all stored messages.
fn rows(world: &World, by_peer: bool, all: &[Kept]) {
    let (oldest, newest) = (&all[0], &all[249]);
    let base64 = |hash: &str| {
        let hash = hex::decode_32(&hash.as_bytes()[2..]).expect("a hash");
        (
            base64_simd::STANDARD.encode_to_string(hash),
            base64_simd::URL_SAFE_NO_PAD.encode_to_string(hash),
        )
    };
    let (plain, url) = base64(&all[9].hash);
    let hashes = |count: usize| {
        let hashes: Vec<&str> = all.iter().take(count).map(|one| &*one.hash).collect();
        hashes.join(",")
    };
    let of_first = |topic: &str| -> Vec<Kept> {
        all[..100].iter().filter(|one| one.content == topic).cloned().collect()
    };
    for (query, expected, more) in [
        // By default, a page has the oldest twenty messages; a page has at most a hundred.
        (String::new(), &all[..20], true),
        ("pageSize=0".into(), &all[..20], true),
        ("pageSize=5000".into(), &all[..100], true),
        // In both directions, the messages of a page are ordered oldest first.
        ("ascending=false&pageSize=10".into(), &all[240..], true),
        // The page after the last message is empty.
        (format!("cursor={}", newest.hash), &[], false),
        (format!("ascending=false&cursor={}", oldest.hash), &[], false),
        // A page does not include the cursor's message, in any encoding of the cursor.
        (format!("pageSize=3&cursor={}", all[9].hash), &all[10..13], true),
        (format!("pageSize=3&cursor={}", encoded(&plain)), &all[10..13], true),
        (format!("pageSize=3&cursor={plain}"), &all[10..13], true),
        (format!("pageSize=3&cursor={url}"), &all[10..13], true),
        (format!("pageSize=3&ascending=false&cursor={}", all[9].hash), &all[6..9], true),
        // Both ends of a time span are inclusive, and 0 means no bound.
        ("startTime=0&endTime=0&pageSize=1".into(), &all[..1], true),
        (format!("endTime={}", START - 1), &[], false),
        (format!("startTime={}&endTime={START}", START + 1), &[], false),
        // A query with as many hashes as fit a page is no special case.
        (format!("hashes={}&pageSize=100", hashes(100)), &all[..100], false),
        (format!("hashes={}&pageSize=100", hashes(200)), &all[..100], true),
        (
            format!("hashes={}&pageSize=100&cursor={}", hashes(200), all[99].hash),
            &all[100..200],
            false,
        ),
        (format!("hashes={}", all[7].hash), &all[7..8], false),
        // With hashes and topics, both conditions apply.
        (
            format!("hashes={}&contentTopics={}&pageSize=100", hashes(100), encoded(CONTENT[0])),
            &of_first(CONTENT[0]),
            false,
        ),
        (format!("hashes=0x{}", "07".repeat(32)), &[], false),
        ("contentTopics=%2Fapp%2F1%2Fnone%2Fproto".into(), &[], false),
        ("pubsubTopic=%2Fwaku%2F2%2Frs%2F1%2F7".into(), &[], false),
    ] {
        let (returned, cursor) = world.page(by_peer, &query);
        let place = format!("{}, by peer {by_peer}, {query}", world.name);
        assert_eq!(returned, expected, "{place}");
        assert_eq!(cursor.is_some(), more, "{place}");
    }
    for time in [oldest.time, newest.time] {
        let (returned, _) =
            world.page(by_peer, &format!("startTime={time}&endTime={time}&pageSize=100"));
        let expected: Vec<Kept> = all.iter().filter(|one| one.time == time).cloned().collect();
        assert_eq!(returned, expected);
    }
    // Without `includeData`, a page has only hashes.
    let (_, body) = world.ask(by_peer, "pageSize=1");
    let page: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(page["messages"], json!([{ "messageHash": oldest.hash }]));
}

/// Checks refused queries.
fn refusals(world: &World) {
    for (query, said) in [
        (format!("cursor=0x{}", "07".repeat(32)), "cursor not found"),
        (format!("cursor=0x{}", "00".repeat(32)), "INVALID_QUERY"),
    ] {
        let (status, words) = world.ask(false, &query);
        assert!(status == 400 && words.contains(said), "{query:.80}: {status} {words}");
        let (status, words) = world.ask(true, &query);
        let right = status == 200 && words.contains("\"statusCode\":300") && words.contains(said);
        assert!(right, "{query:.80}: {status} {words}");
    }
    for query in ["cursor=0x07", "hashes=0x07", "cursor=AAAA", "pageSize=ten", "ascending=up"] {
        assert_eq!(world.ask(false, query).0, 400, "{query}");
    }
}
