//! `hark init`: a first configuration from flags, from a terminal, and from defaults.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::Stdio;

use hark_testkit::http::HttpRequest;
use hark_testkit::program::{Finished, Program, assert_no_panic};
use hark_testkit::skipped::skip;

use super::support::{Place, command, hark};

/// Runs `hark init` in the directory of the test, without a terminal.
fn init(place: &Place, flags: &[&str]) -> Finished {
    command(&[&["init"], flags].concat()).current_dir(place.path("")).run_with(b"")
}

/// The names of the files in the directory of the test.
fn names(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.path("")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn without_a_terminal_the_defaults_are_written_and_no_file_is_replaced() {
    let place = Place::new("init-defaults");
    let file = place.path("hark.toml");
    let said = init(&place, &[]).text();
    for line in [
        "hark.toml is written. Next:",
        "hark --config hark.toml serve ",
        "hark --config hark.toml doctor ",
        "hark config --check hark.toml ",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(read(&file), hark(&["config"]).text());
    assert_eq!(names(&place), ["hark.toml"]);
    fs::write(&file, "# mine\n").unwrap();
    let run = init(&place, &["--name", "Owl"]);
    let refused = "hark.toml exists, and was not changed; --force replaces the file";
    assert!(run.code == 2 && run.stderr.contains(refused), "{run:?}");
    assert_eq!(read(&file), "# mine\n");
    init(&place, &["--name", "Owl", "--force"]).text();
    assert!(read(&file).contains("\nname = \"Owl\"\n"), "{}", read(&file));
    assert_eq!(names(&place), ["hark.toml"]);
}

#[test]
fn flags_give_the_values_and_the_file_serves() {
    let place = Place::new("init-flags");
    let flags = [
        "--networks",
        "waku, whisper",
        "--store",
        "postgres://me@localhost/base",
        "--listen",
        "localhost:7000",
        "--url",
        "wss://relay.example",
        "--name",
        "The \"Owl\"",
        "--output",
        "-",
    ];
    let printed = init(&place, &flags).text();
    assert_eq!(names(&place), [""; 0]);
    let chosen = |printed: &str| {
        let lines = printed.lines().filter(|line| !line.starts_with(['#', '[']));
        lines.filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let name = chosen(&printed).into_iter().find(|line| line.starts_with("name = ")).unwrap();
    let expected = [
        "listen = \"127.0.0.1:7000\"",
        "store = \"postgres://me@localhost/base\"",
        &name,
        "url = \"wss://relay.example\"",
        "serve = true",
        "serve = true",
    ];
    assert_eq!(chosen(&printed), expected, "{printed}");
    let file = place.file("printed.toml", printed.as_bytes());
    assert_eq!(hark(&["config", "--check", &file]).code, 0);
    // Values, and the name of the file, also come from the environment and from the flags of all
    // commands.
    let data = place.data();
    let file = place.path("conf/hark.toml");
    let mut command = command(&["--config", &file, "init", "--name", "The \"Owl\""]);
    let said = command.env("HARK_DATA", &data).current_dir(place.path("")).run_with(b"").text();
    assert!(said.contains(&format!("hark --config {file} serve ")), "{said}");
    let expected = [format!("data = \"{}\"", data.display()), name];
    assert_eq!(chosen(&read(&file)), expected);
    let server = place.serve_with(&["--config", &file]);
    let accept = HttpRequest::new("GET", "/").header("Accept", "application/nostr+json");
    assert_eq!(accept.send(&server.address).json()["name"], "The \"Owl\"");
    assert_eq!(server.terminate().0, 0);
}

#[test]
fn values_with_faults_are_refused_and_nothing_is_written() {
    let place = Place::new("init-wrong");
    for (flag, value, said) in [
        ("--networks", "waku,bitcoin", "there is no network `bitcoin`; there are nostr, waku"),
        ("--store", "mysql://x", "[archive] `store` must be `embedded` or postgres://"),
        ("--store", "postgres://me:s3cret@host/base", "give the password in PGPASSWORD"),
        ("--listen", "7777", "must be an address and port"),
        ("--url", "relay.example", "[info] `url` must be a URL with wss:// or ws://"),
    ] {
        let run = init(&place, &[flag, value]);
        assert_eq!(run.code, 2, "{flag} {value}: {run:?}");
        assert!(run.stderr.contains(&format!("hark: {flag}: ")), "{flag}: {}", run.stderr);
        assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
        assert!(!run.stderr.contains("s3cret"), "{}", run.stderr);
    }
    // The server would refuse to start with this misspelled variable, so `hark init` refuses as
    // well.
    let mut command = command(&["init"]);
    command.env("HARK_INFO_NAEM", "Owl").current_dir(place.path(""));
    let run = command.run_with(b"");
    assert!(run.code == 2 && run.stderr.contains("did you mean `name`?"), "{run:?}");
    assert_eq!(names(&place), [""; 0]);
    // A folder that cannot be made, because a file has the same name.
    place.file("file", b"");
    let run = init(&place, &["--output", "file/hark.toml"]);
    let said = "file/hark.toml could not be written; --output FILE names another file";
    assert!(run.code == 1 && run.stderr.contains(said), "{run:?}");
}

/// Runs `hark init` on a terminal with these keys. Returns the exit code and the screen; `None` if
/// script(1), which makes the terminal, is missing.
fn typed(place: &Place, keys: &str) -> Option<(i32, String)> {
    let mut script = Program::new("script");
    let init = format!("{} init", env!("CARGO_BIN_EXE_hark"));
    script.args(["-qefc", &init, "/dev/null"]).current_dir(place.path(""));
    let Ok(mut child) = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        skip("there is no `script` here");
        return None;
    };
    // The terminal buffers the typed characters until the program reads a line.
    let mut input = child.stdin.take().unwrap();
    input.write_all(keys.as_bytes()).unwrap();
    let mut screen = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut screen).unwrap();
    drop(input);
    let screen = String::from_utf8_lossy(&screen).into_owned();
    assert_no_panic(&screen);
    Some((child.wait().unwrap().code().unwrap(), screen))
}

#[test]
fn a_terminal_is_asked_for_five_values_and_again_after_a_fault() {
    let place = Place::new("init-terminal");
    let keys = "waku\n\n7000\n127.0.0.1:7000\nwss://relay.example\nOwl\n";
    let Some((code, screen)) = typed(&place, keys) else { return };
    assert_eq!(code, 0, "{screen}");
    for said in [
        "Always served: nostr.",
        "The archive: a directory for files",
        "[data]",
        "must be an address and port",
        "The address that clients use",
        "The name of the relay",
        "hark --config hark.toml serve",
    ] {
        assert!(screen.contains(said), "{said}: {screen}");
    }
    let text = read(&place.path("hark.toml"));
    for line in [
        "#data = \"data\"",
        "listen = \"127.0.0.1:7000\"",
        "url = \"wss://relay.example\"",
        "name = \"Owl\"",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let (_, waku) = text.split_once("\n[waku]\n").unwrap();
    assert!(waku.split("\n[").next().unwrap().contains("\nserve = true\n"), "{waku}");
    // Ctrl-D ends the input, and nothing is written.
    let place = Place::new("init-ended");
    let Some((code, screen)) = typed(&place, "\n\n\x04") else { return };
    assert_eq!(code, 1, "{screen}");
    assert!(screen.contains("the input ended before the last value"), "{screen}");
    assert_eq!(names(&place), [""; 0]);
}
