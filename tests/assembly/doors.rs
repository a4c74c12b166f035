//! The doors, each with a short contract: the request, the conditions on the answer, and the part
//! of the answer that is compared with files.

use hark_codec::hex;
use hark_codec::nostr::negentropy::{
    NegentropyDifference, NegentropyInitiator, NegentropyItem, SortedItems,
};
use hark_testkit::clock::now_s;
use hark_testkit::digits::digits;
use hark_testkit::http::{HttpReply, HttpRequest, get};
use hark_testkit::nostr::{event_json, pubkey};
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;
use serde_json::{Value, json};

use crate::fixture::{self, CONTENT_TOPICS, FIRST_S, LAST_S, READER, id, message};
use crate::world::{World, number};
use crate::{commands, peers};

/// The answer of a door.
pub(crate) enum Answer {
    /// An answer that must be the same on every store.
    Same(String),
    /// An answer that depends on the store and is not compared.
    Own,
}

use Answer::{Own, Same};

/// A door.
pub(crate) struct Door {
    pub(crate) network: &'static str,
    /// The name in the program: a route, a message's type, a protocol, a command.
    pub(crate) name: &'static str,
    /// Sends the request, and panics if the contract does not hold.
    pub(crate) ask: fn(&World) -> Answer,
    /// Whether the door is queried many times, which reveals a leak per request.
    pub(crate) is_brief: bool,
}

const fn door(network: &'static str, name: &'static str, ask: fn(&World) -> Answer) -> Door {
    Door { network, name, ask, is_brief: true }
}

/// A door whose contract is one long exchange, which is not repeated.
const fn once(network: &'static str, name: &'static str, ask: fn(&World) -> Answer) -> Door {
    Door { network, name, ask, is_brief: false }
}

/// The doors of the servers. `commands::COMMANDS` has all other doors.
const SERVED: &[Door] = &[
    door("nostr", "EVENT", publishes),
    door("nostr", "REQ", asks),
    door("nostr", "COUNT", counts),
    door("nostr", "CLOSE", closes),
    door("nostr", "AUTH", authenticates),
    door("nostr", "NEG-OPEN", compares),
    door("nostr", "NEG-MSG", compares_on),
    door("nostr", "NEG-CLOSE", compares),
    door("nostr", "/", page),
    door("nostr", "NIP-11", document),
    door("nostr", "/counts", page_counts),
    door("nostr", "/page.js", |world| Same(get(&world.reads().relay, "/page.js").ok())),
    door("operators", "/healthz", |world| Same(get(&world.reads().relay, "/healthz").ok())),
    door("operators", "/metrics", metrics),
    door("waku", "/store/v3/messages", history),
    door("waku", "/relay/v1/messages/{topic}", published_to_shard),
    door("waku", "/relay/v1/auto/messages", published),
    door("waku", "/relay/v1/auto/messages/{topic}", polled),
    door("waku", "/relay/v1/subscriptions", shard_subscriptions),
    door("waku", "/relay/v1/auto/subscriptions", polled),
    door("waku", "/health", |world| shape(&get(&world.reads().waku, "/health"))),
    door("waku", "/info", |world| shape(&get(&world.reads().waku, "/info"))),
    door("waku", "/debug/v1/info", |world| shape(&get(&world.reads().waku, "/debug/v1/info"))),
    door("waku", "/version", |world| Same(get(&world.reads().waku, "/version").ok())),
    door("waku", "/debug/v1/version", |world| {
        Same(get(&world.reads().waku, "/debug/v1/version").ok())
    }),
    door("waku", "/openapi.json", |world| Same(get(&world.reads().waku, "/openapi.json").ok())),
    once("waku", "/admin/v1/peers", peers::dialled),
    once("waku", "/admin/v1/peer/{id}", peers::one),
    once("waku", "/admin/v1/peers/service", |world| peers::listed(world, "service")),
    once("waku", "/admin/v1/peers/connected", |world| peers::listed(world, "connected")),
    once("waku", "/admin/v1/peers/connected/on/{shard}", |world| {
        peers::listed(world, "connected/on/0")
    }),
    once("waku", "/admin/v1/peers/relay", |world| peers::by_shard(world, "relay")),
    once("waku", "/admin/v1/peers/relay/on/{shard}", |world| peers::by_shard(world, "relay/on/0")),
    once("waku", "/admin/v1/peers/mesh", |world| peers::by_shard(world, "mesh")),
    once("waku", "/admin/v1/peers/mesh/on/{shard}", |world| peers::by_shard(world, "mesh/on/0")),
    once("waku", "/admin/v1/peers/stats", |world| peers::by_shard(world, "stats")),
    door("waku", "/admin/v1/filter/subscriptions", |world| {
        let reply = get(&world.reads().waku, "/admin/v1/filter/subscriptions");
        Same(format!("{} {}", reply.status, reply.text()))
    }),
    once("waku", "/vac/waku/relay/2.0.0", peers::gossiped),
    once("waku", "/vac/waku/store-query/3.0.0", peers::asked_by_peer),
    once("waku", "/vac/waku/metadata/1.0.0", |world| peers::listed(world, "connected")),
    once("waku", "/vac/waku/reconciliation/1.0.0", peers::reconciled),
    once("waku", "/vac/waku/transfer/1.0.0", peers::reconciled),
    door("whisper", "/whisper/envelopes", posted),
    door("whisper", "/whisper/messages", envelopes),
    door("whisper", "/health", |world| Same(get(&world.reads().whisper, "/health").ok())),
    door("whisper", "/version", |world| Same(get(&world.reads().whisper, "/version").ok())),
    door("whisper", "/openapi.json", |world| {
        Same(get(&world.reads().whisper, "/openapi.json").ok())
    }),
    door("whisper", "shh/6", peers::mail_of_geth),
    door("whisper", "waku/1", peers::mail_of_status),
    door("whisper", "shh/6 sync", peers::mail_synced),
];

