//! Access to the REST door, also for web pages, since browsers let any web page send requests to
//! any address. Also the bounds of a client's connections and answers.

use std::io::{ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream};

use hark_testkit::clock::now_ns;
use hark_testkit::http::{HttpReply, HttpRequest};
use hark_testkit::wait::until;
use serde_json::Value;

use super::{LIMITED, Node, folder, message, text};

/// Sends a request with only these headers and the length, and returns the answer.
fn asked(node: &Node, request: &str, headers: &[(&str, &str)], body: &str) -> HttpReply {
    let (method, path) = request.split_once(' ').expect("a method and a path");
    let host = headers.iter().find(|(name, _)| *name == "Host").map_or(&*node.rest, |of| of.1);
    let others: Vec<_> = headers.iter().copied().filter(|(name, _)| *name != "Host").collect();
    HttpRequest::new(method, path).host(host).headers(&others).body(body).send(&node.rest)
}

const PUBLISH: &str = "POST /relay/v1/auto/messages";
const JSON: (&str, &str) = ("Content-Type", "application/json");

#[test]
fn rest_is_at_every_address_of_a_list() {
    let node = Node::start("rest-list", &[("rest", "127.0.0.1:0, 127.0.0.2:0")]);
    let [line] = node.server.doors.others.as_slice() else { panic!("{:?}", node.server.doors) };
    let second = line.strip_prefix("waku rest on http://").expect("an address");
    assert!(node.rest.starts_with("127.0.0.1:") && second.starts_with("127.0.0.2:"), "{line}");
    for address in [&*node.rest, second] {
        let answer = HttpRequest::new("GET", "/health").send(address);
        assert_eq!(answer.status, 200, "{address}: {}", answer.text());
    }
}

