//! Invites that members make from their clients (NIP-43), over the binary: on files, with
//! nostr-tools, and with two servers on one database.

use hark_testkit::clock::now_s;
use hark_testkit::nostr::client::Client;
use hark_testkit::nostr::{event, pubkey};
use hark_testkit::postgres::Cluster;
use hark_testkit::server::Server;
use hark_testkit::wait::until;
use serde_json::{Value, json};

use crate::members::{connect, join, own_key, run};
use crate::nostr::nostr_tools;
use crate::served::{Place, Relay};

fn settings(member_invites: u32) -> String {
    format!(
        "[self]\nkey_file = \"relay.key\"\nmember_invites = {member_invites}\n\
         [policy]\nallow_keys = []\n"
    )
}

fn invites_of(own: &str) -> Value {
    json!({ "kinds": [28_935], "authors": [own] })
}

/// Asks for an invite. Returns its code, or the reason of the refusal.
async fn ask(client: &mut Client, filter: &Value) -> Result<String, String> {
    client.send_text(json!(["REQ", "invite", filter])).await;
    let message = client.receive().await;
    if message[0] == "CLOSED" {
        return Err(message[2].as_str().expect("a reason").to_owned());
    }
    assert_eq!(message[0], "EVENT", "{message}");
    let invite = &message[2];
    assert_eq!((&invite["kind"], &invite["content"]), (&json!(28_935), &json!("")));
    assert_eq!((&invite["tags"][0], &invite["tags"][1][0]), (&json!(["-"]), &json!("claim")));
    assert_eq!(client.receive().await[0], "EOSE");
    client.send_text(json!(["CLOSE", "invite"])).await;
    Ok(invite["tags"][1][1].as_str().expect("a code").to_owned())
}

