//! `hark bench compare` with small numbers: good relays, relays that answer wrongly or die, and a
//! relay that does not start. No test measures speed.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use hark_testkit::program::{Finished, Program};
use hark_testkit::server::{Server, free_port};
use hark_testkit::wait;
use serde_json::Value;

use crate::cli::support::{Place, hark};

/// The variable that turns a test into a bad relay: `PORT DROPPED LAST DATA`.
const BAD_RELAY: &str = "COMPARE_BAD_RELAY";

/// A relay that other tests compare: a server of Hark whose answers lack one in `DROPPED` events,
/// and that ends after `LAST` frames.
#[test]
fn bad_relay() {
    let Ok(settings) = std::env::var(BAD_RELAY) else { return };
    let settings: Vec<&str> = settings.split(' ').collect();
    let [port, dropped, last, data] = settings[..] else { panic!("four settings") };
    let [dropped, last] = [dropped, last].map(|number| number.parse().expect("a number"));
    let args = ["serve", "--unlimited", "--data", data, "--listen", "127.0.0.1:0"];
    let server = Server::start(Program::new(env!("CARGO_BIN_EXE_hark")).args(args));
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).expect("the port is free");
    for client in listener.incoming().map_while(Result::ok) {
        let relay = TcpStream::connect(&server.address).expect("connects");
        let (mut to, mut from) = (relay.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        std::thread::spawn(move || {
            let _ = forward(relay, client, dropped, last);
        });
    }
}

/// Forwards a relay's frames without some of its EVENTs.
fn forward(mut from: TcpStream, mut to: TcpStream, dropped: u64, last: u64) -> std::io::Result<()> {
    let (mut bytes, mut buffer, mut frames) = (Vec::new(), vec![0; 1 << 16], 0);
    let mut in_handshake = true;
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return to.shutdown(std::net::Shutdown::Both);
        }
        bytes.extend_from_slice(&buffer[..read]);
        if in_handshake {
            let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            // An answer that is no upgrade is forwarded unchanged.
            in_handshake = !bytes.starts_with(b"HTTP/1.1 101");
            let end = if in_handshake { bytes.len() } else { end + 4 };
            to.write_all(&bytes.drain(..end).collect::<Vec<u8>>())?;
        }
        while let Some((head, length)) = frame(&bytes) {
            let whole: Vec<u8> = bytes.drain(..head + length).collect();
            frames += 1;
            if frames == last {
                std::process::exit(3);
            }
            if !(whole[head..].starts_with(b"[\"EVENT\"") && frames % dropped == 0) {
                to.write_all(&whole)?;
            }
        }
    }
}

/// The sizes of the head and the payload of the frame at the start of `bytes`. `None` if the frame
/// is incomplete.
fn frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let (head, length) = match bytes.get(1)? {
        126 => (4, usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?))),
        127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize),
        short => (2, usize::from(*short)),
    };
    (bytes.len() >= head + length).then_some((head, length))
}

/// The entry of a server of Hark.
fn good(name: &str) -> String {
    format!(
        "[[relay]]\nname = '{name}'\ncommand = ['{}', 'serve', '--unlimited', '--data', '{{data}}', \
         '--listen', '127.0.0.1:{{port}}']\nready = 'listening on'\n\
         address = 'ws://127.0.0.1:{{port}}'\nversion = ['{0}', '--version']\n\
         durable = 'synced before the OK'\nnote = 'a <b>note</b>'\n",
        env!("CARGO_BIN_EXE_hark")
    )
}

/// The entry of a bad relay.
fn bad(name: &str, dropped: u64, last: u64) -> String {
    let test = std::env::current_exe().expect("this test has a path");
    format!(
        "[[relay]]\nname = '{name}'\ncommand = ['{}', '--exact', 'compare::bad_relay']\n\
         address = 'ws://127.0.0.1:{{port}}'\n[relay.env]\n{BAD_RELAY} = '{{port}} {dropped} {last} {{data}}'\n",
        test.display()
    )
}

/// Compares relays, with this number of events.
fn compare(place: &Place, relays: &str, (events, rounds): (&str, &str), more: &[&str]) -> Finished {
    let file = place.file("relays.toml", relays.as_bytes());
    let short =
        ["--events", events, "--rounds", rounds, "--seconds", "0.05", "--subscriptions", "3"];
    hark(&[&["bench", "compare", &file, "--json"], &short[..], more].concat())
}

/// The row of a relay and a case.
fn row(report: &Value, table: &str, relay: &str, case: &str) -> Value {
    let rows = report["tables"][table]["rows"].as_array();
    let row = rows.into_iter().flatten().find(|row| row["relay"] == relay && row["case"] == case);
    row.unwrap_or_else(|| panic!("no {relay}, {case} in {table}: {report:#}")).clone()
}

