//! The operator's plugin for the events of clients: its decisions, its failures, and their
//! effect on other clients.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hark_plugin::{FailureRule, PluginCommand, PluginOptions, SharedPlugin};
use hark_server::limits::{Rate, RateLimits};
use hark_server::nostr::policy::{EventPolicy, WordList};
use hark_server::nostr::{RuleMode, Trust, TrustOptions};
use hark_testkit::folder::Folder;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{event, note, pubkey};
use hark_testkit::wait::until_async;
use serde_json::{Value, json};

use crate::kit::{NOW_S, Relay, http};

/// The answer to an event about which the plugin has not decided.
const UNDECIDED: &str = "error: the relay's plugin has not decided; try again later";

/// The beginning of a script that reads lines, and finds the event's id in each line.
const EACH: &str = r#"while read -r line; do id=${line#*'"id":"'}; id=${id%%'"'*}; "#;
/// The end of such a script, which accepts all events that the middle part has not answered.
const ACCEPT: &str = r#" echo '{"id":"'$id'","action":"accept"}'; done"#;

/// Options with a plugin that accepts every event that matches none of the shell's `case` branches
/// in `cases`.
fn options(cases: &str) -> PluginOptions {
    command(&format!("{EACH} case \"$line\" in {cases} esac; {ACCEPT}"))
}

fn command(line: &str) -> PluginOptions {
    let command = PluginCommand { line: line.into(), folder: None };
    // Longer than any test: an event waits until its process answers or ends.
    PluginOptions { command, timeout: Duration::from_mins(10), ..PluginOptions::default() }
}

/// A branch of the `case` that answers with `action` if an event contains this word.
fn answer(word: &str, action: &str, msg: &str) -> String {
    let tail = format!("\"action\":\"{action}\",\"msg\":\"{msg}\"}}");
    format!("*{word}*) echo '{{\"id\":\"'$id'\",{tail}'; continue;;")
}

async fn relay(options: PluginOptions) -> (Relay, SharedPlugin) {
    let plugin = SharedPlugin::new(options);
    let relay = Relay::start(|config| config.relay.plugin = plugin.clone()).await;
    (relay, plugin)
}

/// A client at an address of its own.
async fn client_at(relay: &Relay, address: &str) -> Client {
    Client::with_headers(&relay.url, NOW_S, &[("x-forwarded-for", address)]).await
}

/// The value of a line of the page for Prometheus.
async fn metric(relay: &Relay, line: &str) -> u64 {
    let (_, page) = http(&relay.url, "/metrics", "").await;
    let value = page.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{line} is missing: {page}"))
}

async fn refused(client: &mut Client, event: &Value, reason: &str) {
    assert_eq!(client.publish(event).await, (false, reason.to_owned()), "{event}");
}

/// Publishes an event without waiting for the OK.
async fn send(client: &mut Client, content: &str) {
    client.send_text(json!(["EVENT", note(1, NOW_S, content)])).await;
}

