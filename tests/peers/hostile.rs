//! Relays that answer as no relay should. None of these relays blocks a command or exhausts its
//! memory.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use hark_codec::crypto::sha256;
use hark_codec::hex;
use hark_testkit::nostr::event_line;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, WebSocket, accept};

use super::nodes::{Node, notes};

const START: u64 = 1_700_000_000;

/// The connection of such a relay with a client.
struct ScriptedClient(WebSocket<TcpStream>);

impl ScriptedClient {
    fn send_text(&mut self, message: &Value) -> bool {
        self.0.send(Message::text(message.to_string())).is_ok()
    }
}

/// Starts a relay that handles each message with `answer`, and returns its URL. The relay ends with
/// the test.
fn relay(answer: impl Fn(&mut ScriptedClient, &Value) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("ws://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || {
                let mut client = ScriptedClient(accept(stream).expect("a handshake"));
                while let Ok(message) = client.0.read() {
                    if let Message::Text(text) = message {
                        answer(&mut client, &serde_json::from_str(&text).expect("is JSON"));
                    }
                }
            });
        }
    });
    url
}

/// A relay that sends a NOTICE every 200 ms and never answers.
#[test]
fn notices_do_not_stand_for_an_answer_and_are_shown() {
    let url = relay(|client, _| {
        while client.send_text(&json!(["NOTICE", "we are busy"])) {
            thread::sleep(Duration::from_millis(200));
        }
    });
    // With a private event, the command first queries the relay for that event.
    for events in [notes("here", 3, START), vec![event_line(1, START, 4, &[], "x")]] {
        let here = Node::new("notices", "", &events);
        let done = here.run(&["sync", &url, "--timeout", "1", "--dir", "up"]);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.stderr.contains("did not answer a page within 1 s"), "{done:?}");
        assert!(done.stderr.contains("we are busy"), "{done:?}");
    }
}

/// A refusal with `restricted:` is not about a missing key, so the command does not suggest
/// `--key-file`.
#[test]
fn a_refusal_is_told_in_the_words_of_the_relay() {
    let url = relay(|client, asked| {
        let answer = if asked[0] == "REQ" { "CLOSED" } else { "NEG-ERR" };
        if asked[0] == "REQ" || asked[0] == "NEG-OPEN" {
            client.send_text(&json!([answer, asked[1], "restricted: this relay is for members"]));
        }
    });
    let here = Node::new("restricted", "", &notes("here", 3, START));
    let done = here.run(&["sync", &url]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("restricted: this relay is for members"), "{done:?}");
    assert!(!done.stderr.contains("--key-file"), "{done:?}");
}

/// A relay that treats `until: 0` as no bound, as some relays do.
#[test]
fn a_relay_that_takes_until_0_for_none_is_read_to_its_end() {
    let first = event_line(1, 1, 1, &[], "at the beginning");
    let told = first.clone();
    let url = relay(move |client, asked| match asked[0].as_str() {
        Some("NEG-OPEN") => drop(client.send_text(&json!(["NOTICE", "unknown command"]))),
        Some("REQ") => {
            let event: Value = serde_json::from_str(&told).expect("is JSON");
            client.send_text(&json!(["EVENT", asked[1], event]));
            client.send_text(&json!(["EOSE", asked[1]]));
        }
        _ => {}
    });
    let here = Node::new("until-0", "", &[]);
    let done = here.run(&["sync", &url, "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(done.json_of_any()["down"]["stored"], 1, "{done:?}");
}

/// A redirect is reported and not followed, since the operator alone chooses the address.
#[test]
fn a_redirect_is_told_and_not_followed() {
    use std::io::{Read as _, Write as _};
    let there = Node::served("redirected-there", "", &notes("there", 3, START));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("ws://{}", listener.local_addr().expect("an address"));
    let to = there.url().replace("ws://", "http://");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("it connects");
        let _ = stream.read(&mut [0; 4096]);
        let head = format!("HTTP/1.1 302 Found\r\nLocation: {to}/\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
    });
    let here = Node::new("redirected", "", &[]);
    let done = here.run(&["sync", &url]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("redirects to http://127.0.0.1"), "{done:?}");
}

/// An unsigned event with a valid id.
fn unsigned(time: u64) -> String {
    let key = "ab".repeat(32);
    let hashed = format!("[0,\"{key}\",{time},1,[],\"\"]");
    let id = hex::encode_32(&sha256(hashed.as_bytes()));
    let id = String::from_utf8_lossy(&id).into_owned();
    let sig = "00".repeat(64);
    format!(
        "{{\"id\":\"{id}\",\"pubkey\":\"{key}\",\"created_at\":{time},\"kind\":1,\"tags\":[],\
         \"content\":\"\",\"sig\":\"{sig}\"}}"
    )
}

/// A relay without comparisons may return any number of events. The command compares the events in
/// parts, so that it holds few ids at a time and counts each event once.
#[test]
fn the_ids_that_a_relay_names_are_compared_part_by_part() {
    const COUNT: u64 = 120_000;
    let shared = event_line(1, START + 60_001, 1, &[], "on both sides");
    let theirs = shared.trim().to_owned();
    let url = relay(move |client, asked| {
        if asked[0] != "REQ" {
            return;
        }
        let filter = &asked[2];
        let until = filter["until"].as_u64().unwrap_or(u64::MAX).min(START + COUNT - 1);
        let limit = filter["limit"].as_u64().expect("a limit");
        for time in (START..=until).rev().take(limit as usize) {
            let made = if time == START + 60_001 { theirs.clone() } else { unsigned(time) };
            let text = format!("[\"EVENT\",{},{made}]", asked[1]);
            client.0.write(Message::text(text)).expect("is sent");
        }
        client.send_text(&json!(["EOSE", asked[1]]));
    });
    let ours = [
        event_line(1, START + 100, 1, &[], "a"),
        event_line(1, START + 110_000, 1, &[], "b"),
        shared,
    ];
    let here = Node::new("parts", "", &ours);
    let done = here.run(&["sync", &url, "--pages", "--dry-run", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let report = done.json_of_any();
    assert_eq!(report["down"]["missing"], COUNT - 1, "{report}");
    assert_eq!(report["up"]["missing"], 2, "{report}");
}
