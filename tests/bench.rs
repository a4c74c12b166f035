//! `hark bench` against a real server, with small numbers: it counts correctly, reports refusals,
//! and writes readable files. No test measures speed.

use std::process::Stdio;
use std::time::Duration;

use hark_testkit::citus;
use hark_testkit::postgres::Cluster;
use hark_testkit::program::{Finished, Program};
use hark_testkit::server::Server;
use hark_testkit::wait;
use serde_json::Value;

use crate::cli::support::{Place, hark};

pub(crate) fn bench(args: &[&str]) -> Finished {
    hark(&[&["bench"], args].concat())
}

#[test]
fn without_its_program_it_tells_what_to_install() {
    let place = Place::new("bench-alone");
    let alone = place.path("hark");
    std::fs::copy(env!("CARGO_BIN_EXE_hark"), &alone).expect("is copied");
    // `env` runs the command, so the test kit does not require `hark-bench` to be there.
    let run = Program::new("env").args(["PATH=/nowhere", &alone, "bench", "codec"]).output();
    let run = run.expect("runs");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.code() == Some(1) && said.contains("put it there"), "{run:?}");
}

/// Writes a file of `count` events.
pub(crate) fn events(place: &Place, count: &str) -> String {
    let file = place.path("events.jsonl");
    let run = bench(&["gen", &file, "--events", count]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    file
}

pub(crate) fn url(server: &Server) -> String {
    format!("ws://{}", server.address)
}

/// A figure that is a whole number.
fn count(row: &Value, key: &str) -> u64 {
    let figure = row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row}"));
    assert!(figure.fract().abs() < 1e-9, "{key} of {row}");
    figure as u64
}

pub(crate) fn is_positive(row: &Value, key: &str) -> bool {
    row[key].as_f64().is_some_and(|figure| figure > 0.0)
}

/// The only row of a report without faults.
fn row(run: &Finished) -> Value {
    let mut report = run.json();
    assert_eq!(report["faults"], serde_json::json!([]), "{report}");
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(1));
    report["rows"][0].take()
}

#[test]
fn generated_events_are_the_same_from_the_same_seed() {
    let place = Place::new("bench-gen");
    let (one, two) = (place.path("one.jsonl"), place.path("two.jsonl"));
    let said = bench(&["gen", &one, "--events", "700", "--seed", "3"]).text();
    assert!(said.contains("one.jsonl: 700 events, ") && said.contains(", seed 3"), "{said}");
    bench(&["gen", &two, "--events", "700", "--seed", "3"]).text();
    let bytes = std::fs::read(&one).unwrap();
    assert_eq!(bytes.split_inclusive(|byte| *byte == b'\n').count(), 700);
    assert!(bytes == std::fs::read(&two).unwrap(), "two files of a seed differ");
    // All events pass the checks of an import.
    let report = place.hark(&["import", "--json", &one]).json();
    assert_eq!(report["lines"], 700);
    for reason in ["malformed", "too_large", "bad_id", "bad_signature", "duplicate", "expired"] {
        assert_eq!(report["refused"][reason], 0, "{report}");
    }
    // An existing file is not overwritten.
    let again = bench(&["gen", &one, "--events", "10"]);
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
    assert!(bytes == std::fs::read(&one).unwrap());
}

#[test]
fn a_killed_generation_continues_and_gives_the_same_bytes() {
    let place = Place::new("bench-continued");
    for name in ["small.jsonl", "small.jsonl.zst"] {
        let (whole, cut) = (place.path(&format!("whole-{name}")), place.path(name));
        let args = ["--events", "160000", "--unsigned", "--small", "--natural"];
        let said = bench(&[&["gen", &whole][..], &args].concat()).text();
        assert!(said.contains("160,000 events"), "{said}");
        let progress = std::path::PathBuf::from(format!("{cut}.part.progress"));
        let mut program = Program::new(env!("CARGO_BIN_EXE_hark"));
        let run = [&["bench", "gen", &cut][..], &args].concat();
        let mut run = program.args(run).stdout(Stdio::null()).spawn().expect("runs");
        wait::until("a checkpoint or the end", || {
            progress.exists() || run.wait_for_end(Duration::ZERO).is_some()
        });
        if run.wait_for_end(Duration::ZERO).is_none() {
            run.signal("KILL");
            run.wait_for_end(Duration::from_mins(1));
        }
        if !std::path::Path::new(&cut).exists() {
            bench(&[&["gen", &cut][..], &args].concat()).text();
        }
        assert!(std::fs::read(&whole).unwrap() == std::fs::read(&cut).unwrap(), "{name}");
        assert!(!progress.exists());
    }
}

