//! `hark bench rules` and `hark bench answers` against a small relay that is wrong in chosen ways:
//! each fault is found, and a right relay has none.

mod relay;

use hark_testkit::program::{Finished, Program};
use relay::{FaultyRelay, MEMBER, RelayFault};
use serde_json::Value;

fn bench(args: &[&str]) -> Finished {
    Program::new(env!("CARGO_BIN_EXE_hark-bench")).args(args).run_with(b"")
}

/// Checks the rules with this text in their names. Returns the report and the failed rules.
fn check(relay: &FaultyRelay, only: &str) -> (Finished, Vec<String>) {
    let run = bench(&["rules", &relay.url, "--only", only, "--json", "--timeout", "30"]);
    let report = run.json_of_any();
    let rules = report["rules"].as_array().expect("has rules").iter();
    let failed = rules.filter(|rule| rule["result"] == "fail");
    let failed = failed.map(|rule| rule["id"].as_str().expect("is a text").to_owned()).collect();
    (run, failed)
}

#[test]
fn a_right_relay_passes_the_rules_that_it_supports() {
    let relay = FaultyRelay::start(RelayFault::None);
    for nip in ["NIP-01", "NIP-09"] {
        let (run, failed) = check(&relay, nip);
        // The small relay does not check the length of subscription ids.
        assert_eq!(failed.iter().filter(|id| !id.ends_with("id-limits")).count(), 0, "{failed:?}");
        assert_eq!(run.code, 0, "{failed:?}");
    }
    // The small relay has no other NIP, and its document has neither headers nor a URL.
    let run = bench(&["rules", &relay.url, "--json", "--only", "NIP-40", "--only", "NIP-62"]);
    let report = run.json();
    assert_eq!(report["not_supported"], report["rules"].as_array().unwrap().len());
    let (run, failed) = check(&relay, "NIP-11");
    assert_eq!(run.code, 1);
    assert!(failed.contains(&"NIP-11 cors".to_owned()), "{failed:?}");
    assert!(failed.contains(&"NIP-11 software".to_owned()), "{failed:?}");
}

#[test]
fn each_fault_of_a_relay_is_found() {
    for (fault, rule, is_binding) in [
        (RelayFault::AcceptsAll, "NIP-01 id-hash", true),
        (RelayFault::AnyTagValue, "NIP-01 tag-first-value", true),
        (RelayFault::ClosesNothing, "NIP-01 close", true),
        (RelayFault::DeletesForeign, "NIP-09 other-author", false),
        (RelayFault::DeletesNothing, "NIP-09 own-event", false),
        (RelayFault::ForgetsTies, "NIP-01 replaceable-tie-first", false),
        (RelayFault::HasNoPrefix, "NIP-01 ok-prefix", true),
        (RelayFault::IgnoresLimit, "NIP-01 limit-newest", true),
        (RelayFault::OldestFirst, "NIP-01 order", false),
        (RelayFault::ReplacesNothing, "NIP-01 addressable", true),
        (RelayFault::SinceExclusive, "NIP-01 since", true),
        (RelayFault::StoresEphemeral, "NIP-01 ephemeral-stored", false),
        (RelayFault::SwallowsSome, "NIP-01 filter-kinds", true),
    ] {
        let relay = FaultyRelay::start(fault);
        let (run, failed) = check(&relay, rule);
        assert!(failed.contains(&rule.to_owned()), "{fault:?}: {failed:?}");
        assert_eq!(run.code, i32::from(is_binding), "{fault:?}: {failed:?}");
    }
}

/// The results of the rules with one of these texts in their names. No binding rule may fail.
fn results(relay: &FaultyRelay, only: &[&str], more: &[&str]) -> Vec<(String, String)> {
    let only = only.iter().flat_map(|text| ["--only", text]);
    let args = ["rules", &relay.url, "--json", "--timeout", "30"].into_iter().chain(only);
    let report = bench(&args.chain(more.iter().copied()).collect::<Vec<_>>()).json();
    let text = |rule: &Value, name: &str| rule[name].as_str().expect("is a text").to_owned();
    let rules = report["rules"].as_array().expect("has rules").iter();
    rules.map(|rule| (text(rule, "id"), text(rule, "result"))).collect()
}

