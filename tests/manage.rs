//! The relay management API (NIP-86) with a real client: every method, roles, requests that must be
//! refused, and changes that outlast a restart and hold on all nodes of a database.

use hark_codec::crypto::{KeyPair, sha256};
use hark_codec::hex;
use hark_codec::nostr::EventDraft;
use hark_testkit::clock::now_s;
use hark_testkit::http::{HttpReply, HttpRequest};
use hark_testkit::nostr::client::Client;
use hark_testkit::postgres::Cluster;
use hark_testkit::wait::{until, until_async};
use serde_json::{Value, json};

use crate::nostr::nostr_tools;
use crate::served::{Place, Relay};

const MEDIA_TYPE: &str = "application/nostr+json+rpc";

fn digits(bytes: &[u8; 32]) -> String {
    String::from_utf8(hex::encode_32(bytes).to_vec()).expect("digits")
}

fn keys(secret: u8) -> KeyPair {
    KeyPair::from_secret([secret; 32]).expect("a secret key")
}

fn key(secret: u8) -> String {
    digits(keys(secret).public())
}

/// Settings with an admin and two roles, for the script of nostr-tools.
fn settings() -> String {
    format!(
        r#"
        [info]
        name = "From the file"
        description = "Described in the file"
        [manage]
        keys = ["{}"]
        [[manage.roles]]
        id = "moderator"
        methods = ["banevent", "allowevent", "listbannedevents", "listeventsneedingmoderation"]
        keys = ["{}"]
        [[manage.roles]]
        id = "guard"
        methods = ["banpubkey", "unbanpubkey", "assignrole", "unassignrole"]
        keys = ["{}"]
        "#,
        key(1),
        key(2),
        key(3)
    )
}

/// A signed request. The fields may be changed before it is sent.
struct SignedCall {
    body: String,
    url: String,
    method: &'static str,
    created_at: u64,
    payload: Option<String>,
    secret: u8,
}

impl SignedCall {
    fn new(address: &str, method: &str, params: impl Into<Value>) -> Self {
        // Without a number, equal calls of one second would have equal signatures.
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let params: Value = params.into();
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let body = json!({ "method": method, "params": params, "n": number }).to_string();
        let payload = Some(digits(&sha256(body.as_bytes())));
        let url = format!("http://{address}/");
        Self { body, url, method: "POST", created_at: now_s(), payload, secret: 1 }
    }

    /// The value of the `Authorization` header.
    fn header(&self) -> String {
        let mut tags: Vec<&[&str]> = Vec::new();
        let (url, method) = (["u", self.url.as_str()], ["method", self.method]);
        let payload = self.payload.as_ref().map(|payload| ["payload", payload.as_str()]);
        tags.extend([&url[..], &method[..]]);
        tags.extend(payload.iter().map(|tag| &tag[..]));
        let mut json = Vec::new();
        let draft =
            EventDraft { created_at: self.created_at, kind: 27_235, tags: &tags, content: "" };
        draft.sign(&keys(self.secret), &mut json);
        format!("Nostr {}", base64_simd::STANDARD.encode_to_string(json))
    }

    fn send(&self, address: &str) -> (u16, Value) {
        read(&self.send_with(address, &self.header()))
    }

    fn send_with(&self, address: &str, header: &str) -> HttpReply {
        let request = HttpRequest::new("POST", "/").header("Content-Type", MEDIA_TYPE);
        request.header("Authorization", header).body(&self.body).send(address)
    }
}

fn read(reply: &HttpReply) -> (u16, Value) {
    let body = serde_json::from_slice(&reply.body).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&reply.body));
    });
    (reply.status, body)
}

/// Calls a method as the admin, which must succeed, and returns the result.
fn call(address: &str, method: &str, params: Value) -> Value {
    let (status, mut answer) = SignedCall::new(address, method, params).send(address);
    assert_eq!(status, 200, "{method}: {answer}");
    answer["result"].take()
}

fn info(address: &str) -> Value {
    let request = HttpRequest::new("GET", "/").header("Accept", "application/nostr+json");
    serde_json::from_slice(&request.send(address).body).expect("JSON")
}

