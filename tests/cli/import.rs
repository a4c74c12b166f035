//! Imports and exports: every form of input, every reason for a refusal, and exports with the bytes
//! of the import.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;

use hark_testkit::nostr::event_line;
use hark_testkit::program::Finished;
use hark_testkit::skipped::skip;
use hark_testkit::wait::PATIENCE;
use serde_json::{Value, json};

use super::support::{Place, field, notes};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

fn by_id(lines: &str) -> BTreeMap<String, Value> {
    lines.lines().map(|line| (field(line, "id"), serde_json::from_str(line).unwrap())).collect()
}

fn stored(run: &Finished) -> u64 {
    run.json()["stored"].as_u64().unwrap()
}

#[test]
fn every_form_of_input_comes_out_the_same() {
    let notes = notes(2000);
    let zst = zstd::encode_all(notes.as_bytes(), 1).unwrap();
    let mut exports = Vec::new();
    for (name, bytes) in
        [("plain", notes.clone().into_bytes()), ("gz", gzip(notes.as_bytes())), ("zst", zst)]
    {
        let place = Place::new(&format!("forms-{name}"));
        let file = place.file("events", &bytes);
        assert_eq!(stored(&place.hark(&["import", "--json", &file])), 2000, "{name}");
        exports.push(place.hark(&["export"]).text());
        let piped = Place::new(&format!("forms-piped-{name}"));
        assert_eq!(stored(&piped.hark_fed(&["import", "--json"], &bytes)), 2000, "{name}, piped");
        exports.push(piped.hark(&["export"]).text());
    }
    assert_eq!(by_id(&exports[0]), by_id(&notes));
    assert!(exports.iter().all(|export| *export == exports[0]));
    let times: Vec<(u64, String)> = exports[0]
        .lines()
        .map(|line| {
            let event: Value = serde_json::from_str(line).unwrap();
            (event["created_at"].as_u64().unwrap(), event["id"].as_str().unwrap().into())
        })
        .collect();
    assert!(times.is_sorted(), "an export is oldest first, ids ascending where times are equal");
}

#[test]
fn an_export_imported_and_exported_again_has_the_same_bytes() {
    let place = Place::new("again");
    let profile = |at| event_line(7, at, 0, &[], &format!("{{\"name\":\"at {at}\"}}"));
    let article = |d, at| event_line(7, at, 30_023, &[&["d", d]], "text");
    let kept = event_line(7, 50, 1, &[], "to be deleted");
    let deletion = event_line(7, 60, 5, &[&["e", &field(&kept, "id")]], "");
    let lines = [
        notes(500),
        profile(10),
        profile(30),
        profile(20),
        article("a", 5),
        article("b", 6),
        article("a", 9),
        kept,
        deletion,
    ];
    place.hark_fed(&["import"], lines.concat().as_bytes()).text();
    let first = place.hark(&["export"]).text();
    assert_eq!(first.lines().count(), 500 + 1 + 2 + 1);
    for name in ["out.jsonl", "out.jsonl.gz", "out.jsonl.zst"] {
        let file = place.path(name);
        place.hark(&["export", "--output", &file]).text();
        let fresh = Place::new(&format!("again-{name}"));
        fresh.hark(&["import", &file]).text();
        assert_eq!(fresh.hark(&["export"]).text(), first, "{name}");
    }
    let newest = place.hark(&["export", "--newest-first"]).text();
    assert_eq!(by_id(&newest), by_id(&first));
    let fresh = Place::new("again-newest");
    fresh.hark_fed(&["import"], newest.as_bytes()).text();
    assert_eq!(fresh.hark(&["export"]).text(), first);
    let check = place.hark(&["check", "--json"]).json();
    assert_eq!(check["faults"], serde_json::json!([]));
}

