//! A running server reads its settings again when a file changes and on SIGHUP, and never applies
//! invalid ones.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::support::{Place, Serving};

/// What the relay says about itself.
fn limitation(server: &Serving) -> serde_json::Value {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let request = "GET / HTTP/1.0\r\nAccept: application/nostr+json\r\nHost: h\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut document: serde_json::Value = serde_json::from_str(body).unwrap();
    document["limitation"].take()
}

/// Waits until a field has a value, and says how long that took.
fn wait_for(server: &Serving, field: &str, value: u64) -> Duration {
    let asked = Instant::now();
    while limitation(server)[field] != value {
        assert!(asked.elapsed() < Duration::from_mins(1), "{field} does not become {value}");
        std::thread::sleep(Duration::from_millis(20));
    }
    asked.elapsed()
}

#[test]
fn a_running_server_takes_over_what_changes_in_its_files() {
    let place = Place::new("reload");
    let words = place.file("words.txt", b"# none yet\n");
    let config = |limit: u32, rest: &str| {
        let text = format!(
            "[limits]\nlimit_max = {limit}\nlimit_default = 5\n\n\
             [policy]\ndeny_words = [\"@words.txt\"]\n{rest}"
        );
        place.file("hark.toml", text.as_bytes())
    };
    let file = config(50, "");
    let mut server = place.serve_with(&["--config", &file]);
    assert_eq!(limitation(&server)["max_limit"], 50);

    config(60, "");
    let took = wait_for(&server, "max_limit", 60);
    println!("a changed file was in force after {took:?}");

    // Invalid settings change nothing, and are logged.
    config(3, "");
    std::fs::write(Path::new(&words), "casino\n").unwrap();
    server.signal("HUP");
    server.wait_for_log("the new configuration is refused, and the old one stays in force");
    server.wait_for_log("limit_default (5) is above limit_max (3)");
    assert_eq!(limitation(&server)["max_limit"], 60);

    // Settings that need a restart are logged, too.
    config(70, "pow_bits_min = 12\n\n[server]\nread_threads = 7\n");
    wait_for(&server, "max_limit", 70);
    wait_for(&server, "min_pow_difficulty", 12);
    server.wait_for_log("server.read_threads = 7 holds after a restart");

    // A list in a file of its own.
    config(70, "pow_bits_min = 0\n");
    wait_for(&server, "min_pow_difficulty", 0);
    std::fs::write(Path::new(&words), "casino\nno: such, *thing*\n").unwrap();
    server.wait_for_log("the configuration was read again");
    std::fs::remove_file(&words).unwrap();
    server.wait_for_log("words.txt could not be read");
    let (code, _) = server.terminate();
    assert_eq!(code, 0);
}

#[test]
fn lists_are_checked_entry_by_entry_with_their_place() {
    let place = Place::new("lists");
    place.file("keys.txt", format!("# friends\n{}\n\nnobody\n", "ab".repeat(32)).as_bytes());
    let text = "[policy]\nallow_keys = [\"@keys.txt\"]\ndeny_kinds = [7, \"9-3\"]\n\
                deny_addresses = [\"192.0.2.0/24\", \"here\"]\nallow_kinds = [\"@none.txt\"]\n";
    let file = place.file("hark.toml", text.as_bytes());
    let run = super::support::hark(&["config", "--check", &file]);
    assert_eq!(run.code, 2);
    for said in [
        "keys.txt:4: \"nobody\" is no public key",
        "[policy] `deny_kinds`: \"9-3\" is no kind like 1",
        "[policy] `deny_addresses`: \"here\" is no address and no network",
        "[policy] `allow_kinds`: ",
        "none.txt could not be read",
    ] {
        assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
    }
}