#[test]
fn nostr_tools_calls_every_method_and_the_changes_outlast_a_restart() {
    let mut relay = Relay::start("nostr-tools-manage", &settings());
    nostr_tools("nostr-tools-manage.mjs", &relay);
    let log = relay.place.command(&["log", "--json"]).output().expect("the binary runs");
    let log = String::from_utf8(log.stdout).expect("text");
    for act in ["changerelayname", "createrole", "editrole", "deleterole", "assignrole", "ban"] {
        let of_act = format!("\"act\":\"{act}\"");
        assert!(log.lines().any(|line| line.contains(&of_act)), "{act}: {log}");
    }
    assert!(log.lines().all(|line| line.contains("npub1")), "{log}");
    relay.server.kill();
    let server = relay.place.start();
    let address = &server.address;
    let described = info(address);
    assert_eq!(described["name"], "From a client");
    assert_eq!(described["icon"], "https://relay.example/icon.png");
    let blocked = json!([{ "ip": "192.0.2.7", "reason": "a flood" }]);
    assert_eq!(call(address, "listblockedips", json!([])), blocked);
    let mut assigned = SignedCall::new(address, "supportedmethods", json!([]));
    assigned.secret = 4;
    let (status, answer) = assigned.send(address);
    assert_eq!((status, answer["result"].as_array().map(Vec::len)), (200, Some(4)));
    // An empty name restores the name of the file.
    call(address, "changerelayname", json!([""]));
    assert_eq!(info(address)["name"], "From the file");
}

#[test]
fn a_request_that_was_not_signed_for_this_relay_now_is_refused() {
    let relay = Relay::start("manage-refused", &settings());
    let address = relay.server.address.as_str();
    let valid = || SignedCall::new(address, "supportedmethods", json!([]));
    assert_eq!(valid().send(address).0, 200);
    // A URL of a WebSocket names the same relay.
    let of_socket = SignedCall { url: format!("ws://{address}"), ..valid() };
    assert_eq!(of_socket.send(address).0, 200);
    let hash = digits(&sha256(b"{}"));
    for (call, words) in [
        (SignedCall { url: "https://other.example/".into(), ..valid() }, "the u tag"),
        (SignedCall { url: format!("http://{address}/?a=b"), ..valid() }, "the u tag"),
        (SignedCall { url: String::new(), ..valid() }, "the u tag"),
        (SignedCall { method: "GET", ..valid() }, "the method tag"),
        (SignedCall { payload: None, ..valid() }, "no payload tag"),
        (SignedCall { payload: Some(hash), ..valid() }, "is not the SHA-256"),
        (SignedCall { created_at: now_s() - 3_600, ..valid() }, "created_at"),
        (SignedCall { created_at: now_s() + 3_600, ..valid() }, "created_at"),
    ] {
        let (status, answer) = call.send(address);
        assert_eq!(status, 401, "{words}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(words)), "{answer}");
    }
    let (status, answer) = SignedCall { secret: 9, ..valid() }.send(address);
    assert_eq!((status, &answer["error"]), (403, &json!("this key does not manage this relay")));
    // Each signature is accepted only once.
    let (once, header) = (valid(), valid());
    let header_of_once = once.header();
    assert_eq!(once.send_with(address, &header_of_once).status, 200);
    let (status, answer) = read(&once.send_with(address, &header_of_once));
    assert_eq!(status, 401);
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("used before")));
    let other_body = SignedCall { body: once.body.clone(), ..header };
    assert_eq!(other_body.send(address).0, 401);
    for header in ["", "Nostr", "Nostr %", "Bearer x", "Nostr e30="] {
        let reply = once.send_with(address, header);
        assert_eq!(reply.status, 401, "{header}");
        assert!(reply.head.contains("www-authenticate: nostr"), "{}", reply.head);
    }
    let unsigned = HttpRequest::new("POST", "/").header("Content-Type", MEDIA_TYPE).body("{}");
    assert_eq!(unsigned.send(address).status, 401);
    // Bodies: too long, no JSON, no method.
    let long = "x".repeat(70_000);
    let payload = Some(digits(&sha256(long.as_bytes())));
    let long = SignedCall { body: long, payload, ..valid() };
    let header = long.header();
    let request = HttpRequest::new("POST", "/").header("Content-Type", MEDIA_TYPE);
    let request = request.header("Authorization", &header).body(&long.body).without_body();
    assert_eq!(request.send(address).status, 413);
    for body in ["", "no JSON", "[]", r#"{"method":"signevent","params":[]}"#] {
        let payload = Some(digits(&sha256(body.as_bytes())));
        let (status, answer) = SignedCall { body: body.into(), payload, ..valid() }.send(address);
        assert_eq!(status, 400, "{body}: {answer}");
    }
    // Any other POST is not a call of the API.
    assert_eq!(HttpRequest::new("POST", "/").json("{}").send(address).status, 405);
    let elsewhere = HttpRequest::new("POST", "/x").header("Content-Type", MEDIA_TYPE).body("{}");
    assert_eq!(elsewhere.send(address).status, 405);
}

