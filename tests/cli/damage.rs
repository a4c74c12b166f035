//! A damaged record: every command and the server report the damage, and return all other records.

use std::fs;
use std::path::PathBuf;

use hark_testkit::clock::now_s;
use hark_testkit::http::{self, get};
use hark_testkit::nostr::event_line;
use hark_testkit::program::Finished;
use hark_testkit::wait::until_ok;
use hark_testkit::websocket::Socket;
use serde_json::json;

use super::support::{Place, command, field, hark, hark_with, notes};

/// Imports notes into an archive of several sealed logs.
pub(super) fn archive(test: &str, count: u64) -> Place {
    let place = Place::new(test);
    let file = place.file("hark.toml", b"[archive]\nseal_records = 1000\n");
    let said = place.hark_fed(&["import", "--config", &file], notes(count).as_bytes());
    assert_eq!(said.code, 0, "{}", said.stderr);
    // A compaction seals the heads that are full but not sealed yet.
    place.hark(&["compact"]).text();
    place
}

/// Changes a byte of the record with this text, and returns the log's path.
pub(super) fn damage(place: &Place, text: &str) -> PathBuf {
    let log = place.data().join("nostr").join("log").join("00000001-0.log");
    let mut bytes = fs::read(&log).unwrap();
    let at = bytes.windows(text.len()).position(|part| part == text.as_bytes()).unwrap();
    bytes[at] ^= 0x20;
    fs::write(&log, bytes).unwrap();
    log
}

fn json_of(failed: &Finished) -> serde_json::Value {
    serde_json::from_str(&failed.stdout).unwrap()
}

/// Asserts that a command failed with a report of one damaged record, and still printed its result.
fn tells(run: &Finished, lines: usize) {
    assert_eq!((run.code, run.stdout.lines().count()), (1, lines), "{run:?}");
    assert!(run.stderr.contains("events could not be read: 1."), "{}", run.stderr);
    assert!(run.stderr.contains("hark salvage"), "{}", run.stderr);
}

#[test]
fn commands_that_meet_a_damaged_record_give_the_others_and_fail() {
    let place = archive("damage-commands", 3_000);
    let whole = place.hark(&["export"]).text();
    let lost = whole.lines().find(|line| line.contains("note 40\\t")).unwrap().to_owned();
    let log = damage(&place, "note 40\\t");
    let export = place.hark(&["export"]);
    tells(&export, 2_999);
    assert!(export.stdout.lines().all(|line| line != lost && whole.contains(line)));
    let file = place.path("all.jsonl");
    tells(&place.hark(&["export", "--output", &file]), 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), export.stdout);
    tells(&place.hark(&["query", "{}"]), 2_999);
    let (id, author) = (field(&lost, "id"), field(&lost, "pubkey"));
    tells(&place.hark(&["query", &format!("{{\"ids\":[\"{id}\"]}}")]), 0);
    let count = place.hark(&["count", "--json", &format!("{{\"ids\":[\"{id}\"]}}")]);
    assert_eq!((count.code, json_of(&count)), (1, json!({ "count": 0, "damaged": 1 })));
    let explained = place.hark(&["explain", "--run", "--json", "{}"]);
    tells(&explained, 1);
    assert_eq!(json_of(&explained)["run"]["damaged"], 1);
    assert_eq!(place.hark(&["explain", "{}"]).code, 0, "nothing is read");
    let dry = place.hark(&["delete", "--json", "{}"]);
    tells(&dry, 1);
    assert_eq!(json_of(&dry), json!({ "matching": 2_999, "deleted": 0, "damaged": 1 }));
    let one = format!("{{\"ids\":[\"{id}\"]}}");
    tells(&place.hark(&["delete", &one]), 1);
    // A query that does not read the record is answered as before.
    let others = place.hark(&["count", "--json", "{\"since\":1700000500}"]);
    assert_eq!(others.json()["damaged"], 0);
    let check = place.hark(&["check"]);
    assert_eq!(check.code, 1, "{check:?}");
    assert!(check.stdout.contains(log.to_str().unwrap()), "{}", check.stdout);
    assert!(check.stdout.starts_with("2,999 events"), "{}", check.stdout);
    // The advice names the whole archive, because a backup cannot restore a single file.
    assert!(check.stdout.contains("restore the archive from a backup"), "{}", check.stdout);
    assert!(check.stderr.contains("hark restore --move-aside"), "{}", check.stderr);
    // A copy with `--delete` keeps the record in a destination that already had the record.
    let copy = Place::new("damage-copy");
    copy.hark_fed(&["import"], whole.as_bytes()).text();
    let (from, to) = (place.data(), copy.data());
    let args = ["copy", "--from", from.to_str().unwrap(), "--to", to.to_str().unwrap()];
    let copied = copy.hark(&[&args[..], &["--delete", "--json"]].concat());
    let said = json_of(&copied);
    assert_eq!(
        (copied.code, &said["damaged"], &said["spared"]),
        (1, &json!(1), &json!(1)),
        "{said}"
    );
    assert!(copied.stderr.contains("nothing was deleted that may be one of them"), "{copied:?}");
    assert_eq!(copy.hark(&["export"]).text(), whole);
    // A deletion leaves the damaged record in place.
    let deleted = place.hark(&["delete", "--yes", &one]);
    tells(&deleted, 1);
    assert_eq!(deleted.stdout, "0 events deleted\n");
    assert!(deleted.stderr.contains("They were not deleted"), "{}", deleted.stderr);
    tells(&place.hark(&["export"]), 2_999);
    // A lost record that is imported again is stored again.
    assert_eq!(place.hark_fed(&["import", "--json"], lost.as_bytes()).json()["stored"], 1);
    assert_eq!(
        place
            .hark(&[
                "query",
                &format!(
                    "{{\"kinds\":[1],\"authors\":[\"{author}\"],\
        \"since\":1700000013,\"until\":1700000013}}"
                )
            ])
            .stdout
            .trim(),
        lost
    );
}

