//! Commands that root runs on the archive of another user's service leave the service its files.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use super::support::{Place, command, field, notes, signal};

/// The user and the group of the service: `nobody` and `nogroup`.
const OTHER: u32 = 65_534;

/// Starts the server as the other user, checks that it serves, and ends it.
fn serve_as_other(place: &Place) {
    let data = place.data();
    let mut command = command(&["--data", data.to_str().unwrap(), "serve"]);
    let command = command.args(["--listen", "127.0.0.1:0"]).uid(OTHER).gid(OTHER);
    let mut child = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    signal(&child, "TERM");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(first.starts_with("listening on ") && output.status.success(), "{first} {log}");
}

/// The files below a folder that do not belong to the other user.
fn of_others(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.metadata().unwrap().uid() != OTHER {
            found.push(entry.path().display().to_string());
        }
        if entry.file_type().unwrap().is_dir() {
            of_others(&entry.path(), found);
        }
    }
}

#[test]
fn what_root_does_locks_no_service_out() {
    if !rustix::process::geteuid().is_root() {
        return println!("passed over: only root can start a server as another user");
    }
    let place = Place::new("owners");
    let data = place.data();
    std::fs::create_dir(&data).unwrap();
    chown(&data, Some(OTHER), Some(OTHER)).unwrap();
    serve_as_other(&place);
    let events = notes(300);
    let file = place.file("events.jsonl", events.as_bytes());
    place.hark(&["import", "--trusted", &file]).text();
    let first = events.lines().next().unwrap();
    let filter = format!("{{\"ids\":[\"{}\"]}}", field(first, "id"));
    place.hark(&["delete", &filter, "--yes"]).text();
    place.hark(&["compact"]).text();
    place.hark(&["rebuild"]).text();
    let mut found = Vec::new();
    of_others(&data, &mut found);
    assert!(found.is_empty(), "{found:?}");
    serve_as_other(&place);
    assert_eq!(place.hark(&["count", "{}"]).text().trim(), "299");
}
