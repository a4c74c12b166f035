//! Tests of the fetch of missed messages from a store that answers as a test decides.

use hark_codec::waku::store::{Status, put_answer, put_message};
use tokio::sync::mpsc;

use super::silent::wait_until;
use super::*;

const TOPIC: &str = "/waku/2/rs/1/0";

/// A peer with a store. The test answers the requests.
struct ScriptedStore {
    addr: Multiaddr,
    requests: mpsc::UnboundedReceiver<(Vec<u8>, oneshot::Sender<Vec<u8>>)>,
    task: tokio::task::JoinHandle<()>,
}

/// A request to the store.
struct StoreQuestion {
    cursor: Option<Vec<u8>>,
    reply: oneshot::Sender<Vec<u8>>,
}

impl ScriptedStore {
    async fn start() -> Self {
        let mut swarm = stranger();
        swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
        let addr = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address.with_p2p(*swarm.local_peer_id()).unwrap();
            }
        };
        let (sender, requests) = mpsc::unbounded_channel();
        swarm.behaviour().incoming.serve(STORE, move |_, mut stream| {
            let sender = sender.clone();
            async move {
                let request = frame::read(&mut stream, 1 << 20).await.unwrap().unwrap();
                let (reply, answer) = oneshot::channel::<Vec<u8>>();
                // The test may have ended.
                let _ = sender.send((request, reply));
                if let Ok(answer) = answer.await {
                    frame::write(&mut stream, &answer).await.unwrap();
                    frame::end(&mut stream).await.unwrap();
                }
            }
        });
        let task = tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        Self { addr, requests, task }
    }

    /// Starts a node that fetches missed messages from this store.
    async fn node(&self, name: &str, online: std::path::PathBuf) -> Pair {
        Pair::shaped(name, Clients::default(), |config| {
            let p2p = config.p2p.as_mut().unwrap();
            p2p.stores.push(self.addr.clone());
            (p2p.resume_max_s, p2p.online) = (86_400, online);
        })
        .await
    }

    /// Returns the next request.
    async fn asked(&mut self) -> StoreQuestion {
        let next = tokio::time::timeout(Duration::from_mins(1), self.requests.recv()).await;
        let (request, reply) = next.expect("the store is asked").unwrap();
        let request = StoreRequest::parse(&request).unwrap();
        StoreQuestion { cursor: request.cursor.map(<[u8]>::to_vec), reply }
    }
}

impl StoreQuestion {
    /// Answers with a status, with messages that have these payloads, and with the hash of the last
    /// message as the cursor if there `is_more`. Returns the cursor.
    fn answer(self, status: Status, payloads: &[&[u8]], is_more: bool) -> Option<Vec<u8>> {
        let (mut answer, mut cursor) = (Vec::new(), None);
        for payload in payloads {
            let message = Message {
                payload,
                content_topic: "/a/1/b/proto",
                timestamp: i64::try_from(Clock::System.now_ns()).ok(),
                ..Message::default()
            };
            let (hash, mut bytes) = (message.hash(TOPIC), Vec::new());
            message.write(&mut bytes);
            put_message(&mut answer, &hash, Some((&bytes, TOPIC.as_bytes())));
            cursor = is_more.then_some(hash);
        }
        put_answer(&mut answer, "resume", status, "", cursor.as_ref());
        self.reply.send(answer).unwrap();
        cursor.map(Vec::from)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_store_is_asked_again_for_the_same_page() {
    let folder = scratch("resume-busy-online");
    let mut store = ScriptedStore::start().await;
    let pair = store.node("resume-busy", folder.join("waku.online")).await;
    let first = store.asked().await;
    assert_eq!(first.cursor, None);
    let cursor = first.answer(Status::Success, &[b"1", b"2"], true);
    let second = store.asked().await;
    assert_eq!(second.cursor, cursor);
    second.answer(Status::TooManyRequests, &[], false);
    let third = store.asked().await;
    assert_eq!(third.cursor, cursor);
    third.answer(Status::Success, &[b"3"], false);
    // The node had one message.
    wait_until("all are stored", async || pair.ask(&good()).await.2 == 4).await;
    store.task.abort();
    pair.end().await;
}

/// A shard whose messages no peer relays for a while misses messages, although other shards are
/// relayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_fetched_once_a_further_shard_is_relayed() {
    let folder = scratch("resume-shards-online");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("waku.online");
    let mut store = ScriptedStore::start().await;
    let pair = store.node("resume-shards", file.clone()).await;
    let mut peers = Vec::new();
    for shard in [0, 1] {
        let topic = IdentTopic::new(format!("/waku/2/rs/1/{shard}"));
        let mut swarm = serving(Keypair::generate_secp256k1(), std::slice::from_ref(&topic));
        swarm.behaviour_mut().gossip.subscribe(&topic).unwrap();
        swarm.dial(pair.addr.clone()).unwrap();
        peers.push(tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        }));
        wait_until("the shard is relayed", async || {
            pair.waku.peers().await.unwrap().iter().any(|peer| peer.shards.contains(&shard))
        })
        .await;
        store.asked().await.answer(Status::Success, &[], false);
    }
    wait_until("the shards are noted", async || {
        std::fs::read_to_string(&file).is_ok_and(|note| note.ends_with(" 0 1\n"))
    })
    .await;
    peers.iter().for_each(tokio::task::JoinHandle::abort);
    store.task.abort();
    pair.end().await;
    std::fs::remove_dir_all(folder).unwrap();
}
