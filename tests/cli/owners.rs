//! When root runs commands on the archive of another user's service, the service still owns its
//! files.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use hark_testkit::program::Finished;

use super::support::{Place, command, field, hark, notes};

/// The user and the group of the service: `nobody` and `nogroup`.
const OTHER: u32 = 65_534;

/// Starts the server as the other user, checks that the server is ready, and ends the server.
fn serve_as_other(place: &Place) {
    let data = place.data();
    let mut command = command(&["--data", data.to_str().unwrap(), "serve"]);
    let command = command.args(["--listen", "127.0.0.1:0"]).as_user(OTHER);
    let mut child = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    child.signal("TERM");
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

/// Runs a command on the archive as the other user.
fn as_other(place: &Place, args: &[&str]) -> Finished {
    let data = place.data();
    let mut command = command(&["--data", data.to_str().unwrap()]);
    let output = command.args(args).as_user(OTHER).output().unwrap();
    Finished {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn who_may_not_open_an_archive_is_told_whose_it_is() {
    if !rustix::process::geteuid().is_root() {
        return println!("passed over: only root can run commands as another user");
    }
    let place = Place::new("owners-denied");
    place.hark_fed(&["import", "--trusted"], notes(30).as_bytes()).text();
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let to = place.path("backup");
    std::fs::create_dir(&to).unwrap();
    chown(&to, Some(OTHER), Some(OTHER)).unwrap();
    // Other users may not open the folder of the archive in the first round, and the folder of the
    // shelf in the second.
    for mode in [0o700, 0o755] {
        std::fs::set_permissions(place.data(), Permissions::from_mode(mode)).unwrap();
        for args in [
            &["count", "{}"][..],
            &["import", "-"],
            &["delete", "{}", "--yes"],
            &["check"],
            &["rebuild"],
            &["backup", &to],
            &serve,
        ] {
            let run = as_other(&place, args);
            assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{args:?} {mode:o}: {run:?}");
            for said in ["belongs to root (0)", "(65534) may not open it", "sudo hark"] {
                assert!(run.stderr.contains(said), "{args:?} {mode:o} {said}: {run:?}");
            }
            for wrong in ["hark check", "hark rebuild", "no archive", "damage"] {
                assert!(!run.stderr.contains(wrong), "{args:?} {mode:o} {wrong}: {run:?}");
            }
        }
    }
}

#[test]
fn what_root_makes_of_a_services_archive_is_the_services() {
    if !rustix::process::geteuid().is_root() {
        return println!("passed over: only root can give files away");
    }
    let place = Place::new("owners-made");
    let data = place.data();
    std::fs::create_dir(&data).unwrap();
    chown(&data, Some(OTHER), Some(OTHER)).unwrap();
    place.hark_fed(&["import", "--trusted"], notes(300).as_bytes()).text();
    let backup = place.path("backup");
    std::fs::create_dir(&backup).unwrap();
    chown(&backup, Some(OTHER), Some(OTHER)).unwrap();
    place.hark(&["backup", &backup]).text();
    let from = data.to_str().unwrap();
    for (name, command) in [
        ("salvaged", &["salvage", "--from", from, "--to", "NEW"][..]),
        ("copied", &["copy", "--from", from, "--to", "NEW"]),
        ("restored", &["--data", "NEW", "restore", &backup]),
    ] {
        // The parent directory belongs to root, and so does an existing directory.
        for is_there in [false, true] {
            let new = Place::new(&format!("owners-{name}"));
            if is_there {
                std::fs::create_dir(new.data()).unwrap();
            }
            let path = new.data().to_str().unwrap().to_owned();
            let args: Vec<&str> =
                command.iter().map(|arg| if *arg == "NEW" { &path } else { *arg }).collect();
            let run = hark(&args);
            assert_eq!(run.code, 0, "{run:?}");
            if is_there {
                let said = format!("if the server runs as that user: chown -R nobody: {path}");
                assert!(run.stderr.contains(&said), "{name}: {run:?}");
                continue;
            }
            let mut found = Vec::new();
            of_others(new.data().parent().unwrap(), &mut found);
            assert!(found.is_empty(), "{name}: {found:?}");
            assert!(run.stderr.contains("belongs to nobody (65534)"), "{name}: {run:?}");
            serve_as_other(&new);
            assert_eq!(new.hark(&["count", "{}"]).text().trim(), "300", "{name}");
        }
    }
}
