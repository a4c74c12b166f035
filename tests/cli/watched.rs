//! What a server reports to its operator (the log) and to systemd.

use std::io::Read as _;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::support::{Place, command, signal};

#[test]
fn the_log_is_for_people_or_for_programs() {
    let place = Place::new("log");
    let config = place.file("hark.toml", b"[info]\nname = \"Set\"\n");
    let (code, text) = place.serve_with(&["--log-format", "json", "--config", &config]).terminate();
    assert_eq!(code, 0, "{text}");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for line in &lines {
        for field in ["timestamp", "level", "message", "target"] {
            assert!(line[field].is_string(), "{field}: {line}");
        }
    }
    assert_eq!(lines[0]["message"], "starting");
    let settings = lines[0]["settings"].as_str().unwrap();
    assert!(settings.contains("info.name = \"Set\""), "{settings}");
    let serving = lines.iter().find(|line| line["message"] == "serving").expect("a line");
    assert_eq!(serving["data"], place.data().to_str().unwrap());
    assert!(serving["at"].as_str().unwrap().starts_with("ws://127.0.0.1:"), "{serving}");
    assert_eq!(lines.last().unwrap()["message"], "closed");

    let (code, text) = place.serve().terminate();
    assert!(code == 0 && text.contains(" INFO ") && text.contains("serving"), "{text}");
    let (code, text) = place.serve_with(&["--log-level", "error"]).terminate();
    assert_eq!((code, text.as_str()), (0, ""));
    let run = place.hark(&["serve", "--log-level", "loud=1=2"]);
    assert!(run.code == 1 && run.stderr.contains("neither a level"), "{run:?}");
    let run = place.hark(&["serve", "--log-format", "xml"]);
    assert!(run.code == 2 && run.stderr.contains("possible values: text, json"), "{run:?}");
}

#[test]
fn systemd_is_notified_when_it_serves_lives_and_ends() {
    let place = Place::new("systemd");
    let path = place.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let mut child = command(&["--data", place.data().to_str().unwrap(), "serve"])
        .args(["--listen", "127.0.0.1:0"])
        .envs([("NOTIFY_SOCKET", path.as_str()), ("WATCHDOG_USEC", "60000000")])
        .spawn()
        .unwrap();
    let receive = || {
        let mut bytes = [0; 500];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    };
    let ready = receive();
    assert!(ready.starts_with("READY=1\nSTATUS=listening on ws://127.0.0.1:"), "{ready}");
    assert_eq!(receive(), "WATCHDOG=1\n");
    signal(&child, "HUP");
    let reloading = receive();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(receive(), "READY=1\n");
    signal(&child, "TERM");
    assert!(receive().starts_with("STOPPING=1\n"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(!log.contains("could not be notified"), "{log}");
}