fn has(row: &Value, keys: &[&str]) {
    for key in keys {
        assert!(row[*key].as_f64().is_some_and(|figure| figure > 0.0), "{key}: {row}");
    }
}

#[test]
fn two_good_relays_are_measured_in_full_and_none_is_marked() {
    let place = Place::new("compare-good");
    let page = place.path("compare.html");
    let relays = format!("{}{}[relay.env]\nX = '<i>'\n", good("hark"), good("second"));
    let run = compare(&place, &relays, ("400", "2"), &["--html", &page]);
    let report = run.json_of_any();
    assert_eq!(report["faults"], serde_json::json!([]), "{report:#}");
    assert_eq!(run.code, 0, "{}", run.stderr);
    for relay in ["hark", "second"] {
        let load = row(&report, "load", relay, "");
        has(&load, &["accepted_per_s", "p50_ms", "cpu_us", "limit_share_percent"]);
        assert_eq!(load["accepted_per_s_rounds"].as_array().map(Vec::len), Some(2), "{load}");
        let answers = row(&report, "answers", relay, "all shapes");
        has(&answers, &["checked"]);
        for key in ["wrong", "short", "unordered", "refused", "other_ties"] {
            assert_eq!(answers[key], 0.0, "{answers}");
        }
        let thread = row(&report, "questions", relay, "thread #e");
        has(&thread, &["cpu_ms", "null_cpu_ms", "p50_ms", "p99_ms", "requests_per_s", "events"]);
        has(&row(&report, "cold", relay, "cold, 1 id"), &["p50_ms"]);
        has(&row(&report, "visible", relay, ""), &["sent_p50_ms", "published"]);
        let delivery = row(&report, "delivery", relay, "");
        has(&delivery, &["delivered", "p50_ms", "cpu_us_per_delivery"]);
        let killed = row(&report, "kill", relay, "");
        has(&killed, &["acknowledged", "answer_ms"]);
        assert_eq!([&killed["lost"], &killed["earlier_lost"]], [&0.0, &0.0], "{killed}");
        let restart = row(&report, "restart", relay, "");
        has(&restart, &["stop_ms", "start_ms", "answer_ms"]);
        has(&row(&report, "size", relay, ""), &["disk_mb", "event_bytes", "asked_rss_mb"]);
        for case in ["no events", "1 % different on each side"] {
            let set = row(&report, "sets", relay, case);
            has(&set, &["rounds", "kb", "time_ms", "different"]);
            assert_eq!(set["unknown"], 0.0, "{set}");
        }
    }
    // In the second round, the order is reversed, so each relay gets the events of the other.
    for (relay, other) in [("hark", "second"), ("second", "hark")] {
        let case = format!("the events of {other}, 1 % missing");
        has(&row(&report, "sets", relay, &case), &["events", "different", "rounds"]);
    }
    assert!(row(&report, "questions", "second", "1 id")["cpu_ms_ratio"].is_number());
    has(&row(&report, "load", "(nothing)", ""), &["accepted_per_s"]);
    has(&row(&report, "delivery", "(nothing)", ""), &["p50_ms"]);
    assert!(report["not_measured"].as_str().unwrap().contains("power failure"));
    assert!(report["settings"]["cores"].is_string(), "{report:#}");
    assert_eq!(report["relays"][0]["durable"], "synced before the OK");
    assert!(report["relays"][0]["version"].as_str().unwrap().starts_with("hark "));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("a &lt;b&gt;note&lt;/b&gt;") && page.contains("X=&lt;i&gt;"), "{page}");
    assert!(page.contains("<svg") && page.contains("thread #e") && !page.contains("<b>"));
    for banned in ["src=", "href=", "@import", "http://", "https://", "NaN", ">inf"] {
        assert!(!page.contains(banned), "{banned}");
    }
}