#[test]
fn a_relay_is_loaded_asked_and_listened_to_and_every_figure_adds_up() {
    let place = Place::new("bench-all");
    let file = events(&place, "2500");
    let server = place.serve_with(&["--unlimited"]);
    let (url, pid) = (url(&server), server.id().to_string());
    let target = ["--url", &url, "--pid", &pid, "--json"];
    let measure = |args: &[&str]| bench(&[args, &target].concat());

    let taken = row(&measure(&["ingest", &file, "--connections", "3", "--window", "8"]));
    assert_eq!((count(&taken, "sent"), count(&taken, "refused")), (2_500, 0));
    assert_eq!(count(&taken, "accepted") + count(&taken, "known"), 2_500, "{taken}");
    for key in ["p50_ms", "p95_ms", "p99_ms", "cpu_us", "check_us", "limit_share_percent", "rss_mb"]
    {
        assert!(is_positive(&taken, key), "{key}: {taken}");
    }
    let known = row(&measure(&["ingest", &file, "--duplicates", "--events", "500"]));
    assert_eq!((count(&known, "known"), count(&known, "accepted")), (500, 0));
    let again = measure(&["ingest", &file, "--events", "100"]);
    assert_eq!(again.code, 1, "events that were known are no ingest");
    assert!(again.stdout.contains("known to the relay already"), "{}", again.stdout);

    let (page, json) = (place.path("report.html"), place.path("report.json"));
    let archive = place.data();
    let archive = ["--archive", archive.to_str().unwrap()];
    let run =
        measure(&[&["query", &file, "--seconds", "0.05", "--html", &page], &archive[..]].concat());
    let report = run.json();
    assert_eq!(report["faults"], serde_json::json!([]), "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 22, "{report}");
    let of = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no {name}"))
    };
    let events_of = |name: &str| count(of(name), "events");
    for row in rows {
        for key in ["requests_per_s", "p50_ms", "p99_ms", "cpu_ms", "null_cpu_ms", "null_ratio"]
            .into_iter()
            .chain(["search_cpu_ms", "limit_ratio"])
        {
            assert!(is_positive(row, key), "{key} of {row}");
        }
    }
    assert_eq!([events_of("1 id"), events_of("20 ids"), events_of("latest 100")], [1, 20, 100]);
    assert_eq!([events_of("value matching nothing"), events_of("common #p, rare kind")], [0; 2]);
    // The relay sends private events to clients that are authenticated as their readers.
    assert!(is_positive(of("inbox #p 1059"), "events"));
    assert_eq!(events_of("until, first pages"), events_of("until, last pages"));
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("home, 200 authors, 100") && html.contains("<svg"), "{html}");
    assert!(!html.contains("<script") && !html.contains("http://"));

    std::fs::write(&json, &run.stdout).unwrap();
    let compared = bench(&[
        "query",
        &file,
        "--url",
        &url,
        "--shape",
        "1 id",
        "--shape",
        "latest",
        "--seconds",
        "0.05",
        "--runs",
        "3",
        "--baseline",
        &json,
    ]);
    let table = compared.text();
    assert!(table.contains("ratio") && table.lines().any(|line| line.starts_with("latest 100")));
    let against =
        measure(&["query", &file, "--shape", "id", "--seconds", "0.05", "--against", &url]);
    assert!(is_positive(&against.json()["rows"][0], "p50_ms_ratio"));
}

