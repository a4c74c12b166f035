//! Imports and exports on a terminal, which show their progress.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use hark_testkit::program::{Program, assert_no_panic};
use hark_testkit::skipped::skip;

use super::support::{Place, notes};

#[test]
fn an_export_to_a_pipe_shows_on_a_terminal_how_far_it_is() {
    let place = Place::new("export-meter");
    place.hark_fed(&["import", "--trusted"], notes(9_000).as_bytes()).text();
    let file = place.path("out.jsonl");
    let (hark, data) = (env!("CARGO_BIN_EXE_hark"), place.data());
    // Three notes share each second, so the export has the last 6,000 of the 9,000 notes.
    let command =
        format!("{hark} --data {} export --since 1700001000 > {file}", data.to_str().unwrap());
    let run = std::process::Command::new("script")
        .args(["-qefc", &command, "/dev/null"])
        .env("TERM", "xterm")
        .output();
    let Ok(run) = run else { return println!("passed over: there is no `script` here") };
    let shown = String::from_utf8_lossy(&run.stdout);
    let count = std::fs::read_to_string(&file).unwrap().lines().count();
    assert!(run.status.success() && count == 6_000, "{count} {shown}");
    assert_no_panic(&shown);
    assert!(shown.contains("4,096/6,000"), "{shown}");
}

#[test]
fn an_import_from_a_terminal_says_that_it_reads_there() {
    let place = Place::new("terminal");
    let hark =
        format!("{} --data {} import", env!("CARGO_BIN_EXE_hark"), place.data().to_str().unwrap());
    // script(1) gives the command a terminal, and passes its own input on as key presses.
    let child = std::process::Command::new("script")
        .args(["-qefc", &hark, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut child) = child else { return println!("passed over: there is no `script` here") };
    let mut keys = child.stdin.take().unwrap();
    let mut shown = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("reading from the terminal") {
        line.clear();
        assert!(shown.read_line(&mut line).unwrap() > 0, "it ends without a word");
    }
    keys.write_all(b"\x03").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    shown.read_to_string(&mut line).unwrap();
    assert_no_panic(&line);
}

#[test]
fn an_interrupted_import_clears_its_meter_and_ends_with_a_whole_line() {
    let place = Place::new("interrupt-meter");
    let pipe = place.path("events");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // The pipe has no end as long as this file is open.
    let mut pipe = File::options().read(true).write(true).open(&pipe).unwrap();
    pipe.write_all(notes(10).as_bytes()).unwrap();
    let (hark, data) = (env!("CARGO_BIN_EXE_hark"), place.data());
    // The terminal shows only stderr.
    let import = format!("{hark} --data {} import events > report", data.to_str().unwrap());
    let mut script = Program::new("script");
    script.env("TERM", "xterm");
    script.args(["-qefc", &import, "/dev/null"]).current_dir(place.path(""));
    let child =
        script.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn();
    let Ok(mut child) = child else { return skip("there is no `script` here") };
    let mut keys = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut shown = Vec::<u8>::new();
    while !String::from_utf8_lossy(&shown).contains("10 events, ") {
        let mut part = [0; 4096];
        let read = stdout.read(&mut part).unwrap();
        assert!(read > 0, "no meter: {}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&part[..read]);
    }
    keys.write_all(b"\x03").unwrap();
    stdout.read_to_end(&mut shown).unwrap();
    let shown = String::from_utf8_lossy(&shown);
    assert_eq!(child.wait().unwrap().code(), Some(130), "{shown}");
    assert_no_panic(&shown);
    // The meter is cleared before the last message.
    let (_, last) = shown.rsplit_once("\x1b[2K").unwrap_or_else(|| panic!("{shown:?}"));
    let is_whole = last.starts_with("hark: stopped; ") && last.ends_with(" to continue\r\n");
    assert!(is_whole && last.lines().count() == 1, "{shown:?}");
}

#[test]
fn an_interrupted_backup_clears_its_meter_and_tells_the_state_that_it_leaves() {
    let place = Place::new("interrupt-backup");
    // The backup is larger than the buffer of a pipe, so the command waits for a reader.
    place.hark_fed(&["import", "--trusted"], notes(9_000).as_bytes()).text();
    let pipe = place.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Without this file, the shell would wait for a reader before it runs the command.
    let _pipe = File::options().read(true).write(true).open(&pipe).unwrap();
    let (hark, data) = (env!("CARGO_BIN_EXE_hark"), place.data());
    let backup = format!("{hark} --data {} backup - > pipe", data.to_str().unwrap());
    let mut script = Program::new("script");
    script.env("TERM", "xterm");
    script.args(["-qefc", &backup, "/dev/null"]).current_dir(place.path(""));
    let child =
        script.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn();
    let Ok(mut child) = child else { return skip("there is no `script` here") };
    let mut keys = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut shown = Vec::<u8>::new();
    while !String::from_utf8_lossy(&shown).contains("backup ") {
        let mut part = [0; 4096];
        let read = stdout.read(&mut part).unwrap();
        assert!(read > 0, "no meter: {}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&part[..read]);
    }
    keys.write_all(b"\x03").unwrap();
    stdout.read_to_end(&mut shown).unwrap();
    let shown = String::from_utf8_lossy(&shown);
    assert_eq!(child.wait().unwrap().code(), Some(130), "{shown}");
    assert_no_panic(&shown);
    let (_, last) = shown.rsplit_once("\x1b[2K").unwrap_or_else(|| panic!("{shown:?}"));
    assert_eq!(last, "hark: interrupted; the backup on stdout is incomplete\r\n", "{shown:?}");
}
