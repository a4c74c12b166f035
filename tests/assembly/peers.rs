//! The doors for other nodes. Waku's doors by libp2p connect with a second Hark that has an archive
//! in files. Whisper's doors by devp2p are tested with a client that connects to these doors.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::LazyLock;

use hark_codec::crypto::keccak256;
use hark_codec::whisper::rlp::RlpItems;
use hark_codec::whisper::{Bloom, Completion, HistoryRequest};
use hark_testkit::clock::now_s;
use hark_testkit::digits::digits;
use hark_testkit::folder::Folder;
use hark_testkit::http::{HttpRequest, get};
use hark_testkit::mail::{
    MailClient, SHH, WAKU, list, new_key, number as rlp_number, packet, request, status, string,
};
use hark_testkit::program::Program;
use hark_testkit::wait::until;
use serde_json::{Value, json};

use crate::doors::Answer::{self, Own, Same};
use crate::fixture::{self, FIRST_S, LAST_S};
use crate::world::{Node, World, number, program};

/// The default password of mail servers.
const PASSWORD: &str = "status-offline-inbox";
/// Topic of the message that only the helper has at first.
const HELPERS: &str = "/helper/1/chat/proto";

/// The key of all helpers, and an address with their id for the worlds' settings. No node listens
/// at this address: a helper opens the connections.
static IDENTITY: LazyLock<(String, String)> = LazyLock::new(|| {
    let root = Folder::new("assembly-identity");
    let node = Node::start(command(&root, ""), &[]);
    let id = node.peers[0].rsplit('/').next().expect("an id").to_owned();
    node.forget();
    let key = std::fs::read_to_string(root.join("data/waku.key")).expect("is there");
    (key, format!("/ip4/127.0.0.1/tcp/1/p2p/{id}"))
});

/// The address that contains the peer id of all helpers, for the worlds' settings.
pub(crate) fn helpers_address() -> &'static str {
    &IDENTITY.1
}

/// A command on a helper's archive. `more` has further settings of Waku.
fn command(root: &Folder, more: &str) -> Program {
    let settings = format!(
        "[waku]\nserve = true\nrest = \"127.0.0.1:0\"\nrest_any_peer = true\n\
         rest_admin = true\nforward = \"always\"\n\
         listen = [\"/ip4/127.0.0.1/tcp/0\", \"/ip4/127.0.0.1/tcp/0/ws\"]\n{more}\
         [whisper]\nserve = true\nrest = \"127.0.0.1:0\"\nlisten = \"127.0.0.1:0\"\n"
    );
    let config = root.file("hark.toml", settings);
    let mut command = program();
    command.arg("--data").arg(root.join("data")).arg("--config").arg(&config);
    command
}

/// Another node, which connects with a world's node.
pub(crate) struct Helper {
    node: Option<Node>,
    /// Removed after the node has ended.
    _root: Folder,
    /// The time of the message that only the helper had.
    at: u64,
}

impl Helper {
    pub(crate) fn start(world: &World) -> Self {
        let root = Folder::new("assembly-helper");
        let data = root.join("data");
        std::fs::create_dir_all(&data).expect("is made");
        let key = data.join("waku.key");
        std::fs::write(&key, &IDENTITY.0).expect("is written");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("is ours");
        let more = format!(
            "stores = [\"{}\"]\nresume_max_s = 0\nsync_every_s = 1\nsync_jitter_s = 0\n",
            world.reads().peers[0]
        );
        let at = (now_s() - 100) * 1_000_000_000;
        let line = fixture::kept(HELPERS, at, "of the helper").to_string();
        let mut import = command(&root, &more);
        import.args(["import", "--network", "waku"]).run_with(line.as_bytes()).text();
        let node = Node::start(command(&root, &more), &[]);
        Self { node: Some(node), _root: root, at }
    }

    fn node(&self) -> &Node {
        self.node.as_ref().expect("runs")
    }

    /// Host and port of the helper's relay.
    pub(crate) fn relay(&self) -> &str {
        &self.node().relay
    }

    fn id(&self) -> String {
        self.node().peers[0].rsplit('/').next().expect("an id").to_owned()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.forget();
        }
    }
}

/// Waits until the helper is connected with the reading node, and returns the helper.
fn connected(world: &World) -> &Helper {
    let helper = world.helper();
    until("the nodes are connected", || {
        let peers = get(&world.reads().waku, "/admin/v1/peers/connected").json();
        peers.to_string().contains(&helper.id())
    });
    helper
}

pub(crate) fn dialled(world: &World) -> Answer {
    let helper = connected(world);
    let body = json!([helper.node().peers[1]]).to_string();
    let reply = HttpRequest::new("POST", "/admin/v1/peers").json(&body).send(&world.reads().waku);
    let listed = get(&world.reads().waku, "/admin/v1/peers").ok();
    assert!(listed.contains(&helper.id()), "{listed}");
    Same(format!("{} {}", reply.status, reply.text()))
}

