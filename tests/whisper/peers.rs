//! Peers that connect and leave, in the metrics, in `hark stats` and in the log.

use hark_server::whisper::rlpx::RlpxStream;
use hark_server::whisper::rlpx::hello::{DisconnectReason, Hello, SubProtocol};
use hark_testkit::http::get;
use hark_testkit::mail::{MailClient, SHH, WAKU, new_key, node, random};
use hark_testkit::wait::until;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::MailNode;
use crate::served::hark;

/// Connects to a node, sends a reason for leaving, and waits until the node ends the connection.
async fn leave(enode: &str, reason: DisconnectReason) {
    let (id, at) = node(enode);
    let (read, write) = TcpStream::connect(at).await.expect("connects").into_split();
    let stream = RlpxStream { read, write, message_bytes_max: 1 << 20, allowance: () };
    let (key, mut random) = (new_key(), random);
    let hello = Hello::new("leaver/v1", &[WAKU], 0, key.public());
    let connected = stream.connect(&key, &id, &hello, &mut random).await;
    let mut connection = connected.expect("connects");
    connection.writer.disconnect(reason).await.expect("is sent");
    while connection.reader.read().await.is_ok() {}
}

#[test]
fn an_operator_lists_a_peer_and_disconnects_it() {
    let node = MailNode::start("peers-kick", &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut client = runtime.block_on(MailClient::connect(&node.enode, SHH));
    let run = |args: &[&str]| {
        let output = hark(&node.data).args(args).output().expect("runs");
        String::from_utf8(output.stdout).expect("text")
    };
    let listed = run(&["clients", "--json", "--filter", "whisper"]);
    let row: Value = serde_json::from_str(&listed).expect("one row");
    assert_eq!((&row["agent"], &row["address"]), (&json!("test/v1"), &json!("127.0.0.1")));
    assert!(row["received_bytes"].as_u64() > Some(300), "{row}");
    assert!(row["sent_bytes"].as_u64() > Some(300), "{row}");
    let id = row["keys"][0].as_str().expect("an id").to_owned();
    assert_eq!((id.len(), &row["form"]), (128, &json!("peer")));
    assert_eq!(run(&["kick", &id]), "1 connection closed\n");
    assert_eq!(runtime.block_on(client.disconnected()), DisconnectReason::Requested);
    wait_for_metrics(&node, &["hark_whisper_peers_left_total{reason=\"kicked\"} 1"]);
}

/// Waits until the metrics have all these lines.
fn wait_for_metrics(node: &MailNode, lines: &[&str]) {
    until("the metrics have the lines", || {
        let page = get(&node.relay, "/metrics").ok();
        lines.iter().all(|line| page.lines().any(|known| known == *line))
    });
}

#[test]
fn peers_are_counted_and_the_log_has_the_reason_of_each_disconnect() {
    let mut node = MailNode::start("peers", &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut client = runtime.block_on(MailClient::connect(&node.enode, SHH));
    let connected = node.server.wait_for_log("a peer is connected");
    for said in ["peer=127.0.0.1", "client=\"test/v1\"", "protocol=\"shh\""] {
        assert!(connected.contains(said), "{said}: {connected}");
    }
    let connected = "hark_whisper_handshakes_total{result=\"connected\"} 1";
    wait_for_metrics(&node, &["hark_whisper_peers 1", connected]);

    runtime.block_on(leave(&node.enode, DisconnectReason::TooMany));
    let left = node.server.wait_for_log("a peer is gone");
    assert!(left.contains("peer=127.0.0.1"), "{left}");
    assert!(left.contains("the peer disconnects: too many peers"), "{left}");
    runtime.block_on(async {
        // The code is above the codes of the peer's only sub-protocol.
        client.send(200, &[0xc0]).await;
        assert_eq!(client.disconnected().await, DisconnectReason::Protocol);
        let other = SubProtocol { name: "eth", version: 63, codes: 17 };
        let useless = MailClient::greet(&node.enode, other, &new_key()).await;
        let reason = useless.expect("connects").disconnected().await;
        assert_eq!(reason, DisconnectReason::Useless);
    });
    let left = node.server.wait_for_log("a peer is gone");
    assert!(left.contains("message 216 belongs to no protocol"), "{left}");

    wait_for_metrics(
        &node,
        &[
            "hark_whisper_peers 0",
            "hark_whisper_handshakes_total{result=\"connected\"} 2",
            "hark_whisper_handshakes_total{result=\"no_protocol\"} 1",
            "hark_whisper_peers_left_total{reason=\"left\"} 1",
            "hark_whisper_peers_left_total{reason=\"breach\"} 1",
        ],
    );
    let stats = |more: &[&str]| {
        let mut command = hark(&node.data);
        let output = command.args(["stats", "--network", "whisper"]).args(more).output();
        String::from_utf8(output.expect("runs").stdout).expect("text")
    };
    let table = stats(&[]);
    assert!(table.contains("2 connected since the start, 1 handshakes failed"), "{table}");
    let stats: Value = serde_json::from_str(&stats(&["--json"])).expect("JSON");
    let server = &stats["server"];
    assert_eq!(server["peers"], 0, "{server}");
    assert_eq!(server["handshakes"], json!({ "connected": 2, "no_protocol": 1 }));
    assert_eq!(server["peers_left"], json!({ "left": 1, "breach": 1 }));
}