#[test]
fn a_page_of_anybody_neither_publishes_nor_reads() {
    let node = Node::start("pages", &[]);
    let body = message("toychat", "AA==", now_ns()).to_string();
    for (said, status) in [
        (&[("Origin", "https://evil.example"), JSON][..], 403),
        (&[("Origin", "null"), ("Content-Type", "text/plain")], 403),
        (&[("Host", "evil.example:8645"), JSON], 403),
        (&[("Content-Type", "text/plain;charset=UTF-8")], 400),
        (&[("Content-Type", "application/x-www-form-urlencoded")], 400),
        (&[("Sec-Fetch-Site", "cross-site"), JSON], 403),
    ] {
        let answer = asked(&node, PUBLISH, said, &body);
        assert_eq!(answer.status, status, "{said:?}: {}", answer.text());
    }
    assert_eq!(node.hashes(""), [""; 0], "nothing was published");
    // Programs outside of browsers send the JSON content type or none.
    assert_eq!(asked(&node, PUBLISH, &[JSON], &body).status, 200);
    assert_eq!(asked(&node, PUBLISH, &[], &body).status, 200);
    let shard = "GET /relay/v1/messages/%2Fwaku%2F2%2Frs%2F1%2F0";
    for said in [
        ("Origin", "https://evil.example"),
        ("Host", "evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
    ] {
        for request in [shard, "GET /store/v3/messages", "OPTIONS /store/v3/messages"] {
            let answer = asked(&node, request, &[said], "");
            let refused = answer.status == 403 && !answer.head.contains("access-control");
            assert!(refused, "{request} {said:?}: {}", answer.head);
        }
    }
    for host in ["localhost:8645", "[::1]:8645", "192.168.1.7"] {
        assert_eq!(asked(&node, "GET /health", &[("Host", host)], "").status, 200, "{host}");
    }
}

#[test]
fn pages_and_names_that_are_allowed_may() {
    let settings =
        [("rest_allow_origin", "http://localhost:*,app.example"), ("rest_hosts", "waku.example")];
    let node = Node::start("allowed", &settings);
    let body = message("toychat", "AA==", now_ns()).to_string();
    for origin in ["http://localhost:3000", "https://app.example"] {
        let said = [("Origin", origin), ("Sec-Fetch-Site", "cross-site"), JSON];
        let answer = asked(&node, PUBLISH, &said, &body);
        assert_eq!(answer.status, 200, "{origin}: {}", answer.text());
        let allowed = format!("access-control-allow-origin: {origin}\r\n");
        assert!(answer.head.contains(&allowed), "{}", answer.head);
        assert!(answer.head.contains("vary: origin\r\n"), "{}", answer.head);
        // Browsers first send a preflight request (CORS).
        let said = [("Origin", origin), ("Access-Control-Request-Method", "DELETE")];
        for path in ["/relay/v1/subscriptions", "/relay/v1/messages/x", "/store/v3/messages"] {
            let answer = asked(&node, &format!("OPTIONS {path}"), &said, "");
            let may = answer.head.contains("access-control-allow-methods: get, post, delete")
                && answer.head.contains("access-control-allow-headers: content-type");
            assert!(answer.status == 200 && may, "{path}: {}", answer.head);
        }
    }
    let other = [("Origin", "https://app.example.evil.example"), JSON];
    assert_eq!(asked(&node, PUBLISH, &other, &body).status, 403);
    assert_eq!(asked(&node, "GET /health", &[("Host", "waku.example")], "").status, 200);
    assert_eq!(asked(&node, "OPTIONS /health", &[], "").status, 200);
}

#[test]
fn ports_are_not_to_be_found_by_asking_for_peers() {
    let somebody = Node::start("ports-peer", &[]);
    let id = somebody.peers[0].rsplit('/').next().expect("an id");
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    listener.set_nonblocking(true).expect("is set");
    let open = listener.local_addr().expect("is bound").port();
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        listener.local_addr().expect("is bound").port()
    };
    let path = |addr: &str| format!("/store/v3/messages?peerAddr={addr}/p2p/{id}");
    let node = Node::start("ports", &[]);
    let mut said = Vec::new();
    for host in [
        "/ip4/127.0.0.1",
        "/ip4/10.0.0.1",
        "/ip4/169.254.169.254",
        "/ip4/100.64.0.1",
        "/ip6/::1",
        "/ip6/::ffff:127.0.0.1",
        "/ip6/fe80::1",
        "/dns4/localhost",
        "/dns/localhost",
    ] {
        for port in [open, closed] {
            said.push(node.ask("GET", &path(&format!("{host}/tcp/{port}")), ""));
        }
    }
    assert_eq!(said[0].0, 403, "{}", said[0].1);
    assert!(said.iter().all(|answer| *answer == said[0]), "{said:?}");
    let nobody = listener.accept().map(drop).map_err(|error| error.kind());
    assert_eq!(nobody, Err(ErrorKind::WouldBlock), "nobody has connected");
    let (status, words) = node.ask("GET", "/store/v3/messages?peerAddr=nonsense", "");
    assert_eq!((status, words.contains("parsing remote peer info")), (400, true), "{words}");

    // If any peer may be queried, open and closed ports still give the same answer.
    let node = Node::start("ports-any", &[("rest_any_peer", "true")]);
    let answers = [open, closed].map(|port| {
        if port == open {
            let listener = listener.try_clone().expect("is cloned");
            listener.set_nonblocking(false).expect("is set");
            // The open port closes the connection after accepting.
            std::thread::spawn(move || listener.accept().map(drop));
        }
        node.get(&path(&format!("/ip4/127.0.0.1/tcp/{port}")))
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0]["statusCode"], 504);
    assert_eq!(answers[0]["messages"], Value::Array(Vec::new()));

    // Configured or connected peers may be queried at any address.
    let node = Node::start("ports-known", &[("peers", &somebody.peers[0])]);
    until("the peer is asked", || {
        let path = format!("/store/v3/messages?peerAddr={}", somebody.peers[0]);
        node.ask("GET", &path, "").0 == 200 && node.get(&path)["statusCode"] == 200
    });
    assert_eq!(node.get(&path("/ip4/127.0.0.1/tcp/1"))["statusCode"], 200);
}

#[test]
fn addresses_that_are_denied_are_not_served() {
    let data = folder("denied");
    let file = data.join("hark.toml");
    std::fs::write(&file, "[policy]\ndeny_addresses = [\"192.0.2.0/24\"]\n").expect("is written");
    let path = file.to_str().expect("text").to_owned();
    let proxies = ("HARK_SERVER_TRUSTED_PROXIES", "127.0.0.1");
    let node = Node::on(data, &[("HARK_CONFIG", &path), proxies]);
    let health =
        |client: &str| asked(&node, "GET /health", &[("X-Forwarded-For", client)], "").status;
    assert_eq!([health("192.0.2.7"), health("192.0.3.7")], [403, 200]);
    let publish = [("X-Forwarded-For", "192.0.2.7"), JSON];
    let body = message("toychat", "AA==", now_ns()).to_string();
    assert_eq!(asked(&node, PUBLISH, &publish, &body).status, 403);
    // The list changes while the node runs.
    std::fs::write(&file, "[policy]\ndeny_addresses = [\"192.0.3.0/24\"]\n").expect("is written");
    until("the list is read again", || [health("192.0.2.7"), health("192.0.3.7")] == [200, 403]);

    let settings = [
        ("HARK_SERVER_TRUSTED_PROXIES", "10.0.0.0/8"),
        ("HARK_POLICY_DENY_ADDRESSES", "127.0.0.0/8"),
    ];
    let node = Node::start("denied-near", &settings);
    assert_eq!(asked(&node, "GET /health", &[], "").status, 403);
    assert_eq!(asked(&node, "GET /health", &[("X-Forwarded-For", "1.1.1.1")], "").status, 403);
}