pub(crate) fn one(world: &World) -> Answer {
    let id = connected(world).id();
    let peer = get(&world.reads().waku, &format!("/admin/v1/peer/{id}"));
    assert_eq!(peer.status, 200, "{}", peer.text());
    assert_eq!(peer.json()["connected"], "Connected");
    let nobody = get(&world.reads().waku, "/admin/v1/peer/nobody");
    Same(format!("{} {}", nobody.status, nobody.text()))
}

pub(crate) fn listed(world: &World, which: &str) -> Answer {
    let helper = connected(world);
    // A peer announces its shards after the connection is established.
    until(which, || {
        let peers = get(&world.reads().waku, &format!("/admin/v1/peers/{which}"));
        peers.status == 200 && peers.text().contains(&helper.id())
    });
    Own
}

/// The helper learns the protocols for light clients from the node. Clients of these protocols are
/// in crates/server/src/waku/p2p/tests/light.rs and tests/js-waku/light-client.mjs.
pub(crate) fn light_services(world: &World) -> Answer {
    let helper = connected(world);
    until("the node announces its protocols", || {
        let peers = get(&helper.node().waku, "/admin/v1/peers/service");
        let listed = peers.text();
        let names = ["filter-subscribe/2.0.0-beta1", "lightpush/3.0.0", "lightpush/2.0.0-beta1"];
        peers.status == 200 && names.iter().all(|name| listed.contains(name))
    });
    Own
}