#[test]
fn a_server_that_meets_a_damaged_record_says_so_everywhere() {
    let place = archive("damage-served", 3_000);
    damage(&place, "note 40\\t");
    let mut server = place.serve();
    let mut socket = Socket::connect(&server.address);
    let mut ask = |filter: &str| {
        socket.send_text(format!("[\"REQ\",\"s\",{filter}]"));
        loop {
            let message = socket.json();
            if message[0] != "EVENT" {
                return message;
            }
        }
    };
    let page = |path: &str| get(&server.address, path);
    assert_eq!(ask("{\"since\":1700000500,\"limit\":5000}"), json!(["EOSE", "s", ["finish"]]));
    assert!(page("/healthz").ok().starts_with("ok\n"));
    assert_eq!(ask("{\"limit\":5000,\"kinds\":[1],\"until\":1700000100}"), json!(["EOSE", "s"]));
    socket.send_text("[\"COUNT\",\"c\",{\"#t\":[\"nostr\",\"bread\"],\"until\":1700000100}]");
    assert_eq!(socket.json()[2]["approximate"], json!(true));
    let (status, health) = page("/healthz").parts();
    assert_eq!(status, 503, "{health}");
    assert!(health.contains("damaged events: 1, damaged files: 0; see `hark check`"), "{health}");
    let metrics = page("/metrics").ok();
    assert!(metrics.contains("\nhark_store_damaged_records 1\n"), "{metrics}");
    assert_eq!(place.hark(&["stats", "--json"]).json()["damaged"], 1);
    server.wait_for_log("a record of the archive is damaged");
    let (code, logged) = server.terminate();
    assert_eq!(code, 0);
    assert!(!logged.contains("a record of the archive is damaged"), "told twice: {logged}");
}

/// The value of a metric of the page.
fn metric(page: &str, name: &str) -> f64 {
    http::metric(page, name).unwrap_or_else(|| panic!("no {name}: {page}"))
}