#[test]
fn an_address_has_as_many_connections_by_rest_as_it_may() {
    let settings = [("HARK_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "3")];
    let node = Node::with(folder("crowded"), &[LIMITED], &settings);
    let connect = || TcpStream::connect(&node.rest).expect("connects");
    // Clients on this machine may have eight more connections, so that monitoring still gets
    // answers.
    let mut kept: Vec<_> = (0..3 + 8).map(|_| connect()).collect();
    // A connection counts once the server has accepted the connection.
    until("there are too many", || node.ask("GET", "/health", "").0 == 429);
    assert!(node.ask("GET", "/health", "").1.starts_with("rate-limited: your address"));
    drop(kept.pop());
    until("there is room again", || node.ask("GET", "/health", "").0 == 200);
}

#[test]
fn an_address_that_reads_no_answers_leaves_others_the_memory_for_answers() {
    let settings = [
        ("HARK_SERVER_TRUSTED_PROXIES", "127.0.0.1"),
        // The bound is two answers, so the memory of the address is used up long before its
        // connections are.
        ("HARK_LIMITS_OUTBOXES_PER_ADDRESS_BYTES_MAX", "16777216"),
    ];
    let node = Node::start("unread", &settings);
    // These messages are larger than a page may be (4 MiB). The answer with a full page is larger
    // than the buffers of the operating system.
    for at in 0..32 {
        node.publish(&message("unread", &"AAAA".repeat(45_000), now_ns() + at));
    }
    let request = "GET /store/v3/messages?includeData=true&pageSize=100";
    let ask = |client: &str| asked(&node, request, &[("X-Forwarded-For", client)], "").status;
    let head =
        format!("{request} HTTP/1.1\r\nHost: {}\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n", node.rest);
    let mut unread = Vec::new();
    // Until the address has no memory for another answer.
    while ask("192.0.2.1") != 503 {
        assert!(unread.len() < 200, "an address may hold any number of answers");
        let mut stream = TcpStream::connect(&node.rest).expect("connects");
        stream.write_all(head.as_bytes()).expect("is sent");
        unread.push(stream);
    }
    assert!(!unread.is_empty(), "a single answer is refused");
    assert_eq!(ask("192.0.2.2"), 200);
    drop(unread);
    until("the address has memory again", || ask("192.0.2.1") == 200);
}

#[test]
fn what_is_not_kept_is_not_subscribed_to() {
    let node = Node::start("subscribe", &[("shards", "0,1")]);
    let pubsub = "/relay/v1/subscriptions";
    let auto = "/relay/v1/auto/subscriptions";
    let of = |wanted: bool| {
        let topics = (0..).map(|at| format!("/app{at}/1/chat/proto"));
        let shard = |topic: &str| hark_codec::waku::Shard::of(topic, 1, 8).expect("a topic").index;
        topics.into_iter().find(|topic| (shard(topic) < 2) == wanted).expect("there is one")
    };
    for (path, topics, status, said) in [
        (pubsub, r#"["/waku/2/rs/1/777"]"#.to_owned(), 400, "does not serve /waku/2/rs/1/777"),
        (pubsub, r#"["/waku/2/rs/1/0", "/waku/2/rs/16/1"]"#.into(), 400, "/waku/2/rs/16/1"),
        (pubsub, r#"["nonsense"]"#.into(), 400, "nonsense"),
        (pubsub, r#"["/waku/2/rs/1/+1"]"#.into(), 400, "/waku/2/rs/1/+1"),
        (pubsub, r#"["/waku/2/rs/1/1"]"#.into(), 200, "OK"),
        (auto, r#"["nonsense"]"#.into(), 400, "nonsense"),
        (auto, format!("[\"{}\"]", of(false)), 400, "does not serve"),
        (auto, format!("[\"{}\"]", of(true)), 200, "OK"),
    ] {
        let (answered, words) = node.ask("POST", path, &topics);
        assert!(answered == status && words.contains(said), "{topics}: {answered} {words}");
    }
    assert_eq!(node.ask("DELETE", pubsub, r#"["nonsense"]"#).0, 400);
    assert_eq!(node.ask("DELETE", pubsub, r#"["/waku/2/rs/1/777"]"#).0, 200);
}

/// The entry of a protocol in `/health`.
fn health(node: &Node, protocol: &str) -> String {
    let health = node.get("/health");
    let all = health["protocolsHealth"].as_array().expect("a list");
    let found = all.iter().find_map(|one| one[protocol].as_str());
    found.unwrap_or_else(|| panic!("no {protocol} in {health}")).to_owned()
}

#[test]
fn scripts_for_nwaku_find_its_health_and_its_peers() {
    let admin = [("rest_admin", "true")];
    let (first, second) = (Node::start("admin-1", &admin), Node::start("admin-2", &admin));
    assert_eq!(
        [health(&first, "Relay"), health(&first, "Store"), health(&first, "Filter")],
        ["NOT_READY", "READY", "READY"]
    );
    let path = "/admin/v1/peers";
    assert_eq!(first.get(path), Value::Array(Vec::new()));
    let addrs = format!("[\"{}\"]", second.peers[0]);
    assert_eq!(first.ask("POST", path, &addrs), (200, "OK".into()));
    until("both know each other", || {
        [&first, &second].iter().all(|node| health(node, "Relay") == "READY")
    });
    until("the second has said who it is", || {
        first.get(path)[0]["agent"].as_str().is_some_and(|agent| agent.starts_with("hark/"))
    });
    let id = second.peers[0].rsplit('/').next().expect("an id");
    let peer = first.get(&format!("/admin/v1/peer/{id}"));
    assert_eq!(text(&peer["multiaddr"]), second.peers[0]);
    assert_eq!(
        (&peer["connected"], &peer["origin"]),
        (&"Connected".into(), &"UnknownOrigin".into())
    );
    assert_eq!(peer["shards"], serde_json::json!([0, 1, 2, 3, 4, 5, 6, 7]));
    let offers = peer["protocols"].as_array().expect("a list");
    assert!(offers.contains(&"/vac/waku/store-query/3.0.0".into()), "{peer}");
    for list in ["", "/connected", "/connected/on/3", "/service"] {
        assert_eq!(first.get(&format!("{path}{list}")), serde_json::json!([peer]), "{list}");
    }
    assert_eq!(first.get(&format!("{path}/connected/on/9")), serde_json::json!([]));
    let relay = first.get(&format!("{path}/relay"));
    assert_eq!(
        (&relay[5]["shard"], &relay[5]["peers"][0]["multiaddr"]),
        (&5.into(), &peer["multiaddr"])
    );
    assert_eq!(first.get(&format!("{path}/relay/on/5")), relay[5]);
    until("they pass messages on", || {
        first.get(&format!("{path}/mesh/on/5"))["peers"].as_array().map(Vec::len) == Some(1)
    });
    let stats = first.get(&format!("{path}/stats"));
    assert_eq!(stats["Sum"]["Total peers"], 1);
    assert_eq!(stats["By Connectedness"]["Connected"], 1);
    assert_eq!(stats["By Protocols"]["/vac/waku/relay/2.0.0"], 1);

    let (status, words) = first.ask("POST", path, "[\"/ip4/127.0.0.1/tcp/1\"]");
    assert_eq!((status, words.contains("parse remote peer info")), (400, true), "{words}");
    let nobody = format!(
        "[\"/ip4/127.0.0.1/tcp/1/p2p/{}\"]",
        "16Uiu2HAmVFXtAfSj4EiR7mL2KvL4EE2wztuQgUSBoj2Jx2KeXFLN"
    );
    let (status, words) = first.ask("POST", path, &nobody);
    assert_eq!((status, words.contains("at index: 0")), (400, true), "{words}");
    let none = Node::start("admin-none", &[]);
    for (method, path) in [("GET", path), ("POST", path), ("GET", "/admin/v1/peers/stats")] {
        let (status, words) = none.ask(method, path, "[]");
        assert_eq!((status, words.contains("rest_admin")), (404, true), "{path}: {words}");
    }
}