#[test]
fn a_relay_that_requires_auth_passes_the_rules() {
    let member = ["--secret", MEMBER];
    for (fault, more) in [(RelayFault::RequiresAuth, &[][..]), (RelayFault::AdmitsMember, &member)]
    {
        let relay = FaultyRelay::start(fault);
        let results = results(&relay, &["NIP-01", "NIP-09", "NIP-11 auth-required"], more);
        // Two failures are expected: profiles have fresh keys, which the relay does not admit, and
        // the small relay does not check the length of subscription ids.
        let is_known = |id: &str| {
            id.ends_with("id-limits")
                || id.ends_with("replaceable-0-3") && fault == RelayFault::AdmitsMember
        };
        let mut others = results.iter().filter(|(id, result)| result != "pass" && !is_known(id));
        assert_eq!(others.next(), None, "{fault:?}");
        let passed = results.iter().filter(|(_, result)| result == "pass").count();
        assert!(passed > 70, "{fault:?}: {passed} passed");
    }
    let text = answers(&FaultyRelay::start(RelayFault::RequiresAuth), &[]).text();
    assert!(text.contains(" 0 wrong answers."), "{text}");
    let text = answers(&FaultyRelay::start(RelayFault::AdmitsMember), &member).text();
    assert!(text.contains(" 0 wrong answers."), "{text}");
}

#[test]
fn a_relay_that_refuses_questions_fails_no_rule() {
    let relay = FaultyRelay::start(RelayFault::RefusesQuestions);
    let results = results(&relay, &["NIP-01", "NIP-09", "NIP-45"], &[]);
    assert_eq!(results.iter().find(|(_, result)| result == "fail"), None);
    for id in
        ["NIP-01 order", "NIP-01 live", "NIP-01 ephemeral-live", "NIP-09 own-event", "NIP-45 count"]
    {
        assert!(results.contains(&(id.to_owned(), "undecided".to_owned())), "{id}: {results:?}");
    }
}

#[test]
fn what_the_nips_leave_open_is_no_fault() {
    let relay = FaultyRelay::start(RelayFault::ForgetsDeletions);
    let results = results(&relay, &["NIP-09"], &[]);
    assert!(results.contains(&("NIP-09 no-undo".into(), "undecided".into())), "{results:?}");
    assert!(results.contains(&("NIP-09 own-event".into(), "pass".into())), "{results:?}");
    let relay = FaultyRelay::start(RelayFault::AnswersPreflight);
    let (_, failed) = check(&relay, "NIP-11");
    assert!(!failed.contains(&"NIP-11 cors".to_owned()), "{failed:?}");
}

#[test]
fn events_that_were_refused_are_no_missing_events_later() {
    let relay = FaultyRelay::start(RelayFault::RefusesKind);
    let loaded = answers(&relay, &["--load-only", "--json"]).json();
    let refused = loaded["refused_events"].as_array().unwrap();
    assert!(!refused.is_empty(), "{loaded}");
    let numbers: Vec<_> = refused.iter().map(Value::to_string).collect();
    let text = answers(&relay, &["--ask-only"]);
    assert_eq!((text.code, text.stdout.contains("missing")), (1, true), "{text:?}");
    let text = answers(&relay, &["--ask-only", "--without", &numbers.join(",")]).text();
    assert!(text.contains(" 0 wrong answers."), "{text}");
}

#[test]
fn a_relay_that_refuses_or_ignores_events_is_told_apart() {
    let relay = FaultyRelay::start(RelayFault::RefusesAll);
    let run = bench(&["rules", &relay.url, "--only", "NIP-01 since", "--json"]);
    let report = run.json();
    assert_eq!(report["undecided"], 2, "{report}");
    assert!(report["rules"][0]["why"].as_str().unwrap().contains("restricted: not allowed"));
    let relay = FaultyRelay::start(RelayFault::IsSilent);
    let run = bench(&["rules", &relay.url, "--only", "NIP-01 ok-parts", "--timeout", "0.2"]);
    assert_eq!(run.code, 1);
    for text in [
        "NIP-01 ok-parts",
        "The 4th parameter MUST always be present",
        "no OK within",
        "> [\"EVENT\"",
    ] {
        assert!(run.stdout.contains(text), "{text}: {}", run.stdout);
    }
    let none = bench(&["rules", "ws://127.0.0.1:1", "--timeout", "1"]);
    assert_eq!((none.code, none.stderr.contains("no connection")), (1, true), "{}", none.stderr);
}

