//! The contracts of the relay: its messages, and its pages over HTTP.

use hark_codec::hex;
use hark_codec::nostr::negentropy::{
    NegentropyDifference, NegentropyInitiator, NegentropyItem, SortedItems,
};
use hark_testkit::clock::now_s;
use hark_testkit::digits::digits;
use hark_testkit::http::{HttpRequest, get};
use hark_testkit::nostr::{event_json, pubkey};
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;
use serde_json::{Value, json};

use super::Answer::{self, Own, Same};
use super::without_numbers;
use crate::fixture::{self, FIRST_S, LAST_S, READER, id};
use crate::world::{World, number};

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

pub(super) fn publishes(world: &World) -> Answer {
    let mut live = Socket::connect(&world.reads().relay);
    // The topic is unique, since other doors publish at the same time.
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

pub(super) fn asks(world: &World) -> Answer {
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
    // A cluster has no search, so it has other answers.
    if world.store == crate::stores::StoreKind::Citus { Own } else { Same(out) }
}

pub(super) fn counts(world: &World) -> Answer {
    let mut socket = Socket::connect(&world.reads().relay);
    let filters = [
        json!({"until": LAST_S}),
        json!({"until": LAST_S, "kinds": [1]}),
        json!({"until": LAST_S, "#t": ["salt"], "authors": [pubkey(1), pubkey(3)]}),
    ];
    let count = |filter: &Value| answered(&mut socket, &json!(["COUNT", "n", filter]).to_string());
    Same(filters.iter().flat_map(count).collect::<Vec<_>>().join("\n"))
}

pub(super) fn closes(world: &World) -> Answer {
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

pub(super) fn authenticates(world: &World) -> Answer {
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
pub(super) fn compares(world: &World) -> Answer {
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

/// Continues a comparison, even after its end.
pub(super) fn compares_on(world: &World) -> Answer {
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

pub(super) fn page(world: &World) -> Answer {
    let addr = &world.reads().relay;
    let text = get(addr, "/").ok();
    for part in ["How to join", addr.as_str()] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    // The page names the same NIPs as the information document. On a cluster, the list lacks NIP-50
    // (search), so it is masked below.
    let document = information(world);
    let nips = document["supported_nips"].as_array().expect("a list");
    let nips: Vec<String> = nips.iter().map(Value::to_string).collect();
    let listed = format!("NIPs: {}.", nips.join(", "));
    assert!(text.contains(&listed), "{listed} is missing: {text}");
    let text = text.replace(addr.as_str(), "HOST").replace(&listed, "NIPs");
    Same(without_numbers(&text))
}

pub(super) fn page_counts(world: &World) -> Answer {
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

pub(super) fn document(world: &World) -> Answer {
    let mut document = information(world);
    if world.store == crate::stores::StoreKind::Citus {
        return Own;
    }
    document.as_object_mut().expect("fields").retain(|name, _| name != "self");
    Same(document.to_string())
}