#[test]
fn the_growth_is_noted_and_shown() {
    let place = archive("damage-growth", 3_000);
    let stats = || place.hark(&["stats", "--json"]).json();
    assert_eq!((&stats()["growth"], &stats()["full_in_days"]), (&json!(null), &json!(null)));
    let bytes = stats()["bytes"].as_u64().unwrap();
    let noted_s = now_s() - 2 * 86_400;
    fs::write(place.data().join("growth"), format!("{noted_s} nostr 1000 {}\n", bytes - 200_000))
        .unwrap();
    let server = place.serve();
    let page = until_ok(|| {
        let page = get(&server.address, "/metrics").ok();
        if page.contains("hark_store_growth_records ") { Ok(page) } else { Err(page) }
    });
    // A server may use a little more space than the files had before its start.
    let grown = metric(&page, "hark_store_growth_bytes");
    assert!((90_000.0..10e6).contains(&grown), "{grown}");
    assert!((metric(&page, "hark_store_growth_records") - 1_000.0).abs() < 1.0);
    assert!(metric(&page, "hark_store_full_in_days") > 0.0);
    let growth = &stats()["growth"];
    assert_eq!(growth["records_per_day"], json!(1_000.0), "{growth}");
    assert!(growth["measured_s"].as_u64() >= Some(2 * 86_400), "{growth}");
    let shown = place.hark(&["stats"]).text();
    assert!(shown.contains("and 1,000 events, measured over 2 days"), "{shown}");
    assert!(stats()["full_in_days"].as_f64() > Some(0.0));
    // An archive that fills its disk soon gets an advice.
    let free = stats()["free_bytes"].as_u64().unwrap();
    let lines = [(noted_s, 0), (now_s() - 60, free)];
    let lines = lines.map(|(at_s, bytes)| format!("{at_s} nostr 5 {bytes}\n")).concat();
    fs::write(place.data().join("growth"), lines).unwrap();
    let doctor = place.hark(&["doctor"]).stdout;
    assert!(
        doctor.contains("which fills the disk in 2 days") || doctor.contains("in 1 day;"),
        "{doctor}"
    );
}

#[test]
fn the_slow_check_runs_as_it_is_set_and_metrics_and_stats_tell_of_it() {
    let place = archive("damage-slow-check", 3_000);
    for (days, runs) in [(1, true), (0, false)] {
        let text = format!("[archive]\nscrub_days = {days}\n");
        let file = place.file("hark.toml", text.as_bytes());
        let server = place.serve_with(&["--config", &file]);
        // The check reads the first part immediately.
        let page = until_ok(|| {
            let page = get(&server.address, "/metrics").ok();
            let has_read = metric(&page, "hark_scrub_read_bytes_total") > 0.0;
            if !runs || has_read { Ok(page) } else { Err(page) }
        });
        let stats = place.hark(&["stats", "--json"]).json();
        let scrub = &stats["server"]["scrub"];
        let free = metric(&page, "hark_store_free_bytes");
        assert!(free > 0.0 && stats["free_bytes"].as_u64() > Some(0), "{free} {stats}");
        for (name, figure) in [
            ("hark_scrub_passes_total", "passes"),
            ("hark_scrub_repaired_total", "repaired"),
            ("hark_scrub_last_faults", "last_faults"),
        ] {
            assert_eq!((metric(&page, name), &scrub[figure]), (0.0, &json!(0)), "{name}");
        }
        let share = metric(&page, "hark_scrub_pass_share");
        assert_eq!((share > 0.0, share < 1.0), (runs, true), "{share}");
        assert_eq!(scrub["read_bytes"].as_u64() > Some(0), runs, "{scrub}");
        assert!(scrub["total_bytes"].as_u64() > scrub["pass_bytes"].as_u64(), "{scrub}");
        // No pass has finished.
        assert_eq!(scrub["last_pass_s"], json!(null));
        // The shelf of the bans is empty, so its pass has finished.
        let age = "hark_scrub_last_pass_age_seconds ";
        assert!(!page.lines().any(|line| line.starts_with(age)), "{page}");
        assert!(place.hark(&["stats"]).text().contains("slow check"));
        assert_eq!(server.terminate().0, 0);
    }
}

