//! Reports of a server to its operator (the log) and to systemd.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use hark_testkit::program::{Process, Program};
use hark_testkit::server::free_address;
use hark_testkit::skipped::skip;
use hark_testkit::websocket::Socket;

use super::support::{Place, command};

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
    for level in ["loud=1=2", "verbose", "warn,loud"] {
        let run = place.hark(&["serve", "--log-level", level]);
        assert!(run.code == 2 && run.stderr.contains("is no level"), "{run:?}");
    }
    let config = place.file("hark.toml", b"[log]\nlevel = \"verbose\"\n");
    let run = place.hark(&["config", "--check", &config]);
    assert!(
        run.code == 2 && run.stderr.contains("[log] `level`: \"verbose\" is no level"),
        "{run:?}"
    );
    let run = place.hark(&["serve", "--log-format", "xml"]);
    assert!(run.code == 2 && run.stderr.contains("possible values: text, json"), "{run:?}");
}

#[test]
fn a_log_on_a_terminal_has_colours_unless_no_color_is_set() {
    let place = Place::new("colours");
    let (hark, data) = (env!("CARGO_BIN_EXE_hark"), place.data());
    // The server ends with an error, since no machine has this address.
    let serve = format!("{hark} --data {} serve --listen 192.0.2.1:7777", data.to_str().unwrap());
    // The variable has no effect if it is empty.
    for (no_color, is_coloured) in [(None, true), (Some(""), true), (Some("1"), false)] {
        let mut script = Program::new("script");
        script.args(["-qefc", &serve, "/dev/null"]).env_remove("NO_COLOR");
        script.envs(no_color.map(|value| ("NO_COLOR", value)));
        let Ok(output) = script.output() else { return skip("there is no `script` here") };
        let shown = String::from_utf8_lossy(&output.stdout);
        let is_logged = shown.contains("ERROR") && shown.contains("could not start");
        assert!(output.status.code() == Some(1) && is_logged, "{no_color:?}: {shown}");
        assert_eq!(shown.contains('\x1b'), is_coloured, "{no_color:?}: {shown}");
    }
}

/// Receives systemd's notifications.
struct Notifications {
    socket: UnixDatagram,
    path: String,
}

impl Notifications {
    fn new(place: &Place) -> Self {
        let path = place.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        Self { socket, path }
    }

    fn next(&self) -> String {
        let mut bytes = [0; 500];
        let len = self.socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }
}

/// Starts a server, and lets a new process take over from the server. Returns the old process, a
/// connection that keeps the old process alive, and the id of the new process.
fn taken_over(place: &Place, notifications: &Notifications) -> (Process, Socket, String) {
    let listen = free_address();
    let old = command(&["--data", place.data().to_str().unwrap(), "serve"])
        .args(["--listen", &listen])
        .env("NOTIFY_SOCKET", &notifications.path)
        .spawn()
        .unwrap();
    assert!(notifications.next().starts_with("READY=1\n"));
    let client = Socket::connect(&listen);
    old.signal("USR2");
    let ready = notifications.next();
    let (main, rest) = ready.split_once('\n').unwrap();
    assert!(rest.starts_with("READY=1\nSTATUS=listening on "), "{ready}");
    (old, client, main.strip_prefix("MAINPID=").unwrap().to_owned())
}

#[test]
fn a_process_that_has_taken_over_becomes_the_service() {
    let place = Place::new("successor");
    let notifications = Notifications::new(&place);
    let (mut old, client, new) = taken_over(&place, &notifications);
    assert_ne!(new, old.id().to_string());
    // Only the parent of a process learns its exit status, so systemd must be the parent of the new
    // process. systemd adopts orphans.
    let about = std::fs::read_to_string(format!("/proc/{new}/status")).unwrap();
    assert!(!about.contains(&format!("PPid:\t{}\n", old.id())), "{about}");
    // The same signal starts no further process while the new process runs.
    old.signal("USR2");
    assert!(old.try_wait().unwrap().is_none());
    old.wait_for_log("the process that was started to take over still runs");
    assert!(!old.log().contains("has ended"), "{}", old.log());
    drop(client);
    assert_eq!(old.wait().unwrap().code(), Some(0));
    // The new process inherits the old process's output.
    let printed = BufReader::new(old.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(printed.take(2).filter(|line| line.starts_with("listening on ")).count(), 2);
    assert_eq!(place.hark(&["stats", "--json"]).json()["server_running"], true);
    let ended = std::process::Command::new("kill").args(["-TERM", &new]).status().unwrap();
    assert!(ended.success() && notifications.next().starts_with("STOPPING=1\n"));
}

/// To systemd, the end of the old process must not look like the end of the service.
#[test]
fn a_process_that_was_replaced_ends_without_a_word_to_systemd() {
    let place = Place::new("replaced");
    let notifications = Notifications::new(&place);
    let (mut old, _client, new) = taken_over(&place, &notifications);
    old.wait_for_log("this process serves open connections until they end");
    old.signal("HUP");
    old.wait_for_log("the configuration was read again");
    old.signal("TERM");
    assert_eq!(old.wait().unwrap().code(), Some(0));
    // The next notification is that of the new process.
    let to_new = |signal: &str| {
        let sent = std::process::Command::new("kill").args([signal, &new]).status().unwrap();
        assert!(sent.success());
    };
    to_new("-HUP");
    assert!(notifications.next().starts_with("RELOADING=1\n"));
    assert_eq!(notifications.next(), "READY=1\n");
    to_new("-TERM");
    assert!(notifications.next().starts_with("STOPPING=1\n"));
}

#[test]
fn systemd_is_notified_when_it_serves_lives_and_ends() {
    let place = Place::new("systemd");
    let notifications = Notifications::new(&place);
    let mut child = command(&["--data", place.data().to_str().unwrap(), "serve"])
        .args(["--listen", "127.0.0.1:0"])
        .envs([("NOTIFY_SOCKET", notifications.path.as_str()), ("WATCHDOG_USEC", "60000000")])
        .spawn()
        .unwrap();
    let ready = notifications.next();
    assert!(ready.starts_with("READY=1\nSTATUS=listening on ws://127.0.0.1:"), "{ready}");
    assert_eq!(notifications.next(), "WATCHDOG=1\n");
    child.signal("HUP");
    let reloading = notifications.next();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(notifications.next(), "READY=1\n");
    child.signal("TERM");
    assert!(notifications.next().starts_with("STOPPING=1\n"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let log = child.log();
    assert!(!log.contains("could not be notified"), "{log}");
}