/// An event is checked again after the plugin has decided.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_trust_would_refuse_is_counted_once() {
    let trust = Trust::new(TrustOptions { mode: RuleMode::Watch, ..TrustOptions::default() });
    let of_relay = Arc::clone(&trust);
    let relay = Relay::start(|config| {
        config.relay.plugin = SharedPlugin::new(options(""));
        config.relay.trust = of_relay;
    })
    .await;
    until_async("the lists are read", async || trust.wait_until_read(Duration::ZERO)).await;
    relay.client().await.publish_new(&note(1, NOW_S, "hello")).await;
    assert_eq!(metric(&relay, "hark_trust_events_total{result=\"watched\"}").await, 1);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_accepts_refuses_and_feigns() {
    let cases = [
        answer("bad", "reject", "blocked: not this"),
        answer("plain", "reject", "not this"),
        answer("mute", "reject", ""),
        answer("shadow", "shadowReject", "thanks"),
    ];
    let (relay, _) = relay(options(&cases.concat())).await;
    let mut reader = relay.client().await;
    assert!(reader.ask("all", &[json!({})]).await.is_empty());
    let mut client = relay.client().await;
    refused(&mut client, &note(1, NOW_S, "bad"), "blocked: not this").await;
    refused(&mut client, &note(1, NOW_S, "plain"), "blocked: not this").await;
    let mute = "blocked: the relay's plugin does not take this event";
    refused(&mut client, &note(1, NOW_S, "mute"), mute).await;
    for kind in [1, 20_001] {
        let event = event(1, NOW_S, kind, &[], "shadow");
        assert_eq!(client.publish(&event).await, (true, "thanks".into()));
    }
    // The plugin is asked about ephemeral events, too.
    refused(&mut client, &event(1, NOW_S, 20_001, &[], "bad"), "blocked: not this").await;
    let ephemeral = event(1, NOW_S, 20_001, &[], "good");
    client.publish_new(&ephemeral).await;
    assert_eq!(reader.receive().await, json!(["EVENT", "all", ephemeral]));
    let good = note(1, NOW_S, "good");
    client.publish_new(&good).await;
    assert_eq!(reader.receive().await, json!(["EVENT", "all", good]), "nothing came in between");
    assert_eq!(relay.store.stats().records, 1);
    let known = client.publish(&good).await;
    assert_eq!(known, (true, "duplicate: already have this event".into()));
    for (line, count) in [
        ("hark_plugin_events_total{action=\"accept\"}", 2),
        ("hark_plugin_events_total{action=\"reject\"}", 4),
        ("hark_plugin_events_total{action=\"shadowReject\"}", 2),
        ("hark_plugin_events_total{action=\"none\"}", 0),
        ("hark_plugin_starts_total", 1),
        ("hark_plugin_waiting_events", 0),
        ("hark_messages_total{verb=\"EVENT\",result=\"blocked\"}", 6),
    ] {
        assert_eq!(metric(&relay, line).await, count, "{line}");
    }
    let (_, info) = http(&relay.url, "/", "Accept: application/nostr+json").await;
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["limitation"]["restricted_writes"], true);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_gets_the_whole_event_and_its_source() {
    let folder = Folder::new("plugin-lines");
    let script = format!("{EACH} printf '%s\\n' \"$line\" >> lines; {ACCEPT}");
    let mut options = command(&script);
    options.command.folder = Some(folder.to_path_buf());
    let (relay, _) = relay(options).await;
    let sent = event(1, NOW_S, 1, &[&["t", "a\"b\\c"], &["p", &pubkey(2)]], "ü \n \"{}");
    let mut plain = client_at(&relay, "192.0.2.7").await;
    plain.publish_new(&sent).await;
    client_at(&relay, "2001:db8::7").await.publish_new(&note(1, NOW_S, "v6")).await;
    let mut proven = relay.client().await;
    proven.auth(2).await;
    proven.publish_new(&note(3, NOW_S, "of another key")).await;
    proven.auth(3).await;
    proven.publish_new(&note(3, NOW_S, "of this key")).await;
    let lines = std::fs::read_to_string(folder.join("lines")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        lines[0],
        json!({
            "type": "new",
            "event": sent,
            "receivedAt": NOW_S,
            "sourceType": "IP4",
            "sourceInfo": "192.0.2.7",
        })
    );
    assert_eq!(
        (&lines[1]["sourceType"], &lines[1]["sourceInfo"], lines[1].get("authed")),
        (&json!("IP6"), &json!("2001:db8::7"), None)
    );
    assert_eq!(lines[2]["authed"], json!(pubkey(2)));
    assert_eq!(lines[3]["authed"], json!(pubkey(3)));
    relay.stop().await;
}

/// A forged or known event must cost the plugin nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_gets_only_events_that_passed_all_other_checks() {
    let plugin = SharedPlugin::new(options(""));
    let relay = Relay::start(|config| {
        config.relay.plugin = plugin.clone();
        config.policy.deny_kinds = vec![7..=7];
    })
    .await;
    let mut client = relay.client().await;
    let mut unsigned = note(1, NOW_S, "x");
    unsigned["sig"] = json!("11".repeat(64));
    let (accepted, reason) = client.publish(&unsigned).await;
    assert!(!accepted && reason.starts_with("invalid: "), "{reason}");
    let denied = "blocked: this relay does not take events of kind 7";
    refused(&mut client, &event(1, NOW_S, 7, &[], ""), denied).await;
    client.auth(1).await;
    assert_eq!(metric(&relay, "hark_plugin_starts_total").await, 0);
    relay.stop().await;
}