/// The codes that `hark invite --list` lists.
fn listed(place: &Place) -> Vec<Value> {
    let list = run(place, &["invite", "--list", "--json"]);
    list.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_makes_codes_from_a_client_up_to_the_number_of_a_day() {
    let relay = Relay::start("member-invites", &settings(2));
    let own = own_key(relay.address());
    let mine = invites_of(&own);
    run(&relay.place, &["allow", &pubkey(1)]);
    let mut stranger = Client::connect(&relay.url(), now_s()).await;
    let refused = ask(&mut stranger, &mine).await.expect_err("needs AUTH");
    assert!(refused.starts_with("auth-required: "), "{refused}");
    assert_eq!(stranger.challenged_again, 1);
    // A question for other kinds as well is answered without an invite.
    let mixed = json!({ "kinds": [1, 28_935] });
    assert!(stranger.find_now(std::slice::from_ref(&mixed)).await.is_empty());
    let mut guest = connect(relay.address(), 2).await;
    let refused = ask(&mut guest, &mine).await.expect_err("is for members");
    assert!(refused.starts_with("restricted: "), "{refused}");

    let mut member = connect(relay.address(), 1).await;
    // None of these questions asks for an invite.
    assert_eq!(member.count(std::slice::from_ref(&mine)).await, 0);
    for filter in [
        json!({}),
        json!({ "kinds": [1] }),
        json!({ "kinds": [28_935], "limit": 0 }),
        json!({ "kinds": [28_935], "authors": [pubkey(1)] }),
        json!({ "kinds": [28_935], "ids": [own] }),
        json!({ "kinds": [28_935], "#p": [own] }),
        json!({ "kinds": [28_935], "until": now_s() - 60 }),
        json!({ "kinds": [28_935], "since": now_s() + 600 }),
    ] {
        assert!(member.find_now(&[filter]).await.is_empty());
    }
    assert!(listed(&relay.place).is_empty());
    let code = ask(&mut member, &mine).await.expect("a code");
    // One question has one code, whatever the number of its filters.
    let invites = member.ask("open", &[mixed.clone(), json!({ "kinds": [28_935] })]).await;
    assert_eq!((invites.len(), &invites[0]["pubkey"]), (1, &json!(own)), "{invites:?}");
    let other = invites[0]["tags"][1][1].as_str().expect("a code");
    let refused = ask(&mut member, &mine).await.expect_err("two a day");
    assert_eq!(refused, "rate-limited: a member may make 2 invite codes a day");
    assert!(member.find_now(&[mixed]).await.is_empty());

    let rows = listed(&relay.place);
    assert_eq!(rows.len(), 2, "{rows:?}");
    for row in &rows {
        assert!(row["code"] == code.as_str() || row["code"] == other, "{row}");
        assert_eq!((&row["uses"], &row["uses_max"]), (&json!(0), &json!(1)));
        assert!(row["by"].as_str().expect("a maker").starts_with("npub1"));
        assert_eq!(row["until"].as_u64(), row["since"].as_u64().map(|at_s| at_s + 7 * 86_400));
    }
    let log = run(&relay.place, &["log", "--json"]);
    let made = log.lines().filter(|line| line.contains("\"act\":\"invite\""));
    assert_eq!(made.filter(|line| line.contains("\"by\":\"npub1")).count(), 2, "{log}");
    assert!(!log.contains(&code), "{log}");

    let (is_done, said) = guest.publish(&join(2, &code)).await;
    assert!(is_done && said.starts_with("info: welcome"), "{said}");
    let mut third = connect(relay.address(), 3).await;
    let used = third.publish(&join(3, &code)).await;
    assert_eq!(used, (false, "restricted: that invite code is used up.".into()));
    // Nobody else makes invites, and the invites of the relay reach no subscription: the next event
    // for the first member's subscription is a note.
    let forged = event(2, now_s(), 28_935, &[&["-"], &["claim", "00"]], "");
    let (is_done, said) = guest.publish(&forged).await;
    assert!(!is_done && said.starts_with("restricted: "), "{said}");
    ask(&mut guest, &mine).await.expect("the new member makes a code as well");
    let note = event(2, now_s(), 1, &[], "hello");
    guest.publish_new(&note).await;
    assert_eq!(member.receive().await[2]["id"], note["id"]);

    // The codes of a member who leaves are gone.
    let (is_done, said) = member.publish(&event(1, now_s(), 28_936, &[&["-"]], "")).await;
    assert!(is_done && said.starts_with("info: you have left"), "{said}");
    assert!(listed(&relay.place).iter().all(|row| row["code"] != other));
    let gone = third.publish(&join(3, other)).await;
    assert_eq!(gone, (false, "restricted: that is an invalid invite code.".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_make_no_codes_unless_the_setting_lets_them() {
    let relay = Relay::start("no-member-invites", &settings(0));
    let own = own_key(relay.address());
    run(&relay.place, &["allow", &pubkey(1)]);
    let mut member = connect(relay.address(), 1).await;
    assert!(member.find_now(&[invites_of(&own)]).await.is_empty());
    assert!(listed(&relay.place).is_empty());
    relay.place.folder.file("hark.toml", settings(1));
    run(&relay.place, &["reload"]);
    ask(&mut member, &invites_of(&own)).await.expect("a code");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rates_count_the_codes_of_members() {
    let place = Place::new("member-invites-rates", &settings(9));
    place.folder.file(
        "hark.toml",
        settings(9)
            + "[[rates.groups]]\nname = \"invites\"\nkinds = [28935]\nevents_per_key = [1, 1]\n",
    );
    let server = Server::start(&mut place.serving(&[]));
    let own = own_key(&server.address);
    run(&place, &["allow", &pubkey(1)]);
    let mut member = connect(&server.address, 1).await;
    ask(&mut member, &invites_of(&own)).await.expect("a code");
    let refused = ask(&mut member, &invites_of(&own)).await.expect_err("one a minute");
    assert!(refused.starts_with("rate-limited: ") && !refused.contains("a day"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_codes_of_a_member_are_exact_and_valid_on_both_servers_of_a_database() {
    let database = Cluster::shared().database("member-invites");
    let places = ["member-invites-one", "member-invites-two"].map(|name| {
        let place = Place::new(name, &settings(3));
        place.folder.file("relay.key", "07".repeat(32));
        place
    });
    let servers = [0, 1].map(|at| {
        let place: &Place = &places[at];
        Server::start(&mut place.serving(&["--unlimited", "--store", &database.url]))
    });
    let own = own_key(&servers[0].address);
    assert_eq!(own_key(&servers[1].address), own);
    // A server that is asked for an allow which the other server has made knows this allow from then on.
    for place in &places {
        run(place, &["--store", &database.url, "allow", &pubkey(1)]);
    }
    let mut tasks = Vec::new();
    for number in 0..8 {
        let (address, own) = (servers[number % 2].address.clone(), own.clone());
        tasks.push(tokio::spawn(async move {
            let mut client = connect(&address, 1).await;
            let code = ask(&mut client, &invites_of(&own)).await;
            (number % 2, code)
        }));
    }
    let mut codes = Vec::new();
    for task in tasks {
        match task.await.expect("no panic") {
            (at, Ok(code)) => codes.push((at, code)),
            (_, Err(reason)) => assert!(reason.starts_with("rate-limited: "), "{reason}"),
        }
    }
    assert_eq!(codes.len(), 3, "{codes:?}");
    let (at, code) = &codes[0];
    let mut other = connect(&servers[1 - at].address, 2).await;
    let (is_done, said) = other.publish(&join(2, code)).await;
    assert!(is_done, "{said}");
    // The codes of a banned member are gone everywhere.
    run(&places[0], &["--store", &database.url, "ban", &pubkey(1)]);
    until("the other server has no codes either", || {
        run(&places[1], &["--store", &database.url, "invite", "--list"]).starts_with("0 codes")
    });
    let mut third = connect(&servers[1 - codes[1].0].address, 3).await;
    let gone = third.publish(&join(3, &codes[1].1)).await;
    assert_eq!(gone, (false, "restricted: that is an invalid invite code.".into()));
}

#[test]
fn nostr_tools_invites_a_friend() {
    let relay = Relay::start("nostr-tools-invite", &settings(1));
    own_key(relay.address());
    run(&relay.place, &["allow", &pubkey(1)]);
    nostr_tools("nostr-tools-invite.mjs", &relay);
}