#[test]
fn behind_a_proxy_the_configured_url_is_the_one_that_counts() {
    let settings = settings().replace("[info]", "[info]\nurl = \"wss://relay.example/chat\"");
    let relay = Relay::start("manage-proxy", &settings);
    let address = relay.server.address.as_str();
    let of = |url: &str| {
        let call = SignedCall::new(address, "supportedmethods", json!([]));
        SignedCall { url: url.into(), ..call }.send(address).0
    };
    for url in [
        "https://relay.example/chat",
        "wss://relay.example/chat/",
        "https://RELAY.example:443/chat",
    ] {
        assert_eq!(of(url), 200, "{url}");
    }
    for url in [
        "https://relay.example/",
        "https://relay.example/chat/x",
        "https://relay.example.evil.example/chat",
    ] {
        assert_eq!(of(url), 401, "{url}");
    }
}

#[test]
fn without_managers_every_call_is_refused_until_the_settings_name_one() {
    let relay = Relay::start("manage-none", "");
    let address = relay.server.address.as_str();
    let (status, answer) = SignedCall::new(address, "supportedmethods", json!([])).send(address);
    assert_eq!(status, 403);
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("[manage] keys")));
    let nips = info(address)["supported_nips"].clone();
    assert!(!nips.as_array().expect("a list").contains(&json!(86)));
    relay.place.folder.file(relay.place.settings, settings());
    let reload = relay.place.command(&["reload"]).output().expect("the binary runs");
    assert!(reload.status.success(), "{reload:?}");
    let methods = call(address, "supportedmethods", json!([]));
    assert_eq!(methods.as_array().map(Vec::len), Some(24));
    let nips = info(address)["supported_nips"].clone();
    assert!(nips.as_array().expect("a list").contains(&json!(86)));
}

#[test]
fn a_change_holds_on_all_nodes_of_a_database() {
    let database = Cluster::shared().database("manage");
    let nodes = ["manage-one", "manage-two"].map(|name| {
        let place = Place::new(name, &settings());
        let server = place.serving(&["--unlimited", "--store", &database.url]);
        (place, hark_testkit::server::Server::start(&mut { server }))
    });
    let [one, two] = [&nodes[0].1.address, &nodes[1].1.address];
    call(one, "changerelayname", json!(["Of both"]));
    call(one, "createrole", json!(["king", "King", "", 37, 1]));
    call(one, "assignrole", json!([key(4), "moderator"]));
    call(one, "banpubkey", json!([key(5), "spam"]));
    assert_eq!(info(one)["name"], "Of both");
    until("the other node has the name", || info(two)["name"] == "Of both");
    until("the other node has the role", || {
        let call = SignedCall::new(two, "supportedmethods", json!([]));
        SignedCall { secret: 4, ..call }.send(two).0 == 200
    });
    let banned = json!([{ "pubkey": key(5), "reason": "spam" }]);
    until("the other node has the ban", || call(two, "listbannedpubkeys", json!([])) == banned);
    let (status, _) = SignedCall::new(two, "createrole", json!(["king", "", "", 1, 1])).send(two);
    assert_eq!(status, 400, "the role is known to both");
}

/// Waits until the events of a kind have these tags.
async fn wait_for_tags(client: &mut Client, kind: u16, wanted: Value) {
    until_async("the relay has published its events", async || {
        let found = client.find_now(&[json!({ "kinds": [kind] })]).await;
        let tags: Vec<Value> = found.iter().map(|event| event["tags"].clone()).collect();
        Value::from(tags) == wanted
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_and_their_members_are_published_until_they_are_deleted() {
    let own = "\n[self]\nkey_file = \"relay.key\"\nmembers = true\nreport = true\n";
    let settings = settings().replace("[info]", "[info]\nurl = \"wss://Relay.example\"");
    let relay = Relay::start("manage-members", &(settings + own));
    let address = relay.address();
    call(address, "allowpubkey", json!([key(5)]));
    call(address, "createrole", json!(["a:b", "King", "rules", 37, 1]));
    call(address, "assignrole", json!([key(5), "a:b"]));
    let mut client = Client::connect(&relay.url(), now_s()).await;
    let role = json!([
        ["-"],
        ["d", "a:b"],
        ["label", "King"],
        ["description", "rules"],
        ["color", "37"],
        ["order", "1"]
    ]);
    wait_for_tags(&mut client, 33_534, json!([role])).await;
    wait_for_tags(&mut client, 13_534, json!([[["-"], ["member", key(5), "a:b"]]])).await;
    call(address, "deleterole", json!(["a:b"]));
    wait_for_tags(&mut client, 33_534, json!([])).await;
    wait_for_tags(&mut client, 13_534, json!([[["-"], ["member", key(5)]]])).await;
    let report = client.find_now(&[json!({ "kinds": [30_166] })]).await;
    assert_eq!(report[0]["tags"][0], json!(["d", "wss://relay.example/"]));
    assert_eq!(report[0]["pubkey"], info(address)["self"]);
}