#[test]
fn every_refusal_is_counted_by_its_reason() {
    let place = Place::new("refusals");
    let note = event_line(1, 100, 1, &[], "a note");
    let bad_id = event_line(1, 101, 1, &[], "said").replace("said", "Said");
    let bad_signature = {
        let good = event_line(1, 102, 1, &[], "signed");
        let signature = field(&good, "sig");
        let flipped = if signature.starts_with('0') { "1" } else { "0" };
        good.replace(&signature, &format!("{flipped}{}", &signature[1..]))
    };
    let doomed = event_line(1, 103, 1, &[], "doomed");
    let lines = [
        note.clone(),
        "\n".into(),
        note,
        "{not json\n".into(),
        bad_id,
        bad_signature,
        event_line(1, 104, 1, &[], &"x".repeat(1200 << 10)),
        event_line(1, 105, 20_001, &[], "for a moment"),
        event_line(1, 106, 1, &[&["expiration", "1000"]], "long gone"),
        event_line(1, 108, 0, &[], "the newer profile"),
        event_line(1, 107, 0, &[], "the older profile"),
        event_line(1, 109, 5, &[&["e", &field(&doomed, "id")]], "the deletion comes first"),
        doomed,
        event_line(2, 200, 62, &[&["relay", "ALL_RELAYS"]], "let me vanish"),
        event_line(2, 199, 1, &[], "of one who vanished"),
        event_line(2, 201, 1, &[], "of one who came back"),
    ];
    let report = place.hark_fed(&["import", "--json"], lines.concat().as_bytes()).json();
    let refused = &report["refused"];
    for (reason, line) in [
        ("duplicate", 3),
        ("malformed", 4),
        ("bad_id", 5),
        ("bad_signature", 6),
        ("too_large", 7),
        ("ephemeral", 8),
        ("expired", 9),
        ("superseded", 11),
        ("deleted", 13),
        ("vanished", 15),
    ] {
        assert_eq!(refused[reason], 1, "{reason}: {report}");
        assert_eq!(report["first"][reason]["line"], line, "{reason}: {report}");
    }
    assert_eq!((&report["stored"], &report["events"]), (&5.into(), &15.into()));
    let again = place.hark_fed(&["import"], lines.concat().as_bytes()).text();
    assert!(again.contains("duplicate      6"), "{again}");
    assert!(again.contains("not signed by its author; first at -:6"), "{again}");
}

#[test]
fn a_second_run_knows_what_the_first_has_stored() {
    let place = Place::new("resume");
    let notes = notes(300);
    let (half, _) = notes.split_at(notes.match_indices('\n').nth(149).unwrap().0 + 1);
    assert_eq!(stored(&place.hark_fed(&["import", "--json"], half.as_bytes())), 150);
    let report = place.hark_fed(&["import", "--json"], notes.as_bytes()).json();
    assert_eq!((&report["stored"], &report["refused"]["duplicate"]), (&150.into(), &150.into()));
}

#[test]
fn trusted_takes_what_is_not_signed_and_says_so() {
    let place = Place::new("trusted");
    let forged = event_line(1, 100, 1, &[], "mine").replace("mine", "your");
    assert_eq!(stored(&place.hark_fed(&["import", "--json"], forged.as_bytes())), 0);
    let run = place.hark_fed(&["import", "--trusted"], forged.as_bytes());
    assert!(run.stderr.contains("not checked") && run.stdout.contains("NOT checked"), "{run:?}");
    assert_eq!(place.hark(&["count", "{}"]).text(), "1\n");
}

