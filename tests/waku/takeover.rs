//! A server with a Waku node takes over from another server: clients of REST notice nothing, peers
//! reconnect, and no client or peer misses a message.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hark_testkit::clock::now_ns;
use hark_testkit::server::free_port;
use hark_testkit::wait::{PATIENCE, holds_within, until};
use serde_json::Value;

use super::{Node, folder, hark, message};

/// A REST client with a persistent connection.
struct Kept {
    stream: BufReader<TcpStream>,
}

impl Kept {
    fn connect(addr: &str) -> Self {
        let stream = TcpStream::connect(addr).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("is set");
        Self { stream: BufReader::new(stream) }
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes()).expect("is sent");
        let (mut status, mut len) = (0, 0);
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).expect("is answered");
            let line = line.trim_end().to_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().expect("a status");
            } else if let Some(rest) = line.strip_prefix("content-length: ") {
                len = rest.parse().expect("a length");
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; len];
        self.stream.read_exact(&mut body).expect("is whole");
        (status, String::from_utf8(body).expect("text"))
    }
}

/// Payloads of the polled messages.
fn polled(answer: &(u16, String)) -> Vec<String> {
    assert_eq!(answer.0, 200, "{}", answer.1);
    let messages: Value = serde_json::from_str(&answer.1).expect("JSON");
    let messages = messages.as_array().expect("a list").iter();
    messages.map(|one| one["payload"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn clients_notice_nothing_and_peers_reconnect() {
    let friend = Node::start("takeover-friend", &[]);
    let ports = [free_port(), free_port(), free_port(), free_port()];
    let rest = format!("127.0.0.1:{}", ports[0]);
    let listen = format!("/ip4/127.0.0.1/tcp/{},/ip4/127.0.0.1/tcp/{}/ws", ports[1], ports[2]);
    let (relay, metrics) = (format!("127.0.0.1:{}", ports[3]), free_port());
    let settings = [
        ("rest", rest.as_str()),
        ("listen", &listen),
        ("stores", &friend.peers[0]),
        ("rest_admin", "true"),
        ("HARK_SERVER_METRICS_LISTEN", &format!("127.0.0.1:{metrics}")),
    ];
    let data = folder("takeover");
    let mut old = Node::with(data.clone(), &["--listen", &relay], &settings);
    until("the friend is a peer", || connected(&old) == 1);
    // A message that was published but not polled, under a topic that a client subscribed to.
    let topic = "/takeover/1/chat/proto";
    let subscribed = old.ask("POST", "/relay/v1/auto/subscriptions", &format!("[\"{topic}\"]"));
    assert_eq!(subscribed.0, 200, "{}", subscribed.1);
    old.publish(&message("takeover", "AA==", now_ns()));
    let mut kept = Kept::connect(&rest);
    let health = "/health";
    assert_eq!(kept.ask("GET", health, "").0, 200);

    let new = Node::with(data.clone(), &["--listen", &relay, "--takeover"], &settings);
    assert_eq!((&new.rest, &new.relay), (&rest, &relay));
    // The new node has the same identity and addresses, so that peers find the node.
    assert_eq!(new.peers, old.peers);
    // The old process accepts connections until it knows of the takeover.
    until("the old process knows", || {
        std::fs::read(data.join("log")).is_ok_and(|log| {
            String::from_utf8_lossy(&log).contains("another process has taken over")
        })
    });
    let poll = format!("/relay/v1/auto/messages/{}", topic.replace('/', "%2F"));
    // The old process still serves its persistent connections, and passes their published messages
    // to the new process.
    assert_eq!(kept.ask("GET", health, "").0, 200);
    assert_eq!(polled(&kept.ask("GET", &poll, "")), ["AA=="]);
    // The old process may have accepted this connection just before the takeover.
    until("what waited goes on waiting", || polled(&new.ask("GET", &poll, "")) == ["AA=="]);
    let publish = "/relay/v1/auto/messages";
    let through = message("takeover", "AQ==", now_ns()).to_string();
    assert_eq!(kept.ask("POST", publish, &through), (200, "OK".into()));
    new.publish(&message("takeover", "Ag==", now_ns()));
    let mut passing = message("takeover", "Aw==", now_ns());
    passing["ephemeral"] = true.into();
    new.publish(&passing);
    let both = ["AQ==", "Ag==", "Aw=="];
    assert_eq!(polled(&new.ask("GET", &poll, "")), both);
    let mut returned = Vec::new();
    until("the old process follows", || {
        returned.extend(polled(&kept.ask("GET", &poll, "")));
        returned.len() >= both.len()
    });
    assert_eq!(returned, both);
    let history = |answer: &(u16, String)| {
        let page: Value = serde_json::from_str(&answer.1).expect("JSON");
        page["messages"].as_array().expect("a list").len()
    };
    let page = "/store/v3/messages?contentTopics=%2Ftakeover%2F1%2Fchat%2Fproto";
    assert_eq!(history(&kept.ask("GET", page, "")), 3);
    assert_eq!(history(&new.ask("GET", page, "")), 3);
    // The new node gets the messages that the friend received while disconnected, by a query or by
    // gossip.
    friend.publish(&message("takeover", "BA==", now_ns()));
    until("the friend is a peer again", || connected(&new) == 1);
    friend.publish(&message("takeover", "BQ==", now_ns()));
    until("no message is missed", || history(&new.ask("GET", page, "")) == 5);
    // The friend also gets messages published at the old process, which has no peers any more. Two
    // nodes that have just connected may not know each other's shards yet, and gossip passes
    // nothing on then. So the test publishes messages until one arrives.
    until("the friend has it", || {
        let late = message("takeover", "Bg==", now_ns()).to_string();
        assert_eq!(kept.ask("POST", publish, &late), (200, "OK".into()));
        holds_within(Duration::from_secs(1), || {
            friend.get(&format!("{page}&includeData=true")).to_string().contains("Bg==")
        })
    });
    // Commands on both shelves reach the new process.
    for network in ["nostr", "waku"] {
        let stats = hark(&data).args(["stats", "--json", "--network", network]).output();
        let stats: Value = serde_json::from_slice(&stats.expect("runs").stdout).expect("JSON");
        assert_eq!(stats["server_running"], true, "{stats}");
        assert!(stats["server"]["trouble"].is_null(), "{stats}");
    }
    drop(kept);
    assert!(old.server.wait().expect("ends").success());
    let check = hark(&data).args(["check", "--network", "waku"]).output().expect("runs");
    let said = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success() && said.contains("no faults"), "{said}");
}

/// Number of peers that a node is connected with.
fn connected(node: &Node) -> usize {
    node.get("/admin/v1/peers/connected").as_array().expect("a list").len()
}

#[test]
fn who_would_serve_other_shelves_does_not_take_over() {
    let data = folder("takeover-other");
    let old = Node::on(data.clone(), &[]);
    let mut command = hark(&data);
    command.args(["serve", "--takeover", "--listen", "127.0.0.1:0"]);
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let why = "it serves moderation, nostr, waku, and the new server would serve moderation, nostr";
    assert!(!output.status.success() && said.contains(why), "{said}");
    old.publish(&message("takeover", "AA==", now_ns()));
    assert_eq!(old.hashes("").len(), 1);
}

/// A shell can stop a new process before the process reads what the old one hands over.
#[test]
fn a_new_process_that_reads_nothing_stops_no_writes() {
    let node = Node::start("takeover-stopped", &[("HARK_LIMITS_TAKEOVER_WAIT_MS", "300")]);
    // The messages that clients may still poll do not fit into the buffer of a socket.
    let payload = "A".repeat(24_000);
    (0..45).for_each(|_| node.publish(&message("takeover", &payload, now_ns())));
    let mut stopped = UnixStream::connect(node.data.join("control.sock")).expect("a server runs");
    let request = [&3_u32.to_le_bytes()[..], b"nostr\nmoderation\nwaku"].concat();
    let length = u32::try_from(2 + request.len()).expect("is short");
    let request = [&length.to_le_bytes()[..], &[5, 0], &request].concat();
    stopped.write_all(&request).expect("is sent");
    until("the takeover fails", || {
        std::fs::read(node.data.join("log")).is_ok_and(|log| {
            String::from_utf8_lossy(&log).contains("the takeover failed; this server continues")
        })
    });
    node.publish(&message("takeover", "AQ==", now_ns()));
    drop(stopped);
}