pub(crate) fn by_shard(world: &World, which: &str) -> Answer {
    connected(world);
    let reply = get(&world.reads().waku, &format!("/admin/v1/peers/{which}"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json();
    Own
}

/// An ephemeral message goes from one node to the other, and another message comes back.
pub(crate) fn gossiped(world: &World) -> Answer {
    let helper = connected(world);
    let topic = format!("/gossip{}/1/chat/proto", number());
    let list = json!([topic]).to_string();
    for (from, to) in [(world.reads(), helper.node()), (helper.node(), world.reads())] {
        let path = "/relay/v1/auto/subscriptions";
        assert_eq!(HttpRequest::new("POST", path).json(&list).send(&to.waku).ok(), "OK");
        let poll = format!("/relay/v1/auto/messages/{}", topic.replace('/', "%2F"));
        // Gossip needs a second to find its subscribers.
        until("a message gets through", || {
            let at = now_s() * 1_000_000_000 + u64::from(number());
            let mut message = fixture::message(&topic, at, "passing");
            message["ephemeral"] = json!(true);
            let body = message.to_string();
            let path = "/relay/v1/auto/messages";
            assert_eq!(HttpRequest::new("POST", path).json(&body).send(&from.waku).ok(), "OK");
            get(&to.waku, &poll).ok() != "[]"
        });
        assert_eq!(HttpRequest::new("DELETE", path).json(&list).send(&to.waku).ok(), "OK");
    }
    Own
}

/// The helper queries the fixture by the store protocol, over TCP and over WebSocket.
pub(crate) fn asked_by_peer(world: &World) -> Answer {
    let helper = connected(world);
    let mut out = String::new();
    for peer in &world.reads().peers {
        for more in ["pageSize=100", "pageSize=7&ascending=false"] {
            let path = format!(
                "/store/v3/messages?startTime={FIRST_S}000000000&endTime={LAST_S}000000000\
                 &includeData=true&{more}&peerAddr={}",
                peer.replace('/', "%2F")
            );
            out = out + &get(&helper.node().waku, &path).ok() + "\n";
        }
    }
    Same(out)
}

/// The helper, a connected peer, asks the reading node for records of nodes.
pub(crate) fn exchanged(world: &World) -> Answer {
    connected(world);
    until("the peers exchange records", || {
        let page = get(&world.reads().relay, "/metrics").text();
        let sent = "waku_peer_exchanges_total{direction=\"sent\",status=\"200\"} ";
        let count = page.lines().find_map(|line| line.strip_prefix(sent));
        count.is_some_and(|count| count != "0")
    });
    Own
}

/// After a reconciliation, both nodes have the messages that only one node had before.
pub(crate) fn reconciled(world: &World) -> Answer {
    let helper = connected(world);
    let at = (now_s() - 50) * 1_000_000_000 + u64::from(number());
    let line = fixture::kept(HELPERS, at, "of the world").to_string();
    world.hark_fed(&["import", "--network", "waku"], line.as_bytes()).text();
    let has = |node: &Node, at: u64| {
        let page = get(&node.waku, &format!("/store/v3/messages?startTime={at}&endTime={at}"));
        page.json()["messages"].as_array().is_some_and(|found| found.len() == 1)
    };
    until("the node has the helper's message", || has(world.reads(), helper.at));
    until("the helper has the node's message", || has(helper.node(), at));
    Own
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Returns a request for the history of the fixture's envelopes.
fn wanted() -> HistoryRequest<'static> {
    HistoryRequest {
        lower: FIRST_S as u32,
        upper: LAST_S as u32,
        bloom: Some(Bloom::FULL),
        batch: true,
        ..HistoryRequest::default()
    }
}

/// Requests all pages, and returns the envelopes as text.
async fn all_pages(client: &mut MailClient, wanted: HistoryRequest<'_>) -> String {
    let (mut wanted, mut out) = (wanted, String::new());
    loop {
        let mut payload = Vec::new();
        wanted.write(std::iter::empty(), &mut payload);
        let asked = request(&payload, PASSWORD, Some(&new_key()), now_s() as u32);
        let answer = client.ask(&asked).await;
        for envelope in &answer.envelopes {
            out = out + &digits(envelope) + "\n";
        }
        match Completion::parse(&answer.completion).expect("an end") {
            Completion::Done { cursor: Some(cursor), .. } => wanted.cursor = Some(cursor),
            Completion::Done { cursor: None, .. } => return out,
            Completion::Failed { text, .. } => panic!("it fails: {text}"),
        }
    }
}

/// Waits until a node's history has an envelope.
fn wait_for_envelope(world: &World, envelope: &[u8]) {
    let hash = format!("0x{}", digits(&keccak256(envelope)));
    let headers = [("Content-Type", "application/json"), ("Accept", "application/json")];
    let request = json!({"from": now_s() - 1_000}).to_string();
    until("the envelope is in the history", || {
        let addr = &world.reads().whisper;
        let reply = HttpRequest::new("POST", "/whisper/messages")
            .headers(&headers)
            .body(request.as_bytes())
            .send(addr);
        reply.text().contains(&hash)
    });
}

pub(crate) fn mail_of_geth(world: &World) -> Answer {
    let envelope = fixture::envelope(now_s(), format!("shh {}", number()).as_bytes());
    let out = runtime().block_on(async {
        let mut poster = MailClient::connect(&world.writes().enode, SHH).await;
        poster.publish(std::slice::from_ref(&envelope)).await;
        // The server handles packets of a peer in order, so the envelope is durable once this
        // request is answered.
        all_pages(&mut poster, wanted()).await;
        let mut reader = MailClient::connect(&world.reads().enode, SHH).await;
        all_pages(&mut reader, HistoryRequest { batch: false, ..wanted() }).await
    });
    wait_for_envelope(world, &envelope);
    Same(out)
}

pub(crate) fn mail_of_status(world: &World) -> Answer {
    let envelope = fixture::envelope(now_s(), format!("waku {}", number()).as_bytes());
    let out = runtime().block_on(async {
        let mut poster = MailClient::connect(&world.writes().enode, WAKU).await;
        poster.publish(std::slice::from_ref(&envelope)).await;
        while poster.receive().await.expect("an answer").0 != packet::BATCH_ACKNOWLEDGED {}
        let mut reader = MailClient::connect(&world.reads().enode, WAKU).await;
        all_pages(&mut reader, HistoryRequest { limit: 4, ..wanted() }).await
    });
    wait_for_envelope(world, &envelope);
    Same(out)
}

/// A trusted mail server fetches all envelopes.
pub(crate) fn mail_synced(world: &World) -> Answer {
    let (from, to) = (rlp_number(FIRST_S), rlp_number(LAST_S));
    let bloom = string(&Bloom::FULL.0);
    let asked = list(&[&from, &to, &bloom, &rlp_number(100), &string(b"")]);
    let got: Vec<Value> = runtime().block_on(async {
        let client = MailClient::greet(&world.reads().enode, SHH, &fixture::trusted()).await;
        let mut client = client.expect("connects");
        client.send(packet::STATUS, &status(SHH)).await;
        assert_eq!(client.receive().await.expect("a packet").0, packet::STATUS);
        client.send(packet::SYNC_REQUEST, &asked).await;
        let mut got = Vec::new();
        loop {
            let (code, part) = client.receive().await.expect("a packet");
            assert_eq!(code, packet::SYNC_RESPONSE);
            let mut items = RlpItems::of_list(&part).expect("a list");
            let mut envelopes = items.list().expect("a list");
            while !envelopes.is_empty() {
                got.push(json!(digits(envelopes.raw().expect("an envelope"))));
            }
            items.bytes().expect("a cursor");
            if items.flag().expect("a flag") {
                return got;
            }
        }
    });
    assert_eq!(got.len(), 30);
    Same(json!(got).to_string())
}