#[test]
fn an_interrupt_ends_a_pipe_after_what_came() {
    let place = Place::new("interrupt");
    let mut child = place.start(&["import", "--json"]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(notes(10).as_bytes()).unwrap();
    // Events from a paused pipe are stored without waiting for more input.
    child.until("all are stored", || place.hark(&["count", "{}"]).stdout == "10\n");
    child.signal("INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["stored"], &report["complete"]), (&10.into(), &false.into()));
    drop(input);
}

#[test]
fn an_end_is_asked_for_once_also_where_a_pipe_has_said_nothing_yet() {
    let place = Place::new("silent");
    let mut child = place.start(&["import", "--json"]);
    let input = child.stdin.take().unwrap();
    let status = format!("/proc/{}/status", child.id());
    child.until("it listens for SIGTERM", || {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        caught.is_some_and(|mask| mask & (1 << 14) != 0)
    });
    child.signal("TERM");
    let ended = child.wait_for_end(PATIENCE);
    drop(input);
    let status = ended.expect("it waits for its silent input");
    assert_eq!(status.code(), Some(130));
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let place = Place::new("pipe");
    place.hark_fed(&["import"], notes(2000).as_bytes()).text();
    for command in [&["export"][..], &["query", "{}"]] {
        let mut child = place.start(command);
        let mut first = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{command:?}");
    }
}

#[test]
fn questions_are_answered_in_order_each_event_once() {
    let place = Place::new("questions");
    let all = notes(100);
    place.hark_fed(&["import"], all.as_bytes()).text();
    let newest = place.hark(&["query", "{\"limit\":7}"]).text();
    let expected: String =
        place.hark(&["export", "--newest-first"]).text().split_inclusive('\n').take(7).collect();
    assert_eq!(newest, expected);
    let filters = ["{\"#t\":[\"nostr\"]}", "{\"kinds\":[1],\"since\":1700000020}"];
    let either = place.hark(&[&["query"], &filters[..]].concat()).text();
    let count = all
        .lines()
        .filter(|line| {
            line.contains("\"nostr\"") || {
                let event: Value = serde_json::from_str(line).unwrap();
                event["created_at"].as_u64().unwrap() >= 1_700_000_020
            }
        })
        .count();
    assert_eq!(either.lines().count(), count);
    assert_eq!(place.hark(&[&["count"], &filters[..]].concat()).text(), format!("{count}\n"));
    assert_eq!(place.hark(&["count", "--json", "{}"]).json()["count"], 100);
    assert_eq!(place.hark(&["count", "{\"ids\":[]}"]).text(), "0\n");
    let window = ["export", "--since", "1700000010", "--until", "1700000019"];
    assert_eq!(place.hark(&window).text().lines().count(), 30);
    let explained = place.hark(&["explain", "--run", "--json", filters[0]]).json();
    assert_eq!(explained["run"]["events"], 25);
    assert!(place.hark(&["explain", filters[0]]).text().contains("plan: "));
    assert_eq!(place.hark(&["stats", "--json"]).json()["records"], 100);
}

#[test]
fn a_delete_says_first_what_it_would_do() {
    let place = Place::new("delete");
    place.hark_fed(&["import"], notes(1200).as_bytes()).text();
    let filter = "{\"#t\":[\"bread\",\"nostr\"]}";
    let dry = place.hark(&["delete", filter]).text();
    assert!(
        dry.contains("600 events match; nothing was deleted") && dry.contains("--yes"),
        "{dry}"
    );
    assert_eq!(place.hark(&["count", "{}"]).text(), "1200\n");
    let limited = [r##"{"#t":["bread"],"limit":2}"##, "--json"];
    for (yes, deleted) in [(&[][..], 0), (&["--yes"], 2), (&["--yes"], 2)] {
        let report = place.hark(&[&["delete"], &limited[..], yes].concat()).json();
        assert_eq!((&report["matching"], &report["deleted"]), (&2.into(), &deleted.into()));
    }
    place.hark_fed(&["import"], notes(1200).as_bytes()).text();
    assert_eq!(place.hark(&["delete", "--yes", filter]).text(), "600 events deleted\n");
    assert_eq!(place.hark(&["count", "{}"]).text(), "600\n");
    assert_eq!(place.hark(&["delete", "--yes", "--json", filter]).json()["deleted"], 0);
    place.hark(&["compact"]).text();
    place.hark(&["rebuild"]).text();
    assert_eq!(place.hark(&["count", "{}"]).text(), "600\n");
    assert_eq!(place.hark(&["check", "--json"]).json()["faults"], serde_json::json!([]));
}

#[test]
fn one_record_is_not_called_several() {
    let place = Place::new("singular");
    let file = place.path("one.jsonl");
    let imported = place.hark_fed(&["import"], notes(1).as_bytes()).text();
    let exported = place.hark(&["export", "--output", &file]).stderr;
    let explained = place.hark(&["explain", "--run", "{}"]).text();
    let (data, new) = (place.data(), place.path("new"));
    let salvage = ["salvage", "--from", data.to_str().unwrap(), "--to", &new];
    let said = [
        (imported, "1 event read and checked in"),
        (exported, "1 event written to"),
        (explained, "run: 1 event, 1 row visited"),
        (place.hark(&["check"]).text(), "1 event, 0 deleted, 0 segments, 1 log: no faults"),
        (place.hark(&salvage).text(), "nostr: 1 event brought over; had been deleted: 0"),
        (place.hark(&["delete", "{}"]).text(), "1 event matches; nothing was deleted"),
        (place.hark(&["delete", "{}", "--yes"]).text(), "1 event deleted\n"),
        (place.hark(&["delete", "{}"]).text(), "0 events match; nothing was deleted"),
    ];
    for (text, said) in said {
        assert!(text.contains(said), "{said}: {text}");
    }
}

/// Real events, if the file exists: every event with a valid id and signature is stored, and the
/// export equals the import.
#[test]
fn real_events_come_out_as_they_went_in() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/real-events.jsonl");
    let Ok(text) = std::fs::read_to_string(&file) else {
        skip(format_args!("there is no {}", file.display()));
        return;
    };
    let place = Place::new("real");
    let report = place.hark(&["import", "--json", file.to_str().unwrap()]).json();
    let export = place.hark(&["export"]).text();
    let refused: u64 =
        report["refused"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    let superseded = report["refused"]["superseded"].as_u64().unwrap();
    // Later versions may also replace earlier stored versions.
    assert_eq!(refused, superseded, "{report}");
    let (sent, kept) = (by_id(&text), by_id(&export));
    for (id, event) in &kept {
        assert_eq!(event, &sent[id]);
    }
    let version = |event: &Value| {
        let kind = event["kind"].as_u64().unwrap();
        let replaceable = matches!(kind, 0 | 3 | 10_000..20_000);
        replaceable.then(|| (kind, event["pubkey"].as_str().unwrap().to_owned()))
    };
    let slots: std::collections::BTreeSet<_> = sent.values().filter_map(version).collect();
    let regular = sent.values().filter(|event| version(event).is_none()).count();
    assert_eq!(kept.len(), slots.len() + regular);
    let fresh = Place::new("real-again");
    fresh.hark_fed(&["import"], export.as_bytes()).text();
    assert!(fresh.hark(&["export"]).text() == export, "the second export has other bytes");
    for place in [place, fresh] {
        assert_eq!(place.hark(&["check", "--json"]).json()["faults"], serde_json::json!([]));
    }
}

#[test]
fn records_come_in_arrays_and_messages_and_behind_a_byte_order_mark() {
    let notes = notes(300);
    let lines: Vec<&str> = notes.lines().collect();
    let messages = |before: &str, behind: &str| {
        let message = |line: &&str| [before, line, behind, "\n"].concat();
        lines.iter().map(message).collect::<Vec<_>>().concat()
    };
    let pretty: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let each = |value: &Value| serde_json::to_string_pretty(value).unwrap() + "\n";
    let wrapped = json!({ "relay": "wss://a", "result": { "events": &pretty, "more": false } });
    let page = |lines: &[&str]| format!("{{\"events\":[{}],\"next\":\"[{{\"}}\n", lines.join(","));
    for (name, text) in [
        ("array", format!("[{}]", lines.join(","))),
        ("pretty", serde_json::to_string_pretty(&pretty).unwrap()),
        ("messages", messages("[\"EVENT\",\"a \\\"sub\",", "]")),
        ("published", messages("[\"EVENT\", ", " ]")),
        ("message-array", format!("[{}]", messages("[\"EVENT\",", "],").trim_end_matches(",\n"))),
        ("objects", pretty.iter().map(each).collect()),
        ("wrapped", wrapped.to_string()),
        ("wrapped-pretty", each(&wrapped)),
        ("pages", lines.chunks(70).map(page).collect()),
        ("mark", format!("\u{feff}{notes}")),
        ("mark-array", format!("\u{feff}[\n{}\n]\n", lines.join(",\n"))),
    ] {
        let place = Place::new(&format!("json-{name}"));
        let file = place.file("events", &gzip(text.as_bytes()));
        assert_eq!(stored(&place.hark(&["import", "--json", &file])), 300, "{name}");
        assert_eq!(by_id(&place.hark(&["export"]).text()), by_id(&notes), "{name}");
    }
}

#[test]
fn a_refusal_names_the_line_whatever_the_form() {
    let lines = notes(5);
    let lines: Vec<&str> = lines.lines().collect();
    let pretty: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut pretty = serde_json::to_string_pretty(&json!({ "events": pretty })).unwrap();
    let id = field(lines[3], "id");
    pretty = pretty.replace(&id, &id.replace(|_| true, "0"));
    // The object begins at least one line before its id.
    let begin = pretty[..pretty.find("\"00000000").unwrap()].rfind("    {").unwrap();
    let expected = pretty[..begin].matches('\n').count() as u64 + 1;
    let bad = lines[3].replace("note", "Note");
    let one_line = format!("[{},{bad}]", lines[..3].join(","));
    let several = format!("[{},\n\n{bad}]\n", lines[..3].join(",\n"));
    let place = Place::new("refusal-line");
    for (text, line, total) in [
        (pretty.as_str(), expected, pretty.matches('\n').count() as u64 + 1),
        (&one_line, 1, 1),
        (&several, 5, 5),
    ] {
        let report = place.hark_fed(&["import", "--json"], text.as_bytes()).json();
        assert_eq!(report["first"]["bad_id"]["line"], line, "{text}: {report}");
        assert_eq!(report["lines"], total, "{text}: {report}");
    }
    // A truncated line does not spoil the next line.
    let cut = format!("{}\n{}\n{}\n", &lines[0][..lines[0].len() - 40], lines[1], lines[2]);
    let fresh = Place::new("refusal-cut");
    let report = fresh.hark_fed(&["import", "--json"], cut.as_bytes()).json();
    assert_eq!((&report["stored"], &report["refused"]["malformed"]), (&2.into(), &1.into()));
    assert_eq!(report["first"]["malformed"]["line"], 1, "{report}");
}

#[test]
fn records_of_every_network_come_in_every_form() {
    let message = |n: u64| {
        json!({
            "message": {
                "payload": "aGFyaw==", "contentTopic": "/a/1/b/proto",
                "timestamp": 1_700_000_000_000_000_000_u64 + n,
            },
            "pubsubTopic": "/waku/2/rs/1/0",
        })
    };
    let envelope = |n: u64| json!({ "expiry": 1_700_000_050, "ttl": 50, "topic": "0x01020304", "data": "0x17", "nonce": n });
    for network in ["waku", "whisper"] {
        let make: &dyn Fn(u64) -> Value = if network == "waku" { &message } else { &envelope };
        let place = Place::new(&format!("forms-{network}"));
        let source: Vec<String> = (0..9).map(|n| make(n).to_string() + "\n").collect();
        let import = ["import", "--network", network, "--json"];
        assert_eq!(stored(&place.hark_fed(&import, source.concat().as_bytes())), 9, "{network}");
        let export = place.hark(&["export", "--network", network]).text();
        // The lines of an export also have the hash.
        let records: Vec<Value> =
            export.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let page = |key: &str, records: &[Value]| {
            json!({
                "requestId": "r", "statusCode": 200, "statusDesc": "OK", key: records,
                "paginationCursor": "0xab",
            })
        };
        let key = if network == "waku" { "messages" } else { "envelopes" };
        let pages = records.chunks(4).map(|records| page(key, records).to_string() + "\n");
        let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap() + "\n";
        for (name, text) in [
            ("bare", source.concat()),
            ("lines", export.clone()),
            ("array", serde_json::to_string(&records).unwrap()),
            ("pretty-array", pretty(&json!(records))),
            ("objects", records.iter().map(pretty).collect()),
            ("page", page(key, &records).to_string()),
            ("pretty-page", pretty(&page(key, &records))),
            ("pages", pages.collect()),
        ] {
            let fresh = Place::new(&format!("forms-{network}-{name}"));
            assert_eq!(stored(&fresh.hark_fed(&import, text.as_bytes())), 9, "{network} {name}");
            assert_eq!(fresh.hark(&["export", "--network", network]).text(), export, "{name}");
        }
    }
}

#[test]
fn what_holds_no_records_is_said_and_fails() {
    let place = Place::new("foreign");
    for (bytes, said) in [
        (&b"\xfd7zXZ\0 and more"[..], "xz -dc FILE | hark import"),
        (b"BZh91AY&SY", "bzip2 -dc FILE | hark import"),
        (b"PK\x03\x04 and more", "unzip -p FILE"),
        (b"\xff\xfe{\0}\0", "iconv -f UTF-16"),
        (b"SQLite format 3\0", "SQLite"),
        (b"one line\nand another\n", "not one line could be read"),
        (b"[\"EOSE\",\"sub\"]\n", "not one line could be read"),
    ] {
        let file = place.file("foreign", bytes);
        for run in [place.hark(&["import", &file]), place.hark_fed(&["import"], bytes)] {
            assert!(run.code == 1 && run.stderr.contains(said), "{said}: {run:?}");
        }
    }
    // Empty input is no failure, and neither is a file with at least one valid record.
    for text in [String::new(), "[]".into(), "text\n".to_owned() + &notes(1)] {
        assert_eq!(place.hark_fed(&["import"], text.as_bytes()).code, 0, "{text}");
    }
    assert_eq!(place.hark(&["count", "{}"]).text(), "1\n");
}

#[test]
fn what_holds_no_records_is_counted_in_lines() {
    let place = Place::new("foreign-lines");
    let file = place.file("passwd", b"root:x:0:0::/:/bin/sh\nbin:x:1:1::/:/bin/false\n");
    let run = place.hark(&["import", &file]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.starts_with("2 lines read and checked in "), "{run:?}");
    assert!(run.stderr.contains("not one line could be read as a record"), "{run:?}");
}
