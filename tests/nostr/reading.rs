//! The operator's rules for questions (`[policy]`), on every way out of the archive, for strangers,
//! for authenticated strangers and for members, in files and in a database.

use std::collections::BTreeSet;

use hark_testkit::clock::now_s;
use hark_testkit::http::{HttpRequest, get};
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::compare::{NOTHING, compare, held};
use hark_testkit::nostr::{contents, event, pubkey};
use hark_testkit::postgres::Cluster;
use serde_json::{Value, json};

use super::kit::connect;
use crate::served::Relay;

/// A member, a reader who is no member, and a writer who is neither.
const MEMBER: u8 = 1;
const GUEST: u8 = 3;
const WRITER: u8 = 2;

/// An answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// The contents of these events.
    Sees(BTreeSet<String>),
    /// A refusal with this prefix.
    Refused(String),
}

fn sees(contents: &[&str]) -> Answer {
    Answer::Sees(contents.iter().map(|content| (*content).to_owned()).collect())
}

fn refused(prefix: &str) -> Answer {
    Answer::Refused(prefix.to_owned())
}

/// Settings with a rule. Everybody may write, and `MEMBER` is the only member.
fn settings(rule: &str, store: &str) -> String {
    format!(
        "[policy]\nallow_keys = [\"{}\"]\nopen_kinds = [\"0-65535\"]\n{rule}\n[search]\n\
         enabled = true\nkinds = [1, 30]\n[archive]\n{store}\n",
        pubkey(MEMBER)
    )
}

/// Events of every sort that a rule distinguishes. Each content begins with its mark.
fn world(mark: &str, at: u64) -> Vec<Value> {
    let (guest, member) = (pubkey(GUEST), pubkey(MEMBER));
    let made = |who, kind, tags: &[&[&str]], name: &str, n| {
        event(who, at + n, kind, tags, &format!("{mark} word {name}"))
    };
    vec![
        made(MEMBER, 1, &[], "note", 0),
        made(WRITER, 30, &[], "closed", 1),
        made(WRITER, 30, &[&["p", &guest]], "to guest", 2),
        made(GUEST, 30, &[], "by guest", 3),
        made(WRITER, 1059, &[&["p", &member]], "wrap", 4),
    ]
}