#[test]
fn an_archive_that_is_refused_is_salvaged_but_for_the_damaged_records() {
    let place = archive("damage-salvage", 2_500);
    // A further batch follows, since damage in the last batch looks like a batch that a crash cut
    // short.
    place.hark_fed(&["import"], event_line(1, 1_800_000_000, 1, &[], "the last").as_bytes()).text();
    let whole = place.hark(&["export"]).text();
    let line = |text: &str| whole.lines().find(|line| line.contains(text)).unwrap();
    // One record in a sealed log, and one in the log being written.
    let logs = place.data().join("nostr").join("log");
    damage(&place, "note 40\\t");
    let last = logs.join("00000003-0.log");
    let mut bytes = fs::read(&last).unwrap();
    let text = b"note 2200\\t";
    let at = bytes.windows(text.len()).position(|part| part == text).unwrap();
    bytes[at] ^= 0x20;
    fs::write(&last, bytes).unwrap();
    for command in [&["serve"][..], &["rebuild"], &["export"], &["compact"]] {
        let refused = place.hark(command);
        assert_eq!(refused.code, 1, "{command:?}: {refused:?}");
        let said = &refused.stderr;
        let (ways, files) = (said.matches("hark salvage").count(), said.matches(".log").count());
        assert_eq!((ways, files), (1, 1), "{command:?}: {said}");
        assert!(!said.contains("Finished it again"), "{said}");
    }
    let checked = place.hark(&["check"]);
    let ways = checked.stderr.matches("hark salvage").count();
    assert_eq!((checked.code, ways), (1, 1), "{checked:?}");
    let name = last.to_str().unwrap();
    let said = checked.stdout.lines().find(|line| line.contains(name)).unwrap();
    let times = (said.matches(".log").count(), said.matches("at byte").count());
    assert_eq!((times, checked.stdout.matches(".log").count()), ((1, 1), 2), "{}", checked.stdout);
    let (from, to) = (place.data(), place.path("new"));
    let args = ["salvage", "--json", "--from", from.to_str().unwrap(), "--to", &to];
    let before = fs::read(&last).unwrap();
    let run = place.hark(&args);
    let said = json_of(&run);
    let shelf = &said["shelves"][0];
    assert_eq!((run.code, &shelf["records"], &shelf["deleted"]), (1, &json!(2_499), &json!(0)));
    let lost = shelf["lost"].as_array().unwrap();
    let id = |text: &str| json!(field(line(text), "id"));
    assert_eq!((lost.len(), &lost[0]["records"]), (2, &json!(1)), "{said}");
    assert_eq!(lost[0]["ids"], json!([id("note 40\\t")]), "{said}");
    assert_eq!(lost[1]["likely_id"], id("note 2200\\t"), "{said}");
    assert_eq!(fs::read(&last).unwrap(), before, "nothing of the source is changed");
    let new = |command: &[&str]| hark(&[&["--data", &to], command].concat());
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let mut expected = lines(&whole);
    expected.retain(|one| one != line("note 40\\t") && one != line("note 2200\\t"));
    assert_eq!(lines(&new(&["export"]).text()), expected);
    assert_eq!(new(&["check", "--json"]).json()["faults"], json!([]));
    let again = place.hark(&args);
    assert!(again.code == 1 && again.stderr.contains("is not empty"), "{again:?}");
}