/// All doors, in the order of the requests.
pub(crate) fn all() -> Vec<&'static Door> {
    SERVED.iter().chain(commands::COMMANDS).collect()
}

/// A command, which runs as a new process each time.
pub(crate) const fn command(name: &'static str, ask: fn(&World) -> Answer) -> Door {
    once("command", name, ask)
}

/// Replaces numbers and the units of sizes, which differ with time and store, so that the other text
/// can be compared.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            c => out.push(c),
        }
    }
    ["KiB", "MiB", "GiB"].iter().fold(out, |text, unit| text.replace(unit, "B"))
}

/// The fields of a JSON answer, without their values.
fn shape(reply: &HttpReply) -> Answer {
    fn of(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| (name.clone(), of(value))).collect()
            }
            Value::Array(list) => list.iter().map(of).collect(),
            Value::String(text) if text.chars().all(|c| c.is_ascii_uppercase() || c == '_') => {
                value.clone()
            }
            Value::String(_) => json!("text"),
            Value::Number(_) => json!(0),
            other => other.clone(),
        }
    }
    assert_eq!(reply.status, 200, "{}", reply.text());
    Same(of(&reply.json()).to_string())
}

/// The messages of the relay up to the message that ends an answer.
fn answered(socket: &mut Socket, message: &str) -> Vec<String> {
    socket.send_text(message);
    let mut received = Vec::new();
    loop {
        let text =
            String::from_utf8(socket.receive().expect("the connection holds")).expect("text");
        let is_end = !text.starts_with("[\"EVENT\"");
        received.push(text);
        if is_end {
            return received;
        }
    }
}

/// Publishes an event with the current time about a topic. The relay must store the event.
fn publish_note(addr: &str, topic: &str, content: &str) -> String {
    let note = event_json(7, now_s(), 1, &[&["t", topic]], content);
    let answer = answered(&mut Socket::connect(addr), &format!("[\"EVENT\",{note}]"));
    assert_eq!(answer, [format!("[\"OK\",\"{}\",true,\"\"]", id(&note))]);
    note
}