#[test]
fn every_delivery_is_counted_and_idle_connections_are_weighed() {
    let place = Place::new("bench-fanout");
    let server = place.serve_with(&["--unlimited"]);
    let (url, pid) = (url(&server), server.id().to_string());
    let target = ["--url", &url, "--pid", &pid, "--json"];
    let small =
        ["--subscriptions", "30", "--connections", "4", "--rate", "100", "--seconds", "0.3"];
    for (more, deliveries) in [
        (&["--hold", "300"][..], 900),
        (&["--matches", "10"], 300),
        (&["--ephemeral", "--publishers", "2"], 900),
    ] {
        let report = bench(&[&["fanout"], more, &small[..], &target].concat()).json();
        assert_eq!(report["faults"], serde_json::json!([]), "{report}");
        // The report has a row for the relay, and a row for a relay that only delivers.
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.iter().map(|row| &row["name"]).collect::<Vec<_>>(), ["all", "nothing"]);
        for row_of in rows {
            assert_eq!(count(row_of, "published"), 30, "{more:?}: {row_of}");
            for (key, expected) in
                [("expected", deliveries), ("delivered", deliveries), ("lost", 0)]
            {
                assert_eq!(count(row_of, key), expected, "{key} with {more:?}: {row_of}");
            }
            assert!(row_of["p50_ms"].as_f64() <= row_of["p99_ms"].as_f64());
        }
    }
    for deflate in [&[][..], &["--deflate", "--subscribed"]] {
        let args = [&["idle", "--connections", "40"], deflate, &target].concat();
        let weighed = row(&bench(&args));
        assert_eq!((count(&weighed, "connections"), count(&weighed, "broken")), (40, 0));
        assert!(is_positive(&weighed, "rss_mib"), "{weighed}");
    }
}

#[test]
fn refusals_are_said_and_no_figure_is_made_of_them() {
    let place = Place::new("bench-refused");
    let file = events(&place, "1000");
    let config = place.file(
        "hark.toml",
        b"[rates]\nevents_per_address = [1, 100]\nquestions_per_address = [1, 5]\n",
    );
    let server = place.serve_with(&["--config", &config]);
    let url = url(&server);
    let run = bench(&["ingest", &file, "--url", &url, "--events", "105", "--connections", "1"]);
    assert_eq!(run.code, 1);
    assert!(run.stdout.starts_with("DOUBTFUL: events: refused "), "{}", run.stdout);
    assert!(run.stdout.contains("rate-limited") && run.stdout.contains("--unlimited"));
    let run = bench(&["query", &file, "--url", &url, "--shape", "latest", "--seconds", "0.3"]);
    assert_eq!(run.code, 1);
    assert!(format!("{}{}", run.stdout, run.stderr).contains("rate-limited"), "{}", run.stderr);
}

#[test]
fn the_codec_is_measured_on_the_events_of_a_file() {
    let place = Place::new("bench-codec");
    let file = events(&place, "20");
    let run = bench(&["codec", &file, "--events", "15", "--message", "of the file", "--json"]);
    let report = run.json();
    assert_eq!(report["settings"]["events"], 15, "{report}");
    let rows = report["rows"].as_array().expect("rows");
    for operation in ["parse", "canonical", "id", "verify", "JSON to binary", "binary fields"] {
        let name = format!("events of the file: {operation}");
        let row = rows.iter().find(|row| row["name"] == *name).expect("a row of each operation");
        assert!(is_positive(row, "ns") && is_positive(row, "bytes"), "{row}");
    }
    let none = place.file("none.jsonl", b"\n");
    for (file, said) in [(&none, "has no events"), (&place.path("gone.jsonl"), "hark bench gen")] {
        let run = bench(&["codec", file]);
        assert!(run.code == 1 && run.stderr.contains(said), "{}", run.stderr);
    }
}