/// Both requests, to delete and to vanish, have expired.
#[test]
fn deleted_events_and_vanished_authors_stay_away_after_a_salvage() {
    let place = archive("damage-salvage-away", 2_500);
    let past: &[&str] = &["expiration", "1700000100"];
    let gone = [
        event_line(8, 1_700_000_000, 1, &[], "to be deleted"),
        event_line(9, 1_700_000_000, 1, &[], "before vanishing"),
    ];
    let requests = [
        event_line(8, 1_700_000_050, 5, &[&["e", &field(&gone[0], "id")], past], ""),
        event_line(9, 1_700_000_050, 62, &[&["relay", "ALL_RELAYS"], past], ""),
    ];
    for lines in [&gone, &requests] {
        place.hark_fed(&["import"], lines.concat().as_bytes()).text();
    }
    damage(&place, "note 40\\t");
    let (from, to) = (place.data(), place.path("new"));
    let run = place.hark(&["salvage", "--json", "--from", from.to_str().unwrap(), "--to", &to]);
    let said = json_of(&run);
    assert_eq!((run.code, &said["shelves"][0]["records"]), (1, &json!(2_501)), "{said}");
    let new = |command: &[&str], stdin: &str| {
        hark_with(&[&["--data", &to], command].concat(), &[], stdin.as_bytes())
    };
    let report = new(&["import", "--json"], &gone.concat()).json();
    let refused = &report["refused"];
    assert_eq!((&refused["deleted"], &refused["vanished"]), (&json!(1), &json!(1)), "{report}");
    let export = new(&["export"], "").text();
    assert!(!export.contains("to be deleted") && !export.contains("before vanishing"));
    assert_eq!(new(&["count", r#"{"kinds":[5,62]}"#], "").text().trim(), "2");
}

#[test]
fn damage_in_the_last_batch_is_told_by_a_check_and_survived_by_a_salvage() {
    let place = Place::new("last-batch");
    place.hark_fed(&["import"], notes(50).as_bytes()).text();
    damage(&place, "note 40\\t");
    let checked = place.hark(&["check", "--json"]);
    assert!(json_of(&checked)["torn_bytes"].as_u64() > Some(0), "{checked:?}");
    assert!(checked.stderr.contains("before the next start"), "{}", checked.stderr);
    let to = Place::new("last-batch-salvaged");
    let (from, data) = (place.data(), to.data());
    let args = ["salvage", "--from", from.to_str().unwrap(), "--to", data.to_str().unwrap()];
    let salvaged = place.hark(&args);
    assert!(data.is_dir(), "{salvaged:?}");
    assert_eq!(to.hark(&["count", "{}"]).text().trim(), "49");
}

#[test]
fn a_missing_manifest_and_a_damaged_header_are_told_with_the_right_remedy() {
    let place = archive("damage-remedies", 3_500);
    let stored = place.hark(&["count", "{}"]).text();
    let shelf = place.data().join("nostr");
    fs::remove_file(shelf.join("MANIFEST")).unwrap();
    for args in [&["check"][..], &["count", "{}"], &["stats"], &["compact"]] {
        let run = place.hark(args);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("has logs but no MANIFEST"), "{}", run.stderr);
    }
    let rebuilt = place.hark(&["rebuild", "--json"]).json();
    assert_eq!(rebuilt["in_all"].to_string(), stored.trim());
    assert_eq!(place.hark(&["count", "{}"]).text(), stored);

    let log = shelf.join("log").join("00000001-0.log");
    let mut bytes = fs::read(&log).unwrap();
    bytes[3] ^= 0xFF;
    fs::write(&log, bytes).unwrap();
    let run = place.hark(&["compact"]);
    assert!(run.code == 1 && run.stderr.contains("its header is damaged"), "{run:?}");
    assert!(run.stderr.contains("hark salvage") && !run.stderr.contains("hark rebuild"), "{run:?}");
}

#[test]
fn a_salvage_that_is_cut_off_does_not_pass_for_whole_and_is_run_again() {
    let place = archive("damage-salvage-cut", 6_000);
    let whole = place.hark(&["export"]).text();
    let (from, to) = (place.data(), place.path("new"));
    let args = ["salvage", "--from", from.to_str().unwrap(), "--to", &to];
    let under_way = std::path::Path::new(&to).join("salvaging/nostr/MANIFEST");
    let mut cut_off = command(&args).spawn().unwrap();
    cut_off.until("the salvage is under way", || under_way.exists());
    cut_off.kill().unwrap();
    cut_off.wait().unwrap();
    let new = |command: &[&str]| hark(&[&["--data", &to], command].concat());
    let refused = |said: &str| {
        for command in [&["serve"][..], &["check"], &["export"], &["compact"], &["count", "{}"]] {
            let run = new(command);
            assert!(run.code == 1 && run.stderr.contains(said), "{command:?}: {run:?}");
        }
    };
    refused("a salvage into");
    let again = place.hark(&args);
    assert!(again.code == 0 && again.stdout.contains("6,000 events"), "{again:?}");
    assert_eq!(new(&["export"]).text(), whole);
    assert_eq!(new(&["check", "--json"]).json()["faults"], json!([]));
    // A salvage that was cut off at the very end, when all shelves are whole and are being moved
    // into place.
    let made = std::path::Path::new(&to).join("salvaged");
    fs::create_dir(&made).unwrap();
    fs::rename(std::path::Path::new(&to).join("nostr"), made.join("nostr")).unwrap();
    refused("a salvage into");
    let ended = place.hark(&args);
    assert!(ended.code == 1 && ended.stderr.contains("which is whole"), "{ended:?}");
    assert_eq!(new(&["export"]).text(), whole);
}
