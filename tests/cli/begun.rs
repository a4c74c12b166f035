//! Archives that a command creates, and files for which no archive is created.

use std::path::Path;

use super::support::{Place, command, notes};

#[test]
fn a_new_archive_is_reported_and_created_without_a_name_only_if_no_service_has_one() {
    let place = Place::new("begun");
    let file = place.file("notes.jsonl", notes(1).as_bytes());
    let created = format!("there was no archive in {}; one is created", place.data().display());
    for is_told in [true, false] {
        let run = place.hark(&["import", &file]);
        assert_eq!((run.code, run.stderr.contains(&created)), (0, is_told), "{run:?}");
    }
    let has_service = Path::new("/var/lib/hark").symlink_metadata().is_ok();
    let (code, said) = if has_service {
        (2, "Name the service's with --data /var/lib/hark")
    } else {
        (0, "there was no archive in data; one is created")
    };
    let mailserver = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/moving/goleveldb");
    for args in [&["import", &file][..], &["adopt", "mailserver", mailserver]] {
        let unnamed = Place::new("begun-unnamed");
        let output = command(args).current_dir(unnamed.path("")).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(said), "{args:?}: {stderr}");
        assert_eq!(unnamed.data().exists(), !has_service, "{args:?}: {stderr}");
    }
}

#[test]
fn files_without_records_create_no_archive() {
    let place = Place::new("begun-nothing");
    let foreign = place.file("passwd", b"root:x:0:0::/:/bin/sh\n");
    let empty = place.file("empty.jsonl", b"");
    for (files, code) in [(vec![&empty], 0), (vec![&foreign], 1), (vec![&empty, &foreign], 1)] {
        let mut args = vec!["import"];
        args.extend(files.iter().map(|file| file.as_str()));
        let run = place.hark(&args);
        assert_eq!(run.code, code, "{run:?}");
        assert!(
            run.stderr.contains("there was nothing to store, so no archive was created"),
            "{run:?}"
        );
        assert!(!place.data().exists(), "{run:?}");
    }
    // The first record creates the archive, and files without records are accepted from then on.
    let file = place.file("notes.jsonl", notes(1).as_bytes());
    let run = place.hark(&["import", &empty, &file]);
    assert!(run.code == 0 && run.stderr.contains("one is created"), "{run:?}");
    let run = place.hark(&["import", &empty]);
    assert!(run.code == 0 && !run.stderr.contains("archive"), "{run:?}");
    assert_eq!(place.hark(&["count", "{}"]).text(), "1\n");
}