/// If a process hangs on an event, other processes decide about the events of other clients. Even
/// if one address sends many such events, one process stays free.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_hangs_on_the_events_of_one_address_serves_all_others() {
    let mut options = options("*hang*) sleep 1000;;");
    options.processes = 3;
    let (relay, _) = relay(options).await;
    let mut hanging = [client_at(&relay, "192.0.2.1").await, client_at(&relay, "192.0.2.1").await];
    for (number, client) in (0..).zip(&mut hanging) {
        for count in 0..50 {
            send(client, &format!("hang {number} {count}")).await;
        }
    }
    until_async("events wait", async || metric(&relay, "hark_plugin_waiting_events").await == 100)
        .await;
    let mut others = Vec::new();
    for other in 2..6 {
        others.push(client_at(&relay, &format!("192.0.2.{other}")).await);
    }
    for (number, client) in (0..).zip(&mut others) {
        for count in 0..50 {
            client.publish_new(&note(2, NOW_S, &format!("good {number} {count}"))).await;
        }
    }
    assert_eq!(metric(&relay, "hark_plugin_events_total{action=\"accept\"}").await, 200);
    assert_eq!(metric(&relay, "hark_plugin_events_total{action=\"none\"}").await, 0);
    assert_eq!(metric(&relay, "hark_plugin_waiting_events").await, 100);
    assert_eq!(relay.store.stats().records, 200);
}

/// A client whose events end the processes has to wait, and no other client notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_events_end_the_plugin_is_suspended() {
    let (relay, _) = relay(options("*die*) exit 3;;")).await;
    let mut hostile = client_at(&relay, "192.0.2.1").await;
    let mut other = client_at(&relay, "192.0.2.2").await;
    for count in 0..100 {
        refused(&mut hostile, &note(1, NOW_S, &format!("die {count}")), UNDECIDED).await;
        other.publish_new(&note(2, NOW_S, &format!("good {count}"))).await;
    }
    let ended = metric(&relay, "hark_plugin_failures_total{cause=\"ended\"}").await;
    assert!((3..50).contains(&ended), "{ended}");
    assert_eq!(metric(&relay, "hark_plugin_events_total{action=\"accept\"}").await, 100);
    assert_eq!(metric(&relay, "hark_plugin_events_total{action=\"none\"}").await, 100);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_without_an_answer_in_time_is_treated_by_the_rule() {
    let mut hung = options("*hang*) sleep 1000;;");
    (hung.processes, hung.timeout) = (1, Duration::from_millis(500));
    let (relay, plugin) = relay(hung.clone()).await;
    let mut client = relay.client().await;
    refused(&mut client, &note(1, NOW_S, "hang"), UNDECIDED).await;
    assert_eq!(metric(&relay, "hark_plugin_failures_total{cause=\"timeout\"}").await, 1);
    plugin.set(PluginOptions { on_failure: FailureRule::Accept, ..hung });
    client.publish_new(&note(1, NOW_S, "hang")).await;
    relay.stop().await;
}

/// A client that makes the plugin hang or end does not thereby get its events accepted: the rule
/// `accept` is for a plugin that fails for everybody.
#[tokio::test(flavor = "multi_thread")]
async fn the_flood_of_a_client_is_refused_even_if_failures_accept_events() {
    let casino = answer("casino", "reject", "blocked: no casinos");
    let cases = format!("*hang*) sleep 1000;; *die*) exit 3;; {casino}");
    let mut flooded = options(&cases);
    flooded.on_failure = FailureRule::Accept;
    flooded.timeout = Duration::from_secs(8);
    let (relay, _) = relay(flooded).await;
    let mut other = client_at(&relay, "192.0.2.2").await;
    let mut hostile = client_at(&relay, "192.0.2.1").await;
    send(&mut hostile, "hang 0").await;
    send(&mut hostile, "hang 1").await;
    other.publish_new(&note(2, NOW_S, "good")).await;
    casinos_are_refused(&mut hostile, "behind others", 2).await;
    let mut hostile = client_at(&relay, "192.0.2.3").await;
    for count in 0..4 {
        hostile.publish_new(&note(1, NOW_S, &format!("die {count}"))).await;
    }
    other.publish_new(&note(2, NOW_S, "good again")).await;
    casinos_are_refused(&mut hostile, "after events that end the plugin", 0).await;
    relay.stop().await;
}

