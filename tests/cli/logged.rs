//! A server's log as JSON has one event a line, even for failures.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use hark_testkit::program::Finished;
use serde_json::Value;

use super::support::Place;

/// Reads each line of a log as an event. Returns the messages of errors.
fn errors(log: &str) -> Vec<String> {
    let events = log.lines().map(|line| {
        serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?} is no event: {log}"))
    });
    let errors = events.filter(|event: &Value| event["level"] == "ERROR");
    errors.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_server_that_cannot_start_logs_why_and_says_it_once() {
    let place = Place::new("logged-start");
    let server = place.serve();
    let serve =
        |flags: &[&str]| place.hark(&[&["serve", "--listen", "127.0.0.1:0"], flags].concat());
    let run = serve(&["--log-format", "json"]);
    let said = errors(&run.stderr);
    assert_eq!((run.code, said.len()), (1, 1), "{}", run.stderr);
    assert!(said[0].contains("holds the archive"), "{said:?}");
    let Finished { code, stderr, .. } = serve(&[]);
    assert_eq!((code, stderr.matches("holds the archive").count()), (1, 1), "{stderr}");
    // If the log is off, the reason is printed.
    let Finished { code, stderr, .. } = serve(&["--log-level", "off"]);
    assert!(code == 1 && stderr.starts_with("hark: another process"), "{stderr}");
    assert_eq!(server.terminate().0, 0);
}

#[test]
fn each_fault_of_a_configuration_is_an_event() {
    let place = Place::new("logged-faults");
    let wrong = b"[limits]\nlistn = 1\n[info]\nnaem = \"x\"\n";
    let names_one = |said: &[String]| {
        let names = |part: &str| said.iter().filter(|words| words.contains(part)).count();
        assert_eq!((said.len(), names("`listn`"), names("`naem`")), (2, 1, 1), "{said:?}");
    };
    let file = place.file("hark.toml", wrong);
    let run = place.hark(&["serve", "--log-format", "json", "--config", &file]);
    names_one(&errors(&run.stderr));
    assert_eq!(run.code, 2);
    // The same faults, while the server runs.
    place.file("hark.toml", b"");
    let server = place.serve_with(&["--config", &file, "--log-format", "json"]);
    place.file("hark.toml", wrong);
    let run = place.hark(&["reload"]);
    assert!(
        run.code == 1 && run.stderr.contains("listn") && run.stderr.contains("naem"),
        "{run:?}"
    );
    let (code, log) = server.terminate();
    assert_eq!(code, 0, "{log}");
    let said = errors(&log);
    // The file watch may have reloaded the file before the command did, so each fault may be logged
    // twice.
    let (first, again) = said.split_at(2);
    for said in [first].into_iter().chain((!again.is_empty()).then_some(again)) {
        names_one(said);
        assert!(said[0].contains("the old one stays in force"), "{said:?}");
    }
}

#[test]
fn a_refused_request_for_a_websocket_is_logged_with_its_reason() {
    let place = Place::new("logged-handshake");
    let mut server = place.serve_with(&["--log-format", "json"]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let request = "GET / HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line = server.wait_for_log("a request for a WebSocket was refused");
    let event: Value = serde_json::from_str(&line).unwrap();
    let field = |name: &str| event[name].as_str();
    assert_eq!((field("level"), field("peer")), (Some("WARN"), Some("127.0.0.1")), "{line}");
    // The client reads the same reason.
    let reason = field("reason").unwrap();
    assert!(reason.contains("proxy_http_version 1.1") && answer.contains(reason), "{answer}");
    assert_eq!(server.terminate().0, 0);
}
