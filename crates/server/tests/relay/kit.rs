//! A relay for the tests to connect to.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use hark_archive::clock::Clock;
use hark_archive::retention::RetentionPolicy;
use hark_archive::store::memory::MemoryStore;
use hark_archive::{Store, writer};
use hark_networks::Network as _;
use hark_networks::nostr::Nostr;
use hark_networks::nostr::rules::NostrRules;
use hark_server::door::ServableNetwork;
use hark_server::moderation::{Moderation, ModerationNetwork, ModerationService};
use hark_server::nostr::{self, policy};
use hark_server::ranges::LOOPBACK;
use hark_server::{Server, SettingsHandle, shelf};
use hark_testkit::http::HttpReply;
use hark_testkit::nostr::client::Client;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The relay's time when a test starts.
pub(crate) const NOW_S: u64 = 1_800_000_000;

pub(crate) struct Relay {
    pub(crate) url: String,
    /// The URLs of all addresses. `url` is the first.
    pub(crate) urls: Vec<String>,
    /// The separate address of the metrics. `None` if the metrics have no separate address.
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) reload: SettingsHandle,
    pub(crate) policy: policy::SharedPolicy,
    pub(crate) moderation: Moderation,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

/// The configuration of a relay.
pub(crate) struct Config {
    pub(crate) server: hark_server::ServerConfig,
    pub(crate) relay: nostr::RelayConfig,
    pub(crate) policy: policy::EventPolicy,
    /// The store of the bans and the verified names. `None`: the server has no shelf for bans.
    pub(crate) moderation: Option<Arc<dyn Store>>,
}

impl Deref for Config {
    type Target = hark_server::ServerConfig;

    fn deref(&self) -> &Self::Target {
        &self.server
    }
}

impl DerefMut for Config {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.server
    }
}

impl Config {
    /// Changes the relay's description of itself.
    pub(crate) fn info(&mut self, change: impl FnOnce(&mut nostr::RelayInfo)) {
        let mut info = nostr::RelayInfo::default();
        change(&mut info);
        self.relay.identity.set(info, nostr::PRIVATE_KINDS.to_vec());
    }
}

impl Relay {
    pub(crate) async fn start(change: impl FnOnce(&mut Config)) -> Self {
        Self::on(Arc::new(MemoryStore::new(NostrRules)), change).await
    }

    pub(crate) async fn on(store: Arc<dyn Store>, change: impl FnOnce(&mut Config)) -> Self {
        let clock = Clock::fake(NOW_S);
        let mut config = Config {
            server: hark_server::ServerConfig::default(),
            relay: nostr::RelayConfig::new(vec!["127.0.0.1:0".parse().unwrap()]),
            policy: policy::EventPolicy::default(),
            moderation: None,
        };
        // Bounds apply to each connection of a test, and not to the address that all connections
        // share.
        config.proxies.trusted = LOOPBACK.to_vec();
        change(&mut config);
        let Config { server, mut relay, policy, moderation } = config;
        relay.policy = policy::shared(policy);
        let policy = relay.policy.clone();
        let shelf = shelf::ShelfOptions {
            network: &Nostr,
            store: Arc::clone(&store),
            writer: writer::WriterOptions::default(),
            clock: clock.clone(),
            retention: RetentionPolicy::default(),
            compact: Some(Arc::new(|progress| {
                progress("half");
                Ok("small now".into())
            })),
            handover: None,
        };
        let mut serving: Vec<Box<dyn ServableNetwork>> =
            vec![Box::new(nostr::RelayService { config: relay, shelf })];
        if let Some(store) = moderation {
            let shelf = shelf::ShelfOptions {
                network: &ModerationNetwork,
                store,
                writer: writer::WriterOptions::default(),
                clock: clock.clone(),
                retention: RetentionPolicy::default(),
                compact: None,
                handover: None,
            };
            serving.push(Box::new(ModerationService { shelf }));
        }
        let server = Server::bind(server, serving).await.unwrap();
        let urls: Vec<_> = server.addresses().into_iter().map(|reached| reached.at).collect();
        let url = urls[0].clone();
        let (metrics, reload) = (server.metrics_addr(), server.reload());
        let moderation = server.moderation().clone();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            server.run(async { drop(stopped.await) }).await.unwrap();
        });
        Self {
            url,
            urls,
            metrics,
            store,
            clock,
            reload,
            policy,
            moderation,
            stop: Some(stop),
            running,
        }
    }

    /// Opens the bans and allows, in memory.
    pub(crate) fn open_moderation(&self) {
        let options = shelf::ShelfOptions {
            network: &ModerationNetwork,
            store: Arc::new(MemoryStore::new(ModerationNetwork.rules())),
            writer: writer::WriterOptions::default(),
            clock: self.clock.clone(),
            retention: RetentionPolicy::default(),
            compact: None,
            handover: None,
        };
        self.moderation.open_late(options).unwrap();
    }

    /// Carries out an act about a subject, such as a ban.
    pub(crate) async fn rule(&self, act: &str, subject: &str) {
        let request =
            json!({ "request": "change", "act": act, "subjects": [subject], "by": "test" });
        let moderation = self.moderation.clone();
        let answer = move || moderation.answer(request.to_string().as_bytes());
        tokio::task::spawn_blocking(answer).await.unwrap().unwrap();
    }

    pub(crate) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) async fn stop(mut self) {
        self.begin_stop();
        self.running.await.unwrap();
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url, NOW_S).await
    }
}

/// Requests a path over plain HTTP, with an optional header. Returns the status and the body.
pub(crate) async fn http(url: &str, path: &str, header: &str) -> (u16, String) {
    let addr = url.strip_prefix("ws://").unwrap();
    http_as(addr.parse().unwrap(), addr, path, header).await
}

/// Does the same as [`http`], with `host` in the Host header.
pub(crate) async fn http_as(
    addr: SocketAddr,
    host: &str,
    path: &str,
    header: &str,
) -> (u16, String) {
    let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{header}\r\n");
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    HttpReply::parse(&answer).unwrap().parts()
}