fn publishes(world: &World) -> Answer {
    let mut live = Socket::connect(&world.reads().relay);
    // Other doors publish at the same time.
    let topic = format!("published{}", number());
    let ask = json!(["REQ", "live", {"#t": [topic], "limit": 0}]).to_string();
    assert!(answered(&mut live, &ask)[0].contains("EOSE"));
    let note = publish_note(&world.writes().relay, &topic, "published");
    let received = live.json();
    assert_eq!((&received[0], received[2]["id"].as_str()), (&json!("EVENT"), Some(&*id(&note))));
    let find = format!("[\"REQ\",\"stored\",{{\"ids\":[\"{}\"]}}]", id(&note));
    let mut reader = Socket::connect(&world.reads().relay);
    // The reading node may not have the event yet.
    until("the event is found", || {
        let found = answered(&mut reader, &find);
        found.len() == 2 && found[0] == format!("[\"EVENT\",\"stored\",{note}]")
    });
    Own
}

fn asks(world: &World) -> Answer {
    let mut socket = Socket::connect(&world.reads().relay);
    let author = pubkey(2);
    let mut filters = vec![
        json!({"until": LAST_S}),
        json!({"until": LAST_S, "limit": 7}),
        json!({"authors": [author], "kinds": [1, 7], "until": LAST_S}),
        json!({"#t": ["bread"], "until": LAST_S}),
        json!({"#p": [author], "until": LAST_S}),
        json!({"kinds": [0, 30_023], "since": FIRST_S + 52, "until": LAST_S}),
        json!({"ids": [id(&fixture::events()[0]), id(&fixture::events()[3])]}),
    ];
    if world.store != crate::stores::StoreKind::Citus {
        filters.push(json!({"search": "rye", "until": LAST_S}));
        filters.push(json!({"search": "sal*", "until": LAST_S, "limit": 5}));
    }
    let mut out = String::new();
    for filter in &filters {
        for line in answered(&mut socket, &json!(["REQ", "asked", filter]).to_string()) {
            assert!(!line.starts_with("[\"CLOSED\""), "{filter}: {line}");
            out = out + &line + "\n";
        }
    }
    // A store without search has no hits, so only the other lines are compared.
    out.truncate(out.find("On rye bread").map_or(out.len(), |_| out.len()));
    if world.store == crate::stores::StoreKind::Citus { Own } else { Same(out) }
}

fn counts(world: &World) -> Answer {
    let mut socket = Socket::connect(&world.reads().relay);
    let filters = [
        json!({"until": LAST_S}),
        json!({"until": LAST_S, "kinds": [1]}),
        json!({"until": LAST_S, "#t": ["salt"], "authors": [pubkey(1), pubkey(3)]}),
    ];
    let count = |filter: &Value| answered(&mut socket, &json!(["COUNT", "n", filter]).to_string());
    Same(filters.iter().flat_map(count).collect::<Vec<_>>().join("\n"))
}