#[test]
fn what_cannot_be_measured_is_said_with_what_to_do() {
    let place = Place::new("bench-wrong");
    let file = events(&place, "20");
    let nobody = ["--url", "ws://127.0.0.1:1"];
    let store = place.path("store");
    for (args, code, said) in [
        (&["query", &file, nobody[0], nobody[1]][..], 1, "is the relay running"),
        (&["ingest", "none.jsonl"], 1, "hark bench gen none.jsonl"),
        (&["ingest", &file, "--pid", "4000000000"], 1, "--pid"),
        (&["idle", nobody[0], nobody[1]], 1, "with --pid"),
        (&["query", &file, "--url", "wss://relay.example"], 2, "TLS"),
        (&["query", &file, "--connections", "0"], 2, "at least 1"),
        (&["query", &file, "--cold", "--runs", "2"], 1, "each question is asked once"),
        (&["compare", "none.toml"], 1, "could not be read"),
        (&["compare", &file], 1, "no list of relays"),
        (&["fanout", "--rate", "0"], 2, "above 0"),
        (&["codec", "--message", "none"], 1, "small note"),
        (&["hammer", &file, &store, "--shape", "none"], 1, "  deep until"),
        (&["store", "--url", "http://127.0.0.1:1"], 1, "is the node running"),
        (&["store", "--url", "ws://127.0.0.1"], 2, "begins with http://"),
        (&["store", "--shape", "none"], 1, "  10 hashes"),
        (&["store", "gen", &file], 1, "exists already"),
        (&["cases", "--case", "none"], 1, "  wide, everything, 5 at once"),
        (&["cases", "--servers", "ws://127.0.0.1:1"], 2, "<FILE>"),
        (&["cases", &file, "--servers", nobody[1]], 1, "is the relay running"),
        (&["cases", "--share", "0.01"], 2, "from 0.05"),
        (&["cases", "--setting", "work_mem"], 2, "name=value"),
    ] {
        let run = bench(args);
        assert_eq!(run.code, code, "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains(said), "{args:?}: {}", run.stderr);
    }
}

#[test]
fn nostreams_tables_and_a_store_give_the_same_answers() {
    let place = Place::new("bench-sql");
    let file = events(&place, "6000");
    let cluster = Cluster::shared();
    let server = cluster.url("postgres");
    let store = place.path("store");
    let args = ["--store", &store, "--seconds", "0.1", "--connections", "2", "--json"];
    let sql = ["sql", &file, "--server", &server, "--events", "3000,6000"];
    let report = bench(&[&sql[..], &args].concat()).json();
    assert_eq!(report["faults"], serde_json::json!([]), "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() >= 14, "{report}");
    for row in rows {
        let name = row["name"].as_str().unwrap();
        assert!(is_positive(row, "p50_ms") && is_positive(row, "jsonb_ratio"), "{row}");
        assert_eq!(name.contains('#'), is_positive(row, "event_tags_p99_ms"), "{row}");
        assert_eq!(name.contains("6,000"), is_positive(row, "growth") && !name.contains("3,000"));
    }
    // The same queries on Hark's tables and on nostream's tables, on one server.
    let args = ["--seconds", "0.1", "--connections", "2", "--json"];
    let sql = ["sql", &file, "--server", &server, "--events", "3000"];
    let report = bench(&[&sql[..], &args].concat()).json();
    assert_eq!(report["faults"], serde_json::json!([]), "{report}");
    // The databases are gone, and no database is created without a name.
    let run = bench(&["nostream", &file, &server]);
    assert!(run.stderr.contains("name the database"), "{}", run.stderr);

    // The database for an adoption.
    let url = cluster.url("nostream_bench");
    let said = bench(&["nostream", &file, &url, "--events", "1000"]).text();
    assert!(said.contains(" events in nostream's tables"), "{said}");
    let again = bench(&["nostream", &file, &url]);
    assert!(again.stderr.contains("--replace"), "{}", again.stderr);
}

#[test]
fn a_relay_and_a_store_are_asked_while_they_take_events() {
    let place = Place::new("bench-hammer");
    let file = events(&place, "4000");
    let server = place.serve_with(&["--unlimited"]);
    let store = place.path("store");
    for target in [url(&server), store] {
        let rates = ["--rate", "50", "--insert-rate", "100", "--seconds", "1", "--questions", "2"];
        let page = place.path("hammer.html");
        let more = ["--json", "--html", &page];
        let hammer = ["hammer", &file, &target];
        let report = bench(&[&hammer[..], &rates, &more].concat()).json();
        assert_eq!(report["faults"], serde_json::json!([]), "{report}");
        for (row, most) in [(0, 50), (1, 10)] {
            let row = &report["rows"][row];
            assert!((1..=most).contains(&count(row, "count")), "{row}");
            assert!(is_positive(row, "p99_ms") && is_positive(row, "max_ms"), "{row}");
        }
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains("Latency, questions") && page.contains("Latency, insertions"));
    }
}

#[test]
fn eight_cases_are_asked_of_pairs_and_of_a_growing_cluster() {
    let place = Place::new("bench-cases");
    let has_citus = citus::is_installed();
    let (file, page) = (events(&place, "3000"), place.path("cases.html"));
    let small = ["--pairs", "2", "--workers", "2,3", "--seconds", "0.05"];
    // A share of one whole core does not slow a server down, so the check is as fast as the other
    // measurements.
    let check =
        ["--share", "1", "--coordinator-share", "1", "--at-once", "2", "--setting", "work_mem=5MB"];
    let more = ["--page", "40", "--html", &page, "--json"];
    let report = bench(&[&["cases", &file][..], &small, &check, &more].concat()).json();
    assert_eq!(report["faults"], serde_json::json!([]), "{report}");
    let rows = report["rows"].as_array().unwrap();
    let mut setups = vec!["1 pair", "2 pairs"];
    let clusters = ["Citus, 2 workers", "Citus, 3 workers"];
    setups.extend(clusters.iter().filter(|_| has_citus));
    assert_eq!(rows.len(), 8 * setups.len(), "{report}");
    for (row, setup) in rows.iter().zip(setups.iter().flat_map(|setup| [setup; 8])) {
        assert!(row["name"].as_str().unwrap().starts_with(&format!("{setup}: ")), "{row}");
        assert!(count(row, "count") > 0 && count(row, "success_percent") == 100, "{row}");
        let times = ["min_ms", "med_ms", "p90_ms", "p95_ms"].map(|key| row[key].as_f64().unwrap());
        // A percentile is the middle of a bucket, and the other figures are exact.
        assert!(times.is_sorted_by(|a, b| *a <= b * 1.02), "{row}");
        assert!(is_positive(row, "avg_ms") && is_positive(row, "max_ms"), "{row}");
        assert!(is_positive(row, "events"), "{row}");
    }
    let named = |table: &str, name: &str| {
        let rows = report[table].as_array().or(report[table]["rows"].as_array()).unwrap();
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no {name}: {report}")).clone()
    };
    assert_eq!(count(&named("rows", "1 pair: wide, first page, 1 at once"), "events"), 100);
    let costs = named("costs", "1 pair: wide, everything");
    assert!(count(&costs, "pages") >= 1 && is_positive(&costs, "hark_cpu_ms"), "{costs}");
    assert!(is_positive(&costs, "hark_received_kb") && costs["shards"].is_null(), "{costs}");
    assert!(costs["hark_round_trips"].as_f64() >= costs["pages"].as_f64(), "{costs}");
    assert!(is_positive(&named("model", "wide, everything: 1 pair"), "predicted_per_s"));
    if has_citus {
        let costs = named("costs", "Citus, 2 workers: wide, first page");
        // A wide question reads all of the shards at least once.
        let shards = report["settings"]["shards"].as_f64();
        assert!(costs["shards"].as_f64() >= shards && shards > Some(1.0), "{costs}");
        assert!(is_positive(&costs, "workers_cpu_ms"), "{costs}");
        let (few, many) =
            ("narrow, everything: Citus, 2 workers", "narrow, everything: Citus, 64 workers");
        let [few, many] = [few, many].map(|name| named("model", name));
        assert!(few["workers_per_s"].as_f64() < many["workers_per_s"].as_f64(), "{few} {many}");
        assert!(many["measured_per_s"].is_null(), "{many}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("What a question costs") && page.matches("<svg").count() == 8 + 4);

    // The same questions are sent to servers that are already running.
    let server = place.serve_with(&["--unlimited"]);
    assert_eq!(bench(&["ingest", &file, "--url", &url(&server)]).code, 0);
    let asked = ["cases", &file, "--servers", &url(&server), &url(&server), "--json"];
    let more = ["--case", "narrow", "--seconds", "0.1", "--page", "40"];
    let report = bench(&[&asked[..], &more].concat()).json();
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(4), "{report}");
    assert_eq!(report["faults"], serde_json::json!([]), "{report}");
}

#[test]
fn all_ways_of_answering_for_topics_find_the_same_envelopes() {
    let place = Place::new("bench-whisper");
    let file = place.path("envelopes.bin");
    let small = ["--envelopes", "12000", "--seed", "3"];
    let said = bench(&[&["whisper", "gen", &file], &small[..]].concat()).text();
    assert!(said.contains("12,000 envelopes, 5.5 MB, seed 3"), "{said}");
    let server = Cluster::shared().url("postgres");
    let (data, page) = (place.path("store"), place.path("whisper.html"));
    let short = ["--single", "--runs", "1", "--json"];
    let loaded = ["whisper", &file, "--data", &data, "--server", &server, "--html", &page];
    let report = bench(&[&loaded[..], &short].concat()).json();
    assert_eq!(report["faults"], serde_json::json!([]), "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 16 * 8, "{report}");
    let named = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    for row in rows {
        assert!(is_positive(row, "min_ms") && row["p50_2_ms"].is_null(), "{row}");
    }
    let month = named("3 topics with the busiest, 1 month: Hark in files, topics");
    assert!((8_500..12_000).contains(&count(month, "envelopes")), "{month}");
    let page_row = named("3 topics with the busiest, oldest 1,000: mail server's table, bits");
    assert_eq!(count(page_row, "envelopes"), 1_000);
    for key in ["load_files_per_s", "load_postgresql_per_s", "load_table_per_s"] {
        assert!(is_positive(&report["settings"], key), "{report}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 16);

    // The files are kept, and the databases are removed. Generated envelopes equal the envelopes of
    // the file.
    let again = ["whisper", "--data", &data, "--again", "--question", "busiest, 1 month"];
    let more = ["--way", "topics", "--runs", "2", "--json"];
    let report = bench(&[&again[..], &more].concat()).json();
    assert_eq!(report["rows"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["rows"][0]["envelopes"], month["envelopes"]);
    assert!(is_positive(&report["rows"][0], "slower_8"), "{report}");
    let other = place.path("other");
    let made = ["whisper", "--data", &other, "--question", "busiest, 1 month", "--way", "topics"];
    let report = bench(&[&made[..], &small, &short].concat()).json();
    assert_eq!(report["rows"][0]["envelopes"], month["envelopes"]);
    for (args, said) in [
        (&["whisper", "--data", &data, "--envelopes", "9"][..], "is not empty"),
        (&["whisper", "--data", &place.path("empty"), "--again"], "has no envelopes"),
        (&["whisper", "--data", &other, "--again", "--question", "none"], "no shape has `none`"),
        (&["whisper", "missing.bin"], "hark bench whisper gen missing.bin"),
        (&["whisper", "--envelopes", "20"], "load more envelopes"),
    ] {
        let run = bench(args);
        assert!(run.code != 0 && run.stderr.contains(said), "{args:?}: {}", run.stderr);
    }
}