#[test]
fn rules_are_listed_with_their_sentences_and_chosen_by_name() {
    let run = bench(&["rules", "--list", "--json"]);
    let list = run.json();
    let rules = list["rules"].as_array().unwrap();
    assert!(rules.len() > 150, "{} rules", rules.len());
    let names: std::collections::BTreeSet<_> =
        rules.iter().map(|rule| rule["id"].as_str()).collect();
    assert_eq!(names.len(), rules.len(), "each rule has its own name");
    for rule in rules {
        for field in ["sentence", "sent", "expected"] {
            assert!(rule[field].as_str().is_some_and(|text| !text.is_empty()), "{rule}");
        }
    }
    let table = bench(&["rules", "--list", "--md", "--only", "nip-62"]).text();
    assert!(table.lines().all(|line| line.starts_with('|')), "{table}");
    assert!(table.contains("NIP-62 no-return"), "{table}");
    assert_eq!(bench(&["rules", "--list", "--only", "NIP-99"]).code, 1);
    assert_eq!(bench(&["rules", "ws://x", "--secret", "00"]).code, 2);
}

fn answers(relay: &FaultyRelay, more: &[&str]) -> Finished {
    let numbers = ["--events", "300", "--questions", "300", "--seed", "5", "--to", "1760000000"];
    let args = [&["answers", &relay.url], &numbers[..]].concat();
    bench(&[&args[..], more].concat())
}

#[test]
fn a_right_relay_answers_every_question_before_and_after_a_pause() {
    let relay = FaultyRelay::start(RelayFault::None);
    let loaded = answers(&relay, &["--load-only", "--json"]);
    assert_eq!((loaded.code, loaded.json()["asked"].as_u64()), (0, Some(0)));
    for _ in 0..2 {
        let report = answers(&relay, &["--ask-only", "--json"]).json();
        assert_eq!(
            (&report["wrong"], report["asked"].as_u64()),
            (&serde_json::json!([]), Some(300))
        );
    }
    // The events of a seed are published once.
    let again = answers(&relay, &[]);
    assert_eq!((again.code, again.stderr.contains("another --seed")), (1, true), "{again:?}");
    let text = answers(&FaultyRelay::start(RelayFault::None), &[]).text();
    assert!(text.contains(" 0 wrong answers.") && text.contains("--seed 5 --to"), "{text}");
}

#[test]
fn wrong_answers_are_found_and_shown_with_their_filters() {
    let faults = [
        (RelayFault::AnyTagValue, "unexpected"),
        (RelayFault::DeletesForeign, "missing"),
        (RelayFault::DeletesNothing, "unexpected"),
        (RelayFault::ForgetsTies, "missing"),
        (RelayFault::IgnoresLimit, "unexpected"),
        (RelayFault::OldestFirst, "order"),
        (RelayFault::ReplacesNothing, "unexpected"),
        (RelayFault::SinceExclusive, "missing"),
        (RelayFault::StoresEphemeral, "unexpected"),
        (RelayFault::SwallowsSome, "missing"),
    ];
    // A run waits most of its time, so the runs take place at once.
    std::thread::scope(|scope| {
        for (fault, shown) in faults {
            scope.spawn(move || {
                let run = answers(&FaultyRelay::start(fault), &["--json"]);
                let report: Value = run.json_of_any();
                assert_eq!(run.code, 1, "{fault:?}");
                let wrong = report["wrong"].as_array().unwrap();
                let found = wrong.iter().find(|wrong| wrong["fault"] == shown);
                let has_filters = found.is_some_and(|wrong| wrong["filters"].is_array());
                assert!(has_filters, "{fault:?}: {report}");
            });
        }
    });
    let text = answers(&FaultyRelay::start(RelayFault::SinceExclusive), &[]).stdout;
    assert!(text.contains("missing") && text.contains("filters   [{"), "{text}");
}