#[test]
fn short_answers_deaths_and_failed_starts_mark_rows_and_the_comparison_goes_on() {
    let place = Place::new("compare-bad");
    let bench = std::path::Path::new(env!("CARGO_BIN_EXE_hark")).with_file_name("hark-bench");
    let null = format!(
        "[[relay]]\nname = 'null'\ncommand = ['{}', 'null', '--port', '{{port}}']\n\
         address = 'ws://127.0.0.1:{{port}}'\nready_s = 3\n",
        bench.display()
    );
    let ends = "[[relay]]\nname = 'ends <&>'\ncommand = ['sh', '-c', 'echo no luck; exit 3']\n\
                address = 'ws://127.0.0.1:{port}'\n";
    let taken = free_port();
    let listener = TcpListener::bind(("127.0.0.1", taken)).unwrap();
    let other = format!(
        "[[relay]]\nname = 'taken'\ncommand = ['sleep', '60']\naddress = 'ws://127.0.0.1:{taken}'\n"
    );
    let relays = [
        good("hark"),
        bad("short", 10, u64::MAX),
        bad("dies", u64::MAX, 200),
        null,
        ends.into(),
        other,
    ];
    let page = place.path("bad.html");
    let skipped = ["--skip", "cold", "--skip", "delivery", "--skip", "visible", "--skip", "kill"];
    let shapes = ["--shape", "latest 100", "--shape", "thread", "--shape", "value matching"];
    let more = [&skipped[..], &shapes, &["--html", &page]].concat();
    let run = compare(&place, &relays.concat(), ("1500", "1"), &more);
    drop(listener);
    assert_eq!(run.code, 1, "{}", run.stderr);
    let report = run.json_of_any();
    let marks = |table: &str, relay: &str, case: &str| {
        row(&report, table, relay, case)["marks"].to_string()
    };
    for case in ["latest 100", "thread #e"] {
        let short = row(&report, "questions", "short", case);
        assert!(short["p50_ms"].is_null() && short["cpu_ms"].is_null(), "{short}");
        assert!(short["marks"][0].as_str().unwrap().contains(" short, "), "{short}");
        has(&row(&report, "questions", "hark", case), &["p50_ms"]);
    }
    // A question without an answer has no event that could be missing.
    has(&row(&report, "questions", "short", "value matching nothing"), &["p50_ms"]);
    has(&row(&report, "answers", "short", "all shapes"), &["short"]);
    assert!(marks("load", "dies", "").contains("connection"), "{report:#}");
    assert!(marks("ended", "dies", "").contains("the relay has ended"), "{report:#}");
    assert!(marks("ended", "null", "").contains("no question with an event"), "{report:#}");
    assert!(marks("ended", "ends <&>", "").contains("no luck"), "{report:#}");
    assert!(marks("ended", "taken", "").contains("already listens"), "{report:#}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("ends &lt;&amp;&gt;") && !page.contains("<&>"));
    // Ratios are to the first relay, which has no marks.
    assert!(
        report["faults"]
            .as_array()
            .unwrap()
            .iter()
            .all(|fault| { !fault.as_str().unwrap().starts_with("hark") })
    );
}

#[test]
fn events_that_a_relay_refuses_at_load_are_not_lost() {
    let place = Place::new("compare-strict");
    let config = place.file("strict.toml", b"[policy]\ndeny_words = ['so']\n");
    let relay = good("strict").replace("'serve',", &format!("'serve', '--config', '{config}',"));
    let skipped = ["restart", "cold", "questions", "visible", "delivery"];
    let skipped: Vec<_> = skipped.iter().flat_map(|part| ["--skip", part]).collect();
    let report = compare(&place, &relay, ("1500", "1"), &skipped).json_of_any();
    let load = row(&report, "load", "strict", "");
    assert!(load["marks"].to_string().contains("refused"), "{load}");
    let killed = row(&report, "kill", "strict", "");
    has(&killed, &["acknowledged"]);
    assert_eq!([&killed["lost"], &killed["earlier_lost"]], [&0.0, &0.0], "{killed}");
    let no_marks = serde_json::json!([]);
    assert_eq!(killed["marks"], no_marks, "{killed}");
    for case in ["no events", "the same events", "1 % different on each side"] {
        let set = row(&report, "sets", "strict", case);
        has(&set, &["different"]);
        assert_eq!((&set["unknown"], &set["marks"]), (&serde_json::json!(0.0), &no_marks), "{set}");
    }
}

#[test]
fn a_killed_comparison_leaves_no_relay() {
    let place = Place::new("compare-killed");
    let file = place.file("relays.toml", good("hark").as_bytes());
    let work = place.path("work");
    let args = ["bench", "compare", &file, "--events", "3000", "--work", &work];
    let mut run = Program::new(env!("CARGO_BIN_EXE_hark")).args(args).spawn().expect("runs");
    let folder = std::fs::canonicalize(place.path("")).expect("the place is there");
    let data = folder.join("work/hark-bench-relays/0/data");
    let is_served = || {
        let list = std::fs::read_dir("/proc").unwrap().flatten();
        list.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok()).any(|line| {
            line.split(|byte| *byte == 0).any(|word| word == data.as_os_str().as_encoded_bytes())
        })
    };
    run.until("the relay runs", is_served);
    run.signal("KILL");
    wait::until("the relay has ended", || !is_served());
}