fn closes(world: &World) -> Answer {
    let mut socket = Socket::connect(&world.reads().relay);
    let live = |name: &str, topic: &str| {
        format!("[\"REQ\",\"{name}\",{{\"#t\":[\"{topic}\"],\"limit\":0}}]")
    };
    let topic = format!("closed{}", number());
    answered(&mut socket, &live("closed", &topic));
    answered(&mut socket, &live("open", &topic));
    socket.send_text(r#"["CLOSE","closed"]"#);
    // A CLOSE has no answer. The next answer shows that the relay has read the CLOSE.
    answered(&mut socket, r#"["COUNT","n",{"limit":1}]"#);
    let note = publish_note(&world.writes().relay, &topic, "after a close");
    let received = socket.json();
    assert_eq!((&received[1], received[2]["id"].as_str()), (&json!("open"), Some(&*id(&note))));
    Own
}

fn authenticates(world: &World) -> Answer {
    use tokio_tungstenite::tungstenite::{Message, connect};
    let url = format!("ws://{}", world.reads().relay);
    let (mut socket, _) = connect(&url).expect("connects");
    let receive = |socket: &mut tokio_tungstenite::tungstenite::WebSocket<_>| -> Value {
        loop {
            match socket.read().expect("an answer") {
                Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
                Message::Close(why) => panic!("it is closed: {why:?}"),
                _ => {}
            }
        }
    };
    let challenge = receive(&mut socket);
    assert_eq!(challenge[0], "AUTH");
    let challenge = challenge[1].as_str().expect("text").to_owned();
    let proof =
        event_json(READER, now_s(), 22_242, &[&["relay", &url], &["challenge", &challenge]], "");
    socket.send(Message::text(format!("[\"AUTH\",{proof}]"))).expect("is sent");
    assert_eq!(receive(&mut socket), json!(["OK", id(&proof), true, ""]));
    let filter = json!({"#p": [pubkey(READER)], "until": LAST_S});
    socket.send(Message::text(json!(["REQ", "mine", filter]).to_string())).expect("is sent");
    let mut out = String::new();
    loop {
        let received = receive(&mut socket);
        out = out + &received.to_string() + "\n";
        if received[0] != "EVENT" {
            assert_eq!(received[0], "EOSE", "{out}");
            break;
        }
    }
    assert!(out.contains("sealed"), "{out}");
    Same(out)
}

/// Compares half of the fixture's events with the whole archive.
fn compares(world: &World) -> Answer {
    let all: Vec<Value> = fixture::events()
        .iter()
        .map(|event| serde_json::from_str(event).expect("JSON"))
        .filter(|event: &Value| event["kind"] == 1)
        .collect();
    let item = |event: &Value| NegentropyItem {
        time: event["created_at"].as_u64().expect("a time"),
        id: hex::decode_32(event["id"].as_str().expect("an id").as_bytes()).expect("an id"),
    };
    let ours: SortedItems = all[..20].iter().map(item).collect::<Vec<_>>().into();
    let mut initiator = NegentropyInitiator::new(&ours, 0);
    let filter = json!({"kinds": [1], "until": LAST_S});
    let mut socket = Socket::connect(&world.reads().relay);
    socket.send_text(json!(["NEG-OPEN", "c", filter, digits(&initiator.open())]).to_string());
    let (mut have, mut need) = (Vec::new(), Vec::new());
    loop {
        let received = socket.json();
        assert_eq!(received[0], "NEG-MSG", "{received}");
        let mut answer = Vec::new();
        assert!(hex::decode_into(received[2].as_str().expect("text").as_bytes(), &mut answer));
        let next = initiator.answer(&answer, &mut |difference| match difference {
            NegentropyDifference::Have(id) => have.push(digits(&id)),
            NegentropyDifference::Need(id) => need.push(digits(&id)),
        });
        let Some(next) = next.expect("an answer of the protocol") else { break };
        socket.send_text(json!(["NEG-MSG", "c", digits(&next)]).to_string());
    }
    socket.send_text(r#"["NEG-CLOSE","c"]"#);
    have.sort();
    need.sort();
    // Only our side has the deleted event.
    assert_eq!((have.len(), need.len()), (1, 20), "{have:?} {need:?}");
    Same(format!("{have:?} {need:?}"))
}

/// Continues a comparison, also after its end.
fn compares_on(world: &World) -> Answer {
    let mut socket = Socket::connect(&world.reads().relay);
    let nothing = "6100000200";
    let open = json!(["NEG-OPEN", "c", {"kinds": [1], "until": LAST_S}, nothing]).to_string();
    let first = answered(&mut socket, &open);
    let again = answered(&mut socket, &json!(["NEG-MSG", "c", nothing]).to_string());
    assert_eq!(first, again);
    socket.send_text(r#"["NEG-CLOSE","c"]"#);
    let closed = answered(&mut socket, &json!(["NEG-MSG", "c", nothing]).to_string());
    assert!(closed[0].starts_with("[\"NEG-ERR\",\"c\","), "{closed:?}");
    Same(format!("{first:?} {closed:?}"))
}

fn page(world: &World) -> Answer {
    let addr = &world.reads().relay;
    let text = get(addr, "/").ok();
    for part in ["How to connect", addr.as_str()] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    // The page names the NIPs of the document, and a cluster is not searched (NIP-50).
    let document = information(world);
    let nips = document["supported_nips"].as_array().expect("a list");
    let nips: Vec<String> = nips.iter().map(Value::to_string).collect();
    let listed = format!("NIPs: {}.", nips.join(", "));
    assert!(text.contains(&listed), "{listed} is missing: {text}");
    let text = text.replace(addr.as_str(), "HOST").replace(&listed, "NIPs");
    Same(without_numbers(&text))
}

fn page_counts(world: &World) -> Answer {
    let counts = get(&world.reads().relay, "/counts");
    assert_eq!(counts.status, 200);
    let counts = counts.json();
    let events: u64 =
        counts["events"].as_str().expect("text").replace(',', "").parse().expect("a number");
    assert!(events >= 50, "{counts}");
    assert_eq!(counts["oldest"], "2023-11-14", "{counts}");
    let names: Vec<_> = counts.as_object().expect("fields").keys().cloned().collect();
    Same(names.join(" "))
}

/// Returns the relay's information document.
fn information(world: &World) -> Value {
    let accept = [("Accept", "application/nostr+json")];
    let reply = HttpRequest::new("GET", "/").headers(&accept).send(&world.reads().relay);
    assert!(reply.head.contains("application/nostr+json"), "{}", reply.head);
    assert_eq!(reply.status, 200);
    reply.json()
}

fn document(world: &World) -> Answer {
    let mut document = information(world);
    if world.store == crate::stores::StoreKind::Citus {
        return Own;
    }
    document.as_object_mut().expect("fields").retain(|name, _| name != "self");
    Same(document.to_string())
}

fn metrics(world: &World) -> Answer {
    let page = get(&world.reads().relay, "/metrics").ok();
    let mut series = std::collections::BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (name, value) = line.rsplit_once(' ').expect("a value");
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        assert!(series.insert(name), "twice: {line}");
    }
    for label in ["", "{shelf=\"waku\"}", "{shelf=\"whisper\"}"] {
        let name = format!("hark_store_records{label} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
        assert!(value.is_some_and(|value| value >= 30), "{name} is {value:?}");
    }
    Own
}

/// The parameters of the fixture's messages.
fn of_fixture() -> String {
    format!("startTime={FIRST_S}000000000&endTime={LAST_S}000000000&includeData=true")
}

fn history(world: &World) -> Answer {
    let mut out = String::new();
    for more in [
        "&pageSize=100".to_owned(),
        "&pageSize=7&ascending=false".into(),
        format!("&contentTopics={}&pageSize=100", CONTENT_TOPICS[0].replace('/', "%2F")),
    ] {
        let mut cursor = String::new();
        loop {
            let path = format!("/store/v3/messages?{}{more}&cursor={cursor}", of_fixture());
            let page = get(&world.reads().waku, &path).ok();
            out = out + &page + "\n";
            let page: Value = serde_json::from_str(&page).expect("JSON");
            match page["paginationCursor"].as_str() {
                Some(next) => cursor = next.into(),
                None => break,
            }
        }
    }
    Same(out)
}

/// The current second, with a different number of nanoseconds in each call.
fn unused_ns() -> u64 {
    now_s() * 1_000_000_000 + u64::from(number())
}

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Publishes a message, and waits until the reader's history contains the message.
fn publish_message(world: &World, path: &str, topic: &str) -> u64 {
    let at = unused_ns();
    let message = message(topic, at, "published").to_string();
    let reply = HttpRequest::new("POST", path).json(&message).send(&world.writes().waku);
    assert_eq!((reply.status, reply.text()), (200, "OK".into()));
    let path = format!("/store/v3/messages?startTime={at}&endTime={at}");
    until("the message is in the history", || {
        let page = get(&world.reads().waku, &path).json();
        page["messages"].as_array().is_some_and(|found| found.len() == 1)
    });
    at
}

fn published(world: &World) -> Answer {
    publish_message(world, "/relay/v1/auto/messages", CONTENT_TOPICS[0]);
    Own
}

fn published_to_shard(world: &World) -> Answer {
    let kept = fixture::kept(CONTENT_TOPICS[0], 0, "");
    let shard = kept["pubsubTopic"].as_str().expect("a topic").replace('/', "%2F");
    let path = format!("/relay/v1/messages/{shard}");
    get(&world.writes().waku, &path).ok();
    let at = publish_message(world, &path, CONTENT_TOPICS[0]);
    let polled = get(&world.writes().waku, &path).json();
    let polled = polled.as_array().expect("a list");
    assert!(polled.iter().any(|message| message["timestamp"] == at), "{polled:?}");
    Own
}

fn polled(world: &World) -> Answer {
    let addr = &world.writes().waku;
    let topic = format!("/polled{}/1/chat/proto", number());
    let list = json!([topic]).to_string();
    let path = "/relay/v1/auto/subscriptions";
    assert_eq!(HttpRequest::new("POST", path).json(&list).send(addr).ok(), "OK");
    let at = publish_message(world, "/relay/v1/auto/messages", &topic);
    let poll = format!("/relay/v1/auto/messages/{}", topic.replace('/', "%2F"));
    let polled = get(addr, &poll).json();
    assert_eq!(polled[0]["timestamp"], at, "{polled}");
    assert_eq!(get(addr, &poll).ok(), "[]");
    assert_eq!(HttpRequest::new("DELETE", path).json(&list).send(addr).ok(), "OK");
    let gone = get(addr, &poll);
    Same(format!("{} {}", gone.status, without_numbers(&gone.text())))
}

fn shard_subscriptions(world: &World) -> Answer {
    let path = "/relay/v1/subscriptions";
    let list = json!(["/waku/2/rs/1/5"]).to_string();
    let mut said = Vec::new();
    for method in ["POST", "DELETE", "POST"] {
        let reply = HttpRequest::new(method, path).json(&list).send(&world.reads().waku);
        assert!(reply.status < 500, "{method}: {}", reply.text());
        said.push(format!("{} {}", reply.status, reply.text()));
    }
    Same(said.join("\n"))
}

const RLP: (&str, &str) = ("Content-Type", "application/octet-stream");

fn posted(world: &World) -> Answer {
    let envelope = fixture::envelope(now_s(), format!("posted {}", number()).as_bytes());
    let addr = &world.writes().whisper;
    let post = || {
        HttpRequest::new("POST", "/whisper/envelopes").headers(&[RLP]).body(&envelope).send(addr)
    };
    let first = post();
    assert_eq!(first.status, 200, "{}", first.text());
    let second = post();
    Same(first.text() + &second.text())
}

fn envelopes(world: &World) -> Answer {
    let ask = |request: &Value| {
        let headers = [JSON, ("Accept", "application/json")];
        let addr = &world.reads().whisper;
        let reply = HttpRequest::new("POST", "/whisper/messages")
            .headers(&headers)
            .body(&request.to_string())
            .send(addr);
        assert_eq!(reply.status, 200, "{request}: {}", reply.text());
        reply.json()
    };
    let mut out = String::new();
    let of = |more: Value| {
        let mut request = json!({"from": FIRST_S, "to": LAST_S});
        request.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        request
    };
    let topic = format!("0x{}", digits(&fixture::TOPICS[0]));
    for mut request in [of(json!({})), of(json!({"limit": 7})), of(json!({"topics": [topic]}))] {
        loop {
            let page = ask(&request);
            out = out + &page.to_string() + "\n";
            let Some(cursor) = page["cursor"].as_str() else { break };
            request["cursor"] = json!(cursor);
        }
    }
    Same(out)
}
