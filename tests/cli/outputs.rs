//! Outputs, sockets and files that the system refuses: the process keeps running and reports the
//! failure where possible.

use std::fs::File;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;

use hark_testkit::nostr::event_line;
use hark_testkit::program::{Process, Program};
use hark_testkit::server::free_address;
use hark_testkit::skipped::skip;
use hark_testkit::websocket::Socket;

use super::damage::{archive, damage};
use super::support::{Place, command, health};

/// A running server that a test observes only through its log.
struct Logging(Process);

impl Logging {
    fn start(command: &mut Program) -> Self {
        Self(command.spawn().unwrap())
    }

    /// Returns the next line of the log with this text.
    fn line(&mut self, said: &str) -> String {
        self.0.wait_for_log(said)
    }

    /// The address in the line of the log that reports that the server is ready.
    fn address(&mut self) -> String {
        let line = self.line(" serving ");
        let (_, rest) = line.split_once("ws://").unwrap();
        rest.split(['"', ',', ' ']).next().unwrap().to_owned()
    }

    fn terminate(mut self) -> (Option<i32>, String) {
        self.0.signal("TERM");
        (self.0.wait().unwrap().code(), self.0.remaining_log())
    }
}

#[test]
fn a_server_whose_stdout_is_closed_serves() {
    let place = Place::new("closed-stdout");
    let data = place.data();
    let mut command =
        command(&["--data", data.to_str().unwrap(), "serve", "--listen", "127.0.0.1:0"]);
    command.stdout(Stdio::from(closed_pipe()));
    let mut server = Logging::start(&mut command);
    let address = server.address();
    server.line("only this log shows the addresses");
    assert_eq!(health(&address).0, 200);
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn a_server_whose_stdout_and_log_are_closed_serves_and_ends_well() {
    let place = Place::new("closed-outputs");
    let free = free_address();
    let data = place.data();
    let mut command = command(&["--data", data.to_str().unwrap(), "serve", "--listen", &free]);
    command.stdout(Stdio::from(closed_pipe())).lose_log(closed_pipe());
    let mut child = command.spawn().unwrap();
    child.until("the server listens", || TcpStream::connect(&free).is_ok());
    assert_eq!(health(&free).0, 200);
    child.signal("TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_command_whose_stderr_is_closed_ends_with_the_code_of_its_fault() {
    let place = Place::new("closed-stderr");
    let data = place.data();
    for (args, code) in [(["stats", "--json"], 1), (["query", "no filter"], 2)] {
        let mut command = command(&[&["--data", data.to_str().unwrap()], &args[..]].concat());
        command.lose_log(closed_pipe());
        let ended = command.spawn().unwrap().wait().unwrap();
        assert_eq!(ended.code(), Some(code), "{args:?}");
    }
}

/// Runs a command on the archive, with a stdout that nobody reads, and returns its exit code.
fn code_unread(place: &Place, args: &[&str], stdin: &str) -> Option<i32> {
    let data = place.data();
    let mut command = command(&[&["--data", data.to_str().unwrap()], args].concat());
    let input = place.file("unread", stdin.as_bytes());
    command.stdin(File::open(input).unwrap()).stdout(Stdio::from(closed_pipe()));
    command.spawn().unwrap().wait().unwrap().code()
}

/// A script that runs `hark check | head -1` needs the exit code of the check.
#[test]
fn a_command_whose_stdout_is_closed_does_its_work_and_ends_with_its_usual_code() {
    let place = archive("unread", 3_000);
    for (args, stdin) in [
        (&["import"][..], "no event\n"),
        (&["healthz", "--json", "--at", "127.0.0.1:1"], ""),
        (&["doctor", "--at", "127.0.0.1:1", "--config", "/dev/null"], ""),
        (&["invite", "--revoke", &"0".repeat(32)], ""),
    ] {
        let code = place.hark_fed(args, stdin.as_bytes()).code;
        assert_eq!(code_unread(&place, args, stdin), Some(code), "{args:?}");
    }
    assert_eq!(code_unread(&place, &["import"], "no event\n"), Some(1));
    // These need several requests, of which each is followed by output.
    let kinds: Vec<_> = (20_000..22_500).map(|kind| format!("kind:{kind}")).collect();
    assert_eq!(code_unread(&place, &["ban", "-"], &kinds.join("\n")), Some(0));
    assert_eq!(place.hark(&["list", "--json"]).text().lines().count(), 2_500);
    damage(&place, "note 40\\t");
    let (from, to) = (place.data(), place.path("salvaged"));
    for args in [
        &["check"][..],
        &["check", "--json"],
        &["copy", "--from", from.to_str().unwrap(), "--to", &place.path("copy")],
        &["salvage", "--from", from.to_str().unwrap(), "--to", &to],
    ] {
        assert_eq!(code_unread(&place, args, ""), Some(1), "{args:?}");
    }
    let salvaged = command(&["--data", &to, "export"]).run_with(b"");
    assert_eq!(salvaged.text().lines().count(), 2_999);
}

/// The writing end of a pipe without a reader.
fn closed_pipe() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

#[test]
fn lines_for_the_journal_begin_with_their_priority() {
    let place = Place::new("journal");
    let (data, path) = (place.data(), place.file("log", b""));
    let about = std::fs::metadata(&path).unwrap();
    // This variable distinguishes the journal from any other file.
    for (stream, marked) in
        [(format!("{}:{}", about.dev(), about.ino()), true), ("1:2".to_owned(), false)]
    {
        for format in ["text", "json"] {
            File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
            // An address that no machine has causes an error.
            let mut command = command(&["--data", data.to_str().unwrap(), "serve"]);
            command.args(["--listen", "192.0.2.1:7777", "--log-format", format]);
            command.env("JOURNAL_STREAM", &stream).log_to(Path::new(&path));
            assert_eq!(command.spawn().unwrap().wait().unwrap().code(), Some(1));
            let lines = std::fs::read_to_string(&path).unwrap();
            let errors = lines.lines().filter(|line| line.contains("could not start"));
            assert_eq!(errors.clone().count(), 1, "{lines}");
            assert!(errors.clone().all(|line| line.starts_with("<3>") == marked), "{lines}");
            assert!(lines.lines().all(|line| line.starts_with('<') == marked), "{lines}");
        }
    }
}

#[test]
fn a_server_without_a_socket_for_commands_serves_and_says_what_is_missing() {
    let place = Place::new("no-socket");
    // A folder in place of the socket causes the same failure as a file system without sockets.
    std::fs::create_dir_all(place.data().join("control.sock")).unwrap();
    let data = place.data();
    let mut command =
        command(&["--data", data.to_str().unwrap(), "serve", "--listen", "127.0.0.1:0"]);
    let mut server = Logging::start(&mut command);
    let said = server.line("No command reaches this server");
    assert!(said.contains("control.sock"), "{said}");
    let address = server.address();
    assert_eq!(health(&address).0, 200);
    std::fs::remove_dir(place.data().join("control.sock")).unwrap();
    let run = place.hark_fed(&["import"], event_line(1, 1_700_000_000, 1, &[], "late").as_bytes());
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.stderr.contains("no command reaches it, as"), "{}", run.stderr);
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn connections_leave_files_to_the_archive() {
    let place = Place::new("few-files");
    let data = place.data();
    let mut command = Program::new("sh");
    command.args(["-c", "ulimit -n 300; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_hark")]);
    command.args([
        "--data",
        data.to_str().unwrap(),
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--unlimited",
    ]);
    command.env("HARK_ARCHIVE_LOG_BYTES_MAX", "100000");
    command.stdout(Stdio::null());
    let mut server = Logging::start(&mut command);
    let address = server.address();
    let mut publisher = Socket::connect(&address);
    let held: Vec<_> = (0..400).filter_map(|_| TcpStream::connect(&address).ok()).collect();
    server.line("connections are refused, as the process has few files left");
    // Each of these events begins a new log, which needs a new file.
    for n in 0..20 {
        let event = event_line(1, 1_700_000_000 + n, 1, &[], &"x".repeat(60_000));
        publisher.send_text(format!("[\"EVENT\",{}]", event.trim()));
        let answer = std::iter::repeat_with(|| publisher.json()).find(|answer| answer[0] == "OK");
        let answer = answer.unwrap();
        assert_eq!(answer[2], true, "{answer}");
    }
    drop(held);
    let (code, log) = server.terminate();
    assert_eq!(code, Some(0));
    assert!(log.matches("few files left").count() <= 1, "{log}");
}

/// Two exports to one file would mix their records.
#[test]
fn an_export_does_not_write_a_file_that_another_export_is_writing() {
    let place = Place::new("export-twice");
    let line = event_line(1, 1_700_000_000, 1, &[], "kept");
    assert_eq!(place.hark_fed(&["import"], line.as_bytes()).code, 0);
    let (path, unfinished) = (place.path("e.jsonl"), place.path("e.jsonl.unfinished"));
    std::fs::write(&path, "before").unwrap();
    std::fs::write(&unfinished, "of another export").unwrap();
    let file = File::options().write(true).open(&unfinished).unwrap();
    file.try_lock().unwrap();
    let refused = place.hark(&["export", "--output", &path]);
    assert!(refused.code == 1 && refused.stderr.contains("another process writes"), "{refused:?}");
    assert!(!refused.stderr.contains("disk space"), "the disk is not full: {refused:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
    assert_eq!(std::fs::read_to_string(&unfinished).unwrap(), "of another export");
    drop(file);
    let exported = place.hark(&["export", "--output", &path]);
    assert_eq!(exported.code, 0, "{exported:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    assert!(!Path::new(&unfinished).exists());
}

/// A complete file would replace a device or a link.
#[test]
fn an_export_replaces_nothing_but_a_file() {
    let place = Place::new("export-target");
    let line = event_line(1, 1_700_000_000, 1, &[], "kept");
    assert_eq!(place.hark_fed(&["import"], line.as_bytes()).code, 0);
    let (file, link, pipe) = (place.path("e.jsonl"), place.path("link"), place.path("pipe"));
    assert_eq!(place.hark(&["export", "--output", &file]).code, 0);
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert!(Program::new("mkfifo").arg(&pipe).status().unwrap().success());
    let backup = place.path("backup.hark");
    std::os::unix::fs::symlink(place.path("other.hark"), &backup).unwrap();
    place.hark(&["backup", &place.path("other.hark")]).text();
    for args in [
        &["export", "--output", &link][..],
        &["export", "--output", &pipe],
        &["export", "--output", &place.path("")],
        &["backup", &backup],
    ] {
        let refused = place.hark(args);
        let said = "is a link, a directory or a device";
        assert!(refused.code == 1 && refused.stderr.contains(said), "{args:?}: {refused:?}");
    }
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(std::fs::symlink_metadata(&backup).unwrap().is_symlink());
}

/// A user who may write to the folder could have root empty any file of the machine.
#[test]
fn an_export_by_root_follows_no_link_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make the link of another user");
    }
    let place = Place::new("export-link");
    let line = event_line(1, 1_700_000_000, 1, &[], "kept");
    assert_eq!(place.hark_fed(&["import"], line.as_bytes()).code, 0);
    let other = place.file("other", b"of the machine");
    let (path, unfinished) = (place.path("e.jsonl"), place.path("e.jsonl.unfinished"));
    std::os::unix::fs::symlink(&other, &unfinished).unwrap();
    std::os::unix::fs::lchown(&unfinished, Some(65_534), Some(65_534)).unwrap();
    let refused = place.hark(&["export", "--output", &path]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert_eq!(std::fs::read(&other).unwrap(), b"of the machine");
}
