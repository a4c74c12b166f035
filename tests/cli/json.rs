//! Results of commands as JSON objects for programs. The exit codes equal those of the same
//! commands without `--json`.

use hark_testkit::server::free_address;
use serde_json::{Value, json};

use super::support::{Place, hark, wait_for_health};

/// The texts of a list.
fn texts(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    list.iter().map(|text| text.as_str().unwrap()).collect()
}

#[test]
fn a_reload_lists_the_changes_or_the_faults() {
    let place = Place::new("json-reload");
    let file = place.file("hark.toml", b"[info]\nname = \"one\"\n");
    let server = place.serve_with(&["--config", &file]);
    let text = "[info]\nname = \"two\"\ndescription = \"a line\\nand another\"\n\
                [server]\nread_threads = 3\n";
    place.file("hark.toml", text.as_bytes());
    let read = place.hark(&["reload", "--json"]).json();
    assert_eq!((&read["in_force"], &read["faults"]), (&json!(true), &json!([])), "{read}");
    let changes = texts(&read["changes"]);
    let has = |said: &str| changes.iter().any(|change| change.starts_with(said));
    for said in [
        "now info.name = \"two\"",
        "now info.description = ",
        "server.read_threads = 3 takes effect after a restart",
    ] {
        assert!(has(said), "{said}: {read}");
    }
    // A value of several lines is one change.
    assert_eq!(changes.len(), 3, "{read}");
    let read = place.hark(&["reload", "--json"]).json();
    assert_eq!(read, json!({ "in_force": true, "changes": [], "faults": [] }));
    place.file("hark.toml", b"[info]\nnaem = \"x\"\n[limits]\nlimit_max = \"many\"\n");
    let run = place.hark(&["reload", "--json"]);
    let read = run.json_of_any();
    assert_eq!((run.code, &read["in_force"], &read["changes"]), (1, &json!(false), &json!([])));
    let faults = texts(&read["faults"]);
    assert_eq!(faults.len(), 2, "{read}");
    assert!(faults[0].contains("hark.toml:2: unknown setting `naem`"), "{read}");
    assert!(faults[1].contains("hark.toml:4: `limit_max` must be"), "{read}");
    assert_eq!(server.terminate().0, 0);
    // Without a server there is no result.
    let run = place.hark(&["reload", "--json"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
    assert!(run.stderr.contains("no server answers"), "{run:?}");
}

#[test]
fn the_health_is_an_object_even_if_no_server_answers() {
    let place = Place::new("json-health");
    let settings = |mirror: &str| {
        let text = format!("[info]\nurl = \"wss://relay.example\"\n{mirror}");
        place.file("hark.toml", text.as_bytes())
    };
    let asked = |at: &str| hark(&["healthz", "--json", "--at", at]);
    let server = place.serve_with(&["--config", &settings("")]);
    let at = server.address.clone();
    let found = asked(&at).json();
    assert_eq!(found, json!({ "at": at, "healthy": true, "status": 200, "lines": [] }));
    assert_eq!(server.terminate().0, 0);
    // Nothing listens on port 1.
    let mirror = "[mirror]\nstore = \"postgres://me@127.0.0.1:1/none\"\nstuck_after_s = 1\n";
    let server = place.serve_with(&["--config", &settings(mirror)]);
    wait_for_health(&server.address, 503);
    let run = asked(&server.address);
    let found = run.json_of_any();
    assert_eq!((run.code, &found["healthy"], &found["status"]), (1, &json!(false), &json!(503)));
    let words = "nostr: the mirror has made no progress";
    assert!(texts(&found["lines"])[0].starts_with(words), "{found}");
    assert_eq!(server.terminate().0, 0);
    let free = free_address();
    let run = asked(&free);
    let found = run.json_of_any();
    assert_eq!((run.code, run.stderr.as_str()), (1, ""), "{run:?}");
    assert_eq!((&found["healthy"], &found["status"]), (&json!(false), &Value::Null), "{found}");
    let said = format!("the server at {free} does not answer /healthz: ");
    assert!(texts(&found["lines"])[0].starts_with(&said), "{found}");
}

#[test]
fn the_check_of_a_configuration_lists_its_faults() {
    let place = Place::new("json-config");
    let check = |file: &str| hark(&["config", "--check", file, "--json"]);
    let file = place.file("hark.toml", b"[info]\nname = \"one\"\n");
    assert_eq!(check(&file).json(), json!({ "file": file, "faults": [], "notes": [] }));
    let unused =
        "[archive]\nstore = \"postgres://me@host/base\"\n[retention]\nfree_bytes_min = 5\n";
    place.file("hark.toml", unused.as_bytes());
    let checked = check(&file).json();
    let notes = texts(&checked["notes"]);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("[retention] `free_bytes_min` has no effect"), "{notes:?}");
    let run = hark(&["config", "--check", &file]);
    assert!(run.stdout.contains("is fine") && run.stdout.contains(notes[0]), "{run:?}");
    place.file("hark.toml", b"[info]\nnaem = \"x\"\n[limits]\nlimit_max = 10\n");
    let run = check(&file);
    let found = run.json_of_any();
    assert_eq!((run.code, run.stderr.as_str(), &found["file"]), (2, "", &json!(file)));
    let faults = texts(&found["faults"]);
    assert_eq!(faults.len(), 2, "{found}");
    assert!(faults[0].starts_with(&format!("{file}:2: unknown setting `naem`")), "{found}");
    assert!(faults[1].contains("[limits] `limit_default` (500) is above `limit_max`"), "{found}");
    let run = check("no-such.toml");
    let found = run.json_of_any();
    assert_eq!((run.code, texts(&found["faults"]).len()), (2, 1), "{found}");
    assert!(texts(&found["faults"])[0].starts_with("no-such.toml could not be read"), "{found}");
    for args in [&["config", "--json"][..], &["config", "--show", "--json"]] {
        assert_eq!(hark(args).code, 2, "{args:?}");
    }
}

#[test]
fn the_check_of_a_file_of_streams_lists_the_streams_or_the_fault() {
    let place = Place::new("json-router");
    let check = |file: &str| place.hark(&["router", file, "--check", "--json"]);
    let text = "[streams.a]\ndir = \"both\"\nurls = [\"wss://one.example\", \"wss://two.example\"]\n\
                filter = { kinds = [0, 1] }\n[streams.b]\nurls = [\"wss://one.example\"]\n";
    let file = place.file("router.toml", text.as_bytes());
    let found = check(&file).json();
    assert_eq!((&found["file"], &found["faults"]), (&json!(file), &json!([])), "{found}");
    let streams = found["streams"].as_array().unwrap();
    let named: Vec<_> = streams.iter().map(|stream| (&stream["name"], &stream["dir"])).collect();
    let (a, b, both, down) = (json!("a"), json!("b"), json!("both"), json!("down"));
    assert_eq!(named, [(&a, &both), (&a, &both), (&b, &down)], "{found}");
    assert!(streams[1]["url"].as_str().unwrap().starts_with("wss://two.example"), "{found}");
    assert_eq!(streams[0]["filter"], json!({ "kinds": [0, 1] }));
    // The exit code distinguishes a faulty file from a file that cannot be read.
    let faulty = place.file("faulty.toml", b"[streams.a]\nurls = [\"wss://a.example\"]\ndri = 1\n");
    for (file, code, said) in
        [(faulty, 2, "unknown field `dri`"), (place.path("none.toml"), 1, "could not be read")]
    {
        let run = check(&file);
        let found = run.json_of_any();
        assert_eq!((run.code, run.stderr.as_str()), (code, ""), "{run:?}");
        assert_eq!((&found["file"], &found["streams"]), (&json!(file), &json!([])), "{found}");
        let faults = texts(&found["faults"]);
        assert!(faults.len() == 1 && faults[0].contains(said), "{found}");
    }
    assert_eq!(place.hark(&["router", &file, "--json"]).code, 2);
}