/// Publishes some events that the plugin refuses. `others` is the number of further answers. `what`
/// must not be a text for which the plugin hangs or ends.
async fn casinos_are_refused(client: &mut Client, what: &str, others: usize) {
    let casino = |n| note(1, NOW_S, &format!("casino {n} {what}"));
    let casinos: Vec<Value> = (0..20).map(casino).collect();
    for casino in &casinos {
        client.send_text(json!(["EVENT", casino])).await;
    }
    for _ in 0..casinos.len() + others {
        let ok = client.receive().await;
        let is_casino = casinos.iter().any(|casino| casino["id"] == ok[1]);
        let reason = ok[3].as_str().unwrap();
        let is_refused = reason.starts_with("rate-limited: ") || reason.starts_with("blocked: ");
        assert!(!is_casino || ok[2] == json!(false) && is_refused, "{ok}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_dies_or_writes_anything_else_is_started_again() {
    let other = "11".repeat(32);
    for (what, branch, cause) in [
        ("dies", "exit 3".into(), "ended"),
        ("is killed", "kill -9 $$".into(), "ended"),
        (
            "answers for another",
            format!("echo '{{\"id\":\"{other}\",\"action\":\"accept\"}}'"),
            "answer",
        ),
        ("answers something", "echo '{\"id\":7}'".into(), "answer"),
        ("knows another action", "echo '{\"id\":\"'$id'\",\"action\":\"maybe\"}'".into(), "answer"),
        ("floods", "while :; do echo garbage; done".into(), "answer"),
        ("writes a long line", "head -c 9000000 /dev/zero | tr '\\0' x".into(), "answer"),
        ("closes its output", "exec >&-; sleep 1000".into(), "ended"),
    ] {
        let (relay, plugin) = relay(options(&format!("*poison*) {branch};;"))).await;
        let mut client = relay.client().await;
        for (number, rule) in [(0, FailureRule::Refuse), (1, FailureRule::Accept)] {
            let options = PluginOptions { on_failure: rule, ..(*plugin.current()).clone() };
            plugin.set(options);
            let poison = note(1, NOW_S, &format!("poison {number}"));
            let expected = match rule {
                FailureRule::Refuse => (false, UNDECIDED.to_owned()),
                FailureRule::Accept => (true, String::new()),
            };
            assert_eq!(client.publish(&poison).await, expected, "{what}");
            client.publish_new(&note(1, NOW_S, &format!("good {number}"))).await;
        }
        let line = format!("hark_plugin_failures_total{{cause=\"{cause}\"}}");
        assert_eq!(metric(&relay, &line).await, 2, "{what}");
        assert_eq!(metric(&relay, "hark_plugin_starts_total").await, 3, "{what}");
        relay.stop().await;
    }
}

/// Lines that are not JSON come from debugging. They do no harm, as in strfry.
#[tokio::test(flavor = "multi_thread")]
async fn other_output_before_an_answer_is_skipped() {
    let (relay, _) = relay(options("*loud*) echo; echo debugging; echo on stderr >&2;;")).await;
    let mut client = relay.client().await;
    for count in 0..50 {
        client.publish_new(&note(1, NOW_S, &format!("loud {count}"))).await;
    }
    assert_eq!(metric(&relay, "hark_plugin_starts_total").await, 1);
    relay.stop().await;
}

/// A plugin that never works delays no event, and is not started for each event.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_plugin_is_tried_ever_more_rarely() {
    for line in ["exit 1", "/no/such/plugin"] {
        let (relay, plugin) = relay(command(line)).await;
        let mut client = relay.client().await;
        for count in 0..500 {
            refused(&mut client, &note(1, NOW_S, &count.to_string()), UNDECIDED).await;
        }
        let starts = metric(&relay, "hark_plugin_starts_total").await;
        assert!((3..100).contains(&starts), "{starts}");
        assert_eq!(metric(&relay, "hark_plugin_events_total{action=\"none\"}").await, 500);
        plugin.set(options(""));
        client.publish_new(&note(1, NOW_S, "a new command works at once")).await;
        plugin.set(PluginOptions::default());
        client.publish_new(&note(1, NOW_S, "no command means no plugin")).await;
        relay.stop().await;
    }
}

fn write(path: &Path, script: &str) {
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_whose_file_changes_is_started_again() {
    let folder = Folder::on_disk("plugin-file");
    let (file, new) = (folder.join("policy.sh"), folder.join("new.sh"));
    let script =
        |cases: &str| format!("#!/bin/sh\n{EACH} case \"$line\" in {cases} esac; {ACCEPT}");
    write(&file, &script(""));
    let mut by_path = command("./policy.sh");
    by_path.command.folder = Some(folder.to_path_buf());
    let (relay, _) = relay(by_path).await;
    let mut client = relay.client().await;
    client.publish_new(&note(1, NOW_S, "casino")).await;
    write(&new, &script(&answer("casino", "reject", "blocked: no casinos")));
    std::fs::rename(new, file).unwrap();
    refused(&mut client, &note(1, NOW_S, "casino again"), "blocked: no casinos").await;
    assert_eq!(metric(&relay, "hark_plugin_starts_total").await, 2);
    relay.stop().await;
}

/// Events that wait for the old command go to the new command.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_command_takes_the_events_that_wait() {
    let mut hung = options("*) sleep 1000;;");
    hung.processes = 1;
    let (relay, plugin) = relay(hung).await;
    let mut client = relay.client().await;
    for count in 0..20 {
        send(&mut client, &count.to_string()).await;
    }
    until_async("events wait", async || metric(&relay, "hark_plugin_waiting_events").await == 20)
        .await;
    plugin.set(options(""));
    for _ in 0..19 {
        let ok = client.receive().await;
        assert_eq!((&ok[0], &ok[2]), (&json!("OK"), &json!(true)), "{ok}");
    }
    assert_eq!(
        metric(&relay, "hark_plugin_waiting_events").await,
        1,
        "one is with the old command"
    );
}

/// Deletions concern their author's own data, so they are carried out if there is something to
/// delete.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_refuses_everything_keeps_nobody_from_deleting() {
    let everything = options(&answer("", "reject", "blocked: no"));
    let plugin = SharedPlugin::default();
    let relay = Relay::start(|config| config.relay.plugin = plugin.clone()).await;
    let mut client = relay.client().await;
    let own = note(1, NOW_S, "own");
    client.publish_new(&own).await;
    plugin.set(everything);
    let id = own["id"].as_str().unwrap();
    let deletion = |who: u8| event(who, NOW_S, 5, &[&["e", id]], "");
    refused(&mut client, &deletion(2), "blocked: no").await;
    client.publish_new(&deletion(1)).await;
    assert!(client.find_now(&[json!({ "ids": [id] })]).await.is_empty());
    relay.stop().await;
}