async fn readers(relay: &Relay) -> [(&'static str, Client); 3] {
    let stranger = connect(relay).await;
    let (mut guest, mut member) = (connect(relay).await, connect(relay).await);
    guest.auth(GUEST).await;
    member.auth(MEMBER).await;
    [("stranger", stranger), ("guest", guest), ("member", member)]
}

/// The next message, which must be for this id.
async fn next(client: &mut Client, id: &str) -> Value {
    let received = client.receive().await;
    assert_eq!(received[1], id, "{received}");
    received
}

fn refusal(received: &Value) -> Answer {
    let (prefix, words) = received[2].as_str().unwrap().split_once(": ").unwrap();
    assert!(!words.is_empty(), "{received}");
    refused(prefix)
}

/// The names of events, without their marks.
fn names(events: &[Value]) -> Answer {
    let name = |content: &&str| content.split_once(" word ").unwrap().1.to_owned();
    Answer::Sees(contents(events).iter().map(name).collect())
}

/// Sends a REQ, and returns the answer. Unless the REQ is refused, its subscription stays open.
async fn asked(client: &mut Client, id: &str, filter: &Value) -> Answer {
    client.send_text(json!(["REQ", id, filter])).await;
    let mut events = Vec::new();
    loop {
        let received = next(client, id).await;
        match received[0].as_str().unwrap() {
            "EVENT" => events.push(received[2].clone()),
            "EOSE" => return names(&events),
            verb => {
                assert_eq!(verb, "CLOSED", "{received}");
                return refusal(&received);
            }
        }
    }
}

async fn counted(client: &mut Client, filter: &Value) -> Result<u64, Answer> {
    client.send_text(json!(["COUNT", "count", filter])).await;
    let received = next(client, "count").await;
    match received[0].as_str().unwrap() {
        "COUNT" => Ok(received[2]["count"].as_u64().unwrap()),
        verb => {
            assert_eq!(verb, "CLOSED", "{received}");
            Err(refusal(&received))
        }
    }
}

async fn compared(client: &mut Client, filter: &Value, events: &[Value]) -> Answer {
    match compare(client, filter, &held([]), 4_096).await {
        Ok(found) => {
            let is_found = |event: &&Value| found.need.contains(event["id"].as_str().unwrap());
            names(&events.iter().filter(is_found).cloned().collect::<Vec<_>>())
        }
        Err(received) => {
            assert_eq!(received[0], "NEG-ERR", "{received}");
            refusal(&received)
        }
    }
}

/// The live events that the client has received by now on a subscription.
async fn delivered(client: &mut Client, id: &str) -> Answer {
    // The events were delivered before their OKs, so they are before this answer.
    client.send_text(json!(["COUNT", "end", {"ids": ["00".repeat(32)], "kinds": [1]}])).await;
    let mut events = Vec::new();
    loop {
        let received = client.receive().await;
        match received[1].as_str().unwrap() {
            "end" => return names(&events),
            sub => {
                assert_eq!((&received[0], sub), (&json!("EVENT"), id), "{received}");
                events.push(received[2].clone());
            }
        }
    }
}

/// A filter, and the expected answer for each reader.
type Case = (Value, [Answer; 3]);

/// Checks every way out: stored events, their number, a comparison, a search and live events.
async fn check(relay: &Relay, rule: &str, cases: &[Case]) {
    let mut writer = connect(relay).await;
    let stored = world("old", now_s() - 100);
    for event in &stored {
        writer.publish_new(event).await;
    }
    for (filter, answers) in cases {
        let with = |name: &str, value: Value| {
            let mut filter = filter.clone();
            filter[name] = value;
            filter
        };
        let past = with("until", json!(now_s() - 50));
        let mut clients = readers(relay).await;
        for ((who, client), expected) in clients.iter_mut().zip(answers) {
            let what = format!("{rule}: {who} {filter}");
            assert_eq!(asked(client, "past", &past).await, *expected, "REQ, {what}");
            assert_eq!(compared(client, &past, &stored).await, *expected, "NEG-OPEN, {what}");
            let count = counted(client, &past).await;
            // Gift wraps are not searched.
            let found = match expected {
                Answer::Sees(names) => {
                    assert_eq!(count, Ok(names.len() as u64), "COUNT, {what}");
                    Answer::Sees(names.iter().filter(|name| *name != "wrap").cloned().collect())
                }
                Answer::Refused(_) => {
                    assert_eq!(count, Err(expected.clone()), "COUNT, {what}");
                    expected.clone()
                }
            };
            let mut search = past.clone();
            search["search"] = json!("old word");
            assert_eq!(asked(client, "search", &search).await, found, "search, {what}");
            for id in ["past", "search"] {
                client.send_text(json!(["CLOSE", id])).await;
            }
            let live = asked(client, "live", &with("since", json!(now_s() + 10))).await;
            if let Answer::Refused(_) = expected {
                assert_eq!(live, *expected, "live, {what}");
            }
        }
        let mark = format!("live {filter}");
        for event in &world(&mark, now_s() + 20) {
            writer.publish_new(event).await;
        }
        for ((who, client), expected) in clients.iter_mut().zip(answers) {
            let got = delivered(client, "live").await;
            let nothing = sees(&[]);
            let expected = if matches!(expected, Answer::Sees(_)) { expected } else { &nothing };
            assert_eq!(got, *expected, "live, {rule}: {who} {filter}");
        }
    }
    for path in ["/", "/counts", "/page.js", "/healthz"] {
        let page = get(relay.address(), path);
        assert!(!page.text().contains(" word "), "{rule}: {path} has events");
    }
}

/// The relay's description of itself.
fn limitation(relay: &Relay, name: &str) -> Value {
    let request = HttpRequest::new("GET", "/").header("accept", "application/nostr+json");
    let document: Value = request.send(relay.address()).json();
    document["limitation"][name].clone()
}

/// The matrix of rules, ways out and readers.
async fn the_matrix(name: &str, store: impl Fn(usize) -> String) {
    let (all, kind) = (json!({}), json!({"kinds": [30]}));
    let (to_guest, by_guest) =
        (json!({"#p": [pubkey(GUEST)]}), json!({"authors": [pubkey(GUEST)]}));
    let public = sees(&["note", "closed", "to guest", "by guest"]);
    let everything = sees(&["note", "closed", "to guest", "by guest", "wrap"]);
    let closed = sees(&["closed", "to guest", "by guest"]);
    let of = |answer: &Answer| [answer.clone(), answer.clone(), answer.clone()];
    let (auth, no) = (refused("auth-required"), refused("restricted"));
    let blocked = refused("blocked");
    let (none, note) = (sees(&[]), sees(&["note"]));
    let (to, by) = (sees(&["to guest"]), sees(&["by guest"]));
    let cells: [(&str, bool, Vec<Case>); 7] = [
        (
            "",
            false,
            vec![
                (all.clone(), [public.clone(), public.clone(), everything.clone()]),
                (kind.clone(), of(&closed)),
            ],
        ),
        (
            "members_only_kinds = [\"*\"]",
            true,
            vec![
                (all.clone(), [auth.clone(), no.clone(), everything.clone()]),
                (kind.clone(), [auth.clone(), no.clone(), closed.clone()]),
                (to_guest.clone(), [auth.clone(), no.clone(), to.clone()]),
                (by_guest.clone(), [auth.clone(), no.clone(), by.clone()]),
            ],
        ),
        (
            "members_only_kinds = [\"*\"]\nmembers_only_except_own = true",
            true,
            vec![
                (all.clone(), [auth.clone(), no.clone(), everything.clone()]),
                (kind.clone(), [auth.clone(), no.clone(), closed.clone()]),
                (to_guest.clone(), [auth.clone(), to.clone(), to.clone()]),
                (by_guest.clone(), [auth.clone(), by.clone(), by.clone()]),
            ],
        ),
        (
            "members_only_kinds = [30]",
            false,
            vec![
                (all.clone(), [note.clone(), note.clone(), everything.clone()]),
                (kind.clone(), [auth.clone(), no.clone(), closed.clone()]),
                (to_guest.clone(), [none.clone(), none.clone(), to.clone()]),
                (by_guest.clone(), [none.clone(), none.clone(), by.clone()]),
            ],
        ),
        (
            "members_only_kinds = [\"28-30\"]\nmembers_only_except_own = true",
            false,
            vec![
                (
                    all.clone(),
                    [note.clone(), sees(&["note", "to guest", "by guest"]), everything.clone()],
                ),
                (kind.clone(), [auth.clone(), sees(&["to guest", "by guest"]), closed.clone()]),
                (to_guest.clone(), [none.clone(), to.clone(), to.clone()]),
                (by_guest.clone(), [none.clone(), by.clone(), by.clone()]),
            ],
        ),
        (
            "question_kinds = [0, 1]",
            false,
            vec![
                (all.clone(), of(&note)),
                (kind.clone(), of(&blocked)),
                (by_guest.clone(), of(&none)),
            ],
        ),
        (
            "narrow_questions = true",
            false,
            vec![
                (all, of(&blocked)),
                (kind, of(&blocked)),
                (by_guest, of(&by)),
                (to_guest, of(&to)),
            ],
        ),
    ];
    for (at, (rule, needs_auth, cases)) in cells.iter().enumerate() {
        let settings = settings(rule, &store(at));
        let relay = Relay::start(&format!("reading-{name}-{at}"), &settings);
        check(&relay, rule, cases).await;
        assert_eq!(limitation(&relay, "auth_required"), json!(needs_auth), "{rule}");
        assert_eq!(limitation(&relay, "restricted_writes"), json!(true), "{rule}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_holds_on_every_way_out_for_every_reader_in_files() {
    the_matrix("files", |_| "seal_records = 4".to_owned()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_holds_on_every_way_out_for_every_reader_in_postgres() {
    let names: Vec<String> = (0..7).map(|at| format!("reading{at}")).collect();
    let databases: Vec<_> = names.iter().map(|name| Cluster::shared().database(name)).collect();
    let store = |at: usize| format!("store = \"{}\"", databases[at].url);
    the_matrix("postgres", store).await;
}

/// Writes the configuration again, and puts it in force.
fn reload(relay: &Relay, settings: &str) {
    relay.place.folder.file(relay.place.settings, settings);
    let reloaded = relay.place.command(&["reload"]).output().unwrap();
    assert!(reloaded.status.success(), "{reloaded:?}");
}

/// Waits until the subscription is closed, and returns the refusal.
async fn closed(client: &mut Client, id: &str) -> Answer {
    let received = next(client, id).await;
    assert_eq!(received[0], "CLOSED", "{received}");
    refusal(&received)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_rule_closes_the_open_subscriptions_that_it_forbids_and_no_others() {
    let relay = Relay::start("reading-reload", &settings("", ""));
    let mut writer = connect(&relay).await;
    let mut clients = readers(&relay).await;
    for (_, client) in &mut clients {
        for (id, filter) in [
            ("all", json!({})),
            ("notes", json!({"kinds": [1]})),
            ("own", json!({"authors": [pubkey(GUEST)], "kinds": [30]})),
        ] {
            assert_eq!(asked(client, id, &filter).await, sees(&[]));
        }
        client.send_text(json!(["NEG-OPEN", "compare", {}, NOTHING])).await;
        assert_eq!(client.receive().await[0], "NEG-MSG");
    }
    let [stranger, guest, member] = &mut clients;
    reload(&relay, &settings("members_only_kinds = [30]", ""));
    for event in &world("first", now_s()) {
        writer.publish_new(event).await;
    }
    for id in ["all", "own"] {
        assert_eq!(closed(&mut stranger.1, id).await, refused("auth-required"));
        assert_eq!(closed(&mut guest.1, id).await, refused("restricted"));
    }
    assert_eq!(delivered(&mut stranger.1, "notes").await, sees(&["note"]));
    assert_eq!(delivered(&mut guest.1, "notes").await, sees(&["note"]));
    // An open comparison is refused at its next message.
    for ((_, client), prefix) in [(&mut *stranger, "auth-required"), (&mut *guest, "restricted")] {
        client.send_text(json!(["NEG-MSG", "compare", NOTHING])).await;
        let received = next(client, "compare").await;
        assert_eq!(received[0], "NEG-ERR", "{received}");
        assert_eq!(refusal(&received), refused(prefix));
    }

    reload(&relay, &settings("members_only_kinds = [\"*\"]", ""));
    assert_eq!(closed(&mut stranger.1, "notes").await, refused("auth-required"));
    assert_eq!(closed(&mut guest.1, "notes").await, refused("restricted"));
    member.1.send_text(json!(["NEG-MSG", "compare", NOTHING])).await;
    let mut live = 0;
    loop {
        let received = member.1.receive().await;
        if received[1] == "compare" {
            assert_eq!(received[0], "NEG-MSG", "{received}");
            break;
        }
        assert_eq!(received[0], "EVENT", "{received}");
        live += 1;
    }
    // `all` has five events; `notes` and `own` have one event each.
    assert_eq!(live, 7);

    // The member's subscriptions are open as long as the key is on the list.
    let nobody = settings("members_only_kinds = [\"*\"]", "").replace(&pubkey(MEMBER), &pubkey(9));
    reload(&relay, &nobody);
    for id in ["all", "notes", "own"] {
        assert_eq!(closed(&mut member.1, id).await, refused("restricted"));
    }
    reload(&relay, &settings("narrow_questions = true", ""));
    let own = json!({"authors": [pubkey(GUEST)]});
    assert_eq!(asked(&mut stranger.1, "own", &own).await, sees(&["by guest"]));
    reload(&relay, &settings("question_kinds = [1]", ""));
    assert_eq!(closed(&mut stranger.1, "own").await, refused("blocked"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allow_of_the_archive_makes_a_member_until_it_is_lifted() {
    let relay = Relay::start("reading-allow", &settings("members_only_kinds = [\"*\"]", ""));
    let hark = |args: &[&str]| {
        let done = relay.place.command(args).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let [_, (_, mut guest), (_, mut member)] = readers(&relay).await;
    assert_eq!(asked(&mut guest, "s", &json!({})).await, refused("restricted"));
    hark(&["allow", &pubkey(GUEST)]);
    assert_eq!(asked(&mut guest, "s", &json!({})).await, sees(&[]));
    assert_eq!(asked(&mut member, "s", &json!({})).await, sees(&[]));
    hark(&["unallow", &pubkey(GUEST)]);
    let mut writer = connect(&relay).await;
    for event in &world("late", now_s()) {
        writer.publish_new(event).await;
    }
    assert_eq!(closed(&mut guest, "s").await, refused("restricted"));
    let all = sees(&["note", "closed", "to guest", "by guest", "wrap"]);
    assert_eq!(delivered(&mut member, "s").await, all);
    assert_eq!(counted(&mut guest, &json!({})).await, Err(refused("restricted")));
}

/// A comparison of many events reads sums, and no event. The sums leave out the kinds of members.
#[tokio::test(flavor = "multi_thread")]
async fn sums_of_a_comparison_leave_out_the_kinds_of_members() {
    let rule = "members_only_kinds = [30]";
    let bounds = "[limits]\nnegentropy_events_max = 5\n";
    let relay = Relay::start("reading-sums", &format!("{}{bounds}", settings(rule, "")));
    let mut writer = connect(&relay).await;
    for n in 0..20 {
        let kind = if n % 2 == 0 { 1 } else { 30 };
        let content = format!("{n} word {kind} {n}");
        writer.publish_new(&event(WRITER, now_s() - n, kind, &[], &content)).await;
    }
    for (who, client) in &mut readers(&relay).await {
        let all = compare(client, &json!({}), &held([]), 4_096).await.expect("an answer");
        let seen = client.find_now(&[json!({})]).await;
        let expected = if *who == "member" { 20 } else { 10 };
        assert_eq!((seen.len(), all.need.len()), (expected, expected), "{who}");
        assert!(seen.iter().all(|event| all.need.contains(event["id"].as_str().unwrap())));
    }
}

/// Without a list of members, a client may read after it has authenticated with any key.
#[tokio::test(flavor = "multi_thread")]
async fn any_key_reads_where_any_key_may_write() {
    let relay = Relay::start("reading-any", "[policy]\nmembers_only_kinds = [\"*\"]\n");
    let mut client = connect(&relay).await;
    client.publish_new(&event(1, now_s(), 1, &[], "a word note")).await;
    assert_eq!(asked(&mut client, "s", &json!({})).await, refused("auth-required"));
    assert_eq!(client.challenged_again, 1, "the challenge comes again, before the refusal");
    client.auth(GUEST).await;
    assert_eq!(asked(&mut client, "s", &json!({})).await, sees(&["note"]));
    assert_eq!(limitation(&relay, "auth_required"), json!(true));
    assert_eq!(limitation(&relay, "restricted_writes"), json!(false));
}