/// The plugin may take seconds for an event, so the policy is checked again after its answer.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_the_policy_forbids_while_the_plugin_decides_are_refused() {
    let folder = Folder::new("plugin-late-policy");
    let go = folder.join("go");
    let waits = format!("*) while [ ! -e '{}' ]; do sleep 0.05; done;;", go.display());
    let (relay, _) = relay(options(&waits)).await;
    let mut client = relay.client().await;
    send(&mut client, "win at the casino").await;
    until_async("the plugin has the event", async || {
        metric(&relay, "hark_plugin_waiting_events").await == 1
    })
    .await;
    let deny_words = WordList::new(&["casino"]).unwrap();
    relay.policy.store(Arc::new(EventPolicy { deny_words, ..EventPolicy::default() }));
    std::fs::write(&go, "").unwrap();
    let ok = client.receive().await;
    assert_eq!((&ok[0], &ok[2]), (&json!("OK"), &json!(false)), "{ok}");
    assert!(ok[3].as_str().unwrap().starts_with("blocked:"), "{ok}");
    client.publish_new(&note(1, NOW_S, "other words")).await;
    assert_eq!(client.find_now(&[json!({})]).await.len(), 1);
    relay.stop().await;
}

/// Anybody can send an author's earlier events, which are on other relays.
#[tokio::test(flavor = "multi_thread")]
async fn an_authors_rate_is_not_used_up_by_events_that_the_plugin_refuses() {
    let cases =
        answer("bad", "reject", "blocked: not this") + &answer("shadow", "shadowReject", "thanks");
    let plugin = SharedPlugin::new(options(&cases));
    let relay = Relay::start(|config| {
        config.relay.plugin = plugin.clone();
        let rate = Rate { per_minute: 1, at_once: 2 };
        config.limits.rates = RateLimits { events_per_key: Some(rate), ..RateLimits::none() };
    })
    .await;
    let (mut author, mut other) = (relay.client().await, relay.client().await);
    for _ in 0..5 {
        refused(&mut other, &note(1, NOW_S, "bad"), "blocked: not this").await;
        assert_eq!(other.publish(&note(1, NOW_S, "shadow")).await, (true, "thanks".into()));
    }
    author.publish_new(&note(1, NOW_S, "a")).await;
    author.publish_new(&note(1, NOW_S, "b")).await;
    assert!(author.publish(&note(1, NOW_S, "c")).await.1.starts_with("rate-limited: "));
    relay.stop().await;
}
